"""What a world of two bridges consists of, what may go wrong in it, and how patient its property is."""

from __future__ import annotations

import msgspec

from queuebell.bridge.contract.cluster import ClusterMessage, Member
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
    slow_reads: bool = False
    """Whether a message may be put between the beginning of a receive and its look into the store."""
    patience_s: float | None = None
    """How long a visible message may wait while somebody could take it; None: not for ever, and debts end as well."""
    by_queue: bool = True
    """Whether debts end."""
    coverage: bool = True
    """Whether what a bridge takes for the time of the last cover is looked at (C5)."""

    sweep_s: float = 0.0
    """Sweeps, where they are what is looked at: everywhere else they would hide a loss."""
    turns: type[Coordinator] = Coordinator
    scheduler: type[WakeScheduler] = WakeScheduler
    constants: dict[str, float] = {}
    """Constants of the rules that have another value here, so that a small world meets what they bound."""
