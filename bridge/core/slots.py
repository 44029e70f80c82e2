"""What one session is owed for one queue: a slot for the newest wake, and what is known of its room."""

from __future__ import annotations

import msgspec

from bridge.contract.trace_context import Traces
from bridge.contract.wire import CarriedMessage, Processes, Reason, Starved, Subscription


class Slot(msgspec.Struct):
    """A wake that is not yet on its way: written again, it is merged; once taken, it is not (B3)."""

    gen: int
    reason: Reason
    size: int
    marked_at: float
    traceparent: str | None = None
    messages: list[CarriedMessage] | None = None
    weight: int = 0
    """Bytes that the messages take in a frame."""
    traces: Traces | None = None


class Seat(msgspec.Struct, eq=False):
    """One session's place at one queue.

    ``free`` is the last level the listener reported, less the messages carried since: `reported_gen` tells up to
    which wake its own count went.
    """

    session: int
    queue: str
    capacity: int
    visibility_s: float
    own: bool
    store: str | None
    accepts: bool
    free: int
    granted: int = 0
    """Promised to puts whose commits are under way: whoever counts slots takes them off, whatever was reported."""
    looking: bool = False
    """Was sent for a look: its receive takes slots that no report has taken off yet (O7)."""
    began: bool = False
    """Said `started` for that look: whatever it counts from now on has taken them off."""
    reported_gen: int = 0
    carried: list[tuple[int, int]] = []
    full: bool = False
    """Said `more`, or has no slot: barred until it says `room` (B6)."""
    stuck: bool = False
    """Said `started` and showed no progress since: barred until it does (B5)."""
    stuck_at: float = 0.0
    deaf: bool = False
    """Did not take up what was carried to it: barred until it shows that it hears again."""
    slot: Slot | None = None
    woken_gen: int = 0
    woken_at: float = 0.0
    touched: bool = False
    """Woken for this queue, or busy with it, since its last all-idle heartbeat (B8)."""
    leases: list[float] = []
    scaler: bool = False
    """It starts workers instead of handling messages (Z5)."""
    starting: int = 0
    """How many workers it is starting, as its newest `more` or heartbeat said."""
    processes: Processes | None = None
    """What a scaler said of its workers in its newest heartbeat. Only shown."""
    failing_since: float | None = None
    """When the first of its receives failed since one was last answered, as its newest heartbeat said. Only shown."""
    hung: int = 0
    """How many slots are held by handlers that ran out of time, as its newest heartbeat said. Only shown."""
    starved: Starved | None = None
    """Why it gets no slot of its pool, as its newest heartbeat said. Only shown."""
    in_flight: dict[str, int] | None = None
    """By handler, how many of its calls run, as its heartbeats said. Only shown."""

    @property
    def has_room(self) -> bool:
        """Whether a wake may be sent here."""
        return self.capacity > 0 and not (self.full or self.stuck or self.deaf)

    @property
    def spare(self) -> int:
        """The slots that may still be promised: free ones that no put on its way was promised (O7)."""
        return max(0, self.free - self.granted)

    def report(self, free: int, gen: int | None) -> None:
        """Take the listener's own count of free slots, which knows of wakes up to ``gen``.

        What was carried in later wakes is not in that count yet: it crossed the report on the way.
        """
        if gen is not None:
            self.reported_gen = max(self.reported_gen, gen)
        self.looking, self.began = self.looking and not self.began, False
        self.free = min(free, self.capacity)
        if self.carried:
            # A generation may be known from a welcome, and its wake still stand unsent in the slot.
            heard = min(self.reported_gen, self.woken_gen)
            self.carried = [(g, n) for g, n in self.carried if g > heard]
            self.free = max(0, self.free - sum(n for _, n in self.carried))
        self.full = free <= 0

    def carry(self, gen: int, count: int) -> None:
        """Note that a wake takes ``count`` messages along."""
        self.carried.append((gen, count))


def seat(session: int, sub: Subscription, *, accepts: bool, scaler: bool = False) -> Seat:
    """Make the seat that a hello asks for."""
    return Seat(
        session=session,
        queue=sub.queue,
        capacity=sub.capacity,
        visibility_s=sub.visibility_ms / 1000,
        own=sub.own,
        store=sub.store,
        accepts=accepts,
        scaler=scaler,
        free=sub.capacity if sub.free is None else min(sub.free, sub.capacity),
    )
