"""A bridge whose queue service works on an engine: what it marks, gives back and refuses, and what its workers do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import pytest

from bridge.contract.errors import (
    NotPrepared,
    QueueNotFound,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.trace_context import Traces
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.queues import open_store
from bridge.queues.base import Capabilities, Claim, Depth, NewMessage, QueueStore
from bridge.queues.embedded.terms import NoRoom
from bridge.queues.http import HttpStore
from bridge.service.bridge import Bridge
from bridge.service.elsewhere import SERVER_TIMEOUT_MS, Elsewhere
from listeners import Listener, Message, Retry
from tests.support.processes import PATIENCE_S, until
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


async def test_a_put_is_marked_after_its_acknowledgement_by_every_door() -> None:
    """Each put that the engine acknowledged is one trigger here, a later one a due time, a resume one as well."""
    async with served() as (front, _):
        bridge, store = front.bridge, front.bridge.store
        for count, put in enumerate(
            (
                lambda: front.call("messages", {"messages": [{"body": "a"}, {"body": "b"}]}),
                lambda: front.ask("PUT", f"/v1/queues/{QUEUE}/messages/one", b"c"),
                lambda: front.ask("PUT", f"/v1/queues/{QUEUE}/messages/one", b"c"),
                lambda: store.put(QUEUE, ["d"]),
                lambda: store.put_existing(QUEUE, [NewMessage("e")]),
            ),
            1,
        ):
            await put()
            assert triggers(bridge) == count
        await store.put("billing/later", [NewMessage("f", 60_000)])
        assert triggers(bridge, "billing/later") == 1
        assert not getattr(bridge.describe("billing/later"), "dirty", True), "it is not due yet"
        await front.call("pause", {})
        before = triggers(bridge)
        await front.call("resume", {})
        assert triggers(bridge) == before + 1
        assert await store.depth(QUEUE) == Depth(5, 0)


async def test_a_put_is_told_with_its_sizes_and_all_its_traces() -> None:
    """What is due at one time is one trigger, which names the newest trace, and all where they are several."""
    one, two = (f"00-{number:032x}-{number:016x}-01" for number in (1, 2))
    rung: list[CloudQueueWorkDetected] = []
    async with open_store("memory://told-with-sizes") as engine:
        store = Elsewhere(engine, rung.extend, lambda queue: None)
        await store.put(
            QUEUE,
            [
                NewMessage(b"a", headers={"traceparent": one}), NewMessage(b"b", headers={"traceparent": two}),
                NewMessage(b"c", 5000),
            ],
        )  # fmt: skip
        later = rung.pop().not_before_ms
        assert 5000 <= later <= 6000
        about = {"traceparent": two, "traces": Traces((one, two))}
        assert rung == [CloudQueueWorkDetected("billing", "orders", 2, **about)]
        rung.clear()
        await store.put(QUEUE, [NewMessage(b"a", headers={"traceparent": one})])
        assert rung == [CloudQueueWorkDetected("billing", "orders", 1, traceparent=one)]
        rung.clear()
        await store.put(QUEUE, [NewMessage(b"a")])
        assert rung == [CloudQueueWorkDetected("billing", "orders", 1)]


async def test_a_put_that_failed_is_no_mark_and_one_of_unknown_outcome_is_two() -> None:
    """What was refused marks nothing; what may be there is looked for now, and when it can come no later (P2)."""
    async with served() as (front, engine):
        store = front.bridge.store
        engine.broken = lambda: StoreUnavailable("not now")
        with pytest.raises(StoreUnavailable):
            await store.put(QUEUE, ["a"])
        assert front.bridge.describe(QUEUE) is None
        assert store.failure() == "not now"
        assert not front.bridge.readiness().ready
        engine.broken = lambda: UnknownOutcome("who knows")
        with pytest.raises(UnknownOutcome):
            await store.put(QUEUE, ["a"])
        debt = front.bridge.bell.ledger.debts[QUEUE]
        assert debt.dirty and len(debt.due) == 1
        due = front.bridge.bell._agenda.when(("due", QUEUE))
        assert due is not None and 0 < due - front.bridge.now() - SERVER_TIMEOUT_MS / 1000 + 5 < 10
        await store.depth(QUEUE)
        assert front.bridge.readiness().ready


async def test_a_bridge_that_nobody_asks_gets_ready_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not ready, it is sent nothing by a load balancer: it asks by itself, until it is answered."""
    monkeypatch.setattr("bridge.service.elsewhere.AGAIN_S", 0.01)
    async with served() as (front, engine):
        asked = asyncio.Event()

        def down() -> StoreUnavailable:
            # Each that fails sees to the next, until the test has seen some.
            tries.append(0)
            if len(tries) < 5:
                engine.broken = down
            else:
                asked.set()
            return StoreUnavailable("down")

        tries: list[int] = []
        engine.broken = down
        with pytest.raises(StoreUnavailable):
            await front.bridge.store.queues()
        reply = await front.ask("GET", "/readyz")
        assert (reply.status, reply.json["checks"]["store"]["ok"]) == (503, False)
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
        await until(lambda: front.bridge.readiness().ready, "it is ready again")


async def test_a_put_whose_caller_is_gone_is_marked_all_the_same() -> None:
    """The call goes on: cancelled between the engine's commit and its answer, the put still wakes."""
    async with served() as (front, engine):
        engine.held, engine.arrived = asyncio.Event(), asyncio.Event()
        putting = asyncio.create_task(front.bridge.store.put(QUEUE, ["a"]), name="put")
        await engine.arrived.wait()
        putting.cancel()
        await asyncio.wait([putting])
        assert putting.cancelled() and front.bridge.describe(QUEUE) is None
        engine.held.set()
        await until(lambda: triggers(front.bridge) == 1, "the put is marked")


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


async def test_what_there_is_no_room_for_is_given_back() -> None:
    """A receive whose bodies fit nowhere takes nothing; neither does a peek read them to anybody."""

    class Full:
        asked: ClassVar[list[int]] = []

        def take(self, size: int) -> bool:
            self.asked.append(size)
            return False

        def keep(self, size: int) -> None:
            raise AssertionError

    async with served() as (front, _):
        store = front.bridge.store
        await store.put(QUEUE, ["four"])
        with pytest.raises(NoRoom):
            await store.receive(QUEUE, room=Full())
        with pytest.raises(NoRoom):
            await store.peek(QUEUE, room=Full())
        assert Full.asked == [4, 4]
        assert await store.depth(QUEUE) == Depth(1, 0)
        (message,) = (await store.receive(QUEUE)).messages
        assert message.dequeue_count == 1
        store.reclaim(QUEUE, [Claim(message.id, message.pop_receipt)])
        await until(lambda: triggers(front.bridge) == 3, "what could not be handed over is given back")


async def test_answers_name_the_engine_and_no_boot() -> None:
    """Whoever believed a boot would take the queues for the bridge's own, and sweep nothing (O0)."""
    async with served() as (front, engine):
        reply = await front.call("messages", {"messages": [{"body": "a"}]})
        assert "queuebell-boot" not in reply.headers
        assert reply.headers["queuebell-store"] == engine.fingerprint(QUEUE)
        assert "queuebell-boot" not in (await front.ask("GET", "/v1/queues")).headers
        client = HttpStore(front.server.url)
        before = client.fingerprint(QUEUE)
        assert (await client.receive(QUEUE)).boot is None
        assert before != client.fingerprint(QUEUE) == engine.fingerprint(QUEUE) == client.engine(QUEUE)
        await client.close()


async def test_a_queue_is_described_by_the_engine() -> None:
    """Also one that this bridge never heard of, and with what is there now; 404 for one that is nowhere."""
    async with served() as (front, engine):
        assert (await front.ask("GET", f"/v1/queues/{QUEUE}")).status == 404
        await engine.put(QUEUE, ["put", "elsewhere"])
        state = (await front.ask("GET", f"/v1/queues/{QUEUE}")).json
        assert state["exists"] is True
        assert state["depth"] == {"visible": 2, "invisible": 0}
        assert state["oldest_ms"] >= 0
        await front.bridge.store.put(QUEUE, ["third"])
        assert (await front.ask("DELETE", f"/v1/queues/{QUEUE}")).status == 204
        assert front.bridge.describe(QUEUE) is None, "what was announced there is forgotten"
        assert (await front.ask("GET", f"/v1/queues/{QUEUE}")).status == 404
        reply = await front.ask("POST", f"/v1/queues/{QUEUE}/messages?create=false", b"x")
        assert (reply.status, reply.code) == (404, "queue_not_found")


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
            debt = front.bridge.bell.ledger.debts[QUEUE]
            (seat,) = debt.seats
            assert (seat.own, seat.accepts, seat.store) == (False, False, engine.fingerprint(QUEUE))
            assert not debt.seats.any_own
            (dequeue,) = listener._dequeues.values()
            assert not dequeue.controller.own
            await until(lambda: debt.covered_at is not None and not debt.dirty, "an empty receive covers")
            assert ("sweep", QUEUE) in front.bridge.bell._agenda
        finally:
            await listener.stop()
            await running
        assert await engine.depth(QUEUE) == Depth(0, 0)


async def test_a_listener_in_the_bridges_process_is_one_elsewhere_too() -> None:
    """Given the bridge itself, it does not take the engine's queues for the bridge's own."""
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        done.set()

    async with served() as (front, _):
        listener = Listener(front.bridge, QUEUE, handle, handle_signals=False)
        running = asyncio.create_task(listener.run(), name="worker")
        try:
            await front.bridge.store.put(QUEUE, ["a"])
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()
            (seat,) = front.bridge.bell.ledger.debts[QUEUE].seats
            assert not seat.own
        finally:
            await listener.stop()
            await running


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
        reply = await front.ask("PUT", f"/v1/queues/{QUEUE}/messages/one", b"x")
        assert (reply.status, reply.code) == (501, "unsupported")
        client = HttpStore(server.url)
        with pytest.raises(Unsupported):
            await client.peek(QUEUE)
        await client.close()
    with pytest.raises(StoreUnavailable):
        await bridge.store.depth(QUEUE)
    with pytest.raises(Unsupported):
        await bridge.store.standing(QUEUE)
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


async def test_a_store_that_fails_is_not_ready_for_its_newest_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at `/readyz` reads what the store said last, not what it said first."""
    monkeypatch.setattr("bridge.service.elsewhere.AGAIN_S", 0.01)
    async with served() as (front, engine):
        reasons = iter(["first", "second"])

        def down() -> StoreUnavailable:
            said = next(reasons, "third")
            engine.broken = down
            return StoreUnavailable(said)

        engine.broken = down
        with pytest.raises(StoreUnavailable, match="first"):
            await front.bridge.store.queues()

        async def third() -> bool:
            check = front.bridge.readiness().checks["store"]
            return not check.ok and "third" in check.detail

        await until(third, "the newest reason is told")
        engine.broken = None
        await until(lambda: front.bridge.readiness().ready, "it is ready again")
