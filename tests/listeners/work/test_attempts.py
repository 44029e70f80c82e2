"""An attempt is a handler's start that a stop did not undo: what no handler ended costs none, whatever took it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from bridge.contract.errors import StoreUnavailable
from bridge.contract.partitioning import Partitions
from bridge.contract.wire import ListenerHeartbeat
from bridge.queues.base import Capabilities, NewMessage, Received
from bridge.queues.embedded.memory import MemoryStore
from listeners import PULL_ONLY, Ledger, Listener, Message, Pool, Retry
from listeners.core.record import Standing
from listeners.core.settle import UNSEEN_MAX
from tests.listeners.rig import POISON, QUEUE, Store, hanging, listening, run_until, settled
from tests.listeners.test_ledger import Table
from tests.listeners.work.test_dequeue import carried
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
        worker.holds = False
        if stopped is not None:
            await stopped


@pytest.mark.parametrize("counts", [False, True], ids=["takes back", "counts all"])
@pytest.mark.parametrize("most", [1, 5])
@simulated
async def test_what_kills_its_worker_is_buried_in_the_end(counts: bool, most: int) -> None:
    """Its lease lapses each time without a word: at once beyond the limit, or ten later where stops are counted too."""
    store, worker = Watched(counts), Worker("single")
    await store.fill(b"x")
    for _ in range(most + (UNSEEN_MAX if counts else 0)):
        assert (await store.receive(QUEUE, 1, 1.0)).messages
        await pass_time(1.5)
    await run_until(listening(store, worker.handler, max_attempts=most), 1, "buried")
    (burial,) = await store.burials()
    assert burial.failure == "no-outcome"
    assert worker.attempts == []


@pytest.mark.parametrize("hand_outs", range(1, UNSEEN_MAX + 1))
@simulated
async def test_where_all_is_counted_a_handler_sees_it_first(hand_outs: int) -> None:
    """However it came to its count: a handler is asked, and where it fails the message is buried for that."""
    store = Watched(counts=True)

    async def fails(message: Message) -> None:
        raise ValueError("no")

    await store.fill(b"x")
    for _ in range(hand_outs):
        assert (await store.receive(QUEUE, 1, 1.0)).messages
        await pass_time(1.5)
    await run_until(listening(store, fails, max_attempts=1), 1, "buried")
    (burial,) = await store.burials()
    assert (burial.failure, burial.error) == ("exhausted", "ValueError")


@simulated
async def test_a_failure_that_could_not_be_settled_keeps_its_attempt() -> None:
    """The handler has had its say: stopped while the poison queue is away, its message is not tried once more."""
    store, failed = Store(), asyncio.Event()

    async def fails(message: Message) -> None:
        failed.set()
        raise ValueError("no")

    async def away(*_: Any) -> Any:
        raise StoreUnavailable("away")

    await store.fill(b"x")
    put, store.put = store.put, away  # type: ignore[method-assign]
    async with listening(store, fails, max_attempts=1, grace=1.0):
        await failed.wait()
    store.put = put  # type: ignore[method-assign]
    assert [message.dequeue_count for message in await store.peek(QUEUE)] == [1]


@simulated
async def test_a_stop_during_a_burial_undoes_no_outcome_of_the_batch() -> None:
    """Each message of the batch has had its handler's say: what failed keeps its attempt, what succeeded is deleted."""
    store, burying = Store(), asyncio.Event()

    async def part(messages: list[Message]) -> list[Any]:
        return [None if message.text() == "fine" else Retry(0) for message in messages]

    async def away(*_: Any) -> Any:
        burying.set()
        raise StoreUnavailable("away")

    await store.fill(b"x", b"fine", b"y", b"fine", b"z")
    put, store.put = store.put, away  # type: ignore[method-assign]
    async with listening(store, part, batch=5, max_attempts=1, grace=0.0):
        await burying.wait()
    store.put = put  # type: ignore[method-assign]
    found = await store.peek(QUEUE)
    assert {message.body: message.dequeue_count for message in found} == {b"x": 1, b"y": 1, b"z": 1}


@simulated
async def test_a_key_of_the_ledger_is_let_go_of() -> None:
    """A stop gives the attempt back, so that it is no higher the next time: that one need not wait for the lease."""
    store, worker, table = Store(), Worker("single"), Table()
    await store.fill(b"x")
    async with listening(store, worker.handler, ledger=Ledger(table, lease=600), **worker.options()):
        await worker.began.wait()
    assert await table.standings() == [Standing.OPEN]
    worker.holds = False
    began = asyncio.get_running_loop().time()
    await run_until(listening(store, worker.handler, ledger=Ledger(table, lease=600), **worker.options()), 1)
    assert asyncio.get_running_loop().time() - began < 60
    assert worker.attempts == [1, 1]


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


async def test_a_receive_that_nobody_waits_for_is_undone() -> None:
    """The store in this process knows that its caller was cancelled: what was leased to nobody is there at once."""
    async with MemoryStore("undone") as store:
        await store.put(QUEUE, [NewMessage(b"x")])
        receiving = asyncio.create_task(store.receive(QUEUE, 1, 30.0), name="receive")
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.wait([receiving])
        assert receiving.cancelled()
        (found,) = (await store.receive(QUEUE, 1, 30.0)).messages
        assert found.dequeue_count == 1
