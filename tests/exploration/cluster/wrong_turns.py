"""The register of the wrong turns of several bridges: each is planted in the real rules, and each is caught.

The numbers are those of docs/explanation/verification.md. There is neither sweep nor dead-man timer in these worlds.
"""

from __future__ import annotations

import functools
from typing import Any

from msgspec.structs import replace

from tests.exploration.cluster import mutants
from tests.exploration.cluster.explore import Exploration, play, walk
from tests.exploration.cluster.plan import Plan, quick
from tests.exploration.explore import Trial, WrongTurn, explored, turn
from tests.exploration.plan import Step


def _explored(plan: Plan, planted: dict[str, Any]) -> Trial:
    return explored(plan, planted, 3000, Exploration)


def _walked(plan: Plan, planted: dict[str, Any]) -> Trial:
    """Seeded stories, of which one leaves a message for ever."""
    return Trial(walk, plan, replace(plan, **planted), ((400,), (100,)))


def _played(plan: Plan, planted: dict[str, Any], story: tuple[Step, ...]) -> Trial:
    """A story by hand that leaves a message for ever."""
    return Trial(functools.partial(play, story), plan, replace(plan, **planted))


def plan(name: str, **fields: Any) -> Plan:
    """Return a world in which a trigger comes whose message is gone, and another's message is there."""
    return Plan(**{"name": name, "messages": 2, "taken": (0,), "coverage": False, **fields})  # type: ignore[arg-type]


TO_FIRST, TO_SECOND, WORD = ("hear", -10), ("hear", -9), ("hear", 1)

CROSSED: tuple[Step, ...] = (
    ("put", 0), TO_FIRST, ("up", 0), TO_SECOND, ("put", 1), ("drop", -10), TO_SECOND, ("answer", 0), ("up", 0),
)  # fmt: skip
"""The second message comes after the look for the first, and the bridge that tells of that look is deaf to it."""

NEWER: tuple[Step, ...] = (
    ("put", 0), TO_FIRST, ("wake", 0), ("up", 0), TO_SECOND, ("put", 1), TO_FIRST, TO_SECOND, ("answer", 0),
    ("up", 0), WORD, ("end bridge", 0), ("greet", 0),
)  # fmt: skip
LATE: tuple[Step, ...] = (
    ("put", 0), TO_FIRST, ("up", 0), ("answer", 0), TO_SECOND, ("put", 1), ("drop", -10), TO_SECOND, ("tick", 0),
    ("up", 0),
)  # fmt: skip
"""`NEWER`: both triggers come before the receive is answered. `LATE`: its report comes late."""

WRONG_TURNS: tuple[WrongTurn, ...] = (
    turn("W1", _played(plan("W1", named=False, faults={"drop": 1}), {"turns": mutants.ForgivesByArrival}, CROSSED)),
    turn(
        "W2",
        _played(
            plan("W2", named=False, faults={"drop": 1, "suspend": 1}),
            {"turns": mutants.StandsStill},
            (("suspend", 1), *CROSSED),
        ),
    ),
    turn("W3", _played(plan("W3", faults={"drop": 1}), {"turns": mutants.ForgivesTheDebt}, CROSSED)),
    turn("W4", _walked(plan("W4", delayed=(1,), own_ids=True, faults={"drop": 1}), {"turns": mutants.ForgivesTimers})),
    turn(
        "W5",
        _explored(
            quick("W5", messages=2, faults={"drop": 2}, at=(0,), spaced=True, patience_s=2.5),
            {"turns": mutants.PushesOut},
        ),
    ),
    turn("W6", _explored(quick("W6"), {"turns": mutants.CoversFromArrival})),
    turn(
        "W7",
        _explored(
            quick("W7", faults={"leave": 1}, at=(0,), spaced=True, patience_s=0.2), {"turns": mutants.OrdersWhoLeaves}
        ),
    ),
    turn("W8", _explored(quick("W8", workers=(1,), patience_s=0.2), {"turns": mutants.TakesUnknownForAble})),
    # A trigger that only one bridge received is not passed on, and is lost with it.
    turn(
        "W9",
        _explored(
            quick("W9", workers=(1,), heard_by=(0,), faults={"end bridge": 1}, at=(0,), patience_s=4.0), {"told": False}
        ),
    ),
    turn("W10", _explored(quick("W10", engine=True, patience_s=0.2), {"scheduler": mutants.Believes})),
    turn(
        "W11",
        _played(
            plan("W11", faults={"drop": 1}, constants={"NAMES_MAX": 1}),
            {"turns": mutants.ForgetsWhatDidNotFit},
            CROSSED,
        ),
    ),
    turn(
        "W12",
        _played(
            plan(
                "W12",
                turns=mutants.NoLook,
                slow_wakes=True,
                constants={"MERGE_S": 0.0},
                faults={"end bridge": 1},
                at=(0,),
            ),
            {"turns": mutants.NamesWhatCameAfter},
            NEWER,
        ),
    ),
    turn(
        "W13",
        _played(
            plan("W13", named=False, faults={"drop": 1, "tick": 1}),
            {"turns": mutants.BeganWhenItCame},
            LATE,
        ),
    ),
    turn("W14", _walked(plan("W14", messages=1, taken=(), staging=(0,)), {"turns": mutants.MixesStores})),
    turn("W15", _walked(plan("W15", delayed=(1,), faults={"drop": 1, "repeat": 1}), {"turns": mutants.NamesTheDue})),
    turn(
        "W17",
        _walked(
            plan("W17", messages=1, taken=(), faults={"end worker": 1, "end bridge": 1}),
            {"turns": mutants.LooksWhereItWasAble},
        ),
    ),
    turn(
        "W18",
        _walked(
            plan("W18", messages=1, taken=(), faults={"end worker": 1}), {"turns": mutants.TellsNobodyWithoutASession}
        ),
    ),
    turn(
        "W19",
        _walked(
            plan("W19", taken=(), faults={"drop": 1, "lose": 1, "end worker": 1}), {"turns": mutants.ActsOnTheRise}
        ),
    ),
    # A member that leaves sends its timers before its sessions end: a lease is forgotten.
    turn(
        "W20",
        _walked(
            plan("W20", messages=1, taken=(), faults={"leave": 1, "end worker": 1}, at=(0,)), {"timers_first": True}
        ),
    ),
    turn("W21", _played(plan("W21", named=False, faults={"drop": 1}), {"turns": mutants.NoMillisecond}, CROSSED)),
)
"""W16 loses nothing, and is caught by a count of receives."""
