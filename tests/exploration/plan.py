"""What a simulated world consists of, what may go wrong in it, and how patient its property is."""

from __future__ import annotations

import msgspec

from queuebell.bridge.core.settings import Periods
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.producer.publication import Publication
from queuebell.listeners.session.session import Liveness
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.timers import DeadMan

QUEUES = ("a/one", "a/two")
BEAT_S = 5.0
ACCEPT_S = 0.1
BEGINNING_S = 1000.0
"""When every world begins."""


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
    """Any frame, either way."""
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
    hasty: bool = True
    """Whether time may pass in the chaos of a random story even while something is under way."""
    groups: bool = True
    """Whether the writer may commit several calls at once."""
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
        """Return when a listener gives up a receive."""
        return self.periods.store_call_s if self.call_s is None else self.call_s
