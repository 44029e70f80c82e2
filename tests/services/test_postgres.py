"""A whole system on PostgreSQL: an INSERT by anybody, a bridge that listens, a worker that polls nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge.core.settings import Periods
from queuebell.bridge.observe.facts import RoundMade
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.service.bridge import Bridge, BridgeSettings
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from queuebell.listeners import Listener, Message, Retry
from tests.bridge.queues.pgmq_rig import pgmq_sql, run_script
from tests.chaos.worker import Options
from tests.support.brokers import NatsServer
from tests.support.postgres import PostgresServer, execute, running
from tests.support.processes import Processes, until
from tests.support.transactions import by_asyncpg

QUEUE = "billing/orders"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.mark.system
async def test_one_question_a_period_for_all_queues_of_a_database(server: PostgresServer) -> None:
    """A message that nobody announced is found; each store's answer stands for its own queues, and for no others."""
    url, seen = server.url(), asyncio.Queue[str]()
    await init(url)
    await run_script(url, pgmq_sql())
    pgmq = url.replace("postgres://", "pgmq://")
    places = [(url, "billing/orders"), (url, "billing/quiet"), (pgmq, "pgmq/orders"), (pgmq, "pgmq/quiet")]
    rounds: list[RoundMade] = []
    async with (
        Bridge(settings=BridgeSettings(periods=Periods(sweep_s=2.0))) as bridge,
        contextlib.AsyncExitStack() as stack,
    ):
        bridge.observe(lambda fact: rounds.append(fact) if isinstance(fact, RoundMade) else None)
        await stack.enter_async_context(Attachments(bridge, postgres=[url]))
        listeners = {
            queue: Listener(
                store, queue, lambda message: seen.put_nowait(message.queue), bridge=bridge, handle_signals=False
            )
            for store, queue in places
        }
        tasks = [asyncio.create_task(each.run(), name=queue) for queue, each in listeners.items()]
        await until(
            lambda: all((state := bridge.describe(queue)) and not state.dirty for queue in listeners), "all looked"
        )
        for store, queue in places:
            async with open_store(store) as opened:
                await opened.create(queue)
        for store, queue in places[::2]:
            async with open_store(store) as opened:
                await opened.put(queue, ["1"])
        async with asyncio.timeout(200):
            assert {await seen.get(), await seen.get()} == {"billing/orders", "pgmq/orders"}
        made = len(rounds)
        await until(lambda: len(rounds) >= made + 4, "two rounds of each store")
        assert {(fact.kind, fact.answered) for fact in rounds} == {("postgres", True), ("pgmq", True)}
        work = [bridge.scheduler.pending.by_queue[queue] for _, queue in places]
        assert [
            [of.round is each and each.found_empty_at(of.queue, of.place) is not None for of in work]
            for each in bridge.scheduler.timers.rounds
        ] == [
            [True, True, False, False],
            [False, False, True, True],
        ]
        for each in listeners.values():
            await each.stop()
        await asyncio.gather(*tasks)


@pytest.mark.system
async def test_the_answer_of_one_member_stands_for_the_others(server: PostgresServer, tmp_path: Path) -> None:
    """Each asks until it has seen the place itself, and then less and less: over a real broker (C11)."""
    url = server.url()
    await init(url)
    async with open_store(url) as store:
        await store.create(QUEUE)
    async with contextlib.AsyncExitStack() as stack:
        nats = await stack.enter_async_context(NatsServer(tmp_path))
        bridges, tasks = list[Bridge](), list[asyncio.Task[None]]()
        for place in range(2):
            bridge = await stack.enter_async_context(Bridge(settings=BridgeSettings(periods=Periods(sweep_s=4.0))))
            settings = BusSettings(cluster={"name": "c", "address": f"{place}"})
            await stack.enter_async_context(
                Attachments(bridge, postgres=[url], nats=[f"nats://127.0.0.1:{nats.port}"], settings=settings)
            )
            listener = Listener(url, QUEUE, lambda message: None, bridge=bridge, handle_signals=False)
            stack.push_async_callback(listener.stop)
            tasks.append(asyncio.create_task(listener.run(), name=f"worker {place}"))
            bridges.append(bridge)

        def stands(bridge: Bridge) -> bool:
            """Whether a peer's answer has postponed a question by half a period."""
            work = bridge.scheduler.pending.find(QUEUE)
            made = None if work is None else work.round
            if made is None or work is None or made.found_empty_at(work.queue, work.place) is None:
                return False
            return (made.began or 0.0) > made.asked_at + made.every_s / 2

        await until(lambda: any(map(stands, bridges)), "one asked for both", 120)
    await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def asleep(server: PostgresServer, url: str, handle: Callable[[Message], Any]) -> AsyncIterator[Listener]:
    """Run a bridge that listens to the database, and a worker that has looked once and sleeps."""
    async with Bridge() as bridge, Attachments(bridge, postgres=[server.url()]):
        await until(lambda: bridge.readiness().ready, "the bridge listens")
        listener = Listener(url, QUEUE, handle, bridge=bridge, handle_signals=False)
        task = asyncio.create_task(listener.run(), name="worker")
        try:
            await until(lambda: bridge.listeners(), "the worker is there")
            await until(lambda: (state := bridge.describe(QUEUE)) and not state.dirty, "it has looked once")
            yield listener
        finally:
            await listener.stop()
            await task


@pytest.mark.system
async def test_an_insert_wakes_a_worker_that_sleeps(server: PostgresServer) -> None:
    """Inserts, delayed ones and retries reach the handler by the bell; between them nobody asks the database."""
    url = server.url(search_path="bell")
    await init(url, notify=True)
    seen: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def handle(message: Message) -> None:
        seen.put_nowait((message.text(), message.attempt))
        if message.text() == "again" and message.attempt == 1:
            raise Retry(after=0.2)

    async with asleep(server, url, handle) as listener:
        asked = listener.state().queues[QUEUE].total_receives
        async with asyncio.timeout(200):
            await execute(url, "SELECT queuebell_put($1, 'now'::text)", QUEUE)
            assert await seen.get() == ("now", 1)
            await execute(url, "SELECT queuebell_put($1, 'later'::text, '300 ms')", QUEUE)
            assert await seen.get() == ("later", 1)
            await execute(url, "INSERT INTO queuebell_messages (queue, text) VALUES ($1, 'again')", QUEUE)
            assert [await seen.get(), await seen.get()] == [("again", 1), ("again", 2)]
        await until(lambda: drained(url), "all is deleted")
        # Each of four wakes is a receive that finds and one or two that do not; a poller would ask for ever.
        assert listener.state().queues[QUEUE].total_receives - asked <= 16


@pytest.mark.system
@pytest.mark.parametrize("notify", [True, None])
async def test_a_commit_wakes_a_worker_that_sleeps(server: PostgresServer, notify: bool | None) -> None:
    """What was put in a transaction reaches the handler by the bell, with or without the trigger function."""
    url = server.url(search_path="joined")
    await init(url, notify=notify)
    seen: asyncio.Queue[str] = asyncio.Queue()
    async with open_store(url) as store, by_asyncpg(server, "joined") as caller:
        async with asleep(server, url, lambda message: seen.put_nowait(message.text())) as listener:
            asked = listener.state().queues[QUEUE].total_receives
            await store.put(QUEUE, ["paid"], connection=caller.connection)
            assert listener.state().queues[QUEUE].total_receives == asked
            assert seen.empty()
            await caller.end(commit=True)
            async with asyncio.timeout(WOKEN_WITHIN_S):
                assert await seen.get() == "paid"


WOKEN_WITHIN_S = 20.0
"""Far below the sweep and the dead-man timer, which would find it as well, after half a minute or more."""


async def drained(url: str) -> bool:
    return not await execute(url, "SELECT FROM queuebell_messages")


LEASE_S = 4.0
TAKEN_OVER_WITHIN_S = 15.0
"""The lease, and what a busy machine takes; without the rule it is the sweep, ten minutes later."""


@pytest.mark.system
@pytest.mark.parametrize("renewals", [0, 2])
async def test_the_lease_of_who_was_killed_at_another_bridge_is_taken_over(
    server: PostgresServer, tmp_path: Path, renewals: int
) -> None:
    """Two bridges hear of an INSERT, one worker takes it and is killed; the other looks at the lease's end."""
    url = server.url(search_path="two")
    await init(url, notify=True)
    async with Processes(tmp_path) as processes:
        bridges = [
            await processes.serve("--postgres", url, data=f"data-{name}", sweep_s="600") for name in ("one", "two")
        ]
        workers = []
        for number, bridge in enumerate(bridges):
            options = Options(url, bridge.url, QUEUE, name=f"w{number}", visibility=LEASE_S, hold=True)
            workers.append(await processes.start(*options.arguments(), name=options.name))
            await bridge.has_listeners(1)
            await bridge.is_clean(QUEUE)
        await execute(url, "INSERT INTO queuebell_messages (queue, text) VALUES ($1, 'held')", QUEUE)

        async def holders() -> list[int]:
            return [number for number, one in enumerate(workers) if any('"start"' in line for line in one.lines)]

        await until(holders, "one of them has it")
        await asyncio.sleep(renewals * LEASE_S / 2)
        for bridge in bridges:
            await bridge.is_clean(QUEUE)
        (holder,) = await holders()
        await workers[holder].kill()
        other = workers[1 - holder]
        began = json.loads(await other.line('"start"', within_s=TAKEN_OVER_WITHIN_S))
        assert (began["body"], began["attempt"]) == ("held", 2)
        other.tell("go")
        await until(lambda: drained(url), "it is handled and gone")
