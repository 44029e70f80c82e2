"""A broker as a process of its own, and the connection to it that keeps the promise of `queuebell.bridge.brokers.base`.

Connections are ordered and reliable; frames of sessions are what faults lose, repeat, delay and let overtake each
other, as brokers that are joined or that reconnect do. As ``nats`` a request is answered by whoever hears it, as
``mqtt`` by the broker, which also publishes last wills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from queuebell.bridge.brokers.base import ANY, Incoming, OnMessage, Topic
from queuebell.bridge.contract.errors import BusUnavailable
from queuebell.bridge.producer.buses.brokered import BrokerBus
from queuebell.listeners.session.brokered import BrokeredChannel
from tests.simulation.network import Lost

if TYPE_CHECKING:
    from tests.simulation.network import End
    from tests.simulation.process import Process
    from tests.simulation.world import World

PORT: Final = "broker"
CONNECT_S: Final = 5.0
REQUEST_S: Final = 5.0
PROBE_S: Final = 2.0
PENDING_MAX: Final = 200
_FRAMES: Final = ("session", "hello")
_WORDS: Final = "cluster"
_INBOX: Final = "_INBOX"
_URL: Final = "nats://broker"


class Client:
    def __init__(self, end: End, number: int) -> None:
        self.end = end
        self.number = number
        self.patterns: list[tuple[int, Topic]] = []
        self.will: tuple[Topic, bytes] | None = None


class BrokerServer:
    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._draw = process.kernel.chance(f"{process.name}/frames").random
        self._clients: dict[int, Client] = {}
        self._numbers = 0
        process.ports[PORT] = self._accept

    def _accept(self, end: End) -> None:
        self._numbers += 1
        client = self._clients[self._numbers] = Client(end, self._numbers)
        end.hear = lambda message: self._hear(client, *message)
        end.on_lost = lambda lost: self._lost(client, lost)

    def _lost(self, client: Client, lost: Lost) -> None:
        if self._clients.pop(client.number, None) is not None and client.will is not None:
            self._route(*client.will, None)

    def _hear(self, client: Client, operation: str, *arguments: Any) -> None:
        if self._world.trouble["broker_deaf"]:
            if operation == "leave":
                self._clients.pop(client.number, None)
            return
        if operation == "connect":
            (client.will,) = arguments
            client.end.send(("connected", client.number))
        elif operation == "subscribe":
            number, pattern = arguments
            client.patterns.append((number, pattern))
            client.end.send(("done", number))
        elif operation == "publish":
            topic = arguments[0]
            if topic[1] == _WORDS:
                self._world.emit("word_said", topic[2])
            self._route(*arguments)
        elif operation == "request":
            number, topic, payload = arguments
            if self._world.plan.broker == "mqtt":
                client.end.send(("done", number))
                self._route(topic, payload, None)
            elif not self._route(topic, payload, (_INBOX, str(client.number), str(number))):
                client.end.send(("nobody", number))
        elif operation == "echo":
            client.end.send(("done", arguments[0]))
        elif operation == "leave":
            client.will = None
            self._clients.pop(client.number, None)

    def _route(self, topic: Topic, payload: bytes, reply_to: Topic | None) -> int:
        if topic[0] == _INBOX:
            asker = self._clients.get(int(topic[1]))
            if asker is not None:
                asker.end.send(("done", int(topic[2])))
            return 1
        heard = 0
        for client in list(self._clients.values()):
            for number, pattern in client.patterns:
                if len(pattern) == len(topic) and all(a in (ANY, b) for a, b in zip(pattern, topic, strict=True)):
                    heard += 1
                    self._deliver(client, number, topic, payload, reply_to)
        return heard

    def _deliver(self, client: Client, number: int, topic: Topic, payload: bytes, reply_to: Topic | None) -> None:
        message = ("message", number, topic, payload, reply_to)
        trouble, draw = self._world.trouble, self._draw
        if topic[1] not in (*_FRAMES, _WORDS):
            dropped = trouble["trigger_dropped"]
            if dropped and topic[1] == "trigger" and draw() < dropped:
                self._world.reached("trigger dropped")
                if reply_to is not None:
                    self._route(reply_to, b"", None)  # acknowledged, and lost all the same
            else:
                client.end.send(message)
            return
        kind = "word" if topic[1] == _WORDS else "frame"
        if (share := trouble[f"{kind}_loss"]) and draw() < share:
            self._world.reached(f"{kind} lost")
            return
        copies = 1
        if (share := trouble[f"{kind}_repeat"]) and draw() < share:
            self._world.reached(f"{kind} repeated")
            copies = 2
        for copy in range(copies):
            most = trouble[f"{kind}_delay"]
            if kind == "word":
                # It is late by itself: it does not keep those behind it waiting.
                delay = draw() * (most or 0.5) if most or copy else 0.0
            else:
                delay = draw() * most
                if copy or ((share := trouble["frame_reorder"]) and draw() < share):
                    delay += draw() * 0.5
            if delay:
                self._process.kernel.after(delay, self._later, client, message)
            else:
                client.end.send(message)

    def _later(self, client: Client, message: tuple[Any, ...]) -> None:
        if self._process.up and client.number in self._clients:
            client.end.send(message)


class SimulatedBroker:
    """One connection to it (`queuebell.bridge.brokers.base.Broker`)."""

    address = "simulated broker"
    private = True

    def __init__(self, world: World, process: Process) -> None:
        self.kind: str = world.plan.broker
        self.dropped = 0
        self._world = world
        self._process = process
        self._end: End | None = None
        self._reason: str | None = None
        self._ended = asyncio.Event()
        self._numbers = 0
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._hears: dict[int, OnMessage] = {}

    async def connect(self, *, will: tuple[Topic, bytes] | None = None) -> None:
        end = self._end = self._world.network.open(self._process, "broker", PORT)
        end.send(("connect", will if self.kind == "mqtt" else None))
        try:
            async with asyncio.timeout(CONNECT_S):
                await end.receive()
        except (Lost, TimeoutError) as error:
            self._end_with(str(error) or "time-out")
            raise BusUnavailable(f"no broker: {str(error) or 'time-out'}") from error
        end.on_lost = lambda lost: self._end_with(str(lost))
        end.hear = self._heard
        if end.lost is not None:
            self._end_with(str(end.lost))

    async def subscribe(self, pattern: Topic, hear: OnMessage, *, at_least_once: bool = False) -> None:
        number = self._number()
        self._hears[number] = hear
        await self._ask(number, REQUEST_S, "subscribe", number, pattern)

    def publish(
        self, topic: Topic, payload: bytes, *, content_type: str | None = None, headers: Mapping[str, str] | None = None
    ) -> bool:
        if self._reason is not None or self._end is None or len(self._end.pipe.held) >= PENDING_MAX:
            return False
        self._end.send(("publish", topic, payload, None))
        return True

    def writable(self) -> bool:
        return self._reason is None and self._end is not None and self._end.writable()

    async def request(self, topic: Topic, payload: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        number = self._number()
        await self._ask(number, REQUEST_S, "request", number, topic, payload)

    async def barrier(self) -> None:
        """Return once the broker has taken everything before. Raises `BusUnavailable`."""
        await self.probe()

    async def probe(self) -> float:
        """Send a message to oneself and return the seconds it took. Raises `BusUnavailable`."""
        loop = asyncio.get_running_loop()
        began, number = loop.time(), self._number()
        await self._ask(number, PROBE_S, "echo", number)
        return loop.time() - began

    async def broken(self) -> str:
        await self._ended.wait()
        return self._reason or ""

    async def close(self) -> None:
        if self._end is not None and self._reason is None:
            self._end.send(("leave",))
        self._end_with("closed")

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _ask(self, number: int, seconds: float, *message: object) -> None:
        if self._reason is not None or self._end is None:
            raise BusUnavailable(self._reason or "not connected")
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._end.send(message)
        try:
            async with asyncio.timeout(seconds):
                there = await answer
        except TimeoutError:
            raise BusUnavailable("no answer") from None
        finally:
            self._waiting.pop(number, None)
        if not there:
            raise BusUnavailable("nobody listens, or the connection broke")

    def _heard(self, message: tuple[Any, ...]) -> None:
        if message[0] == "message":
            _, number, topic, payload, reply_to = message
            hear = self._hears.get(number)
            if hear is not None and self._reason is None:
                acknowledge = (lambda: None) if self.kind == "mqtt" and topic[1] == "trigger" else None
                hear(Incoming(topic, payload, acknowledge=acknowledge, reply_to=reply_to))
            return
        waiting = self._waiting.get(message[1])
        if waiting is not None and not waiting.done():
            waiting.set_result(message[0] == "done")

    def _end_with(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        self._ended.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(False)
        if self._end is not None:
            self._end.close()


class SimulatedChannel(BrokeredChannel):
    def __init__(self, world: World, process: Process, instance: str) -> None:
        key = None if world.desk is None else world.desk.key_of(process.host.name)
        super().__init__(_URL, instance, make=lambda: SimulatedBroker(world, process), api_key=key)


class SimulatedBus(BrokerBus):
    def __init__(self, world: World, process: Process) -> None:
        super().__init__(_URL, make=lambda: SimulatedBroker(world, process))
