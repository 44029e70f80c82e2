"""Define the bridge's half of a channel, which carries frames to one listener's session.

Nothing here blocks: a slow reader costs one slot per queue (I5) and delays no other.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from queuebell.bridge.contract.wire import DownFrame, UpFrame


class Over(NamedTuple):
    """Close code and reason of a session whose listener lost its permission."""

    close_code: int
    """Closes a WebSocket; over a broker it is only logged."""
    why: str


UNAUTHENTICATED: Final = "unauthenticated"
FORBIDDEN: Final = "forbidden"
OVER: Final = {
    UNAUTHENTICATED: Over(4401, "the key was revoked or has expired"),
    FORBIDDEN: Over(4403, "this session no longer has access to all its queues"),
}
"""By error code."""


class Outlet(Protocol):
    """Declares the bridge's end of a session."""

    @property
    def kind(self) -> str:
        """``local``, ``websocket``, ..., for state and logs."""
        ...

    def writable(self) -> bool:
        """Return whether a frame would leave immediately; if not, wakes stay in their slots and merge."""
        ...

    def send(self, frame: DownFrame) -> None:
        """Send one frame, in order; never blocks, and does not raise for a lost peer."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End the session; ``code`` is a WebSocket close code. May be called twice."""
        ...


class Session(Protocol):
    """Declares a session as its channel uses it: it takes frames, and it ends."""

    @property
    def outlet(self) -> Outlet:
        """The outlet to its listener."""
        ...

    def feed(self, frame: UpFrame) -> None:
        """Handle a decoded and checked frame; never blocks."""
        ...

    def ended(self, reason: str) -> None:
        """Handle the loss of the transport; may be called twice."""
        ...


class SessionHost(Protocol):
    """Begins sessions (`queuebell.bridge.service.bridge.Bridge`)."""

    def connect(self, outlet: Outlet) -> Session:
        """Begin a session on ``outlet``. Raises `BadInput` (``draining``)."""
        ...
