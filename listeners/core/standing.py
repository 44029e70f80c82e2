"""How the wake machine of one queue stands: what it owes, what is in flight, and what it knows of room and time.

`listeners.core.controller` says what each event changes of it.
"""

from __future__ import annotations

from bridge.contract.backoff import Backoff, Draw
from listeners.core.commands import Command
from listeners.core.deadman import DeadMan
from listeners.core.evidence import Evidence, Receive
from listeners.core.hard_look import HardLook
from listeners.core.periods import Periods
from listeners.core.pool import Place
from listeners.core.recheck import Recheck
from listeners.core.rumour import Rumour
from listeners.core.scaling import Scaling
from listeners.core.table import Mode, State
from listeners.core.waits import Waits


class Standing:
    """The facts of one wake machine, and the levels that are read from them; see `Controller`."""

    def __init__(
        self,
        capacity: int,
        batch: int,
        *,
        scaling: Scaling,
        polls: Backoff,
        retries: Backoff,
        draw: Draw,
        deadman: DeadMan | None = None,
        hard_look: HardLook | None = None,
        own: bool = False,
        place: Place | None = None,
    ) -> None:
        self.capacity = capacity
        self.place = place
        self.batch = batch
        self.own = own
        self.deadman = deadman
        self.hard_look = hard_look
        self.blocked = False
        """The newest answer was limited by something else than emptiness: an own settlement may lift it (L8)."""
        self.state = State.IDLE
        self.mode = Mode.CONNECTING
        self.epoch = 0
        self.covered = 0
        self.boot: str | None = None
        self.gen = 0
        self.covered_gen = 0
        self.free = capacity
        self.depth: int | None = None
        self.receives: dict[int, Receive] = {}
        self.waits = Waits(polls, retries, draw)
        self.rumour = Rumour(capacity)
        self._scaling = scaling
        self._draw = draw
        self._rid = 0
        self._reason = "poll"
        self._unannounced = 0
        """The newest epoch whose reason is none of the bridge's wakes: a return, a release, a look of our own."""
        self._announced = 0
        """The newest epoch that the bridge heard of in this session."""
        self._started_owed = False
        self.waits_in_turn = False
        """A look is owed, nothing was said of the lack of a slot, and `next_in_turn` is why."""
        self._evidence = Evidence()
        self._recheck = Recheck()
        self._told_empty = True
        self._stopping = False
        self._began_at: float | None = None
        self._beat_at: float | None = None
        self._out: list[Command] = []

    @property
    def owed(self) -> bool:
        """Whether a look is owed."""
        return self.covered < self.epoch

    @property
    def reserved(self) -> int:
        """Handler slots reserved by receives in flight."""
        return sum(receive.limit for receive in self.receives.values())

    @property
    def available(self) -> int:
        """Handler slots that are neither busy nor reserved by a receive in flight, and that a pool grants now."""
        reserved = self.reserved
        spare = self.free - reserved
        return spare if self.place is None else min(spare, self.place.grant(reserved))

    @property
    def full(self) -> bool:
        """Whether no slot is free, those that receives have reserved not counted as busy."""
        if self.free <= 0 or self.place is None:
            return self.free <= 0
        return self.available + self.reserved <= 0 and not self.next_in_turn

    @property
    def next_in_turn(self) -> bool:
        """Whether only receives of the pool's other queues, which are about to answer, keep this one from a slot."""
        return self.place is not None and self.free > self.reserved and self.place.in_turn(self.reserved)

    @property
    def looking(self) -> bool:
        """Whether a receive begun at the current epoch is in flight."""
        return any(receive.epoch == self.epoch for receive in self.receives.values())

    def deadline(self) -> float | None:
        """Return when to call `tick` next; None while nothing but an event can change anything."""
        if self._stopping:
            return None
        times = [self.waits.deadline()]
        if self.mode is not Mode.PULL:
            times += [alone.deadline() for alone in (self.deadman, self.hard_look) if alone is not None]
        return min((at for at in times if at is not None), default=None)

    def beat(self, now: float) -> tuple[int, int, float | None, int]:
        """Return levels for a heartbeat: gen learned, gen covered, age of the newest receive or None, free slots (S2).

        The receive is named while it is in flight, or if it began since the last heartbeat (B5).
        """
        began, last = self._began_at, self._beat_at
        self._beat_at = now
        age = now - began if began is not None and (self.receives or last is None or began >= last) else None
        # No room would read as `more` (B5), and slots that another queue's look has reserved come back in a moment.
        room = max(int(self.next_in_turn), self.available)
        free = 0 if self._stopping or self.waits.retry is not None else room
        self.rumour.beaten(free)
        return self.gen, self.covered_gen, age, free

    def covered_elsewhere(self, at: float) -> None:
        """Hear that somebody's receive, begun at ``at`` or later, found the queue empty (L10)."""
        self._recheck.covered(at)
        if self.deadman is not None:
            self.deadman.heard(at)

    def tune(self, now: float, periods: Periods, sessions: int, latency_s: float) -> bool:
        """Take over the bridge's numbers and the size of its fleet; say whether the hard look has changed."""
        self._recheck.sweep_s = periods.sweep_s
        if self.deadman is not None:
            self.deadman.tune(now, periods.sweep_s, sessions, latency_s, periods.slack_s, periods.spread_s)
        return self.hard_look is not None and self.hard_look.tune(now, periods.hard_look_s, self._draw)
