"""Which of several equal bridges is asked; pure: time and chance are arguments.

Kept by whoever makes one request or session after another. Nobody is asked whether it is there: an address that is not
in use costs nothing, and is found to be gone or back when its turn comes.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

from bridge.contract.backoff import Draw, FullJitter

REST_FIRST_S: Final = 0.1
REST_CAP_S: Final = 5.0
RETRY_AFTER_S_MAX: Final = 60.0
"""The longest that an address is left alone because it said so."""
TRY_S: Final = 2.0
"""How long one of several may take to be reached: one that hangs is no reason to reach none."""

Address = TypeVar("Address", bound=Hashable)


_seconds = re.compile("[0-9]{1,6}", re.ASCII).fullmatch


class Outcome(enum.Enum):
    """What became of a request to one address."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """It wants nothing of us (401, 403): an equal bridge would say the same."""
    NOT_DONE = "not done"
    """It could not be reached, or did nothing of it and says so (503, 429)."""
    UNKNOWN = "unknown"
    """It was asked, and no answer came."""


class Failover(Generic[Address]):
    """The addresses of equal bridges: the first that answers is kept, and the next is asked when it is gone.

    They are begun at random. One that failed comes after all others, and rests: with full jitter from 0.1 s to 5 s, or
    for as long as it asks. One that rests is asked only where nobody else is left in a round, so that a single address
    is asked each time; pausing between rounds is its user's business.
    """

    __slots__ = ("_before", "_current", "_draw", "_rests", "_turns")

    def __init__(self, addresses: Sequence[Address], draw: Draw) -> None:
        self._turns = list(addresses)
        for last in range(len(self._turns) - 1, 0, -1):
            chosen = min(last, int(draw() * (last + 1)))
            self._turns[last], self._turns[chosen] = self._turns[chosen], self._turns[last]
        self._draw = draw
        self._rests: dict[Address, tuple[FullJitter, float]] = {}
        """Of those that failed when they were last asked: the back-off, and until when they rest."""
        self._current: Address | None = None
        self._before: Address | None = None

    @property
    def several(self) -> bool:
        """Whether there is another one to ask."""
        return len(self._turns) > 1

    def round(self, now: float) -> list[Address]:
        """Return all in the order in which they are to be asked: the one in use, who does not rest, and who does."""
        if not self._rests:
            return list(self._turns)
        return sorted(self._turns, key=lambda one: max(now, self._until(one)))

    def tell(
        self,
        address: Address,
        outcome: Outcome,
        now: float,
        *,
        repeatable: bool = False,
        retry_after: float | None = None,
    ) -> bool:
        """Hear what became of a request, and say whether the same one may be made to the next of the round.

        ``repeatable`` is what may be carried out twice; ``retry_after`` for how many seconds it asks to be left alone.
        """
        if outcome is Outcome.ANSWERED:
            self._rests.pop(address, None)
            if self._current is None:
                # A late answer of another one moves nobody.
                self._current = address
                self._turns.remove(address)
                self._turns.insert(0, address)
            return False
        backoff, _ = self._rests.get(address, (None, 0.0))
        backoff = backoff or FullJitter(REST_FIRST_S, REST_CAP_S)
        asked = 0.0 if retry_after is None else min(max(0.0, retry_after), RETRY_AFTER_S_MAX)
        self._rests[address] = backoff, max(now + max(asked, backoff.miss(self._draw)), self._until(address))
        self._turns.remove(address)
        self._turns.append(address)
        if address == self._current:
            self._current = None
        return outcome is Outcome.NOT_DONE or (outcome is Outcome.UNKNOWN and repeatable)

    def changed(self) -> tuple[Address, Address] | None:
        """Return, once for each change, whom was in use before and who is now; None where it is as it was."""
        before, now = self._before, self._current
        if now is None or now == before:
            return None
        self._before = now
        return None if before is None else (before, now)

    def _until(self, address: Address) -> float:
        rest = self._rests.get(address)
        return -math.inf if rest is None else rest[1]


def retry_after_s(header: str | None) -> float | None:
    """Read a ``Retry-After`` in seconds; None where there is none, or it is a date."""
    return float(header) if header is not None and _seconds(header) else None
