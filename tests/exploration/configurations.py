"""Which worlds are looked at."""

from __future__ import annotations

from queuebell.bridge.core.settings import Periods
from queuebell.bridge.producer.publication import Publication
from queuebell.listeners.session.session import Liveness
from tests.exploration.plan import Plan

WILD = (
    Plan(
        name="elsewhere", listeners=3, late_joiners=1, messages=4, capacity=1, crashes=1, revivals=1, cuts=1,
        lost_wakes=1, errors=1, unknowns=1, retries=1, later=1, lapses=1, flush_steps=True,
    ),
    Plan(
        name="elsewhere, hints, batches", listeners=2, messages=6, delayed=2, capacity=3, batch=2, hints=True,
        crashes=1, revivals=1, cuts=1, restarts=1, errors=1, unknowns=1, lost_frames=2, stops=1,
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
    Plan(
        name="elsewhere, hung owner", listeners=2, messages=4, capacity=2, hangs=1, lost_frames=2, lost_wakes=1,
        flush_steps=True,
    ),
    Plan(
        name="elsewhere, stops", listeners=2, late_joiners=1, messages=4, capacity=2, stops=1, retries=2,
    ),
    Plan(
        name="elsewhere, all, stuck", listeners=3, messages=5, capacity=1, lost_frames=3, hangs=1, stops=1, call_s=40.0,
        periods=Periods(sweep_s=0, wake="all"),
    ),
    Plan(
        name="elsewhere, producer", listeners=2, messages=5, capacity=1, publication=Publication, publish_failures=2,
        delayed=1, hints=True, cuts=1, restarts=1, crashes=1, revivals=1,
    ),
    Plan(
        name="elsewhere, liveness", listeners=2, messages=5, capacity=2, batch=2, hints=True, liveness=Liveness,
        deaf=2, cuts=1, restarts=1, crashes=1, revivals=1, unknowns=1,
    ),
    Plan(
        name="own, carried, liveness", own=True, carry=True, listeners=2, messages=5, capacity=2, batch=2,
        liveness=Liveness, deaf=2, cuts=1, restarts=1, crashes=1, revivals=1, unknowns=1,
    ),
)  # fmt: skip

SILENT = Periods(sweep_s=0, heartbeat_s=1000.0)
"""No heartbeats: what they would heal stays broken, and states repeat."""


def small(name: str, **fields: object) -> Plan:
    """Return a world small enough to be explored whole."""
    return Plan(**{"name": name, "settled": True, "beats": False, "periods": SILENT, **fields})  # type: ignore[arg-type]


EXPLORED: tuple[Plan, ...] = (
    # Explored whole, a few seconds each. The first ones are prompt: no timer may be needed at all.
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
    small("producer", messages=2, publication=Publication, patience_s=0.0),
    small("producer, unsure", publication=Publication, publish_failures=1),
)

DEEP: tuple[Plan, ...] = (
    # For `make test-all`: minutes each.
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
    small("producer, two listeners", listeners=2, messages=2, publication=Publication, publish_failures=1),
)
