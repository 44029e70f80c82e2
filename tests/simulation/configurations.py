"""Which worlds are looked at."""

from __future__ import annotations

from bridge.core.settings import Periods
from tests.simulation import mutants
from tests.simulation.plan import Plan

WILD = (
    Plan(
        name="elsewhere", listeners=3, late_joiners=1, messages=4, capacity=1, crashes=1, revivals=1, cuts=1,
        lost_wakes=1, errors=1, unknowns=1, retries=1, later=1, lapses=1, flush_steps=True,
    ),
    Plan(
        name="elsewhere, hints, batches", listeners=2, messages=6, delayed=2, capacity=3, batch=2, hints=True,
        crashes=1, cuts=1, restarts=1, errors=1, unknowns=1, lost_frames=2, stops=1,
    ),
    Plan(
        name="elsewhere, two queues", queues=2, hints=True, listeners=2, late_joiners=1, messages=6, delayed=2,
        capacity=2,
        restarts=2, cuts=2, lost_wakes=2, forgets=1, hangs=1, flush_steps=True,
    ),
    Plan(
        name="own", own=True, listeners=3, late_joiners=1, messages=4, capacity=1, crashes=1, revivals=1, cuts=1,
        lost_wakes=1, errors=1, unknowns=1, retries=1, later=1, lapses=1, flush_steps=True, split_hear=True,
    ),
    Plan(
        name="own, carried", own=True, carry=True, listeners=3, messages=6, delayed=1, capacity=2, batch=2, crashes=1,
        cuts=1, lost_wakes=1, retries=1, lapses=1, stops=1, flush_steps=True, split_hear=True,
    ),
    Plan(
        name="own, carried, restarts", own=True, carry=True, queues=2, listeners=2, late_joiners=1, messages=6,
        delayed=2, capacity=1, restarts=2, crashes=1, revivals=1, lost_frames=2, errors=1, unknowns=1,
    ),
)  # fmt: skip

SILENT = Periods(sweep_s=0, heartbeat_s=1000.0)
"""No heartbeats: what they would heal stays broken, and states repeat."""


def small(name: str, **fields: object) -> Plan:
    """Return a world small enough to be explored whole."""
    return Plan(**{"name": name, "settled": True, "beats": False, "periods": SILENT, **fields})  # type: ignore[arg-type]


MUTANTS: tuple[tuple[Plan, dict[str, object]], ...] = (
    # In each world the unmodified rules hold, with the very same patience.
    (small("V1", settled=False, late_joiners=1), {"bell": mutants.CheckThenSubscribe}),
    (small("V2", messages=2, capacity=2, patience_s=0.0), {"controller": mutants.SnapshotAfter}),
    (small("V3", lost_wakes=1), {"bell": mutants.WakeAndForget}),
    (small("V4", restarts=1), {"bell": mutants.BornClean}),
    (small("V6, bridge", messages=2, capacity=2, patience_s=0.0), {"bell": mutants.DropsWhileOwned}),
    (small("V6, listener", messages=2, capacity=2, patience_s=0.0), {"controller": mutants.DropsWhileBusy}),
    (small("V7", crashes=1, revivals=1), {"bell": mutants.NoTimerAtTheEnd}),
    (small("V8", listeners=2, messages=2, lost_wakes=1, patience_s=2.5), {"controller": mutants.StartedOnReceipt}),
    (small("V9", messages=2, capacity=2, patience_s=0.0), {"bell": mutants.AnyCover}),
    (small("V10", messages=2, capacity=2, patience_s=0.0), {"controller": mutants.HandlersInTheDrain}),
    (small("V13", unknowns=1), {"controller": mutants.ForgetsUnknown}),
    (small("V14, early", delayed=1), {"bell": mutants.EarlyTimers}),
    (small("V14, settled", messages=2, delayed=1), {"bell": mutants.CoversSettleTimers}),
    (small("V17", crashes=1, revivals=1, patience_s=1.0), {"bell": mutants.Inherits}),
    (small("V18", messages=2, capacity=2, patience_s=0.0), {"controller": mutants.SharedReceive}),
    (small("O1, early level", own=True), {"early_level": True}),
    (small("O7, reclaim", own=True, carry=True, cuts=1), {"bell": mutants.NeverReclaims}),
)

WALKED: tuple[tuple[Plan, dict[str, object]], ...] = (
    # Too deep for breadth first; caught within some hundred seeds.
    (Plan(name="V11", listeners=1, messages=3, settled=True), {"bell": mutants.FullUntracked}),
    (
        Plan(name="V12", listeners=1, messages=3, capacity=3, lost_frames=1, settled=True, hasty=False, patience_s=8.0),
        {"bell": mutants.SilentWhileOwned},
    ),
)

EXPLORED: tuple[Plan, ...] = (
    # Explored whole in the test run, a few seconds each. The first ones are prompt: no timer may be needed at all.
    small("one listener", patience_s=0.0),
    small("one listener, two messages", messages=2, patience_s=0.0),
    small("a late joiner", settled=False, late_joiners=1, patience_s=0.0),
    small("own", own=True, patience_s=0.0),
    small("own, two messages", own=True, messages=2, patience_s=0.0),
    small("no back-off", errors=2, backoff_s=0.0),
    small("own, no back-off", own=True, errors=2, backoff_s=0.0),
    small("a lost wake", lost_wakes=1, patience_s=2.5),
    small("own, a lost wake", own=True, lost_wakes=1, patience_s=2.5),
    small("own, carried", own=True, carry=True, patience_s=0.0),
    small("restart", restarts=1),
    small("unknown", unknowns=1),
    small("own, unknown", own=True, unknowns=1),
    small("own, restart", own=True, restarts=1),
    small("crash and return", crashes=1, revivals=1),
)

DEEP: tuple[Plan, ...] = (
    # For `make prove`: minutes each.
    small("own, carried, cut", own=True, carry=True, cuts=1),
    small("two listeners", listeners=2, patience_s=0.0),
    small("two listeners, two messages", listeners=2, messages=2, patience_s=0.0),
    small("two slots, three messages", messages=3, capacity=2, patience_s=0.0),
    small("two listeners, late", listeners=2, late_joiners=1, settled=False, patience_s=0.0),
    small("own, carried, two messages", own=True, carry=True, messages=2, patience_s=0.0),
    small("own, two listeners", own=True, listeners=2, messages=2, patience_s=0.0),
    small("own, carried, crash", own=True, carry=True, listeners=2, crashes=1),
    small("crash, two listeners", listeners=2, crashes=1),
    small("unknown, two listeners", listeners=2, messages=2, unknowns=1),
    small("lost wake, two listeners", listeners=2, messages=2, lost_wakes=1, patience_s=2.5),
    small("release, two listeners", listeners=2, messages=2, retries=1),
    small("own, split commits", own=True, messages=2, split_hear=True),
)
