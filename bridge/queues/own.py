"""What the bridge sees of its own store, beyond the promise of every queue store (rules O1 to O7).

An own store sits in the bridge's process. It tells an observer how each queue stands after each commit, in the order
of its one writer, so that the bridge needs neither triggers nor sweeps for these queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from bridge.queue import Claim, QueueStore, StoredMessage


class Level(msgspec.Struct, frozen=True):
    """How one queue stands after one commit, in the writer's order (O1).

    ``rose``: ``visible`` went from 0 to more at some point within this commit, even if it is 0 again now; delays and
    leases that came due since the last look count. ``put``, ``receives`` and ``empty`` count messages put, receives
    answered, and those of them that found nothing (a peek is no receive). ``next_visible_in_ms``: when the next
    invisible message becomes visible or a message expires, whichever changes the level first. ``paused``: nothing is
    given out, and all messages count as invisible.
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


class OwnStore(QueueStore, Protocol):
    """A queue store in the bridge's own process."""

    boot: str
    """32 hex digits; goes into `Received.boot`."""

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
