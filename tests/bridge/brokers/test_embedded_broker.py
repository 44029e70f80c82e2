"""The embedded NATS server as real processes: free port, restarts, and an end with the bridge."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from queuebell.bridge.brokers.embedded.server import EmbeddedNats, find_server
from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import ConfigurationError
from tests.support.processes import ROOT, Processes, Service, environment, free_port, until


@pytest_asyncio.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    """Start processes below the test's own folder, and end them all."""
    async with Processes(tmp_path) as running:
        yield running


async def listens(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return (await reader.readline()).startswith(b"INFO ")
        finally:
            writer.close()
    except OSError:  # refused, or reset by one that is just ending
        return False


def started(server: EmbeddedNats, times: int) -> bool:
    return server.starts == times


async def gone(port: int) -> None:
    async def refuses() -> bool:
        return not await listens(port)

    await until(refuses, "the broker is gone")


@pytest.mark.parametrize("guard", [False, True])
async def test_it_takes_a_free_port_and_ends(guard: bool) -> None:
    """It listens on loopback from `start` to `stop`, with and without a guard."""
    async with EmbeddedNats(guard=guard) as server:
        assert await listens(server.port)
        assert server.url == f"nats://127.0.0.1:{server.port}"
        assert server.check() == (True, f"embedded, listening on {server.url}")
    assert not await listens(server.port)
    await server.stop()


async def test_a_port_that_is_taken_raises_its_error() -> None:
    """A start that fails leaves nothing behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = EmbeddedNats(taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            await server.start()
        assert server.pid is None
        await server.stop()


async def test_a_port_taken_during_a_restart_is_waited_for() -> None:
    """It is tried until it is free; the check shows the error meanwhile."""
    async with EmbeddedNats(draw=lambda: 1.0) as server:
        assert server.pid is not None
        os.killpg(server.pid, signal.SIGKILL)
        # Here and not in a thread: it starts nothing while this loop is busy, however slow the machine is.
        with take(server):
            await until(lambda: "address already in use" in server.check()[1], "it knows")
            assert server.starts == 1
        await until(partial(started, server, 2), "it is back")
        assert await listens(server.port)


def take(server: EmbeddedNats) -> socket.socket:
    while True:
        try:
            return socket.create_server(("127.0.0.1", server.port))
        except OSError:
            continue  # it listens until the signal has reached it


def test_where_the_server_is_found(tmp_path: Path) -> None:
    """In the environment first, then on the PATH; without one the error names the extra."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    with pytest.raises(ConfigurationError, match=r"extra 'broker'"):
        find_server(str(ours), str(theirs))
    (theirs / "nats-server").write_text("#!/bin/sh\n")
    (theirs / "nats-server").chmod(0o755)
    assert find_server(str(ours), str(theirs)) == str(theirs / "nats-server")
    (ours / "nats-server").write_text("#!/bin/sh\n")
    (ours / "nats-server").chmod(0o755)
    assert find_server(str(ours), str(theirs)) == str(ours / "nats-server")


def test_the_word_among_urls() -> None:
    assert EmbeddedNats.from_urls(["nats://embedded:4222", "tls://x"]) is None
    server = EmbeddedNats.from_urls(["nats://a", "embedded:4223", "nats://b"])
    assert server.resolve(["nats://a", "embedded:4223", "nats://b"]) == (
        "nats://a",
        "nats://127.0.0.1:4223",
        "nats://b",
    )
    for wrong in (["embedded:"], ["embedded:x"], ["embedded:0"], ["embedded:65536"], ["embedded", "embedded:4222"]):
        with pytest.raises(ConfigurationError, match=r"^nats: "):
            EmbeddedNats.from_urls(wrong)


async def test_without_a_server_one_line_and_78(processes: Processes) -> None:
    code = (
        "import sys, sysconfig; sysconfig.get_path = lambda name: '/nowhere'\n"
        "from queuebell.command.main import main;"
        " sys.exit(main(['serve', '--listen', '127.0.0.1:0', '--nats', 'embedded']))"
    )
    program = await processes.start(sys.executable, "-c", code, env={**environment(), "PATH": "/nowhere"})
    assert await program.ended() == 78
    assert len(program.errors.splitlines()) == 1
    assert install("broker") in program.errors
    assert program.lines == []


async def embedded(processes: Processes, **settings: Any) -> tuple[Service, int]:
    """Serve with an embedded broker, and return its port."""
    service = await processes.serve("--nats", "embedded", **settings)

    async def ready() -> str:
        _, state = await service.ask("/readyz")
        check = state["checks"]["nats-server"]
        assert check["ok"]
        return str(check["detail"]) if state["ready"] else ""

    detail = await until(ready, "ready")
    port = int(detail.rpartition(":")[2])
    assert f"nats://127.0.0.1:{port}" in service.errors
    return service, port


async def test_the_bridge_stops_and_its_broker_with_it(processes: Processes) -> None:
    service, port = await embedded(processes)
    assert await service.stop() == 0
    assert not await listens(port)
    assert "Traceback" not in service.errors


async def test_a_killed_bridge_takes_its_broker_along(processes: Processes) -> None:
    """kill -9 leaves no server behind, and its port can be used again."""
    service, port = await embedded(processes)
    await service.kill()
    await gone(port)
    again = await processes.serve("--nats", f"embedded:{port}")
    assert await listens(port)
    assert await again.stop() == 0


async def test_where_the_kernel_does_not_help_a_guard_does(processes: Processes) -> None:
    """On systems without PR_SET_PDEATHSIG a pipe ends with its holder."""
    code = (
        "import asyncio\nfrom queuebell.bridge.brokers.embedded.server import EmbeddedNats\n"
        "async def main():\n"
        "    async with EmbeddedNats(guard=True) as server:\n"
        "        print('port', server.port)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    program = await processes.start(sys.executable, "-c", code)
    port = int((await program.line("port")).split()[1])
    assert await listens(port)
    await program.kill()
    await gone(port)


async def test_status_says_where_it_is(processes: Processes) -> None:
    """So that its address can be found when a worker is started."""
    port = free_port()
    service = await processes.serve("--nats", f"embedded:{port}")

    async def shown() -> list[str]:
        status = await processes.start(sys.executable, "-m", "queuebell", "status", "--bridge", service.url, cwd=ROOT)
        return list(status.lines) if await status.ended() == 0 else []

    lines = await until(shown, "ready")
    assert f"  nats-server: ok embedded, listening on nats://127.0.0.1:{port}" in lines
    assert f"  nats: ok nats://127.0.0.1:{port}: connected" in lines
    assert await service.stop() == 0
