"""The terms between the bridge's own store and the bridge: what each tells the other (rules O1 to O7)."""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from bridge.contract.errors import StoreUnavailable
from bridge.queues.base import StoredMessage

T = TypeVar("T")


class Stamped(NamedTuple, Generic[T]):
    """An answer and the store's time when it was made: ``now_ms`` rounded down, ``up_ms`` rounded up (B2).

    What was put is inserted at ``now_ms``; delays, leases and times to live count from ``up_ms``.
    """

    answer: T
    now_ms: int
    up_ms: int


class Browsed(NamedTuple):
    """Some messages, and the place that the following ones begin after; None where there are none."""

    messages: list[StoredMessage]
    following: str | None


class NoRoom(StoreUnavailable):
    """There is no room for the bodies that a call would read, ``size`` bytes; it did nothing."""

    def __init__(self, size: int) -> None:
        super().__init__("there is no room for what would be read; nothing was done, try again")
        self.size = size


class ReadRoom(Protocol):
    """Room for the bodies that one call reads; the store asks for it, in any thread, before it reads a body."""

    def take(self, size: int) -> bool:
        """Take so many bytes instead of what this call has; where there is no room it has none."""
        ...

    def keep(self, size: int) -> None:
        """Give back all but so many bytes."""
        ...


class Level(msgspec.Struct, frozen=True):
    """How one queue stands after one commit, in the writer's order (O1).

    ``rose``: ``visible`` went from 0 to more at some point within this commit, even if it is 0 again now; delays and
    leases that came due since the last look count. ``put``, ``receives`` and ``empty`` count messages put, receives
    answered, and those of them that found nothing (a peek is no receive). ``next_visible_in_ms``: when the next
    invisible message becomes visible or a message expires, whichever changes the level first. ``paused``: nothing is
    given out, and all messages count as invisible. ``sources``: (found, empty) by wake source, of the receives that
    said one. ``leased`` and ``delayed``: what a pause or none has them be. ``oldest_ms``: for how long the message that
    has been visible longest has waited, None where none is.
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
    leased: int = 0
    delayed: int = 0
    oldest_ms: int | None = None


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
    """Who is told of commits: the bridge. Every call comes on the event loop's thread."""

    def grant(self, queue: str, count: int) -> Grant | None:
        """Say whether a session may be handed messages; asked when a put of ``count`` visible messages is submitted.

        Every grant given is answered by one `Handed`.
        """
        ...

    def committed(self, levels: list[Level], handed: list[Handed]) -> None:
        """Hear of one commit, before the callers of its calls do (mark before acknowledgement, B1)."""
        ...
