"""Choose among several equal bridges; pure: time and chance are arguments.

For users that make one request or session after the other. Unused addresses are not probed: their state shows when they
are tried.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

from queuebell.bridge.contract.backoff import Draw, FullJitter

REST_FIRST_S: Final = 0.1
REST_CAP_S: Final = 5.0
RETRY_AFTER_S_MAX: Final = 60.0
"""The longest requested pause of an address that is respected."""
TRY_S: Final = 2.0
"""Time-out of a connection to one of several, so that one that hangs does not block all."""

Address = TypeVar("Address", bound=Hashable)


_seconds = re.compile("[0-9]{1,6}", re.ASCII).fullmatch


class Outcome(enum.Enum):
    """The outcome of a request to one address."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """Rejected (401, 403): an equal bridge would do the same."""
    NOT_DONE = "not done"
    """Not reached, or not carried out (503, 429)."""
    UNKNOWN = "unknown"
    """Sent, but not answered."""


class Failover(Generic[Address]):
    """The addresses of equal bridges: the first that answers is used until it fails, then the next one.

    The initial order is random. An address that failed comes last, and pauses: with full jitter from 0.1 s to 5 s, or
    as long as it requests. A pausing address is tried only if no other is left in a round, so a single address is tried
    each time; pauses between rounds are up to the caller.
    """

    __slots__ = ("_before", "_current", "_draw", "_rests", "_turns", "several")

    def __init__(self, addresses: Sequence[Address], draw: Draw) -> None:
        self._turns = list(addresses)
        self.several = len(self._turns) > 1
        """Whether there is more than one address."""
        for last in range(len(self._turns) - 1, 0, -1):
            chosen = min(last, int(draw() * (last + 1)))
            self._turns[last], self._turns[chosen] = self._turns[chosen], self._turns[last]
        self._draw = draw
        self._rests: dict[Address, tuple[FullJitter, float]] = {}
        """Back-off and end of the pause of addresses whose last request failed."""
        self._current: Address | None = None
        self._before: Address | None = None

    def round(self, now: float) -> list[Address]:
        """Return all addresses in the order of attempts: the one in use, those not pausing, those pausing."""
        if not self._rests:
            return list(self._turns)
        return sorted(self._turns, key=lambda one: max(now, self._until(one)))

    def record(
        self,
        address: Address,
        outcome: Outcome,
        now: float,
        *,
        repeatable: bool = False,
        retry_after: float | None = None,
    ) -> bool:
        """Record the outcome of a request; return whether it may be sent to the next address of the round.

        ``repeatable`` requests may be carried out twice; ``retry_after`` is the requested pause in seconds.
        """
        if outcome is Outcome.ANSWERED:
            self._rests.pop(address, None)
            if self._current is None:
                # A late answer of another address changes nothing.
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
        """Return the address used before and the current one, once after each change; else None."""
        before, now = self._before, self._current
        if now is None or now == before:
            return None
        self._before = now
        return None if before is None else (before, now)

    def _until(self, address: Address) -> float:
        rest = self._rests.get(address)
        return -math.inf if rest is None else rest[1]


def retry_after_s(header: str | None) -> float | None:
    """Return a ``Retry-After`` in seconds; None if missing, or a date."""
    return float(header) if header is not None and _seconds(header) else None
