"""Queuebell's own ends, used as a user would use them: stores, listeners and a bridge by their public names.

``python -m bench.ours ROLE ...`` (bench.role).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from bench.hop import Stamps, put_in_turn
from bench.role import obey
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.contract.wire import DownFrame, Hello, UpFrame, Wake
from queuebell.bridge.producer.buses import Bus
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import NewMessage, QueueStore, Received
from queuebell.listeners.handler import Message
from queuebell.listeners.listener import Listener
from queuebell.listeners.session.channel import Channel, Link

HOP_QUEUE = "bench/hop"
BULK_QUEUE = "bench/bulk"
IDLE_QUEUE = "bench/idle"


class PlainLink:
    """A session that does not ask for messages within wakes (O7)."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def send(self, frame: UpFrame) -> None:
        """Send a frame; a hello without what it accepts."""
        self._link.send(msgspec.structs.replace(frame, accept=[]) if isinstance(frame, Hello) else frame)

    def hand_over(self, hear: Callable[[Wake], None]) -> None:
        """Have wakes handed over as they are read."""
        self._link.hand_over(hear)

    async def receive(self) -> DownFrame:
        """Wait for a frame."""
        return await self._link.receive()

    async def close(self) -> None:
        """End the link."""
        await self._link.close()


class PlainChannel:
    """A channel whose sessions are plain."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def connect(self) -> Link:
        """Open a link."""
        return PlainLink(await self._channel.connect())

    async def close(self) -> None:
        """Let go of the channel."""
        await self._channel.close()


class Fleet:
    """Listeners in this process, and their end."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners
        self._runs: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Run them, and wait until all have a session."""
        for number, listener in enumerate(self.listeners):
            self._runs.append(asyncio.create_task(listener.run(), name=f"listener {number}"))
        async with asyncio.timeout(20):
            while not all(listener.state().session for listener in self.listeners):
                for run in self._runs:
                    if run.done():
                        run.result()
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Stop them."""
        await asyncio.gather(*(listener.stop() for listener in self.listeners))
        await asyncio.gather(*self._runs)


def stamp_handler(stamps: Stamps) -> Any:
    """Return a handler that notes when it starts."""

    async def handle(message: Message) -> None:
        stamps.seen(message.body)

    return handle


async def work(url: str, plain: str = "") -> None:
    """One worker, woken by wakes that carry messages or by plain ones."""
    stamps = Stamps()
    bridge: Any = url
    if plain:
        from queuebell.listeners.session.websocket import WebSocketChannel

        bridge = PlainChannel(WebSocketChannel(url))
    fleet = Fleet([Listener(url, HOP_QUEUE, stamp_handler(stamps), bridge=bridge, handle_signals=False)])
    await fleet.begin()

    async def figures() -> Any:
        return msgspec.to_builtins(fleet.listeners[0].state().queues[HOP_QUEUE])

    await obey({"take": stamps.take, "figures": figures})
    await fleet.end()


async def put(url: str) -> None:
    """Put one message at a time through the HTTP store."""
    store = open_store(url)

    async def one(body: str) -> None:
        await store.put(HOP_QUEUE, [NewMessage(body.encode())])

    await obey({"put": put_in_turn(one)})
    await store.close()


async def within(folder: str) -> None:
    """Bridge, listener and producer in one process, on a file."""
    from queuebell.bridge.service.bridge import Bridge

    stamps = Stamps()
    async with Bridge(folder) as bridge:
        fleet = Fleet([Listener(bridge, HOP_QUEUE, stamp_handler(stamps), bridge=bridge, handle_signals=False)])
        await fleet.begin()

        async def one(body: str) -> None:
            await bridge.store.put(HOP_QUEUE, [NewMessage(body.encode())])

        await obey({"put": put_in_turn(one), "take": stamps.take})
        await fleet.end()


class Counted:
    """A store that counts its receives; everything else is the store's own."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Count, and receive."""
        self.counts["receives"] += 1
        received = await self._store.receive(queue, limit, visibility_s, source=source)
        self.counts["empty"] += not received.messages
        return received


async def idle(url: str, count: str, elsewhere: str = "") -> None:
    """Idle listeners on one queue: the bridge's own, or (``elsewhere``) one in a store that the bridge never sees."""
    from queuebell.bridge.producer.buses import open_bus

    counted = Counted(open_store("memory:bench")) if elsewhere else None
    store: Any = counted if counted is not None else url
    handled = 0
    more = asyncio.Event()

    async def handle(_: Message) -> None:
        nonlocal handled
        handled += 1
        more.set()

    producer: Any = counted if counted is not None else open_store(url)
    bus: Bus | None = open_bus(url) if elsewhere else None
    await producer.create(IDLE_QUEUE)
    fleet = Fleet(
        [
            Listener(store, IDLE_QUEUE, handle, bridge=url, name=f"idle-{number}", concurrency=4, handle_signals=False)
            for number in range(int(count))
        ]
    )
    await fleet.begin()

    async def puts(count: int, pace_ms: float) -> dict[str, int]:
        nonlocal handled
        before = Counter(counted.counts) if counted is not None else Counter()
        handled = 0
        for _ in range(count):
            await producer.put(IDLE_QUEUE, [NewMessage(b"work")])
            if bus is not None:
                await bus.publish([CloudQueueWorkDetected(*split_reference(IDLE_QUEUE))])
            await asyncio.sleep(pace_ms / 1000)
        async with asyncio.timeout(20):
            while handled < count:
                more.clear()
                await more.wait()
        # What follows the last message (a further look, a cover) belongs to it.
        await asyncio.sleep(0.5)
        after = counted.counts if counted is not None else Counter[str]()
        return {key: after[key] - before[key] for key in ("receives", "empty")}

    await obey({"puts": puts})
    await fleet.end()
    if bus is not None:
        await bus.close()
    await producer.close()


async def bulk_put(url: str, callers: str) -> None:
    """Put batches of 32, some callers at once: as fast as it goes, or at a rate."""
    store = open_store(url)
    batch = [NewMessage(b"%0100d" % number) for number in range(32)]

    async def run(
        messages: int | None = None, seconds: float | None = None, rate: float | None = None
    ) -> dict[str, float]:
        done = 0
        begun = time.monotonic()
        end = None if seconds is None else begun + seconds
        left = iter(range(0, messages or sys.maxsize, 32))

        async def caller() -> None:
            nonlocal done
            for number in left:
                if rate is not None:
                    await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
                if end is not None and time.monotonic() > end:
                    return
                await store.put(BULK_QUEUE, batch)
                done += 32

        await asyncio.gather(*(caller() for _ in range(int(callers))))
        return {"messages": done, "begun": begun, "ended": time.monotonic(), "cpu": time.process_time()}

    await obey({"run": run})
    await store.close()


async def single_put(url: str) -> None:
    """Put one message a call, some callers at once, for some seconds."""
    store = open_store(url)
    message = [NewMessage(b"%0100d" % 1)]
    # What the first call loads and opens is not counted.
    await store.put("bench/single", message)

    async def run(callers: int, seconds: float) -> float:
        done = 0
        begun = time.monotonic()

        async def caller() -> None:
            nonlocal done
            while time.monotonic() < begun + seconds:
                await store.put("bench/single", message)
                done += 1

        await asyncio.gather(*(caller() for _ in range(callers)))
        return done / (time.monotonic() - begun)

    await obey({"run": run})
    await store.close()


async def bulk_work(url: str, concurrency: str) -> None:
    """Handle as fast as it goes; a handler takes a batch."""
    handled = 0
    last = 0.0
    more = asyncio.Event()

    async def handle(messages: list[Message]) -> None:
        nonlocal handled, last
        handled += len(messages)
        last = time.monotonic()
        more.set()

    fleet = Fleet(
        [Listener(url, BULK_QUEUE, handle, bridge=url, batch=32, concurrency=int(concurrency), handle_signals=False)]
    )
    await fleet.begin()

    async def count(at_least: int = 0) -> dict[str, float]:
        async with asyncio.timeout(120):
            while handled < at_least:
                more.clear()
                await more.wait()
        return {"handled": handled, "at": last, "now": time.monotonic(), "cpu": time.process_time()}

    async def figures() -> Any:
        return msgspec.to_builtins(fleet.listeners[0].state().queues[BULK_QUEUE])

    await obey({"count": count, "figures": figures})
    await fleet.end()


async def fill(folder: str, messages: str) -> None:
    """Put a backlog into the file of a bridge that is not running."""
    from queuebell.bridge.queues.embedded.sqlite import SqliteStore

    store = SqliteStore(f"{folder}/queue.db")
    await store.open()
    batch = [NewMessage(b"%0100d" % number) for number in range(32)]
    left = iter(range(0, int(messages), 32))

    async def caller() -> None:
        for _ in left:
            await store.put(BULK_QUEUE, batch)

    begun = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(64)))
    seconds = time.monotonic() - begun
    await store.close()
    await obey({}, seconds=seconds)


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "work": work,
    "put": put,
    "within": within,
    "idle": idle,
    "bulk-put": bulk_put,
    "bulk-work": bulk_work,
    "single-put": single_put,
    "fill": fill,
}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](*sys.argv[2:]))
