"""The ground of one row: a bridge, a store, workers and producers as real processes, and the account of it all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import aiohttp

from tests.chaos import producer, worker
from tests.chaos.pace import Pace
from tests.chaos.tally import Tally
from tests.support.processes import PRODUCER, WORKER, Processes, Program, Service

QUEUE = "billing/orders"
INSIDE = ("-m", "tests.chaos.inside")

T = TypeVar("T")


class Speaker(Program):
    """A worker or a producer: each of its lines is an event, and those of messages go to the account."""

    tally: Tally | None = None

    def __init__(self, *args: Any) -> None:
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        super().__init__(*args)

    def heard(self, line: str) -> None:
        """Take note of an event."""
        event = json.loads(line)
        self.events[event["event"]].append(event)
        if self.tally is None:
            return
        if event["event"] == "start":
            self.tally.began(event["body"], event["at"])
        elif event["event"] == "done":
            self.tally.ended(event["body"])
        elif event["event"] == "acknowledged":
            self.tally.acknowledge(event["bodies"], event["at"])


class Site:
    """What a row works with. ``bridge`` and ``store`` are the same process for own queues."""

    def __init__(self, processes: Processes, pace: Pace) -> None:
        self.processes = processes
        self.pace = pace
        self.tally = Tally()
        self.bridge: Service
        self.store: Service
        self.workers: list[Speaker] = []
        self.figures: dict[str, str] = {}
        """What else the row has to tell, by name."""
        self._open = AsyncExitStack()

    async def close(self) -> None:
        """Let go of what `enter` opened."""
        await self._open.aclose()

    async def enter(self, what: contextlib.AbstractAsyncContextManager[T]) -> T:
        """Open something that is closed at the row's end."""
        return await self._open.enter_async_context(what)

    # Processes ---------------------------------------------------------------------------------------------------

    async def own(self, **options: Any) -> None:
        """Start a bridge whose own queues are used."""
        self.bridge = self.store = await self.serve(data="bridge", **options)
        await self._check_access()

    async def elsewhere(self, *options: str, **settings: Any) -> None:
        """Start a bridge, and a store in a process of its own that the bridge knows nothing of."""
        self.store, self.bridge = await asyncio.gather(
            self.serve(data="store"), self.serve(*options, data="bridge", **settings)
        )
        await self._check_access()

    async def _check_access(self) -> None:
        """Where everybody was given a key, one is asked for."""
        if not self.processes.headers:
            return
        async with aiohttp.ClientSession() as stranger:
            for service in (self.bridge, self.store):
                async with stranger.get(f"{service.url}/v1/queues/{QUEUE}") as answer:
                    assert answer.status == 401

    async def serve(
        self, *options: str, data: str, port: int = 0, launcher: Sequence[str] = (), **settings: str
    ) -> Service:
        """Start a bridge at the row's pace."""
        wanted = {**self.pace.settings(), **settings}
        return await self.processes.serve(*options, data=data, port=port, launcher=launcher, **wanted)

    async def again(self, *options: str, **settings: Any) -> float:
        """Start the bridge again on its port and its data, and return when it was ready."""
        bridge = await self.serve(*options, data=self.bridge.data.name, port=self.bridge.port, **settings)
        if self.store is self.bridge:
            self.store = bridge
        self.bridge = bridge
        return time.monotonic()

    async def worker(
        self,
        *,
        listeners: int = 1,
        launcher: Sequence[str] = (),
        before: Sequence[str] = (),
        settled: bool = True,
        **options: Any,
    ) -> Speaker:
        """Start a worker; ``settled`` waits until it is subscribed and all queues are clean."""
        defaults = {
            "store": self.store.url,
            "bridge": self.bridge.url,
            "queue": QUEUE,
            "visibility": self.pace.visibility_s,
            "store_call": self.pace.store_call_s,
            "poll_cap": self.pace.poll_cap_s,
            "luck": self.pace.luck,
            "name": f"worker-{len(self.workers)}",
        }
        wanted = worker.Options(listeners=listeners, **{**defaults, **options})
        one: Speaker = await self.processes.start(
            *before, *wanted.arguments(*launcher), name=wanted.name, kind=Speaker, role=WORKER
        )
        one.tally = self.tally
        self.workers.append(one)
        await one.line('"up"')
        if settled:
            await self.bridge.has_listeners(
                sum(int(w.events["up"][0]["listeners"]) for w in self.workers if w.code is None)
            )
            await self.bridge.is_clean(QUEUE)
        return one

    async def producer(self, **options: Any) -> Speaker:
        """Start a producer process; it does what it is told by `Program.tell`."""
        defaults = {"store": self.store.url, "bridge": self.bridge.url, "queue": QUEUE}
        wanted = producer.Options(**{**defaults, **options})
        one: Speaker = await self.processes.start(*wanted.arguments(), name="producer", kind=Speaker, role=PRODUCER)
        one.tally = self.tally
        await one.line('"up"')
        return one

    # Work --------------------------------------------------------------------------------------------------------

    async def put(
        self, count: int = 1, *, batch: int = 32, tell: bool = True, after_ms: int = 0, ttl_s: int = -1
    ) -> list[str]:
        """Put so many messages, and tell the bridge where the queue is not its own; all must be acknowledged."""
        bodies: list[str] = []
        while len(bodies) < count:
            part = await self.try_put(min(batch, count - len(bodies)), after_ms=after_ms, ttl_s=ttl_s)
            assert part, f"a put was refused: {self.store.answer!r}"
            bodies += part
        if tell and self.store is not self.bridge:
            assert await self.trigger(not_before_ms=after_ms) == 202
        return bodies

    async def try_put(self, count: int, *, after_ms: int = 0, ttl_s: int = -1) -> list[str]:
        """Put one batch and return its bodies; none if it was refused or its outcome is unknown."""
        bodies = self.tally.names(count)
        more = {"visible_after_ms": after_ms} if after_ms else {}
        if ttl_s >= 0:
            more["ttl_s"] = ttl_s
            self.tally.may_go.update(bodies)
        try:
            if await self.store.put(QUEUE, *bodies, **more) != 201:
                return []
        except (OSError, aiohttp.ClientError, TimeoutError):
            return []
        self.tally.acknowledge(bodies, time.monotonic() + after_ms / 1000)
        return bodies

    async def trigger(
        self, count: int = 1, *, queue: str = QUEUE, not_before_ms: int = 0, to: Service | None = None
    ) -> int:
        """Tell the bridge by HTTP, ``count`` times in one request; return the status."""
        account, _, name = queue.partition("/")
        event = {"storage_account": account, "queue_name": name, "not_before_ms": not_before_ms}
        bridge = to or self.bridge
        async with bridge.asking.post(f"{bridge.url}/v1/triggers", json=[event] * count) as answer:
            await answer.read()
            return answer.status

    async def wakes(self, bodies: Collection[str], since: float = 0.0) -> float:
        """Wait until each of these was begun, and take into account how long that took from ``since``."""
        await self.tally.all_started(bodies)
        await self.tally.all_done(bodies)
        return self.tally.measure(bodies, since)

    async def wakes_again(self, bodies: Collection[str], since: float) -> float:
        """Wait until each of these was begun anew at ``since`` or later, and take that into account."""
        await self.tally.all_started(bodies, since)
        return self.tally.measure(bodies, since)

    async def receives(self) -> int:
        """Return how many receives the store has seen of the queue; none where nobody has put to it yet."""
        state = await self.store.queue(QUEUE)
        return int(state["receives"]["total"]) if state else 0

    async def lasts(self, seconds: float) -> None:
        """Let the fault last."""
        await asyncio.sleep(seconds)

    async def drain(self) -> None:
        """Wait until all is handled and the store holds nothing."""
        await self.tally.all_done()
        await self.store.is_drained(QUEUE)
