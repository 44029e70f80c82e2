"""`queuebell serve --store`: several bridges on one engine, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from bridge.contract.errors import StoreError
from bridge.queues.base import Depth, NewMessage
from bridge.queues.http import HttpStore
from bridge.queues.postgres.schema import init
from listeners import Listener, Message
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.support.command import perform, serving
from tests.support.postgres import running
from tests.support.processes import PATIENCE_S, until

__all__ = ["schema", "server", "url"]

QUEUE = "billing/orders"


@contextlib.asynccontextmanager
async def working(address: str) -> AsyncIterator[tuple[set[str], asyncio.Condition]]:
    """A worker of the bridge at this address, and what it handled."""
    handled: set[str] = set()
    more = asyncio.Condition()

    async def handle(message: Message) -> None:
        async with more:
            handled.add(message.text())
            more.notify_all()

    listener = Listener(address, QUEUE, handle, handle_signals=False, visibility_timeout=5)
    running = asyncio.create_task(listener.run(), name="worker")
    try:
        yield handled, more
    finally:
        await listener.stop()
        await running


@pytest.mark.system
async def test_a_put_at_one_bridge_wakes_a_worker_at_another(tmp_path: pathlib.Path, url: str) -> None:
    """Without a broker: the tables notify, and each bridge listens to them unasked. Keyed puts at both are one."""
    await init(url, notify=True)
    env = {"QUEUEBELL_STORE": url, "QUEUEBELL_SWEEP_S": "0"}
    with serving(tmp_path / "a", env=env) as one, serving(tmp_path / "b", env=env) as two:
        async with HttpStore(one.url) as first, HttpStore(two.url) as second, working(two.url) as (handled, more):
            await first.create(QUEUE)
            for number in range(5):
                # One after the other, so that each finds the worker asleep.
                await first.put(QUEUE, [f"put {number}"])
                async with asyncio.timeout(PATIENCE_S), more:
                    await more.wait_for(lambda number=number: f"put {number}" in handled)  # type: ignore[misc]
            once = [
                store.put_once("billing/keyed", f"key-{number}", f"body {number}")
                for number in range(20)
                for store in (first, second)
            ]
            receipts = await asyncio.gather(*once)
            assert sum(receipt is not None for receipt in receipts) == 20
            assert await second.depth("billing/keyed") == Depth(20, 0)
        assert one.stop()[0] == two.stop()[0] == 0


@pytest.mark.system
async def test_a_bridge_that_is_killed_loses_nothing(tmp_path: pathlib.Path, url: str) -> None:
    """What it acknowledged is handled by a worker of the other one, also what its own worker had in hand."""
    await init(url, notify=True)
    env = {"QUEUEBELL_STORE": url}
    acknowledged: set[str] = set()
    with serving(tmp_path / "a", env=env) as one, serving(tmp_path / "b", env=env) as two:
        async with HttpStore(one.url) as first, working(two.url) as (handled, more):
            await first.put(QUEUE, [NewMessage("first")])
            held = await first.receive(QUEUE, 1, 1.0)
            acknowledged.add("first")
            half = asyncio.Event()

            async def put(worker: int) -> None:
                for number in range(100):
                    body = f"{worker}-{number}"
                    try:
                        await first.put(QUEUE, [body])
                    except StoreError:
                        return
                    acknowledged.add(body)
                    if len(acknowledged) > 100:
                        half.set()

            putting = asyncio.gather(*(put(worker) for worker in range(4)))
            async with asyncio.timeout(PATIENCE_S):
                await half.wait()
            one.process.kill()
            await putting
            assert len(acknowledged) < 401, "it was killed under load"
            async with asyncio.timeout(PATIENCE_S), more:
                await more.wait_for(lambda: acknowledged <= handled)
        assert len(held.messages) <= 1
        two.stop()
        one.process.wait()


@pytest.mark.system
async def test_a_list_of_bridges_on_one_engine(tmp_path: pathlib.Path, url: str) -> None:
    """Store, session and producer name both. The one that the worker is with is killed, and work goes on, woken."""
    await init(url, notify=True)
    env = {"QUEUEBELL_STORE": url, "QUEUEBELL_SWEEP_S": "0"}
    with serving(tmp_path / "a", env=env) as one, serving(tmp_path / "b", env=env) as two:
        bridges = {served.url: served for served in (one, two)}
        handled: dict[str, str] = {}

        async def handle(message: Message) -> None:
            handled[message.text()] = message.wake_source

        listener = Listener(list(bridges), QUEUE, handle, bridge=list(bridges), handle_signals=False)
        running = asyncio.create_task(listener.run(), name="worker")
        async with HttpStore(",".join(bridges)) as store:

            async def works(number: int) -> str:
                await until(lambda: listener.state().mode == "push", "a session stands")
                assert await store.put_once(QUEUE, f"key-{number}", str(number)) is not None
                await until(lambda: str(number) in handled, f"{number} is handled")
                return str(listener.state().bridge)

            where = await works(1)
            # By now the worker sleeps: only a wake finds the second.
            assert await works(2) == where and handled["2"] in {"trigger", "resync"}
            assert listener.state().queues[QUEUE].carried == 0
            bridges[where].process.kill()
            bridges[where].process.wait()
            assert await works(3) != where
            assert await works(4) != where

            async def empty() -> bool:
                return await store.depth(QUEUE) == Depth(0, 0)

            await until(empty, "the last is deleted")
            await listener.stop()
            await running


@pytest.mark.system
def test_export_and_import_move_a_service_to_an_engine(tmp_path: pathlib.Path, url: str) -> None:
    """A file that holds messages is named and refused; once they were moved the same command serves."""
    asyncio.run(init(url, notify=True))
    env = {"QUEUEBELL_STORE": url}
    data, moved = tmp_path / "data", tmp_path / "moved"
    with serving(data) as own:
        own.client("queue", "put", QUEUE, "one", "two")
        own.stop()
    done = perform("serve", "--listen", "127.0.0.1:0", "--data", str(data), env=env, code=78)
    assert "queue.db holds 2 messages" in done.stderr.decode()
    with serving(data) as own:
        own.client("queue", "export", QUEUE, "--file", str(moved), "--delete")
        own.stop()
    with serving(data, env=env) as served:
        served.client("queue", "import", QUEUE, "--file", str(moved))
        assert served.client("queue", "get", QUEUE, "--max", "2") == "one\ntwo\n"
        code, log = served.stop()
    assert code == 0
    assert "password" not in log and "queues of this service are in postgres://" in log


def test_what_cannot_be_served_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    """Another scheme, a database without tables, an Azure endpoint on what tells no metadata: one line each."""
    for store, more, said in (
        ("sqs://eu-west-1", [], "store: a bridge keeps its queues in an engine"),
        ("sqlite:///x.db", [], "store: a bridge keeps its queues in an engine"),
        ("redis://127.0.0.1:1", ["--azure-queue", "127.0.0.1:0"], "azure_queue: redis://127.0.0.1:1"),
        ("nats://127.0.0.1:1", ["--azure-queue", "127.0.0.1:0"], "azure_queue: nats://127.0.0.1:1"),
    ):
        words = ("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--store", store, *more)
        done = perform(*words, code=78)
        assert said in done.stderr.decode()
        assert len(done.stderr.decode().strip().splitlines()) == 1


@pytest.mark.system
def test_a_database_without_tables_is_refused_with_what_makes_them(tmp_path: pathlib.Path, url: str) -> None:
    """Nothing is served that could not keep a put."""
    done = perform("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--store", url, code=None)
    assert done.returncode and "queuebell queue init" in done.stderr.decode()


@pytest.mark.system
async def test_a_database_that_crashes_is_waited_for(tmp_path: pathlib.Path) -> None:
    """A bridge that starts meanwhile is not ready; once it is back, what was put before is handled, and new puts."""
    with running() as database:
        url = database.url()
        await init(url, notify=True)
        env = {"QUEUEBELL_STORE": url}
        with serving(tmp_path / "a", env=env) as one:
            async with HttpStore(one.url) as store, working(one.url) as (handled, more):
                await store.put(QUEUE, [NewMessage("before", 1)])
                await asyncio.to_thread(database.stop, "immediate")
                with pytest.raises(StoreError):
                    await store.put(QUEUE, ["refused"])
                with serving(tmp_path / "b", env=env) as two:
                    async with aiohttp.ClientSession() as client, client.get(f"{two.url}/readyz") as answer:
                        assert (answer.status, (await answer.json())["checks"]["store"]["ok"]) == (503, False)
                    await asyncio.to_thread(database.start)
                    async with HttpStore(two.url) as other, asyncio.timeout(PATIENCE_S):
                        while True:
                            try:
                                await other.put(QUEUE, ["after"])
                                break
                            except StoreError:
                                await asyncio.sleep(0.05)
                    async with asyncio.timeout(PATIENCE_S), more:
                        await more.wait_for(lambda: {"before", "after"} <= handled)
                    assert "refused" not in handled
