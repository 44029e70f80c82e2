"""Whether the machine slept (B15): time passed that the clock of all timers did not count."""

from __future__ import annotations


class SuspendWatch:
    """Compares a clock that stands still while the machine is suspended with one that does not.

    Both come from outside, read at the same moment; only how their difference grows matters. An event loop that lags
    or a process that is stopped changes neither, and is no gap.
    """

    __slots__ = ("_behind",)

    def __init__(self) -> None:
        self._behind: float | None = None

    def observe(self, monotonic: float, boottime: float, allowed_s: float) -> float:
        """Return for how many seconds the machine slept since it was told so last; 0 for ``allowed_s`` or less.

        Short sleeps add up until they are worth a gap: each of them may have lost a trigger.
        """
        behind = boottime - monotonic
        if self._behind is None or behind < self._behind:
            self._behind = behind
            return 0.0
        slept = behind - self._behind
        if slept <= allowed_s:
            return 0.0
        self._behind = behind
        return slept
