"""A rolling restart of three bridges with many sessions, as processes: what it costs (C7)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from queuebell.bridge import Publisher
from queuebell.bridge.queues.base import Received
from queuebell.bridge.queues.jetstream.store import JetStreamStore
from queuebell.listeners import Listener, Message
from tests.queuebell.command.test_serve_cluster import members
from tests.support.brokers import NatsServer
from tests.support.command import Serving, serving
from tests.support.processes import PATIENCE_S, free_port, until

SESSIONS = 150
QUEUES = [f"rolling/q{number}" for number in range(30)]
VISIBILITY_S = 5.0
WAIT_MAX_S = 60.0
"""Without sweeps a wake that was lost is never made up for; whatever is below this is a busy machine."""
LOOKS_MAX = 1


class Counted(JetStreamStore):
    """A store that counts what is received from it."""

    receives = 0

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        self.receives += 1
        return await super().receive(queue, limit, visibility_s, source=source)


class Load:
    """Puts one after the other, and how long each waited for its handler."""

    def __init__(self, store: JetStreamStore, publisher: Publisher) -> None:
        self.store = store
        self.publisher = publisher
        self.begun: dict[bytes, float] = {}
        self.waits: dict[bytes, float] = {}

    async def handle(self, message: Message) -> None:
        self.waits.setdefault(message.body, time.monotonic() - self.begun[message.body])

    async def put(self, number: int) -> None:
        queue, body = QUEUES[number % len(QUEUES)], b"%d" % number
        self.begun[body] = time.monotonic()
        await self.store.put(queue, [body])
        await self.publisher.publish(queue)

    async def run(self, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            await self.put(number)
            number += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await stop.wait()


@contextlib.asynccontextmanager
async def workers(load: Load, addresses: Sequence[str]) -> AsyncIterator[list[Listener]]:
    crew = [
        Listener(
            load.store, QUEUES[number % len(QUEUES)], load.handle, bridge=list(addresses), handle_signals=False,
            visibility_timeout=VISIBILITY_S,
        )
        for number in range(SESSIONS)
    ]  # fmt: skip
    running = [asyncio.create_task(listener.run(), name=f"worker {number}") for number, listener in enumerate(crew)]
    try:
        await until(lambda: all(each.state().mode == "push" for each in crew), "all are welcome", PATIENCE_S)
        yield crew
    finally:
        await asyncio.gather(*(listener.stop() for listener in crew))
        await asyncio.gather(*running)


@pytest.mark.rest
async def test_a_rolling_restart_of_three_bridges_with_many_sessions(tmp_path: Path) -> None:
    """Nothing is lost.

    A queue costs a look where its first worker meets a bridge that never heard of it. Workers say what they hold when
    they are sent away: for those with nothing to do nobody looks.
    """
    async with NatsServer(tmp_path) as nats, contextlib.AsyncExitStack() as stack:
        address = f"nats://127.0.0.1:{nats.port}"
        env = {"QUEUEBELL_NATS": address, "QUEUEBELL_CLUSTER": "shop", "QUEUEBELL_SWEEP_S": "0"}
        ports = [free_port() for _ in range(3)]

        def start(place: int) -> Serving:
            listen = ("--listen", f"127.0.0.1:{ports[place]}")
            return stack.enter_context(serving(tmp_path / f"{place}", *listen, env=env))

        bridges = [start(place) for place in range(3)]
        await until(lambda: members(*bridges), "everybody hears everybody", PATIENCE_S)
        store = await stack.enter_async_context(Counted(address))
        for queue in QUEUES:
            await store.create(queue)
        load = Load(store, await stack.enter_async_context(Publisher(address)))
        async with workers(load, [served.url for served in bridges]):
            stops: list[float] = []

            async def roll() -> None:
                for place in range(3):
                    begun = time.monotonic()
                    code, _ = await asyncio.to_thread(bridges[place].stop)
                    stops.append(time.monotonic() - begun)
                    assert code == 0
                    bridges[place] = await asyncio.to_thread(start, place)
                    await until(lambda: members(*bridges), "it is back", PATIENCE_S)

            await asyncio.sleep(VISIBILITY_S + 2)
            before = store.receives
            await roll()
            await asyncio.sleep(VISIBILITY_S + 2)
            quiet = store.receives - before
            stop = asyncio.Event()
            loading = asyncio.create_task(load.run(stop), name="load")
            await roll()
            stop.set()
            await loading
            await until(lambda: load.begun.keys() == load.waits.keys(), "all are handled", PATIENCE_S)
            waits = sorted(load.waits.values())
        figures = {
            "puts": len(waits),
            "longest_wait_s": round(waits[-1], 3),
            "p99_s": round(waits[len(waits) * 99 // 100], 3),
            "receives a queue and restart": round(quiet / len(QUEUES) / 3, 2),
            "leaves_s": [round(each, 2) for each in stops],
        }
        assert waits[-1] <= WAIT_MAX_S, figures
        assert quiet <= LOOKS_MAX * len(QUEUES) * 3, figures
