"""The moments that one wake machine waits for, besides the dead-man's, and how long each wait should be."""

from __future__ import annotations

import heapq
import math
from typing import Final

from bridge.contract.backoff import Backoff, Draw

BUCKETS: Final = 32
BUCKET_MIN_S: Final = 1.0
POLL_CAP_S: Final = 30.0
"""Longest pause between polls for want of a bridge, and between tries of a store that fails (L9, L11)."""


class Waits:
    """When to try a store again, when to poll, and when messages that nobody here holds come back.

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

    def try_again(self, now: float) -> None:
        """Wait before the store is asked again."""
        self.retry = now + min(self._retries.miss(self._draw), POLL_CAP_S)

    def poll_again(self, now: float, next_visible: float | None, *, capped: bool) -> None:
        """Wait before the next poll, but not past the moment when the store said that more becomes visible."""
        pause = self._polls.miss(self._draw)
        pause = min(pause, POLL_CAP_S) if capped else pause
        self.poll = now + (pause if next_visible is None else min(pause, next_visible))

    def poll_first(self, now: float) -> None:
        """Wait U(0, cap) before the first poll without a bridge, so that a fleet does not poll in step (L9)."""
        self._polls.hit()
        self.poll = now + POLL_CAP_S * self._draw()

    def found_work(self) -> None:
        """Begin the back-offs anew: there was work."""
        self._polls.hit()
        self._retries.hit()

    def found_answer(self) -> None:
        """Begin the back-off of tries anew: the store answers."""
        self._retries.hit()

    def bridge_came(self, now: float) -> None:
        """Begin the back-off of tries anew: what kept the bridge away mostly kept the store away too."""
        self._retries.hit()
        if self.retry is not None:
            standing = self.retry
            self.try_again(now)
            self.retry = min(self.retry, standing)

    def look(self) -> None:
        """Forget retry and poll: a look is due at once."""
        self.retry = self.poll = None

    def comes_back(self, at: float, reason: str) -> None:
        """Note messages that become visible at ``at``: unknown receives, delayed releases, lapsed leases (L6, L7)."""
        heapq.heappush(self._returns, (at, reason))

    def may_come_back(self, now: float, at: float) -> None:
        """Note what a receive of unknown outcome may have leased until ``at`` (L6).

        Rounded up to one of some 32 moments until then, so that an hour of lost answers does not become an hour of
        looks, one for each.
        """
        width = max(BUCKET_MIN_S, (at - now) / BUCKETS)
        bucket = math.ceil(at / width) * width
        if (bucket, "lease") not in self._returns:
            self.comes_back(bucket, "lease")

    def returns(self) -> list[float]:
        """Return all such moments."""
        return [at for at, _ in self._returns]

    def returned(self, now: float) -> str | None:
        """Take all that have come back by ``now``; return why the last of them did, None if there are none."""
        reason = None
        while self._returns and now >= self._returns[0][0]:
            reason = heapq.heappop(self._returns)[1]
        return reason

    def deadline(self) -> float | None:
        """Return the first moment of all."""
        times = [at for at in (self.retry, self.poll) if at is not None]
        if self._returns:
            times.append(self._returns[0][0])
        return min(times, default=None)
