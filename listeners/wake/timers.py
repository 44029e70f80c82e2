"""When one wake machine acts by itself: it retries, polls, and checks for returned messages or after silence.

`CheckTimers` keeps the moments for retries, polls and returns; `DeadMan` and `Recheck` back up the
bridge. All times are seconds of the machine's clock.
"""

from __future__ import annotations

import heapq
import math
from typing import Final

import msgspec

from queuebell.bridge.contract.backoff import Backoff, Draw
from queuebell.bridge.contract.bounds import EARLY, SLACK_S, SPREAD_S, STORE_CALL_S, SWEEP_S

BUCKETS: Final = 32
BUCKET_MIN_S: Final = 1.0
POLL_CAP_S: Final = 30.0
"""Longest pause between polls for want of a bridge, and between tries of a store that fails (L9, L11)."""


class CheckTimers:
    """When to try a store again, when to poll, and when messages that this worker does not hold come back.

    ``retry`` and ``poll`` are moments or None, in seconds of the machine's clock; ``retries`` and ``polls`` are the
    back-offs behind them.
    """

    __slots__ = ("_draw", "_polls", "_retries", "_returns", "poll", "retry")

    def __init__(self, polls: Backoff, retries: Backoff, draw: Draw) -> None:
        self.retry: float | None = None
        self.poll: float | None = None
        self._polls = polls
        self._retries = retries
        self._draw = draw
        self._returns: list[tuple[float, str]] = []

    def schedule_retry(self, now: float) -> None:
        """Wait before the store is asked again."""
        self.retry = now + min(self._retries.miss(self._draw), POLL_CAP_S)

    def schedule_poll(self, now: float, next_visible: float | None, *, capped: bool) -> None:
        """Wait before the next poll, but not past the moment when the store said that more becomes visible."""
        pause = self._polls.miss(self._draw)
        pause = min(pause, POLL_CAP_S) if capped else pause
        self.poll = now + (pause if next_visible is None else min(pause, next_visible))

    def schedule_first_poll(self, now: float) -> None:
        """Wait U(0, cap) before the first poll without a bridge, so that a fleet does not poll in step (L9)."""
        self._polls.hit()
        self.poll = now + POLL_CAP_S * self._draw()

    def reset_backoffs(self) -> None:
        """Reset both back-offs: there was work."""
        self._polls.hit()
        self._retries.hit()

    def reset_retries(self) -> None:
        """Reset the back-off of retries: the store answers."""
        self._retries.hit()

    def shorten_retry(self, now: float) -> None:
        """Reset the back-off of retries: an outage of the bridge is often one of the store too."""
        self._retries.hit()
        if self.retry is not None:
            standing = self.retry
            self.schedule_retry(now)
            self.retry = min(self.retry, standing)

    def cancel(self) -> None:
        """Cancel retry and poll: a check is due immediately."""
        self.retry = self.poll = None

    def add_return(self, at: float, reason: str) -> None:
        """Note messages that become visible at ``at``: unknown receives, delayed releases, lapsed leases (L6, L7)."""
        heapq.heappush(self._returns, (at, reason))

    def add_possible_return(self, now: float, at: float) -> None:
        """Note what a receive of unknown outcome may have leased until ``at`` (L6).

        Rounded up to one of some 32 moments until then, so that an hour of lost answers does not become an hour of
        checks, one for each.
        """
        width = max(BUCKET_MIN_S, (at - now) / BUCKETS)
        bucket = math.ceil(at / width) * width
        if (bucket, "lease") not in self._returns:
            self.add_return(bucket, "lease")

    def returns(self) -> list[float]:
        """Return all such moments."""
        return [at for at, _ in self._returns]

    def take_returns(self, now: float) -> str | None:
        """Remove all returns due by ``now``; return the reason of the last one, None if there are none."""
        reason = None
        while self._returns and now >= self._returns[0][0]:
            reason = heapq.heappop(self._returns)[1]
        return reason

    def deadline(self) -> float | None:
        """Return the first moment of all."""
        first, poll = self.retry, self.poll
        if poll is not None and (first is None or poll < first):
            first = poll
        if self._returns and (first is None or self._returns[0][0] < first):
            first = self._returns[0][0]
        return first


class DeadMan:
    """When to check unasked: 1.1 T + S + U(0, w) after the newest known empty receive of any worker.

    ``w`` grows with the listeners of a queue, so that the others learn of the first one's check before they check too.
    Stale news of coverage changes nothing: only numbers that shrink bring the deadline nearer. All in seconds.
    """

    __slots__ = ("_share", "deadline", "spread", "t_dead")

    def __init__(self, now: float, draw: Draw, *, sweep_s: float = SWEEP_S) -> None:
        self.t_dead = 1.1 * sweep_s + SLACK_S
        self.spread = SPREAD_S
        # One draw per round: a new one at each heartbeat, with "only forward", would creep towards the far end of w.
        self._share = draw()
        self.deadline = now + self.t_dead + self.spread * self._share
        """When to ask `fires` next."""

    def tune(
        self,
        now: float,
        sweep_s: float,
        sessions: int,
        latency_s: float,
        slack_s: float = SLACK_S,
        spread_s: float = SPREAD_S,
    ) -> None:
        """Apply the bridge's numbers (T, S, the smallest w) and the size of the fleet.

        Longer ones count from the next cover on, shorter ones from ``now``: counted from the last cover they may have
        passed already, for the whole fleet at once.
        """
        before = self.t_dead + self.spread * self._share
        self.t_dead = 1.1 * sweep_s + slack_s
        self.spread = max(spread_s, sessions * latency_s)
        wait = self.t_dead + self.spread * self._share
        if wait < before:
            self.deadline = min(self.deadline, now + wait)

    def on_empty_receive(self, at: float) -> None:
        """Record an empty receive at ``at``: a lower bound of when it began, never the time of the news."""
        self.deadline = max(self.deadline, at + self.t_dead + self.spread * self._share)

    def fires(self, now: float, draw: Draw) -> bool:
        """Return whether to check now; if so the next round begins."""
        if now < self.deadline:
            return False
        self._share = draw()
        self.deadline = now + self.t_dead + self.spread * self._share
        return True


STEPS_S: Final = (15.0, 30.0, 60.0)


class Recheck:
    """Knows when the queue was covered last, by anybody, in seconds of the machine's clock; ``sweep_s`` 0 is none."""

    __slots__ = ("_covered_at", "sweep_s")

    def __init__(self) -> None:
        self.sweep_s = SWEEP_S
        self._covered_at: float | None = None

    def on_empty_receive(self, at: float) -> None:
        """Record that a receive begun at ``at`` or later found the queue empty."""
        self._covered_at = at if self._covered_at is None else max(self._covered_at, at)

    def next_check(self, source: str, began_at: float) -> float | None:
        """Return in how many seconds to check again after an empty receive; None to leave it to the sweep.

        News (a trigger, a lease that ended, a start) begins the series, and a timer's check is its next step. A sweep,
        poll or dead-man check does not count, or each sweep would restart the series while a message is leased; nor
        does a timer's check soon after another, or two parallel series would keep each other alive.
        """
        if source in ("sweep", "deadman", "poll"):
            return None
        since = 0.0
        if source == "due":
            since = STEPS_S[0] if self._covered_at is None else began_at - self._covered_at
            if since < STEPS_S[0]:
                return None
        step = next((step for step in STEPS_S if step > since), None)
        return None if step is None or step >= EARLY * (self.sweep_s or float("inf")) else step


class Periods(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one queue, in seconds; the letters are those of the protocol."""

    sweep_s: float = SWEEP_S
    """T: the bridge's sweep; 0 where there is none. Defaults to 60 s."""
    slack_s: float = SLACK_S
    """S: what the dead-man timer waits beyond the sweep. Defaults to 30 s."""
    spread_s: float = SPREAD_S
    """w at its smallest: over how long a fleet's dead-man timers are spread. Defaults to 10 s."""
    store_call_s: float = STORE_CALL_S
    """R: how long one store call may take. Defaults to 10 s."""
