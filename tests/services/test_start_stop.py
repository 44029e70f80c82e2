"""Starting and stopping again and again, in one process: nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from queuebell.bridge import Bridge, NewMessage, Publisher
from queuebell.bridge.contract.errors import Closed, StoreOwned
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.listeners import Listener, Message
from tests.support.processes import descriptors, free_port, until

ROUNDS = 50
WEB = WebSettings(port=0, shutdown_timeout=0.2)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fail when the body leaves tasks, threads or file descriptors behind."""
    gc.collect()
    files, threads, tasks = descriptors(), set(threading.enumerate()), asyncio.all_tasks()
    yield
    gc.collect()

    def left() -> list[str]:
        # The loop's own pool, which looks up names, grows to a few threads and keeps them.
        ours = {thread for thread in threading.enumerate() if "asyncio_" not in thread.name}
        return [
            *(f"descriptor {number}" for number in descriptors() - files),
            *(f"thread {thread.name}" for thread in ours - threads),
            *(f"task {task.get_name()}" for task in asyncio.all_tasks() - tasks if not task.done()),
        ]

    # A thread that was told to end, and a transport that is closing, need a turn or two.
    try:
        await until(lambda: not left(), "nothing is left")
    except AssertionError:
        raise AssertionError(f"left behind: {left()}") from None


async def rounds(play: Callable[[int], Awaitable[None]]) -> None:
    """Play once, for what is loaded only then, and many times more without anything left."""
    await play(0)
    async with nothing_left():
        for number in range(1, ROUNDS):
            await play(number)


@pytest.mark.parametrize("on_disk", [False, True])
async def test_bridge(tmp_path: Path, on_disk: bool) -> None:
    """A bridge that is started and stopped, also twice, lets go of everything; a second owner is refused meanwhile."""
    folder = tmp_path / "data" if on_disk else None

    async def play(number: int) -> None:
        bridge = Bridge(folder)
        await bridge.start()
        await bridge.store.put("a/b", [NewMessage(b"x")])
        if folder is not None:
            second = Bridge(folder)
            with pytest.raises(StoreOwned):
                await second.start()
            await second.stop()
        await bridge.stop()
        await bridge.stop()
        with pytest.raises(Closed):
            await bridge.start()
        never = Bridge(folder)
        await never.stop()
        if folder is not None:
            async with Bridge(folder) as again:
                depth = await again.store.depth("a/b")
                assert depth.visible == number + 1

    await rounds(play)


async def test_web_server() -> None:
    """A web server lets go of its port and connections, also twice, and when the port is taken."""

    async def play(_: int) -> None:
        async with Bridge() as bridge:
            server = WebServer(bridge, WEB)
            await server.stop()
            await server.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            second = WebServer(bridge, WebSettings(port=server.port))
            with pytest.raises(OSError, match="in use"):
                await second.start()
            await second.stop()
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in await reader.readline()
            await server.stop()
            await server.stop()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    await rounds(play)


async def test_listener_in_process() -> None:
    """A listener in its bridge's process stops before it starts, at once, twice, cancelled, or after work."""

    async def play(number: int) -> None:
        async with Bridge() as bridge:
            done = asyncio.Event()

            async def handle(_: Message) -> None:
                done.set()

            early = Listener(bridge, "a/b", handle, bridge=bridge)
            await early.stop()
            await early.run()
            listener = Listener(bridge, "a/b", handle, bridge=bridge)
            running = asyncio.create_task(listener.run(), name="listener")
            if number % 3:
                await bridge.store.put("a/b", [NewMessage(b"x")])
                await done.wait()
            if number % 3 == 1:
                running.cancel()
                await asyncio.wait([running])
                assert running.cancelled()
            else:
                await asyncio.gather(listener.stop(), listener.stop())
                await running
            await listener.stop()

    await rounds(play)


async def test_publisher() -> None:
    """A publisher closes at once or after its work, twice, and when nobody takes its triggers."""
    nobody = f"http://127.0.0.1:{free_port()}"
    async with Bridge() as bridge, WebServer(bridge, WEB) as server:

        async def play(number: int) -> None:
            await Publisher(server.url).close()
            async with Publisher(bridge) as local, Publisher(server.url) as remote:
                await local.publish("a", "b")
                await remote.publish("a", "b")
            assert (local.state().unsent, remote.state().unsent) == (0, 0)
            await remote.close()
            if number % 5 == 0:
                publisher = Publisher(nobody, close_timeout=0.05)
                await publisher.publish("a", "b")
                assert len(await publisher.close()) == 1
                assert len(await publisher.close()) == 1

        await rounds(play)
