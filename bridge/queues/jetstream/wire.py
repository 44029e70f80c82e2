"""Requests over one NATS connection: each has a time-out, and answers arrive at an inbox of this connection.

The connection is opened by the first request, and again by the next one after it broke; nothing is sent twice.
`queuebell.bridge.brokers.nats.broker` detects half-open connections and failures of the client library.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from queuebell.bridge.brokers.address import Address
from queuebell.bridge.brokers.base import Incoming, Topics
from queuebell.bridge.brokers.connection import ThrottledWarnings
from queuebell.bridge.brokers.nats.access import Servers
from queuebell.bridge.brokers.nats.broker import NatsBroker, message_callback
from queuebell.bridge.contract.errors import (
    BadInput,
    BusUnavailable,
    Closed,
    ConfigurationError,
    StoreUnavailable,
    UnknownOutcome,
)

ANSWER_S: Final = 5.0
"""Time-out of an answer; less than a listener's time-out R."""
OPTIONS: Final = ("credentials", "nkey", "name", "inbox", "prefix", "replicas")
NO_RESPONDERS: Final = "503"
VERSION_MIN: Final = (2, 10)
"""Older servers ignore unknown fields, such as the condition that a consumer must exist."""
VERSION_UNKNOWN: Final = (0, 0)
_UNSUBSCRIBE_S = 1.0


class NoResponder(StoreUnavailable):
    """No responder for this subject: no such stream or consumer, or no JetStream."""


class Answers:
    """The answers to one request."""

    def __init__(self, reply: str, within_s: float, silent: Callable[[], None]) -> None:
        self.reply = reply
        self._within_s = within_s
        self._silent = silent
        self._waiting: asyncio.Queue[Incoming | None] = asyncio.Queue()

    def add(self, message: Incoming | None) -> None:
        """Add an answer, or None if the connection is lost."""
        self._waiting.put_nowait(message)

    async def next(self) -> Incoming:
        """Wait for the next answer. Raises `NoResponder`, and `UnknownOutcome` if none comes in time."""
        try:
            async with asyncio.timeout(self._within_s):
                message = await self._waiting.get()
        except TimeoutError:
            self._silent()
            raise UnknownOutcome(f"jetstream: no answer within {self._within_s:g} s") from None
        if message is None:
            raise UnknownOutcome("jetstream: the connection ended before the answer")
        if status_of(message) == NO_RESPONDERS and message.reply_to is None:
            raise NoResponder("jetstream: no responder; there is no such stream, it has no leader now, or no JetStream")
        return message


class Wire:
    """The connection to the server at ``where``; an answer may take ``timeout`` seconds."""

    def __init__(self, where: Address, timeout: float = ANSWER_S) -> None:
        self._where = where
        self._servers = Servers(where.hosts, random.random)
        self._timeout = timeout
        self._broker: NatsBroker | None = None
        self._opening = asyncio.Lock()
        self._watches: set[asyncio.Task[None]] = set()
        self._probing: asyncio.Task[None] | None = None
        self._open: dict[str, Answers] = {}
        self._inbox: tuple[str, ...] = ()
        self._topics = Topics(".", "*")
        self._warnings = ThrottledWarnings(where.text)
        self._closed = False

    def check_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self._closed:
            raise Closed("the store is closed")

    async def connect(self) -> None:
        """Open the connection if needed. Raises `StoreUnavailable`, `ConfigurationError` or `Closed`."""
        self.check_open()
        if self._broker is None:
            async with self._opening:
                await self._connect()

    async def _connect(self) -> None:
        self.check_open()
        if self._broker is not None:
            return  # Another call opened it meanwhile.
        inbox = self._where.options.get("inbox", "_INBOX")
        broker = NatsBroker(self._where, servers=self._servers)
        self._inbox = (*inbox.split("."), uuid.uuid4().hex)
        try:
            await broker.connect()
            if VERSION_UNKNOWN < broker.version < VERSION_MIN:
                old, least = (".".join(map(str, version)) for version in (broker.version, VERSION_MIN))
                raise ConfigurationError(f"{self._where.text}: this is NATS {old}; the store needs {least} or newer")
            await broker.subscribe((*self._inbox, "*"), self._on_message)
        except BusUnavailable as error:
            await broker.close()
            raise StoreUnavailable(f"jetstream: {error}; nothing was sent") from error
        except BaseException:
            await broker.close()
            raise
        self._broker = broker
        watch = asyncio.create_task(self._until_broken(broker), name="jetstream connection")
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    @contextlib.contextmanager
    def asking(self) -> Iterator[Answers]:
        """Yield the answers to one request; later ones are dropped."""
        token = uuid.uuid4().hex
        answers = self._open[token] = Answers(".".join((*self._inbox, token)), self._timeout, self._start_probe)
        try:
            yield answers
        finally:
            self._open.pop(token, None)

    def send(self, subject: str, payload: bytes, answers: Answers, headers: dict[str, str] | None = None) -> None:
        """Send one request whose answers go to ``answers``; call `connect` first. Raises `StoreUnavailable`."""
        self._send(subject, payload, answers.reply, headers)

    def check_size(self, size: int) -> None:
        """Raise `BadInput` for a payload that is too large for the server, with its headers."""
        if self._broker is not None and size > self._broker.payload_max:
            most = self._broker.payload_max
            raise BadInput("message_too_large", f"the NATS server accepts {most} bytes a message")

    def _send(self, subject: str, payload: bytes, reply: str, headers: dict[str, str] | None = None) -> None:
        self.check_open()
        broker = self._broker
        if broker is None or not broker.send(subject, payload, reply, headers):
            raise StoreUnavailable("jetstream: the connection is lost or full; nothing was sent")

    async def ask(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> Incoming:
        """Send one request and return its one answer. Raises as `connect`, `send` and `Answers.next` do."""
        await self.connect()
        with self.asking() as answers:
            self._send(subject, payload, answers.reply, headers)
            return await answers.next()

    @contextlib.asynccontextmanager
    async def pulling(self, subject: str, payload: bytes) -> AsyncIterator[Answers]:
        """Send a request whose answers are messages of a stream; yield the answers.

        Such messages have the subject they were published on, so that they need an inbox of their own. Raises as
        `connect` and `send` do.
        """
        await self.connect()
        with self.asking() as answers:
            heard = message_callback(answers.add, self._topics, self._warnings)
            broker = self._broker
            if broker is None:
                raise StoreUnavailable("jetstream: the connection is lost; nothing was sent")
            own = f"{answers.reply}.messages"
            gone = (BusUnavailable, OSError, TimeoutError, _library_error())
            try:
                subscription = await broker.alive().subscribe(own, cb=heard)
            except gone as error:
                raise StoreUnavailable("jetstream: the connection is lost; nothing was sent") from error
            try:
                self._send(subject, payload, own)
                yield answers
            finally:
                with contextlib.suppress(*gone):
                    async with asyncio.timeout(_UNSUBSCRIBE_S):
                        await subscription.unsubscribe()

    async def close(self) -> None:
        """Close the connection and fail waiting requests; may be called twice."""
        self._closed = True
        async with self._opening:
            broker, self._broker = self._broker, None
            watches = list(self._watches)
            for watch in watches:
                watch.cancel()
            if watches:
                await asyncio.wait(watches)
            self._fail_all()
            if broker is not None:
                await broker.close()

    async def _until_broken(self, broker: NatsBroker) -> None:
        await broker.broken()
        if self._broker is broker:
            self._broker = None
        self._fail_all()
        await broker.close()

    def _start_probe(self) -> None:
        """Test the connection after a missing answer.

        A server that hangs keeps its connections open, while others of its cluster would answer.
        """
        if self._broker is not None and self._probing is None:
            doubting = self._probing = asyncio.create_task(self._probe(self._broker), name="jetstream probe")
            self._watches.add(doubting)
            doubting.add_done_callback(self._probed)

    def _probed(self, task: asyncio.Task[None]) -> None:
        self._probing = None
        self._watches.discard(task)

    async def _probe(self, broker: NatsBroker) -> None:
        try:
            await broker.probe()
        except BusUnavailable:
            if self._broker is broker:
                self._broker = None
            await broker.close()

    def _fail_all(self) -> None:
        for answers in self._open.values():
            answers.add(None)

    def _on_message(self, message: Incoming) -> None:
        answers = self._open.get(message.topic[-1])
        if answers is not None:
            answers.add(message)


def status_of(message: Incoming) -> str:
    """Return the status of a server's answer; empty for a message."""
    return message.headers.get("status", "")


def _library_error() -> type[Exception]:
    from nats.errors import Error

    return Error
