"""Faults of clocks and of things that are due: wall clocks that jump, delays over a kill, times to live."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

from tests.chaos import pace
from tests.chaos.row import Needs, Row, Story
from tests.chaos.site import INSIDE, QUEUE, Site

HOUR_S = 3600
DAY_S = 86_400


async def delayed(site: Site) -> None:
    """F27: own queue, nobody is killed."""
    await site.own()
    await site.worker()
    bodies = await site.put(4, after_ms=1500)
    await site.wakes(bodies)
    early = min(min(site.tally.starts[body]) - site.tally.visible_at[body] for body in bodies)
    assert early > -0.1, f"a message came {-early:.3f} s before it was due"
    site.figures["earliest against due"] = f"{early * 1000:+.0f} ms"


async def delayed_over_a_kill(site: Site) -> None:
    """F27 with the bridge killed before it is due."""
    await site.own()
    await site.worker()
    bodies = await site.put(4, after_ms=1500)
    await site.bridge.kill()
    await site.wakes(bodies, await site.again())


async def delayed_elsewhere(site: Site) -> None:
    """F27, a trigger with `not_before_ms`; sweep off."""
    await site.elsewhere(sweep_s="0")
    await site.worker()
    await site.wakes(await site.put(4, after_ms=1000))


async def delayed_elsewhere_over_a_kill(site: Site) -> None:
    """F27: the bridge that had the timer is killed, and the message is due after its successor has looked."""
    await site.elsewhere()
    await site.worker()
    bodies = await site.put(4, after_ms=2500)
    await site.bridge.kill()
    await site.wakes(bodies, await site.again())


async def expired(site: Site) -> None:
    """F29."""
    await site.own()
    gone = await site.put(4, ttl_s=1)
    await site.lasts(1.3)
    worker = await site.worker()
    bodies = await site.put(2)
    await site.wakes(bodies)
    assert not any(body in site.tally.done for body in gone), "an expired message was handled"
    asleep = await site.put(2, after_ms=60_000, ttl_s=1)
    await site.lasts(1.3)
    await site.wakes(await site.put(2))
    assert not any(body in site.tally.done for body in asleep)
    site.figures["receives that found nothing"] = str((await site.bridge.queue(QUEUE))["receives"]["empty"])
    assert "Traceback" not in worker.errors + site.bridge.errors


def wall_clock_jumps(step_s: int) -> Story:
    """F30: bridge and worker, in turns, while a delay and a lease run."""

    async def inject(site: Site) -> None:
        launcher = (*INSIDE, "clock", str(step_s))
        await site.own(launcher=launcher)
        worker = await site.worker(launcher=launcher)
        asked = time.monotonic()
        bodies = await site.put(2, after_ms=1000)
        for one in (site.bridge, worker):
            one.signal(signal.SIGUSR1)
        bodies += await site.put(2)
        await site.wakes(bodies)
        early = min(min(site.tally.starts[body]) for body in bodies[:2]) - asked - 1.0
        assert early > -0.01, f"a message came {-early:.3f} s before it was due"
        # The service's clock never goes back, also over a restart with a wall clock that is back where it was.
        await site.bridge.kill()
        await site.again(launcher=launcher)
        await site.bridge.has_listeners(1)
        await site.wakes(await site.put(2))

    return inject


async def faked_time(site: Site) -> None:
    """F30 by libfaketime: the C library itself is an hour wrong, and wrong the other way after a restart."""
    faketime = shutil.which("faketime")
    assert faketime is not None, "no faketime: apt-get install faketime"
    os.environ["DONT_FAKE_MONOTONIC"] = "1"
    try:
        await site.own()
        await site.worker(before=(faketime, "-f", "+3600"))
        await site.wakes(await site.put(2, after_ms=500))
        await site.worker(before=(faketime, "-f", "-3600"))
        for _ in range(2):
            await site.wakes(await site.put(4))
    finally:
        del os.environ["DONT_FAKE_MONOTONIC"]


async def other_monotonic_clock(site: Site) -> None:
    """F31: a worker whose monotonic clock is a day ahead of the bridge's."""
    unshare = shutil.which("unshare")
    assert unshare is not None
    await site.own()
    before = (unshare, "-T", "--monotonic", str(DAY_S), "--fork")
    await site.worker(before=before, clock_ahead=float(DAY_S))
    await site.wakes(await site.put(2, after_ms=500))
    await site.wakes(await site.put(2))


def can_unshare_time() -> bool:
    """Whether this kernel lets us have a time namespace."""
    unshare = shutil.which("unshare")
    if sys.platform != "linux" or unshare is None:
        return False
    command = [unshare, "-T", "--monotonic", str(DAY_S), "--fork", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


ROWS = (
    Row("F27a", "delayed put", "own queue, 1.5 s", pace.healthy, delayed),
    Row("F27b", "delayed put over a bridge's kill", "own queue, kill -9", pace.later(pace.reconnect, 1.5, "the delay"),
        delayed_over_a_kill),
    Row("F27c", "delayed put elsewhere", "trigger with not_before_ms; sweep off",
        pace.later(pace.healthy, 1.0, "resolution 1 s"), delayed_elsewhere),
    Row("F27d", "delayed put elsewhere over a bridge's kill", "kill -9 of the bridge that had the timer",
        pace.later(pace.sweep, 2.5, "the delay"), delayed_elsewhere_over_a_kill),
    Row("F29", "messages expire while all sleep", "time to live 1 s", pace.healthy, expired),
    Row("F30a", "wall clock an hour ahead", "in bridge and worker, under way", pace.reconnect,
        wall_clock_jumps(HOUR_S)),
    Row("F30b", "wall clock an hour back", "in bridge and worker, under way", pace.reconnect,
        wall_clock_jumps(-HOUR_S)),
    Row("F30c", "wall clocks an hour wrong", "libfaketime on the workers", pace.healthy, faked_time,
        needs=Needs.SYSTEM),
    Row("F31", "monotonic clocks a day apart", "a time namespace for the worker", pace.healthy, other_monotonic_clock,
        needs=Needs.KERNEL, command="unshare -T --monotonic 86400 --fork queuebell listen ...",
        possible=can_unshare_time),
)  # fmt: skip
