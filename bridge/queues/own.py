"""What the bridge sees of its own store, beyond the promise of every queue store (rules O1 to O7).

An own store sits in the bridge's process. It tells an observer how each queue stands after each commit, in the order
of its one writer, so that the bridge needs neither triggers nor sweeps for these queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from bridge.queue import (
    Claim,
    Depth,
    NewMessage,
    PutOnceStore,
    PutReceipt,
    Received,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
)

T = TypeVar("T")


class Stamped(NamedTuple, Generic[T]):
    """An answer and the store's time when it was made: ``now_ms`` rounded down, ``up_ms`` rounded up (B2).

    What was put is inserted at ``now_ms``; delays, leases and times to live count from ``up_ms``.
    """

    answer: T
    now_ms: int
    up_ms: int


class Level(msgspec.Struct, frozen=True):
    """How one queue stands after one commit, in the writer's order (O1).

    ``rose``: ``visible`` went from 0 to more at some point within this commit, even if it is 0 again now; delays and
    leases that came due since the last look count. ``put``, ``receives`` and ``empty`` count messages put, receives
    answered, and those of them that found nothing (a peek is no receive). ``next_visible_in_ms``: when the next
    invisible message becomes visible or a message expires, whichever changes the level first. ``paused``: nothing is
    given out, and all messages count as invisible. ``sources``: (found, empty) by wake source, of the receives that
    said one.
    """

    queue: str
    exists: bool
    visible: int
    invisible: int
    rose: bool
    put: int
    receives: int
    empty: int
    next_visible_in_ms: int | None
    paused: bool = False
    sources: dict[str, tuple[int, int]] = {}


class Grant(msgspec.Struct, frozen=True):
    """Leave to hand up to ``limit`` messages to one session within the put's own commit, leased for ``lease_s`` (O7).

    ``session`` means nothing to the store.
    """

    session: str
    limit: int
    lease_s: float


class Handed(msgspec.Struct, frozen=True):
    """The outcome of a grant.

    ``messages`` are leased and their dequeue count is raised; there may be none, as when the put failed. ``visible``
    counts the visible messages at that point of the writer's order, ``messages`` among them.
    """

    queue: str
    session: str
    messages: list[StoredMessage]
    visible: int


class StoreObserver(Protocol):
    """The bridge's ear; every call comes on the event loop's thread."""

    def grant(self, queue: str, count: int) -> Grant | None:
        """Say whether a session may be handed messages; asked when a put of ``count`` visible messages is submitted.

        Every grant given is answered by one `Handed`.
        """
        ...

    def committed(self, levels: list[Level], handed: list[Handed]) -> None:
        """Hear of one commit, before the callers of its calls do (mark before acknowledgement, B1)."""
        ...


class OwnStore(PutOnceStore, Protocol):
    """A queue store in the bridge's own process."""

    boot: str
    """32 hex digits; goes into `Received.boot`."""

    @property
    def remembered(self) -> int:
        """How many keys of `put_once` are remembered."""
        ...

    def observe(self, observer: StoreObserver) -> None:
        """Let ``observer`` hear of every commit from now on."""
        ...

    def reread(self, queue: str) -> None:
        """Let time pass for this queue and tell its level to the observer (O3); returns at once."""
        ...

    def reclaim(self, queue: str, claims: Sequence[Claim], *, uncount: bool = True) -> None:
        """Take messages back that were handed over but not taken up (O7); returns at once.

        Those still under exactly these receipts become visible at once, their receipt void, and with ``uncount``
        their dequeue count restored; others stay as they are.
        """
        ...

    async def put_existing(self, queue: str, messages: Sequence[NewMessage]) -> Stamped[list[PutReceipt]]:
        """Put like `put`, but never make a queue: an unknown one raises `QueueNotFound`."""
        ...

    async def receive_stamped(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Stamped[Received]:
        """Receive like `receive`, and say at what time."""
        ...

    def ask_receive(self, queue: str, limit: int = 1, visibility_s: float = 30.0) -> asyncio.Future[Stamped[Received]]:
        """Begin what `receive_stamped` does; what it refuses at once is raised at once."""
        ...

    def ask_settle(self, queue: str, settlement: Settlement) -> asyncio.Future[Settling]:
        """Begin what `settle` does; what it refuses at once is raised at once."""
        ...

    async def update(
        self, queue: str, claim: Claim, visibility_s: float, body: bytes | None = None
    ) -> Stamped[Settled]:
        """Have a message visible ``visibility_s`` (0 to 604800) from now, perhaps with another body."""
        ...

    async def create_alike(self, queue: str, metadata: dict[str, str]) -> bool | None:
        """Make a queue: True; False where it stands with the same metadata, None where it stands with other."""
        ...

    async def replace_metadata(self, queue: str, metadata: dict[str, str]) -> None:
        """Set the metadata of a queue; an unknown one raises `QueueNotFound`."""
        ...

    def made(self, queue: str) -> int | None:
        """Return a queue's own number, at once; None where it does not exist.

        A queue that is made again has another. It survives restarts, and a clear does not change it. Raises `Closed`
        where the store is not open.
        """
        ...

    async def remove(self, queue: str) -> None:
        """Delete a queue and its messages; an unknown one raises `QueueNotFound`."""
        ...

    async def standing(self, queue: str) -> tuple[dict[str, str], Depth]:
        """Return metadata and depth of a queue; an unknown one raises `QueueNotFound`."""
        ...

    async def listing(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, dict[str, str]]]:
        """List like `queues`, with metadata."""
        ...

    def levels(self) -> list[Level]:
        """Return one level for each queue that existed at start; ``rose`` where something is visible."""
        ...

    def failure(self) -> str | None:
        """Return None while the file works, else one line that says what is wrong."""
        ...

    async def open(self) -> None:
        """Take the store into use.

        Raises `StoreOwned`, `StoreDamaged`, or `ConfigurationError` for a file that a newer version wrote.
        """
        ...
