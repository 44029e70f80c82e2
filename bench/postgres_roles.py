"""A worker on PostgreSQL of each kind, used as its own documentation shows: Queuebell, PgQueuer, Procrastinate.

``python -m bench.postgres_roles KIND URL [BRIDGE]`` (bench.role). Each drains a backlog of jobs that do nothing, and
takes single jobs while it is idle; the producer is in the same process, on a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import asyncpg  # type: ignore[import-untyped]

from bench.role import obey
from queuebell.bridge import Bridge, NewMessage, Publisher, open_store
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from queuebell.listeners import Listener, Message

QUEUE = "bench/jobs"
CHUNK = 1000
UNNOTIFIED = "unnotified"
"""The schema whose tables have no trigger function."""
ALONE = "alone"
"""The schema, and the channel, that only a worker with a bridge of its own listens to."""


class Contender(Protocol):
    """One kind of worker; ``handled`` is called by each job."""

    async def fill(self, count: int) -> None:
        """Put jobs, quickly."""

    async def put(self) -> None:
        """Put one job, and return once it is committed."""

    async def start(self, batch: int) -> None:
        """Begin to work; jobs are taken so many at a time, where that can be said."""

    async def stop(self) -> None:
        """End the work."""

    async def left(self) -> int:
        """Count the jobs that are still to be done."""


class WakeScheduler:
    """When jobs were handled, and the wait for so many of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first = self.last = 0.0
        self.waits: list[float] = []
        self._wanted = 0
        self._reached = asyncio.Event()

    def handled(self, put_at: bytes | None) -> None:
        """Note one job, and its wait where it says when it was put (``@`` and seconds of the machine's clock)."""
        self.last = time.monotonic()
        if put_at is not None and put_at.startswith(b"@"):
            self.waits.append(self.last - float(put_at[1:]))
        if not self.count:
            self.first = self.last
        self.count += 1
        if self.count >= self._wanted:
            self._reached.set()

    async def reach(self, count: int) -> None:
        """Wait until so many were handled in all."""
        self._wanted = count
        self._reached.clear()
        if self.count < count:
            async with asyncio.timeout(120):
                await self._reached.wait()


class Queuebell:
    """A listener and a bridge that hears the trigger function."""

    def __init__(self, url: str, scheduler: WakeScheduler, bridge: str | Bridge) -> None:
        self._url, self._bell, self._bridge = url, scheduler, bridge
        self._producer: Any = None
        self._listener: Listener | None = None
        self._task: asyncio.Task[None] | None = None

    async def fill(self, count: int) -> None:
        producer = await self._connected()
        await producer.execute(
            "INSERT INTO queuebell_messages (queue, text) SELECT $1, 'x' FROM generate_series(1, $2::int)", QUEUE, count
        )

    async def put(self) -> None:
        await (await self._connected()).execute("SELECT queuebell_put($1, 'x'::bytea)", QUEUE)

    async def start(self, batch: int) -> None:
        async def handle(message: Message) -> None:
            self._bell.handled(message.body)

        self._listener = Listener(
            self._url,
            QUEUE,
            handle,
            bridge=self._bridge,
            batch=batch,
            concurrency=max(64, 4 * batch),
            handle_signals=False,
        )
        self._task = asyncio.create_task(self._listener.run(), name="listener")

    async def stop(self) -> None:
        assert self._listener is not None
        assert self._task is not None
        await self._listener.stop()
        await self._task

    async def left(self) -> int:
        return int(await (await self._connected()).fetchval("SELECT count(*) FROM queuebell_messages"))

    async def _connected(self) -> Any:
        if self._producer is None:
            self._producer = await asyncpg.connect(self._url)
        return self._producer


class Published(Queuebell):
    """The same on tables that notify nobody: the producer publishes after its put, to a bridge by HTTP."""

    def __init__(self, url: str, scheduler: WakeScheduler, bridge: str | Bridge) -> None:
        super().__init__(f"{url}?search_path={UNNOTIFIED}", scheduler, bridge)
        self._publishing: PublishingQueue | None = None

    async def put(self) -> None:
        if self._publishing is None:
            self._publishing = PublishingQueue(open_store(self._url), Publisher(self._bridge))
        await self._publishing.put(QUEUE, [NewMessage(b"x")])


class Embedded(Published):
    """The same with the bridge in the worker's own process."""

    def __init__(self, url: str, scheduler: WakeScheduler, bridge: str) -> None:
        self._service = Bridge()
        super().__init__(url, scheduler, self._service)

    async def start(self, batch: int) -> None:
        await self._service.start()
        await super().start(batch)

    async def stop(self) -> None:
        await super().stop()
        await self._service.stop()


class SingleNode(Queuebell):
    """A listener with the bridge in its own process, which hears the trigger function itself, as the others do."""

    def __init__(self, url: str, scheduler: WakeScheduler, bridge: str) -> None:
        self._service = Bridge()
        self._buses = Attachments(self._service, postgres=[url], settings=BusSettings(prefix=ALONE))
        super().__init__(f"{url}?search_path={ALONE}", scheduler, self._service)

    async def start(self, batch: int) -> None:
        await self._service.start()
        await self._buses.start()
        while not all(database.check()[0] for database in self._buses.databases.values()):
            await asyncio.sleep(0.01)
        await super().start(batch)

    async def stop(self) -> None:
        await super().stop()
        await self._buses.stop()
        await self._service.stop()


class PgQueuer:
    """pgqueuer, with its asyncpg driver."""

    def __init__(self, url: str, scheduler: WakeScheduler, bridge: str) -> None:
        self._url, self._bell = url, scheduler
        self._queries: Any = None
        self._own: Any = None
        self._worker: Any = None
        self._task: asyncio.Task[None] | None = None
        self._connections: list[Any] = []

    async def fill(self, count: int) -> None:
        queries = await self._producer()
        for start in range(0, count, CHUNK):
            n = min(CHUNK, count - start)
            await queries.enqueue(["job"] * n, [b"x"] * n, [0] * n)

    async def put(self) -> None:
        await (await self._producer()).enqueue("job", b"x")

    async def start(self, batch: int) -> None:
        import pgqueuer

        self._worker = pgqueuer.PgQueuer(pgqueuer.AsyncpgDriver(await self._connect()))

        @self._worker.entrypoint("job")
        async def handle(job: pgqueuer.Job) -> None:
            self._bell.handled(job.payload)

        self._task = asyncio.create_task(self._worker.run(batch_size=batch), name="pgqueuer")

    async def stop(self) -> None:
        assert self._task is not None
        self._worker.shutdown.set()
        await self._task

    async def left(self) -> int:
        await self._producer()
        return int(await self._own.fetchval("SELECT count(*) FROM pgqueuer"))

    async def _connect(self) -> Any:
        connection = await asyncpg.connect(self._url)
        self._connections.append(connection)
        return connection

    async def _producer(self) -> Any:
        import pgqueuer

        if self._queries is None:
            self._own = await self._connect()
            self._queries = pgqueuer.Queries(pgqueuer.AsyncpgDriver(self._own))
        return self._queries


class Procrastinate:
    """procrastinate, with its psycopg connector."""

    def __init__(self, url: str, scheduler: WakeScheduler, bridge: str) -> None:
        import procrastinate

        self._app: Any = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
        self._task: asyncio.Task[None] | None = None
        self._open = False

        @self._app.task(name="job")  # type: ignore[untyped-decorator]
        async def job(at: str = "") -> None:
            scheduler.handled(at.encode())

        self._job = job

    async def fill(self, count: int) -> None:
        await self._opened()
        for start in range(0, count, CHUNK):
            await self._job.batch_defer_async(*[{}] * min(CHUNK, count - start))

    async def put(self) -> None:
        await self._opened()
        await self._job.defer_async()

    async def start(self, batch: int) -> None:
        await self._opened()
        worker = self._app.run_worker_async(concurrency=batch, install_signal_handlers=False)
        self._task = asyncio.create_task(worker, name="procrastinate")

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def left(self) -> int:
        rows = await self._app.connector.execute_query_all_async(
            "SELECT count(*) AS n FROM procrastinate_jobs WHERE status = 'todo'"
        )
        return int(rows[0]["n"])

    async def _opened(self) -> None:
        if not self._open:
            self._open = True
            await self._app.open_async()


KINDS: dict[str, Callable[[str, WakeScheduler, str], Contender]] = {
    "queuebell": Queuebell,
    "published": Published,
    "embedded": Embedded,
    "alone": SingleNode,
    "pgqueuer": PgQueuer,
    "procrastinate": Procrastinate,
}


async def serve(kind: str, url: str, bridge: str = "") -> None:
    """Play a worker of this kind until standard input ends."""
    scheduler = WakeScheduler()
    contender = KINDS[kind](url, scheduler, bridge)

    async def fill(count: int) -> None:
        await contender.fill(count)

    async def drain(count: int, batch: int) -> dict[str, float]:
        """Work off a backlog: from the first job to the last, and until nothing of it is left."""
        before = scheduler.count
        scheduler.count = 0
        await contender.start(batch)
        await scheduler.reach(count)
        seconds = scheduler.last - scheduler.first
        while await contender.left():
            await asyncio.sleep(0.01)
        settled = time.monotonic() - scheduler.first
        await contender.stop()
        scheduler.count += before
        return {"seconds": seconds, "settled": settled}

    async def wake(samples: int, pace_ms: float) -> list[float]:
        """Put single jobs on an idle queue; milliseconds from before the put to the handler's start."""
        await contender.start(10)
        first = scheduler.count + 1  # the handler may be done before its put has returned
        await contender.put()
        await scheduler.reach(first)
        found = []
        for _ in range(samples):
            await asyncio.sleep(pace_ms / 1000)
            before, begun = scheduler.count, time.monotonic()
            await contender.put()
            await scheduler.reach(before + 1)
            found.append((scheduler.last - begun) * 1000)
        await contender.stop()
        return found

    async def begin(batch: int) -> None:
        """Work until told to `end`; returns once a first job was done."""
        first = scheduler.count + 1
        await contender.start(batch)
        await contender.put()
        await scheduler.reach(first)
        scheduler.waits.clear()

    async def end() -> dict[str, Any]:
        """Work no more; the seconds that each job waited, and the jobs that are left."""
        waits, left = list(scheduler.waits), await contender.left()
        await contender.stop()
        return {"waits": waits, "left": left}

    deeds: dict[str, Callable[..., Awaitable[Any]]] = {
        "fill": fill,
        "drain": drain,
        "wake": wake,
        "begin": begin,
        "end": end,
    }
    await obey(deeds, kind=kind)


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        runner.run(serve(*sys.argv[1:]))
