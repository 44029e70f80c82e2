"""The promise of a further server beside the bridge's own: it has an address, a start and an end."""

from __future__ import annotations

from typing import Protocol


class Door(Protocol):
    """A server that `queuebell serve` starts after the bridge's own and stops before it."""

    @property
    def name(self) -> str:
        """The setting that asks for it."""
        ...

    @property
    def address(self) -> str:
        """Where it is to listen, as it was set."""
        ...

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it, once it is started."""
        ...

    async def start(self) -> None:
        """Listen; raises `OSError` where the address or port cannot be had."""
        ...

    async def stop(self) -> None:
        """Stop listening and end within a bounded time; may be called twice."""
        ...
