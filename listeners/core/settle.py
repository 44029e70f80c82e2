"""Settling: from what a handler did, and at which attempt, to what happens to the message."""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.contract.backoff import Draw
from bridge.contract.burial import EXHAUSTED, NO_OUTCOME, PERMANENT, POISONED
from listeners.core.failure import Failure
from listeners.core.retry_policy import RetryPolicy

STAYS_S: Final = 30.0
"""How long what is on a poison queue is left alone where it can neither be buried nor replayed."""
UNSEEN_MAX: Final = 10
"""How many hand-outs beyond its attempts may have come to nothing for other reasons, on a store that counts all."""

TIMEOUT: Final = "timeout"
"""The class of the failures that `handler_timeout` made."""
_TOLD: Final = 3
"""The pauses after the first that are told one by one."""


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


def verdict(outcome: Outcome, attempt: int, policy: RetryPolicy, can_bury: bool, draw: Draw) -> Verdict:
    """Decide what becomes of a message.

    ``attempt`` is 1 for the first; at the last one of ``policy`` a message that did not succeed is buried, whether its
    handler failed or asked for a retry: the store counts both alike. A permanent failure is buried at once. Without a
    poison queue (``can_bury`` False: this *is* one) it is given back instead, for nothing may be lost. A replay is no
    failure, and is done at any attempt.
    """
    if isinstance(outcome, Failed) and outcome.failure is Failure.PERMANENT:
        outcome = Bury(outcome.reason, PERMANENT, outcome.error, outcome.trace)
    if isinstance(outcome, Succeeded):
        return Delete()
    if isinstance(outcome, Replay):
        return outcome
    if isinstance(outcome, Bury):
        return outcome if can_bury else GiveBack(STAYS_S)
    failed = outcome if isinstance(outcome, Failed) else Failed(why(outcome))
    policy = policy.of(failed.failure)
    if can_bury and policy.attempts and attempt >= policy.attempts:
        return Bury(f"attempt {attempt} of {policy.attempts}: {failed.reason}", EXHAUSTED, failed.error, failed.trace)
    if isinstance(outcome, WantsRetry) and outcome.after is not None:
        return GiveBack(outcome.after)
    return GiveBack(max(_asked(failed), policy.pause(attempt, draw)))


def ended(outcome: Outcome, attempt: int, policy: RetryPolicy, can_bury: bool) -> str:
    """Return in one word what becomes of a message by `verdict`: ``done``, ``retried``, ``buried`` or ``replayed``."""
    match verdict(outcome, attempt, policy, can_bury, lambda: 0.0):
        case Delete():
            return "done"
        case GiveBack():
            return "retried"
        case Bury():
            return "buried"
        case Replay():
            return "replayed"


def schedule(failed: Failed, attempt: int, policy: RetryPolicy, can_bury: bool) -> str:
    """Return in words what follows a failed attempt by `verdict`, after the first one all of it; without jitter."""
    if failed.failure is Failure.PERMANENT:
        if can_bury:
            return "it is buried, for no further attempt would change that"
        return f"again in {STAYS_S:g} s, and so on: a poison queue keeps it until it succeeds"
    policy = policy.of(failed.failure)
    last = policy.attempts if can_bury else 0
    if last and attempt >= last:
        return f"it is buried: that was attempt {attempt} of {last}"
    pause = max(_asked(failed), policy.middle(attempt))
    following = f"next in about {pause:g} s"
    if attempt > 1:
        return f"{following}, as attempt {attempt + 1}{f' of {last}' if last else ''}"
    later = range(2, last if last else 2 + _TOLD)
    if later:
        following += f", then {', '.join(f'{policy.middle(number):g}' for number in later[:_TOLD])} s"
    if not last or len(later) > _TOLD:
        longest = policy.middle(last - 1) if last else policy.longest_s
        following += f" and longer, up to {longest:g} s" if longest > policy.middle(later[_TOLD - 1]) else " and so on"
    if not last:
        return f"{following}, until it succeeds"
    total = round(policy.lasts_s() - policy.first_s + pause, 3)
    return f"{following}; buried after attempt {last}, in about {total:{'.0f' if total >= 10 else 'g'}} s altogether"


def exhausted(attempt: int, most: int, can_bury: bool, *, starts: bool = True) -> Bury | None:
    """Bury before handling what was handed out more often than ``most``: its handler never lived to say anything.

    0 is any number. ``starts`` says that the store counts starts of handlers, for what no handler ended was given back
    uncounted. Where it counts stops, exports and lost answers alike, a message has `UNSEEN_MAX` more: each time it is
    handled, and buried if that fails, but one that kills its worker each time must come to an end as well.
    """
    allowed = most if starts else most + UNSEEN_MAX
    if can_bury and most and attempt > allowed:
        return Bury(f"handed out {attempt} times, of {most} allowed, without an outcome", NO_OUTCOME)
    return None


def why(outcome: Outcome) -> str:
    """Return in words why an attempt did not end its message."""
    return outcome.reason if isinstance(outcome, Failed | Bury) else "asked for another attempt"


def failure_of(outcome: Outcome) -> str | None:
    """Return the class by which a failed attempt is counted: the type of what was raised, or a word; else None."""
    if not isinstance(outcome, Failed | Bury):
        return None
    if outcome.error is not None:
        return TIMEOUT if outcome.error == "HandlerTimeout" else outcome.error
    return outcome.failure if isinstance(outcome, Bury) else outcome.failure.value


def _asked(failed: Failed) -> float:
    """Return for how many seconds at least the message stays away, as a busy server asked."""
    return failed.after or 0.0 if failed.failure is Failure.TRANSIENT else 0.0
