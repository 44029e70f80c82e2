"""What is checked before a put under a key travels, and what its answer becomes; on a store that is a dict."""

from __future__ import annotations

import hashlib

import pytest

from bridge.contract.errors import BadInput, QueueNotFound, Unsupported
from bridge.queues.base import AsyncConnection, Capabilities, NewMessage, PutReceipt
from bridge.queues.checked_once import CheckedOnceStore

QUEUE = "billing/orders"
CONNECTION: AsyncConnection = object()  # type: ignore[assignment]


class Dictionary(CheckedOnceStore):
    """Knows one queue's keys; ``asked`` is what came through the checks."""

    kind = "dictionary"
    capabilities = Capabilities(put_once=True, delay_ms_max=1000)

    def __init__(self, *queues: str) -> None:
        self.asked: list[tuple[str, str, NewMessage, bool, AsyncConnection | None]] = []
        self._names = list(queues)
        self._keys: dict[tuple[str, str], str] = {}

    async def _put_once(
        self,
        queue: str,
        key: str,
        message: NewMessage,
        digest: str,
        create: bool,
        connection: AsyncConnection | None,
    ) -> PutReceipt | bool:
        self.asked.append((queue, key, message, create, connection))
        assert digest == hashlib.sha256(message.body).hexdigest()
        if queue not in self._names:
            raise QueueNotFound("missing")
        known = self._keys.setdefault((queue, key), digest)
        return PutReceipt("1", "2", message.visible_after_ms) if len(self.asked) == 1 else known == digest

    async def _queues(self, prefix: str, after: str, limit: int) -> list[str]:
        return [name for name in self._names if name.startswith(prefix)]


async def test_what_a_put_becomes() -> None:
    """A receipt, nothing for the same body once more, and a refusal of another; all it was given arrives."""
    store = Dictionary(QUEUE)
    receipt = await store.put_once(QUEUE, "k", NewMessage("one", visible_after_ms=7))
    assert receipt == PutReceipt("1", "2", 7)
    assert await store.put_once(QUEUE, "k", "one") is None
    with pytest.raises(BadInput, match="another body was put under this id; nothing was changed") as refused:
        await store.put_once(QUEUE, "k", b"two", create=False)
    assert refused.value.code == "message_conflict"
    assert store.asked == [
        (QUEUE, "k", NewMessage("one", visible_after_ms=7), True, None),
        (QUEUE, "k", NewMessage("one"), True, None),
        (QUEUE, "k", NewMessage("two"), False, None),
    ]


async def test_what_is_refused_does_not_travel() -> None:
    """By the rules of a key, of a put, and of what this store can do."""
    store = Dictionary(QUEUE)
    for queue, key, body in ((QUEUE, "", "x"), (QUEUE, "a/b", "x"), ("odd", "k", "x"), (QUEUE, "k", b"x" * 70_000)):
        with pytest.raises(BadInput):
            await store.put_once(queue, key, body)
    with pytest.raises(Unsupported):
        await store.put_once(QUEUE, "k", NewMessage("x", visible_after_ms=1001))
    with pytest.raises(Unsupported, match="connection"):
        await store.put_once(QUEUE, "k", "x", connection=CONNECTION)
    assert store.asked == []


async def test_a_connection_goes_along_where_it_can() -> None:
    """A store that joins transactions is given it."""
    store = Dictionary(QUEUE)
    store.capabilities = Capabilities(put_once=True, joins_transaction=True)
    await store.put_once(QUEUE, "k", "x", connection=CONNECTION)
    assert store.asked == [(QUEUE, "k", NewMessage("x"), True, CONNECTION)]


async def test_a_missing_queue_is_told_with_what_was_meant() -> None:
    """Only to whoever asked for one that is there; else the store's own words go on."""
    store = Dictionary(QUEUE)
    with pytest.raises(QueueNotFound, match=f"Did you mean {QUEUE}"):
        await store.put_once("billing/order", "k", "x", create=False)
    with pytest.raises(QueueNotFound, match=r"\Amissing\Z"):
        await store.put_once("billing/order", "k", "x")
