"""What heartbeats report of receives and durations."""

from __future__ import annotations

import asyncio

import pytest

from queuebell.bridge.contract.wire import StoreDepth
from queuebell.bridge.queues.base import Depth, Received
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.listeners.work.counts import CountSchedule, Durations, ReceiveCounts, StoreCounts
from tests.support.sim_loop import simulated

BOOT, OTHER = "b" * 32, "c" * 32


def told(*receives: tuple[str, bool]) -> ReceiveCounts:
    found = ReceiveCounts()
    found.greeted(BOOT)
    for source, work in receives:
        found.received(source, work, known=False)
    return found


def test_a_lost_heartbeat_heals() -> None:
    """The same levels go out again until a heartbeat that carried them was echoed."""
    found = told(("trigger", True), ("sweep", False))
    assert found.report(7) == {"trigger": (1, 0), "sweep": (0, 1)}
    found.received("trigger", False, known=False)
    assert found.report(8) == {"trigger": (1, 1), "sweep": (0, 1)}
    found.echoed(7)
    assert found.changed, "an echo of an older heartbeat says nothing of the newer one"
    found.echoed(8)
    assert not found.changed


def test_what_the_bridge_has_counted_itself_is_not_told_again() -> None:
    """Receives of its own queue service, and messages that its wakes carried."""
    found = ReceiveCounts()
    found.received("trigger", True, known=True)
    found.carried("trigger")
    assert not found.changed
    assert dict(found.found) == {"trigger": 2}


def test_a_look_that_nobody_asked_for_and_that_met_a_new_message_is_told_of() -> None:
    """Not one by a trigger, of messages that were handed out before, or of a queue that the bridge counts."""
    found = told()
    for source, fresh in (("sweep", True), ("deadman", True), ("sweep", False), ("trigger", True), ("resync", True)):
        found.received(source, True, known=False, fresh=fresh)
    found.received("deadman", True, known=True, fresh=True)
    assert found.report(7)["unannounced"] == (2, 0)


def test_receives_before_any_bridge_are_told_to_the_first() -> None:
    found = ReceiveCounts()
    found.received("poll", True, known=False)
    assert found.report(7) == {"poll": (1, 0)}
    found.greeted(BOOT)
    assert found.report(8) == {"poll": (1, 0)}


def test_what_came_after_the_report_is_owed_still() -> None:
    """An echo acknowledges the levels of its own heartbeat, not those of now."""
    found = told(("trigger", True))
    found.report(7)
    found.received("trigger", True, known=False)
    found.echoed(7)
    assert found.changed
    assert found.report(8) == {"trigger": (2, 0)}


def test_work_that_timers_find_is_warned_of_once_in_ten_minutes() -> None:
    found = told(("sweep", True), ("trigger", True), ("sweep", True), ("sweep", False))
    assert found.unasked == 2
    times = (("trigger", 0.0), ("sweep", 5.0), ("deadman", 604.0), ("sweep", 605.0))
    assert [found.suspicious(*each) for each in times] == [False, True, False, True]


@simulated
async def test_what_a_receive_counted_in_another_store_is_reported() -> None:
    """A count up to a limit as what it is; the bridge counts its own queues itself."""
    async with MemoryStore("counted") as store:
        rules = CountSchedule("a/q", None)
        counts = StoreCounts("a/q", store, rules)
        answer = Received([], Depth(5, 2), depth_is_least=True)
        for own, told in ((True, None), (False, StoreDepth(5, 2, 0, at_least=True))):
            counts.on_received(answer, "trigger", own=own, sessions=1, call_s=1.0)
            assert rules.report(1, asyncio.get_running_loop().time())[0] == told


@pytest.mark.parametrize(("seconds", "number"), [(0.0, 0), (0.001, 0), (0.0011, 1), (1800.0, 15), (1801.0, 16)])
def test_a_bound_belongs_to_its_bucket(seconds: float, number: int) -> None:
    durations = Durations()
    durations.add(seconds)
    assert durations.spread().counts == [0] * number + [1]
