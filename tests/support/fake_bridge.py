"""A bridge played by hand, for one listener: a channel whose other end the test holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from queuebell.bridge.contract.errors import ChannelLost
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import (
    BridgeHeartbeat,
    Bye,
    CarriedMessage,
    DownFrame,
    Hello,
    LastEmptyReceive,
    ListenerHeartbeat,
    Reason,
    UpFrame,
    Wake,
    Welcome,
    WelcomedQueue,
)
from queuebell.bridge.queues.base import QueueStore

F = TypeVar("F")


class FakeLink:
    """The listener's end of one session."""

    def __init__(self, bridge: FakeBridge) -> None:
        self.bridge = bridge
        self.down: asyncio.Queue[DownFrame | None] = asyncio.Queue()
        self.closed = False

    def send(self, frame: UpFrame) -> None:
        if not self.closed:
            self.bridge.heard(self, frame)

    def hand_over(self, hear: Callable[[Wake], None]) -> None:
        """Do nothing: they come by `receive`."""

    async def receive(self) -> DownFrame:
        frame = None if self.closed else await self.down.get()
        if frame is None:
            self.closed = True
            raise ChannelLost("the link is over")
        return frame

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.down.put_nowait(None)


class FakeBridge:
    """Welcomes, echoes heartbeats, and otherwise does what the test says; `frames` is what it heard.

    ``silent`` takes no notice of anything, ``away`` refuses connections; ``covered_age_ms`` goes into heartbeats.
    """

    def __init__(self, store: QueueStore | None = None, boot: str = "b" * 32) -> None:
        self.store = store
        self.boot = boot
        self.frames: list[UpFrame] = []
        self.beats: list[ListenerHeartbeat] = []
        self.hellos: list[Hello] = []
        self.link: FakeLink | None = None
        self.silent = False
        self.away = False
        self.covered_age_ms: int | None = None
        self.gen = 0
        self.sessions = 1
        self.connects = 0
        self._changed = asyncio.Event()

    # listeners.session.channel.Channel, handed out as a bridge of this process would ----------------------------

    def local_channel(self) -> FakeBridge:
        return self

    async def connect(self) -> FakeLink:
        self.connects += 1
        if self.away:
            raise ChannelLost("nobody is there")
        self.link = FakeLink(self)
        return self.link

    async def close(self) -> None:
        pass

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Take what is announced, and wake nobody for it."""

    # The test's side ------------------------------------------------------------------------------------------------

    def heard(self, link: FakeLink, frame: UpFrame) -> None:
        if self.silent:
            return
        if isinstance(frame, Hello):
            self.hellos.append(frame)
            states = [WelcomedQueue(sub.queue, self.gen, True, self.covered_age_ms) for sub in frame.queues]
            link.down.put_nowait(Welcome(self.boot, 5000, 60_000, self.sessions, states))
        elif isinstance(frame, ListenerHeartbeat):
            self.beats.append(frame)
            cover = {queue: LastEmptyReceive(self.gen, self.covered_age_ms) for queue in frame.queues}
            link.down.put_nowait(BridgeHeartbeat(self.boot, frame.stamp, 0, self.sessions, cover))
        elif isinstance(frame, Bye):
            self.frames.append(frame)
            link.down.put_nowait(Bye())
        else:
            self.frames.append(frame)
        self._changed.set()

    def wake(
        self,
        queue: str,
        size: int = 1,
        reason: Reason = "trigger",
        messages: Sequence[CarriedMessage] | None = None,
        traceparent: str | None = None,
    ) -> int:
        """Send a wake of a new generation."""
        assert self.link is not None
        self.gen += 1
        carried = None if messages is None else list(messages)
        self.link.down.put_nowait(Wake(queue, self.boot, self.gen, reason, size, 0, traceparent, messages=carried))
        return self.gen

    def cut(self) -> None:
        """Break the session."""
        self.link.down.put_nowait(None)

    def of(self, kind: type[F]) -> list[F]:
        """Return the frames of one kind."""
        return [frame for frame in self.frames if isinstance(frame, kind)]

    async def until(self, kind: type[F], count: int = 1) -> list[F]:
        """Wait until so many frames of a kind were heard (a hello counts as `Hello`)."""
        while len(found := [f for f in [*self.hellos, *self.beats, *self.frames] if isinstance(f, kind)]) < count:
            self._changed.clear()
            await self._changed.wait()
        return found
