"""Ways to the bridge: sessions and triggers over connections of their own, or over a broker.

Connections are ordered and reliable; frames of sessions over the broker are what faults lose, repeat, delay and let
overtake each other, as brokers that are joined or that reconnect do. As ``nats`` a request is answered by whoever hears
it, as ``mqtt`` by the broker, which also publishes last wills.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.brokers.base import ANY, Incoming, OnMessage, Topic
from queuebell.bridge.contract.errors import BadInput, BusUnavailable, ChannelLost
from queuebell.bridge.contract.event import CloudQueueWorkDetected, decode_events, encode_events
from queuebell.bridge.contract.failover import TRY_S, Failover, Outcome
from queuebell.bridge.contract.wire import (
    DownFrame,
    ErrorFrame,
    Hello,
    UpFrame,
    Wake,
    decode_down,
    decode_up,
    encode_frame,
)
from queuebell.bridge.producer.buses.brokered import BrokerBus
from queuebell.listeners.session.brokered import BrokeredChannel
from tests.simulation.process import BUFFER, Lost

if TYPE_CHECKING:
    from queuebell.bridge.access.keys import Identity
    from queuebell.bridge.service.bridge import Bridge
    from tests.simulation.access import WatchedFile
    from tests.simulation.process import End, Process
    from tests.simulation.store_calls import RemoteStore
    from tests.simulation.world import World

SESSIONS: Final = "sessions"
TRIGGERS: Final = "triggers"
CONNECT_S: Final = 5.0
PUBLISH_S: Final = 10.0
ASIDE: Final = 8
"""Frames besides wakes that a session may have on their way: answers and the heartbeats of one D."""
_ACCEPTED: Final = b"accepted"
_REFUSED: Final = b"refused"
_REVOKED: Final = b"revoked"


class WireLink:
    def __init__(self, end: End, over: Callable[[], None] = lambda: None) -> None:
        self._end = end
        self._over: Callable[[], None] | None = over

    def send(self, frame: UpFrame) -> None:
        self._end.send(encode_frame(frame))

    def hand_over(self, hear: Callable[[Wake], None]) -> None:
        """Do nothing: they come by `receive`."""

    async def receive(self) -> DownFrame:
        while True:
            try:
                message = await self._end.receive()
            except Lost as lost:
                raise ChannelLost(str(lost)) from lost
            if message == _REVOKED:
                raise ChannelLost("the bridge knows no such key any more")
            frame = decode_down(message)
            if frame is not None:
                return frame

    async def close(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over()
        self._end.close()


class WireDoor:
    """The way from one process to the bridge: a channel for sessions, and a bus for triggers."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._credential = None if world.desk is None else world.desk.credential(process.host.name)
        several = len(world.bridges) > 1
        self._failover = Failover(world.bridges, process.chance.random) if several else None

    async def connect(self) -> WireLink:
        """Open a session's connection, with the first of several bridges that answers (C9). Raises `ChannelLost`."""
        name, end = await self._first(self._connect, CONNECT_S, TRY_S)
        return WireLink(end, lambda: None if self._failover is None else self._over(self._failover, name))

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Bring triggers to the bridge, or to the first of several that takes them. Raises `BusUnavailable`."""
        several_s = max(TRY_S, PUBLISH_S / len(self._world.bridges))
        await self._first(functools.partial(self._publish, events), PUBLISH_S, several_s)

    async def _first(self, ask: Callable[..., Awaitable[Any]], alone_s: float, several_s: float) -> tuple[str, Any]:
        failover = self._failover
        if failover is None:
            return "", await ask(self._world.bridges[0], alone_s)
        loop = asyncio.get_running_loop()
        told: Exception | None = None
        for name in failover.round(loop.time()):
            try:
                answer = await ask(name, several_s)
            except (ChannelLost, BusUnavailable) as error:
                told = error
                failover.record(name, Outcome.UNKNOWN, loop.time(), repeatable=True)
            except asyncio.CancelledError:
                failover.record(name, Outcome.UNKNOWN, loop.time())
                raise
            else:
                failover.record(name, Outcome.ANSWERED, loop.time())
                return name, answer
        assert told is not None
        raise told

    @staticmethod
    def _over(failover: Failover[str], name: str) -> None:
        failover.record(name, Outcome.UNKNOWN, asyncio.get_running_loop().time())

    async def _connect(self, bridge: str, within_s: float) -> End:
        end = self._world.network.open(self._process, bridge, SESSIONS)
        if self._credential is not None:
            end.send(self._credential.secret())
        try:
            async with asyncio.timeout(within_s):
                if await end.receive() != _ACCEPTED:
                    raise Lost("the key is not known, or does not grant this")
        except (Lost, TimeoutError) as error:
            end.close()
            raise ChannelLost(str(error) or "time-out") from error
        except BaseException:
            end.close()
            raise
        return end

    async def _publish(self, events: Sequence[CloudQueueWorkDetected], bridge: str, within_s: float) -> None:
        end = self._world.network.open(self._process, bridge, TRIGGERS)
        key = None if self._credential is None else self._credential.secret()
        end.send((key, encode_events(list(events))))
        try:
            async with asyncio.timeout(within_s):
                refusal = await end.receive()
        except (Lost, TimeoutError) as error:
            raise BusUnavailable(str(error) or "time-out") from error
        finally:
            end.close()
        if refusal is not None:
            raise BusUnavailable(f"the bridge rejected it: {refusal}")

    async def close(self) -> None:
        """Nothing is held between calls."""


class OwnDoor(WireDoor):
    """The same where the listener's store is the bridge's own, and it knows that from its configuration."""

    def __init__(self, world: World, process: Process, store: RemoteStore) -> None:
        super().__init__(world, process)
        self.store = store

    def local_channel(self) -> WireDoor:
        return WireDoor(self._world, self._process)


class WireOutlet:
    kind = "websocket"

    def __init__(self, world: World, end: End) -> None:
        self._world = world
        self._end = end

    def writable(self) -> bool:
        return self._end.writable()

    def send(self, frame: DownFrame) -> None:
        self._end.send(encode_frame(frame))
        self._world.holds("frames", self._end.unread(), BUFFER + self._world.plan.queues + ASIDE)

    def close(self, code: int, reason: str) -> None:
        self._end.close()


class WireServer:
    def __init__(self, world: World, process: Process, bridge: Bridge, access: WatchedFile | None = None) -> None:
        self._world = world
        self._bridge = bridge
        self._access = access
        self._tasks: set[asyncio.Task[None]] = set()
        self._draw = process.kernel.chance(f"{process.name}/triggers").random
        process.ports[SESSIONS] = self._session
        process.ports[TRIGGERS] = self._triggers

    def _session(self, end: End) -> None:
        access = self._access
        if access is None:
            self._open(end)
        else:
            end.hear = lambda key: self._begin(self._admit(access, end, key), "admission of a session")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(self, access: WatchedFile, end: End, key: str) -> None:
        """Open a session for whoever may take from any queue at all, as the web server does."""
        identity = await access.who(key)
        if identity is None or not identity.principal.may(Verb.TAKE):
            access.desk.judged(key, Verb.TAKE, [""], let_in=False)
            end.send(_REFUSED)
            end.close()
            return
        # The handshake: what was granted before may be taken away meanwhile.
        await asyncio.sleep(0)
        self._open(end, (access, identity, key))

    def _open(self, end: End, by: tuple[WatchedFile, Identity, str] | None = None) -> None:
        end.send(_ACCEPTED)
        outlet = WireOutlet(self._world, end)
        try:
            session = self._bridge.connect(outlet)
        except BadInput:
            end.close()
            return
        permit = None if by is None else by[0].permit(by[1], Verb.TAKE, lambda code: over(_REVOKED, code))

        def over(last: object, reason: str) -> None:
            if permit is not None:
                permit.close()
            if last is not None:
                end.send(last)
            session.ended(reason)
            end.close()

        def hear(raw: bytes) -> None:
            frame = decode_up(raw)
            if isinstance(frame, Hello) and permit is not None and by is not None:
                queues = [each.queue for each in frame.queues]
                refused = permit.use_queues(queues)
                if refused is not None:
                    by[0].desk.judged(by[2], Verb.TAKE, queues, let_in=False)
                    over(encode_frame(ErrorFrame("forbidden", f"'take' is not granted on {refused}")), "forbidden")
                    return
                by[0].desk.opened(session.number, by[2], queues)
                frame = msgspec.structs.replace(frame, instance=permit.instance(frame.instance))
            if frame is not None:
                session.feed(frame)

        end.hear = hear
        end.on_lost = lambda lost: over(None, str(lost))

    def _triggers(self, end: End) -> None:
        access = self._access

        def hear(request: tuple[str | None, bytes]) -> None:
            key, raw = request
            if access is None:
                take(raw)
            else:
                self._begin(asked(access, key, raw), "admission of a trigger")

        async def asked(access: WatchedFile, key: str | None, raw: bytes) -> None:
            refusal = await access.refusal(key, Verb.RING, [event.queue for event in decode_events(raw)])
            if refusal:
                end.send(refusal)
                end.close()
            else:
                take(raw)

        def take(raw: bytes) -> None:
            dropped = self._world.trouble["trigger_dropped"]
            refusal = None
            if dropped and self._draw() < dropped:
                self._world.reached("trigger dropped")
            else:
                try:
                    self._bridge.trigger(decode_events(raw), bus="http")
                except BadInput as error:
                    refusal = error.code
            end.send(refusal)
            end.close()

        end.hear = hear


PORT: Final = "broker"
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
