"""The timers of a wake machine, its table of transitions, and the rules of scaling."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuebell.bridge.contract.backoff import RandomExponential
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.receive_scaling import DepthScaling, StepScaling
from queuebell.listeners.wake.table import LEADS_TO, Event, ImpossibleEvent, State
from queuebell.listeners.wake.timers import POLL_CAP_S, CheckTimers, DeadMan


def waits() -> CheckTimers:
    return CheckTimers(RandomExponential(1, 100, 1), RandomExponential(1, 100, 1), lambda: 0.5)


def test_what_unknown_receives_may_have_leased_becomes_some_32_looks() -> None:
    """L6: an hour of lost answers with leases of an hour; no moment is earlier than its lease's end."""
    some = waits()
    for second in range(0, 3600, 10):
        some.add_possible_return(float(second), second + 3600.0)
    moments = sorted(some.returns())
    assert len(moments) <= 34
    assert all(min(at for at in moments if at >= end) - end <= 3600 / 32 for end in range(3600, 7200, 10))


def test_a_poll_for_want_of_a_bridge_is_capped_and_not_past_what_is_due() -> None:
    long = RandomExponential(1000, 1000, 0)
    some = CheckTimers(long, long, lambda: 0.5)
    for next_visible, capped, wait_s in ((None, True, POLL_CAP_S), (None, False, 1000.0), (7.0, True, 7.0)):
        some.schedule_poll(100.0, next_visible, capped=capped)
        assert some.poll == 100.0 + wait_s


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(1, 100), st.integers(0, 2000)), max_size=30))
def test_its_deadline_only_moves_forward_unless_its_numbers_shrink(news: list[tuple[float, float, int]]) -> None:
    """However stale the news; shorter numbers bring it to what they promise from now, and never nearer."""
    deadman, now = DeadMan(0.0, lambda: 0.7), 0.0
    wait = deadman.deadline
    for step, sweep, sessions in news:
        now += step / 10
        before = deadman.deadline
        deadman.tune(now, sweep, sessions, 0.05)
        was, wait = wait, deadman.t_dead + 0.7 * deadman.spread
        assert deadman.deadline == (before if wait >= was else min(before, now + wait))
        before = deadman.deadline
        deadman.on_empty_receive(max(0.0, now - step))
        assert deadman.deadline >= before


IMPOSSIBLE = {
    (state, event)
    for state in (State.IDLE, State.FULL, State.COOLING, State.STOPPED)
    for event in (Event.RECEIVED, Event.FAILED)
}
"""An answer needs a receive in flight, which these states do not have (L11)."""


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_each_pair_is_listed_or_impossible(state: State, event: Event) -> None:
    """A pair stands in exactly one of the two, and what is listed names at least one state."""
    assert (event in LEADS_TO[state]) != ((state, event) in IMPOSSIBLE)
    assert LEADS_TO[state].get(event) != frozenset()


@pytest.mark.parametrize(("state", "event"), sorted(IMPOSSIBLE, key=str))
def test_an_impossible_event_is_refused(state: State, event: Event) -> None:
    """An answer without a receive in flight is a defect, and is said to be one."""
    controller = Controller(
        1, 1, scaling=DepthScaling(1), polls=RandomExponential(), retries=RandomExponential(), draw=lambda: 0.5
    )
    controller.state = state
    answer = (lambda: controller.received(0.0, 1, 0)) if event is Event.RECEIVED else lambda: controller.failed(0.0, 1)
    with pytest.raises(ImpossibleEvent, match=event.value):
        answer()


def test_an_action_that_leads_astray_is_refused() -> None:
    """The states that the table allows are asserted in production (L11)."""

    class Astray(Controller):
        def _on_room(self, now: float, free: int) -> None:
            self._stopping = True

    controller = Astray(
        1, 1, scaling=DepthScaling(1), polls=RandomExponential(), retries=RandomExponential(), draw=lambda: 0.5
    )
    with pytest.raises(ImpossibleEvent, match="room while idle led to stopped"):
        controller.room(0.0, 1)


def test_rules_that_make_no_sense_are_refused() -> None:
    """Limits the wrong way round, steps out of order, no task at all."""
    for wrong in ((0, 1, 1), (1, 0, 1), (1, 2, 1), (math.nan, 1, 1)):
        with pytest.raises(ValueError, match="depth scaling"):
            DepthScaling(*wrong)
    for steps, beyond in ((((10, 1), (5, 2)), 3), (((10, 0),), 3), (((10, 1),), 0), ((), math.nan)):
        with pytest.raises(ValueError, match="steps"):
            StepScaling(steps, beyond)


def test_the_spread_grows_with_the_fleet() -> None:
    """w = max(10 s, N x path latency): 1000 listeners 50 ms away spread over 50 s; the period is the bridge's."""
    deadman = DeadMan(0.0, lambda: 0.5)
    deadman.tune(0.0, 60.0, 1000, 0.05)
    deadman.on_empty_receive(0.0)
    assert deadman.deadline == 96.0 + 25.0
    deadman.tune(100.0, 120.0, 1, 0.05)
    deadman.on_empty_receive(100.0)
    assert deadman.deadline == 100.0 + 162.0 + 5.0
