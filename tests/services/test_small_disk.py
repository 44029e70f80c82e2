"""A disk that is really full, and a bridge on it that is drained."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.processes import ROOT, Processes, Service, until

DISK = str(ROOT / "tests" / "services" / "tmpfs.py")
MIB = 1 << 20
Q = "billing/big"


@pytest_asyncio.fixture
async def disk(processes: Processes) -> AsyncIterator[tuple[str, str]]:
    """Hold a disk of 40 MiB over the data folder, and give what starts a program on it."""
    (processes.folder / "data").mkdir()
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        DISK,
        "hold",
        str(40 * MIB),
        str(processes.folder / "data"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert holder.stdin is not None
    assert await holder.stdout.readline() == b"mounted\n"
    yield DISK, str(holder.pid)
    holder.stdin.close()
    await holder.wait()


async def fill(bridge: Service) -> int:
    """Put until there is no room, and return how many were taken."""
    count = 0
    while await bridge.put(Q, *["x" * 60_000] * 8) == 201:
        count += 8
    assert json.loads(bridge.answer)["code"] == "storage_full", bridge.answer
    return count


async def drain(bridge: Service) -> int:
    """Take and delete all, and return how many there were."""
    count = 0
    url = f"{bridge.url}/v1/queues/{Q}"
    while True:
        async with bridge.asking.post(f"{url}/receive", json={"max": 32, "visibility_timeout_s": 600}) as answer:
            messages = (await answer.json())["messages"]
        if not messages:
            return count
        claims = [{"id": each["id"], "pop_receipt": each["pop_receipt"]} for each in messages]
        async with bridge.asking.post(f"{url}/settle", json={"delete": claims}) as answer:
            assert all(each["ok"] for each in (await answer.json())["delete"])
        count += len(messages)


@pytest.mark.system
@pytest.mark.parametrize("restart", ["never", "full", "drained"])
async def test_a_drained_queue_is_put_to_again(processes: Processes, disk: tuple[str, str], restart: str) -> None:
    bridge = await processes.serve(launcher=disk)
    for _ in range(2):
        kept = await fill(bridge)
        assert kept
        if restart == "full":
            await bridge.kill()
            bridge = await processes.serve(launcher=disk)
        assert await drain(bridge) == kept
        if restart == "drained":
            await bridge.kill()
            bridge = await processes.serve(launcher=disk)

        async def ready() -> bool:
            return (await bridge.ask("/readyz"))[0] == 200  # noqa: B023 - asked before the next round

        await until(ready, "it is ready again")
        assert await bridge.put(Q, "room") == 201, bridge.answer
        assert await drain(bridge) == 1
    assert "Traceback" not in bridge.errors
    assert await bridge.stop() == 0
