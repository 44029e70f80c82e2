"""The worker processes of one scaled queue: which are asked for, start, are ready, busy or idle, and which may end.

Only the rules: `queue_scaler` starts and ends processes. It asks `launch` how many to start now and reports the result;
it asks `overdue` and `spare` which to end. What starts and what fails is bounded by `Limits` alone, whatever the queue
holds, so that neither a burst nor a worker that dies at once becomes a storm (Z2, Z3).
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import msgspec

from queuebell.bridge.contract.backoff import Draw, RandomExponential
from queuebell.bridge.contract.errors import BadInput

PROCESSES_MAX: Final = 10_000
BACKOFF_FIRST_S: Final = 1.0
BACKOFF_CAP_S: Final = 60.0
FROZEN_S: Final = 1.0
"""A deadline that is noticed so much later was slept through: what processes said meanwhile may still be unread."""
UNREAD_S: Final = 2.0
"""How long reading it takes at most: an actuator that polls does so once a second."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a person sets of one scaled queue; times in seconds. Raises `BadInput` for what cannot work."""

    minimum: int = 0
    """Processes that are kept however little there is to do."""
    maximum: int = 8
    """Processes that run at once at most, those that are about to end among them."""
    per_process: int = 32
    """Messages that one process is worth: as many as it handles at once."""
    start_rate: int = 10
    """Processes started within any one second at most."""
    idle_s: float = 60.0
    """For how long a process is idle before it ends."""
    start_timeout_s: float = 30.0
    """How long a process may take until its listener has a session."""
    start_s: float = 5.0
    """How long a start takes as a rule: what is due sooner keeps a process."""

    def __post_init__(self) -> None:
        _check(1 <= self.maximum <= PROCESSES_MAX, f"max is from 1 to {PROCESSES_MAX} processes")
        _check(0 <= self.minimum <= self.maximum, f"min is from 0 to max, which is {self.maximum}")
        _check(1 <= self.per_process <= 1_000_000, "per_process is from 1 to 1000000 messages")
        _check(1 <= self.start_rate <= PROCESSES_MAX, f"start_rate is from 1 to {PROCESSES_MAX} a second")
        _check(self.idle_s >= 0, "idle is a number of seconds, 0 or more")
        _check(self.start_timeout_s > 0, "start_timeout is a number of seconds above 0")
        _check(self.start_s >= 0, "start is a number of seconds, 0 or more")


class Process(msgspec.Struct):
    """One process that was started and has not ended."""

    began_at: float
    ready_at: float | None = None
    """When its listener had a session: only then has its hello reached the bridge (Z3)."""
    busy: bool | None = None
    """Whether it holds messages, by its last report; None for one that never reports."""
    worked: bool = False
    """Has reported that it held messages."""
    idle_since: float = 0.0
    ending: str | None = None
    """Was asked to end, for this reason."""
    unread_until: float = 0.0
    """Until when it is not taken for late, for it may have said that it is ready."""


class Processes:
    """The processes of one queue, with the time given to each event; seconds of one monotonic clock.

    ``failure`` is why the last one failed, None once one has been ready since.
    """

    def __init__(self, limits: Limits, draw: Draw) -> None:
        self.limits = limits
        self.failure: str | None = None
        self.asked = 0
        """Wanted, and not begun yet."""
        self.launching = 0
        """The actuator was asked for them and has not answered."""
        self._draw = draw
        self._all: dict[str, Process] = {}
        self._launches: deque[float] = deque()
        self._backoff = RandomExponential(BACKOFF_FIRST_S, BACKOFF_CAP_S, BACKOFF_FIRST_S)
        self._forgets_at = 0.0
        """When failures are long enough ago to reset the back-off."""
        self.retry_at: float | None = None
        """Until when nothing is started, because something failed."""
        self.tally: Counter[str] = Counter()
        """How many were started, have failed, and have ended for which reason (`TALLIED`)."""

    # Status ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, number: str) -> bool:
        return number in self._all

    @property
    def ids(self) -> list[str]:
        """All that live, in the order of their start."""
        return list(self._all)

    @property
    def ready(self) -> int:
        """How many have a session, and stay."""
        return sum(each.ready_at is not None and not each.ending for each in self._all.values())

    @property
    def coming(self) -> int:
        """How many were asked for and are not ready."""
        starting = sum(each.ready_at is None and not each.ending for each in self._all.values())
        return self.asked + self.launching + starting

    @property
    def own(self) -> int:
        """How many there are or will be without those that end."""
        return self.ready + self.coming

    @property
    def holders(self) -> int:
        """How many may hold messages: those that reported so, and those that never report."""
        return sum(each.ready_at is not None and each.busy is not False for each in self._all.values())

    def free(self, now: float) -> int:
        """Return how many may still be started: none before all asked for are ready or the back-off has ended (Z3)."""
        return 0 if self.coming else self.left(now)

    def backs_off(self, now: float) -> bool:
        """Return whether nothing is started because something failed."""
        return self.retry_at is not None and now < self.retry_at

    # Up -------------------------------------------------------------------------------------------------------------

    def ask(self, now: float, count: int) -> int:
        """Ask for ``count`` more, and return how many were granted: never beyond the maximum, none in a back-off."""
        granted = max(0, min(count, self.left(now)))
        self.asked += granted
        return granted

    def left(self, now: float) -> int:
        """Return how many more may be asked for."""
        if self.backs_off(now):
            return 0
        return max(0, self.limits.maximum - len(self._all) - self.asked - self.launching)

    def short(self) -> int:
        """Return how many the minimum lacks."""
        return max(0, self.limits.minimum - self.own)

    def launch(self, now: float) -> int:
        """Return how many to start now; what the rate leaves for later is returned later."""
        while self._launches and now >= self._launches[0] + 1.0:
            self._launches.popleft()
        count = max(0, min(self.asked, self.limits.start_rate - len(self._launches)))
        self._launches.extend([now] * count)
        self.asked -= count
        self.launching += count
        return count

    def began(self, now: float, ids: list[str]) -> None:
        """Record that the actuator has started these."""
        self.launching = max(0, self.launching - len(ids))
        self.tally["started"] += len(ids)
        for number in ids:
            self._all[number] = Process(now)

    def found(self, now: float, ids: list[str]) -> None:
        """Record processes that an earlier scaler started; calling it twice changes nothing."""
        for number in ids:
            self._all.setdefault(number, Process(now))

    def refused(self, now: float, count: int, why: str) -> None:
        """Record that so many could not be started: nothing is kept of them but the back-off."""
        self.launching = max(0, self.launching - count)
        self._failed(now, why)

    def became_ready(self, now: float, number: str) -> None:
        """Record that a process's listener has a session or polls without a bridge (L9). May be called twice."""
        process = self._all.get(number)
        if process is not None and process.ready_at is None:
            process.ready_at = process.idle_since = now
            self.failure = None

    def busy_changed(self, now: float, number: str, *, busy: bool) -> None:
        """Record that a process holds messages, or holds none any more; it works, so it is ready by whatever way."""
        process = self._all.get(number)
        if process is None:
            return
        self.became_ready(now, number)
        process.busy = busy
        process.worked = process.worked or busy
        process.idle_since = now

    # Down -----------------------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> list[str]:
        """Return those that are not ready in time. They are to end, and count as failed.

        Where the scaler was frozen at that moment, each has `UNREAD_S` more: it may be at work for long (Z2).
        """
        late = []
        for number, each in self._all.items():
            if each.ready_at is None and not each.ending:
                if now > self._late_at(each) + FROZEN_S:
                    each.unread_until = now + UNREAD_S
                elif now >= self._late_at(each):
                    late.append(number)
        if late:
            self.end(late, "late")
            self._failed(now, f"not ready within {self.limits.start_timeout_s:g} s")
        return late

    def _late_at(self, process: Process) -> float:
        return max(process.began_at + self.limits.start_timeout_s, process.unread_until)

    def idle(self, now: float) -> list[str]:
        """Return those that hold nothing for ``idle_s``, the longest idle first; busy ones never (Z2)."""
        ripe = [
            (each.idle_since, number)
            for number, each in self._all.items()
            if each.ready_at is not None
            and each.busy is not True
            and not each.ending
            and now >= each.idle_since + self.limits.idle_s
        ]
        return [number for _, number in sorted(ripe)]

    def spare(self, now: float, wanted: int, *, quiet: bool) -> list[str]:
        """Return those of `idle` that are beyond ``wanted``; one that never reports only while the queue is ``quiet``.

        Quiet is: for ``idle_s`` nothing was visible, leased or about to be due.
        """
        surplus = self.own - max(wanted, self.limits.minimum)
        able = [number for number in self.idle(now) if quiet or self._all[number].busy is not None]
        return able[: max(0, surplus)]

    def surplus(self) -> int:
        """Return how many there are beyond the minimum, of those that are ready."""
        return max(0, self.ready - self.limits.minimum)

    def is_ready(self, number: str) -> bool:
        """Return whether a process has been ready."""
        return number in self._all and self._all[number].ready_at is not None

    def ends(self, number: str) -> bool:
        """Return whether a process was asked to end."""
        return number in self._all and self._all[number].ending is not None

    def end(self, ids: list[str], why: str = "idle") -> None:
        """Note that these were asked to end: ``idle``, ``late`` or ``stopping``."""
        for number in ids:
            if number in self._all:
                self._all[number].ending = why

    def ended(self, now: float, number: str, code: int | None, why: str) -> bool:
        """Record that a process has ended; return whether it failed: unasked and not in order.

        One that leaves by itself with exit code 0 after it was ready has done nothing wrong. But if that is soon and
        it took no message, the next would do the same, for ever and at once.
        """
        process = self._all.pop(number, None)
        if process is None:
            return False
        left = process.ready_at is not None and not code
        if left and process.ready_at is not None and process.busy is False and not process.worked:
            left = now >= process.ready_at + self.limits.start_timeout_s
            why = f"{why}; it took no message"
        self.tally[process.ending or ("left" if left else "broke")] += 1
        if process.ending or left:
            return False
        self._failed(now, why)
        return True

    def withdraw(self) -> None:
        """Cancel what is asked for and not begun."""
        self.asked = 0

    def _failed(self, now: float, why: str) -> None:
        self.failure = why
        self.tally["failed"] += 1
        self.withdraw()
        if self.backs_off(now):
            return  # of many that fail together one counts
        if now >= self._forgets_at:
            self._backoff.hit()
        self.retry_at = now + self._backoff.miss(self._draw)
        self._forgets_at = self.retry_at + 2 * self.limits.start_timeout_s

    def deadline(self, now: float) -> float | None:
        """Return when time alone has `launch`, `overdue`, `free` or `idle` say something else next."""
        times = [self._late_at(each) for each in self._all.values() if each.ready_at is None and not each.ending]
        if self.asked and self._launches:
            times.append(self._launches[0] + 1.0)
        if self.backs_off(now) and self.retry_at is not None:
            times.append(self.retry_at)
        if self.surplus():
            times += [
                each.idle_since + self.limits.idle_s
                for each in self._all.values()
                if each.ready_at is not None and each.busy is not True and not each.ending
            ]
        return min((at for at in times if at > now), default=None)


def _check(holds: bool, detail: str) -> None:
    if not holds:
        raise BadInput("bad_parameter", detail)
