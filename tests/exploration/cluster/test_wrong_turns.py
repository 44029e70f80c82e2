"""The known wrong turns of several bridges: each is caught where the unmodified rules hold."""

from __future__ import annotations

import inspect
import math
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from queuebell.bridge.core.cluster.coordinator import Coordinator
from tests.exploration.cluster import mutants, wrong_turns
from tests.exploration.cluster.explore import constants
from tests.exploration.cluster.plan import Plan
from tests.exploration.cluster.world import FAIR, World
from tests.exploration.cluster.wrong_turns import WRONG_TURNS, plan
from tests.exploration.explore import WrongTurn

BY_COUNT = 16
LENGTH = 60


@pytest.mark.parametrize("turn", WRONG_TURNS, ids=lambda turn: turn.name)
def test_every_known_wrong_turn_is_caught(turn: WrongTurn) -> None:
    """W1 to W21, but for W16: each planting breaks a property, with sweep and dead-man off."""
    assert all(trial.breaks() for trial in turn.caught)


@pytest.mark.parametrize("turn", WRONG_TURNS, ids=lambda turn: turn.name)
def test_the_rules_hold_where_wrong_turns_are_caught(turn: WrongTurn) -> None:
    assert [trial.holds() for trial in turn.caught] == [None]


def _receives_of_a_stream(turns: type[Coordinator]) -> int:
    """Count the looks for half a minute of triggers, each of which crosses the cover of the one before."""
    stream = plan("W16", messages=LENGTH, taken=tuple(range(LENGTH)), turns=turns)
    with constants(stream):
        world = World(stream)
        for number in range(LENGTH):
            if ("answer", 0) in world.steps():
                world.do(("answer", 0))
            for step in (("put", number), ("hear", -10), ("hear", -9)):
                world.do(step)
            while steps := [step for step in world.steps() if step[0] == "up" or step == ("answer", 1)]:
                world.do(steps[0])
            until = world.now + 0.5
            while (at := world.deadline()) is not None and at <= until:
                world.pass_time()
                while steps := [step for step in world.steps() if step[0] == "hear" and step[1] >= 0]:
                    world.do(steps[0])
            world.now = until
        world.settle(20.0)
        return world.receives


def test_w16_covers_of_older_generations_are_told_or_others_look_too() -> None:
    """C4, I2: nothing is lost by it; a stream of triggers costs two bridges twice the receives of one."""
    rules, planted = _receives_of_a_stream(Coordinator), _receives_of_a_stream(mutants.TellsWhenSettled)
    assert rules <= 1.02 * LENGTH
    assert planted > 1.1 * LENGTH


def test_forgetting_the_numbers_from_before_a_sleep_is_a_second_net() -> None:
    """W2: with a clock that goes on in a sleep they are true, and with one that stands still these losses come."""
    (caught,) = next(turn.caught for turn in WRONG_TURNS if turn.name == "W2")
    assert replace(caught, planted=replace(caught.planted, turns=mutants.SleepsThrough)).breaks()
    assert replace(caught, planted=replace(caught.planted, turns=mutants.Remembers)).breaks() is None


QUIET_S = 2400.0
"""Less than after what a session that says nothing is taken for dead in these worlds."""
LOOKS_MAX = math.ceil(QUIET_S / 54.0)


def _sweeps(turns: type[Coordinator], *, first_looks: bool) -> list[float]:
    """Return when somebody looked while nothing happens; the first bridge's listener may hear nothing of its wakes."""
    idle = plan("sweeps", messages=0, taken=(), sweep_s=60.0, slow_wakes=True, turns=turns)
    deaf = () if first_looks else (("wake", 0),)
    looks: list[float] = []
    with constants(idle):
        world = World(idle)
        until = world.now + QUIET_S
        while world.now < until:
            while steps := [step for step in world.steps() if step[0] in FAIR and step not in deaf]:
                world.do(steps[0])
                looks += [world.now] * (world.receives - len(looks))
            world.pass_time()
    return looks


def test_w22_one_of_the_bridges_sweeps_or_two_would_meet_and_both_look() -> None:
    """C5, I2: nothing is lost by it; two bridges whose moments are drawn alike cost twice the receives."""
    rules, planted = (_sweeps(turns, first_looks=True) for turns in (Coordinator, mutants.SweepsInItsOwnTime))
    assert QUIET_S / 66.0 - 1 <= len(rules) <= LOOKS_MAX
    assert len(planted) > 1.5 * LOOKS_MAX


def test_w23_whoever_comes_first_may_be_able_and_not_look() -> None:
    """C5, B9: the next sweeps by 1.1 T, A and its place after the last cover, or nobody ever does."""
    rules, planted = (_sweeps(turns, first_looks=False) for turns in (Coordinator, mutants.LeavesSweepsToTheFirst))
    gaps = [after - before for before, after in pairwise(rules)]
    assert len(rules) >= QUIET_S / 68.3 - 1
    assert max(gaps) <= 1.1 * 60 + 2.0 + 0.25 + 0.01
    assert planted == []


def test_no_wrong_turn_is_left_out() -> None:
    """All of docs/explanation/verification.md, and every planting that is written is used here or in the register."""
    assert [turn.name for turn in WRONG_TURNS] == [f"W{number}" for number in range(1, 22) if number != BY_COUNT]
    written = [name for name, thing in vars(mutants).items() if getattr(thing, "__module__", "") == mutants.__name__]
    register = inspect.getsource(wrong_turns) + Path(__file__).read_text()
    assert [name for name in written if name[0] != "_" and f"mutants.{name}" not in register] == []


def test_no_timer_hides_a_wrong_turn() -> None:
    """There is no sweep in any of these worlds, nor any heartbeat that would heal what is broken."""
    worlds: list[Plan] = [trial.rules for turn in WRONG_TURNS for trial in turn.caught]
    assert all(scheduler.periods.sweep_s == 0 for world in worlds for scheduler in World(world).bells)
