"""The register of the wrong turns of several bridges: each is planted in the real rules, and each is caught.

The numbers are those of docs/explanation/verification.md. There is neither sweep nor dead-man timer in these worlds.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from tests.exploration.cluster import mutants
from tests.exploration.cluster.explore import Exploration, play, walk
from tests.exploration.cluster.plan import Plan, quick
from tests.exploration.plan import Step
from tests.exploration.walk import Failure


class Explored(msgspec.Struct, frozen=True):
    """A small world, explored breadth first, in which the wrong turn makes somebody wait, or breaks a rule."""

    plan: Plan
    planted: dict[str, Any]
    states_max: int = 3000

    def breaks(self) -> bool:
        """Return whether the planted rules break a property."""
        return self._fails(replace(self.plan, **self.planted), self.states_max)

    def holds(self) -> bool:
        """Return whether the unmodified rules do not, as far as they are explored here."""
        return not self._fails(self.plan, 1000)

    @staticmethod
    def _fails(plan: Plan, states_max: int) -> bool:
        try:
            Exploration(plan, states_max=states_max).run()
        except Failure:
            return True
        return False


class Walked(msgspec.Struct, frozen=True):
    """Seeded stories, of which one leaves a message for ever."""

    plan: Plan
    planted: dict[str, Any]
    seeds: int = 400

    def breaks(self) -> bool:
        """Return whether a story with the planted rules leaves a message."""
        return walk(replace(self.plan, **self.planted), range(self.seeds))[0] is not None

    def holds(self) -> bool:
        """Return whether none of the unmodified ones does."""
        return walk(self.plan, range(100))[0] is None


class Played(msgspec.Struct, frozen=True):
    """A story by hand that leaves a message for ever."""

    plan: Plan
    planted: dict[str, Any]
    story: tuple[Step, ...]

    def breaks(self) -> bool:
        """Return whether the planted rules leave a message."""
        return play(replace(self.plan, **self.planted), self.story) is not None

    def holds(self) -> bool:
        """Return whether the unmodified ones do not."""
        return play(self.plan, self.story) is None


class WrongTurn(msgspec.Struct, frozen=True):
    """One wrong turn, and where it is caught."""

    name: str
    says: str
    caught: Explored | Walked | Played


def plan(name: str, **fields: Any) -> Plan:
    """Return a world in which a trigger comes whose message is gone, and another's message is there."""
    return Plan(**{"name": name, "messages": 2, "taken": (0,), "coverage": False, **fields})  # type: ignore[arg-type]


TO_FIRST, TO_SECOND, WORD = ("hear", -10), ("hear", -9), ("hear", 1)

CROSSED: tuple[Step, ...] = (
    ("put", 0), TO_FIRST, ("up", 0), TO_SECOND, ("put", 1), ("drop", -10), TO_SECOND, ("answer", 0), ("up", 0),
)  # fmt: skip
"""The second message comes after the look for the first, and the bridge that tells of that look is deaf to it."""

WRONG_TURNS: tuple[WrongTurn, ...] = (
    WrongTurn(
        "W1",
        "a wake request is settled by the time at which a peer's message arrives: the receive did not see it",
        Played(plan("W1", named=False, faults={"drop": 1}), {"turns": mutants.ForgivesByArrival}, CROSSED),
    ),
    WrongTurn(
        "W2",
        "times from before a suspend count, by a clock that stood still in it",
        Played(
            plan("W2", named=False, faults={"drop": 1, "suspend": 1}),
            {"turns": mutants.StandsStill},
            (("suspend", 1), *CROSSED),
        ),
    ),
    WrongTurn(
        "W3",
        "a request is settled when one of its triggers is named: the other's message stays",
        Played(plan("W3", faults={"drop": 1}), {"turns": mutants.ForgivesTheDebt}, CROSSED),
    ),
    WrongTurn(
        "W4",
        "timers are settled too: what is due later stays",
        Walked(plan("W4", delayed=(1,), own_ids=True, faults={"drop": 1}), {"turns": mutants.ForgivesTimers}),
    ),
    WrongTurn(
        "W5",
        "each new trigger extends the deferral, so that a request waits past its deadline",
        Explored(
            quick("W5", messages=2, faults={"drop": 2}, at=(0,), spaced=True, patience_s=2.5),
            {"turns": mutants.PushesOut},
        ),
    ),
    WrongTurn(
        "W6",
        "a peer's empty receive counts from its arrival: the next sweep is late",
        Explored(quick("W6"), {"turns": mutants.CoversFromArrival}),
    ),
    WrongTurn(
        "W7",
        "members that leave stay in the order: everyone waits A",
        Explored(
            quick("W7", faults={"leave": 1}, at=(0,), spaced=True, patience_s=0.2), {"turns": mutants.OrdersWhoLeaves}
        ),
    ),
    WrongTurn(
        "W8",
        "an unknown member counts as able: everyone waits A for a bridge without workers",
        Explored(quick("W8", workers=(1,), patience_s=0.2), {"turns": mutants.TakesUnknownForAble}),
    ),
    WrongTurn(
        "W9",
        "a trigger that only one bridge received is not passed on, and is lost with it",
        Explored(
            quick("W9", workers=(1,), heard_by=(0,), faults={"end bridge": 1}, at=(0,), patience_s=4.0),
            {"told": False},
        ),
    ),
    WrongTurn(
        "W10",
        "`own` is believed with an external store: every trigger is lost",
        Explored(quick("W10", engine=True, patience_s=0.2), {"scheduler": mutants.Believes}),
    ),
    WrongTurn(
        "W11",
        "ids that did not fit into a message count as settled",
        Played(
            plan("W11", faults={"drop": 1}, constants={"NAMES_MAX": 1}),
            {"turns": mutants.ForgetsWhatDidNotFit},
            CROSSED,
        ),
    ),
    WrongTurn(
        "W12",
        "ids of triggers after the start of the receive are sent",
        Played(
            plan(
                "W12",
                turns=mutants.NoLook,
                slow_wakes=True,
                constants={"MERGE_S": 0.0},
                faults={"end bridge": 1},
                at=(0,),
            ),
            {"turns": mutants.NamesWhatCameAfter},
            (
                ("put", 0),
                TO_FIRST,
                ("wake", 0),
                ("up", 0),
                TO_SECOND,
                ("put", 1),
                TO_FIRST,
                TO_SECOND,
                ("answer", 0),
                ("up", 0),
                WORD,
                ("end bridge", 0),
                ("greet", 0),
            ),
        ),
    ),
    WrongTurn(
        "W13",
        "a receive counts as begun when its report arrives",
        Played(
            plan("W13", named=False, faults={"drop": 1, "tick": 1}),
            {"turns": mutants.BeganWhenItCame},
            (
                ("put", 0),
                TO_FIRST,
                ("up", 0),
                ("answer", 0),
                TO_SECOND,
                ("put", 1),
                ("drop", -10),
                TO_SECOND,
                ("tick", 0),
                ("up", 0),
            ),
        ),
    ),
    WrongTurn(
        "W14",
        "requests are settled across stores: production's by staging's empty queue",
        Walked(plan("W14", messages=1, taken=(), staging=(0,)), {"turns": mutants.MixesStores}),
    ),
    WrongTurn(
        "W15",
        "a later trigger is settled by the id of its immediate twin",
        Walked(plan("W15", delayed=(1,), faults={"drop": 1, "repeat": 1}), {"turns": mutants.NamesTheDue}),
    ),
    WrongTurn(
        "W17",
        "after a member is gone, only queues are checked for which it was able",
        Walked(
            plan("W17", messages=1, taken=(), faults={"end worker": 1, "end bridge": 1}),
            {"turns": mutants.LooksWhereItWasAble},
        ),
    ),
    WrongTurn(
        "W18",
        "a request without any session is not passed on",
        Walked(
            plan("W18", messages=1, taken=(), faults={"end worker": 1}), {"turns": mutants.TellsNobodyWithoutASession}
        ),
    ),
    WrongTurn(
        "W19",
        "a backlog is acted on only when it grows: the second request stays",
        Walked(plan("W19", taken=(), faults={"drop": 1, "lose": 1, "end worker": 1}), {"turns": mutants.ActsOnTheRise}),
    ),
    WrongTurn(
        "W20",
        "a member that leaves sends its timers before its sessions end: a lease is forgotten",
        Walked(
            plan("W20", messages=1, taken=(), faults={"leave": 1, "end worker": 1}, at=(0,)), {"timers_first": True}
        ),
    ),
    WrongTurn(
        "W21",
        "settling by time lacks its millisecond",
        Played(plan("W21", named=False, faults={"drop": 1}), {"turns": mutants.NoMillisecond}, CROSSED),
    ),
)
"""W16 loses nothing, and is caught by a count of receives."""
