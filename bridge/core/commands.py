"""Define the commands that the rules return; the shell performs them and decides nothing."""

from __future__ import annotations

from typing import Literal

import msgspec

from queuebell.bridge.contract.cluster import ClusterMessage
from queuebell.bridge.contract.trace_context import Traces
from queuebell.bridge.contract.wire import DownFrame, Reason


class Flush(msgspec.Struct, frozen=True):
    """Take a session's wakes from its slots when it is writable."""

    session: int


class Send(msgspec.Struct, frozen=True):
    """Send this frame, in order, after the wakes flushed before."""

    session: int
    frame: DownFrame


class End(msgspec.Struct, frozen=True):
    """End a session that the rules have already forgotten."""

    session: int
    code: int
    reason: str


class Refresh(msgspec.Struct, frozen=True):
    """Expire due messages of this queue in the embedded store and report its state again (O3)."""

    queue: str


class Reclaim(msgspec.Struct, frozen=True):
    """Release carried messages that are still under these receipts (O7).

    ``uncount`` restores the dequeue count, for messages that no handler saw. After `started` the attempt counts even if
    the session was lost: otherwise a message that kills its worker would never be dead-lettered.
    """

    queue: str
    claims: tuple[tuple[str, str], ...]
    uncount: bool


class Announce(msgspec.Struct, frozen=True):
    """Notify subscribers, which receive wakes but cannot settle work (B12)."""

    queue: str
    gen: int
    reason: Reason
    size: int
    requested_at: float
    traceparent: str | None
    shared: bool = False
    """True if the other bridges of a cluster would notify too (C10)."""
    traces: Traces | None = None


class AnnounceInTurn(msgspec.Struct, frozen=True):
    """Notify subscribers of one ``route`` about a queue, in turn with other bridges (C10).

    ``held``: send the held notice; ``again``: send that work is waiting, if it is; ``drop``: send nothing, a peer did.
    """

    route: str
    queue: str
    what: Literal["held", "again", "drop"]


class Broadcast(msgspec.Struct, frozen=True):
    """Send a message to the other bridges of the cluster; drop it if that is not possible now."""

    message: ClusterMessage


Command = Flush | Send | End | Refresh | Reclaim | Announce | AnnounceInTurn | Broadcast
