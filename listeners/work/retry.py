"""How an exception becomes a retry: its class, the retry policy, and the verdict on the message.

`classify` puts what a handler raised into one of three classes:

- a **transient** failure passes by itself: the message is retried after growing pauses, so that its attempts outlast an
  outage of minutes;
- a **permanent** failure does not: the message is dead-lettered immediately;
- an **unclear** one may be either, as most exceptions are. It is retried like a transient one unless the policy says
  otherwise.

A crash leaves no exception. Its message reappears when the lease ends, and is dead-lettered when it was handed out too
often (`exhausted`). `RetryPolicy` holds the number of attempts and the pauses; `verdict` decides.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.burial import EXHAUSTED, NO_OUTCOME, PERMANENT, POISONED
from queuebell.bridge.contract.errors import ENDS_THE_PROCESS, BadInput, BlobNotFound, QueuebellError, Unsupported, said

STAYS_S: Final = 30.0
"""Seconds until a message on a poison queue is tried again if it can be neither dead-lettered nor replayed."""
UNSEEN_MAX: Final = 10
"""Deliveries beyond its attempts that may have failed for other reasons, on a store that counts all."""

TIMEOUT: Final = "timeout"
"""The class of the failures that `handler_timeout` made."""
_SHOWN: Final = 3
"""The pauses after the first that are listed one by one."""


class Failure(enum.Enum):
    """What an exception means for the next attempt."""

    __hash__ = object.__hash__  # Enum's own costs a Python call per lookup

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNCLEAR = "unclear"


Classify = Callable[[BaseException], Failure]
"""A rule that returns the class of what a handler raised; it must not raise."""


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned."""


class Failed(msgspec.Struct, frozen=True):
    """The handler raised or timed out; a busy server asked for a pause of ``after`` seconds.

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


class RetryLater(msgspec.Struct, frozen=True):
    """Release the message, visible again after so many seconds."""

    after_s: float


class DeadLetter(msgspec.Struct, frozen=True):
    """Move the message to the poison queue, with these facts (`queuebell.bridge.contract.burial`).

    As an outcome: no attempt will help, as the handler reported, or because there is no body to handle.
    """

    reason: str
    failure: str = POISONED
    error: str | None = None
    trace: str | None = None


class ReplayTo(msgspec.Struct, frozen=True):
    """Put the message on ``queue`` (None: where it came from), visible after ``after_s``, and delete it here."""

    after_s: float = 0.0
    queue: str | None = None


Outcome = Succeeded | Failed | WantsRetry | DeadLetter | ReplayTo
Verdict = Delete | RetryLater | DeadLetter | ReplayTo


def verdict(outcome: Outcome, attempt: int, policy: RetryPolicy, can_bury: bool, draw: Draw) -> Verdict:
    """Decide what happens to a message.

    ``attempt`` is 1 for the first; at the last one of ``policy`` a message that did not succeed is dead-lettered,
    whether its handler failed or asked for a retry: the store counts both alike. So is a permanent failure,
    immediately. Without a poison queue (``can_bury`` False: this *is* one) it is retried later instead, so that nothing
    is lost. A replay is not a failure, and is done at any attempt.
    """
    if isinstance(outcome, Failed) and outcome.failure is Failure.PERMANENT:
        outcome = DeadLetter(outcome.reason, PERMANENT, outcome.error, outcome.trace)
    if isinstance(outcome, Succeeded):
        return Delete()
    if isinstance(outcome, ReplayTo):
        return outcome
    if isinstance(outcome, DeadLetter):
        return outcome if can_bury else RetryLater(STAYS_S)
    failed = outcome if isinstance(outcome, Failed) else Failed(reason_of(outcome))
    policy = policy.of(failed.failure)
    if can_bury and policy.attempts and attempt >= policy.attempts:
        return DeadLetter(
            f"attempt {attempt} of {policy.attempts}: {failed.reason}", EXHAUSTED, failed.error, failed.trace
        )
    if isinstance(outcome, WantsRetry) and outcome.after is not None:
        return RetryLater(outcome.after)
    return RetryLater(max(_asked(failed), policy.pause(attempt, draw)))


def outcome_word(outcome: Outcome, attempt: int, policy: RetryPolicy, can_bury: bool) -> str:
    """Return in one word what `verdict` does with a message: ``done``, ``retried``, ``buried`` or ``replayed``."""
    match verdict(outcome, attempt, policy, can_bury, lambda: 0.0):
        case Delete():
            return "done"
        case RetryLater():
            return "retried"
        case DeadLetter():
            return "buried"
        case ReplayTo():
            return "replayed"


def describe_retry(failed: Failed, attempt: int, policy: RetryPolicy, can_bury: bool) -> str:
    """Describe what follows a failed attempt by `verdict`, without jitter; after the first one the whole schedule."""
    if failed.failure is Failure.PERMANENT:
        if can_bury:
            return "it is dead-lettered: no further attempt would succeed"
        return f"again in {STAYS_S:g} s, and so on: a poison queue keeps it until it succeeds"
    policy = policy.of(failed.failure)
    last = policy.attempts if can_bury else 0
    if last and attempt >= last:
        return f"it is dead-lettered: that was attempt {attempt} of {last}"
    pause = max(_asked(failed), policy.middle(attempt))
    following = f"next in about {pause:g} s"
    if attempt > 1:
        return f"{following}, as attempt {attempt + 1}{f' of {last}' if last else ''}"
    later = range(2, last if last else 2 + _SHOWN)
    if later:
        following += f", then {', '.join(f'{policy.middle(number):g}' for number in later[:_SHOWN])} s"
    if not last or len(later) > _SHOWN:
        longest = policy.middle(last - 1) if last else policy.longest_s
        following += f" and longer, up to {longest:g} s" if longest > policy.middle(later[_SHOWN - 1]) else " and so on"
    if not last:
        return f"{following}, until it succeeds"
    total = round(policy.lasts_s() - policy.first_s + pause, 3)
    in_all = f"{total:{'.0f' if total >= 10 else 'g'}} s altogether"
    return f"{following}; dead-lettered after attempt {last}, in about {in_all}"


def exhausted(attempt: int, most: int, can_bury: bool, *, starts: bool = True) -> DeadLetter | None:
    """Dead-letter what was delivered more often than ``most`` (0: any number), without handling it.

    No handler survived it: what a handler raises is decided by `verdict`. With ``starts`` the store counts only starts
    of handlers. A store that also counts stops, exports and lost answers allows `UNSEEN_MAX` more deliveries.
    """
    allowed = most if starts else most + UNSEEN_MAX
    if can_bury and most and attempt > allowed:
        return DeadLetter(f"handed out {attempt} times, of {most} allowed, without an outcome", NO_OUTCOME)
    return None


def reason_of(outcome: Outcome) -> str:
    """Return why an attempt did not end its message."""
    return outcome.reason if isinstance(outcome, Failed | DeadLetter) else "asked for another attempt"


def failure_name(outcome: Outcome) -> str | None:
    """Return the class by which a failed attempt is counted: the type of the exception, or a word; else None."""
    if not isinstance(outcome, Failed | DeadLetter):
        return None
    if outcome.error is not None:
        return TIMEOUT if outcome.error == "HandlerTimeout" else outcome.error
    return outcome.failure if isinstance(outcome, DeadLetter) else outcome.failure.value


def _asked(failed: Failed) -> float:
    """Return for how many seconds at least the message stays away, as a busy server asked."""
    return failed.after or 0.0 if failed.failure is Failure.TRANSIENT else 0.0


ATTEMPTS: Final = 5
ATTEMPTS_MAX: Final = 2**63 - 1
PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 604_800
FACTOR_MAX: Final = 100


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How many attempts a message has, and the pauses between them.

    After ``attempts`` failures (0 is never) it is dead-lettered. The first pause is ``first_s`` seconds, each further
    one ``factor`` (1 to 100) times as long, up to ``ceiling_s``; both are from 0.001 to 604800. ``jitter`` (0 to 1)
    draws each pause from so much below to so much above itself, never above the ceiling. ``transient`` is the whole
    policy of transient failures, where it is another one. A ``retry_after`` that is longer and a `Retry(after)` count
    instead of a pause. Raises `BadInput` for what cannot be.
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
        """The attempts that failures of any class may have; 0 where one class has no limit."""
        counts = (self.attempts, (self.transient or self).attempts)
        return max(counts) if all(counts) else 0

    def pause(self, attempt: int, draw: Draw) -> float:
        """Return the seconds between a failed attempt, 1 or more, and the next one."""
        middle = self.middle(attempt)
        shortest = middle * (1 - self.jitter)
        return shortest + (min(self.ceiling_s, middle * (1 + self.jitter)) - shortest) * draw()

    def middle(self, attempt: int) -> float:
        """Return that pause without jitter."""
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


CHAIN_MAX: Final = 8
RETRY_AFTER_MAX_S: Final = 3600.0

_BUSY_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
# Errors of a file or a name: `OSError` by inheritance, not signs of a weak network.
_NOT_BY_ITSELF: Final = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_BUSY_WORDS: Final = (
    "server busy",
    "serverbusy",
    "service unavailable",
    "too many requests",
    "throttl",
    "connection closed by",
    "connection was closed",
    "forcibly closed",
    "connection reset",
    "server disconnected",
    "timed out",
)


def classify(error: BaseException) -> Failure:
    """Return the class of an exception: the default rule of a listener.

    Transient: `TimeoutError`, `ConnectionError` and the other `OSError` of sockets; retryable `QueuebellError`;
    an HTTP status of 408, 425, 429, 500, 502, 503 or 504, as clients carry it in ``status`` or ``status_code``, theirs
    or their ``response``'s; and what says "503 Server Busy", "Connection closed by host", "throttled" or the like.
    Permanent: a missing blob, or a store that cannot do what was asked. An exception raised ``from`` another has that
    one's class; a group has the class that all its members share. Everything else is unclear: a `ValueError` may be a
    bad message, or a bug that the next version fixes.
    """
    for link in _chain(error):
        failure = _classify(link)
        if failure is not Failure.UNCLEAR:
            return failure
    return Failure.UNCLEAR


def retry_after(error: BaseException) -> float | None:
    """Return the pause in seconds (0 to 3600) that the error asks for in ``retry_after``, or None."""
    for link in _chain(error):
        seconds = _attribute(link, "retry_after")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0:
            return float(min(RETRY_AFTER_MAX_S, seconds))
    return None


def _classify(error: BaseException) -> Failure:
    if isinstance(error, BaseExceptionGroup):
        classes = dict.fromkeys(map(classify, error.exceptions))
        return next(iter(classes)) if len(classes) == 1 else Failure.UNCLEAR
    if isinstance(error, QueuebellError):
        if error.retryable:
            return Failure.TRANSIENT
        return Failure.PERMANENT if isinstance(error, BlobNotFound | Unsupported) else Failure.UNCLEAR
    status = _status(error)
    if status is not None:
        return Failure.TRANSIENT if status in _BUSY_STATUS else Failure.UNCLEAR
    if isinstance(error, OSError):
        return Failure.UNCLEAR if isinstance(error, _NOT_BY_ITSELF) else Failure.TRANSIENT
    text = said(error)[:1000].lower()
    return Failure.TRANSIENT if any(words in text for words in _BUSY_WORDS) else Failure.UNCLEAR


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that a client's exception carries, of whichever client."""
    for bearer in (error, _attribute(error, "response")):
        for name in ("status", "status_code"):
            status = _attribute(bearer, name)
            if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
                return int(status)
    return None


def _attribute(bearer: object, name: str) -> object:
    """Return an attribute of a foreign object, None where there is none or reading it fails."""
    try:
        return getattr(bearer, name)
    except ENDS_THE_PROCESS:
        raise
    except BaseException:  # noqa: BLE001 - it is not there, or a property that raises what it likes
        return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and what it was explicitly raised from."""
    link: BaseException | None = error
    for _ in range(CHAIN_MAX):
        if link is None:
            return
        yield link
        link = link.__cause__
