"""A broker in memory, for tests in virtual time: it loses, repeats, delays and goes deaf when a test says so."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping

from queuebell.bridge.brokers.base import ANY, Incoming, OnMessage, Topic
from queuebell.bridge.brokers.connection import REQUEST_S
from queuebell.bridge.contract.errors import BusUnavailable
from tests.support.sim_loop import pass_time

Fault = Callable[[Topic, bytes], list[float]]
"""What becomes of one message: a delay in seconds for each copy that arrives; ``[]`` is a loss, ``[0, 0]`` two."""


def intact(topic: Topic, payload: bytes) -> list[float]:
    return [0.0]


class MemoryServer:
    """The server that connections share."""

    def __init__(self, kind: str = "nats") -> None:
        self.kind = kind
        self.fault: Fault = intact
        self.refusing = False
        self.deaf = False
        self.connections: list[MemoryBroker] = []
        self.attempts = 0
        self.log: list[tuple[Topic, bytes]] = []

    def broker(self) -> MemoryBroker:
        """Return a connection that is not made yet."""
        return MemoryBroker(self)

    def kill(self, reason: str = "connection reset") -> None:
        """Break every connection; wills are published to nobody, for nobody is left."""
        for connection in list(self.connections):
            connection.die(reason)

    def deliver(self, topic: Topic, payload: bytes, *, qos: bool = False, **more: object) -> int:
        """Bring a message to all who hear; return to how many it goes."""
        self.log.append((topic, payload))
        if self.deaf:
            return 0
        loop = asyncio.get_running_loop()
        heard = 0
        delays = self.fault(topic, payload)
        for connection in self.connections:
            for pattern, hear, sure in connection.subscriptions:
                if not _matches(pattern, topic):
                    continue
                heard += 1
                for delay in delays:
                    acknowledge = connection.acknowledged if sure and qos else None
                    incoming = Incoming(topic, payload, acknowledge=acknowledge, **more)  # type: ignore[arg-type]
                    if delay:
                        loop.call_later(delay, connection.hear, hear, incoming)
                    else:
                        loop.call_soon(connection.hear, hear, incoming)
        return heard


class MemoryBroker:
    """One connection (`queuebell.bridge.brokers.base.Broker`)."""

    address = "memory://broker"
    private = True

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.kind = server.kind
        self.dropped = 0
        self.full = False
        self.acknowledgements = 0
        self.subscriptions: list[tuple[Topic, OnMessage, bool]] = []
        self._will: tuple[Topic, bytes] | None = None
        self._reason: str | None = None
        self._ended = asyncio.Event()
        self.answers: dict[Topic, asyncio.Future[None]] = {}
        self._numbers = itertools.count(1)

    async def connect(self, *, will: tuple[Topic, bytes] | None = None) -> None:
        self.server.attempts += 1
        await asyncio.sleep(0)
        if self.server.deaf:
            await pass_time(5.0)
        if self.server.refusing or self.server.deaf:
            self._reason = "refused"
            self._ended.set()
            raise BusUnavailable("no connection")
        self._will = will if self.kind == "mqtt" else None
        self.server.connections.append(self)

    async def subscribe(self, pattern: Topic, hear: OnMessage, *, at_least_once: bool = False) -> None:
        self._check()
        self.subscriptions.append((pattern, hear, at_least_once))
        await asyncio.sleep(0)

    def publish(
        self, topic: Topic, payload: bytes, *, content_type: str | None = None, headers: Mapping[str, str] | None = None
    ) -> bool:
        if self._reason is not None or self.full:
            return False
        waiting = self.answers.get(topic)
        if waiting is None:
            for connection in self.server.connections:
                waiting = waiting or connection.answers.get(topic)
        if waiting is not None:
            if not waiting.done():
                waiting.set_result(None)
        else:
            self.server.deliver(topic, payload, content_type=content_type, headers=dict(headers or {}))
        return True

    def writable(self) -> bool:
        return self._reason is None and not self.full

    async def request(self, topic: Topic, payload: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        self._check()
        if self.kind == "mqtt":
            self.server.deliver(topic, payload, qos=True)
            await asyncio.sleep(0)
            return
        inbox = ("_INBOX", str(id(self)), str(next(self._numbers)))
        answer = self.answers[inbox] = asyncio.get_running_loop().create_future()
        try:
            if not self.server.deliver(topic, payload, reply_to=inbox) and not self.server.deaf:
                raise BusUnavailable("no subscriber")
            async with asyncio.timeout(REQUEST_S):
                await answer
        except TimeoutError:
            raise BusUnavailable("no answer") from None
        finally:
            del self.answers[inbox]

    async def barrier(self) -> None:
        self._check()

    async def probe(self) -> float:
        self._check()
        if self.server.deaf:
            await pass_time(2.0)
            raise BusUnavailable("no echo")
        return 0.001

    async def broken(self) -> str:
        await self._ended.wait()
        return self._reason or ""

    async def close(self) -> None:
        self._will = None
        self.die("closed")

    # -- by the test -------------------------------------------------------------------------------------------------

    def die(self, reason: str = "connection reset") -> None:
        """End without a word; the will is published."""
        if self._reason is not None:
            return
        self._reason = reason
        self._ended.set()
        if self in self.server.connections:
            self.server.connections.remove(self)
        if self._will is not None:
            self.server.deliver(*self._will)

    def hear(self, hear: OnMessage, incoming: Incoming) -> None:
        if self._reason is None:
            hear(incoming)

    def acknowledged(self) -> None:
        self.acknowledgements += 1

    def _check(self) -> None:
        if self._reason is not None or self not in self.server.connections:
            raise BusUnavailable(self._reason or "not connected")


SERVERS: dict[str, MemoryServer] = {}
"""By host, for addresses like ``mem://one``."""


class NamedBroker(MemoryBroker):
    """What a scheme table may name: ``SCHEMES["mem"] = ("tests.support.memory_broker", "NamedBroker")``."""

    def __init__(self, url: str, *, name: str = "", prefix: str = "") -> None:
        super().__init__(SERVERS[url.partition("://")[2]])


def _matches(pattern: Topic, topic: Topic) -> bool:
    return len(pattern) == len(topic) and all(a in (ANY, b) for a, b in zip(pattern, topic, strict=True))
