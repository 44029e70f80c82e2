"""The classes of failure: from what a handler raised to whether another attempt can help.

Three things go wrong with a message. A **transient** failure passes by itself: the message comes again after pauses
that grow, so that its attempts outlast an outage of minutes (`listeners.core.retry_policy`). A **permanent** one does
not: the message is buried at once. A **crash** says nothing at all: its message re-appears when the lease ends, and is
buried when it was handed out too often (`listeners.core.settle.exhausted`).

Most exceptions do not tell which they are. Those are **unclear**: they are repeated as transient ones are, for they
might be either, where the policy does not say otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Final

from bridge.contract.errors import BlobNotFound, QueuebellError, Unsupported, said


class Failure(enum.Enum):
    """What an exception says about the next attempt."""

    __hash__ = object.__hash__  # an enumeration's own is a call of Python's for each look-up

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNCLEAR = "unclear"


Classify = Callable[[BaseException], Failure]
"""A rule that tells the class of what a handler raised; it must not raise."""

CHAIN_MAX: Final = 8
RETRY_AFTER_MAX_S: Final = 3600.0

_BUSY_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
# Errors of a file or a name that are `OSError` by inheritance, and no sign of a weak network.
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
    """Tell the class of an exception: the default rule of a listener.

    Transient: `TimeoutError`, `ConnectionError` and the other `OSError` of sockets; our own errors that are retryable;
    an HTTP status of 408, 425, 429, 500, 502, 503 or 504, as clients carry it in ``status`` or ``status_code``, theirs
    or their ``response``'s; and what says "503 Server Busy", "Connection closed by host", "throttled" or the like.
    Permanent: what this project knows no attempt to change, a missing blob or a store that cannot do what was asked. An
    exception raised ``from`` another is of that one's class; a group is of the class that all its members have.
    Everything else is unclear: a `ValueError` may be a bad message, or a bug that the next version mends.
    """
    for link in _chain(error):
        failure = _classify(link)
        if failure is not Failure.UNCLEAR:
            return failure
    return Failure.UNCLEAR


def retry_after(error: BaseException) -> float | None:
    """Return for how many seconds (0 to 3600) the error asks to be left alone in ``retry_after``, or None."""
    for link in _chain(error):
        seconds = _attribute(link, "retry_after")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0:
            return min(RETRY_AFTER_MAX_S, float(seconds))
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
    """Return an attribute of what is foreign, None where there is none or it cannot be had."""
    try:
        return getattr(bearer, name)
    except Exception:  # noqa: BLE001 - it is not there, or a property that raises what it likes
        return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and what it was explicitly raised from."""
    link: BaseException | None = error
    for _ in range(CHAIN_MAX):
        if link is None:
            return
        yield link
        link = link.__cause__
