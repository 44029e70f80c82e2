"""Sessions with a bridge in this very process."""

from __future__ import annotations

import inspect
from typing import Protocol, cast

from listeners.session.channels.base import Channel, Link


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
        """Let go of the channel; the bridge lives on."""
        closing: object = self._channel.close()
        if inspect.isawaitable(closing):
            await closing
