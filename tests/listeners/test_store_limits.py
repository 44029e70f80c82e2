"""How a listener adapts to what its store cannot do, by the store's own word."""

from __future__ import annotations

import pytest

from bridge.contract.errors import BadInput
from bridge.contract.wire import Cover
from bridge.queue import Capabilities, Received, Settlement, Settling
from listeners import Listener, Message, Retry
from tests.listeners.rig import QUEUE, Store, listening, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulate


def test_a_short_batch_of_a_store_that_samples_is_followed_by_another_receive() -> None:
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

    async def story() -> None:
        store, bridge = Sampling(), FakeBridge()
        async with listening(store, done, bridge=bridge) as listener:
            await pass_time(1)
            await store.fill(b"one", b"two", b"three")
            before = store.receives
            bridge.wake(QUEUE, size=1)
            await settled(listener, 3)
            await bridge.until(Cover)
            assert store.receives - before == 4

    simulate(story())


def test_a_retry_after_longer_than_the_store_can_hide_comes_as_late_as_it_can() -> None:
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

    async def story() -> None:
        store, bridge = Limited(), FakeBridge()
        async with listening(store, later, bridge=bridge):
            await store.fill(b"one")
            bridge.wake(QUEUE)
            await pass_time(1)
            assert store.released == [60_000]

    simulate(story())


def test_a_visibility_timeout_that_the_store_cannot_give_is_refused_at_the_start() -> None:
    """Every receive would fail else, each with its back-off, for as long as the worker runs."""

    class Limited(Store):
        capabilities = Capabilities(visibility_s_max=60)  # type: ignore[assignment]

    async def nothing(message: Message) -> None:
        """Never called."""

    async def story() -> None:
        listener = Listener(Limited(), QUEUE, nothing, visibility_timeout=61, handle_signals=False)
        with pytest.raises(BadInput, match="60 seconds"):
            await listener.run()

    simulate(story())
