"""Requests over one NATS connection: each has an end, and what comes back is heard at an inbox of our own.

The connection is made at the first request and made anew at the next one after it broke; nothing is sent twice. Its
defences against half-open connections and a deaf client library are those of `bridge.brokers.nats.broker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from bridge.brokers.address import Address
from bridge.brokers.base import Incoming, Topics
from bridge.brokers.connection import ThrottledWarnings
from bridge.brokers.nats.access import Servers
from bridge.brokers.nats.broker import NatsBroker, message_callback
from bridge.contract.errors import (
    BadInput,
    BusUnavailable,
    Closed,
    ConfigurationError,
    StoreUnavailable,
    UnknownOutcome,
)

ANSWER_S: Final = 5.0
"""How long an answer may take; less than a listener's own time-out R."""
OPTIONS: Final = ("credentials", "nkey", "name", "inbox", "prefix", "replicas")
NOBODY: Final = "503"
OLDEST: Final = (2, 10)
"""Older servers take what they do not know for nothing, such as the word that a consumer is to be there already."""
UNTOLD: Final = (0, 0)
_UNSUBSCRIBE_S = 1.0


class NoResponder(StoreUnavailable):
    """The server has nobody for this subject: no such stream or consumer, or no JetStream at all."""


class Answers:
    """What came back for one request so far."""

    def __init__(self, reply: str, within_s: float, silent: Callable[[], None]) -> None:
        self.reply = reply
        self._within_s = within_s
        self._silent = silent
        self._waiting: asyncio.Queue[Incoming | None] = asyncio.Queue()

    def heard(self, message: Incoming | None) -> None:
        """Take an answer, or with None the news that the connection is gone."""
        self._waiting.put_nowait(message)

    async def next(self) -> Incoming:
        """Wait for the next answer. Raises `NoResponder`, and `UnknownOutcome` where none comes in time."""
        try:
            async with asyncio.timeout(self._within_s):
                message = await self._waiting.get()
        except TimeoutError:
            self._silent()
            raise UnknownOutcome(f"jetstream: no answer within {self._within_s:g} s") from None
        if message is None:
            raise UnknownOutcome("jetstream: the connection ended before the answer")
        if status_of(message) == NOBODY and message.reply_to is None:
            raise NoResponder("jetstream: nobody answers; no such stream, none that leads it now, or no JetStream")
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
        self._doubting: asyncio.Task[None] | None = None
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
        """See that there is a connection. Raises `StoreUnavailable`, `ConfigurationError` or `Closed`."""
        self.check_open()
        if self._broker is None:
            async with self._opening:
                await self._connect()

    async def _connect(self) -> None:
        self.check_open()
        if self._broker is not None:
            return  # another call has made it meanwhile
        inbox = self._where.options.get("inbox", "_INBOX")
        broker = NatsBroker(self._where, servers=self._servers)
        self._inbox = (*inbox.split("."), uuid.uuid4().hex)
        try:
            await broker.connect()
            if UNTOLD < broker.version < OLDEST:
                old, least = (".".join(map(str, version)) for version in (broker.version, OLDEST))
                raise ConfigurationError(f"{self._where.text}: this is NATS {old}; JetStream is used from {least} on")
            await broker.subscribe((*self._inbox, "*"), self._heard)
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
        """Give a place for the answers to one request; those that come after the block are forgotten."""
        token = uuid.uuid4().hex
        answers = self._open[token] = Answers(".".join((*self._inbox, token)), self._timeout, self._doubt)
        try:
            yield answers
        finally:
            self._open.pop(token, None)

    def send(self, subject: str, payload: bytes, answers: Answers, headers: dict[str, str] | None = None) -> None:
        """Send one request whose answers go to ``answers``; `connect` came first. Raises `StoreUnavailable`."""
        self._send(subject, payload, answers.reply, headers)

    def check_size(self, size: int) -> None:
        """Raise `BadInput` for a payload, with its headers, of more bytes than the server takes."""
        if self._broker is not None and size > self._broker.payload_max:
            most = self._broker.payload_max
            raise BadInput("message_too_large", f"the NATS server takes {most} bytes in one message")

    def _send(self, subject: str, payload: bytes, reply: str, headers: dict[str, str] | None = None) -> None:
        self.check_open()
        broker = self._broker
        if broker is None or not broker.send(subject, payload, reply, headers):
            raise StoreUnavailable("jetstream: the connection is gone or full; nothing was sent")

    async def ask(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> Incoming:
        """Send one request and return its one answer. Raises as `connect`, `send` and `Answers.next` do."""
        await self.connect()
        with self.asking() as answers:
            self._send(subject, payload, answers.reply, headers)
            return await answers.next()

    @contextlib.asynccontextmanager
    async def pulling(self, subject: str, payload: bytes) -> AsyncIterator[Answers]:
        """Send a request whose answers are messages of a stream, and give the place where they come.

        Such messages bear the subject that they were published on, so that only an inbox of its own tells whose they
        are. Raises as `connect` and `send` do.
        """
        await self.connect()
        with self.asking() as answers:
            heard = message_callback(answers.heard, self._topics, self._warnings)
            broker = self._broker
            if broker is None:
                raise StoreUnavailable("jetstream: the connection is gone; nothing was sent")
            own = f"{answers.reply}.messages"
            gone = (BusUnavailable, OSError, TimeoutError, _library_error())
            try:
                subscription = await broker.alive().subscribe(own, cb=heard)
            except gone as error:
                raise StoreUnavailable("jetstream: the connection is gone; nothing was sent") from error
            try:
                self._send(subject, payload, own)
                yield answers
            finally:
                with contextlib.suppress(*gone):
                    async with asyncio.timeout(_UNSUBSCRIBE_S):
                        await subscription.unsubscribe()

    async def close(self) -> None:
        """End it, with whoever waits; may be called twice."""
        self._closed = True
        async with self._opening:
            broker, self._broker = self._broker, None
            watches = list(self._watches)
            for watch in watches:
                watch.cancel()
            if watches:
                await asyncio.wait(watches)
            self._tell_all()
            if broker is not None:
                await broker.close()

    async def _until_broken(self, broker: NatsBroker) -> None:
        await broker.broken()
        if self._broker is broker:
            self._broker = None
        self._tell_all()
        await broker.close()

    def _doubt(self) -> None:
        """Ask whether the connection lives: an answer that does not come may be the server's, or the path's.

        A server that hangs keeps its connections, and others of its cluster would answer.
        """
        if self._broker is not None and self._doubting is None:
            doubting = self._doubting = asyncio.create_task(self._probe(self._broker), name="jetstream doubt")
            self._watches.add(doubting)
            doubting.add_done_callback(self._doubted)

    def _doubted(self, task: asyncio.Task[None]) -> None:
        self._doubting = None
        self._watches.discard(task)

    async def _probe(self, broker: NatsBroker) -> None:
        try:
            await broker.probe()
        except BusUnavailable:
            if self._broker is broker:
                self._broker = None
            await broker.close()

    def _tell_all(self) -> None:
        for answers in self._open.values():
            answers.heard(None)

    def _heard(self, message: Incoming) -> None:
        answers = self._open.get(message.topic[-1])
        if answers is not None:
            answers.heard(message)


def status_of(message: Incoming) -> str:
    """Return the status of the server's own words; empty for a message."""
    return message.headers.get("status", "")


def _library_error() -> type[Exception]:
    from nats.errors import Error

    return Error
