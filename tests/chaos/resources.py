"""Faults of the machine: no disk, no file descriptors, no memory; a reader that does not read; everybody at once."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from tests.chaos import pace
from tests.chaos.row import Needs, Row
from tests.chaos.site import INSIDE, QUEUE, Site
from tests.support.processes import Service, until

MIB = 1 << 20
MANY = 100
TRIGGERS = 20_000


def status(pid: int, key: str) -> int:
    """Return a figure of /proc/PID/status, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {key}")


async def slow_reader(site: Site) -> None:
    """F20: one listener stops reading; 20,000 triggers on 100 queues go by."""
    await site.elsewhere(sweep_s="0")
    queues = [QUEUE, *(f"billing/q{number}" for number in range(99))]
    frozen = await site.worker(queue=queues)
    await site.worker(queue=queues)
    before = status(site.bridge.process.pid, "VmRSS")
    frozen.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    for number in range(TRIGGERS // 1000):
        for queue in queues[number % 5 :: 5]:
            assert await site.trigger(50, queue=queue) == 202
    bodies = await site.put(4)
    await site.wakes(bodies, stopped)
    site.figures["bridge grew by"] = f"{(status(site.bridge.process.pid, 'VmRSS') - before) / MIB:.1f} MiB"
    frozen.signal(signal.SIGCONT)
    await site.bridge.has_listeners(2)
    await site.wakes(await site.put(4))


async def memory_capped(site: Site) -> None:
    """F35: the same, within 96 MiB of address space more than it has."""
    await site.elsewhere(sweep_s="0")
    frozen = await site.worker()
    await site.worker()
    pid = site.bridge.process.pid
    limit = status(pid, "VmSize") + 96 * MIB
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
    frozen.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    for _ in range(TRIGGERS // 1000):
        assert await site.trigger(1000) == 202
    await site.wakes(await site.put(4), stopped)
    frozen.signal(signal.SIGCONT)
    assert site.bridge.code is None
    assert "MemoryError" not in site.bridge.errors
    site.figures["bridge's peak"] = f"{status(pid, 'VmHWM') / MIB:.0f} MiB"


async def everybody_returns(site: Site) -> None:
    """F23."""
    await site.elsewhere(sweep_s="0")
    half = MANY // 2
    await asyncio.gather(*(site.worker(listeners=half, settled=False) for _ in range(2)))
    await site.bridge.has_listeners(MANY)
    await site.bridge.is_clean(QUEUE)
    asked = await site.receives()
    await site.bridge.kill()
    back = await site.again(sweep_s="0")
    bodies = await site.put(4)
    await site.wakes(bodies, back)
    await site.bridge.has_listeners(MANY)
    site.figures["all back after"] = f"{time.monotonic() - back:.1f} s"
    site.figures["receives"] = str(await site.receives() - asked)


async def fill(site: Site) -> tuple[Service, int]:
    """Put large messages until one is refused; return the service and how many it took."""
    big = "billing/big"
    taken = 0
    while True:
        answer = await site.bridge.put(big, "x" * 60_000)
        if answer != 201:
            assert answer in (503, 507), answer
            return site.bridge, taken
        taken += 1


async def disk_full(site: Site) -> None:
    """F33: files cannot grow; what was acknowledged stays, and is taken while it is full."""
    await site.own(launcher=(*INSIDE, "disk", str(8 * MIB)))
    await site.worker()
    await disk_fills(site, lambda: site.bridge.signal(signal.SIGUSR1))


async def disk_fills(site: Site, make_room: Callable[[], object]) -> None:
    """Fill the disk, and see that what was acknowledged is handled, also before there is room again."""
    before = await site.put(4)
    bridge, taken = await fill(site)
    refused = json.loads(bridge.answer)["code"]
    assert refused in ("storage_full", "storage_unavailable"), refused
    await site.wakes(before)
    assert (await bridge.ask("/livez"))[0] == 200
    assert (await bridge.queue("billing/big"))["depth"]["visible"] == taken
    make_room()

    async def is_ready() -> bool:
        return (await bridge.ask("/readyz"))[0] == 200

    await until(is_ready, "readyz says 200 again")
    await site.wakes(await site.put(4))
    site.figures["large messages kept"] = str(taken)


async def tmpfs_full(site: Site) -> None:
    """F33, a file system of its own that is full."""
    mount = site.processes.folder / "bridge"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "queuebell", str(mount)], check=True)
    try:
        await site.own()
        await site.worker()
        grow = ["mount", "-o", "remount,size=200m", str(mount)]
        await disk_fills(site, lambda: subprocess.run(grow, check=True))
    finally:
        # Lazily: what the bridge has open stays until it ends.
        subprocess.run(["umount", "-l", str(mount)], check=True)


def can_mount() -> bool:
    """Whether this kernel lets us mount."""
    return (
        os.geteuid() == 0
        and subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
    )


async def no_descriptors(site: Site) -> None:
    """F34: no file can be opened; those who are connected go on."""
    await site.own()
    await site.worker()
    pid = site.bridge.process.pid
    await site.wakes(await site.put(2))
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    open_now = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now + 4, hard))
    strangers = [await asyncio.open_connection("127.0.0.1", site.bridge.port) for _ in range(20)]
    for _ in range(3):
        await site.wakes(await site.put(2))
    assert site.bridge.code is None
    for _, writer in strangers:
        writer.transport.abort()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    async def answers() -> bool:
        try:
            async with aiohttp.ClientSession() as fresh, fresh.get(f"{site.bridge.url}/livez") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    await until(answers, "a new connection is answered again")
    await site.worker()


CAP = "systemd-run --scope -p MemoryMax=128M queuebell serve; then 100,000 triggers beside a stopped listener"

ROWS = (
    Row("F20", "slow reader", "SIGSTOP of a listener, 20,000 triggers on 100 queues", pace.redispatch, slow_reader),
    Row("F23", "everybody reconnects at once", "bridge killed under 100 listeners", pace.reconnect, everybody_returns),
    Row("F33a", "disk full", "RLIMIT_FSIZE", pace.healthy, disk_full),
    Row("F33b", "disk full", "a tmpfs of 40 MiB", pace.healthy, tmpfs_full, needs=Needs.KERNEL,
        command="mount -t tmpfs -o size=40m queuebell DIR; queuebell serve --data DIR; put until 507",
        possible=can_mount),
    Row("F34", "no file descriptors", "RLIMIT_NOFILE and 20 connections", pace.healthy, no_descriptors),
    Row("F35a", "memory capped", "RLIMIT_AS, F20 again with 20,000 triggers", pace.redispatch, memory_capped),
    Row("F35b", "memory capped by the kernel", "cgroup memory.max", pace.redispatch, None, needs=Needs.KERNEL,
        command=CAP, possible=lambda: False),
)  # fmt: skip
