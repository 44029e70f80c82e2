"""Bridges that take turns on one real NATS server, each with a worker, and queues in JetStream (C1 to C7)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queuebell.bridge import Bridge, Publisher
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.core.cluster.members import can_wake, rank
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.observe.facts import ActedLate, ClusterMessageRefused, Fact, MemberGone, SettledByPeer, Woken
from queuebell.bridge.queues.jetstream.store import JetStreamStore
from queuebell.bridge.service.bridge import BridgeSettings
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from queuebell.listeners import Listener, Message
from tests.support.brokers import NatsServer
from tests.support.processes import until

QUEUE = "billing/orders"
PATIENCE_S = 60.0
EVENT = CloudQueueWorkDetected("billing", "orders")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes another for gone, nor itself for one that stood still, because this machine is busy."""
    monkeypatch.setattr("queuebell.bridge.core.cluster.coordinator.BLOCKED_S", PATIENCE_S)
    monkeypatch.setattr("queuebell.bridge.core.cluster.coordinator.SILENT_S", PATIENCE_S)
    monkeypatch.setattr("queuebell.bridge.core.cluster.members.SILENT_S", PATIENCE_S)


class Site:
    """Bridges, and a worker at some of them; `facts` of each bridge, in order."""

    def __init__(self, url: str, store: JetStreamStore) -> None:
        self.url = url
        self.store = store
        self.bridges: list[Bridge] = []
        self.buses: list[Attachments] = []
        self.facts: list[list[Fact]] = []
        self.handled: list[tuple[int, bytes, str]] = []

    def of(self, kind: type[Fact]) -> list[Fact]:
        return [fact for facts in self.facts for fact in facts if isinstance(fact, kind)]

    def woken(self) -> list[int]:
        """Return for each trigger's wake which bridge sent it."""
        return [
            place
            for place, facts in enumerate(self.facts)
            for fact in facts
            if isinstance(fact, Woken) and fact.reason == "trigger"
        ]

    def order(self) -> list[int]:
        """Return the places of the bridges in the order of the queue."""
        return sorted(range(len(self.bridges)), key=lambda place: -rank(QUEUE, self.bridges[place].boot))

    def settled(self) -> bool:
        """Whether nothing is owed anywhere."""
        return not any(
            work.dirty for bridge in self.bridges if (work := bridge.scheduler.pending.find(QUEUE)) is not None
        )

    def calm(self, members: int) -> bool:
        """Whether everybody knows everybody, and who is able."""
        turns = [bridge.coordinator for bridge in self.bridges if not bridge.draining]
        return all(
            each is not None
            and len(each.members.peers) == members - 1
            and not each.members.alone(each.at(self.bridges[0].now()))
            and all(can_wake(peer, QUEUE, None) for peer in each.members.peers.values())
            for each in turns
        )

    def forget_facts(self) -> None:
        for facts in self.facts:
            facts.clear()


@contextlib.asynccontextmanager
async def cluster(
    folder: Path, bridges: int = 3, workers: tuple[int, ...] = (0, 1, 2), *, ack_s: float = PATIENCE_S
) -> AsyncIterator[Site]:
    """Run bridges without sweeps, on one server, with a worker at each of ``workers``."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(NatsServer(folder))
        url = f"nats://127.0.0.1:{server.port}"
        store = await stack.enter_async_context(JetStreamStore(url))
        await store.create(QUEUE)
        site = Site(url, store)
        for place in range(bridges):
            bridge = await stack.enter_async_context(
                Bridge(settings=BridgeSettings(periods=Periods(sweep_s=0, start_ack_s=ack_s)))
            )
            facts: list[Fact] = []
            bridge.observe(facts.append)
            buses = await stack.enter_async_context(
                Attachments(bridge, nats=[url], settings=BusSettings(cluster={"name": "c", "address": f"{place}"}))
            )
            site.bridges.append(bridge)
            site.facts.append(facts)
            site.buses.append(buses)
        for place in workers:
            await stack.enter_async_context(working(site, place))
        members = [bridge.coordinator for bridge in site.bridges]
        await until(
            lambda: all(each is not None and len(each.members.peers) == bridges - 1 for each in members),
            "everybody knows everybody",
            PATIENCE_S,
        )
        if len(workers) == bridges:
            await until(lambda: site.calm(bridges), "and who is able", PATIENCE_S)
        # A word that was said before everybody heard is made good when its time for an answer is over.
        await until(site.settled, "nothing is owed", ack_s + PATIENCE_S)
        site.forget_facts()
        yield site


@contextlib.asynccontextmanager
async def working(site: Site, place: int) -> AsyncIterator[Listener]:
    """Run a worker at one bridge."""

    async def handle(message: Message) -> None:
        site.handled.append((place, message.body, message.wake_source))

    listener = Listener(site.store, QUEUE, handle, bridge=site.bridges[place], handle_signals=False, grace=1)
    running = asyncio.create_task(listener.run(), name=f"listener {place}")
    try:
        await until(lambda: listener.state().mode == "push", "the worker is welcome", PATIENCE_S)
        yield listener
    finally:
        await listener.stop()
        await running


async def put(site: Site, number: int) -> None:
    await site.store.put(QUEUE, [b"%d" % number])


async def test_c7_the_first_leaves_and_the_next_acts_at_once(tmp_path: Path, patient: None) -> None:
    async with cluster(tmp_path) as site:
        first, second, _ = site.order()
        site.bridges[first].end_sessions()
        others = [bridge.coordinator for place, bridge in enumerate(site.bridges) if place != first]
        boot = site.bridges[first].boot
        await until(
            lambda: all(each is not None and each.members.peers[boot].member.leaving for each in others),
            "the others heard that it leaves", PATIENCE_S,
        )  # fmt: skip
        site.forget_facts()
        await put(site, 1)
        site.bridges[second].trigger([EVENT], bus="http")
        await until(lambda: len(site.handled) == 1, "handled", PATIENCE_S)
        assert site.handled[0][0] == second
        assert not site.of(ActedLate)


async def test_c1_the_first_is_gone_without_a_word_and_nothing_is_lost(tmp_path: Path) -> None:
    """Its words no longer leave, as of one that was killed: what it was to look at the next does, after A at most."""
    async with cluster(tmp_path, ack_s=2.0) as site:
        first, second, _ = site.order()
        line = site.buses[first].buses["nats"].cluster
        assert line is not None
        line.broadcast = lambda message: None  # type: ignore[method-assign]
        site.bridges[first].scheduler.dispatch.wake_sessions = lambda *_, **__: False  # type: ignore[method-assign]
        await put(site, 1)
        site.bridges[second].trigger([EVENT], bus="http")
        await until(lambda: len(site.handled) == 1, "handled", PATIENCE_S)
        assert site.handled[0][0] != first
        await until(lambda: len(site.of(MemberGone)) >= 2, "the others note that it is gone", PATIENCE_S)


@pytest.mark.parametrize(
    ("nats", "settings", "said"),
    [
        ((), BusSettings(cluster={}), "set nats exactly once"),
        (("nats://a", "nats://b"), BusSettings(cluster={}), "set nats exactly once"),
        (("nats://a",), BusSettings(cluster={}, republish=False), "republish cannot be off"),
        (("nats://a",), BusSettings(cluster={}, trusted=False), "trust_brokers = true"),
    ],
)
def test_a_cluster_that_cannot_work_is_refused(nats: tuple[str, ...], settings: BusSettings, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Attachments(Bridge(), nats=nats, settings=settings)


async def test_c2_a_trigger_on_the_broker_wakes_the_first_and_the_others_forgive_it(
    tmp_path: Path, patient: None
) -> None:
    async with cluster(tmp_path) as site, Publisher(site.url) as publisher:
        for number in range(5):
            # What is said of room comes a tenth of a second late.
            await until(lambda: site.calm(3), "everybody is known to be able", PATIENCE_S)
            await put(site, number)
            await publisher.publish(QUEUE)
            await until(lambda n=number: len(site.handled) == n + 1 and site.settled(), "handled, and paid", PATIENCE_S)
        assert set(site.woken()) == {site.order()[0]}
        assert len(site.of(SettledByPeer)) == 10
        assert not site.of(ActedLate)
        assert not site.of(ClusterMessageRefused)
