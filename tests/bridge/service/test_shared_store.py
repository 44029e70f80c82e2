"""A bridge whose queue service works on an engine: what it marks, gives back and refuses, and what its workers do."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from queuebell.bridge.contract.errors import (
    NotPrepared,
    QueueNotFound,
    StoreUnavailable,
    Unsupported,
)
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.queues.base import Capabilities, Claim, Depth, NewMessage, PutReceipt, QueueStore
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.service.shared_store import AGAIN_S, SharedStore
from queuebell.listeners import Listener, Message, Retry
from tests.support.processes import PATIENCE_S, until
from tests.support.sim_loop import pass_time, simulated
from tests.support.web import Served, serving

QUEUE = "billing/orders"


class Engine(HttpStore):
    """The queue service of another bridge, whose calls can be held up or broken once."""

    broken: Callable[[], BaseException] | None = None
    held: asyncio.Event | None = None
    arrived: asyncio.Event | None = None

    async def _request(self, *given: Any, **more: Any) -> tuple[int, bytes]:
        answer = await super()._request(*given, **more)
        if self.held is not None and self.arrived is not None:
            self.arrived.set()
            await self.held.wait()
        if self.broken is not None:
            broken, self.broken = self.broken, None
            raise broken()
        return answer


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[Served, Engine]]:
    """A bridge over HTTP whose queues are those of another one."""
    async with serving() as behind:
        engine = Engine(behind.server.url)
        async with (
            Bridge(store=engine) as bridge,
            WebServer(bridge, WebSettings(port=0, shutdown_timeout=0.2)) as server,
        ):
            yield Served(bridge, server), engine


def triggers(bridge: Bridge, queue: str = QUEUE) -> int:
    state = bridge.describe(queue)
    return 0 if state is None else state.triggers


async def test_what_a_receive_brings_when_its_caller_is_gone_is_given_back() -> None:
    """The lease is taken back and its count with it, and somebody is woken for it."""
    async with served() as (front, engine):
        store = front.bridge.store
        await store.put(QUEUE, ["a"])
        engine.held, engine.arrived = asyncio.Event(), asyncio.Event()
        receiving = asyncio.create_task(store.receive(QUEUE), name="receive")
        await engine.arrived.wait()
        receiving.cancel()
        await asyncio.wait([receiving])
        held, engine.held = engine.held, None
        held.set()
        await until(lambda: triggers(front.bridge) == 2, "it is given back")
        (message,) = (await store.receive(QUEUE)).messages
        assert message.dequeue_count == 1


async def test_a_worker_takes_its_queue_for_one_elsewhere() -> None:
    """By the bridge's own address it says `own` at first; then it sweeps, and rings what it gives back."""
    handled: list[str] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        handled.append(message.text())
        if message.text() == "again" and message.attempt == 1:
            raise Retry(after=0.01)
        if handled.count("again") == 2:
            done.set()

    async with served() as (front, engine):
        listener = Listener(front.server.url, QUEUE, handle, handle_signals=False)
        running = asyncio.create_task(listener.run(), name="worker")
        try:
            await front.call("messages", {"messages": [{"body": "once"}, {"body": "again"}]})
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()
            work = front.bridge.scheduler.pending.by_queue[QUEUE]
            (seat,) = work.sessions
            assert (seat.own, seat.accepts, seat.store) == (False, False, engine.fingerprint(QUEUE))
            assert not work.sessions.any_own
            await until(lambda: work.found_empty_at is not None and not work.dirty, "an empty receive covers")
            assert ("sweep", QUEUE) in front.bridge.scheduler.agenda
        finally:
            await listener.stop()
            await running
        assert await engine.depth(QUEUE) == Depth(0, 0)


class Poor(QueueStore):
    """A store that can hardly anything, and was never prepared."""

    capabilities = Capabilities(peek=False, pause=False, metadata=False, oldest_age=False, uncounted_release=False)

    def __str__(self) -> str:
        return "poor"

    def fingerprint(self, queue: str) -> str:
        return "00"

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        raise NotPrepared("make its tables")

    async def peek(self, queue: str, limit: int = 32) -> list[Any]:
        raise Unsupported("poor: messages cannot be looked at")

    async def depth(self, queue: str) -> Depth | None:
        raise NotPrepared("make its tables")

    async def close(self) -> None:
        pass


async def test_what_the_engine_cannot_do_is_refused_by_name() -> None:
    """501 `unsupported` over HTTP, and the same error at the other end; a start without tables says what to do."""
    bridge = Bridge(store=Poor())
    with pytest.raises(NotPrepared):
        await bridge.start()
    async with WebServer(bridge, WebSettings(port=0, shutdown_timeout=0.2)) as server:
        front = Served(bridge, server)
        reply = await front.ask("GET", f"/v1/queues/{QUEUE}/peek")
        assert (reply.status, reply.code) == (501, "unsupported")
        for target in ("peek?state=later", "peek?after=1.1", "messages/one"):
            reply = await front.ask("GET", f"/v1/queues/{QUEUE}/{target}")
            assert (reply.status, reply.code) == (501, "unsupported")
        reply = await front.ask("PUT", f"/v1/queues/{QUEUE}/messages/one", b"x")
        assert (reply.status, reply.code) == (501, "unsupported")
        client = HttpStore(server.url)
        with pytest.raises(Unsupported):
            await client.peek(QUEUE)
        await client.close()
    with pytest.raises(StoreUnavailable):
        await bridge.store.depth(QUEUE)
    with pytest.raises(Unsupported):
        await bridge.store.metadata_and_depth(QUEUE)
    await bridge.stop()


async def test_whatever_is_asked_of_the_engine_is_asked_whole() -> None:
    """Queues, limits and claims reach it as they were given, and a queue that is missing is refused."""
    async with served() as (front, engine):
        store = front.bridge.own or front.bridge.store
        await store.put(QUEUE, [NewMessage(b"%d" % number) for number in range(3)])
        shown = await store.browse(QUEUE, 2)  # type: ignore[attr-defined]
        assert [message.body for message in shown.messages] == [b"0", b"1"] and shown.following is None
        (taken,) = (await store.receive(QUEUE, 1, 30.0)).messages
        before = triggers(front.bridge)
        moved = await store.update(QUEUE, Claim(taken.id, taken.pop_receipt), 0.0)  # type: ignore[attr-defined]
        assert moved.answer.ok and triggers(front.bridge) > before, "it is visible at once, and marked"
        found = (await engine.receive(QUEUE, 3, 30.0)).messages
        assert sorted(message.body for message in found) == [b"0", b"1", b"2"]
        held = found[0]
        changed = await store.update(QUEUE, Claim(held.id, held.pop_receipt), 60.0, b"new")  # type: ignore[attr-defined]
        assert changed.answer.ok
        with pytest.raises(QueueNotFound):
            await store.put("billing/none", [NewMessage(b"x")], create=False)


class Scripted(MemoryStore):
    """An engine that raises what it is told to."""

    def __init__(self) -> None:
        super().__init__("scripted", boot="0" * 32)
        self.counting: list[BaseException] = []
        self.listing: list[BaseException] = []
        self.putting: list[BaseException] = []

    async def depth(self, queue: str) -> Depth | None:
        if self.counting:
            raise self.counting.pop(0)
        return await super().depth(queue)

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        if self.listing:
            raise self.listing.pop(0)
        return await super().queues(prefix, after, limit)

    async def put(self, *given: object, **named: object) -> list[PutReceipt]:  # type: ignore[override]
        receipts = await super().put(*given, **named)  # type: ignore[arg-type]
        if self.putting:
            raise self.putting.pop(0)
        return receipts


def served_elsewhere_errors(engine: QueueStore) -> tuple[SharedStore, list[CloudQueueWorkDetected]]:
    """Return the queues of an engine, and what is marked for them."""
    marked: list[CloudQueueWorkDetected] = []
    return SharedStore(engine, marked.extend, lambda queue: None), marked


@simulated
async def test_an_engine_that_raises_what_it_should_not_is_asked_until_it_answers() -> None:
    engine = Scripted()
    store, _ = served_elsewhere_errors(engine)
    await store.open()
    for _ in range(2):
        engine.counting.append(StoreUnavailable("away"))
        engine.listing += [RuntimeError("a driver"), StoreUnavailable("away")]
        with pytest.raises(StoreUnavailable):
            await store.depth(QUEUE)
        assert store.failure() == "away"
        await pass_time(AGAIN_S + 0.1)
        assert store.failure() == "the store raised RuntimeError"
        await pass_time(2 * AGAIN_S)
        assert store.failure() is None
    await store.close()


async def test_the_history_outlives_a_restart_where_there_is_a_place_for_it(tmp_path: pathlib.Path) -> None:
    """In the data folder if it exists: nothing else of such a bridge needs a disk, so none is made."""
    missing = tmp_path / "missing"
    for folder in (missing, tmp_path):
        for _ in range(2):
            async with Bridge(folder, store=MemoryStore("shared with others")) as bridge:
                bridge.history.mark("paused", "clerk", QUEUE)
        marks = [mark.by for mark in bridge.history.read(QUEUE, "1h").marks]
        assert marks.count("clerk") == (1 if folder is missing else 2)
    assert not missing.exists() and len(list(tmp_path.iterdir())) == 1
