"""What a listener asks of its store to tell the bridge how much is there: with work a little, without it nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from bridge import Bridge
from bridge.contract.errors import StoreUnavailable
from bridge.queues.base import Claim, Counts, Depth, Received, Settlement
from listeners import PULL_ONLY, Bury, Message
from listeners.core.counting import Counting
from listeners.work.counting import StoreCounts
from tests.listeners.rig import POISON, QUEUE, Store, hanging, listening, settled
from tests.support.sim_loop import pass_time, simulated


class CountedStore(Store):
    """A store whose counts are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()
        self.fails = False

    async def counts(self, queue: str) -> Counts | None:
        self.counted[queue] += 1
        if self.fails:
            raise StoreUnavailable("it cannot be counted")
        return await super().counts(queue)


async def nothing(message: Message) -> None:
    """Handle a message."""


async def refuse(message: Message) -> None:
    """Bury a message."""
    raise Bury("cannot be done")


@simulated
async def test_an_idle_queue_is_asked_nothing_more() -> None:
    """In six hours: the sweep's receives, and one count of the poison queue at the start."""
    store = CountedStore()
    async with Bridge() as bridge, listening(store, nothing, bridge=bridge):
        await pass_time(6 * 3600)
        assert store.receives <= 6 * 67 + 1
        assert store.counted == {POISON: 1}


@simulated
async def test_while_work_is_found_all_sessions_count_twice_a_minute() -> None:
    """However many messages come, and however many listeners there are; the count that fails costs no message."""
    store = CountedStore()
    async with (
        Bridge() as bridge,
        listening(store, nothing, bridge=bridge, batch=1) as one,
        listening(store, nothing, bridge=bridge, batch=1) as two,
    ):
        await pass_time(10)
        for number in range(600):
            store.fails = number > 300
            await store.fill(b"x")
            bridge.gap()
            await pass_time(1)
        assert sum(each.state().queues[QUEUE].handled for each in (one, two)) == 600
        # Each may count at once when it finds the first.
        assert 10 <= store.counted[QUEUE] <= 600 / 30 + 2


@simulated
async def test_what_a_person_empties_elsewhere_is_seen_at_the_next_look() -> None:
    """The level is told with its age until then; afterwards nothing is counted any more."""
    store = CountedStore()

    def buried(bridge: Bridge) -> int | None:
        state = bridge.describe(QUEUE)
        return None if state is None else state.buried

    async with Bridge() as bridge, listening(store, refuse, bridge=bridge) as listener:
        await pass_time(10)
        assert buried(bridge) == 0
        await store.fill(b"a", b"b")
        bridge.gap()
        await settled(listener, 2, "buried")
        await pass_time(90)
        assert buried(bridge) == 2
        found = await store.receive(POISON, 2)
        await store.settle(POISON, Settlement(delete=[Claim(each.id, each.pop_receipt) for each in found.messages]))
        assert buried(bridge) == 2
        await pass_time(90)
        assert buried(bridge) == 0
        before = store.counted[POISON]
        await pass_time(3600)
        assert store.counted[POISON] == before


@pytest.mark.parametrize("alone", [True, False])
@simulated
async def test_nobody_counts_for_nobody(alone: bool) -> None:
    """Without a bridge there is nobody to tell, and a bridge counts its own queues itself."""
    if alone:
        store = CountedStore()
        async with listening(store, refuse, bridge=PULL_ONLY) as listener:
            await store.fill(b"a")
            await settled(listener, 1, "buried")
            assert not store.counted
        return
    async with Bridge() as bridge:
        asked: list[str] = []
        own: Any = bridge.store
        ask = own.counts

        async def counts(queue: str) -> object:
            asked.append(queue)
            return await ask(queue)

        own.counts = counts
        async with listening(own, refuse, bridge=bridge) as listener:
            await own.put(QUEUE, ["a"])
            await settled(listener, 1, "buried")
            await pass_time(10)
        assert not asked
        state = bridge.describe(QUEUE)
        assert state is not None
        assert (state.buried, state.buried_age_ms) == (1, None)


@simulated
async def test_a_count_without_an_answer_ends_with_the_time_of_a_call() -> None:
    """Beside a receive and after a burial; nothing waits for it, and no task of it is left."""
    store = Store()
    store.counts = lambda queue: hanging()()  # type: ignore[method-assign]

    def counting() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("count")}

    async with Bridge() as bridge, listening(store, refuse, bridge=bridge) as listener:
        await pass_time(10)
        await store.fill(b"x")
        bridge.gap()
        await settled(listener, 1, "buried")
        await pass_time(9)
        assert counting() == {f"count[{QUEUE}]", f"count-buried[{QUEUE}]"}
        await pass_time(1.5)
        assert counting() == set()


@pytest.mark.parametrize("took", [True, False])
@simulated
async def test_a_delete_lowers_only_a_count_that_came_after_its_receive(took: bool) -> None:
    """What was received since the last count was not leased when the store was counted."""
    store, rules = Store(), Counting(QUEUE, None)
    await store.fill(b"x")
    counts, answer = StoreCounts(QUEUE, store, rules), await store.receive(QUEUE)
    rules.worth(1000.0, 10)
    rules.counted(Counts(0, 3), 1000.0)
    if took:
        counts.beside(Received(answer.messages), "trigger", own=False, sessions=10, call_s=1.0)
    rules.deleted()
    depth, _ = rules.report(1, 1000.0)
    assert depth is not None and depth.invisible == (3 if took else 2)
    await counts.close()


@pytest.mark.parametrize(
    ("exact", "answer", "told"),
    [
        (True, Received([], Depth(2, 0)), (2, 0, False, 0, 0)),
        (True, Received([], Depth(2, 1)), (2, 1, False, None, None)),
        (False, Received([], Depth(2, 0), depth_is_least=True), (2, 0, True, None, None)),
        (True, Received([], Depth(9, 9), counts=Counts(3, 2, leased=1, delayed=1)), (3, 2, False, 1, 1)),
    ],
)
@simulated
async def test_what_a_receive_tells_goes_to_the_bridge(exact: bool, answer: Received, told: tuple[Any, ...]) -> None:
    """Its counts, or else its depth: nothing is leased and nothing delayed only where an exact one shows that."""
    store, rules = Store(), Counting(QUEUE, None)
    store.capabilities = msgspec.structs.replace(store.capabilities, exact_depth=exact)  # type: ignore[misc]
    counts = StoreCounts(QUEUE, store, rules)
    counts.beside(answer, "trigger", own=True, sessions=1, call_s=1.0)
    assert rules.report(1, 1000.0)[0] is None, "of its own queues the bridge knows that"
    counts.beside(answer, "trigger", own=False, sessions=1, call_s=1.0)
    depth, _ = rules.report(1, 1000.0)
    assert depth is not None
    assert (depth.visible, depth.invisible, depth.at_least, depth.leased, depth.delayed) == told
