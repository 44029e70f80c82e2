"""The known wrong turns: each is caught where the unmodified rules hold."""

from __future__ import annotations

import pytest

from tests.exploration.explore import WrongTurn
from tests.exploration.plan import Plan
from tests.exploration.wrong_turns import OTHERS, WRONG_TURNS

NUMBERED = [f"V{number}" for number in range(1, 20)]
WITH_TIMERS = ["sweep", "dead-man"]


@pytest.mark.parametrize("turn", WRONG_TURNS, ids=lambda turn: turn.name)
def test_every_known_wrong_turn_is_caught(turn: WrongTurn) -> None:
    assert turn.caught
    assert [trial for trial in turn.caught if trial.breaks() is None] == []


def test_no_timer_hides_a_wrong_turn() -> None:
    """All 21 are tried with sweep and dead-man off, but for the last two."""
    assert [turn.name for turn in WRONG_TURNS] == NUMBERED + WITH_TIMERS
    trials = [trial for turn in WRONG_TURNS[:19] for trial in turn.caught]
    plans = [plan for trial in trials for plan in (trial.rules, trial.planted) if isinstance(plan, Plan)]
    assert len(plans) > 30 and all(plan.periods.sweep_s == 0 and plan.deadman is None for plan in plans)


@pytest.mark.parametrize("turn", WRONG_TURNS + OTHERS, ids=lambda turn: turn.name)
def test_the_rules_hold_where_wrong_turns_are_caught(turn: WrongTurn) -> None:
    assert [trial.holds() for trial in turn.caught] == [None] * len(turn.caught)


@pytest.mark.parametrize("turn", OTHERS, ids=lambda turn: turn.name)
def test_other_wrong_turns_are_caught(turn: WrongTurn) -> None:
    assert all(trial.breaks() for trial in turn.caught)
