"""An upgrade from an older version, live: its queues, its leases, its workers and its bridge go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import Claim, Depth, Release, Settlement, once
from queuebell.bridge.queues.postgres.schema import init
from queuebell.listeners import Listener, Message
from tests.support import postgres
from tests.support.brokers import NatsServer
from tests.support.processes import READY, ROOT, environment, free_port, until
from tests.support.redis import RedisServer

pytestmark = pytest.mark.system

OLD = "9bba5870e16258560e4f3638e6e21a8d538ff2d2"
"""The last version before most code below `bridge/queues` moved; `bridge` was a top-level package then."""

LEAVE_MESSAGES = """
import asyncio, json, sys
from bridge.queues import open_store
from bridge.queues.base import NewMessage, once

async def main():
    async with open_store(sys.argv[1]) as store:
        await store.put("shop/orders", ["leased 1", "leased 2"])
        received = await store.receive("shop/orders", 2, 600.0)
        headers = {"kind": "gift"} if store.capabilities.headers else {}
        await store.put("shop/orders", [NewMessage(b"\\xff\\x00 waits", headers=headers)])
        if store.capabilities.delayed_put:
            await store.put("shop/orders", [NewMessage("later", visible_after_ms=1500)])
        if store.capabilities.put_once:
            await once(store).put_once("shop/orders", "order-7", "keyed")
        if store.capabilities.pause:
            await store.put("shop/paused", ["held"])
            await store.pause("shop/paused")
        print(json.dumps([[m.id, m.pop_receipt, m.body.decode()] for m in received.messages]))

asyncio.run(main())
"""

INIT = "import asyncio, sys; from bridge.queues.postgres.schema import init; asyncio.run(init(sys.argv[1]))"

WORK = """
import asyncio, sys
from queuebell import Listener

async def handle(message):
    print("handled", message.text(), flush=True)

asyncio.run(Listener(sys.argv[1], "shop/orders", handle).run())
"""

PUT = """
import asyncio, sys
from queuebell import open_store

async def main():
    async with open_store(sys.argv[1]) as store:
        await store.put("shop/orders", [sys.argv[2]])

asyncio.run(main())
"""

SERVE = "import sys; from queuebell.command.main import main; sys.argv[0] = 'queuebell'; main()"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The older version's code, from the history of this checkout."""
    folder = tmp_path_factory.mktemp("old")
    archive = folder / "old.tar"
    done = subprocess.run(
        ["git", "archive", "--output", str(archive), OLD, "bridge", "listeners", "queuebell"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"this test needs the whole history: git fetch --unshallow\n{done.stderr}"
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


class Version:
    """Programs that run with the code of one version."""

    def __init__(self, code: Path) -> None:
        self.code = code

    def _command(self, program: str, *args: str) -> tuple[list[str], dict[str, Any]]:
        words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(self.code)!r})\n{program}", *args]
        return words, {"env": environment(PYTHONPATH=str(self.code)), "cwd": self.code}

    async def run(self, program: str, *args: str) -> str:
        """Run a program to its end and return its output."""
        words, more = self._command(program, *args)
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    @contextlib.asynccontextmanager
    async def running(self, program: str, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a program until the block ends."""
        words, more = self._command(program, *args)
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, **more)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    @contextlib.asynccontextmanager
    async def bridge(self, port: int, data: Path) -> AsyncIterator[str]:
        """Run a bridge until the block ends, and return its URL."""
        options = ("serve", "--listen", f"127.0.0.1:{port}", "--data", str(data), "--log-level", "warning")
        async with self.running(SERVE, *options) as process:
            assert process.stdout is not None
            assert (await process.stdout.readline()).decode().startswith(READY)
            yield f"http://127.0.0.1:{port}"


@pytest_asyncio.fixture(params=["embedded", "postgres", "jetstream", "redis"])
async def url(request: pytest.FixtureRequest, tmp_path: Path, old: Path) -> AsyncIterator[str]:
    """The address of a store that no version has used yet, but for PostgreSQL's tables, made by the older one."""
    async with contextlib.AsyncExitStack() as stack:
        match request.param:
            case "embedded":
                yield f"sqlite://{tmp_path / 'queue.db'}"
            case "postgres":
                address = stack.enter_context(postgres.running()).url()
                await Version(old).run(INIT, address)
                yield address
            case "jetstream":
                server = await stack.enter_async_context(NatsServer(tmp_path))
                yield f"nats://127.0.0.1:{server.port}"
            case _:
                yield (await stack.enter_async_context(RedisServer(tmp_path))).url()


async def test_messages_and_leases_of_the_older_version_go_on(url: str, old: Path) -> None:
    leased = json.loads(await Version(old).run(LEAVE_MESSAGES, url))
    assert [body for _, _, body in leased] == ["leased 1", "leased 2"]
    if url.startswith("postgres"):
        await init(url)
    async with open_store(url) as store:
        can = store.capabilities
        if can.put_once:
            assert await once(store).put_once("shop/orders", "order-7", "keyed") is None, "the key is known"
        (first, receipt, _), (second, other, _) = leased
        outcome = await store.settle("shop/orders", Settlement([Claim(first, receipt)], [Release(second, other)]))
        assert [item.ok for item in [*outcome.delete, *outcome.release]] == [True, True]
        found: dict[bytes, tuple[int, dict[str, str], str | None]] = {}
        expected = {b"\xff\x00 waits", b"leased 2"}
        expected |= {body for body, possible in ((b"later", can.delayed_put), (b"keyed", can.put_once)) if possible}

        async def all_received() -> bool:
            received = await store.receive("shop/orders", 8, 60.0)
            for message in received.messages:
                assert message.body not in found, "a second message under one lease"
                found[message.body] = (message.dequeue_count, message.headers, message.key)
                await store.settle("shop/orders", Settlement([Claim(message.id, message.pop_receipt)]))
            return found.keys() >= expected

        await until(all_received, f"every message is received; so far {found}")
        assert found.keys() == expected
        assert found[b"leased 2"][0] == 2, "its first lease counts"
        assert found[b"\xff\x00 waits"][:2] == (1, {"kind": "gift"} if can.headers else {})
        assert not can.put_once or found[b"keyed"][2] == "order-7"
        assert await store.depth("shop/orders") == Depth(0, 0)
        if can.pause:
            assert await store.paused("shop/paused")
            await store.pause("shop/paused", False)
            assert [message.body for message in (await store.receive("shop/paused")).messages] == [b"held"]


async def test_older_workers_and_producers_use_a_newer_bridge(old: Path, tmp_path: Path) -> None:
    """Bridges first: the bridge is replaced on its data, beside workers that keep running."""
    before, now, port = Version(old), Version(ROOT), free_port()
    async with contextlib.AsyncExitStack() as stack:
        async with before.bridge(port, tmp_path / "data") as bridge:
            await before.run(PUT, bridge, "put before")
        async with now.bridge(port, tmp_path / "data") as bridge:
            worker = await stack.enter_async_context(before.running(WORK, bridge))
            assert worker.stdout is not None
            assert await worker.stdout.readline() == b"handled put before\n"
            await before.run(PUT, bridge, "put after")
            assert await worker.stdout.readline() == b"handled put after\n"


async def test_newer_workers_and_producers_use_an_older_bridge(old: Path, tmp_path: Path) -> None:
    """Workers first: a new worker and a new producer run on the bridge that is still there."""
    handled: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message: Message) -> None:
        handled.put_nowait(message.text())

    async with Version(old).bridge(free_port(), tmp_path / "data") as bridge, open_store(bridge) as store:
        listener = Listener(bridge, "shop/orders", handle)
        running = asyncio.create_task(listener.run(), name="listener")
        try:
            for body in ("one", "two"):
                await store.put("shop/orders", [body])
                async with asyncio.timeout(60):
                    assert await handled.get() == body
        finally:
            await listener.stop()
            await running
