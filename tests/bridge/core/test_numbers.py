"""Each queue keeps its own numbers: A, R, T, the wake mode, and what its listeners are told of them."""

from __future__ import annotations

import itertools

from bridge.contract.wire import CarriedMessage
from bridge.core.settings import QueueRule
from bridge.observe.facts import OwnerStuck
from tests.support.bells import BOOT, QUEUE, Rig

OTHER = "billing/slow"


def rig(**numbers: float | str) -> Rig:
    """Return a rig where one queue has numbers of its own."""
    return Rig(rules=(QueueRule(match=OTHER, **numbers),))  # type: ignore[arg-type]


def looks(rig: Rig, number: int, queue: str, seconds: float) -> list[float]:
    """Return when a session that covers at once is woken for a queue."""
    found: list[float] = []
    until = rig.now + seconds
    while rig.now < until:
        rig.wait(1.0)
        rig.beat(number, queue)
        for wake in rig.wakes(number):
            if wake.queue == queue:
                found.append(rig.now)
            rig.started(number, wake.gen, wake.queue)
            rig.cover(number, wake.gen, wake.queue)
    return found


def test_a_sweep_has_the_queues_own_period() -> None:
    """One queue is looked at six times a minute, the other not at all, for its sweeps are off."""
    both = rig(sweep_s=10.0)
    number = both.join(QUEUE, OTHER)
    for wake in both.wakes(number):
        both.cover(number, wake.gen, wake.queue)
    found = looks(both, number, OTHER, 300.0)
    assert 27 <= len(found) <= 31
    assert all(9.0 <= b - a <= 12.0 for a, b in itertools.pairwise(found))
    assert looks(both, number, QUEUE, 300.0) == []


def test_a_missing_started_is_waited_for_by_the_queues_own_time() -> None:
    """A is 2 s for one and 0.5 s for the other."""
    for queue, patience in ((QUEUE, 2.0), (OTHER, 0.5)):
        one = rig(start_ack_s=0.5)
        first, second = one.join(queue), one.join(queue)
        one.settle_hello(first, queue)
        one.trigger(queue)
        one.wakes(first), one.wakes(second)
        one.wait(patience - 0.01)
        assert not one.wakes(first) and not one.wakes(second)
        one.wait(0.02)
        assert one.wakes(first) and one.wakes(second)


def test_progress_is_waited_for_by_the_queues_own_call_time() -> None:
    """B5: R + H, where R is the queue's."""
    for queue, call in ((QUEUE, 10.0), (OTHER, 60.0)):
        one = rig(store_call_s=60.0)
        first, second = one.join(queue), one.join(queue)
        one.settle_hello(first, queue)
        one.trigger(queue)
        owner = one.debt(queue).owner
        one.started(owner, one.debt(queue).gen, queue)
        until = one.now + call + 5.0
        while one.now < until - 1.0:
            one.wait(1.0)
            one.beat(first, queue), one.beat(second, queue)
        assert not any(isinstance(fact, OwnerStuck) for fact in one.facts)
        one.wait(1.1)
        assert any(isinstance(fact, OwnerStuck) for fact in one.facts)


def test_one_queue_may_wake_all() -> None:
    """`wake = "all"` is a queue's own."""
    one = rig(wake="all")
    numbers = [one.join(QUEUE, OTHER) for _ in range(4)]
    for number in numbers:
        for wake in one.wakes(number):
            one.cover(number, wake.gen, wake.queue)
    one.trigger(QUEUE)
    assert sum(bool(one.wakes(number)) for number in numbers) == 1
    one.trigger(OTHER)
    assert sum(bool(one.wakes(number)) for number in numbers) == 4


def test_carried_messages_are_leased_for_the_queues_own_time() -> None:
    """O7: what is not taken up within the queue's A is taken back, whatever another queue of the session has."""
    one = rig(start_ack_s=0.5)
    number = one.join(QUEUE, OTHER, own=True, accept=True)
    for queue in (QUEUE, OTHER):
        granted = one.bell.own.grant(one.now, queue, 1)
        assert granted is not None and granted[2] == (0.5 if queue == OTHER else 2.0)
        carried = CarriedMessage(queue, "receipt", 1, "2026-11-20T00:00:00.000Z", body="x")
        one.bell.own.handed(one.now, queue, number, 1, [carried], 1)
        one.drive()
    one.wait(0.6)
    assert [reclaim.queue for reclaim in one.reclaims] == [OTHER]
    one.wait(1.5)
    assert [reclaim.queue for reclaim in one.reclaims] == [OTHER, QUEUE]


def test_a_welcome_tells_what_differs_and_nothing_else() -> None:
    """The listener's dead-man timer and time-outs follow the queue's numbers."""
    one = rig(sweep_s=10.0, slack_s=3.0, spread_s=1.0, store_call_s=4.0)
    number = one.join(QUEUE, OTHER)
    plain, tuned = one.welcome(number).queues
    assert (plain.sweep_ms, plain.slack_ms, plain.spread_ms, plain.store_call_ms) == (None,) * 4
    assert (tuned.sweep_ms, tuned.slack_ms, tuned.spread_ms) == (10_000, 3000, 1000)
    assert tuned.store_call_ms == 4000


def test_numbers_of_the_whole_bridge_are_told_too() -> None:
    """Only the sweep stands in the welcome itself; what else differs from the protocol stands with each queue."""
    one = Rig(sweep_s=30.0, slack_s=5.0)
    state = one.welcome(one.join()).queues[0]
    assert (one.welcome(1).sweep_ms, one.welcome(1).boot) == (30_000, BOOT)
    assert (state.sweep_ms, state.slack_ms, state.spread_ms) == (None, 5000, None)


def test_what_nobody_asked_for_wakes_one_even_where_work_wakes_all() -> None:
    """I2: `all` is for work. A hello, a sweep and a `more` are looks that one listener does for the fleet."""
    one = rig(wake="all", sweep_s=10.0)
    numbers = [one.join(OTHER) for _ in range(4)]
    assert sum(bool(one.wakes(number)) for number in numbers) == 1, "a queue never heard of"
    one.cover(numbers[0], one.debt(OTHER).gen, OTHER)
    one.wait(10.5)
    swept = [number for number in numbers if one.wakes(number)]
    assert len(swept) == 1 and one.debt(OTHER).reason == "sweep"
    one.more(swept[0], OTHER)
    assert sum(bool(one.wakes(number)) for number in numbers) == 1, "the cascade"
    one.trigger(OTHER)
    assert sum(bool(one.wakes(number)) for number in numbers) == 3, "all with room"
    assert not one.wakes(swept[0])


def test_a_gap_while_somebody_looks_wakes_nobody_besides() -> None:
    """I2: a look that nobody asked for is added to the owner's, and `all` adds no one to it."""
    one = rig(wake="all")
    first, second = one.join(OTHER), one.join(OTHER)
    one.wakes(first), one.wakes(second)
    owner = one.debt(OTHER).owner
    one.bell.gap(one.now)
    one.drive()
    heard = [number for number in (first, second) if one.wakes(number)]
    assert heard == [owner]
