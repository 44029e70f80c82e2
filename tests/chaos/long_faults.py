"""The faults of a long run: what is done to its processes, and what a probe may wait meanwhile."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import pace
from tests.chaos.long_run import PACE, WORKERS, Ground
from tests.chaos.pace import Pace


@dataclass(frozen=True)
class LongFault:
    """One kind of fault; while the ``bridge_is_away``, waits count from when it is back."""

    number: str
    what: str
    inject: Callable[[Ground, random.Random], Awaitable[None]]
    bound_s: Callable[[Pace], float]
    bridge_is_away: bool = False


async def lasts(seconds: float) -> None:
    """Let a fault last."""
    await asyncio.sleep(seconds)


async def kill_producer(ground: Ground, draw: random.Random) -> None:
    """Kill a producer, and start another for what it leaves."""
    running = ground.producing()
    if running:
        number = draw.choice(running)
        program, count = ground.producers[number]
        await program.kill()
        left = count - ground.tally.acknowledged(number)
        if left > 0:
            await ground.start_producer(left)


async def kill_bridge(ground: Ground, draw: random.Random) -> None:
    """Kill the bridge, and start it again after a moment."""
    await ground.bridge.kill()
    await lasts(draw.uniform(0.0, 1.0))
    await ground.start_bridge()


async def stop_bridge(ground: Ground, draw: random.Random) -> None:
    """Stop the bridge, shorter or longer than it takes to be found dead."""
    ground.bridge.signal(signal.SIGSTOP)
    await lasts(draw.uniform(0.3, 1.5) * PACE.death_s)
    ground.bridge.signal(signal.SIGCONT)


async def kill_worker(ground: Ground, draw: random.Random) -> None:
    """Kill a worker with all it holds, and start another in its place."""
    seat = draw.randrange(WORKERS)
    await ground.workers[seat].kill()
    await ground.start_worker(seat)


async def stop_worker(ground: Ground, draw: random.Random) -> None:
    """Stop a worker for longer than its leases."""
    worker = ground.workers[draw.randrange(WORKERS)]
    worker.signal(signal.SIGSTOP)
    await lasts(PACE.visibility_s + draw.uniform(0.5, 2.0))
    worker.signal(signal.SIGCONT)


async def half_open(ground: Ground, _: random.Random) -> None:
    """Let every byte of one session vanish until both sides must know."""
    ground.proxy.black_hole()
    await lasts(1.2 * PACE.death_s)
    ground.proxy.heal()
    ground.proxy.cut()


async def resets(ground: Ground, draw: random.Random) -> None:
    """Reset one session again and again."""
    for _ in range(8):
        ground.proxy.cut()
        await lasts(draw.uniform(0.0, 0.3))


async def slices(ground: Ground, _: random.Random) -> None:
    """Carry one session byte by byte."""
    for on in (True, False):
        ground.proxy.up.one_byte = ground.proxy.down.one_byte = on
        await lasts(2.0 * on)


async def clock_jumps(ground: Ground, _: random.Random) -> None:
    """Set the bridge's wall clock an hour ahead."""
    ground.bridge.signal(signal.SIGUSR1)
    await lasts(0.5)


async def no_descriptors(ground: Ground, _: random.Random) -> None:
    """Leave the bridge two file descriptors."""
    pid = ground.bridge.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    limit = len(list(Path(f"/proc/{pid}/fd").iterdir())) + 2
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    await lasts(1.5)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


async def block_loop(ground: Ground, draw: random.Random) -> None:
    """Block a worker's event loop for longer than D."""
    ground.workers[draw.randrange(WORKERS)].tell(f"block {1.3 * PACE.death_s}")
    await lasts(1.3 * PACE.death_s)


def taken_over(periods: Pace) -> float:
    """The holder is gone: its lease ends, or it is found dead, and others are asked."""
    return pace.lease(periods).seconds


def back_again(periods: Pace) -> float:
    """The bridge is back; a probe may have been leased to a session that went with it."""
    return pace.reconnect(periods).seconds + periods.visibility_s + 1.0


def unhurt(periods: Pace) -> float:
    """Nobody who is needed is hurt."""
    return pace.healthy(periods).seconds


FAULTS = {
    fault.number: fault
    for fault in (
        LongFault("F1", "producer killed", kill_producer, unhurt),
        LongFault("F10", "bridge killed", kill_bridge, back_again, bridge_is_away=True),
        LongFault("F12", "bridge stopped", stop_bridge, back_again, bridge_is_away=True),
        LongFault("F15", "worker killed with its leases", kill_worker, taken_over),
        LongFault("F17", "worker stopped for longer than its leases", stop_worker, taken_over),
        LongFault("F21", "half-open session", half_open, taken_over),
        LongFault("F22", "sessions reset", resets, taken_over),
        LongFault("F24", "one byte at a time", slices, taken_over),
        LongFault("F30", "wall clock jumps", clock_jumps, unhurt),
        LongFault("F34", "no file descriptors", no_descriptors, taken_over),
        LongFault("F37", "event loop blocked", block_loop, taken_over),
    )
}
"""By number, as in the catalogue."""
