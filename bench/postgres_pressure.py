"""PostgreSQL under pressure: many commits that notify, and a vacuum that may remove nothing; beside the other queues.

Needs what `bench.postgres` needs, and a user who may set commit_delay.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib.metadata import version

from bench.figures import Report, percentile
from bench.postgres import DATABASE, OTHERS, database, server_beside_others
from bench.sizes import Scale
from bench.stage import Stage

FLUSHES = {0: "the disk as it is", 1000: "a write to the disk takes 1 ms more"}
"""Microseconds by which each write of the log is delayed (commit_delay), and what that stands for."""
PUTTERS = {
    "queuebell": "Queuebell, heard by a bridge",
    "each": "Queuebell, each put notifies",
    "silent": "Queuebell, without NOTIFY",
    "pgqueuer": "PgQueuer",
    "procrastinate": "Procrastinate",
}
WORKERS = {"queuebell": ("Queuebell", 32), "pgqueuer": ("PgQueuer", 100), "procrastinate": ("Procrastinate", 32)}
"""Names, and the batch or, for the last, the jobs at once."""
STREAMS = 16


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Puts a second of many connections, and the wait for a handler while nothing can be vacuumed."""
    server = server_beside_others()
    report = Report("PostgreSQL under pressure, beside its other queues")
    settings = await _notify(stage, scale, say, server, report)
    await _pinned(stage, scale, say, server, report)
    report.notes.append(
        f"{settings} PgQueuer {version('pgqueuer')}, Procrastinate {version('procrastinate')}, each put as its "
        f"documentation shows, one job a commit. Rates of puts: {scale.pressure_rounds} rounds of "
        f"{scale.pressure_s:g} s in turns, medians; nobody takes the jobs meanwhile. `each` is what puts did before "
        "bridges promised to look, and what they do where none is there. Vacuum held up: a transaction that stays open "
        "(repeatable read) while jobs are put, taken and done by SQL as each kind's worker would; then one worker, "
        f"{scale.pinned_rate} puts a second for {scale.pinned_s:g} s on {STREAMS} connections, an own database each. A "
        "wait counts from when the put began; jobs left are those of the moment of the last put."
    )
    return report


async def _notify(stage: Stage, scale: Scale, say: Callable[[str], None], server: str, report: Report) -> str:
    import asyncpg  # type: ignore[import-untyped]

    most = max(scale.pressure_connections)
    settings = ""
    for delay, disk in FLUSHES.items():
        found: dict[tuple[str, int], list[dict[str, float]]] = {}
        for turn in range(scale.pressure_rounds):
            url, settings = await database(server)
            admin = await asyncpg.connect(server)
            await admin.execute(f"ALTER DATABASE {DATABASE} SET commit_delay = {delay}")
            await admin.execute(f"ALTER DATABASE {DATABASE} SET commit_siblings = 0")
            await admin.close()
            bridge, _ = await stage.bridge(None, "--postgres", url)
            kinds = [*PUTTERS]
            for kind in (*kinds[turn % len(kinds) :], *kinds[: turn % len(kinds)]):
                role = await stage.role("postgres_pressure_roles", kind, url)
                for connections in scale.pressure_connections:
                    ran = await role.ask("flood", connections=connections, seconds=scale.pressure_s)
                    found.setdefault((kind, connections), []).append(ran)
                    say(f"{disk}, {kind}, {connections} connections: {ran['rate']:,.0f} puts a second")
                await role.stop()
            await bridge.stop()
        middle = {
            key: {name: statistics.median(ran[name] for ran in rans) for name in rans[0]} for key, rans in found.items()
        }
        mine = middle["queuebell", most]["rate"]
        best = max(middle[kind, most]["rate"] for kind in OTHERS)
        label = f"{most} connections, {disk}"
        report.at_least(f"puts a second, times the better of the others: {label}", mine / best, 1.0)
        report.at_least(
            f"puts a second, times those without NOTIFY: {label}", mine / middle["silent", most]["rate"], 0.7
        )
        for kind, name in PUTTERS.items():
            texts = [
                f"{at['rate']:,.0f} ({at['p50']:.1f} / {at['p99']:.1f})"
                for at in (middle[kind, connections] for connections in scale.pressure_connections)
            ]
            listed = " / ".join(map(str, scale.pressure_connections))
            report.tell(f"{name}: puts a second (p50 / p99, ms), {listed} connections, {disk}", "; ".join(texts))
    return settings


async def _pinned(stage: Stage, scale: Scale, say: Callable[[str], None], server: str, report: Report) -> None:
    waits: dict[tuple[str, int], list[float]] = {}
    left: dict[tuple[str, int], list[int]] = {}
    rates: dict[tuple[str, int], list[float]] = {}
    for turn in range(scale.pressure_rounds):
        kinds = [*WORKERS]
        for kind in (*kinds[turn % len(kinds) :], *kinds[: turn % len(kinds)]):
            url, _ = await database(server)
            bridge, address = await stage.bridge(None, "--postgres", url)
            producer = await stage.role("postgres_pressure_roles", kind, url)
            await producer.ask("hold")
            before = 0
            for rows in scale.pinned_rows:
                await producer.ask("age", count=rows - before)
                before = rows
                worker = await stage.role("postgres_roles", kind, url, address)
                await worker.ask("begin", batch=WORKERS[kind][1])
                rate = await producer.ask("stream", rate=scale.pinned_rate, seconds=scale.pinned_s, connections=STREAMS)
                ran = await worker.ask("end")
                await worker.stop()
                # Who got nothing done in all that time waited as long at least.
                waits.setdefault((kind, rows), []).extend(ran["waits"] or [scale.pinned_s])
                left.setdefault((kind, rows), []).append(ran["left"])
                rates.setdefault((kind, rows), []).append(rate)
                p50 = f"p50 {percentile(waits[kind, rows], 0.5) * 1000:,.1f} ms"
                say(f"{kind}, {rows:,} jobs gone: {rate:,.0f} puts a second, {p50}, {ran['left']:,} left")
            await producer.stop()
            await bridge.stop()
    most = max(scale.pinned_rows)
    mine, *others = (percentile(waits[kind, most], 0.5) * 1000 for kind in WORKERS)
    label = f"{most:,} jobs gone and not vacuumed"
    report.at_most(f"put to handler, p50, ms, {label}: below the lower of the others'", mine, min(others))
    calm = percentile(waits["queuebell", scale.pinned_rows[0]], 0.5) * 1000
    report.at_most(f"put to handler, p50, {label}: times that with none", mine / calm, 2.0)
    for kind, (name, _) in WORKERS.items():
        for rows in scale.pinned_rows:
            p50, p99 = (percentile(waits[kind, rows], share) * 1000 for share in (0.5, 0.99))
            put, waiting = statistics.median(rates[kind, rows]), statistics.median(left[kind, rows])
            report.tell(
                f"{name}, {rows:,} jobs gone and not vacuumed: p50 / p99, ms; puts a second; jobs left",
                f"{p50:,.1f} / {p99:,.1f}; {put:,.0f}; {waiting:,.0f}",
            )
