"""Who puts PostgreSQL under pressure: many connections that put one job a commit, and a transaction that stays open.

``python -m bench.postgres_pressure_roles KIND URL`` (bench.role). Each kind puts as its own documentation shows.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from bench.figures import percentile
from bench.postgres_roles import ALONE, QUEUE, UNNOTIFIED
from bench.role import obey

Put = Callable[[str], Awaitable[object]]
SCHEMAS = {"queuebell": "", "each": f"?search_path={ALONE}", "silent": f"?search_path={UNNOTIFIED}"}
"""Ours where a bridge hears the puts, where none does and each notifies, and without any NOTIFY."""

AGE = {
    "queuebell": (
        f"INSERT INTO queuebell_messages (queue, text) SELECT '{QUEUE}', 'x' FROM generate_series(1, {{n}})",
        "UPDATE queuebell_messages SET visible_at = clock_timestamp() + interval '30 s', receipt = gen_random_uuid()",
        "DELETE FROM queuebell_messages",
    ),
    "pgqueuer": (
        "INSERT INTO pgqueuer (priority, entrypoint, status) SELECT 0, 'job', 'queued' FROM generate_series(1, {n})",
        "UPDATE pgqueuer SET status = 'picked', heartbeat = now(), queue_manager_id = gen_random_uuid()",
        "DELETE FROM pgqueuer",
    ),
    "procrastinate": (
        "INSERT INTO procrastinate_jobs (queue_name, task_name) SELECT 'default', 'job' FROM generate_series(1, {n})",
        "UPDATE procrastinate_jobs SET status = 'doing' WHERE status = 'todo'",
        "UPDATE procrastinate_jobs SET status = 'succeeded' WHERE status = 'doing'",
    ),
}
"""What a worker of each kind leaves of so many jobs that were put, taken and done."""


async def putters(kind: str, url: str, count: int) -> list[Put]:
    """Return as many ways to put a job as there are to be connections."""
    if kind == "procrastinate":
        import procrastinate

        app: Any = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=url, min_size=count, max_size=count)
        )

        @app.task(name="job")  # type: ignore[untyped-decorator]
        async def job(at: str = "") -> None: ...

        await app.open_async()
        return [lambda body: job.defer_async(at=body)] * count
    if kind == "pgqueuer":
        import pgqueuer

        queries = [pgqueuer.Queries(pgqueuer.AsyncpgDriver(await asyncpg.connect(url))) for _ in range(count)]
        return [lambda body, to=each: to.enqueue("job", body.encode()) for each in queries]  # type: ignore[misc]
    connections = [await asyncpg.connect(url + SCHEMAS[kind]) for _ in range(count)]
    return [
        lambda body, to=each: to.execute("SELECT queuebell_put($1, $2::bytea)", QUEUE, body.encode())  # type: ignore[misc]
        for each in connections
    ]


async def serve(kind: str, url: str) -> None:
    """Put and hold as told, until standard input ends."""
    holder: list[Any] = []
    made: dict[int, list[Put]] = {}

    async def on(connections: int) -> list[Put]:
        if connections not in made:
            made[connections] = await putters(kind, url, connections)
        return made[connections]

    async def flood(connections: int, seconds: float) -> dict[str, float]:
        """Put on each connection, one commit after the other; puts a second and milliseconds a put."""
        took: list[float] = []

        async def put_on(put: Put) -> None:
            while (begun := time.monotonic()) < end:
                await put("x")
                took.append((time.monotonic() - begun) * 1000)

        puts = await on(connections)
        await asyncio.gather(*(put("x") for put in puts))
        started = time.monotonic()
        end = started + seconds
        await asyncio.gather(*(put_on(put) for put in puts))
        rate = len(took) / (time.monotonic() - started)
        return {"rate": rate, "p50": percentile(took, 0.5), "p99": percentile(took, 0.99)}

    async def stream(rate: int, seconds: float, connections: int) -> float:
        """Put jobs that say when their put began, at an even pace or as fast as it goes; how many a second."""
        puts = await on(connections)
        total = int(rate * seconds)
        begun = time.monotonic()

        async def put_every(place: int, put: Put) -> None:
            for number in range(place, total, connections):
                await asyncio.sleep(begun + number / rate - time.monotonic())
                await put(f"@{time.monotonic()}")

        await asyncio.gather(*(put_every(place, put) for place, put in enumerate(puts)))
        return total / (time.monotonic() - begun)

    async def hold() -> None:
        """Leave a transaction open that sees the database as it is now, so that no vacuum removes what goes later."""
        connection = await asyncpg.connect(url)
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.fetch("SELECT count(*) FROM pg_class")
        holder.append(connection)

    async def age(count: int) -> None:
        """Leave behind what so many jobs do."""
        connection = await asyncpg.connect(url)
        for statement in AGE[kind]:
            await connection.execute(statement.format(n=count))
        await connection.close()

    await obey({"flood": flood, "stream": stream, "hold": hold, "age": age}, kind=kind)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
