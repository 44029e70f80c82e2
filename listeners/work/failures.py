"""Receives and other calls that keep failing: how often to log them, and which failure ends the worker."""

from __future__ import annotations

from typing import Final

from queuebell.bridge.contract.errors import ConfigurationError

AGAIN_S: Final = 60.0
"""At most one log line in so many seconds, however many calls fail."""


class StoreReached:
    """Whether a listener's store has ever answered; all its queues share one."""

    __slots__ = ("answered",)

    def __init__(self) -> None:
        self.answered = False


class RepeatedFailure:
    """Decides when to log a failure that repeats: immediately, then once in `AGAIN_S` with the number of times."""

    __slots__ = ("_logged", "_logged_at", "_unlogged")

    def __init__(self) -> None:
        self._logged = False
        self._logged_at: float | None = None
        self._unlogged = 0

    def failed(self, now: float) -> int:
        """Count one more; return how many to log, including those not logged before, or 0 to stay silent."""
        self._unlogged += 1
        if self._logged_at is not None and now - self._logged_at < AGAIN_S:
            return 0
        self._logged, self._logged_at = True, now
        count, self._unlogged = self._unlogged, 0
        return count

    def works(self) -> bool:
        """Record a success; return whether to log it, because a failure was logged last."""
        logged, self._logged = self._logged, False
        return logged


class ReceiveFailures(RepeatedFailure):
    """The receives of one queue that fail."""

    __slots__ = ("_reach", "since")

    def __init__(self, reach: StoreReached | None = None) -> None:
        super().__init__()
        self._reach = reach or StoreReached()
        self.since: float | None = None
        """When the first receive failed since the last answer, for the bridge to show."""

    def begins(self, now: float) -> None:
        """Record that a receive was not answered, whether it is logged or not."""
        if self.since is None:
            self.since = now

    def answered(self) -> bool:
        """Record an answer of the store; return whether to log that it works again."""
        self._reach.answered = True
        self.since = None
        return self.works()

    def ends(self, error: Exception) -> bool:
        """Return whether a worker should end with this error: a client that is missing, an address that cannot be used.

        Not once the store has answered: its address is right, and what changed there may change back. Not where the
        error is retryable: missing tables can be created while workers run.
        """
        return isinstance(error, ConfigurationError) and not error.retryable and not self._reach.answered
