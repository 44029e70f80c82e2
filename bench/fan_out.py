"""One trigger to every session, beside a bare loop that sends to as many WebSockets."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench.figures import Report, median_ratio
from bench.machine import raise_file_limit
from bench.sizes import Scale
from bench.stage import Stage

BODY = '{"storage_account": "bench", "queue_name": "idle0", "payload_size": 3}'
PERIOD_S = 60.0
# Nobody says `started` here, as nobody does beside; asking again is not what is measured.
CONFIGURATION = f'wake = "all"\nheartbeat_s = {PERIOD_S}\nstart_ack_s = 3600\n'


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Trigger, wait until all have heard, and again; both in turns."""
    report = Report("Fan-out")
    count = min(scale.fan_out, raise_file_limit() * 4 // 5 - 200)
    file = stage.folder / "all.toml"
    file.write_text(CONFIGURATION)
    _, url = await stage.bridge(None, "--config", str(file))
    bare = (await stage.role("bare")).ready["url"]
    fleets = {"queuebell": await stage.role("rawsession", url), "bare": await stage.role("rawsession", bare)}
    paths = {"queuebell": "/v1/triggers", "bare": "/v1/fan_out"}
    for fleet in fleets.values():
        await fleet.ask("open", count=count, period=PERIOD_S, queues=1, own=False)
    rates: dict[str, list[float]] = {name: [] for name in fleets}
    for name, fleet in fleets.items():
        await fleet.ask("fan", path=paths[name], body=BODY, seconds=scale.fan_out_s / 3)
    for number in range(scale.fan_out_rounds):
        for name, fleet in fleets.items():
            rates[name].append(await fleet.ask("fan", path=paths[name], body=BODY, seconds=scale.fan_out_s))
        say(
            f"round {number + 1} of {scale.fan_out_rounds}: "
            + ", ".join(f"{name} {taken[-1]:,.0f}/s" for name, taken in rates.items())
        )
    report.at_least(
        f"wakes heard a second by {count:,} sessions, times a bare broadcast loop",
        median_ratio(rates["queuebell"], rates["bare"]),
        0.8,
    )
    for name, label in (("queuebell", "wakes heard a second"), ("bare", "bare loop (`await ws.send_str`), a second")):
        rate = statistics.median(rates[name])
        report.tell(f"{label}; ms from a trigger to the last one", f"{rate:,.0f}; {count / rate * 1000:.1f}")
    report.notes.append(
        f'One trigger by HTTP to {count:,} WebSocket sessions with `wake = "all"`, the next when all have heard, '
        f"{scale.fan_out_rounds} rounds of {scale.fan_out_s:g} s each in turns. Every session reads on a socket of "
        "its own, all in one process, which takes part of the time on both sides."
    )
    return report
