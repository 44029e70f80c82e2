"""More queues than one session can name: parted into sessions, each with its own life; nothing of few is different.

| the listener has | over | its last queue is woken | after the bridge's restart |
|---|---|---|---|
| 3,000 queues | WebSocket, the process, a broker | yes | all queues are subscribed again |
"""

from __future__ import annotations

import asyncio

import pytest

from bridge.brokers import SCHEMES
from bridge.contract.errors import ConfigurationError
from bridge.contract.wire import FRAME_BYTES_MAX, Hello, ListenerHeartbeat, Subscription, encode_frame
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.queues.base import NewMessage, Received
from bridge.service.bridge import Bridge
from listeners import Listener, Message
from listeners.session.channels.base import Link
from listeners.session.sessions import shares
from tests.listeners.rig import QUEUE, Store, listening, settled
from tests.listeners.session.channels.test_brokered import Site, site
from tests.support.fake_bridge import FakeBridge, FakeLink
from tests.support.sim_loop import pass_time, simulated

MANY = [f"many/q{number}" for number in range(3000)]
TWO = [f"account/queue-{number}" for number in range(300)]
"""Of two sessions."""


async def nothing(message: Message) -> None: ...


def taken(bridge: Bridge) -> set[str]:
    """Return all queues that somebody listens to."""
    return {each.queue for session in bridge.listeners() for each in session.queues}


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


def test_what_fitted_before_is_one_session() -> None:
    """237 queues with names of 8 characters."""
    assert [len(share) for share in shares(f"many/{number:03d}" for number in range(238))] == [237, 1]


async def test_three_thousand_queues_over_websocket_and_again_after_a_restart() -> None:
    """The last one's wake arrives, and the next bridge at the address has all of them."""
    seen: list[str] = []

    async def handle(message: Message) -> None:
        seen.append(message.queue)

    async with Bridge() as first, WebServer(first, WebSettings(port=0)) as server:
        url = server.url
        listener = Listener(url, MANY, handle, handle_signals=False)
        running = asyncio.create_task(listener.run(), name="listener")
        while taken(first) != set(MANY) or not listener.state().session:
            await asyncio.sleep(0.01)
        assert len({session.instance for session in first.listeners()}) == len(first.listeners()) == 13
        await first.store.put(MANY[-1], [NewMessage(b"x")])
        await settled(listener, 1, queue=MANY[-1])
        assert listener.state().queues[MANY[-1]].total_receives == 0, "its message came with the wake"
    async with Bridge() as second, WebServer(second, WebSettings(port=int(url.rpartition(":")[2]))):
        while taken(second) != set(MANY) or not listener.state().session:
            await asyncio.sleep(0.01)
        for queue in (MANY[0], MANY[-1]):
            await second.store.put(queue, [NewMessage(b"x")])
        await settled(listener, 1, queue=MANY[0])
        await settled(listener, 2, queue=MANY[-1])
        await listener.stop()
        await running
        assert taken(second) == set()
    assert sorted(seen) == sorted([MANY[-1], MANY[0], MANY[-1]])


@simulated
async def test_three_thousand_queues_within_the_process() -> None:
    """The same with a bridge of this process."""
    async with Bridge() as bridge, listening(bridge, nothing, MANY, bridge=bridge) as listener:
        while not listener.state().session:
            await pass_time(0.01)
        assert taken(bridge) == set(MANY)
        await bridge.store.put(MANY[-1], [NewMessage(b"x")])
        await settled(listener, 1, queue=MANY[-1])


@simulated
async def test_three_thousand_queues_over_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where each session is a connection to the broker; a bridge that was killed is followed by the next."""
    monkeypatch.setitem(SCHEMES, "mem", ("tests.support.memory_broker", "NamedBroker"))
    async with site() as place:
        await many_over(place)


async def many_over(place: Site) -> None:
    first = await place.bridge()
    async with listening(place.store, nothing, MANY, bridge=place.url) as listener:
        await place.until(lambda: taken(first) == set(MANY), 10, "all are subscribed")
        await place.kill_bridge(first)
        second = await place.bridge()
        await place.until(lambda: taken(second) == set(MANY), 60, "all are subscribed again")
        await place.store.put(MANY[-1], [NewMessage(b"x")])
        place.server.deliver(("queuebell", "trigger", *MANY[-1].split("/")), b"")
        await settled(listener, 1, queue=MANY[-1])


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
async def test_the_mode_is_that_of_the_worst_session() -> None:
    """One that hears no echo any more polls its queues, and the others wait for wakes as before."""
    bridge = FakeBridge()
    async with listening(Store(), nothing, TWO, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat, 2)
        bridge.link.send = lambda frame: None  # type: ignore[union-attr, method-assign]
        bridge.away = True
        await pass_time(30)
        state = listener.state()
        assert (state.session, state.mode) == (False, "degraded")
        looked = {ref: figures.total_receives for ref, figures in state.queues.items()}
        await pass_time(60)
        polled = {ref for ref, figures in listener.state().queues.items() if figures.total_receives > looked[ref]}
        assert polled == {sub.queue for sub in bridge.hellos[1].queues}


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


async def test_what_breaks_one_session_ends_the_listener() -> None:
    """With its own error, and nothing is left running."""

    class Wrong:
        async def connect(self) -> Link:
            raise ConfigurationError("no such client")

        async def close(self) -> None: ...

    before = asyncio.all_tasks()
    with pytest.raises(ConfigurationError, match="no such client"):
        await Listener(Store(), [*TWO, QUEUE], nothing, bridge=Wrong(), handle_signals=False).run()
    assert asyncio.all_tasks() <= before
