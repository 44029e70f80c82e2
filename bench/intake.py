"""Triggers over HTTP, one a request with keep-alive, beside a bare aiohttp handler that only decodes."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench.figures import Report, median_ratio
from bench.sizes import Scale
from bench.stage import Stage

CONNECTIONS = 16
QUEUES = 100


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Drive both in turns with the same raw client."""
    report = Report("Trigger intake over HTTP")
    _, quiet = await stage.bridge()
    _, heard = await stage.bridge()
    bare = (await stage.role("bare")).ready["url"]
    client = await stage.role("rawhttp")
    # Sessions that hear of all the queues, and never say `started`: the most that a trigger can cost.
    fleet = await stage.role("rawsession", heard)
    await fleet.ask("open", count=QUEUES, own=False)
    bodies = [
        f'{{"storage_account": "bench", "queue_name": "idle{number}", "payload_size": 3}}' for number in range(QUEUES)
    ]
    rates: dict[str, list[float]] = {"queuebell": [], "bare": [], "heard": []}
    cpu = []
    for number in range(scale.intake_rounds):
        for name, url in (("queuebell", quiet), ("bare", bare), ("heard", heard)):
            ran = await client.ask(
                "run",
                url=url,
                path="/v1/triggers",
                bodies=bodies,
                connections=CONNECTIONS,
                seconds=scale.intake_s,
                status=202,
            )
            rates[name].append(ran["rate"])
            cpu.append(ran["cpu"])
        say(
            f"round {number + 1} of {scale.intake_rounds}: "
            + ", ".join(f"{name} {taken[-1]:,.0f}/s" for name, taken in rates.items())
        )
    report.at_least("triggers a second, times the bare handler", median_ratio(rates["queuebell"], rates["bare"]), 0.7)
    report.tell("triggers a second", f"{statistics.median(rates['queuebell']):,.0f}")
    report.tell("bare handler, requests a second", f"{statistics.median(rates['bare']):,.0f}")
    report.tell(
        f"with {QUEUES} sessions that hear each trigger: a second, times the bare handler",
        f"{statistics.median(rates['heard']):,.0f}, {median_ratio(rates['heard'], rates['bare']):.2f}",
    )
    report.notes.append(
        f"{CONNECTIONS} connections, {QUEUES} queues in turn, {scale.intake_rounds} rounds of {scale.intake_s:g} s "
        f"each in turns; a raw client in its own process used {statistics.median(cpu):.0%} of a core."
    )
    return report
