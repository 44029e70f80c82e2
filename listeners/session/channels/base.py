"""The promise of a channel, listener half: a way to hold one session with a bridge.

A link carries frames and says when it is broken. Reconnecting, heartbeats, hellos and modes are decided above it,
once for all channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bridge.contract.wire import DownFrame, UpFrame, Wake


class Link(Protocol):
    """One session's transport, open until it breaks."""

    def send(self, frame: UpFrame) -> None:
        """Put one frame on its way, in order. Never blocks and never raises: a break shows in `receive`."""
        ...

    def hand_over(self, hear: Callable[[Wake], None]) -> None:
        """Have wakes from now on handed over as they are read, where that spares a turn of the loop."""
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
        """Let go of everything; may be called twice."""
        ...
