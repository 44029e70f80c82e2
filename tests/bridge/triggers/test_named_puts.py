"""Bridges on one PostgreSQL and one NATS: a put has one name by both ways, and is marked once (B13)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.contract.event import CloudQueueWorkDetected, rounded_up
from bridge.core.settings import Periods
from bridge.observe.facts import DuplicateDropped, Fact, Triggered
from bridge.queues.base import NewMessage, once
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from bridge.queues.postgres.voice import _PUT
from bridge.service.bridge import Bridge, BridgeSettings
from bridge.triggers.attachment import Attachments, BusSettings
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.support.brokers import NatsServer
from tests.support.postgres import execute
from tests.support.processes import PATIENCE_S, until

__all__ = ["schema", "server", "url"]

pytestmark = pytest.mark.system
QUEUE = "billing/orders"
LATER = "billing/later"


class Seen:
    """One bridge, and what it marked and dropped."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.facts: list[Fact] = []
        bridge.observe(self.facts.append)

    def of(self, kind: type[Triggered | DuplicateDropped], queue: str = QUEUE) -> int:
        return sum(isinstance(fact, kind) and fact.queue == queue for fact in self.facts)


@contextlib.asynccontextmanager
async def three(url: str, folder: Path) -> AsyncIterator[list[Seen]]:
    """Three bridges of a cluster, on one server of each kind."""
    async with contextlib.AsyncExitStack() as stack:
        nats = await stack.enter_async_context(NatsServer(folder))
        bridges: list[Seen] = []
        for place in range(3):
            engine = PostgresStore(url)
            bridge = await stack.enter_async_context(
                Bridge(store=engine, settings=BridgeSettings(periods=Periods(sweep_s=0)))
            )
            bridges.append(Seen(bridge))
            buses = await stack.enter_async_context(
                Attachments(
                    bridge, nats=[f"nats://127.0.0.1:{nats.port}"], postgres=[url], ours={url: engine.puts_by},
                    settings=BusSettings(cluster={"name": "c", "address": f"{place}"}),
                )
            )  # fmt: skip
            for name in ("nats", "postgres"):
                check = buses.buses[name].check if name == "nats" else buses.databases[name].check
                await until(lambda check=check: check()[0], f"the bridge hears {name}", PATIENCE_S)
        yield bridges


async def heard(bridges: list[Seen], url: str, queue: str) -> None:
    """Wait until every bridge has heard a last put, by both ways: all before it was heard then."""
    await bridges[0].bridge.store.put(queue, ["last"])
    await until(
        lambda: all(seen.of(Triggered, queue) and (place == 0 or seen.of(DuplicateDropped, queue))
                    for place, seen in enumerate(bridges)),
        "all have heard the last put twice", PATIENCE_S,
    )  # fmt: skip


async def test_each_put_of_a_bridge_is_one_mark_at_every_bridge(url: str, tmp_path: Path) -> None:
    """By every door: what the others hear by the second way is a copy of the first, whichever that was."""
    await init(url, notify=True)
    async with three(url, tmp_path) as bridges:
        puts = 0
        for seen in bridges:
            store = seen.bridge.store
            await store.put(QUEUE, ["a", "b"])
            await store.put_existing(QUEUE, [NewMessage("c")])
            await once(store).put_once(QUEUE, f"of {len(seen.facts)}".replace(" ", "-"), "d")
            puts += 3
        await heard(bridges, url, "billing/last")
        assert [seen.of(Triggered) for seen in bridges] == [puts] * 3
        assert [seen.of(DuplicateDropped) for seen in bridges] == [puts * 2 // 3] * 3


async def test_behind_a_pooler_a_bridge_knows_its_own_put_by_name(url: str) -> None:
    """It cannot tell by the server's processes there: whichever way comes first, the other is a copy."""
    await init(url, notify=True)
    async with Bridge(store=PostgresStore(url)) as bridge, Attachments(bridge, postgres=[url]) as buses:
        seen = Seen(bridge)
        await until(lambda: buses.databases["postgres"].check()[0], "the bridge listens", PATIENCE_S)
        for _ in range(5):
            await bridge.store.put(QUEUE, ["x"])
        await execute(url, "INSERT INTO queuebell_messages (queue, text) VALUES ('billing/last', 'x')")
        await until(lambda: seen.of(Triggered, "billing/last"), "all was heard", PATIENCE_S)
        assert (seen.of(Triggered), seen.of(DuplicateDropped)) == (5, 5)


@pytest.mark.parametrize("delay_ms", [1_000, 29_999, 30_000, 70_000, 604_800_000])
async def test_a_delayed_put_is_one_due_time_at_every_bridge(url: str, tmp_path: Path, delay_ms: int) -> None:
    """It is told to the same millisecond, beside one that is due now in the same put."""
    await init(url, notify=True)
    async with three(url, tmp_path) as bridges:
        await bridges[1].bridge.store.put(
            LATER, [NewMessage("x", delay_ms), NewMessage("now"), NewMessage("y", delay_ms)]
        )
        await heard(bridges, url, "billing/last")
        assert [seen.of(Triggered, LATER) for seen in bridges] == [2] * 3
        assert [seen.of(DuplicateDropped, LATER) for seen in bridges] == [2, 0, 2]


async def notified(url: str, *statements: str) -> list[CloudQueueWorkDetected]:
    """Return what a bridge hears of statements, each a transaction."""
    told: list[CloudQueueWorkDetected] = []
    async with Bridge(settings=BridgeSettings(periods=Periods(sweep_s=0))) as bridge:
        bridge.forward(lambda events, bus: told.extend(events))
        async with Attachments(bridge, postgres=[url]) as buses:
            await until(lambda: buses.databases["postgres"].check()[0], "the bridge listens", PATIENCE_S)
            for statement in statements:
                await execute(url, statement)
            await execute(url, "INSERT INTO queuebell_messages (queue, text) VALUES ('billing/end', 'x')")
            await until(lambda: any(event.queue == "billing/end" for event in told), "all was heard", PATIENCE_S)
    return [event for event in told if event.queue != "billing/end"]


async def test_a_name_is_that_of_a_commit_and_of_a_queue_in_it(url: str) -> None:
    """Two puts of one transaction have one name, for they are visible together; two queues or commits have two."""
    await init(url, notify=True)
    put = "INSERT INTO queuebell_messages (queue, text) VALUES ('billing/{}', 'x');"
    events = await notified(
        url,
        f"DO $$ BEGIN {put.format('one') * 2} BEGIN {put.format('two')} EXCEPTION WHEN division_by_zero THEN END; "
        "END $$",
        put.format("one"),
    )
    names = [(event.queue_name, event.source, event.id) for event in events]
    first = names[0][1]
    assert names[:2] == [("one", first, "billing/one"), ("two", first, "billing/two")]
    assert [name[0] for name in names[2:]] == ["one"] and names[2][1] != first
    assert str(first).startswith("postgres:")


async def test_a_delay_of_another_day_is_what_is_left_of_it(url: str) -> None:
    """A row that is written with its old times is due when it says, and not so long after its insertion anew."""
    await init(url, notify=True)
    row = (
        "INSERT INTO queuebell_messages (queue, body, inserted_at, visible_at) VALUES ('billing/{}', 'x', {}, "
        "clock_timestamp() + interval '60 s')"
    )
    old, new = await notified(
        url, row.format("old", "clock_timestamp() - interval '1 day'"), row.format("new", "clock_timestamp()")
    )
    assert 50_000 < old.not_before_ms <= 60_000
    assert rounded_up(60_000, 1) - 1000 < new.not_before_ms <= rounded_up(60_000, 1) + 1


async def test_a_function_of_an_older_version_is_understood_and_brought_up_to_date(url: str) -> None:
    """What it says has no name, and rings all the same; `init` replaces it, and doing that again changes nothing."""
    await init(url, notify=True)
    older = re.sub(r",\s*'source', said, 'id', [^)]*\)", ")", _PUT.format(channel="queuebell"))
    assert "'id'" not in older
    await execute(
        url, f"CREATE OR REPLACE FUNCTION queuebell_notify_put() RETURNS trigger LANGUAGE plpgsql AS $${older}$$"
    )
    put = "INSERT INTO queuebell_messages (queue, text) VALUES ('billing/orders', 'x')"
    (event,) = await notified(url, put)
    assert (event.source, event.id, event.payload_size) == (None, None, 1)
    assert await init(url) == ["every put notifies the channel queuebell as this version has it"]
    assert await init(url) == []
    (event,) = await notified(url, put)
    assert event.id == QUEUE


async def test_a_put_that_was_there_before_has_no_name(url: str) -> None:
    """Its commit is another's: who says it again says it as news."""
    await init(url)
    async with PostgresStore(url) as store:
        message = NewMessage("x")
        put, said = await store.put_once_named(QUEUE, "one", message, True)
        assert put is not None and said is not None
        assert await store.put_once_named(QUEUE, "one", message, True) == (None, None)
        _, other = await store.put_named(QUEUE, [message], True)
        assert other not in (None, said)
