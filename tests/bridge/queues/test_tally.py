"""Counting is as good as asking: the tally against a model that keeps every message."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.queues.embedded.tally import Calendar, Tally
from tests.support.writers import counts_of

_times = st.integers(0, 40)
_expiries = st.none() | st.integers(1, 40)
_actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), _times, _expiries),
        st.tuples(st.just("remove"), st.integers(0, 1000), st.none()),
        st.tuples(st.just("move"), st.integers(0, 1000), _times),
        st.tuples(st.just("advance"), st.integers(0, 5), st.none()),
    ),
    max_size=60,
)


@given(_actions)
def test_counts_as_a_model_that_keeps_every_message(actions: list[tuple[str, int, int | None]]) -> None:
    """Visible, invisible, the next change, and whether it rose, after any history."""
    tally = Tally(0)
    now = 0
    model: list[tuple[int, int | None]] = []
    for action, first, second in actions:
        tally.rose = False
        before = sum(vis <= now for vis, _ in model)
        could_rise = True
        if action == "add":
            model.append((first, second))
            tally.add(first, second)
        elif action == "advance":
            now += first
            tally.advance(now)
        elif model:
            vis, exp = model.pop(first % len(model))
            if action == "remove":
                tally.remove(vis, exp)
            else:
                assert second is not None
                could_rise = vis > now
                model.append((second, exp))
                tally.move(vis, second)
        visible = sum(vis <= now for vis, _ in model)
        due = [vis for vis, _ in model if vis > now]
        expiries = [exp for _, exp in model if exp is not None]
        assert (tally.visible, tally.invisible, tally.total) == (visible, len(due), len(model))
        assert tally.next_visible() == min(due, default=None)
        assert tally.next_change() == min(due + expiries, default=None)
        assert tally.has_expired() == any(exp <= now for exp in expiries)
        assert tally.rose == (could_rise and before == 0 and visible > 0)


@given(_actions)
def test_every_change_can_be_taken_back(actions: list[tuple[str, int, int | None]]) -> None:
    """Undoing in reverse restores the counts, also when time passed in between: a failed transaction relies on it."""
    tally, kept = Tally(0), Tally(0)
    undo = []
    model: list[tuple[int, int | None]] = []
    for action, first, second in actions:
        if action == "add":
            model.append((first, second))
            tally.add(first, second)
            undo.append((tally.remove, (first, second)))
        elif action == "advance":
            tally.advance(tally.now + first)
        elif model:
            vis, exp = model.pop(first % len(model))
            if action == "remove":
                tally.remove(vis, exp)
                undo.append((tally.add, (vis, exp)))
            else:
                assert second is not None
                model.append((second, exp))
                tally.move(vis, second)
                undo.append((tally.move, (second, vis)))
    for function, arguments in reversed(undo):
        function(*arguments)
    kept.advance(tally.now)
    assert counts_of(tally) == counts_of(kept)
    assert tally.next_change() is None


def test_a_calendar_forgets_stale_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases extended over and over leave no trace of their old ends."""
    heapify, kept = heapq.heapify, []
    monkeypatch.setattr(heapq, "heapify", lambda times: (kept.append(len(times)), heapify(times)))
    calendar = Calendar()
    calendar.add(10**9, 1)
    for end in range(10**9, 10**9 + 10_000):
        calendar.remove(end, 1)
        calendar.add(end + 1, 1)
    # Each time that 66 were added to the one that counts, it is kept alone.
    assert kept == [1] * (10_000 // 66)
    assert calendar.earliest() == 10**9 + 10_000


def test_time_does_not_go_back() -> None:
    """An earlier time changes nothing."""
    tally = Tally(100)
    tally.add(90, None)
    tally.advance(50)
    assert (tally.now, tally.visible) == (100, 1)


def test_calendars_that_are_empty_share_what_they_have_none_of() -> None:
    """Until the first time is added: then it is nobody else's."""
    one, two = Calendar(), Calendar()
    one.add(5, 2)
    assert (one.earliest(), one.total, 5 in one) == (5, 2, True)
    assert (two.earliest(), two.total, 5 in two) == (None, 0, False)
    two.add(3, 1)
    one.remove(5, 2)
    assert (one.earliest(), two.earliest(), Calendar().earliest()) == (None, 3, None)
