"""When a webhook is tried, tried again, or left alone; pure, and the same for every endpoint.

A wake is worthless once its queue was drained, so none is kept for hours as Standard Webhooks would: it is tried at
once, after 1, 5, 15 and 60 seconds, and then every 60 for as long as work waits there; else it is left to the next
wake. One wake per endpoint is pending, the newest; a flood of triggers does not bring an endpoint that fails more than
one request per pause.
"""

from __future__ import annotations

import email.utils

import msgspec

from bridge.contract.backoff import Draw
from bridge.contract.sources import merged_size
from bridge.contract.trace_context import joined, several
from bridge.contract.wire import Wake

SCHEDULE_S = (0.0, 1.0, 5.0, 15.0, 60.0)
RETRY_AFTER_MAX_S = 3600.0
RATE_PER_MINUTE = 600
"""What we ask to be allowed, and keep to where nothing was said."""


class Outcome(msgspec.Struct, frozen=True):
    """How one attempt ended: ``status`` of the answer, or None and why there was none."""

    status: int | None
    detail: str = ""
    retry_after_s: float | None = None

    @property
    def delivered(self) -> bool:
        """Only 2xx is success; 3xx is not followed (S27)."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """410: the endpoint wants no more, ever (S30)."""
        return self.status == 410


class Deliveries:
    """What one endpoint is owed; times are seconds of one monotonic clock."""

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
        """Attempts made for what is pending."""
        self.failures = 0
        """Attempts that failed since the last success."""
        self.delivered = 0
        self.dropped = 0
        """Wakes that were left to the next one after their last attempt, for nothing waits any more."""
        self.disabled = False

    def allow(self, per_minute: float) -> None:
        """Keep to a rate that the endpoint granted (S29); never faster than our own."""
        self._interval = 60.0 / min(max(per_minute, 1.0), RATE_PER_MINUTE)

    def offer(self, now: float, wake: Wake) -> None:
        """Have this wake delivered; it takes the place of one that still waits, and its work with it."""
        if self.disabled:
            return
        before = self.pending
        if before is not None:
            wake = _merged(before, now - self._offered_at, wake)
        self.pending, self._offered_at = wake, now

    def deadline(self) -> float | None:
        """Return when to begin the next attempt (perhaps in the past), None while there is none to make."""
        return None if self.pending is None or self.in_flight is not None or self.disabled else self._next

    def begin(self, now: float) -> Wake:
        """Begin the attempt that is due and return what to send, as old as it is by now."""
        assert self.pending is not None
        wake, self.pending = self.pending, None
        waited_ms = max(0, round((now - self._offered_at) * 1000))
        self.in_flight = msgspec.structs.replace(wake, age_ms=wake.age_ms + waited_ms)
        self._offered_at = now
        self._next = now + self._interval
        return self.in_flight

    def ended(self, now: float, outcome: Outcome, *, waits: bool) -> None:
        """Take note of how the attempt ended; ``waits`` says whether work waits in the queue now."""
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
            # Otherwise a newer wake is there, and says all that the one that failed did.
            self.pending = tried
        # Later only: a spread that shortens would break `Retry-After`.
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
    """Read a ``Retry-After``, seconds or a date (RFC 9110 10.2.3); None for absent and for nonsense."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - wall_now)
    except (ValueError, TypeError, OverflowError):
        return None
