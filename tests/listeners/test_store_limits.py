"""How a listener adapts to what its store cannot do, by the store's own word."""

from __future__ import annotations

from typing import Any

import pytest

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.queues import limits
from queuebell.bridge.queues.base import (
    BATCH_MAX,
    Capabilities,
    NewMessage,
    Received,
    Settlement,
    Settling,
    StoredMessage,
)
from queuebell.listeners import PULL_ONLY, Listener, Message
from tests.listeners.rig import QUEUE, Store
from tests.support.sim_loop import simulated

MANY = 64


class Roomy(Store):
    """A store that takes ``MANY`` messages a call, and says how many each call named."""

    capabilities = Capabilities(batch_max=MANY)  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[int] = []

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        limits.check_receive(queue, limit, visibility_s, source, MANY)
        self.limits.append(limit)
        first = await super().receive(queue, min(limit, BATCH_MAX), visibility_s, source=source)
        messages: list[StoredMessage] = list(first.messages)
        if limit <= BATCH_MAX or len(messages) < BATCH_MAX:
            return first
        rest = await super().receive(queue, limit - BATCH_MAX, visibility_s, source=source)
        return Received(messages + rest.messages, rest.depth, rest.next_visible_in_ms)

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        limits.check_settlement(queue, settlement, MANY)
        self.settlements.append(settlement)
        parts = [
            await super(Store, self).settle(
                queue,
                Settlement(*(list(items)[start : start + BATCH_MAX] for items in _lists(settlement))),
            )
            for start in (0, BATCH_MAX)
        ]
        return Settling(*([one for part in parts for one in getattr(part, name)] for name in _LISTS))

    async def fill_many(self, count: int) -> None:
        """Put so many messages."""
        for start in range(0, count, BATCH_MAX):
            await self.put(QUEUE, [NewMessage(b"x")] * min(BATCH_MAX, count - start))


_LISTS = ("delete", "release", "extend")


def _lists(settlement: Settlement) -> list[Any]:
    return [getattr(settlement, name) for name in _LISTS]


async def _nothing(message: Message) -> None:
    """Succeed."""


@simulated
async def test_a_store_given_as_an_object_tells_its_own_limit() -> None:
    """A store of the host's own, and one that gives fewer than 32, which cuts what is asked for as ever."""

    class Small(Store):
        capabilities = Capabilities(batch_max=10)  # type: ignore[assignment]

    for store, most in ((Roomy(), MANY), (Small(), BATCH_MAX)):
        Listener(store, QUEUE, _nothing, bridge=PULL_ONLY, batch=most)
        with pytest.raises(BadInput, match=f"1 to {most} on this store"):
            Listener(store, QUEUE, _nothing, bridge=PULL_ONLY, batch=most + 1)
