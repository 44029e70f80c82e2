"""A bridge that is killed, asked to stop, late, or out of disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys

import aiohttp
import pytest

from tests.services.register import Register
from tests.support.processes import Processes, Service, free_port


async def test_killed_while_workers_are_busy(processes: Processes, register: Register) -> None:
    """A bridge killed right after its last acknowledgement forgets nothing, and its workers come back by themselves."""
    bridge = await processes.serve()
    workers = [await register.worker(bridge, hold=True, concurrency=8, visibility=1) for _ in range(2)]
    await bridge.has_listeners(2)
    await register.put(bridge, 96, batch=32)
    await register.some_have("start", 16)
    await register.put(bridge, 32, batch=32)
    await bridge.kill()
    again = await processes.serve(port=bridge.port)
    for worker in workers:
        worker.tell("go")
    await register.all_have("done")
    await again.has_listeners(2)
    await again.is_drained(register.queue)
    assert register.numbers().acknowledged == 128
    assert [await worker.stop() for worker in workers] == [0, 0]


async def test_killed_in_the_middle_of_puts(processes: Processes, register: Register) -> None:
    """Killed under concurrent puts: all that was acknowledged is handled, and nothing that nobody put."""
    bridge = await processes.serve()
    await register.worker(bridge, visibility=1)
    await bridge.has_listeners(1)

    async def keep_putting() -> None:
        while True:
            names = register.names(8)
            if await bridge.put(register.queue, *names) == 201:
                register.acknowledged += names

    async def until_it_dies() -> None:
        # What is on its way when the bridge dies may be stored or not: attempted, and not acknowledged.
        with contextlib.suppress(OSError, aiohttp.ClientError):
            await keep_putting()

    putting = [asyncio.create_task(until_it_dies(), name=f"producer {number}") for number in range(3)]
    await register.some_have("done", 200)
    await bridge.kill()
    await asyncio.gather(*putting)
    again = await processes.serve(port=bridge.port)
    await register.put(again, 1)
    await register.all_have("done")
    await again.is_drained(register.queue)
    # Of the 200 that were done when it was killed, the last answer of each of the three may not have come.
    assert register.numbers().acknowledged >= 200 - 3 * 8


async def test_ten_listeners_come_back(processes: Processes, register: Register) -> None:
    """Ten listeners that reconnect to a restarted bridge make one receive per queue at most, all of them together."""
    bridge = await processes.serve()
    queues = ["billing/orders", "billing/invoices"]
    for queue in queues:
        assert await bridge.put(queue, "first") == 201
    for _ in range(2):
        await register.worker(bridge, queue=queues, listeners=5)
    await bridge.has_listeners(10)
    for queue in queues:
        await bridge.is_drained(queue)
    await bridge.kill()
    again = await processes.serve(port=bridge.port)
    await again.has_listeners(10)
    for queue in queues:
        await again.is_clean(queue)
        state = await again.queue(queue)
        assert state["receives"]["total"] <= 1, state
        assert state["sessions"] == 10
    bodies = await register.put(again, 1)
    await register.all_have("done", bodies, within_s=50)


async def test_asked_to_stop_while_busy(processes: Processes, register: Register) -> None:
    """SIGTERM under load: it tells its listeners, answers what it took, ends with 0, and has lost nothing."""
    bridge = await processes.serve("--log-format", "json")
    worker = await register.worker(bridge, visibility=1)
    await bridge.has_listeners(1)
    refused: list[int] = []

    async def keep_putting() -> None:
        with contextlib.suppress(OSError, aiohttp.ClientError):
            while True:
                names = register.names(4)
                status = await bridge.put(register.queue, *names)
                if status == 201:
                    register.acknowledged += names
                else:
                    refused.append(status)

    putting = [asyncio.create_task(keep_putting(), name=f"producer {number}") for number in range(2)]
    await register.some_have("done", 100)
    assert await bridge.stop(within_s=50) == 0
    await asyncio.gather(*putting)
    # A put is taken or, once it drains, told so; an error of ours would be a 500.
    assert set(refused) <= {503}
    told = [json.loads(line) for line in bridge.errors.splitlines()]
    assert [line["level"] for line in told if line["level"] not in ("info", "debug")] == []
    words = [line["message"] for line in told]
    assert [word for word in words if word.startswith("stop")] == ["stopping; a second signal stops at once", "stopped"]
    # It was told; or it was in the midst of a call when the connection closed, and what it had not read went with that.
    assert "the bridge is stopping" in worker.errors or "the connection broke" in worker.errors
    assert not (bridge.data / "queue.db-wal").exists()
    again = await processes.serve(port=bridge.port)
    await register.all_have("done")
    await again.is_drained(register.queue)
    register.numbers()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_twice_to_stop(processes: Processes, number: signal.Signals) -> None:
    """While it waits for a request that does not end, a second signal ends it at once with 128 and the number."""
    bridge = await processes.serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", bridge.port)
    writer.write(b"POST /v1/triggers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    writer.write(b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    bridge.signal(number)
    await bridge.complains("a second signal stops at once")
    bridge.signal(number)
    assert await bridge.ended(within_s=50) == 128 + number
    assert "stopping at once" in bridge.errors
    assert "stopped" not in bridge.errors
    assert "Traceback" not in bridge.errors
    writer.close()
    again = await processes.serve()
    assert await again.stop() == 0


@pytest.mark.rest
async def test_worker_told_twice_to_stop_without_its_bridge(processes: Processes, register: Register) -> None:
    """A second SIGTERM ends a worker soon, also where the store that it should give its messages back to is away."""
    bridge = await processes.serve()
    worker = await register.worker(bridge, hold=True, visibility=6)
    await register.put(bridge, 1)
    await register.some_have("start", 1)
    await bridge.kill()
    worker.signal(signal.SIGTERM)
    await worker.complains("stopping")
    worker.signal(signal.SIGTERM)
    assert await worker.ended(within_s=50) == 0
    # On a busy machine the lease may have ended before.
    assert "1 messages could not be settled in time" in worker.errors or "(lease_ended)" in worker.errors
    again = await processes.serve(port=bridge.port)
    await register.worker(again)
    await register.all_have("done")
    assert register.numbers().duplicated == 0


async def test_listener_before_its_bridge(processes: Processes, register: Register) -> None:
    """Listener and publisher that are there before their bridge find it, and owe nothing when it has come."""
    port = free_port()
    early = Service.__new__(Service)
    early.url = f"http://127.0.0.1:{port}"
    worker = await register.worker(early)
    script = (
        "import asyncio, sys\nfrom queuebell.bridge import Publisher\n"
        "async def main(url):\n"
        "    async with Publisher(url, close_timeout=20) as bell:\n"
        "        await bell.publish('billing', 'orders', 2)\n"
        "        print('published', flush=True)\n"
        "        while not bell.state().failures: await asyncio.sleep(0.01)\n"
        "        print('refused', flush=True)\n"
        "    print(bell.state(), flush=True)\n"
        "asyncio.run(main(sys.argv[1]))"
    )
    publisher = await processes.start(sys.executable, "-c", script, early.url, name="publisher")
    await publisher.line("refused")
    bridge = await processes.serve(port=port)
    await bridge.has_listeners(1)
    assert await publisher.ended() == 0
    assert "unsent=0" in publisher.lines[-1]
    assert (await bridge.queue(register.queue))["triggers"] == 1
    await register.put(bridge, 3)
    await register.all_have("done", within_s=50)
    assert await worker.stop() == 0
    assert "Traceback" not in worker.errors + publisher.errors
