"""Programs with listeners that are signalled: ``signal_program.py FORM``; each handler waits for a line of input."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web

from queuebell.bridge import Bridge, NewMessage
from queuebell.bridge.observe.logs import configure
from queuebell.bridge.queues.base import Received
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.listeners import PULL_ONLY, Listener, Message, Pool, run

SECOND = "billing/parcels"
QUEUES = ("billing/orders", SECOND)


def say(word: str) -> None:
    """Write a line of output."""
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


class Site:
    """A store with a message on each queue, and listeners whose handlers wait for the gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.store: Any = None

    async def listener(self, queue: str, **options: Any) -> Listener:
        """Return a listener whose queue has a message."""
        self.store = self.store or MemoryStore("signalled")
        await self.store.put(queue, [NewMessage(b"x")])

        return Listener(self.store, queue, handler, name=queue, grace=600, **{"bridge": PULL_ONLY, **options})

    async def both(self, **options: Any) -> list[Listener]:
        """Return two listeners."""
        return [await self.listener(queue, **options) for queue in QUEUES]

    def obey(self) -> None:
        """Open the gate at a line of input."""
        for _ in sys.stdin:
            self.gate.set()


site = Site()


async def handler(message: Message) -> None:
    """Wait for the gate."""
    say(f"start {message.queue}")
    try:
        await asyncio.to_thread(site.gate.wait)
    except asyncio.CancelledError:
        say(f"cancelled {message.queue}")
        site.gate.set()  # the thread of its wait ends with it
        raise
    say(f"done {message.queue}")


async def alone() -> None:
    """Run one listener over both queues."""
    await site.both()
    await Listener(site.store, QUEUES, handler, bridge=PULL_ONLY, grace=600).run()


async def gather() -> None:
    """Run two as the documents have it."""
    await asyncio.gather(*(listener.run() for listener in await site.both()))


async def pool() -> None:
    """Run two that share their handler slots."""
    await asyncio.gather(*(listener.run() for listener in await site.both(pool=Pool(4))))


async def bridge() -> None:
    """Run two beside their bridge."""
    async with Bridge(data="data") as scheduler:
        site.store = scheduler.store
        await asyncio.gather(*(listener.run() for listener in await site.both(bridge=scheduler)))


class Filled(MemoryStore):
    """A store that puts a message on each queue before its first receive."""

    async def receive(self, queue: str, *arguments: Any, **named: Any) -> Received:
        if await self.depth(queue) is None:
            await self.put(queue, [NewMessage(b"x")])
        return await super().receive(queue, *arguments, **named)


def together() -> None:
    """Run two by `run`; one of them says that it hears nothing by itself."""
    store, takes = Filled("signalled"), zip(QUEUES, (None, False), strict=True)
    run(*(Listener(store, q, handler, bridge=PULL_ONLY, name=q, handle_signals=take, grace=600) for q, take in takes))


def application(**options: Any) -> web.Application:
    """Return a server with a listener from its start to its clean-up."""
    app = web.Application()
    running: list[Any] = []

    async def start(_: web.Application) -> None:
        listener = await site.listener(QUEUES[0], **options)
        running.extend((listener, asyncio.create_task(listener.run())))

    async def clean(_: web.Application) -> None:
        say("cleaning")
        site.gate.set()
        await running[0].stop()
        await running[1]
        say("cleaned")

    app.on_startup.append(start)
    app.on_cleanup.append(clean)
    return app


def aiohttp_server(**options: Any) -> None:
    """Run a server with a listener in it, as aiohttp does."""
    web.run_app(application(**options), host="127.0.0.1", port=0, print=None)


async def _served(stop: asyncio.Event, **options: Any) -> None:
    runner = web.AppRunner(application(**options))
    await runner.setup()
    try:
        await stop.wait()
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def captured(stop: Callable[[], None]) -> Any:
    """Have the signals as uvicorn does: by `signal.signal`, given back and raised again at the end."""
    came: list[int] = []

    def hear(number: int, frame: object) -> None:
        came.append(number)
        stop()

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    for number in reversed(came):
        signal.raise_signal(number)


def captured_server() -> None:
    """Run a server that has taken the signals before its loop runs."""

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        with captured(lambda: loop.call_soon_threadsafe(stop.set)):
            await _served(stop)

    asyncio.run(serve())


async def plain_server() -> None:
    """Run a server that leaves the signals as they are, with a listener that nobody waits for."""
    await _served(asyncio.Event())


def notebook() -> None:
    """Run a listener in a loop that nobody waits for, as a notebook does."""
    loop = asyncio.new_event_loop()
    kept = [loop.create_task(gather())]
    try:
        loop.run_forever()
    except KeyboardInterrupt:
        say("interrupted")
        for task in [*kept, *asyncio.all_tasks(loop)]:
            task.cancel()
        site.gate.set()
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(kept[0])
    loop.close()


async def untaken() -> None:
    """Run two that were told to leave the signals alone."""
    await asyncio.gather(*(listener.run() for listener in await site.both(handle_signals=False)))


def abandoned() -> None:
    """Leave a listener in a loop that runs no more."""
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(site.listener(QUEUES[0]))
    kept = loop.create_task(listener.run())
    loop.run_until_complete(_begun(listener))
    try:
        say("left")
        # The signal may come at any moment from here on: one that came just before `signal.pause` would not end that.
        while True:
            threading.Event().wait(0.05)
    except KeyboardInterrupt:
        say("interrupted")
    kept.cancel()
    site.gate.set()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(kept)
    loop.close()


async def _begun(listener: Listener) -> None:
    while not listener.state().queues or not listener.state().queues[QUEUES[0]].active_handlers:
        await asyncio.sleep(0.01)


async def forked() -> None:
    """Fork a child in the midst of it, which is told to end."""
    listener = await site.listener(QUEUES[0])
    running = asyncio.create_task(listener.run())
    await _begun(listener)
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        os.write(tell, b"x")
        while True:
            signal.pause()
    await asyncio.to_thread(os.read, ready, 1)
    os.kill(child, signal.SIGTERM)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    say(f"child {os.waitstatus_to_exitcode(status)}")
    await running


if __name__ == "__main__":
    configure("plain", "info")
    threading.Thread(target=site.obey, daemon=True).start()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    form: Any = globals()[sys.argv[1]]
    options = {"handle_signals": True} if len(sys.argv) > 2 else {}
    if asyncio.iscoroutinefunction(form):
        asyncio.run(form())
    else:
        form(**options)
    say("ended")
