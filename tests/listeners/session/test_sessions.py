"""More queues than one session can name: parted into sessions, each with its own life; nothing of few is different.

| the listener has | over | its last queue is woken | after the bridge's restart |
|---|---|---|---|
| 3,000 queues | WebSocket, the process, a broker | yes | all queues are subscribed again |
"""

from __future__ import annotations

import asyncio

import pytest

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.wire import FRAME_BYTES_MAX, Hello, ListenerHeartbeat, Subscription, encode_frame
from queuebell.bridge.queues.base import Received
from queuebell.listeners import Listener, Message
from queuebell.listeners.session.channel import Link
from queuebell.listeners.session.session import shares
from tests.listeners.rig import QUEUE, Store, listening
from tests.support.fake_bridge import FakeBridge, FakeLink
from tests.support.sim_loop import pass_time, simulated

TWO = [f"account/queue-{number}" for number in range(300)]
"""Of two sessions."""


async def nothing(message: Message) -> None: ...


@pytest.mark.parametrize("length", [10, 40, 80])
def test_a_share_is_what_one_frame_can_name(length: int) -> None:
    """All queues, each once and in order; a share is full before the next begins, and its hello fits."""
    queues = [f"a/{number:0{length - 2}d}" for number in range(900)]
    parted = shares(queues)
    assert [queue for share in parted for queue in share] == queues
    assert {len(share) for share in parted[:-1]} <= {len(parted[0])}
    for share in parted:
        subscriptions = [Subscription(queue, 1_000_000, store="f" * 128, own=True) for queue in share]
        assert len(encode_frame(Hello("a" * 32, "n" * 256, subscriptions))) < FRAME_BYTES_MAX


async def test_what_breaks_one_session_ends_the_listener() -> None:

    class Wrong:
        async def connect(self) -> Link:
            raise ConfigurationError("no such client")

        async def close(self) -> None: ...

    before = asyncio.all_tasks()
    with pytest.raises(ConfigurationError, match="no such client"):
        await Listener(Store(), [*TWO, QUEUE], nothing, bridge=Wrong(), handle_signals=False).run()
    assert asyncio.all_tasks() <= before


@simulated
async def test_a_session_that_breaks_costs_the_others_nothing() -> None:
    """It comes back as the same instance with the same queues; meanwhile the listener says that it has no session."""
    bridge = FakeBridge()
    async with listening(Store(), nothing, TWO, bridge=bridge) as listener:
        one, two = await bridge.until(Hello, 2)
        await bridge.until(ListenerHeartbeat, 2)
        assert [sub.queue for hello in (one, two) for sub in hello.queues] == TWO
        assert one.instance == listener.instance != two.instance and one.listener == two.listener
        state = listener.state()
        assert (state.session, state.mode) == (True, "push")
        bridge.cut()
        await bridge.until(Hello, 3)
        again = bridge.hellos[2]
        assert (again.instance, [sub.queue for sub in again.queues]) == (
            two.instance,
            [sub.queue for sub in two.queues],
        )
        await pass_time(0.01)
        assert listener.state().session


@simulated
async def test_each_session_hears_that_its_queues_are_the_bridges_own() -> None:
    """An answer of the store that names the bridge's boot has its session take messages with its wakes (O0)."""

    class Own(Store):
        async def receive(self, *args: object, **more: object) -> Received:
            return Received([], boot="b" * 32)

    class Linked(FakeBridge):
        def __init__(self) -> None:
            super().__init__()
            self.links: list[FakeLink] = []

        async def connect(self) -> FakeLink:
            self.links.append(await super().connect())
            return self.links[-1]

    bridge = Linked()
    async with listening(Own(), nothing, TWO, bridge=bridge):
        await bridge.until(ListenerHeartbeat, 2)
        for link in bridge.links:
            bridge.link = link
            for queue in TWO:
                bridge.wake(queue)
        await pass_time(1)
        newest = {hello.instance: hello for hello in bridge.hellos}
        assert [hello.accept for hello in newest.values()] == [["messages"]] * 2
        assert len(bridge.hellos) <= 6, "once each, and not for every queue"
