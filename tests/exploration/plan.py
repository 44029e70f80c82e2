"""What a simulated world consists of, what may go wrong in it, and how patient its property is."""

from __future__ import annotations

import msgspec

from queuebell.bridge.core.settings import Periods
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.producer.publication import Publication
from queuebell.listeners.session.session import Liveness
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.timers import DeadMan

Step = tuple[str, int]

QUEUES = ("a/one", "a/two")
BEAT_S = 5.0
ACCEPT_S = 0.1
BEGINNING_S = 1000.0


class Violation(AssertionError):
    """A property does not hold; ``rule`` names it in a word."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration. Counts are budgets: how often each thing may happen in one story."""

    name: str = ""
    own: bool = False
    queues: int = 1
    listeners: int = 1
    late_joiners: int = 0
    """Of the listeners, how many join as a step of the story and not before it."""
    messages: int = 1
    delayed: int = 0
    """Of the messages, how many are put with a delay."""
    delay_s: float = 3.0
    capacity: int = 1
    batch: int = 1
    carry: bool = False
    """Whether listeners take messages along with a wake (O7)."""
    hints: bool = False
    """Whether a store elsewhere tells its depth and when more becomes visible (an own one always does)."""
    visibility_s: float = 20.0
    backoff_s: float = 0.1

    crashes: int = 0
    revivals: int = 0
    cuts: int = 0
    """Connections that break, each side noticing by itself."""
    restarts: int = 0
    """Of the bridge; an own store restarts with it."""
    lost_wakes: int = 0
    lost_frames: int = 0
    errors: int = 0
    unknowns: int = 0
    """Receives whose outcome the listener never learns."""
    hangs: int = 0
    """Listeners that cannot reach the store any more: every call of theirs ends at R."""
    call_s: float | None = None
    """When a listener gives up a receive; None: after R, as the bridge believes."""
    retries: int = 0
    """Handlers that ask for another attempt at once."""
    later: int = 0
    """Handlers that ask for another attempt after ``delay_s``."""
    lapses: int = 0
    """Leases that end while their handler still runs."""
    stops: int = 0
    forgets: int = 0
    """Times the ledger forgets a queue under the pressure of many names."""

    deaf: int = 0
    """Connections over which nothing reaches the listener any more, though they stand and carry what it says."""
    publish_failures: int = 0
    """Publishes that the producer hears nothing of; before they reach the bridge, or after it."""

    flush_steps: bool = False
    """Whether a session may be slow to take its wakes, so that they merge (B3)."""
    split_hear: bool = False
    """Whether the bridge hears of a commit later than the writer makes it."""
    beats: bool = True
    settled: bool = False
    """Whether the story begins with everybody welcomed and idle."""
    patience_s: float | None = None
    """How long a visible message may wait while somebody could take it; None: not for ever."""

    scheduler: type[WakeScheduler] = WakeScheduler
    controller: type[Controller] = Controller
    publication: type[Publication] | None = None
    """The producer's rules; None: each trigger goes by itself, and none is lost."""
    liveness: type[Liveness] | None = None
    """Whether listeners judge by echoes if the bridge lives, and poll without it (L9)."""
    deadman: type[DeadMan] | None = None
    """Needs ``liveness``, whose echoes say when a heartbeat was sent."""
    publish_first: bool = False
    """A mutant of the producer: it publishes before its put is visible."""
    business_id: str | None = None
    """An id that every trigger carries, with a source."""
    early_level: bool = False
    """A mutant of the own store: levels read before the commit they belong to."""
    periods: Periods = Periods(sweep_s=0)

    @property
    def gives_up_after_s(self) -> float:
        return self.periods.store_call_s if self.call_s is None else self.call_s


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
