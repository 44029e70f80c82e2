"""How a bridge works, beside where it listens and what it is connected to."""

from __future__ import annotations

import msgspec

from bridge.core.admission import BYTES_MAX, WAIT_MS
from bridge.core.settings import Periods
from bridge.queues.base import PUT_WINDOW_S


class BridgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a bridge works; the numbers of the protocol are in `Periods`."""

    periods: Periods = Periods()
    synchronous: str = "FULL"
    """SQLite's synchronous mode: FULL survives power loss, NORMAL may lose the last commits. Defaults to FULL."""
    put_window_s: float = PUT_WINDOW_S
    """How long the key of a put is remembered at least."""
    put_waiting_bytes: int = BYTES_MAX
    """What puts that wait to be committed may take, in bytes."""
    put_wait_ms: int = WAIT_MS
    """How long a put over HTTP may be expected to wait before it is refused instead."""
