"""Settling: from what a handler did, and at which attempt, to what happens to the message."""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.contract.backoff import Draw
from listeners.core.failure import Failure

RETRY_FIRST_S: Final = 0.5
RETRY_CAP_S: Final = 30.0
TRANSIENT_CAP_S: Final = 300.0


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned."""


class Failed(msgspec.Struct, frozen=True):
    """The handler raised, or ran out of time; for ``after`` seconds a busy server asked to be left alone."""

    reason: str
    failure: Failure = Failure.UNCLEAR
    after: float | None = None


class WantsRetry(msgspec.Struct, frozen=True):
    """The handler asked for another attempt, ``after`` seconds if it said so."""

    after: float | None = None


class WantsBury(msgspec.Struct, frozen=True):
    """The handler said that no attempt will help, or the payload cannot be decoded."""

    reason: str


class Delete(msgspec.Struct, frozen=True):
    """Remove the message: it is done."""


class GiveBack(msgspec.Struct, frozen=True):
    """Release the message, visible again after so many seconds."""

    after_s: float


class Bury(msgspec.Struct, frozen=True):
    """Move the message to the poison queue."""

    reason: str


Outcome = Succeeded | Failed | WantsRetry | WantsBury
Verdict = Delete | GiveBack | Bury


def verdict(outcome: Outcome, attempt: int, max_attempts: int, can_bury: bool, draw: Draw) -> Verdict:
    """Decide what becomes of a message.

    ``attempt`` is 1 for the first; at ``max_attempts`` (0 = never) a message that did not succeed is buried, whether
    its handler failed or asked for a retry: the store counts both alike. A permanent failure is buried at once, a
    transient one waits longer each time. Without a poison queue (``can_bury`` False: this *is* one) it is given back
    instead, for nothing may be lost.
    """
    if isinstance(outcome, Failed) and outcome.failure is Failure.PERMANENT:
        outcome = WantsBury(outcome.reason)
    if isinstance(outcome, Succeeded):
        return Delete()
    if isinstance(outcome, WantsBury):
        return Bury(outcome.reason) if can_bury else GiveBack(RETRY_CAP_S)
    if can_bury and max_attempts and attempt >= max_attempts:
        why = outcome.reason if isinstance(outcome, Failed) else "asked for another attempt"
        return Bury(f"attempt {attempt} of {max_attempts}: {why}")
    if isinstance(outcome, WantsRetry) and outcome.after is not None:
        return GiveBack(outcome.after)
    if isinstance(outcome, Failed) and outcome.failure is Failure.TRANSIENT:
        return GiveBack(max(outcome.after or 0.0, transient_pause(attempt, draw)))
    return GiveBack(retry_pause(attempt, draw))


def exhausted(attempt: int, max_attempts: int, can_bury: bool) -> Bury | None:
    """Bury before handling what was handed out more often than allowed: its handler never lived to say anything."""
    if can_bury and max_attempts and attempt > max_attempts:
        return Bury(f"handed out {attempt} times, of {max_attempts} allowed, without an outcome")
    return None


def retry_pause(attempt: int, draw: Draw) -> float:
    """Return the seconds before attempt ``attempt + 1``: 0.5 s, doubling, +-20 %, 30 s at most."""
    return min(RETRY_CAP_S, RETRY_FIRST_S * 2.0 ** min(attempt - 1, 32) * (0.8 + 0.4 * draw()))


def transient_pause(attempt: int, draw: Draw) -> float:
    """Return the seconds to wait after a transient failure: 0.5 s, four-fold each time, +-20 %, 300 s at most.

    The four pauses of the default five attempts come to 42 s, so that a service that is throttling or being moved is
    back before the message is buried.
    """
    return min(TRANSIENT_CAP_S, RETRY_FIRST_S * 4.0 ** min(attempt - 1, 16) * (0.8 + 0.4 * draw()))
