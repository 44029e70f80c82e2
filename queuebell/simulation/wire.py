"""Sessions and triggers over connections of their own, both halves: what WebSocket and HTTP are outside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bridge.contract.errors import BadInput, BusUnavailable, ChannelLost
from bridge.contract.event import CloudQueueWorkDetected, decode_events, encode_events
from bridge.contract.wire import DownFrame, UpFrame, decode_down, decode_up, encode_frame
from queuebell.simulation.network import BUFFER, Lost

if TYPE_CHECKING:
    from bridge.service.bridge import Bridge
    from queuebell.simulation.network import End
    from queuebell.simulation.process import Process
    from queuebell.simulation.store_calls import RemoteStore
    from queuebell.simulation.world import World

SESSIONS: Final = "sessions"
TRIGGERS: Final = "triggers"
CONNECT_S: Final = 5.0
PUBLISH_S: Final = 10.0
ASIDE: Final = 8
"""Frames besides wakes that a session may have on their way: answers and the heartbeats of one D."""
_ACCEPTED: Final = b"accepted"


class WireLink:
    """The listener's end of a session (`listeners.session.channels.base.Link`)."""

    def __init__(self, end: End) -> None:
        self._end = end

    def send(self, frame: UpFrame) -> None:
        """Put one frame on its way."""
        self._end.send(encode_frame(frame))

    async def receive(self) -> DownFrame:
        """Wait for the next frame. Raises `ChannelLost`."""
        while True:
            try:
                frame = decode_down(await self._end.receive())
            except Lost as lost:
                raise ChannelLost(str(lost)) from lost
            if frame is not None:
                return frame

    async def close(self) -> None:
        """Let what was sent arrive, and end it."""
        self._end.close()


class WireDoor:
    """The way from one process to the bridge: a channel for sessions, and a bus for triggers."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    async def connect(self) -> WireLink:
        """Open a session's connection. Raises `ChannelLost`."""
        end = self._world.network.open(self._process, "bridge", SESSIONS)
        try:
            async with asyncio.timeout(CONNECT_S):
                await end.receive()
        except (Lost, TimeoutError) as error:
            end.close()
            raise ChannelLost(str(error) or "time-out") from error
        except BaseException:
            end.close()
            raise
        return WireLink(end)

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Bring triggers to the bridge. Raises `BusUnavailable` and `BadInput`."""
        end = self._world.network.open(self._process, "bridge", TRIGGERS)
        end.send(encode_events(list(events)))
        try:
            async with asyncio.timeout(PUBLISH_S):
                refusal = await end.receive()
        except (Lost, TimeoutError) as error:
            raise BusUnavailable(str(error) or "time-out") from error
        finally:
            end.close()
        if refusal is not None:
            raise BusUnavailable(f"the bridge refused it: {refusal}")

    async def close(self) -> None:
        """Nothing is held between calls."""


class OwnDoor(WireDoor):
    """The same where the listener's store is the bridge's own, and it knows that from its configuration."""

    def __init__(self, world: World, process: Process, store: RemoteStore) -> None:
        super().__init__(world, process)
        self.store = store

    def local_channel(self) -> WireDoor:
        """Return the way for sessions."""
        return WireDoor(self._world, self._process)


class WireOutlet:
    """The bridge's end of a session (`bridge.service.channels.base.Outlet`)."""

    kind = "websocket"

    def __init__(self, world: World, end: End) -> None:
        self._world = world
        self._end = end

    def writable(self) -> bool:
        """Whether little enough is on its way."""
        return self._end.writable()

    def send(self, frame: DownFrame) -> None:
        """Put one frame on its way."""
        self._end.send(encode_frame(frame))
        self._world.holds("frames", self._end.unread(), BUFFER + self._world.plan.queues + ASIDE)

    def close(self, code: int, reason: str) -> None:
        """Let what was sent arrive, and end it."""
        self._end.close()


class WireServer:
    """The bridge's half."""

    def __init__(self, world: World, process: Process, bridge: Bridge) -> None:
        self._world = world
        self._bridge = bridge
        self._draw = process.kernel.chance(f"{process.name}/triggers").random
        process.ports[SESSIONS] = self._session
        process.ports[TRIGGERS] = self._triggers

    def _session(self, end: End) -> None:
        end.send(_ACCEPTED)
        try:
            session = self._bridge.connect(WireOutlet(self._world, end))
        except BadInput:
            end.close()
            return

        def hear(raw: bytes) -> None:
            frame = decode_up(raw)
            if frame is not None:
                session.feed(frame)

        end.hear = hear
        end.on_lost = lambda lost: session.ended(str(lost))

    def _triggers(self, end: End) -> None:
        def hear(raw: bytes) -> None:
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
