"""One question for all quiet queues of a store, beside a sweep of each (B17); needs PostgreSQL and Redis."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench import servers
from bench.figures import Report
from bench.sizes import Scale
from bench.stage import Stage
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.bridge.queues.redis.store import RedisStore

EMPTY = "bench/quiet-00000"
AN_HOUR = 3600 / 54
"""Rounds an hour: one each 0.9 T."""
SWEEPS_AN_HOUR = 60
REPEATS = 7


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Idle queues without messages, with a few that have some, and all with one that waits."""
    report = Report("Rounds")
    count = scale.quiet_queues
    server = await servers.postgres(stage, "postgres")
    url = await servers.database(server, "rounds")
    await init(url)
    for store in (PostgresStore(url), RedisStore(await servers.redis(stage, "redis"))):
        async with store:
            for number in range(count):
                await store.create(f"bench/quiet-{number:05}")
            say(f"{store.kind}: {count:,} queues")
            sweep = await _median(lambda store=store: store.receive(EMPTY))  # type: ignore[misc]
            for filled, what in (
                (0, "without messages"),
                (count // 100, "1 % with a message"),
                (count, "all but one with a message"),
            ):
                queues = [f"bench/quiet-{number:05}" for number in range(1, min(filled + 1, count))]
                for queue in queues:
                    await store.put(queue, ["x"])
                found: list[Any] = []
                asked = await _median(lambda store=store, found=found: _ask(store, found))  # type: ignore[misc]
                assert sorted(found[-1].queues) == queues
                report.tell(f"{store.kind}: a round of {count:,} queues, {what}, ms", f"{asked:.1f}")
            hour = count * SWEEPS_AN_HOUR * sweep / 1000
            report.tell(f"{store.kind}: sweeps of all in an hour, s of the store", f"{hour:,.1f}")
            report.tell(
                f"{store.kind}: rounds in an hour, all but one queue with a message, s", f"{AN_HOUR * asked / 1000:.1f}"
            )
    report.notes.append(
        f"Medians of {REPEATS}, one after the other. An hour of sweeps is {SWEEPS_AN_HOUR} empty receives of each "
        f"queue; the last took {sweep:.2f} ms."
    )
    return report


async def _ask(store: PostgresStore | RedisStore, found: list[Any]) -> None:
    found.append(await store.visible_queues())


async def _median(call: Callable[[], Awaitable[object]]) -> float:
    """Return how long a call takes, in milliseconds."""
    await call()
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        await call()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)
