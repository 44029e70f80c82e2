"""How a listener adapts to what its store cannot do, by the store's own word."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.contract.errors import BadInput
from bridge.contract.wire import Cover
from bridge.queues import limits
from bridge.queues.base import BATCH_MAX, Capabilities, NewMessage, Received, Settlement, Settling, StoredMessage
from listeners import PULL_ONLY, Listener, Message, Retry
from tests.listeners.rig import QUEUE, Store, listening, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulated

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


@simulated
async def test_a_short_batch_of_a_store_that_samples_is_followed_by_another_receive() -> None:
    """L8: where a batch may be short although more is there, only an empty answer is a cover."""

    class Sampling(Store):
        capabilities = Capabilities(  # type: ignore[assignment]
            exact_depth=False, next_visible=False, short_batch_ends=False
        )

        async def receive(
            self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
        ) -> Received:
            answer = await super().receive(queue, 1, visibility_s, source=source)
            return Received(answer.messages)

    async def done(message: Message) -> None:
        """Succeed."""

    store, bridge = Sampling(), FakeBridge()
    async with listening(store, done, bridge=bridge) as listener:
        await pass_time(1)
        await store.fill(b"one", b"two", b"three")
        before = store.receives
        bridge.wake(QUEUE, size=1)
        await settled(listener, 3)
        await bridge.until(Cover)
        assert store.receives - before == 4


@simulated
async def test_a_retry_after_longer_than_the_store_can_hide_comes_as_late_as_it_can() -> None:
    """A release that the store would refuse, so that the lease's end brings the message back, is cut short instead."""

    class Limited(Store):
        capabilities = Capabilities(visibility_s_max=60)  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__()
            self.released: list[int] = []

        async def settle(self, queue: str, settlement: Settlement) -> Settling:
            self.released += [item.after_ms for item in settlement.release]
            return await super().settle(queue, settlement)

    async def later(message: Message) -> None:
        raise Retry(after=3600)

    store, bridge = Limited(), FakeBridge()
    async with listening(store, later, bridge=bridge):
        await store.fill(b"one")
        bridge.wake(QUEUE)
        await pass_time(1)
        assert store.released == [60_000]


@simulated
async def test_a_visibility_timeout_that_the_store_cannot_give_is_refused_at_the_start() -> None:
    """Every receive would fail else, each with its back-off, for as long as the worker runs."""

    class Limited(Store):
        capabilities = Capabilities(visibility_s_max=60)  # type: ignore[assignment]

    async def nothing(message: Message) -> None:
        """Never called."""

    listener = Listener(Limited(), QUEUE, nothing, bridge=PULL_ONLY, visibility_timeout=61, handle_signals=False)
    with pytest.raises(BadInput, match="60 seconds"):
        await listener.run()


async def _nothing(message: Message) -> None:
    """Succeed."""


@pytest.mark.parametrize(
    ("store", "most"), [("memory:x", 32), ("http://127.0.0.1:1", 32), ("azure:", 32), ("postgres://user@host/db", 256)]
)
def test_a_batch_beyond_what_the_store_takes_is_refused_at_once(store: str, most: int) -> None:
    """By the limit of this very store, before anything is opened."""
    Listener(store, QUEUE, _nothing, bridge=PULL_ONLY, batch=most)
    for batch in (0, most + 1):
        with pytest.raises(BadInput, match=f"batch is from 1 to {most} on this store"):
            Listener(store, QUEUE, _nothing, bridge=PULL_ONLY, batch=batch)


@simulated
async def test_a_store_given_as_an_object_tells_its_own_limit() -> None:
    """A store of the host's own, and one that gives fewer than 32, which cuts what is asked for as ever."""

    class Small(Store):
        capabilities = Capabilities(batch_max=10)  # type: ignore[assignment]

    for store, most in ((Roomy(), MANY), (Small(), BATCH_MAX)):
        Listener(store, QUEUE, _nothing, bridge=PULL_ONLY, batch=most)
        with pytest.raises(BadInput, match=f"1 to {most} on this store"):
            Listener(store, QUEUE, _nothing, bridge=PULL_ONLY, batch=most + 1)


@simulated
async def test_receives_and_deletes_go_by_the_stores_own_limit() -> None:
    """What a store takes at once is asked of it at once, and never more."""
    store, bridge = Roomy(), FakeBridge()
    async with listening(store, _nothing, bridge=bridge, batch=MANY, concurrency=2 * MANY) as listener:
        await pass_time(1)
        await store.fill_many(3 * MANY)
        del store.limits[:]
        bridge.wake(QUEUE, size=3 * MANY)
        await settled(listener, 3 * MANY)
        assert max(store.limits) == MANY
        assert [len(one.delete) for one in store.settlements] == [MANY] * 3


@simulated
async def test_renewals_and_messages_given_back_go_by_it_too() -> None:
    """More than one call takes: each renewal and each release is in one, and no call names more than the limit."""

    async def slow(message: Message) -> None:
        await pass_time(40)

    store, bridge, count = Roomy(), FakeBridge(), MANY + MANY // 2
    options: dict[str, Any] = {"batch": MANY, "concurrency": 2 * MANY, "grace": 0.0}
    async with listening(store, slow, bridge=bridge, **options) as listener:
        await pass_time(1)
        await store.fill_many(count)
        bridge.wake(QUEUE, size=count)
        await pass_time(16)
        assert listener.state().queues[QUEUE].held == count
        assert sorted(len(one.extend) for one in store.settlements) == [MANY // 2, MANY]
    back = [len(one.release) for one in store.settlements if one.release]
    assert sorted(back) == [MANY // 2, MANY]
