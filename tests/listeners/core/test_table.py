"""The table of transitions is whole: every pair of state and event is listed or ruled out."""

from __future__ import annotations

import itertools

import pytest

from bridge.contract.backoff import RandomExponential
from listeners.core.controller import Controller
from listeners.core.scaling import DepthScaling
from listeners.core.table import LEADS_TO, Event, ImpossibleEvent, State

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
        def _has_room(self, now: float, free: int) -> None:
            self._stopping = True

    controller = Astray(
        1, 1, scaling=DepthScaling(1), polls=RandomExponential(), retries=RandomExponential(), draw=lambda: 0.5
    )
    with pytest.raises(ImpossibleEvent, match="room while idle led to stopped"):
        controller.room(0.0, 1)


def test_nothing_leaves_the_end() -> None:
    """STOPPED leads to itself alone, and STOPPING to nothing else."""
    assert set().union(*LEADS_TO[State.STOPPED].values()) == {State.STOPPED}
    assert set().union(*LEADS_TO[State.STOPPING].values()) == {State.STOPPING, State.STOPPED}
