"""Settling: from what a handler did, and at which attempt, to what happens to the message."""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.contract.backoff import Draw
from bridge.contract.burial import EXHAUSTED, NO_OUTCOME, PERMANENT, POISONED
from listeners.core.failure import Failure

RETRY_FIRST_S: Final = 0.5
RETRY_CAP_S: Final = 30.0
TRANSIENT_CAP_S: Final = 300.0


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned."""


class Failed(msgspec.Struct, frozen=True):
    """The handler raised, or ran out of time; for ``after`` seconds a busy server asked to be left alone.

    ``error`` is the type of what it raised and ``trace`` the traceback, where there is one.
    """

    reason: str
    failure: Failure = Failure.UNCLEAR
    after: float | None = None
    error: str | None = None
    trace: str | None = None


class WantsRetry(msgspec.Struct, frozen=True):
    """The handler asked for another attempt, ``after`` seconds if it said so."""

    after: float | None = None


class WantsBury(msgspec.Struct, frozen=True):
    """The handler said that no attempt will help, or there is no body to handle; ``failure`` says which."""

    reason: str
    failure: str = POISONED
    error: str | None = None
    trace: str | None = None


class WantsReplay(msgspec.Struct, frozen=True):
    """The handler asked to put the message on ``queue`` (None: where it came from), visible after ``after`` seconds."""

    after: float | None = None
    queue: str | None = None


class Delete(msgspec.Struct, frozen=True):
    """Remove the message: it is done."""


class GiveBack(msgspec.Struct, frozen=True):
    """Release the message, visible again after so many seconds."""

    after_s: float


class Bury(msgspec.Struct, frozen=True):
    """Move the message to the poison queue, with these facts (`bridge.contract.burial`)."""

    reason: str
    failure: str = POISONED
    error: str | None = None
    trace: str | None = None


class Replay(msgspec.Struct, frozen=True):
    """Put the message on a queue again, and delete it here."""

    after_s: float = 0.0
    queue: str | None = None


Outcome = Succeeded | Failed | WantsRetry | WantsBury | WantsReplay
Verdict = Delete | GiveBack | Bury | Replay


def verdict(outcome: Outcome, attempt: int, max_attempts: int, can_bury: bool, draw: Draw) -> Verdict:
    """Decide what becomes of a message.

    ``attempt`` is 1 for the first; at ``max_attempts`` (0 = never) a message that did not succeed is buried, whether
    its handler failed or asked for a retry: the store counts both alike. A permanent failure is buried at once, a
    transient one waits longer each time. Without a poison queue (``can_bury`` False: this *is* one) it is given back
    instead, for nothing may be lost. A replay is no failure, and is done at any attempt.
    """
    if isinstance(outcome, Failed) and outcome.failure is Failure.PERMANENT:
        outcome = WantsBury(outcome.reason, PERMANENT, outcome.error, outcome.trace)
    if isinstance(outcome, Succeeded):
        return Delete()
    if isinstance(outcome, WantsReplay):
        return Replay(outcome.after or 0.0, outcome.queue)
    if isinstance(outcome, WantsBury):
        if not can_bury:
            return GiveBack(RETRY_CAP_S)
        return Bury(outcome.reason, outcome.failure, outcome.error, outcome.trace)
    if can_bury and max_attempts and attempt >= max_attempts:
        error, trace = (outcome.error, outcome.trace) if isinstance(outcome, Failed) else (None, None)
        return Bury(f"attempt {attempt} of {max_attempts}: {why(outcome)}", EXHAUSTED, error, trace)
    if isinstance(outcome, WantsRetry) and outcome.after is not None:
        return GiveBack(outcome.after)
    if isinstance(outcome, Failed) and outcome.failure is Failure.TRANSIENT:
        return GiveBack(max(outcome.after or 0.0, transient_pause(attempt, draw)))
    return GiveBack(retry_pause(attempt, draw))


def exhausted(attempt: int, max_attempts: int, can_bury: bool) -> Bury | None:
    """Bury before handling what was handed out more often than allowed: its handler never lived to say anything."""
    if can_bury and max_attempts and attempt > max_attempts:
        return Bury(f"handed out {attempt} times, of {max_attempts} allowed, without an outcome", NO_OUTCOME)
    return None


def why(outcome: Outcome) -> str:
    """Return in words why an attempt did not end its message."""
    return outcome.reason if isinstance(outcome, Failed | WantsBury) else "asked for another attempt"


def retry_pause(attempt: int, draw: Draw) -> float:
    """Return the seconds before attempt ``attempt + 1``: 0.5 s, doubling, +-20 %, 30 s at most."""
    return min(RETRY_CAP_S, RETRY_FIRST_S * 2.0 ** min(attempt - 1, 32) * (0.8 + 0.4 * draw()))


def transient_pause(attempt: int, draw: Draw) -> float:
    """Return the seconds to wait after a transient failure: 0.5 s, four-fold each time, +-20 %, 300 s at most.

    The four pauses of the default five attempts come to 42 s, so that a service that is throttling or being moved is
    back before the message is buried.
    """
    return min(TRANSIENT_CAP_S, RETRY_FIRST_S * 4.0 ** min(attempt - 1, 16) * (0.8 + 0.4 * draw()))
