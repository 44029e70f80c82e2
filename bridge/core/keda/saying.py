"""When a queue is looked at for those who are told whether it is active, and when they are told.

KEDA ignores a change to inactive, and forgets one to active that comes at a bad moment (its scaler is being made anew).
So the level is told and not the edge: again and again, and each change at once.
"""

from __future__ import annotations

import math
from typing import Final

REPEAT_S: Final = 30.0
"""How often it is said although nothing has changed."""
GAP_S: Final = 0.05
"""A queue that changes all the time is looked at so seldom; half of what a change may wait to be said."""


class Saying:
    """The rule of one target; ``now`` is of any clock that does not go back.

    Whatever happens, come back at `deadline`, look, and tell `looked` what was found.
    """

    __slots__ = ("_look_at", "_looked_at", "_said_at", "said")

    def __init__(self, now: float) -> None:
        self.said: bool | None = None
        """What was said last, None before the first time."""
        self._said_at = -math.inf
        self._looked_at = self._look_at = now

    def touched(self, now: float) -> None:
        """Something has happened that may change the answer."""
        self._look_at = min(self._look_at, max(now, self._looked_at + GAP_S))

    def deadline(self) -> float:
        """Return when to look next."""
        return self._look_at

    def repeats(self, now: float) -> bool:
        """Whether what was said is old: a count that it rests on should be made anew."""
        return now >= self._said_at + REPEAT_S

    def looked(self, now: float, active: bool | None, changes_in_s: float | None = None) -> bool:
        """Take what a look found, None where nothing can be told; whether it is to be said now.

        ``changes_in_s``: after so long it will be another, as far as is known.
        """
        self._looked_at = now
        say = active is not None and (active is not self.said or self.repeats(now))
        if say:
            self.said, self._said_at = active, now
        next_s = REPEAT_S if active is None else self._said_at + REPEAT_S - now
        self._look_at = now + max(GAP_S, min(next_s, math.inf if changes_in_s is None else changes_in_s))
        return say
