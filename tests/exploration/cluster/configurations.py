"""Which worlds of two bridges are explored."""

from __future__ import annotations

from typing import Any

from queuebell.bridge.contract.cluster import Able, Member
from tests.exploration.cluster.plan import Plan


def quick(name: str, **fields: Any) -> Plan:
    """Return a world in which words that tell of sessions and of members arrive at once."""
    return Plan(**{"name": name, "prompt": (Member, Able), **fields})  # type: ignore[arg-type]


EXPLORED: tuple[tuple[Plan, int], ...] = (
    # With how many moments each has at least. Explored whole, a second or some each. In a calm one nobody waits at all.
    (quick("calm", patience_s=0.0), 200),
    (quick("calm, bare", named=False, patience_s=0.0), 200),
    (quick("calm, one worker", workers=(1,), patience_s=0.0), 150),
    (quick("one hears and tells", heard_by=(0,), patience_s=0.0), 200),
    (quick("one hears and tells, the other has the worker", heard_by=(0,), workers=(1,), patience_s=0.0), 150),
    (quick("a look in vain", taken=(0,)), 8),
    (quick("a look in vain, bare", taken=(0,), named=False), 12),
    (quick("a look in vain, words lost, late and twice", taken=(0,), faults={"lose": 1, "late": 1, "repeat": 1}), 35),
    (
        quick(
            "a look in vain, deaf, in time that passes",
            taken=(0,),
            named=False,
            faults={"drop": 1, "repeat": 1, "tick": 1},
        ),
        140,
    ),
    (quick("a look in vain, a bridge ends", taken=(0,), faults={"end bridge": 1}), 80),
    (quick("for later", delayed=(0,), own_ids=True, patience_s=0.1), 150),
    (quick("a word is lost", faults={"lose": 1}), 400),
)

BIGGER: tuple[tuple[Plan, int], ...] = (
    # For `make test-rest`: thousands of moments each.
    (Plan(name="calm, and news takes its time"), 150),
    (quick("deaf to a trigger", faults={"drop": 1}), 500),
    (quick("late or twice", faults={"late": 1, "repeat": 1}), 700),
    (quick("a worker ends", faults={"end worker": 1}), 1800),
    (quick("a worker crashes", faults={"crash worker": 1}), 2000),
    (quick("a link is deaf from then on", faults={"deafen": 1}, at=(0,), by_queue=False), 1400),
    (quick("a bridge ends", faults={"end bridge": 1}, at=(0,)), 1900),
)

DEEP: tuple[Plan, ...] = (
    # For `make test-all`: minutes each, or as many moments as it allows.
    quick("two messages", messages=2),
    quick("two messages, bare", messages=2, named=False),
    quick("two, deaf to one, one in vain", messages=2, taken=(0,), named=False, faults={"drop": 1}),
    quick("two, one for later, deaf", messages=2, delayed=(1,), faults={"drop": 1}),
    quick("a bridge crashes", faults={"crash bridge": 1}),
    quick("a bridge leaves", faults={"leave": 1}),
    quick("a link is deaf from then on, either way", faults={"deafen": 1}, by_queue=False),
    quick("a worker and a bridge end", faults={"end worker": 1, "end bridge": 1}),
    quick("a machine sleeps, deaf", messages=2, taken=(0,), named=False, faults={"drop": 1, "suspend": 1}),
)
