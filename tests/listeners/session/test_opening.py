"""What a listener is given, and what is opened of it."""

from __future__ import annotations

from queuebell.bridge import Bridge
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.queues.sqs.store import SqsStore
from queuebell.listeners.session.opening import batch_max, kind_of, open_store


async def test_the_store_of_a_bridge_is_not_the_listeners_to_close() -> None:
    async with Bridge() as bridge:
        assert open_store(bridge) == (bridge.store, False)
    given = MemoryStore("given")
    assert open_store(given) == (given, False)
    store, owned = open_store("memory:opened")
    assert owned
    await store.close()


def test_what_the_bridge_hears_of_a_store() -> None:
    """Its kind where its counts lack something, and how many messages one receive may have."""
    sqs = object.__new__(SqsStore)
    assert (kind_of(sqs), kind_of(MemoryStore("x"))) == ("sqs", "")
    assert [batch_max(url) for url in ("postgres://host/db", "memory:x")] == [256, 32]
