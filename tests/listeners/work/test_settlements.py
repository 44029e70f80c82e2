"""Settling as such: what a call names and when it leaves, what its answer means, and what becomes of a failure."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from bridge.contract.errors import BadInput, QueueNotFound, StoreUnavailable
from bridge.queues.base import Capabilities, Settled, Settlement, Settling, StoredMessage
from listeners import Ledger, Message
from listeners.work.held import Act, Held
from listeners.work.settlements import Item, Settlements
from tests.listeners.rig import QUEUE, Store, listening, run_until
from tests.support.sim_loop import pass_time, simulate, simulated

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
LONG_S = 3600.0
LISTS = ("delete", "release", "extend")
Answer = Callable[[Settlement], Settling]


def carried_out(settlement: Settlement) -> Settling:
    """All is well; an extension gives the receipt that it had, with a mark."""
    ok = Settled(True)
    return Settling(
        [ok] * len(settlement.delete),
        [ok] * len(settlement.release),
        [Settled(True, f"{item.pop_receipt}'") for item in settlement.extend],
    )


class Scripted:
    """A store whose calls take ``seconds``, and go as ``script`` says: each entry answers one call, or breaks it."""

    def __init__(self, **capabilities: Any) -> None:
        self.capabilities = Capabilities(**{"uncounted_release": True, **capabilities})
        self.calls: list[tuple[float, Settlement]] = []
        self.script: list[Answer | Exception] = []
        self.seconds = 0.0
        self.busy = self.busiest = self.cut = 0

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        assert queue == QUEUE
        self.calls.append((now(), settlement))
        answer = self.script.pop(0) if self.script else carried_out
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        try:
            await pass_time(self.seconds)
        except asyncio.CancelledError:
            self.cut += 1
            raise
        finally:
            self.busy -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer(settlement)

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.calls]

    def named(self) -> list[tuple[list[str], list[str], list[str]]]:
        """Return the ids that each call named, list by list."""
        return [tuple([i.id for i in getattr(call, each)] for each in LISTS) for _, call in self.calls]  # type: ignore[misc]


def now() -> float:
    """Return the seconds since the story began."""
    return round(asyncio.get_running_loop().time() - 1000.0, 6)


class Site:
    """Settlements over a scripted store, and all that they told."""

    def __init__(self, **capabilities: Any) -> None:
        self.store = Scripted(**capabilities)
        self.told: list[tuple[float, str, Act, str | None]] = []
        store: Any = self.store
        clock = asyncio.get_running_loop().time
        self.settlements = Settlements(QUEUE, store, settled=self._settled, clock=clock, draw=lambda: 0.5)

    def _settled(self, item: Item, code: str | None) -> None:
        self.told.append((now(), item.held.stored.id, item.act, code))

    def codes(self) -> list[str | None]:
        return [code for _, _, _, code in self.told]

    def add(self, act: Act, *helds: Held, seconds: float = 0.0) -> None:
        for held in helds:
            self.settlements.add(act, held, seconds)


def held(number: int = 1, lease_s: float = LONG_S) -> Held:
    """Return a message m1 under the receipt r1, leased for so many seconds from the beginning."""
    return Held(number, StoredMessage(f"m{number}", f"r{number}", b"x", 1, NOON), 1000.0 + lease_s, "trigger")


# What a call names ---------------------------------------------------------------------------------------------------
def test_the_newest_wish_for_a_message_counts() -> None:
    """Of one tick: a delete replaces what was asked for before, and nobody renews what is on its way."""
    cases: list[tuple[list[tuple[Act, float]], list[tuple[Act, float]]]] = [
        ([(Act.EXTEND, 30.0), (Act.DELETE, 0.0)], [(Act.DELETE, 0.0)]),
        ([(Act.EXTEND, 30.0), (Act.RELEASE, 2.0)], [(Act.RELEASE, 2.0)]),
        ([(Act.DELETE, 0.0), (Act.EXTEND, 30.0)], [(Act.DELETE, 0.0)]),
        ([(Act.DELETE, 0.0), (Act.RELEASE, 2.0)], [(Act.RELEASE, 2.0)]),
        ([(Act.EXTEND, 30.0), (Act.EXTEND, 60.0)], [(Act.EXTEND, 30.0)]),
    ]

    async def story(wishes: list[tuple[Act, float]], left: list[tuple[Act, float]]) -> None:
        site, one = Site(), held()
        for act, seconds in wishes:
            site.add(act, one, seconds=seconds)
        await site.settlements.idle()
        calls = [call for _, call in site.store.calls]
        asked = [(Act.DELETE, 0.0) for call in calls for _ in call.delete]
        asked += [(Act.RELEASE, item.after_ms / 1000) for call in calls for item in call.release]
        asked += [(Act.EXTEND, item.visibility_s) for call in calls for item in call.extend]
        assert asked == left
        assert [act for _, _, act, _ in site.told] == [act for act, _ in left]

    for wishes, left in cases:
        simulate(story(wishes, left))


# Lanes ---------------------------------------------------------------------------------------------------------------


# What an answer means ------------------------------------------------------------------------------------------------


# Failures ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("act", Act)
@simulated
async def test_a_store_that_leaves_out_a_result_has_settled_nothing(act: Act) -> None:
    """Nobody can tell whose results they are: the messages come back, and none stays held for ever."""
    site = Site()
    site.store.script = [lambda _: Settling([], [], [])]
    site.add(act, held())
    await site.settlements.idle()
    assert site.codes() == ["internal"]


@pytest.mark.parametrize(("lease_s", "code"), [(2.0, "lease_ended"), (60.0, None)])
@simulated
async def test_a_delete_takes_over_from_a_renewal_that_failed(lease_s: float, code: str | None) -> None:
    """What was asked for meanwhile is done instead, or told of instead: one word for each message."""
    site, one = Site(), held(lease_s=lease_s)
    site.store.seconds = 2.0
    site.store.script = [StoreUnavailable("away")]
    site.add(Act.EXTEND, one, seconds=30.0)
    await pass_time(1)
    site.add(Act.DELETE, one)
    await site.settlements.idle()
    assert [(id_, act, said) for _, id_, act, said in site.told] == [("m1", Act.DELETE, code)]
    assert site.store.named() == [([], [], ["m1"]), *([] if code else [(["m1"], [], [])])]
    assert (len(site.settlements), site.settlements.idling) == (0, True)


@pytest.mark.parametrize("answer", [BadInput("too_large", "no"), QueueNotFound("gone"), "message_not_found"])
@simulated
async def test_a_renewal_that_is_refused_leaves_the_word_to_its_delete(answer: Exception | str) -> None:
    """Once the delete waits, what it meets is what became of the message: a store without fences carries it out."""
    site, one = Site(), held()
    site.store.seconds = 2.0
    refused = Settled(False, code=str(answer))
    site.store.script = [answer if isinstance(answer, Exception) else lambda call: Settling([], [], [refused])]
    site.add(Act.EXTEND, one, seconds=30.0)
    await pass_time(1)
    site.add(Act.DELETE, one)
    await site.settlements.idle()
    assert site.told == [(4.0, "m1", Act.DELETE, None)]


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


MUTED = "(its text cannot be made: KeyError)"


@simulated
async def test_the_key_of_a_ledger_that_fails_without_text_is_a_failed_attempt() -> None:
    """The rule of keys is the user's as the handler is."""
    store = Store()

    def key(message: Message) -> str:
        raise Mute

    async def handle(message: Message) -> None: ...

    await store.fill(b"x")
    await run_until(listening(store, handle, ledger=Ledger("memory:mute", key=key), max_attempts=1), 1, "buried")
    (burial,) = await store.burials()
    assert f"Mute: {MUTED}" in burial.reason
