"""An attempt is a handler's start that a stop did not undo: what no handler ended costs none, whatever took it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from queuebell.bridge.contract.errors import HandlersStuck, StoreUnavailable
from queuebell.bridge.contract.partitioning import Partitions
from queuebell.bridge.contract.wire import ListenerHeartbeat
from queuebell.bridge.queues.base import Capabilities, Received
from queuebell.listeners import PULL_ONLY, Ledger, Listener, Message, Pool
from queuebell.listeners.handler import batch
from queuebell.listeners.work.ledger import Standing
from queuebell.listeners.work.retry import RetryPolicy
from tests.listeners.rig import POISON, QUEUE, Store, hanging, listening, run_until, settled
from tests.listeners.work.test_dequeue import carried
from tests.listeners.work.test_ledger import Table
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulated

WHOLE = Partitions("billing/orders", 2)
ROUNDS = 3


class Watched(Store):
    """Says when a receive began; ``counts`` all hand-outs and takes none back, as Azure, SQS and JetStream do."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.began = asyncio.Event()
        self._counts = counts

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, uncounted_release=not self._counts)

    async def receive(self, queue: str, *arguments: Any, **named: Any) -> Received:
        self.began.set()
        return await super().receive(queue, *arguments, **named)


class Worker:
    """A handler of one kind that notes each start; while ``holds`` it goes on until it is cancelled."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.holds = True
        self.swallows = False
        self.attempts: list[int] = []
        self.began = asyncio.Event()

    async def _work(self, messages: list[Message]) -> None:
        self.attempts += [message.attempt for message in messages]
        self.began.set()
        while self.holds:
            with contextlib.suppress(*([asyncio.CancelledError] if self.swallows else [])):
                await pass_time(10)

    async def _one(self, message: Message) -> None:
        await self._work([message])

    async def _many(self, messages: list[Message]) -> None:
        await self._work(messages)

    def options(self) -> dict[str, Any]:
        return {"max_attempts": 1, "grace": 1.0, **({"pool": Pool(4)} if self.kind == "pool" else {})}

    @property
    def handler(self) -> Any:
        return self._many if self.kind == "batch" else self._one


class Stop(NamedTuple):
    """How a worker is stopped: what its receive takes, what it is waited for, and whether it gets its grace."""

    receive_s: float
    in_flight: bool
    at_once: bool


STOPS = {
    "a receive in flight": Stop(3.0, True, False),
    "the grace is over": Stop(0.0, False, False),
    "at once": Stop(0.0, False, True),
    "at once with a receive in flight": Stop(0.5, True, True),
}


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("kind", ["single", "batch", "pool"])
@pytest.mark.parametrize("mode", ["bridge", "pull-only", "partition"])
@pytest.mark.parametrize("counts", [False, True], ids=["takes back", "counts all"])
@simulated
async def test_a_stop_costs_no_attempt(how: str, kind: str, mode: str, counts: bool) -> None:
    """With one attempt allowed: three stops, and the next worker's handler is the first that ends; none is buried."""
    store, worker, stop = Watched(counts), Worker(kind), STOPS[how]
    queue = WHOLE.references[0] if mode == "partition" else QUEUE
    await store.fill(b"x", b"y", queue=queue)
    for _ in range(ROUNDS):
        store.receiving = [hanging(stop.receive_s), hanging(stop.receive_s)]
        store.began.clear()
        worker.began.clear()
        bridge = FakeBridge() if mode == "bridge" else None
        served: Any = [WHOLE] if mode == "partition" else QUEUE
        listener = Listener(
            store, served, worker.handler, bridge=bridge or PULL_ONLY, handle_signals=False, **worker.options()
        )
        running = asyncio.create_task(listener.run(), name="listener")
        if bridge is not None:
            await bridge.until(ListenerHeartbeat)
            bridge.wake(QUEUE, 2)
        await (store.began if stop.in_flight else worker.began).wait()
        if stop.at_once:
            running.cancel()
        else:
            await listener.stop()
        await asyncio.wait([running])
        found = await store.peek(queue)
        assert sorted(message.body for message in found) == [b"x", b"y"], "given back at once"
    before = ROUNDS if counts else 0
    assert [message.dequeue_count for message in found] == [before] * 2
    worker.holds, worker.attempts = False, []
    await run_until(listening(store, worker.handler, queue, **worker.options()), 2, queue=queue)
    assert worker.attempts == [before + 1] * 2
    assert await store.depth(POISON) is None


@pytest.mark.parametrize("kind", ["single", "batch", "pool"])
@simulated
async def test_a_handler_that_does_not_end_costs_no_attempt_either(kind: str) -> None:
    """It swallows its cancellation and is left: its messages come no sooner than their leases end, and uncounted."""
    store, worker = Watched(), Worker(kind)
    worker.swallows = True
    await store.fill(b"x", b"y")
    async with listening(store, worker.handler, visibility_timeout=30.0, **worker.options()):
        await worker.began.wait()
    assert await store.peek(QUEUE) == []
    worker.holds = False
    await pass_time(31)
    assert [message.dequeue_count for message in await store.peek(QUEUE)] == [0, 0]


@pytest.mark.parametrize("stopping", [False, True], ids=["beyond the slots", "while it stops"])
@simulated
async def test_what_was_carried_and_has_no_slot_costs_no_attempt(stopping: bool) -> None:
    """O7: a wake brings more than there is room for, or comes to a worker that stops."""
    store, worker = Watched(), Worker("single")
    bridge = FakeBridge(store)
    async with listening(bridge, worker.handler, bridge=bridge, concurrency=1, max_attempts=1, grace=10) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x", b"y", b"z")
        taken = (await store.receive(QUEUE, 2 + stopping, 2.0)).messages
        stopped = None
        if stopping:
            first = taken.pop()
            bridge.wake(QUEUE, 1, messages=[carried("z", first.id, first.pop_receipt)])
            await worker.began.wait()
            stopped = asyncio.create_task(listener.stop(), name="stop")
            await pass_time(0.5)
        bridge.wake(QUEUE, 2, messages=[carried("x", m.id, m.pop_receipt) for m in taken])
        await settled(listener, 1 + stopping, "given_back")
        returned = [message.dequeue_count for message in await store.peek(QUEUE) if message.body != b"z"]
        assert returned == [0] * (1 + stopping)
        assert listener.state().queues[QUEUE].carried == 2 + stopping
        worker.holds = False
        if stopped is not None:
            await stopped


class Pausing(Table):
    """Its ``what`` takes ``seconds`` from call number ``at`` on, before it is carried out or after; says when."""

    def __init__(self, what: str, at: int, seconds: float, *, after: bool = False) -> None:
        super().__init__()
        self.seconds = seconds
        self.pausing = asyncio.Event()
        self._what, self._left, self._after = what, at, after

    async def _slowly(self, what: str, write: Callable[..., Awaitable[str]], *arguments: Any) -> str:
        self._left -= what == self._what
        etag = await write(*arguments) if self._after else ""
        if what == self._what and self._left <= 0 and self.seconds:
            self.pausing.set()
            await pass_time(self.seconds)
        return etag or await write(*arguments)

    async def insert(self, *arguments: Any) -> str:
        return await self._slowly("insert", super().insert, *arguments)

    async def replace(self, *arguments: Any) -> str:
        return await self._slowly("replace", super().replace, *arguments)


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("after", [False, True], ids=["not carried out", "carried out unheard"])
@pytest.mark.parametrize("kind", ["single", "batch", "pool"])
@simulated
async def test_a_stop_while_keys_are_begun_leaves_none_behind(kind: str, after: bool, at: int) -> None:
    """No handler has begun on them: the messages go back uncounted, and the next worker waits for no lease."""
    store, worker, table = Store(), Worker(kind), Pausing("insert", at, 0.1, after=after)
    await store.fill(b"x", b"y")
    options = {**worker.options(), "grace": 0.0}
    async with listening(store, worker.handler, ledger=Ledger(table, lease=600), **options):
        await table.pausing.wait()
    assert [message.dequeue_count for message in await store.peek(QUEUE)] == [0, 0]
    assert set(await table.standings()) <= {Standing.OPEN}
    worker.holds, table.seconds = False, 0.0
    async with listening(store, worker.handler, ledger=Ledger(table, lease=600), **options) as listener:
        async with asyncio.timeout(60):
            await settled(listener, 2)


@pytest.mark.parametrize("answers", [True, False], ids=["slow", "hangs"])
@pytest.mark.parametrize("fails", [True, False], ids=["failed", "succeeded"])
@pytest.mark.parametrize("batch", [None, 2], ids=["single", "batch"])
@simulated
async def test_a_stop_while_the_ledger_hears_an_outcome_does_not_undo_it(
    batch: int | None, fails: bool, answers: bool
) -> None:
    """The handler has had its say: its attempt is kept; a success that the ledger has heard of is deleted."""
    store, table = Store(), Pausing("replace", 1, 0.1 if answers else 1e6)

    async def handle(given: Any) -> Any:
        if fails and table.seconds:
            raise ValueError("no")

    await store.fill(b"x", b"y")
    options: dict[str, Any] = {"grace": 0.0, "max_attempts": 5, **({} if batch is None else {"batch": batch})}
    began = asyncio.get_running_loop().time()
    async with listening(store, handle, ledger=Ledger(table, lease=600), **options):
        await table.pausing.wait()
        await pass_time(0.05)
    assert asyncio.get_running_loop().time() - began < 10
    await pass_time(5)  # a failure comes back after its pause
    heard = answers and not fails
    assert [message.dequeue_count for message in await store.peek(QUEUE)] == ([] if heard else [1, 1])
    if answers:
        assert await table.standings() == [Standing.OPEN if fails else Standing.DONE] * 2
    table.seconds = 0.0
    async with listening(store, handle, ledger=Ledger(table, lease=600), **options) as listener:
        async with asyncio.timeout(60):
            await settled(listener, 0 if heard else 2)


@simulated
async def test_a_table_that_is_away_does_not_hold_up_a_stop() -> None:
    """The message is given back all the same; who comes next waits for the lease of the entry."""
    store, worker, table = Store(), Worker("single"), Table()
    await store.fill(b"x")
    async with listening(store, worker.handler, ledger=Ledger(table, lease=600), **worker.options()) as listener:
        await worker.began.wait()
        table.before = [StoreUnavailable("away")] * 100
        began = asyncio.get_running_loop().time()
        await listener.stop()
        assert asyncio.get_running_loop().time() - began < 10
    assert [message.dequeue_count for message in await store.peek(QUEUE)] == [0]


STEADY = RetryPolicy(attempts=5, first_s=1.0, factor=1.0, ceiling_s=1.0, jitter=0.0)


class Hanging:
    """Stands for the threads of all workers: a call that is given `hang` runs until the test lets it return."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.calls: list[concurrent.futures.Future[Any]] = []

    def __call__(self, _: int) -> Hanging:
        return self

    def submit(self, call: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        given = call.args[-1]  # type: ignore[attr-defined]
        texts = [each.text() for each in (given if isinstance(given, list) else [given])]
        self.began += texts
        if any(text.startswith("hang") for text in texts):
            self.calls.append(future)
        else:
            future.set_result(call())
        return future

    @property
    def running(self) -> int:
        return sum(not call.done() for call in self.calls)

    def close(self) -> None:
        pass


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Hanging:
    """Replace the threads of plain functions."""
    threads = Hanging()
    monkeypatch.setattr("queuebell.listeners.work.invoke.HandlerThreads", threads)
    return threads


def work(_: Message) -> None:
    """Return at once."""


@batch
def work_all(_: list[Message]) -> None:
    """Return at once."""


@pytest.mark.parametrize("options", [{"concurrency": 3}, {"pool": Pool(3)}])
@simulated
async def test_messages_that_hang_end_as_dead_letters_where_no_slot_is_left(
    threads: Hanging, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Their worker says so once, counts their attempts, and goes on as soon as a thread returns."""
    store = Store()
    await store.fill(b"hang 1", b"hang 2", b"hang 3", b"good")
    async with listening(store, work, handler_timeout=2.0, retry=STEADY, **options) as listener:
        await settled(listener, 3, "buried")
        assert sorted(await store.bodies(POISON)) == [b"hang 1", b"hang 2", b"hang 3"]
        assert listener.state().queues[QUEUE].free == 0
        assert listener.state().queues[QUEUE].handled == 0
        threads.calls.pop().set_result(None)
        await settled(listener, 1)
        for thread in threads.calls:
            thread.set_result(None)
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert said.getMessage().startswith(f"{QUEUE}: every handler slot is held by a call of {__name__}:work that ran ")
    assert f"{QUEUE}: handler slots are free again" in caplog.text
    assert f"of {QUEUE}, attempt 1: no end within handler_timeout of 2 s" in caplog.text


@pytest.mark.parametrize("handler", [work, work_all])
@simulated
async def test_a_thread_that_returns_late_gives_its_messages_back(threads: Hanging, handler: Any) -> None:
    """For what was left of the pause; they are handled again then, here or elsewhere."""
    store = Store()
    await store.fill(b"hang")
    policy = RetryPolicy(first_s=10.0, jitter=0.0)
    async with listening(store, handler, handler_timeout=2.0, retry=policy) as listener:
        await settled(listener, 1, "retried")
        assert len(threads.began) == 1
        await pass_time(4)
        began = asyncio.get_running_loop().time()
        threads.calls.pop().set_result(None)
        while len(threads.began) < 2:
            await pass_time(0.01)
        assert 5.9 <= asyncio.get_running_loop().time() - began <= 6.2
        threads.calls.pop().set_result(None)


class Stubborn:
    """A coroutine that swallows each cancellation of a message `stays` until the test lets it go."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.cancelled: list[float] = []
        self.began = 0

    async def __call__(self, message: Message) -> None:
        self.began += message.text() == "stays"
        while message.text() == "stays" and not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                self.cancelled.append(asyncio.get_running_loop().time())


@simulated
async def test_a_worker_whose_coroutines_hold_every_slot_ends_within_its_grace() -> None:
    """It says so and stops if it was told to; the calls that are left are counted."""
    store, stubborn = Store(), Stubborn()
    await store.fill(b"stays", b"good")
    listener = Listener(
        store, QUEUE, stubborn, bridge=PULL_ONLY, concurrency=1, handler_timeout=2.0, end_when_stuck=True, grace=5.0,
        handle_signals=False,
    )  # fmt: skip
    began = asyncio.get_running_loop().time()
    with pytest.raises(HandlersStuck, match=f"{QUEUE}: every handler slot"):
        await listener.run()
    assert 8.0 <= asyncio.get_running_loop().time() - began <= 8.1, "time-out, one second, and the grace"
    assert listener.unended() == 1
    await pass_time(2)
    assert {(each.body, each.dequeue_count) for each in await store.peek(QUEUE, 8)} == {(b"good", 0), (b"stays", 1)}
    stubborn.free.set()
    await pass_time(0)
