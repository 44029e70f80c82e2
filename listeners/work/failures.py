"""Receives and other calls that keep failing: how often to log them, and which failure ends the worker."""

from __future__ import annotations

from typing import Final

from bridge.contract.errors import ConfigurationError

AGAIN_S: Final = 60.0
"""One line in so many seconds at most, however many receives fail."""


class StoreReached:
    """Whether a listener's store has ever answered; all its queues share one."""

    __slots__ = ("answered",)

    def __init__(self) -> None:
        self.answered = False


class RepeatedFailure:
    """What goes wrong again and again: told at once, then once in `AGAIN_S` with the number of times."""

    __slots__ = ("_told", "_told_at", "_untold")

    def __init__(self) -> None:
        self._told = False
        self._told_at: float | None = None
        self._untold = 0

    def failed(self, now: float) -> int:
        """Count one more; return how many to tell of, those not told of before included, or 0 to keep quiet."""
        self._untold += 1
        if self._told_at is not None and now - self._told_at < AGAIN_S:
            return 0
        self._told, self._told_at = True, now
        count, self._untold = self._untold, 0
        return count

    def works(self) -> bool:
        """Hear that it went well; say whether to tell, because the last that was told is that it does not."""
        told, self._told = self._told, False
        return told


class ReceiveFailures(RepeatedFailure):
    """The receives of one queue that fail."""

    __slots__ = ("_reach", "since")

    def __init__(self, reach: StoreReached | None = None) -> None:
        super().__init__()
        self._reach = reach or StoreReached()
        self.since: float | None = None
        """When the first receive failed since one was last answered, for the bridge to show."""

    def begins(self, now: float) -> None:
        """Hear that a receive was not answered, whether it is told of or not."""
        if self.since is None:
            self.since = now

    def answered(self) -> bool:
        """Hear that the store answered; say whether to tell that it works again."""
        self._reach.answered = True
        self.since = None
        return self.works()

    def ends(self, error: Exception) -> bool:
        """Say whether a worker should end with this error: a client that is missing, an address that cannot be used.

        Not once the store has answered, for then the address is right, and what changed there may change back. Not
        where the error says that another try may do either: tables that are missing are made while workers run.
        """
        return isinstance(error, ConfigurationError) and not error.retryable and not self._reach.answered
