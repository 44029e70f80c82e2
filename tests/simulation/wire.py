"""Sessions and triggers over connections of their own, both halves: what WebSocket and HTTP are outside."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from queuebell.bridge.access.grants import Verb
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
from tests.simulation.network import BUFFER, Lost

if TYPE_CHECKING:
    from queuebell.bridge.access.keys import Identity
    from queuebell.bridge.service.bridge import Bridge
    from tests.simulation.access import WatchedFile
    from tests.simulation.network import End
    from tests.simulation.process import Process
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
