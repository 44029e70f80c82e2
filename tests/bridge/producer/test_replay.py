"""What one run over a poison queue moves, leaves and reports, message by message."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge.contract.burial import Burial, opened, write_burial
from queuebell.bridge.contract.errors import UnknownOutcome
from queuebell.bridge.producer.replay import ReplayOptions, ReplayResult, ReplayRun, target_of
from queuebell.bridge.queues.base import NewMessage, QueueStore, StoredMessage
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.storage.claim_check import ClaimCheck
from tests.bridge.queues.clocks import FakeClock

QUEUE, POISON = "pay/orders", "pay/orders-poison"
NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
_names = itertools.count()


class Told:
    """Notes what became of each message."""

    def __init__(self) -> None:
        self.went: list[tuple[str, str, str, str | None]] = []
        self.stayed: list[tuple[str, str]] = []

    def moved(self, message: StoredMessage, target: str, new_id: str, burial: Burial | None) -> None:
        self.went.append((message.id, target, new_id, None if burial is None else burial.reason))

    def stays(self, message: StoredMessage, why: str) -> None:
        self.stayed.append((message.id, why))


def buried(reason: str, number: int, queue: str = QUEUE) -> NewMessage:
    """Return a dead letter."""
    body = write_burial(Burial(queue, str(number), NOON, NOON, reason, 5), b"order %d" % number, 65_536)
    assert body is not None
    return NewMessage(body, headers={"number": str(number)})


async def run(
    store: QueueStore, choice: ReplayOptions, *, told: Told | None = None, present: int = 100, **more: Any
) -> ReplayResult:
    """Run over the poison queue."""
    return await ReplayRun(store, store, POISON, choice, present, clock=FakeClock(), observer=told, **more).run()


async def bodies(store: QueueStore, queue: str) -> list[bytes]:
    return [opened(message.body)[1] for message in await store.peek(queue)]


async def test_a_put_without_an_answer_leaves_everything_and_says_so() -> None:
    """The messages stay, and a note names the queue where they may be too."""

    class Silent(MemoryStore):
        async def put(self, queue: str, *more: Any, **others: Any) -> Any:
            if queue == QUEUE:
                raise UnknownOutcome("no answer")
            return await super().put(queue, *more, **others)

    async with Silent(f"replaying-{next(_names)}") as store:
        await store.put(POISON, [buried("price", 1), buried("price", 2)])
        with pytest.raises(UnknownOutcome) as raised:
            await run(store, ReplayOptions())
        assert f"2 messages stay, and may also have been put on {QUEUE}" in raised.value.__notes__
        assert await bodies(store, POISON) == [b"order 1", b"order 2"]


@pytest.mark.parametrize(("to", "target"), [(None, "pay/orders"), ("others", "pay/others"), ("far/away", "far/away")])
def test_where_a_dead_letter_goes(to: str | None, target: str) -> None:
    """Where it came from, or to ``to``; only a whole reference names another account."""
    burial = Burial(QUEUE, "1", NOON, NOON, "price", 5)
    assert target_of(POISON, burial, to) == target


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("outer", [False, True])
async def test_facts_are_found_where_the_body_was_put_aside_with_them(outer: bool, plain: bool, tmp_path: Path) -> None:
    """Around the claim or behind it; those around it are newer. A plain put has the body alone."""
    async with MemoryStore(f"replaying-{next(_names)}") as store, ClaimCheck((tmp_path / "blobs").as_uri()) as check:
        inner = buried("behind", 1).body
        aside = (await check.put_aside(POISON, NewMessage(inner), 1)).body
        burial = Burial(QUEUE, "2", NOON, NOON, "around", 5)
        await store.put(POISON, [NewMessage(write_burial(burial, aside, 65_536) if outer else aside)])  # type: ignore[arg-type]
        told = Told()
        assert (await run(store, ReplayOptions(reason="nothing"), check=check)).moved == 0
        done = await run(
            store, ReplayOptions(plain=plain, reason="around" if outer else "behind"), told=told, check=check
        )
        assert (done.moved, [reason for *_, reason in told.went]) == (1, ["around" if outer else "behind"])
        (there,) = await store.peek(QUEUE)
        body = there.body if plain else opened(await check.fetch(opened(there.body)[1]))[1]
        assert body == b"order 1"
