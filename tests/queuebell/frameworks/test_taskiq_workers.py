"""The broker for taskiq under taskiq's own commands: real worker processes, each of the stores, and kills.

=======================  ====================================================
what meets the broker    asked by
=======================  ====================================================
several processes        test_workers_of_a_store (embedded, PostgreSQL, Redis)
results, typed models    the same
a worker killed          test_killed_half_way
a worker told to stop    test_told_to_stop
cron                     test_cron_of_the_scheduler
idle workers             test_idle_workers_receive_nothing
=======================  ====================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from taskiq import AsyncTaskiqTask
from taskiq.exceptions import SendTaskError
from taskiq.kicker import AsyncKicker

from queuebell import StoreUnavailable
from queuebell.bridge.queues.postgres.schema import init
from queuebell.frameworks.taskiq import QueuebellBroker
from tests.queuebell.frameworks.taskiq_program import Results
from tests.support import postgres
from tests.support.processes import Processes, Program, Service, environment, until
from tests.support.redis import RedisServer

QUEUE = "billing/orders"
MODULE = "tests.queuebell.frameworks.taskiq_program"
RESULT_S = 200.0


class Scene(NamedTuple):
    """A bridge, a store, and a broker of this process that kicks to it."""

    processes: Processes
    bridge: Service
    store: str
    broker: QueuebellBroker

    async def kick(self, task: str, *args: Any, **labels: Any) -> AsyncTaskiqTask[Any]:
        """Kick a task by its name, again where the store of a busy machine was not reached in time."""
        kicker: AsyncKicker[Any, Any] = AsyncKicker(f"{MODULE}:{task}", self.broker, labels)
        kicker.with_task_id(uuid.uuid4().hex)

        async def kicked() -> AsyncTaskiqTask[Any] | None:
            try:
                return await kicker.kiq(*args)
            except SendTaskError as error:
                if type(error.__cause__) is not StoreUnavailable:
                    raise
                return None

        put: AsyncTaskiqTask[Any] = await until(kicked, "the store takes a task")
        return put

    async def run(self, *command: str, **variables: str) -> Program:
        """Start a command of taskiq's."""
        where = {"STORE": self.store, "BRIDGE": self.bridge.url, "FOLDER": str(self.processes.folder)}
        started: Program = await self.processes.start(
            sys.executable, "-m", "taskiq", *command, env=environment(**where, **variables)
        )
        return started

    async def worker(self, *options: str, workers: int = 1, **variables: str) -> Program:
        """Start a worker command."""
        return await self.run("worker", f"{MODULE}:broker", "--workers", str(workers), *options, **variables)

    def go(self) -> None:
        """Let tasks end that hold."""
        (self.processes.folder / "go").touch()


def events(program: Program, kind: str) -> list[dict[str, Any]]:
    """Return what the tasks of a program said of one kind."""
    said = [json.loads(line) for line in program.lines if line.startswith("{")]
    return [event for event in said if event["event"] == kind]


def bodies(kind: str, *programs: Program) -> Counter[str]:
    """Count the bodies of such events."""
    return Counter(event["body"] for program in programs for event in events(program, kind))


@pytest_asyncio.fixture
async def scenes(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Scene]]]:
    """Make scenes with a store of a kind, and end all that they started."""
    async with Processes(tmp_path) as processes, contextlib.AsyncExitStack() as opened:

        async def scene(kind: str = "embedded", **settings: str) -> Scene:
            bridge = await processes.serve(**settings)
            store = bridge.url
            if kind == "redis":
                server = await opened.enter_async_context(RedisServer(tmp_path / "redis"))
                store = server.url()
            elif kind == "postgres":
                store = opened.enter_context(postgres.running()).url()
                await init(store)
            broker = QueuebellBroker(store, QUEUE, bridge=bridge.url).with_result_backend(Results(tmp_path))
            opened.push_async_callback(broker.shutdown)
            return Scene(processes, bridge, store, broker)

        yield scene


@pytest.mark.parametrize(
    "kind",
    [
        "embedded",
        pytest.param("postgres", marks=pytest.mark.system),
        pytest.param("redis", marks=pytest.mark.system),
    ],
)
async def test_workers_of_a_store(scenes: Callable[..., Awaitable[Scene]], kind: str) -> None:
    """Two workers do each task once, also the one that is put for later; the results are the result backend's."""
    scene = await scenes(kind)
    worker = await scene.worker(workers=2)
    tasks = [await scene.kick("charge", {"number": number, "cents": 5}) for number in range(20)]
    tasks.append(await scene.kick("charge", {"number": 20, "cents": 5}, delay=0.5))
    results = await asyncio.gather(*(task.wait_result(timeout=RESULT_S) for task in tasks))
    assert [result.return_value for result in results] == [10] * 21
    assert bodies("done", worker) == {str(number): 1 for number in range(21)}
    assert await worker.stop() == 0


async def test_killed_half_way(scenes: Callable[..., Awaitable[Scene]]) -> None:
    """What a worker had begun when it was killed is begun again by another one when the lease ends: nothing is lost."""
    scene = await scenes()
    killed = await scene.worker(VISIBILITY="1")
    await scene.kick("hold", "a")
    await scene.kick("hold", "b")
    await until(lambda: set(bodies("start", killed)) == {"a", "b"}, "both have begun")
    await killed.kill()
    scene.go()
    other = await scene.worker()
    await until(lambda: set(bodies("done", other)) == {"a", "b"}, "both are done")
    await scene.bridge.is_drained(QUEUE)
    assert bodies("done", killed, other) == {"a": 1, "b": 1}
    assert await other.stop() == 0


async def test_told_to_stop(scenes: Callable[..., Awaitable[Scene]]) -> None:
    """SIGTERM: what has begun is ended, and what waits in that process is with another one at once; nothing twice."""
    scene = await scenes()
    leaving = await scene.worker("--max-async-tasks", "1", CONCURRENCY="3")
    tasks = [await scene.kick("hold", name) for name in "abc"]
    await until(lambda: bodies("start", leaving).total() == 1, "one has begun")

    async def all_leased() -> bool:
        return (await scene.bridge.queue(QUEUE))["depth"] == {"visible": 0, "invisible": 3}

    await until(all_leased, "the others wait in the same process")
    stopping = asyncio.create_task(leaving.stop())
    # From 3.14 on nothing that a worker of taskiq logs is seen, for it is no fork any more: this says its parent.
    await leaving.complains("Workers are scheduled for shutdown")
    staying = await scene.worker()
    await until(lambda: bodies("start", staying).total() == 2, "the other worker has what had not begun")
    scene.go()
    assert await stopping == 0
    results = [await task.wait_result(timeout=RESULT_S) for task in tasks]
    assert [result.return_value for result in results] == ["a", "b", "c"]
    assert bodies("start", leaving, staying) == bodies("done", leaving, staying) == {"a": 1, "b": 1, "c": 1}
    await scene.bridge.is_drained(QUEUE)
    assert await staying.stop() == 0


async def test_cron_of_the_scheduler(scenes: Callable[..., Awaitable[Scene]]) -> None:
    """The command `taskiq scheduler` puts what its labels say, and a worker is woken for it."""
    scene = await scenes()
    worker = await scene.worker()
    scheduler = await scene.run("scheduler", f"{MODULE}:scheduler")
    await until(lambda: events(worker, "tick"), "the task of the schedule is done")
    assert await worker.stop() == 0
    await scheduler.kill()


async def test_idle_workers_receive_nothing(scenes: Callable[..., Awaitable[Scene]]) -> None:
    """Four idle worker processes make no receive over many heartbeats, and the next put starts a task at once."""
    scene = await scenes(heartbeat_s="0.2")
    worker = await scene.worker(workers=4)
    await scene.bridge.has_listeners(4)
    await (await scene.kick("charge", {"number": 1, "cents": 1})).wait_result(timeout=RESULT_S)
    await scene.bridge.is_drained(QUEUE)
    await scene.bridge.is_clean(QUEUE)
    before = await scene.bridge.receives(QUEUE)
    clock = await scene.kick("charge", {"number": 2, "cents": 1}, delay=3)
    await clock.wait_result(timeout=RESULT_S)
    assert await scene.bridge.receives(QUEUE) - before <= 1  # for what is due; all the time before it there was none
    assert await worker.stop() == 0
