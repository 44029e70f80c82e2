"""Plain subscribers of bridges that take turns, over a real NATS server: each wake and each post comes once (C10)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queuebell.bridge import Bridge, Publisher
from queuebell.bridge.brokers.base import ANY, Incoming
from queuebell.bridge.contract.wire import Wake, decode_down
from queuebell.bridge.core.cluster import subscribers
from queuebell.bridge.core.cluster.members import rank
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.http.webhooks.settings import WebhookSettings, name_of_all
from queuebell.bridge.http.webhooks.shell import Webhooks
from queuebell.bridge.service.bridge import BridgeSettings
from queuebell.bridge.service.shared_store import NoStore
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from tests.services.test_turns import PATIENCE_S, patient
from tests.support.brokers import NatsServer
from tests.support.hooks import hook
from tests.support.hooks import receiver as receiving
from tests.support.processes import until

# Private: `_broker`: subscribes to everything it sends.

__all__ = ["patient"]

QUEUE = "billing/orders"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much later one bridge hears of a trigger than another: on a busy machine that is no second trigger."""
    monkeypatch.setattr(subscribers, "SKEW_S", PATIENCE_S)


class Member:
    """One bridge with its buses and webhooks, which may be killed."""

    def __init__(self, bridge: Bridge, buses: Attachments, hooks: Webhooks) -> None:
        self.bridge = bridge
        self.buses = buses
        self.hooks = hooks
        self.over = contextlib.AsyncExitStack()

    async def kill(self) -> None:
        """Have it say and send nothing more, without a word."""
        line = self.buses.buses["nats"].cluster
        assert line is not None
        line.broadcast = lambda message: None  # type: ignore[method-assign]
        self.bridge.scheduler.dispatch.announcing = False
        await self.hooks.stop()
        await self.buses.stop()

    @property
    def held(self) -> int:
        assert self.bridge.coordinator is not None
        return len(self.bridge.coordinator.subscribers)


class Crew:
    """Members of one cluster, and who listens to the wakes on its broker."""

    def __init__(self, members: list[Member], publisher: Publisher) -> None:
        self.members = members
        self.publisher = publisher
        self.wakes: list[Wake] = []

    def order(self, queue: str = QUEUE) -> list[Member]:
        return sorted(self.members, key=lambda member: -rank(queue, member.bridge.boot))

    def hear(self, incoming: Incoming) -> None:
        wake = decode_down(incoming.payload)
        assert isinstance(wake, Wake)
        self.wakes.append(wake)

    async def calm(self) -> None:
        await until(lambda: not any(member.held for member in self.members), "nothing is held", PATIENCE_S)


@contextlib.asynccontextmanager
async def crew(
    folder: Path, webhooks: list[list[WebhookSettings]], *, ack_s: float = PATIENCE_S
) -> AsyncIterator[Crew]:
    """Run a bridge for each list of webhooks, without queues of their own, on one NATS."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(NatsServer(folder, jetstream=False))
        url = f"nats://127.0.0.1:{server.port}"
        members = []
        for settings in webhooks:
            bridge = await stack.enter_async_context(
                Bridge(store=NoStore(), settings=BridgeSettings(periods=Periods(sweep_s=0, start_ack_s=ack_s)))
            )
            about = {"name": "c", "webhooks": name_of_all(settings)}
            buses = Attachments(bridge, nats=[url], settings=BusSettings(cluster=about))
            hooks = Webhooks(bridge, settings, draw=lambda: 0.0)
            await hooks.start()
            stack.push_async_callback(hooks.stop)
            members.append(Member(bridge, await stack.enter_async_context(buses), hooks))
        found = Crew(members, await stack.enter_async_context(Publisher(url)))
        await until(
            lambda: all(
                member.bridge.coordinator is not None
                and len(member.bridge.coordinator.members.peers) == len(members) - 1
                and not member.bridge.coordinator.members.alone(member.bridge.coordinator.at(member.bridge.now()))
                for member in members
            ),
            "everybody hears everybody", PATIENCE_S,
        )  # fmt: skip
        ear = members[0].buses.buses["nats"]._broker
        assert ear is not None
        await ear.subscribe(("queuebell", "wake", ANY, ANY), found.hear)
        yield found


async def test_the_sender_is_killed_and_it_is_still_posted(tmp_path: Path) -> None:
    """The next after A while it is not missed yet, and at once from then on; what was told to nobody is told again."""
    async with receiving() as target, crew(tmp_path, [[hook(target.url, QUEUE)]] * 3, ack_s=0.5) as found:
        await found.publisher.publish(QUEUE)
        await target.until(1)
        first, second, third = found.order()
        await first.kill()
        posted = len(target.posts)
        await found.publisher.publish(QUEUE)
        await target.until(posted + 1)
        assert target.posts[-1].verify()["boot"] != first.bridge.boot
        await until(lambda: len(second.bridge.coordinator.members.peers) == 1, "it is missed", PATIENCE_S)  # type: ignore[union-attr]
        posted = len(target.posts)
        await found.publisher.publish(QUEUE)
        await target.until(posted + 1)
        del third


async def test_a_leave_hands_the_posts_to_the_next(tmp_path: Path, patient: None) -> None:
    """What still waits is posted once more, and what comes later by the next alone."""
    async with receiving() as target, crew(tmp_path, [[hook(target.url, QUEUE)]] * 3) as found:
        await found.publisher.publish(QUEUE)
        await target.until(1)
        await found.calm()
        await until(lambda: found.wakes, "it is told on NATS, once", PATIENCE_S)
        assert len(found.wakes) == 1
        first, second, _ = found.order()
        await first.bridge.leave()
        await target.until(2)
        await found.publisher.publish(QUEUE)
        await target.until(3)
        await found.calm()
        assert [post.verify()["boot"] for post in target.posts[1:]] == [second.bridge.boot] * 2
