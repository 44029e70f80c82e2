"""No queues at all: the store of a bridge that takes turns with others and was given none that all of them reach.

It wakes workers for queues that live elsewhere. A put here would lie with one bridge and be looked for at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

from bridge.contract.errors import Unsupported
from bridge.queues.base import (
    AsyncConnection,
    Body,
    Capabilities,
    PutOnceStore,
    PutReceipt,
    Received,
    Settlement,
    Settling,
    StoredMessage,
    digest_of,
)

WAY_OUT: Final = (
    "this bridge keeps no queues: it takes turns with others (cluster) and has no store that all of them reach. Nothing"
    " was done. Workers and producers use queues elsewhere by their own address; for queues here start every bridge of"
    " the cluster with the same --store URL, or serve them from one bridge without --cluster"
)


class Nowhere(PutOnceStore):
    """Refuses as `Unsupported` whatever would put, take or change; there is nothing to list or to find."""

    capabilities = Capabilities(put_once=True, oldest_age=True)

    def __str__(self) -> str:
        return "no store"

    def fingerprint(self, queue: str) -> str:
        """Return one that is no store's."""
        return digest_of("nowhere", queue)

    async def exists(self, queue: str) -> bool:
        """Say no."""
        return False

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """List none."""
        return []

    async def close(self) -> None:
        """Nothing is held."""

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None, create: bool = True
    ) -> list[PutReceipt]:
        """Refuse."""
        _refuse()

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Refuse."""
        _refuse()

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Refuse."""
        _refuse()

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Refuse."""
        _refuse()

    async def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        """Refuse."""
        _refuse()

    async def depth(self, queue: str) -> NoReturn:
        """Refuse: what listeners counted elsewhere stands."""
        _refuse()

    async def counts(self, queue: str) -> NoReturn:
        """Refuse."""
        _refuse()

    async def oldest_ms(self, queue: str) -> NoReturn:
        """Refuse."""
        _refuse()

    async def clear(self, queue: str) -> None:
        """Refuse."""
        _refuse()

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Refuse."""
        _refuse()

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Refuse."""
        _refuse()

    async def delete(self, queue: str) -> None:
        """Refuse."""
        _refuse()


def _refuse() -> NoReturn:
    raise Unsupported(WAY_OUT)
