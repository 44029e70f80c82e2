"""What a world of two bridges consists of, what may go wrong in it, and how patient its property is."""

from __future__ import annotations

from typing import Any

import msgspec

from queuebell.bridge.contract.cluster import Able, ClusterMessage, Member
from queuebell.bridge.core.cluster.coordinator import Coordinator
from queuebell.bridge.core.wake_scheduler import WakeScheduler


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration. ``faults`` are budgets: how often each thing may happen in one story."""

    name: str = ""
    workers: tuple[int, ...] = (0, 1)
    """With which bridge each listener is. The bridges are 0, the first in the order of the queue, and 1."""
    messages: int = 1
    delayed: tuple[int, ...] = ()
    """Which messages are put for later, under the id of the one before: two of one publish."""
    own_ids: bool = False
    """Each message has an id of its own, also one for later."""
    taken: tuple[int, ...] = ()
    """Messages that somebody took before their triggers came: the look for them comes back empty."""
    named: bool = True
    heard_by: tuple[int, ...] = (0, 1)
    """Who hears a trigger; whoever does not is told by who does (C6)."""
    told: bool = True
    """Whether it is; not so is a wrong turn."""
    staging: tuple[int, ...] = ()
    """Bridges whose listeners read another store, in which nothing is."""
    engine: bool = False
    """Whether the bridges work on an engine, whose queues listeners take for the bridge's own (C8)."""
    timers_first: bool = False
    """Whether a bridge that leaves tells its timers before its sessions end; so is a wrong turn."""
    faults: dict[str, int] = {}
    """drop: a trigger by one of two; lose: a word; late, repeat: a `covered`, which comes at any time or never;
    crash worker, end worker: with what it holds, and another comes or none; crash bridge, end bridge: it is back at
    once, or not at all; gap: it doubts whether it heard everything, and looks; leave: as planned (C7); deafen: a link
    between bridges carries nothing more; suspend: of the machine, a second; tick: time passes although something is
    under way."""
    at: tuple[int, ...] = (0, 1)
    """Which bridges it befalls."""
    prompt: tuple[type[ClusterMessage], ...] = (Member,)
    """Words that arrive as soon as nothing is before them on the way."""
    spaced: bool = False
    """Whether time may pass before the next message is put."""
    slow_wakes: bool = False
    """Whether wakes take time to reach a listener, and are lost with its bridge."""
    patience_s: float | None = None
    """How long a visible message may wait while somebody could take it; None: not for ever, and debts end as well."""
    by_queue: bool = True
    coverage: bool = True
    """Whether what a bridge takes for the time of the last cover is looked at (C5)."""

    sweep_s: float = 0.0
    """Sweeps, where they are what is looked at: everywhere else they would hide a loss."""
    turns: type[Coordinator] = Coordinator
    scheduler: type[WakeScheduler] = WakeScheduler
    constants: dict[str, float] = {}
    """Constants of the rules that have another value here, so that a small world meets what they bound."""


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
