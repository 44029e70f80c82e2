"""When a webhook is tried and retried; pure, and the same for every endpoint.

A wake is worthless once its queue is empty, so none is kept for hours as in Standard Webhooks. It is tried immediately,
after 1, 5, 15 and 60 seconds, and then every 60 while work waits; otherwise it is dropped. Only the newest wake per
endpoint is pending, so a flood of triggers causes at most one request per pause at a failing endpoint.
"""

from __future__ import annotations

import email.utils

import msgspec

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.sources import merged_size
from queuebell.bridge.contract.trace_context import joined, several
from queuebell.bridge.contract.wire import Wake

SCHEDULE_S = (0.0, 1.0, 5.0, 15.0, 60.0)
RETRY_AFTER_MAX_S = 3600.0
RATE_PER_MINUTE = 600
"""The rate that the bridge asks for, and its limit."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of an attempt: the ``status`` of the answer, or None and the reason."""

    status: int | None
    detail: str = ""
    retry_after_s: float | None = None

    @property
    def delivered(self) -> bool:
        """Whether the status is 2xx; redirects are not followed (S27)."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """Whether the status is 410: the endpoint is permanently gone (S30)."""
        return self.status == 410


class Deliveries:
    """The pending wake of one endpoint; times are seconds of a monotonic clock."""

    __slots__ = (
        "_draw", "_interval", "_next", "_offered_at", "attempts", "delivered", "disabled", "dropped", "failures",
        "in_flight", "pending",
    )  # fmt: skip

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._interval = 60.0 / RATE_PER_MINUTE
        # Nothing is sent before this.
        self._next = float("-inf")
        self._offered_at = 0.0
        self.pending: Wake | None = None
        self.in_flight: Wake | None = None
        self.attempts = 0
        """Attempts for the pending wake."""
        self.failures = 0
        """Failed attempts since the last success."""
        self.delivered = 0
        self.dropped = 0
        """Wakes dropped after their last attempt because no work waits."""
        self.disabled = False

    def allow(self, per_minute: float) -> None:
        """Limit the rate to what the endpoint permits (S29), at most `RATE_PER_MINUTE`."""
        self._interval = 60.0 / min(max(per_minute, 1.0), RATE_PER_MINUTE)

    def offer(self, now: float, wake: Wake) -> None:
        """Make a wake pending; it is merged with one that still waits."""
        if self.disabled:
            return
        before = self.pending
        if before is not None:
            wake = _merged(before, now - self._offered_at, wake)
        self.pending, self._offered_at = wake, now

    def deadline(self) -> float | None:
        """Return when to begin the next attempt (possibly in the past), None without one."""
        return None if self.pending is None or self.in_flight is not None or self.disabled else self._next

    def begin(self, now: float) -> Wake:
        """Begin the attempt that is due; return its wake with its current age."""
        assert self.pending is not None
        wake, self.pending = self.pending, None
        waited_ms = max(0, round((now - self._offered_at) * 1000))
        self.in_flight = msgspec.structs.replace(wake, age_ms=wake.age_ms + waited_ms)
        self._offered_at = now
        self._next = now + self._interval
        return self.in_flight

    def ended(self, now: float, outcome: Outcome, *, waits: bool) -> None:
        """Record the outcome of the attempt; ``waits`` is whether work waits in the queue now."""
        tried, self.in_flight = self.in_flight, None
        if outcome.delivered:
            self.failures = self.attempts = 0
            self.delivered += 1
            return
        self.failures += 1
        self.attempts += 1
        if outcome.gone:
            self.disabled = True
            self.pending = None
            return
        pause = SCHEDULE_S[min(self.failures, len(SCHEDULE_S) - 1)]
        if self.attempts >= len(SCHEDULE_S) and not waits:
            self.attempts = 0
            self.dropped += self.pending is None
        elif tried is not None and self.pending is None:
            # Otherwise a newer wake is pending, which includes the failed one.
            self.pending = tried
        # Only longer: a shorter pause would violate `Retry-After`.
        pause *= 1.0 + 0.2 * self._draw()
        if outcome.retry_after_s is not None:
            pause = max(pause, min(outcome.retry_after_s, RETRY_AFTER_MAX_S))
        self._next = max(self._next, now + pause)


def _merged(before: Wake, waited_s: float, wake: Wake) -> Wake:
    return msgspec.structs.replace(
        wake,
        size=merged_size(before.size, wake.size, wake.reason),
        age_ms=max(wake.age_ms, before.age_ms + max(0, round(waited_s * 1000))),
        traceparent=wake.traceparent or before.traceparent,
        traces=several(joined(before, wake)),
    )


def retry_after(text: str | None, wall_now: float) -> float | None:
    """Parse ``Retry-After``, seconds or a date (RFC 9110 10.2.3); None if absent or invalid."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - wall_now)
    except (ValueError, TypeError, OverflowError):
        return None
