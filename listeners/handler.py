"""What a user writes: a handler, the message that it gets, and the outcomes that it can return or raise.

A handler is one of four kinds, recognized by its definition:

- ``async def handle(message)``: runs on the event loop;
- ``def handle(message)``: runs in a thread;
- either of them as a **batch handler**, which takes a list of messages. It is declared by the decorator `batch`, or by
  annotating its first parameter as a list: ``async def handle(messages: list[Message])``.

A handler that returns has succeeded and its message is deleted. It raises `Retry` to have the message again later,
`Bury` to move it to the poison queue, `Replay` to move a dead letter back where it failed; any other exception
is a failed attempt. A batch handler returns None (all succeeded) or one outcome per message, in the order of its list:
None or `Done`, `Retry`, `Bury`, `Replay`. If it sorts the list, outcomes are in the new order.
"""

from __future__ import annotations

import datetime
import enum
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from queuebell.bridge.contract.burial import POISONED, UNDECODABLE, Burial
from queuebell.bridge.contract.errors import ENDS_THE_PROCESS, ConfigurationError, named, said
from queuebell.bridge.queues.base import DELAY_MS_MAX, StoredMessage

if TYPE_CHECKING:
    import typing_extensions

    Payload = typing_extensions.TypeVar("Payload", default=Any)
else:
    Payload = TypeVar("Payload")  # only Python 3.13 knows defaults, and nothing is installed for type checkers alone

F = TypeVar("F", bound=Callable[..., object])

_BATCH_MARK = "__queuebell_batch__"
_LIST_WORDS = ("list", "List", "Sequence", "Iterable", "Collection")


class Checkpoints(Protocol):
    """Where a listener with a ledger keeps the progress of a message."""

    async def checkpoint(self, progress: bytes) -> None:
        """Write the progress."""
        ...

    def checkpoint_from_thread(self, progress: bytes) -> None:
        """Write the progress and wait for it, in a thread."""
        ...


class Message(msgspec.Struct, Generic[Payload], frozen=True):
    """One message as a handler sees it; a ``Message[Order]`` where the listener's ``payload`` is ``Order``.

    ``attempt`` is 1 the first time; ``value`` is the body decoded to the listener's ``payload`` type, None without one,
    and on a poison queue None as well where the body does not decode (``burial.failure`` is ``undecodable``);
    ``wake_source`` is the cause of the receive: ``trigger due lease resync more sweep deadman poll``;
    ``progress`` is the last checkpoint of an earlier attempt, None without one or without a ledger; ``burial`` the
    facts of a dead letter, on its poison queue and after a replay, None for any other; ``key`` what its producer
    put it under (`PUT .../messages/{id}`, `put_once`), None for any other; ``headers`` the names and values
    that it put beside the body, names in lower case; ``traces`` the W3C ``traceparent`` of each trigger that woke the
    listener for it, oldest first: empty where there was none, and where the message has one in its headers.
    """

    id: str
    queue: str
    body: bytes
    attempt: int
    inserted_at: datetime.datetime
    expires_at: datetime.datetime | None = None
    wake_source: str = "poll"
    value: Payload = None  # type: ignore[assignment]
    progress: bytes | None = None
    entry: Checkpoints | None = None
    burial: Burial | None = None
    key: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    traces: tuple[str, ...] = ()

    async def checkpoint(self, progress: bytes | str) -> None:
        """Write down how far the work has come (32 KiB at most), so that the next attempt finds it in ``progress``.

        Raises `Conflict` once another attempt has taken over: what this one does no longer counts. Raises
        `ConfigurationError` if the listener has no ledger. In a plain function it is `checkpoint_from_thread`.
        """
        await self._entry().checkpoint(progress.encode() if isinstance(progress, str) else progress)

    def checkpoint_from_thread(self, progress: bytes | str) -> None:
        """Do as `checkpoint`, in a handler that is a plain function: those run in threads."""
        self._entry().checkpoint_from_thread(progress.encode() if isinstance(progress, str) else progress)

    def _entry(self) -> Checkpoints:
        if self.entry is None:
            raise ConfigurationError("ledger: a listener whose handler writes checkpoints needs one")
        return self.entry

    def text(self) -> str:
        """Return the body as UTF-8 text. Raises `UnicodeDecodeError` if it is not UTF-8."""
        return self.body.decode()


class Done(msgspec.Struct, frozen=True):
    """The outcome of a message of a batch that succeeded."""


class Retry(Exception):
    """Asks to have the message again after so many seconds (>= 0), or by the listener's own back-off if None.

    It counts as an attempt: at ``max_attempts`` the message is dead-lettered all the same.
    """

    __module__ = "queuebell"

    after: float | None = None  # for a subclass that does not call `super().__init__`, as those below

    def __init__(self, after: float | None = None) -> None:
        if after is not None and not 0 <= after <= 604_800:
            raise ValueError("Retry(after) is from 0 to 604800 seconds")
        super().__init__("another attempt" if after is None else f"another attempt in {after:g} s")
        self.after = after

    def __str__(self) -> str:
        return f"{type(self).__name__}(after={self.after!r})"

    __repr__ = __str__


class Bury(Exception):
    """Asks to move the message to the poison queue, for no attempt will help; ``reason`` is text or an exception."""

    __module__ = "queuebell"

    failure: ClassVar[str] = POISONED
    reason: str = "no reason given"

    def __init__(self, reason: object = reason) -> None:
        super().__init__(reason)
        self.reason = reason if isinstance(reason, str) else named(reason)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.reason!r})"

    __repr__ = __str__


class Replay(Exception):
    """Asks to replay the message to the queue it came from, or on ``queue`` of the same account, and delete it here.

    It is visible there after so many seconds (>= 0; at once if None) and keeps the facts of its failures. Put
    before it is deleted: a crash between the two leaves both. Where neither the message nor the name of its queue
    shows where it came from, it is a failed attempt, and the message stays.
    """

    __module__ = "queuebell"

    after: float | None = None
    queue: str | None = None

    def __init__(self, after: float | None = None, queue: str | None = None) -> None:
        if after is not None and not 0 <= after * 1000 <= DELAY_MS_MAX:
            raise ValueError(f"Replay(after) is from 0 to {DELAY_MS_MAX // 1000} seconds")
        super().__init__("a replay" if queue is None else f"a replay to {queue}")
        self.after = after
        self.queue = queue

    def __str__(self) -> str:
        return f"{type(self).__name__}(after={self.after!r}, queue={self.queue!r})"

    __repr__ = __str__


class Undecodable(Bury):
    """A body is not of the payload type: no attempt will change that."""

    failure = UNDECODABLE


class PayloadBroke(Exception):
    """A rule of the payload type raised an unrelated error: the attempt fails."""


Outcome = Done | Retry | Bury | Replay


class Kind(enum.Flag):
    """How a handler is called."""

    PLAIN = 0
    ASYNC = enum.auto()
    BATCH = enum.auto()


def batch(function: F) -> F:
    """Declare a handler that takes a list of messages."""
    setattr(function, _BATCH_MARK, True)
    return function


def kind_of(handler: Callable[..., object]) -> Kind:
    """Return how ``handler`` is called. Raises `TypeError` for what cannot be called with one argument."""
    inner = called_with(handler, 1, "a handler", "it is given a message, or a list of messages")
    body = inner if inspect.isroutine(inner) else type(inner).__call__
    kind = Kind.PLAIN
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(body):
        kind |= Kind.ASYNC
    if getattr(inner, _BATCH_MARK, False) or getattr(body, _BATCH_MARK, False) or _takes_list(handler):
        kind |= Kind.BATCH
    return kind


def called_with(given: Any, count: int, what: str, why: str) -> Callable[..., object]:
    """Return the function that is called in the end, or the callable. Raises `TypeError` for what cannot serve.

    That is what takes not ``count`` arguments, and what would run nothing at all: a generator, or a class.
    """
    inner: Any = given
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not callable(given):
        coroutine = " (the function itself is meant, not its call)" if inspect.iscoroutine(given) else ""
        raise TypeError(f"{what} is a function, not {type(given).__name__}{coroutine}; {why}")
    if inspect.isclass(inner):
        raise TypeError(f"{what} is a function, not the class {inner.__qualname__}; {why}")
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    for body in (inner, type(inner).__call__):
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise TypeError(f"{what} returns when it is done, and {name} is a generator: nothing would run it; {why}")
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # built in, without one
        return inner  # type: ignore[no-any-return]
    try:
        signature.bind(*range(count))
    except TypeError:
        words = {0: "no argument", 1: "one argument"}.get(count, f"{count} arguments")
        raise TypeError(f"{what} takes {words}, and {name} is called as {name}{signature}; {why}") from None
    return inner  # type: ignore[no-any-return]


def message_of(
    stored: StoredMessage,
    queue: str,
    wake_source: str,
    decode: Callable[[bytes], object] | None,
    burial: Burial | None = None,
    traces: tuple[str, ...] = (),
    *,
    must_decode: bool = True,
) -> Message:
    """Make the message that a handler sees.

    Raises `Undecodable` if the body does not decode to the payload type: no further attempt would change that; and
    `PayloadBroke` if a rule of that type raised anything else: its next version may not. On a poison queue the body
    need not decode (``must_decode`` False): its value is None then, for a supervisor is to see it.
    """
    value = None
    if decode is not None:
        try:
            value = decode(stored.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if must_decode:
                raise Undecodable(f"undecodable payload: {said(error)}") from error
        except ENDS_THE_PROCESS:
            raise
        except BaseException as error:
            if must_decode:
                raise PayloadBroke(f"the payload type raised: {named(error)}") from error
    return Message(
        stored.id,
        queue,
        stored.body,
        stored.dequeue_count,
        stored.inserted_at,
        stored.expires_at,
        wake_source,
        value,
        burial=burial,
        key=stored.key,
        headers=MappingProxyType(stored.headers),
        traces=traces,
    )


def outcomes_of(result: object, count: int) -> list[Outcome | TypeError]:
    """Read what a batch handler returned for ``count`` messages, with a `TypeError` for each that is not an outcome.

    Raises `TypeError` where the messages and the outcomes cannot be matched.
    """
    if result is None:
        return [Done()] * count
    if not isinstance(result, Sequence) or isinstance(result, str | bytes) or len(result) != count:
        raise TypeError(f"a batch handler returns None or a list of {count} outcomes, one per message")
    outcomes: list[Outcome | TypeError] = []
    for item in result:
        if item is None or item is Done:
            outcomes.append(Done())
        elif item is Retry:
            outcomes.append(Retry())
        elif item is Replay:
            outcomes.append(Replay())
        elif isinstance(item, Done | Retry | Bury | Replay):
            outcomes.append(item)
        else:
            outcomes.append(TypeError(f"an outcome is None, Done, Retry, Bury or Replay, not {type(item).__name__}"))
    return outcomes


def _takes_list(handler: Callable[..., object]) -> bool:
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        return False
    annotation = parameters[0].annotation
    if isinstance(annotation, str):  # from __future__ import annotations: compared as text, for names may not resolve
        return annotation.split("[")[0].rpartition(".")[2] in _LIST_WORDS
    origin = getattr(annotation, "__origin__", annotation)
    return origin is list or getattr(origin, "__name__", "") in _LIST_WORDS
