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
UNSEEN_MAX: Final = 10
"""How many hand-outs beyond ``max_attempts`` may have come to nothing for other reasons, on a store that counts all."""

_TOLD: Final = 4
"""The pauses to come that are told one by one."""


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


class Delete(msgspec.Struct, frozen=True):
    """Remove the message: it is done."""


class GiveBack(msgspec.Struct, frozen=True):
    """Release the message, visible again after so many seconds."""

    after_s: float


class Bury(msgspec.Struct, frozen=True):
    """Move the message to the poison queue, with these facts (`bridge.contract.burial`).

    As an outcome: no attempt will help, as the handler said, or because there is no body to handle.
    """

    reason: str
    failure: str = POISONED
    error: str | None = None
    trace: str | None = None


class Replay(msgspec.Struct, frozen=True):
    """Put the message on ``queue`` (None: where it came from), visible after ``after_s``, and delete it here."""

    after_s: float = 0.0
    queue: str | None = None


Outcome = Succeeded | Failed | WantsRetry | Bury | Replay
Verdict = Delete | GiveBack | Bury | Replay


def verdict(outcome: Outcome, attempt: int, max_attempts: int, can_bury: bool, draw: Draw) -> Verdict:
    """Decide what becomes of a message.

    ``attempt`` is 1 for the first; at ``max_attempts`` (0 = never) a message that did not succeed is buried, whether
    its handler failed or asked for a retry: the store counts both alike. A permanent failure is buried at once, a
    transient one waits longer each time. Without a poison queue (``can_bury`` False: this *is* one) it is given back
    instead, for nothing may be lost. A replay is no failure, and is done at any attempt.
    """
    if isinstance(outcome, Failed) and outcome.failure is Failure.PERMANENT:
        outcome = Bury(outcome.reason, PERMANENT, outcome.error, outcome.trace)
    if isinstance(outcome, Succeeded):
        return Delete()
    if isinstance(outcome, Replay):
        return outcome
    if isinstance(outcome, Bury):
        return outcome if can_bury else GiveBack(RETRY_CAP_S)
    if can_bury and max_attempts and attempt >= max_attempts:
        error, trace = (outcome.error, outcome.trace) if isinstance(outcome, Failed) else (None, None)
        return Bury(f"attempt {attempt} of {max_attempts}: {why(outcome)}", EXHAUSTED, error, trace)
    if isinstance(outcome, WantsRetry) and outcome.after is not None:
        return GiveBack(outcome.after)
    if isinstance(outcome, Failed) and outcome.failure is Failure.TRANSIENT:
        return GiveBack(max(outcome.after or 0.0, transient_pause(attempt, draw)))
    return GiveBack(retry_pause(attempt, draw))


def schedule(failed: Failed, attempt: int, max_attempts: int, can_bury: bool) -> str:
    """Return in words what follows a failed attempt by `verdict`; of each pause the middle of its spread."""
    if can_bury and failed.failure is Failure.PERMANENT:
        return "it is buried, for no further attempt would change that"
    last = max_attempts if can_bury else 0
    if last and attempt >= last:
        return f"it is buried: that was attempt {attempt} of {last}"
    if failed.failure is Failure.PERMANENT:
        return f"again in {RETRY_CAP_S:g} s, and so on: a poison queue keeps it until it succeeds"
    transient = failed.failure is Failure.TRANSIENT
    pause = transient_pause if transient else retry_pause
    pauses = [pause(number, lambda: 0.5) for number in range(attempt, last if last else attempt + _TOLD + 1)]
    if transient and failed.after is not None:
        pauses[0] = max(failed.after, pauses[0])
    told = [f"{each:g}" for each in pauses[:_TOLD]]
    then = f", then {', '.join(told[1:])} s{' and longer' if len(pauses) > _TOLD else ''}" if len(pauses) > 1 else ""
    if not last:
        cap = TRANSIENT_CAP_S if transient else RETRY_CAP_S
        return f"next in about {told[0]} s{then}, at most every {cap:g} s, until it succeeds"
    total = sum(pauses)
    return (
        f"next in about {told[0]} s{then}; buried after attempt {last}, in about "
        f"{total:{'.0f' if total >= 10 else 'g'}} s altogether"
    )


def exhausted(attempt: int, max_attempts: int, can_bury: bool, *, starts: bool = True) -> Bury | None:
    """Bury before handling what was handed out more often than allowed: its handler never lived to say anything.

    ``starts`` says that the store counts starts of handlers, for what no handler ended was given back uncounted. Where
    it counts stops, exports and lost answers alike, a message has `UNSEEN_MAX` more: each time it is handled, and
    buried if that fails, but one that kills its worker each time must come to an end as well.
    """
    allowed = max_attempts if starts else max_attempts + UNSEEN_MAX
    if can_bury and max_attempts and attempt > allowed:
        return Bury(f"handed out {attempt} times, of {max_attempts} allowed, without an outcome", NO_OUTCOME)
    return None


def why(outcome: Outcome) -> str:
    """Return in words why an attempt did not end its message."""
    return outcome.reason if isinstance(outcome, Failed | Bury) else "asked for another attempt"


def retry_pause(attempt: int, draw: Draw) -> float:
    """Return the seconds before attempt ``attempt + 1``: 0.5 s, doubling, +-20 %, 30 s at most."""
    return min(RETRY_CAP_S, RETRY_FIRST_S * 2.0 ** min(attempt - 1, 32) * (0.8 + 0.4 * draw()))


def transient_pause(attempt: int, draw: Draw) -> float:
    """Return the seconds to wait after a transient failure: 0.5 s, four-fold each time, +-20 %, 300 s at most.

    The four pauses of the default five attempts come to 42 s, so that a service that is throttling or being moved is
    back before the message is buried.
    """
    return min(TRANSIENT_CAP_S, RETRY_FIRST_S * 4.0 ** min(attempt - 1, 16) * (0.8 + 0.4 * draw()))
