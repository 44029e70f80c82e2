"""The retry policy: how often a message is handled, and how long after a failed attempt the next one comes."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from bridge.contract.backoff import Draw
from bridge.contract.errors import BadInput
from listeners.core.failure import Failure

ATTEMPTS: Final = 5
ATTEMPTS_MAX: Final = 2**63 - 1
PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 604_800
FACTOR_MAX: Final = 100


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How many attempts a message has, and the pauses between them.

    After ``attempts`` that failed (0 is never) it is buried. The first pause is ``first_s`` seconds, each further one
    ``factor`` (1 to 100) times as long, up to ``ceiling_s``; both are from 0.001 to 604800. ``jitter`` (0 to 1) draws
    each pause from so much below to so much above itself, never above the ceiling. ``transient`` is the whole policy of
    transient failures, where it is another one. A ``retry_after`` that is longer and a `Retry(after)` count instead of
    a pause. Raises `BadInput` for what cannot be.
    """

    attempts: int = ATTEMPTS
    first_s: float = 0.5
    ceiling_s: float = 120.0
    factor: float = 6.0
    jitter: float = 0.2
    transient: RetryPolicy | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("first_s", PAUSE_S_MIN, PAUSE_S_MAX),
            ("ceiling_s", PAUSE_S_MIN, PAUSE_S_MAX),
            ("factor", 1, FACTOR_MAX),
            ("jitter", 0, 1),
        ):
            number: object = getattr(self, name)
            fits = isinstance(number, int | float) and not isinstance(number, bool) and low <= number <= high
            _check(fits, f"{name} is from {low} to {high}")
        _check(self.first_s <= self.ceiling_s, f"first_s is at most ceiling_s, which is {self.ceiling_s:g}")
        counts = type(self.attempts) is int and 0 <= self.attempts <= ATTEMPTS_MAX
        _check(counts, f"attempts (max_attempts) is from 0 (never bury) to {ATTEMPTS_MAX}")
        other: object = self.transient
        _check(
            other is None or (isinstance(other, RetryPolicy) and other.transient is None),
            "transient is a RetryPolicy without another in it, or None",
        )

    def of(self, failure: Failure) -> RetryPolicy:
        """Return the policy for a class of failure."""
        return (self.transient if failure is Failure.TRANSIENT else None) or self

    @property
    def attempts_max(self) -> int:
        """The attempts that failures of any class may have; 0 where one of them never buries."""
        counts = (self.attempts, (self.transient or self).attempts)
        return max(counts) if all(counts) else 0

    def pause(self, attempt: int, draw: Draw) -> float:
        """Return the seconds between a failed attempt, 1 or more, and the next one."""
        middle = self.middle(attempt)
        shortest = middle * (1 - self.jitter)
        return shortest + (min(self.ceiling_s, middle * (1 + self.jitter)) - shortest) * draw()

    def middle(self, attempt: int) -> float:
        """Return that pause as it is without jitter."""
        steps = attempt - 1
        # A power that is not taken cannot overflow.
        return min(self.ceiling_s, self.first_s * self.factor**steps) if steps < self._climbs() else self.longest_s

    @property
    def longest_s(self) -> float:
        """The pause, without jitter, that no other one exceeds."""
        return self.ceiling_s if self.factor > 1 else self.first_s

    def lasts_s(self) -> float:
        """Return the seconds that all pauses come to, without jitter; infinite where no attempt is the last."""
        if not self.attempts:
            return math.inf
        pauses = self.attempts - 1
        climbing = min(pauses, self._climbs())
        growth = math.log(self.factor)
        climb = math.expm1(growth * climbing) / math.expm1(growth) if climbing else 0.0
        return self.first_s * climb + self.longest_s * (pauses - climbing)

    def _climbs(self) -> int:
        """Return how many pauses are shorter than the longest."""
        return math.ceil(math.log(self.ceiling_s / self.first_s) / math.log(self.factor)) if self.factor > 1 else 0


def policy_of(retry: RetryPolicy | None, max_attempts: int = ATTEMPTS) -> RetryPolicy:
    """Return the policy that a listener was given, the default where it was given none.

    Raises `BadInput` where ``max_attempts`` is neither the default nor the policy's number.
    """
    if retry is None:
        return RetryPolicy(attempts=max_attempts)
    if not isinstance(retry, RetryPolicy):
        raise TypeError("retry: is a RetryPolicy, as in RetryPolicy(attempts=20), or None")
    _check(
        max_attempts in (ATTEMPTS, retry.attempts),
        f"max_attempts is {max_attempts}, and attempts of the policy is {retry.attempts}: leave max_attempts out",
    )
    return retry


def _check(holds: bool, detail: str) -> None:
    if not holds:
        raise BadInput("bad_parameter", f"retry: {detail}")
