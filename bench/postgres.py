"""Workers on PostgreSQL: Queuebell beside PgQueuer and Procrastinate, on one database in one run.

The others are not installed with ours: ``pip install pgqueuer 'procrastinate'``; QUEUEBELL_BENCH_POSTGRES names a
server whose user may make databases (``postgres://postgres@127.0.0.1:5432/postgres``).
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from urllib.parse import urlsplit, urlunsplit

from bench.figures import Report, percentile
from bench.sizes import Scale
from bench.stage import Stage

SERVER = "QUEUEBELL_BENCH_POSTGRES"
DATABASE = "queuebell_bench"
PACE_MS = 40.0
# The batch is the user's choice, and the best of each counts. PgQueuer's default is 10, with which it is several times
# slower than with these; more than 256 is refused by ours.
BATCHES = {"queuebell": (32, 256), "pgqueuer": (100, 300, 1000), "procrastinate": (32,)}
OTHERS = ("pgqueuer", "procrastinate")
BRIDGES = {"alone": "the bridge in the worker's process", "queuebell": "the bridge a process of its own"}
"""Both hear the NOTIFY of the put's transaction. The others' workers listen themselves, as that of `alone` does."""
WAYS = {"published": "put and publish over HTTP", "embedded": "put and publish, the bridge in the worker's process"}
"""Other ways of Queuebell, told beside the figures."""


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Jobs a second from a backlog, and the wait from a put to its handler on an idle queue."""
    report = Report("PostgreSQL, beside its other queues")
    server = server_beside_others()
    url, settings = await database(server)
    _, bridge = await stage.bridge(None, "--postgres", url)
    kinds = ("queuebell", *OTHERS)
    best: dict[str, dict[int, list[float]]] = {kind: {batch: [] for batch in BATCHES[kind]} for kind in kinds}
    # Enough that what each does when it begins, connections and statements, does not count.
    jobs = max(320, scale.bulk_messages // 4)
    for turn in range(scale.wake_rounds):
        # In turns, each first in its turn: whoever comes later finds what the others have left to vacuum.
        first = turn % len(kinds)
        for kind in (*kinds[first:], *kinds[:first]):
            for batch in BATCHES[kind]:
                worker = await stage.role("postgres_roles", kind, url, bridge)
                # The slowest would keep all others waiting; its rate does not change with the number.
                count = jobs // 8 if kind == "procrastinate" else jobs
                await worker.ask("fill", count=count)
                ran = await worker.ask("drain", count=count, batch=batch)
                await worker.stop()
                best[kind][batch].append(count / ran["settled"])
                say(f"round {turn + 1}: {kind}, batches of {batch}: {best[kind][batch][-1]:,.0f} jobs a second")
    medians = {kind: {batch: statistics.median(found) for batch, found in best[kind].items()} for kind in kinds}
    chosen = {kind: max(found, key=found.__getitem__) for kind, found in medians.items()}
    rates = {kind: medians[kind][chosen[kind]] for kind in kinds}
    rounds = zip(*(best[kind][chosen[kind]] for kind in ("queuebell", "pgqueuer")), strict=True)
    ratio = statistics.median(mine / theirs for mine, theirs in rounds)
    report.at_least("jobs a second through a listener, times PgQueuer", ratio, 2.0)
    report.tell("jobs a second, ours / PgQueuer / Procrastinate", " / ".join(f"{rates[kind]:,.0f}" for kind in kinds))
    waits: dict[str, list[float]] = {kind: [] for kind in (*BRIDGES, *OTHERS, *WAYS)}
    samples = max(4, scale.wake_samples)
    for turn in range(scale.wake_rounds):
        first = turn % len(waits)
        for kind in (*list(waits)[first:], *list(waits)[:first]):
            worker = await stage.role("postgres_roles", kind, url, bridge)
            waits[kind] += await worker.ask("wake", samples=samples, pace_ms=PACE_MS)
            await worker.stop()
    for share in (0.5, 0.99):
        others = [percentile(waits[kind], share) for kind in OTHERS]
        label = f"put to handler on an idle queue, p{share * 100:.0f}"
        for kind, where in BRIDGES.items():
            name = f"{label}, ms, below the lower of the others': {where}"
            report.at_most(name, percentile(waits[kind], share), min(others))
        report.tell(f"{label}: PgQueuer / Procrastinate, ms", " / ".join(f"{other:.2f}" for other in others))
        for kind, way in WAYS.items():
            report.tell(f"{label}: {way}, ms", f"{percentile(waits[kind], share):.2f}")
        say(f"{label}: " + ", ".join(f"{kind} {percentile(waits[kind], share):.2f}" for kind in waits))
    report.notes.append(
        f"Ours with batches of {_listed('queuebell')} and four times as many handlers at once, PgQueuer "
        f"{version('pgqueuer')} (asyncpg) with batches of {_listed('pgqueuer')} and no limit of jobs at once, the best "
        f"of each counts: {chosen['queuebell']} and {chosen['pgqueuer']}; Procrastinate {version('procrastinate')} "
        f"(psycopg); one worker process each, jobs that do nothing, {jobs:,} of them waiting, until none is left; all "
        f"on one database in turns. {settings} A put and its wake by NOTIFY within the put's transaction for all "
        f"three; ours goes by way of a bridge. {samples * scale.wake_rounds:,} waits each, in {scale.wake_rounds} "
        "rounds in turns."
    )
    return report


def _listed(kind: str) -> str:
    return ", ".join(map(str, BATCHES[kind]))


def server_beside_others() -> str:
    """Return the server's address. Raises `RuntimeError` where none is named, or the others are not installed."""
    server = os.environ.get(SERVER)
    missing = [name for name in (*OTHERS, "asyncpg") if find_spec(name) is None]
    if server is None or missing:
        wanted = f"pip install {' '.join(missing)}" if missing else f"set {SERVER}"
        raise RuntimeError(f"needs a PostgreSQL server and the others beside us: {wanted}")
    return server


async def database(server: str) -> tuple[str, str]:
    """Make the database anew with everybody's tables, and return its URL and what the server is set to."""
    import asyncpg  # type: ignore[import-untyped]
    import pgqueuer
    import procrastinate

    from bench.postgres_roles import ALONE, UNNOTIFIED
    from queuebell.bridge.queues.postgres.schema import init

    connection = await asyncpg.connect(server)
    await connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
    await connection.execute(f"CREATE DATABASE {DATABASE}")
    names = ("server_version", "fsync", "synchronous_commit", "shared_buffers")
    settings = [f"{name} {await connection.fetchval('SELECT current_setting($1)', name)}" for name in names]
    await connection.close()
    url = urlunsplit(urlsplit(server)._replace(path=f"/{DATABASE}"))
    await init(url, notify=True)
    await init(f"{url}?search_path={UNNOTIFIED}")
    await init(f"{url}?search_path={ALONE}", notify=True, prefix=ALONE)
    connection = await asyncpg.connect(url)
    await pgqueuer.Queries(pgqueuer.AsyncpgDriver(connection)).install()
    await connection.close()
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
    return url, f"The server: {', '.join(settings)}."
