"""Ten thousand idle sessions: memory each, and processor while they only heartbeat, beside bare aiohttp WebSockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench.figures import Report
from bench.machine import cpu_seconds, raise_file_limit, resident_bytes
from bench.sizes import Scale
from bench.stage import Child, Stage

SPARE_FILES = 200
SETTLE_S = 1.0


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Open the sessions, let them idle, and look at the server; then the same with the bare one."""
    report = Report("Idle sessions")
    # A fifth of its files `serve` keeps for other things.
    count = min(scale.sessions, raise_file_limit() * 4 // 5 - SPARE_FILES)
    if count < scale.sessions:
        report.notes.append(f"The file limit of this machine allowed {count:,} sessions only.")
    bridge, url = await stage.bridge()
    memory, share, said = await _hold(stage, bridge, url, count, None, scale, say)
    report.at_most(f"resident memory a session, KiB, at {count:,}", memory, 20.0, "{:.1f}")
    report.at_most("share of a core while they only heartbeat, %", share * 100, 3.0)
    report.notes.append(said)
    await bridge.stop()
    bare = await stage.role("bare")
    period = max(5.0, count * 0.0025)
    memory, share, said = await _hold(stage, bare, bare.ready["url"], count, period, scale, say)
    report.tell("bare aiohttp WebSockets: KiB a session", f"{memory:.1f}")
    report.tell("bare aiohttp WebSockets that answer as many heartbeats: share of a core, %", f"{share * 100:.2f}")
    return report


async def _hold(
    stage: Stage,
    server: Child,
    url: str,
    count: int,
    period: float | None,
    scale: Scale,
    say: Callable[[str], None],
) -> tuple[float, float, str]:
    fleet = await stage.role("rawsession", url)
    # A first few, so that what is loaded once is not counted as theirs.
    first = min(50, count // 10)
    await fleet.ask("open", count=first, period=period)
    await asyncio.sleep(min(SETTLE_S, scale.sessions_s))
    before = _known(resident_bytes(server.pid))
    opened = await fleet.ask("open", count=count - first, period=period)
    await asyncio.sleep(min(SETTLE_S, scale.sessions_s))
    counted = await fleet.ask("counts")
    begun, cpu = time.monotonic(), _known(cpu_seconds(server.pid))
    await asyncio.sleep(scale.sessions_s)
    seconds = time.monotonic() - begun
    used = _known(cpu_seconds(server.pid)) - cpu
    memory = (_known(resident_bytes(server.pid)) - before) / (count - first) / 1024
    after = await fleet.ask("counts")
    beats = (after["beats"] - counted["beats"]) / seconds
    if after["lost"]:
        raise RuntimeError(f"{after['lost']} of {count} sessions fell")
    await fleet.stop()
    said = (
        f"{count:,} sessions opened in {opened['seconds']:.1f} s; then {beats:.0f} heartbeats a second (one each "
        f"{opened['heartbeat_s']:g} s), {(after['frames'] - counted['frames']) / seconds:.0f} answers a second, over "
        f"{seconds:.0f} s; {used / seconds / max(beats, 1e-9) * 1e6:.0f} us a heartbeat."
    )
    say(f"{said} {memory:.1f} KiB each, {used / seconds:.2%} of a core")
    return memory, used / seconds, said


def _known(value: float | None) -> float:
    if value is None:
        raise RuntimeError("this system does not tell what a process uses")
    return value
