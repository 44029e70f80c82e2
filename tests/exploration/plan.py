"""What a simulated world consists of, what may go wrong in it, and how patient its property is."""

from __future__ import annotations

from typing import Any

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
    """One configuration of a story."""

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
    leased: int = 0
    """How many messages of a queue a store elsewhere leases at once; 0: any number."""
    visibility_s: float = 20.0
    backoff_s: float = 0.1

    faults: dict[str, int] = {}
    """How often each may happen. crash: a listener ends, revive: it comes again. cut: each side notices by itself.
    restart: of the bridge, and an own store with it. lose: a wake, lose_up: any frame. error: of a receive, unknown:
    its outcome. miss: a receive finds nothing although there is something.
    hang: every store call of a listener ends at R. retry, later: a handler asks for another attempt, at
    once or after ``delay_s``. lapse: a lease ends while its handler runs. stop: of a listener. forget: of a queue,
    under the pressure of many names. deafen: nothing reaches a listener any more over a connection that carries what it
    says. publish_fails: before it reaches the bridge, or after it."""
    call_s: float | None = None
    """When a listener gives up a receive; None: after R, as the bridge believes."""

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
    def complete(self) -> bool:
        """Whether an empty answer of the store proves that nothing is visible."""
        return "miss" not in self.faults

    @property
    def gives_up_after_s(self) -> float:
        return self.periods.store_call_s if self.call_s is None else self.call_s


KINDS = (
    "crash", "revive", "cut", "restart", "lose", "lose_up", "error", "unknown", "miss", "hang", "retry", "later",
    "lapse", "stop", "forget", "deafen", "publish_fails",
)  # fmt: skip


def planned(**fields: Any) -> Plan:
    """Return a plan with these fields and budgets of faults."""
    faults = {kind: fields.pop(kind) for kind in KINDS if kind in fields}
    return Plan(faults=faults, **fields)


WILD = (
    planned(
        name="elsewhere", listeners=3, late_joiners=1, messages=4, capacity=1, crash=1, revive=1, cut=1,
        lose=1, error=1, unknown=1, retry=1, later=1, lapse=1, flush_steps=True,
    ),
    planned(
        name="elsewhere, hints, batches", listeners=2, messages=6, delayed=2, capacity=3, batch=2, hints=True,
        crash=1, revive=1, cut=1, restart=1, error=1, unknown=1, lose_up=2, stop=1,
    ),
    planned(
        name="elsewhere, two queues", queues=2, hints=True, listeners=2, late_joiners=1, messages=6, delayed=2,
        capacity=2,
        restart=2, cut=2, lose=2, forget=1, hang=1, flush_steps=True,
    ),
    planned(
        name="own", own=True, listeners=3, late_joiners=1, messages=4, capacity=1, crash=1, revive=1, cut=1,
        lose=1, error=1, unknown=1, retry=1, later=1, lapse=1, flush_steps=True, split_hear=True,
    ),
    planned(
        name="own, carried", own=True, carry=True, listeners=3, messages=6, delayed=1, capacity=2, batch=2, crash=1,
        cut=1, lose=1, retry=1, lapse=1, stop=1, flush_steps=True, split_hear=True,
    ),
    planned(
        name="own, carried, restarts", own=True, carry=True, queues=2, listeners=2, late_joiners=1, messages=6,
        delayed=2, capacity=1, restart=2, crash=1, revive=1, lose_up=2, error=1, unknown=1,
    ),
    planned(
        name="elsewhere, hung owner", listeners=2, messages=4, capacity=2, hang=1, lose_up=2, lose=1,
        flush_steps=True,
    ),
    planned(
        name="elsewhere, incomplete, few leases", listeners=2, messages=6, capacity=2, batch=2, leased=2, miss=2,
        error=1, retry=1, unknown=1, crash=1, revive=1, flush_steps=True,
    ),
    planned(
        name="elsewhere, stops", listeners=2, late_joiners=1, messages=4, capacity=2, stop=1, retry=2,
    ),
    planned(
        name="elsewhere, all, stuck", listeners=3, messages=5, capacity=1, lose_up=3, hang=1, stop=1, call_s=40.0,
        periods=Periods(sweep_s=0, wake="all"),
    ),
    planned(
        name="elsewhere, producer", listeners=2, messages=5, capacity=1, publication=Publication, publish_fails=2,
        delayed=1, hints=True, cut=1, restart=1, crash=1, revive=1,
    ),
    planned(
        name="elsewhere, liveness", listeners=2, messages=5, capacity=2, batch=2, hints=True, liveness=Liveness,
        deafen=2, cut=1, restart=1, crash=1, revive=1, unknown=1,
    ),
    planned(
        name="own, carried, liveness", own=True, carry=True, listeners=2, messages=5, capacity=2, batch=2,
        liveness=Liveness, deafen=2, cut=1, restart=1, crash=1, revive=1, unknown=1,
    ),
)  # fmt: skip

SILENT = Periods(sweep_s=0, heartbeat_s=1000.0)
"""No heartbeats: what they would heal stays broken, and states repeat."""


def small(name: str, **fields: object) -> Plan:
    return planned(**{"name": name, "settled": True, "beats": False, "periods": SILENT, **fields})  # type: ignore[arg-type]


EXPLORED: tuple[tuple[Plan, int], ...] = (
    # With how many moments each has at least. Explored whole; the first ones are prompt: no timer may be needed at all.
    (small("one listener", patience_s=0.0), 40),
    (small("one listener, two messages", messages=2, patience_s=0.0), 1000),
    (small("a late joiner", settled=False, late_joiners=1, patience_s=0.0), 400),
    (small("own", own=True, patience_s=0.0), 40),
    (small("own, two messages", own=True, messages=2, patience_s=0.0), 1000),
    (small("no back-off", error=2, backoff_s=0.0), 40),
    (small("own, no back-off", own=True, error=2, backoff_s=0.0), 40),
    (small("a lost wake", lose=1, patience_s=2.5), 40),
    (small("own, a lost wake", own=True, lose=1, patience_s=2.5), 40),
    (small("own, carried", own=True, carry=True, patience_s=0.0), 40),
    (small("restart", restart=1), 1000),
    (small("unknown", unknown=1), 40),
    (small("own, unknown", own=True, unknown=1), 40),
    (small("own, restart", own=True, restart=1), 500),
    (small("crash and return", crash=1, revive=1), 1000),
    (small("producer", messages=2, publication=Publication, patience_s=0.0), 2000),
    (small("an incomplete store", miss=1), 40),
    (small("an incomplete store, hints, a failure", miss=1, error=1, hints=True), 40),
    (small("producer, unsure", publication=Publication, publish_fails=1), 40),
)

DEEP: tuple[Plan, ...] = (
    small("own, carried, cut", own=True, carry=True, cut=1),
    small("two listeners", listeners=2, patience_s=0.0),
    small("two listeners, two messages", listeners=2, messages=2, patience_s=0.0),
    small("two slots, three messages", messages=3, capacity=2, patience_s=0.0),
    small("two listeners, late", listeners=2, late_joiners=1, settled=False, patience_s=0.0),
    small("own, carried, two messages", own=True, carry=True, messages=2, patience_s=0.0),
    small("own, two listeners", own=True, listeners=2, messages=2, patience_s=0.0),
    small("own, carried, crash", own=True, carry=True, listeners=2, crash=1),
    small("crash, two listeners", listeners=2, crash=1),
    small("unknown, two listeners", listeners=2, messages=2, unknown=1),
    small("lost wake, two listeners", listeners=2, messages=2, lose=1, patience_s=2.5),
    small("release, two listeners", listeners=2, messages=2, retry=1),
    small("own, split commits", own=True, messages=2, split_hear=True),
    small("producer, two listeners", listeners=2, messages=2, publication=Publication, publish_fails=1),
)
