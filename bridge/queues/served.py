"""What the doors of a bridge (its HTTP API, the Azure endpoint) ask of the queues behind them: this, and nothing else.

Two keep it: the bridge's own store (`bridge.queues.embedded.own_store`), and an engine that several bridges share
(`bridge.service.elsewhere`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from bridge.contract.errors import QueueNotFound
from bridge.queues.base import (
    AsyncConnection,
    Body,
    Claim,
    Depth,
    NewMessage,
    PutOnceStore,
    PutReceipt,
    Received,
    Settled,
    StoredMessage,
    refuse_connection,
)
from bridge.queues.embedded.terms import Browsed, ReadRoom, Stamped
from bridge.queues.missing import missing_from


@runtime_checkable
class Identified(Protocol):
    """An engine that says who it is."""

    async def identity(self) -> str | None:
        """Return hex digits that another engine would not return, by whatever address it is reached; None if refused.

        A copy may return the same as what it was made of. Raises as other calls do.
        """
        ...


class ServedStore(PutOnceStore, Protocol):
    """A queue store as a bridge serves it to others, 32 messages a call at most.

    What it cannot do is `Unsupported`, and nothing was done then.
    """

    def engine(self, queue: str) -> str | None:
        """Return the fingerprint (B11) of the engine that holds this queue; None where it is the bridge's own."""
        ...

    async def open(self) -> None:
        """Take the store into use; once is enough. Raises `ConfigurationError` for one that cannot be."""
        ...

    def failure(self) -> str | None:
        """Return None while the store works, as far as is known, else one line that says what is wrong."""
        ...

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Put a message under a key unless this very one was before; no transaction of the caller's can be joined."""
        refuse_connection(connection)
        try:
            return await self.put_once_plainly(queue, key, body, create)
        except QueueNotFound:
            raise await missing_from(self, queue) from None

    async def put_once_plainly(self, queue: str, key: str, body: Body, create: bool) -> PutReceipt | None:
        """Put under a key; `QueueNotFound` costs no look for names that are near."""
        ...

    async def receive(
        self,
        queue: str,
        limit: int = 1,
        visibility_s: float = 30.0,
        *,
        source: str | None = None,
        room: ReadRoom | None = None,
    ) -> Received:
        """Take messages. Raises `NoRoom`, and takes nothing, where ``room`` has none for their bodies."""
        ...

    async def peek(self, queue: str, limit: int = 32, *, room: ReadRoom | None = None) -> list[StoredMessage]:
        """Look at up to 32 visible messages. Raises `NoRoom` likewise."""
        ...

    async def browse(self, queue: str, limit: int = 32, *, after: str = "", newest: bool = False) -> Browsed:
        """Look at up to 32 visible messages: those that have been visible longest first, or with ``newest`` last.

        ``after`` is the place that an earlier answer told. Raises `Unsupported` where a store shows only the first.
        """
        ...

    def reclaim(self, queue: str, claims: Sequence[Claim]) -> None:
        """Give back what was received and could not be handed over; returns at once."""
        ...

    # -- for a server that makes no queue unasked, and tells times: an unknown queue raises `QueueNotFound` ---------

    async def put_existing(self, queue: str, messages: Sequence[NewMessage]) -> Stamped[list[PutReceipt]]:
        """Put 1 to 32 messages on a queue that exists, all or none."""
        ...

    async def receive_stamped(
        self,
        queue: str,
        limit: int = 1,
        visibility_s: float = 30.0,
        *,
        source: str | None = None,
        room: ReadRoom | None = None,
    ) -> Stamped[Received]:
        """Take messages, and say at what time."""
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
        """Set the metadata (8 KiB at most) of a queue that exists."""
        ...

    async def remove(self, queue: str) -> None:
        """Remove a queue that exists, and its messages."""
        ...

    async def standing(self, queue: str) -> tuple[dict[str, str], Depth]:
        """Return metadata and depth of a queue that exists."""
        ...

    async def listing(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, dict[str, str]]]:
        """List up to ``limit`` (1 to 10,000) references with their metadata."""
        ...

    def made(self, queue: str) -> int | None:
        """Return a queue's own number, None where it does not exist; one that is made again has another."""
        ...


@runtime_checkable
class Naming(Protocol):
    """What an engine has besides that says each put by its own voice, under a name: who puts says it under the same.

    The name is that of a commit: a bridge's announcement has it for ``source``, and for ``id`` the queue, followed by
    ``+`` and the milliseconds where it is delayed (C4, B13).
    """

    async def put_named(
        self, queue: str, messages: Sequence[NewMessage], create: bool
    ) -> tuple[list[PutReceipt], str | None]:
        """Put messages that were checked, and say what names their commit."""
        ...

    async def put_once_named(
        self, queue: str, key: str, message: NewMessage, create: bool
    ) -> tuple[PutReceipt | None, str | None]:
        """Put likewise under a key; no name where it was put before."""
        ...


@runtime_checkable
class Described(Protocol):
    """What an engine needs besides for the Azure endpoint: it tells what `create` was given."""

    async def metadata(self, queue: str) -> dict[str, str]:
        """Return a queue's metadata; raises `QueueNotFound`."""
        ...

    async def create_alike(self, queue: str, metadata: dict[str, str]) -> bool | None:
        """Make a queue: True; False where it stands with the same metadata, None where it stands with other."""
        ...

    async def listing(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, dict[str, str]]]:
        """List references with their metadata, as `QueueStore.queues` lists them."""
        ...
