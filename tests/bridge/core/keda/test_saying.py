"""When it is said: each change that lasts within a tenth of a second, all else every 30 s, and no more often."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.keda.saying import GAP_S, REPEAT_S, Saying

CHANGE_S = 0.1
"""What was promised."""

STEPS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.001, 0.02, 0.05, 0.07, 1.0, 29.9, 31.0]), st.sampled_from([True, False, None])),
    max_size=12,
)


class Run:
    """A target whose state changes at known moments; whoever changes it touches it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state: bool | None = None
        self.rule = Saying(self.now)
        self.said: list[tuple[float, bool]] = []
        self.looks: list[float] = []
        self.until(self.now)

    def until(self, when: float) -> None:
        while self.rule.deadline() <= when:
            self.now = max(self.now, self.rule.deadline())
            self.looks.append(self.now)
            if self.rule.looked(self.now, self.state):
                assert self.rule.said is self.state is not None
                self.said.append((self.now, self.state))
        self.now = when


@given(STEPS)
def test_whatever_happens(steps: list[tuple[float, bool | None]]) -> None:
    """A state that lasts is said in time, what is said is so, and looks are as seldom as they may be."""
    run = Run()
    changes: list[tuple[float, bool | None]] = [(run.now, None)]
    for after_s, state in [*steps, (0.0, True)]:
        run.until(run.now + after_s)
        run.state = state
        run.rule.touched(run.now)
        changes.append((run.now, state))
    end = run.now + 100.0
    run.until(end)
    for (at, state), (until, _) in zip(changes, [*changes[1:], (end, None)], strict=True):
        if state is not None and until - at > CHANGE_S:
            before = [said for when, said in run.said if when <= at + CHANGE_S]
            assert before and before[-1] is state, (at, state)
            # While it lasts it is said again and again.
            times = [when for when, _ in run.said if at <= when <= until]
            gaps = [b - a for a, b in zip([at, *times], [*times, until], strict=True)]
            assert max(gaps) <= REPEAT_S + CHANGE_S
    for first, second in itertools.pairwise(run.looks):
        assert second - first >= GAP_S - 1e-9
    touches, lasted = len(steps) + 2, end - 1000.0
    assert len(run.looks) <= touches + lasted / REPEAT_S + 2


def test_the_same_is_said_every_30_s_and_not_before() -> None:
    """KEDA forgets what comes at a bad moment, and is not to be flooded either."""
    run = Run()
    run.state = False
    run.rule.touched(run.now)
    run.until(run.now + GAP_S)
    for _ in range(100):
        run.until(run.now + 1.0)
        run.rule.touched(run.now)
    times = [when for when, _ in run.said]
    assert [round(b - a) for a, b in itertools.pairwise(times)] == [30, 30, 30]


@pytest.mark.parametrize("changes_in_s", [0.0, 0.01, 3.0, 29.0])
def test_a_change_that_is_foreseen_is_looked_at_then(changes_in_s: float) -> None:
    """A delayed message is work some seconds before it is due, though nothing happens then."""
    rule = Saying(0.0)
    assert rule.looked(0.0, False, changes_in_s)
    assert rule.deadline() == max(GAP_S, changes_in_s)


def test_a_look_between_puts_nothing_off() -> None:
    """What happens before the first look, or between two of them, moves neither."""
    rule = Saying(0.0)
    rule.touched(3.0)
    assert rule.deadline() == 0.0
    assert rule.looked(3.0, True)
    rule.touched(32.0)
    assert rule.deadline() == 32.0
    assert not rule.looked(32.0, True)
    assert rule.deadline() == 33.0


def test_what_is_not_known_is_not_said() -> None:
    """What was said before stands, and another look comes by itself."""
    rule = Saying(0.0)
    assert not rule.looked(0.0, None)
    assert rule.said is None
    assert rule.deadline() == REPEAT_S
    assert rule.repeats(0.0)
    assert rule.looked(1.0, True)
    assert not rule.repeats(30.0)
    assert not rule.looked(2.0, None)
    assert rule.said is True
