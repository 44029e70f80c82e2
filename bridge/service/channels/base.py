"""The promise of a channel, bridge half: a way to hand frames to one listener's session.

The service decides, the channel carries. Nothing here blocks: a slow reader costs one slot per queue (I5) and delays
nobody else.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from bridge.contract.wire import DownFrame, UpFrame


class Over(NamedTuple):
    """How a session ends that its listener may not hold any more."""

    close_code: int
    """As a WebSocket is closed; over a broker a reason for the log."""
    why: str


UNAUTHENTICATED: Final = "unauthenticated"
FORBIDDEN: Final = "forbidden"
OVER: Final = {
    UNAUTHENTICATED: Over(4401, "the key was revoked or has expired"),
    FORBIDDEN: Over(4403, "less is granted now than this session takes"),
}
"""By the code of its refusal."""


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


class Session(Protocol):
    """One session at the bridge: frames in, and the end."""

    @property
    def outlet(self) -> Outlet:
        """The way to its listener."""
        ...

    def feed(self, frame: UpFrame) -> None:
        """Take a frame that was decoded and checked; never blocks."""
        ...

    def ended(self, reason: str) -> None:
        """The transport is gone; may be called twice."""
        ...


class SessionHost(Protocol):
    """Begins sessions (`bridge.service.bridge.Bridge`)."""

    def connect(self, outlet: Outlet) -> Session:
        """Begin a session on ``outlet``. Raises `BadInput` (``draining``)."""
        ...
