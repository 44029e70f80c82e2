"""B16: two bridges on one broker each look for themselves, and a trigger costs at most two receives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from bridge.contract.errors import UnknownOutcome
from bridge.core.settings import Periods
from bridge.queues.base import Extend, NewMessage, Settlement
from bridge.service.bridge import Bridge, BridgeSettings
from bridge.service.channels.brokered import BrokeredSessions
from bridge.triggers.attachment import Attachment
from listeners import Message
from tests.listeners.rig import QUEUE, Store, listening, raising
from tests.support.memory_broker import MemoryServer
from tests.support.sim_loop import pass_time, simulated


@asynccontextmanager
async def bridged(server: MemoryServer, sweep_s: float) -> AsyncIterator[Bridge]:
    """Run a bridge on the broker."""
    async with Bridge(settings=BridgeSettings(periods=Periods(sweep_s=sweep_s))) as bridge:
        bus = Attachment(
            bridge, server.broker, "bus", server.kind,
            prefix="queuebell", sessions=BrokeredSessions(bridge, "queuebell"), announcer=None, brokers=["bus"],
            republish=True,
        )  # fmt: skip
        await bus.start()
        while not bus.check()[0]:
            await asyncio.sleep(0.01)
        try:
            yield bridge
        finally:
            await bus.stop()


class Pair:
    """A store elsewhere, the broker that two bridges share, and when their listeners handled what."""

    def __init__(self) -> None:
        self.server, self.store = MemoryServer(), Store()
        self.handled: list[tuple[bytes, float]] = []

    async def handle(self, message: Message) -> None:
        self.handled.append((message.body, now()))

    async def put(self, *bodies: bytes) -> None:
        await self.store.fill(*bodies)
        self.ring()

    def ring(self) -> None:
        """Have both bridges told that there is work."""
        self.server.deliver(("queuebell", "trigger", "billing", "orders"), b"")


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def pair(sweep_s: float, *listeners: str, **options: Any) -> AsyncIterator[Pair]:
    """Run both bridges, with a listener at each that is named or at both, past the looks that a queue's birth costs."""
    site = Pair()
    async with bridged(site.server, sweep_s) as one, bridged(site.server, sweep_s) as other, AsyncExitStack() as stack:
        for name in listeners or ("one", "other"):
            bridge = {"one": one, "other": other}[name]
            await stack.enter_async_context(listening(site.store, site.handle, bridge=bridge, **options))
        await pass_time(10)
        yield site
    await site.store.close()


@simulated
async def test_a_queue_marked_by_both_costs_two_receives_and_not_more() -> None:
    """With a listener at each bridge and one message: one of them finds it, and each looks once until it is empty."""
    async with pair(0.0) as site:
        # The queue's birth at both bridges: a look each.
        assert site.store.receives == 2
        site.ring()
        await pass_time(10)
        assert site.store.receives == 4
        await site.put(b"x")
        await pass_time(10)
        # A batch shorter than asked proves on this store that nothing is left: no further look.
        assert site.store.receives == 6


@pytest.mark.parametrize("messages", [1, 12])
@simulated
async def test_a_lease_that_was_settled_costs_no_look_at_its_end(messages: int) -> None:
    """Its holder looks no more. Whoever saw it as another's looks at one end at most, however many there were."""
    async with pair(600.0) as site:
        before = site.store.receives
        for _ in range(messages):
            await site.put(b"x")
            await pass_time(1)
        assert site.store.receives - before == 2 * messages
        await pass_time(120)
        later = site.store.receives - before - 2 * messages
        assert later <= (1 if messages == 1 else 2), "looks for leases that were settled long ago"


@pytest.mark.parametrize("messages", [1, 12])
@simulated
async def test_a_lone_holder_looks_at_no_lease_of_its_own(messages: int) -> None:
    """Where all that is leased is its own, nothing follows its settlements, whichever bridge heard of the work."""
    async with pair(600.0, "one") as site:
        before = site.store.receives
        for _ in range(messages):
            await site.put(b"x")
            await pass_time(1)
        await pass_time(120)
        assert site.store.receives - before == messages


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("sweep_s", [0.0, 600.0])
@simulated
async def test_the_lease_of_who_died_elsewhere_is_looked_for_at_its_end(sweep_s: float, others: int) -> None:
    """Whoever leased it is no session here any more, or never was one: the idle listener of the other bridge looks."""
    async with pair(sweep_s, "other") as site:
        await site.store.fill(b"held")
        await site.store.receive(QUEUE, 1, 6.0)
        began = now()
        site.ring()
        await pass_time(1)
        # Work of its own meanwhile, whose leases end later or sooner, hides nothing.
        for number in range(others):
            await site.put(b"%d" % number)
            await pass_time(1)
        await pass_time(20)
        (taken,) = [at for body, at in site.handled if body == b"held"]
        assert 6.0 <= taken - began < 7.0
        assert len(site.handled) == 1 + others


@pytest.mark.parametrize("own_s", [5.0, 12.0])
@simulated
async def test_a_lease_elsewhere_is_found_behind_one_of_its_own(own_s: float) -> None:
    """The next end may be the end of its own lease: as more is leased than it holds, it looks then and hears of it."""
    async with pair(0.0, "other", visibility_timeout=own_s) as site:
        await site.store.fill(b"held", b"mine")
        await site.store.receive(QUEUE, 1, 8.0)
        began = now()
        site.ring()
        await pass_time(30)
        assert [(body, round(at - began)) for body, at in site.handled] == [(b"mine", 0), (b"held", 8)]


@pytest.mark.parametrize("more", [0, 1])
@simulated
async def test_a_lease_that_is_renewed_elsewhere_is_followed_to_its_end(more: int) -> None:
    """Each look hears of the next end, until nobody renews any more: one look for each end, and no poll."""
    async with pair(600.0, "other", "other") as site:
        await site.store.fill(b"held")
        (held,) = (await site.store.receive(QUEUE, 1, 6.0)).messages
        site.ring()
        began, before = now(), site.store.receives
        for _ in range(10 * more):
            await pass_time(3)
            settling = await site.store.settle(QUEUE, Settlement(extend=[Extend(held.id, held.pop_receipt, 6.0)]))
            (renewed,) = settling.extend
            held = msgspec.structs.replace(held, pop_receipt=renewed.pop_receipt)
        await pass_time(60)
        ((_, taken),) = site.handled
        assert 6.0 <= taken - began - 30 * more < 7.0
        # At worst each finds three seconds left.
        assert site.store.receives - before <= 3 + 12 * more


@simulated
async def test_a_delay_is_met_at_its_end_although_leases_end_before() -> None:
    """Its own trigger was lost: the look for another message told when it is due, and no lease stands before it."""
    async with pair(600.0) as site:
        await site.store.put(QUEUE, [NewMessage(b"now"), NewMessage(b"later", visible_after_ms=40_000)])
        began = now()
        site.ring()
        await pass_time(60)
        assert [round(at - began) for _, at in site.handled] == [0, 40]


@simulated
async def test_a_settlement_of_unknown_outcome_keeps_the_timer_of_its_lease() -> None:
    """As long as the store does not say that the message is gone, its holder looks when the lease ends (L7)."""
    async with pair(600.0) as site:
        site.store.settling = [raising(UnknownOutcome("no answer")) for _ in range(40)]
        await site.put(b"x")
        await pass_time(60)
        (_, first), (_, second) = site.handled
        assert 29 <= second - first <= 32


@simulated
async def test_each_bridge_sweeps_for_its_own_listeners() -> None:
    """R bridges with a session of the queue cost R times the sweeps: 2 x 60 an hour, 2 x 67 at most."""
    async with pair(60.0) as site:
        before = site.store.receives
        await pass_time(3600)
        assert 2 * 54 <= site.store.receives - before <= 2 * 67
