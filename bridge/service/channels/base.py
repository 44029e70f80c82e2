"""The promise of a channel, bridge half: a way to hand frames to one listener's session.

The service decides, the channel carries. Nothing here blocks: a slow reader costs one slot per queue (I5) and delays
nobody else.
"""

from __future__ import annotations

from typing import Protocol

from bridge.contract.wire import DownFrame


class Outlet(Protocol):
    """The bridge's end of one session."""

    @property
    def kind(self) -> str:
        """``local``, ``websocket``, ...: for state and logs."""
        ...

    def writable(self) -> bool:
        """Whether a frame sent now would be on its way at once; False keeps wakes in their slots, where they merge."""
        ...

    def send(self, frame: DownFrame) -> None:
        """Put one frame on its way, in order; never blocks, never raises for a peer that is gone."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End the session; ``code`` is a WebSocket close code. May be called twice."""
        ...
