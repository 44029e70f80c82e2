"""What a bridge without queues of its own refuses, and what it does not (C8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from bridge import Bridge
from bridge.contract.errors import Unsupported
from bridge.queues.base import Claim, Settlement
from bridge.queues.served import ServedStore
from bridge.service.nowhere import Nowhere

QUEUE = "billing/orders"
CLAIM = Claim("1", "1")

REFUSED: dict[str, Callable[[ServedStore], Awaitable[object]]] = {
    "put": lambda store: store.put(QUEUE, [b"x"]),
    "put_once": lambda store: store.put_once(QUEUE, "key", b"x"),
    "receive": lambda store: store.receive(QUEUE),
    "settle": lambda store: store.settle(QUEUE, Settlement(delete=(CLAIM,))),
    "update": lambda store: store.update(QUEUE, CLAIM, 5.0),
    "peek": lambda store: store.peek(QUEUE),
    "depth": lambda store: store.depth(QUEUE),
    "oldest_ms": lambda store: store.oldest_ms(QUEUE),
    "clear": lambda store: store.clear(QUEUE),
    "pause": lambda store: store.pause(QUEUE),
    "resume": lambda store: store.pause(QUEUE, False),
    "create": lambda store: store.create(QUEUE),
    "create_alike": lambda store: store.create_alike(QUEUE, {}),
    "delete": lambda store: store.delete(QUEUE),
    "listing": lambda store: store.listing(),
}


@pytest.mark.parametrize("call", [call for call in REFUSED if call not in ("create_alike", "listing")])
async def test_whatever_would_touch_a_message_is_refused_with_the_way_out(call: str) -> None:
    """By one code, and nothing was marked for it."""
    async with Bridge(store=Nowhere()) as bridge:
        with pytest.raises(Unsupported, match="start every bridge of the cluster with the same --store URL") as refused:
            await REFUSED[call](bridge.store)
        assert refused.value.code == "unsupported"
        assert refused.value.status == 501
        assert bridge.bell.ledger.find(QUEUE) is None


@pytest.mark.parametrize("call", ["create_alike", "listing"])
async def test_what_only_the_azure_endpoint_asks_is_refused(call: str) -> None:
    """It is not opened there."""
    async with Bridge(store=Nowhere()) as bridge:
        with pytest.raises(Unsupported):
            await REFUSED[call](bridge.store)


async def test_there_is_nothing_to_list_and_the_bridge_is_ready() -> None:
    """Readiness says that there is no store, and that this is no fault."""
    async with Bridge(store=Nowhere()) as bridge:
        assert await bridge.store.queues() == []
        assert not await bridge.store.exists(QUEUE)
        assert str(bridge.store) == "no store"
        assert not bridge.keeps_queues
        assert bridge.own is None
        readiness = bridge.readiness()
        assert readiness.ready
        assert readiness.checks["store"].detail == "there is none: for queues in other stores only"


async def test_a_bridge_with_queues_of_its_own_says_so() -> None:
    """The words of before."""
    async with Bridge() as bridge:
        assert bridge.keeps_queues
        assert bridge.readiness().checks["store"].detail == "the queue service's store takes writes"
