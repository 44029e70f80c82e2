"""What the rules want done; the shell does it and decides nothing."""

from __future__ import annotations

from typing import Literal

import msgspec

from bridge.contract.cluster import ClusterMessage
from bridge.contract.trace_context import Traces
from bridge.contract.wire import DownFrame, Reason


class Flush(msgspec.Struct, frozen=True):
    """A session has wakes in its slots: take them when it is writable."""

    session: int


class Send(msgspec.Struct, frozen=True):
    """Send this frame, in order, after the wakes flushed before."""

    session: int
    frame: DownFrame


class End(msgspec.Struct, frozen=True):
    """End a session; the rules have forgotten it already."""

    session: int
    code: int
    reason: str


class Refresh(msgspec.Struct, frozen=True):
    """Let time pass in the own store for this queue and hear its level again (O3)."""

    queue: str


class Reclaim(msgspec.Struct, frozen=True):
    """Release carried messages that are still under these receipts (O7).

    ``uncount`` gives the dequeue count back, for messages that no handler saw. Once a listener said `started` the
    attempt counts although the session was lost: a message that kills its worker would otherwise never be buried.
    """

    queue: str
    claims: tuple[tuple[str, str], ...]
    uncount: bool


class Announce(msgspec.Struct, frozen=True):
    """Tell plain subscribers, who hear wakes but cannot cover (B12)."""

    queue: str
    gen: int
    reason: Reason
    size: int
    marked_at: float
    traceparent: str | None
    shared: bool = False
    """Whether the other bridges of a cluster would tell of it as well (C10)."""
    traces: Traces | None = None


class AnnounceInTurn(msgspec.Struct, frozen=True):
    """What plain subscribers of one ``way`` are told of a queue in turn with other bridges (C10).

    ``held``: what was held for them; ``again``: that work waits, if it does; ``drop``: nothing, another bridge told.
    """

    way: str
    queue: str
    what: Literal["held", "again", "drop"]


class Broadcast(msgspec.Struct, frozen=True):
    """Say this to the other bridges of the cluster; if that cannot be done now, not at all."""

    word: ClusterMessage


Command = Flush | Send | End | Refresh | Reclaim | Announce | AnnounceInTurn | Broadcast
