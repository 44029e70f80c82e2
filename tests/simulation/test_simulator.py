"""What the simulator promises: its runs repeat themselves, its command names what failed, its checkers find it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from tests.simulation import command
from tests.simulation.bounds import promise
from tests.simulation.checks import Checks, rule_of
from tests.simulation.plan import PRESETS, Plan


def test_the_command_plays_seeds_and_one_seed_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "4", "--jobs", "2"]) == 0
    said = capsys.readouterr().out
    assert "4 runs" in said and "receives an hour of an empty queue (own)" in said and "checked: I1" in said
    assert "All of it held." in said
    args = ("--seed", "17", "--store", "elsewhere", "--channel", "broker")
    assert command.main([*args]) == 0
    said = capsys.readouterr().out
    assert command.main([*args]) == 0
    assert capsys.readouterr().out == said and " put producer=" in said and "trace " in said


Q = "a/q"
OWN = PRESETS["own-wire"]
SOUND = msgspec.structs.replace(PRESETS["elsewhere-wire"], faults=())
ROOM = (0.0, "room", "w", Q, True, True, 1, True)


def receive(at: float) -> tuple[Any, ...]:
    return (at, "receive_began", "w", Q, 1)


def judged(story: list[tuple[Any, ...]], end: float, plan: Plan = SOUND) -> Checks:
    """The checkers after a story that ends at ``end``."""
    checks = Checks(plan)
    for at, what, *fields in sorted(story, key=lambda event: event[0]):
        getattr(checks, what)(at, *fields)
    checks.finish(end)
    return checks


def test_the_bounds_are_the_published_ones() -> None:
    """116 s and 67 an hour elsewhere, 0 for own queues; longer for large fleets, none without a dead-man timer."""
    bounds = promise(SOUND)
    assert (bounds.wake_s, bounds.receives_an_hour, bounds.receives_a_restart) == (pytest.approx(116.0), 67, 1)
    assert promise(msgspec.structs.replace(SOUND, workers=1000)).wake_s == pytest.approx(156.0)
    assert promise(msgspec.structs.replace(SOUND, deadman=False)).wake_s == math.inf
    assert promise(OWN).receives_an_hour == promise(OWN).receives_a_restart == promise(OWN).receives(1e6) == 0
    vague = promise(msgspec.structs.replace(SOUND, complete_receive=False))
    assert vague.receives_an_hour == 134 and vague.receives_a_restart == 2


@pytest.mark.parametrize(
    ("plan", "waited", "broken"), [(SOUND, 115.9, []), (SOUND, 116.1, ["I1"]), (OWN, 2.9, []), (OWN, 3.1, ["I1"])]
)
def test_i1_a_gap_beyond_the_bound(plan: Plan, waited: float, broken: list[str]) -> None:
    """A receive that begins too late breaks I1, and only once; on an own queue within A while nothing is wrong."""
    story = [ROOM, (100.0, "level", Q, 1), receive(100.0 + waited), (100.1 + waited, "level", Q, 0)]
    checks = judged(story, 500.0, plan)
    assert [rule_of(violation) for violation in checks.violations] == broken
    assert checks.figures().worst_gap_s == pytest.approx(waited)
