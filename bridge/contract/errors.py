"""All errors, each with a stable code and whether a retry can help.

::

    QueuebellError
    ├── BadInput (also ValueError)      invalid input: rejected, nothing changed
    │   └── BadQueueReference
    ├── StoreError                      a queue store failed
    │   ├── StoreUnavailable            retryable; nothing is known to have happened
    │   │   ├── UnknownOutcome          the request may or may not have been carried out
    │   │   ├── Overloaded              too many requests; says when to retry
    │   │   └── KeyUnavailable          the program's `api_key` gave no key; also a ChannelLost
    │   ├── StoreFull                   retryable once there is space
    │   ├── StoreOwned                  another process owns the data file
    │   ├── StoreDamaged                the data file is invalid or damaged
    │   ├── QueueNotFound
    │   ├── NotAllowed                  the key is unknown, or lacks the permission
    │   ├── BlobNotFound                a stored body is missing
    │   └── Conflict                    an entity was changed concurrently
    ├── BusUnavailable                  a trigger did not reach the bridge; retryable
    ├── ChannelLost                     a session with the bridge ended; retryable
    ├── Unsupported                     the store does not support the call
    ├── HandlersStuck                   all handler slots of a worker are occupied by calls that do not return
    ├── Closed                          used after close
    └── ConfigurationError              a setting is wrong; names its key
        ├── NoQueueService              something else answers at the store's address
        ├── UnfitQueue                  an unsuitable stream or consumer (queuebell.bridge.queues.jetstream)
        └── NotPrepared                 the store's tables are missing or old; retryable
"""

from __future__ import annotations

from typing import ClassVar, Final

GIVEN_SHOWN: Final = 60
"""Characters of an invalid text that are shown."""

# The codes of docs/reference/http.md, with the HTTP status that goes with each.
STATUS_BY_CODE: Final[dict[str, int]] = {
    "bad_json": 400,
    "bad_trigger": 400,
    "bad_queue_reference": 400,
    "bad_parameter": 400,
    "too_many_items": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "forbidden_origin": 403,
    "queue_not_found": 404,
    "message_not_found": 404,
    "not_found": 404,
    "unknown_session": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "pop_receipt_mismatch": 409,
    "store_mismatch": 409,
    "message_conflict": 409,
    "conflict": 409,
    "too_large": 413,
    "message_too_large": 413,
    "uri_too_long": 414,
    "unsupported_media_type": 415,
    "unknown_host": 421,
    "too_many_requests": 429,
    "headers_too_large": 431,
    "internal": 500,
    "unsupported": 501,
    "draining": 503,
    "issuer_unavailable": 503,
    "too_many_queues": 503,
    "storage_unavailable": 503,
    "storage_full": 507,
}


ENDS_THE_PROCESS: Final = (KeyboardInterrupt, SystemExit)
"""Exceptions that end the event loop; any other one that foreign code raises ends one call only."""


def said(error: object) -> str:
    """Return the text of an exception, "" without one; survives exceptions whose text cannot be made."""
    try:
        return str(error)
    except ENDS_THE_PROCESS:
        raise
    except BaseException as broken:  # noqa: BLE001 - foreign code; the original error matters more
        return f"(no error text: {type(broken).__name__})"


def named(error: object) -> str:
    """Return an exception's type and text."""
    return f"{type(error).__name__}: {text}" if (text := said(error)) else type(error).__name__


class QueuebellError(Exception):
    """The base class of all errors that Queuebell raises."""

    code: str = "internal"
    retryable: ClassVar[bool] = False

    @property
    def status(self) -> int:
        """The HTTP status that goes with the code."""
        return STATUS_BY_CODE.get(self.code, 500)


class BadInput(QueuebellError, ValueError):
    """The input is invalid; nothing was changed."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class BadQueueReference(BadInput):
    """A queue reference is malformed. The given text is in a note, which clients of a server do not see."""

    def __init__(self, detail: str, given: object = None) -> None:
        super().__init__("bad_queue_reference", detail)
        if isinstance(given, str):
            self.add_note(f"given: '{_cut(given)}'")


def _cut(text: str) -> str:
    """Return the part of a text that is safe to show: printable, and without an address's password."""
    for mark in "?#;":
        text = text.rpartition("@")[2].partition(mark)[0]
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[:GIVEN_SHOWN])
    return shown + ("..." if len(text) > GIVEN_SHOWN else "")


class StoreError(QueuebellError):
    """A queue store failed."""

    code = "storage_unavailable"


class StoreUnavailable(StoreError):
    """The store did not carry the call out; retry after a back-off. After `UnknownOutcome` it may have.

    ``retry_after`` is the requested pause in seconds, None if not given.
    """

    retryable = True

    def __init__(self, detail: str = "", retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class UnknownOutcome(StoreUnavailable):
    """No answer came: the request may have been carried out, or may still be."""


class Overloaded(StoreUnavailable):
    """The store is overloaded; nothing was done. Retry after ``retry_after`` seconds."""

    code = "too_many_requests"


class StoreFull(StoreError):
    """The store is full; acknowledged messages are safe."""

    code = "storage_full"
    retryable = True


class StoreOwned(StoreError):
    """Another process owns the data file."""


class StoreDamaged(StoreError):
    """The data file is damaged, or not a data file of Queuebell."""


class QueueNotFound(StoreError):
    """The queue does not exist in the store; for a listener it is empty."""

    code = "queue_not_found"


class NotAllowed(StoreError):
    """The bridge requires a key and got none that is valid (``unauthenticated``), or the key lacks the permission.

    Nothing was done. A retry may succeed later, as permissions and key files change while programs run.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class BlobNotFound(StoreError):
    """There is no blob with this name."""

    code = "not_found"


class Conflict(StoreError):
    """The entity is not as expected: it exists already, is gone, or was changed concurrently."""

    code = "conflict"


class BusUnavailable(QueuebellError):
    """The bus did not accept the trigger, or did not answer; publish it again.

    ``code`` is the bridge's answer, ``internal`` without one. After ``unauthenticated`` and ``forbidden`` a retry may
    succeed later, as after `NotAllowed`.
    """

    retryable = True

    def __init__(self, detail: str = "", code: str = "") -> None:
        super().__init__(detail)
        self.code = code or self.code


class ChannelLost(QueuebellError):
    """The session with the bridge ended or could not be opened."""

    retryable = True


class ChannelRefused(ChannelLost):
    """The bridge rejects a session with this key, or under this name; ``code`` is that of the rejection."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class KeyUnavailable(StoreUnavailable, ChannelLost):
    """The program's own `api_key` raised, or returned no key: nothing was sent. The next attempt calls it again."""


class Unsupported(QueuebellError):
    """The store does not support the call, as its capabilities declare; nothing was done."""

    code = "unsupported"


class HandlersStuck(QueuebellError):
    """All slots of a queue are occupied by calls that exceeded ``handler_timeout`` and do not return."""

    def __init__(self, queue: str, why: str) -> None:
        super().__init__(
            f"{queue}: {why}. This worker handles no further messages of this queue until a call returns. "
            "Waiting messages are safe, and hanging ones are dead-lettered after max_attempts. Find "
            "where the handler hangs, give its client a time-out, and restart the worker"
        )


class Closed(QueuebellError):
    """Used after it was closed."""


class WrongThread(QueuebellError, RuntimeError):
    """Called from a thread other than that of its event loop; nothing was done."""

    def __str__(self) -> str:
        return (
            f"this {self.args[0]} belongs to the event loop of another thread: call it there, with "
            "asyncio.run_coroutine_threadsafe or loop.call_soon_threadsafe; a BlockingPublisher works "
            "from any thread"
        )


class ConfigurationError(QueuebellError):
    """A setting is invalid; the message names its key and valid values."""


class NoQueueService(ConfigurationError):
    """The server at the store's address is not a queue service: a worker ends, a command fails."""


class NotPrepared(ConfigurationError):
    """The store's tables are missing or of an older version; once they are created, running programs work too."""

    retryable = True


# Users import them from `queuebell`, so tracebacks and pickle use that name.
for _error in tuple(globals().values()):
    if isinstance(_error, type) and issubclass(_error, QueuebellError):
        _error.__module__ = "queuebell"
