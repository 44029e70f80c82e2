"""Leases are renewed whatever becomes of other calls; and V and R are checked against each other."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bridge.queues.base import Capabilities, NewMessage, Settlement, Settling
from listeners import Message, Pool, Retry, batch
from listeners.core.lease import shortest_visibility
from tests.listeners.rig import QUEUE, Store, listening, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulate, simulated

OTHERS = "billing/others"


class HalfDeaf(Store):
    """A store that never answers a call which names one kind of settlement, ``deaf`` times."""

    def __init__(self, kind: str, deaf: int) -> None:
        super().__init__()
        self.kind = kind
        self.deaf = deaf

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        if self.deaf and getattr(settlement, self.kind):
            self.deaf -= 1
            await pass_time(1e6)
        return await super().settle(queue, settlement)


@pytest.mark.parametrize("kind, deaf", [("delete", 3), ("release", 3), ("extend", 1)])
@pytest.mark.parametrize("visibility", [21, pytest.param(30, marks=pytest.mark.prove)])
@pytest.mark.parametrize("options", [{}, {"pool": True}, {"batch": 1}], ids=["slots", "pool", "batch of one"])
@simulated
async def test_renewals_do_not_wait_for_calls_that_hang(
    kind: str, deaf: int, visibility: float, options: dict[str, Any]
) -> None:
    """Handlers go on, and keep their messages, while the settlements of others get no answer."""
    store, seen = HalfDeaf(kind, deaf), []

    async def handle(message: Message) -> None:
        await pass_time(visibility * 0.49 if message.body == b"short" else visibility * 4)
        if message.body == b"short" and kind == "release" and message.attempt == 1:
            raise Retry(after=0)
        seen.append((message.body, message.attempt))

    given = {**options, "pool": Pool(64)} if options.get("pool") else options
    async with listening(store, handle, [QUEUE, OTHERS], visibility_timeout=visibility, **given) as listener:
        await store.fill(b"short", b"long", b"long")
        await store.put(OTHERS, [NewMessage(b"long")])
        await settled(listener, 1, queue=OTHERS)
        await settled(listener, 2)
        assert seen.count((b"long", 1)) == 3
        assert [body for body, _ in seen if body == b"long"] == [b"long"] * 3


@simulated
async def test_a_batch_keeps_its_messages_while_a_delete_hangs() -> None:
    """A batch handler's leases are renewed in their own lane as well."""
    store, runs = HalfDeaf("delete", 3), []

    @batch
    async def handle(messages: list[Message]) -> None:
        runs.append([message.attempt for message in messages])
        await pass_time(14.5 if len(runs) == 1 else 100)

    async with listening(store, handle, batch=2, visibility_timeout=30) as listener:
        await store.fill(b"1", b"2", b"3", b"4")
        await settled(listener, 2)
        assert runs[:2] == [[1, 1], [1, 1]]
        assert listener.state().queues[QUEUE].lost_leases <= 2  # of those whose deletes hung


@simulated
async def test_what_is_concluded_while_its_renewal_hangs_is_deleted_after_it() -> None:
    """A delete waits for the receipt that its own renewal may bring, and then goes at once."""
    store = HalfDeaf("extend", 1)

    async def handle(message: Message) -> None:
        await pass_time(16)

    async with listening(store, handle, visibility_timeout=30) as listener:
        await store.fill(b"x")
        await settled(listener, 1)
        assert listener.state().queues[QUEUE].lost_leases == 0
        assert [len(each.delete) for each in store.settlements] == [1]
    depth = await store.depth(QUEUE)
    assert (depth.visible, depth.invisible) == (0, 0)


@pytest.mark.parametrize("polls_s, least", [(0.0, 20.0), (1.0, 20.0), (20.0, 30.0)])
@pytest.mark.parametrize("pull_only", [True, False])
def test_a_visibility_that_is_short_for_a_store_call_is_told(
    polls_s: float, least: float, pull_only: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, on whatever store, with what would be right; and not where it is long enough."""
    assert shortest_visibility(10, polls_s) == least

    async def told(visibility: float) -> list[str]:
        caplog.clear()

        class Polling(Store):
            capabilities = Capabilities(receive_s=polls_s)  # type: ignore[assignment]

        store, bridge = Polling(), FakeBridge()

        async def handle(message: Message) -> None: ...

        options = {} if pull_only else {"bridge": bridge}
        async with listening(store, handle, visibility_timeout=visibility, **options) as listener:
            await store.fill(b"x")
            if not pull_only:
                bridge.wake(QUEUE)
            await settled(listener, 1)
        return [r.getMessage() for r in caplog.records if "visibility_timeout" in r.getMessage()]

    caplog.set_level(logging.WARNING)
    (line,) = simulate(told(least - 1))
    assert f"Set visibility_timeout to {least:g} or more" in line
    assert line.startswith(QUEUE)
    assert simulate(told(least)) == []
