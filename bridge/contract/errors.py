"""The one tree of errors, each with a stable code and the answer to "is it worth another try?".

::

    QueuebellError
    ├── BadInput (also ValueError)      the caller's fault: refused, nothing changed
    │   └── BadQueueReference
    ├── StoreError                      a queue store failed
    │   ├── StoreUnavailable            retryable; nothing is known to have happened
    │   │   ├── UnknownOutcome          the request may or may not have been carried out
    │   │   ├── Overloaded              it has too much to do; says when to come again
    │   │   └── KeyUnavailable          the program's `api_key` gave no key; also a ChannelLost
    │   ├── StoreFull                   retryable once there is room
    │   ├── StoreOwned                  another process owns the data file
    │   ├── StoreDamaged                the data file is not one of ours, or is broken
    │   ├── QueueNotFound
    │   ├── NotAllowed                  the bridge does not know the key, or it grants no such thing
    │   ├── BlobNotFound                what was put aside is not there
    │   └── Conflict                    an entity was written by somebody else meanwhile
    ├── BusUnavailable                  a trigger could not be brought to the bridge; retryable
    ├── ChannelLost                     a session with the bridge ended; retryable
    ├── Unsupported                     this store cannot do that, and says so
    ├── HandlersStuck                   every handler slot of a worker is held by a call that does not return
    ├── Closed                          used after close
    └── ConfigurationError              a setting is wrong; names its key
        ├── NoQueueService              something else answers at the store's address
        ├── UnfitQueue                  a stream or consumer made by hand (bridge.queues.jetstream)
        └── NotPrepared                 the store's tables are missing or old; retryable, for somebody will make them
"""

from __future__ import annotations

from typing import ClassVar, Final

GIVEN_SHOWN: Final = 60
"""Characters of something given in a wrong place that are shown."""

# The codes of docs/http.md, with the HTTP status that goes with each.
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


def said(error: object) -> str:
    """Return what an exception says, "" for nothing; one whose own text cannot be made costs nobody the rest."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - it is foreign code, and what matters is the error that it belongs to
        return f"(no error text: {type(broken).__name__})"


def named(error: object) -> str:
    """Return an exception's type and what it says."""
    return f"{type(error).__name__}: {text}" if (text := said(error)) else type(error).__name__


class QueuebellError(Exception):
    """The root: whatever this project raises on purpose."""

    code: str = "internal"
    retryable: ClassVar[bool] = False

    @property
    def status(self) -> int:
        """The HTTP status that goes with the code."""
        return STATUS_BY_CODE.get(self.code, 500)


class BadInput(QueuebellError, ValueError):
    """What came in is not acceptable; nothing was changed by it."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class BadQueueReference(BadInput):
    """A queue reference is malformed. What was given stands in a note, which no client of a server sees."""

    def __init__(self, detail: str, given: object = None) -> None:
        super().__init__("bad_queue_reference", detail)
        if isinstance(given, str):
            self.add_note(f"given: '{_cut(given)}'")


def _cut(text: str) -> str:
    """Return what may be shown of something in a wrong place: printable, and no password where it was an address."""
    for mark in "?#;":
        text = text.rpartition("@")[2].partition(mark)[0]
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[:GIVEN_SHOWN])
    return shown + ("..." if len(text) > GIVEN_SHOWN else "")


class StoreError(QueuebellError):
    """A queue store failed."""

    code = "storage_unavailable"


class StoreUnavailable(StoreError):
    """The store did not do it; try again after a back-off. Only `UnknownOutcome` leaves open whether it did.

    ``retry_after`` is for how many seconds it asks to be left alone, None where it does not say.
    """

    retryable = True

    def __init__(self, detail: str = "", retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class UnknownOutcome(StoreUnavailable):
    """No answer came: the request may have been carried out, or may still be."""


class Overloaded(StoreUnavailable):
    """The store has more to do than it can; nothing was done. Come again after ``retry_after`` seconds."""

    code = "too_many_requests"


class StoreFull(StoreError):
    """There is no room for more; what was acknowledged before is safe."""

    code = "storage_full"
    retryable = True


class StoreOwned(StoreError):
    """Another process owns the data file."""


class StoreDamaged(StoreError):
    """The data file cannot be read as one of ours."""


class QueueNotFound(StoreError):
    """There is no such queue in the store; for a listener that is as good as empty."""

    code = "queue_not_found"


class NotAllowed(StoreError):
    """The bridge asks for a key and got none that it knows (``unauthenticated``), or it does not grant this.

    Nothing was done. It can become right without a change here: keys are granted and files with keys replaced while
    programs run.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class BlobNotFound(StoreError):
    """There is no blob of this name."""

    code = "not_found"


class Conflict(StoreError):
    """The entity is not as the caller knew it: it exists already, is gone, or was written by somebody else."""

    code = "conflict"


class BusUnavailable(QueuebellError):
    """The bus did not take the trigger, or gave no answer; publish it again.

    ``code`` is what the bridge answered, ``internal`` where none did. ``unauthenticated`` and ``forbidden`` can become
    right as those of `NotAllowed` can.
    """

    retryable = True

    def __init__(self, detail: str = "", code: str = "") -> None:
        super().__init__(detail)
        self.code = code or self.code


class ChannelLost(QueuebellError):
    """The session with the bridge ended or could not be made."""

    retryable = True


class ChannelRefused(ChannelLost):
    """The bridge lives and accepts no session with this key, or under this name; ``code`` is that of the refusal."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class KeyUnavailable(StoreUnavailable, ChannelLost):
    """The program's own `api_key` raised, or returned no key: nothing was sent. The next attempt asks it again."""


class Unsupported(QueuebellError):
    """This store cannot do what was asked, and says so in its capabilities; nothing was done."""

    code = "unsupported"


class HandlersStuck(QueuebellError):
    """Every slot that a queue can get is held by a call that ran past ``handler_timeout`` and does not return."""

    def __init__(self, queue: str, why: str) -> None:
        super().__init__(
            f"{queue}: {why}. This worker handles no further messages of this queue until a call returns. "
            "Waiting messages are safe, and hanging ones are dead-lettered after max_attempts. Find "
            "where the handler hangs, give its client a time-out, and restart the worker"
        )


class Closed(QueuebellError):
    """Used after it was closed."""


class WrongThread(QueuebellError, RuntimeError):
    """Called from another thread than the one whose event loop it belongs to; nothing was done."""

    def __str__(self) -> str:
        return (
            f"this {self.args[0]} belongs to the event loop of another thread: call it there, with "
            "asyncio.run_coroutine_threadsafe or loop.call_soon_threadsafe; a BlockingPublisher works "
            "from any thread"
        )


class ConfigurationError(QueuebellError):
    """A setting is wrong; the message names its key and what would be right."""


class NoQueueService(ConfigurationError):
    """What answers at the store's address is no queue service: a worker ends for it, to a command nobody is there."""


class NotPrepared(ConfigurationError):
    """The store's tables are missing or of an older version; it works once they are made, also for who runs already."""

    retryable = True


# Users import them from `queuebell`: so do tracebacks call them, and pickle finds them there.
for _error in tuple(globals().values()):
    if isinstance(_error, type) and issubclass(_error, QueuebellError):
        _error.__module__ = "queuebell"
