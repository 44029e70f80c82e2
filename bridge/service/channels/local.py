"""Connect sessions within one process; frames are passed without encoding."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from queuebell.bridge.contract.errors import BadInput, ChannelLost
from queuebell.bridge.contract.wire import DownFrame, UpFrame, Wake
from queuebell.bridge.service.channels.base import Session, SessionHost

FRAMES_MAX = 64


class _Frames:
    """Frames that the listener has not received yet, and the reason why the session ended."""

    def __init__(self) -> None:
        self.queue: deque[DownFrame] = deque()
        self.lost: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    def changed(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class LocalOutlet:
    """The bridge's end."""

    kind = "local"

    def __init__(self, frames: _Frames) -> None:
        self._frames = frames

    def writable(self) -> bool:
        """Return False for a listener that does not read, so that its wakes stay in their slots."""
        return len(self._frames.queue) < FRAMES_MAX

    def send(self, frame: DownFrame) -> None:
        """Send a frame to the listener."""
        if self._frames.lost is None:
            self._frames.queue.append(frame)
            self._frames.changed()

    def close(self, code: int, reason: str) -> None:
        """End the session; frames sent before are still received."""
        if self._frames.lost is None:
            self._frames.lost = f"the bridge ended the session: {reason} ({code})"
            self._frames.changed()


class LocalLink:
    """The listener's end (`queuebell.listeners.session.channel.Link`)."""

    def __init__(self, frames: _Frames, session: Session) -> None:
        self._frames = frames
        self._session = session

    def send(self, frame: UpFrame) -> None:
        """Send a frame to the bridge."""
        if self._frames.lost is None:
            self._session.feed(frame)

    def hand_over(self, hear: Callable[[Wake], None]) -> None:
        """Do nothing: wakes arrive by `receive`."""

    async def receive(self) -> DownFrame:
        """Wait for the next frame. Raises `ChannelLost` once the session has ended and no frame is left."""
        while not self._frames.queue:
            if self._frames.lost is not None:
                raise ChannelLost(self._frames.lost)
            await self._frames.wait()
        return self._frames.queue.popleft()

    async def close(self) -> None:
        """End the session; may be called twice."""
        if self._frames.lost is None:
            self._frames.lost = "closed"
            self._frames.changed()
        self._session.ended("closed")


class LocalChannel:
    """Connects to a bridge in this process (`queuebell.listeners.session.channel.Channel`)."""

    def __init__(self, host: SessionHost) -> None:
        self._host = host

    async def connect(self) -> LocalLink:
        """Open a session. Raises `ChannelLost` while the bridge is stopping."""
        frames = _Frames()
        outlet = LocalOutlet(frames)
        try:
            session = self._host.connect(outlet)
        except BadInput as error:
            raise ChannelLost(str(error)) from error
        return LocalLink(frames, session)

    async def close(self) -> None:
        """Do nothing."""
