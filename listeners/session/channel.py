"""The promise of a channel, listener half: a way to hold one session with a bridge; and the way within one process.

A link carries frames and reports when it is broken. Reconnecting, heartbeats, hellos and modes are decided above it,
once for all channels. `LocalChannel` reaches a bridge of this process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Protocol, cast

from queuebell.bridge.contract.wire import DownFrame, UpFrame, Wake


class Link(Protocol):
    """One session's transport, open until it breaks."""

    def send(self, frame: UpFrame) -> None:
        """Send one frame, in order. Never blocks and never raises: a break shows in `receive`."""
        ...

    def hand_over(self, hear: Callable[[Wake], None]) -> None:
        """Pass wakes on from now on as they are read, where that spares a turn of the loop."""
        ...

    async def receive(self) -> DownFrame:
        """Wait for the next frame. Raises `ChannelLost` once the link is broken or closed. Cancelling loses nothing."""
        ...

    async def close(self) -> None:
        """Send what was handed over, then end the link; takes at most a second; may be called twice."""
        ...


class Channel(Protocol):
    """A way to a bridge; its text is where that is, for the log, without a user, a password or options."""

    async def connect(self) -> Link:
        """Open a link. Raises `ChannelLost` when it cannot be made within 5 s."""
        ...

    async def close(self) -> None:
        """Release everything; may be called twice."""
        ...


class HasLocalChannel(Protocol):
    """A bridge of this process, as far as a listener needs to know it."""

    def local_channel(self) -> object:
        """Return a way to open sessions with it."""
        ...


class LocalChannel:
    """Adapts what a bridge's ``local_channel()`` returns; `connect` there may be a coroutine or a plain call."""

    def __init__(self, bridge: HasLocalChannel) -> None:
        self._channel = cast(Channel, bridge.local_channel())

    def __str__(self) -> str:
        return "this process"

    async def connect(self) -> Link:
        """Open a link. Raises `ChannelLost` while the bridge is stopping."""
        link: object = self._channel.connect()
        return cast(Link, await link if inspect.isawaitable(link) else link)

    async def close(self) -> None:
        """Release the channel; the bridge lives on."""
        closing: object = self._channel.close()
        if inspect.isawaitable(closing):
            await closing
