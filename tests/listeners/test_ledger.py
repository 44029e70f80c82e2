"""A handler's effect happens once although its message came twice, and long work resumes where it stopped."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridge.contract.errors import BadInput, ConfigurationError, Conflict, StoreError, StoreUnavailable, UnknownOutcome
from bridge.queues.base import NewMessage
from bridge.queues.embedded.memory import MemoryStore
from bridge.storage.tables.base import Entity
from bridge.storage.tables.memory import MemoryTable
from listeners import PULL_ONLY, Ledger, Listener, Message, Retry
from listeners.core.record import Standing
from listeners.work.ledger import PURGE_S, _read
from tests.listeners.rig import QUEUE, Store, hanging, listening, raising, run_until, settled
from tests.support.sim_loop import pass_time, simulate, simulated

OTHER = "billing/other"


class Table(MemoryTable):
    """A table on the loop's clock; ``before`` may break the next calls, ``after`` those that were carried out."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex, clock=asyncio.get_running_loop().time)
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.calls: list[str] = []
        self.latency = 0.0

    async def _begin(self, what: str) -> None:
        self.calls.append(what)
        if self.latency:
            await pass_time(self.latency)
        if self.before:
            raise self.before.pop(0)

    def _end(self) -> None:
        if self.after:
            raise self.after.pop(0)

    async def insert(self, partition: str, row: str, data: bytes) -> str:
        await self._begin("insert")
        etag = await super().insert(partition, row, data)
        self._end()
        return etag

    async def get(self, partition: str, row: str) -> Entity | None:
        await self._begin("get")
        return await super().get(partition, row)

    async def replace(self, partition: str, row: str, data: bytes, etag: str) -> str:
        await self._begin("replace")
        new = await super().replace(partition, row, data, etag)
        self._end()
        return new

    async def standings(self, queue: str = QUEUE) -> list[Standing]:
        records = [_read(entity) for entity in await self.entities(queue.replace("/", "."))]
        return [each.standing for each in records if each is not None]


class Site:
    def __init__(self, **options: Any) -> None:
        self.store, self.table = Store(), Table()
        self.options = options
        self.seen: list[Message] = []

    async def handle(self, message: Message) -> None:
        self.seen.append(message)

    def listening(self, handler: Callable[[Any], object] | None = None, **options: Any) -> Any:
        return listening(self.store, handler or self.handle, ledger=Ledger(self.table, **self.options), **options)


def by_body(message: Message) -> str:
    return message.text()


@simulated
async def test_a_message_that_comes_again_is_not_handled_again() -> None:
    """Its delete was lost: it re-appears, the ledger says done, and it is deleted unhandled."""
    site = Site()
    await site.store.fill(b"x")
    hang = asyncio.Event()
    site.store.settling = [hang.wait]
    async with site.listening(visibility_timeout=5.0, grace=0.0):
        async with asyncio.timeout(60):
            while not site.store.settlements:
                await asyncio.sleep(0.01)
    depth = await site.store.depth(QUEUE)
    assert depth.visible + depth.invisible == 1, "the delete did not reach the store"
    await pass_time(6)
    await run_until(site.listening(), 1)
    assert [message.attempt for message in site.seen] == [1]
    assert await site.table.standings() == [Standing.DONE]


@simulated
async def test_one_new_message_costs_two_writes() -> None:
    """An insert and a replace, and nothing is read but once, when the worker begins."""
    site = Site()
    await site.store.fill(b"x", b"y")
    await run_until(site.listening(), 2)
    assert sorted(site.table.calls) == ["get", "insert", "insert", "replace", "replace"]


@simulated
async def test_a_ledger_that_cannot_be_used_ends_the_worker_before_it_receives() -> None:
    """The error says what is wrong, and no message has lost an attempt to it."""
    site = Site()
    await site.store.fill(b"x")
    site.table.before = [ConfigurationError("ledger: no such role")]
    with pytest.raises(ConfigurationError, match="no such role"):
        await Listener(
            site.store, QUEUE, site.handle, bridge=PULL_ONLY, ledger=Ledger(site.table), handle_signals=False
        ).run()
    (message,) = await site.store.peek(QUEUE)
    assert message.dequeue_count == 0


@simulated
async def test_a_ledger_that_is_refused_later_costs_no_attempt() -> None:
    """A role that was dropped meanwhile comes back some day; the message waits for it under its lease."""
    site = Site()
    async with site.listening(max_attempts=2) as listener:
        await site.store.fill(b"x")
        await settled(listener, 1)
        site.table.before = [ConfigurationError("ledger: no such role") for _ in range(20)]
        await site.store.fill(b"y")
        await settled(listener, 2)
    assert [message.attempt for message in site.seen] == [1, 1]


@simulated
async def test_two_messages_of_one_business_id_have_one_effect() -> None:
    """The second waits while the first is handled, and is then deleted unhandled, without losing an attempt."""
    site = Site(key=by_body)

    async def handle(message: Message) -> None:
        site.seen.append(message)
        await pass_time(100)

    await site.store.fill(b"order-7", b"order-7")
    async with site.listening(handle) as listener:
        await settled(listener, 2)
        assert listener.state().queues[QUEUE].retried == 0
    assert len(site.seen) == 1


def test_a_scope_holds_for_several_queues() -> None:
    """With it a key counts once in all of them, without it once in each."""

    async def story(scope: str | None, expected: int) -> None:
        site = Site(key=by_body, scope=scope)
        for queue in (QUEUE, OTHER):
            await site.store.put(queue, [NewMessage(b"order-7")])
        async with site.listening(queue=[QUEUE, OTHER]) as listener:
            await settled(listener, 1)
            await settled(listener, 1, queue=OTHER)
        assert len(site.seen) == expected

    simulate(story("billing", 1))
    simulate(story(None, 2))


@simulated
async def test_long_work_resumes_where_it_stopped() -> None:
    """The next attempt finds the last checkpoint and does only what is left."""
    site = Site()
    done: list[int] = []

    async def handle(message: Message) -> None:
        start = 0 if message.progress is None else int(message.progress)
        for step in range(start, 6):
            done.append(step)
            await message.checkpoint(str(step + 1))
            if step in (1, 3) and step >= start + 1:
                raise Retry(0)

    await site.store.fill(b"x")
    await run_until(site.listening(handle), 1)
    assert done == [0, 1, 2, 3, 4, 5]


@simulated
async def test_a_worker_that_died_is_taken_over_when_its_lease_ends() -> None:
    """The same message, handed out anew, needs no waiting for the entry's own lease; progress is kept."""
    site = Site(lease=600.0)

    async def die(message: Message) -> None:
        await message.checkpoint("half")
        await asyncio.get_running_loop().create_future()

    await site.store.fill(b"x")
    async with site.listening(die, visibility_timeout=5.0, grace=0.0):
        async with asyncio.timeout(60):
            while "replace" not in site.table.calls:
                await asyncio.sleep(0.01)
        # Who dies says nothing more, neither to the table nor to the store.
        site.table.before = [StoreUnavailable("dead")] * 100
        site.store.settling = [hanging() for _ in range(100)]
    site.table.before, site.store.settling = [], []
    assert await site.table.standings() == [Standing.BEGUN]
    await run_until(site.listening(), 1)
    assert [(message.attempt, message.progress) for message in site.seen] == [(2, b"half")]


@simulated
async def test_another_message_takes_over_only_after_the_entry_s_lease() -> None:
    """A dead attempt's key is free for other messages once it has not been renewed for its lease."""
    site = Site(key=by_body, lease=60.0)
    begun: list[float] = []
    loop = asyncio.get_running_loop()
    ledger = Ledger(site.table, key=by_body, lease=60.0)
    record = ledger.wanted(Message("dead", QUEUE, b"order-7", 1, datetime.datetime.now(datetime.UTC)))
    await site.table.insert(ledger.partition(QUEUE), ledger.row("order-7"), msgspec.json.encode(record))
    died = loop.time()

    async def handle(message: Message) -> None:
        begun.append(loop.time() - died)

    await site.store.fill(b"order-7")
    await run_until(site.listening(handle), 1)
    assert begun == [pytest.approx(63, abs=3)]


@simulated
async def test_a_live_attempt_is_never_taken_over() -> None:
    """It renews its entry: for ten leases nobody else begins."""
    site = Site(key=by_body, lease=10.0)
    running = most = 0

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await pass_time(100)
        running -= 1

    await site.store.fill(b"order-7")
    async with site.listening(handle) as one, site.listening(handle) as two:
        await site.store.fill(b"order-7")
        async with asyncio.timeout(3600):
            while sum(each.state().queues[QUEUE].handled for each in (one, two)) < 2:
                await asyncio.sleep(0.01)
    assert most == 1


@simulated
async def test_an_attempt_that_was_taken_over_can_write_no_more() -> None:
    """Its checkpoint is refused, its renewal ends the handler, and its message is not deleted by it."""
    site = Site(key=by_body, lease=10.0)
    refused: list[str] = []
    begun = asyncio.Event()
    taken = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.attempt > 1:
            return
        begun.set()
        await taken.wait()
        try:
            await message.checkpoint("late")
        except Conflict:
            refused.append("checkpoint")
        try:
            await pass_time(100)
        except asyncio.CancelledError:
            refused.append("handler")
            raise

    await site.store.fill(b"order-7")
    async with site.listening(handle) as listener:
        await begun.wait()
        (entity,) = await site.table.entities("billing.orders")
        record = _read(entity)
        assert record is not None
        other = msgspec.structs.replace(record, holder="other", standing=Standing.OPEN)
        await site.table.replace(entity.partition, entity.row, msgspec.json.encode(other), entity.etag)
        taken.set()
        await settled(listener, 1)
        assert listener.state().queues[QUEUE].given_back == 1
    assert refused == ["checkpoint", "handler"]


@simulated
async def test_success_of_an_attempt_that_was_taken_over_deletes_nothing() -> None:
    """Another attempt has the key: the message comes again, and finds out how that one ended."""
    site = Site()
    attempts = 0

    async def handle(message: Message) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            (entity,) = await site.table.entities("billing.orders")
            data = entity.data.replace(b'"holder":"', b'"holder":"x').replace(b'"begun"', b'"done"')
            await site.table.replace(entity.partition, entity.row, data, entity.etag)

    await site.store.fill(b"x")
    async with site.listening(handle) as listener:
        await settled(listener, 1)
        assert listener.state().queues[QUEUE].retried == 1
    assert attempts == 1


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), UnknownOutcome("lost"), StoreError("no"), TimeoutError()])
@simulated
async def test_a_table_that_is_away_costs_no_attempt(fault: Exception) -> None:
    """Before the handler and after it: the message is held until the table answers, and handled once."""
    site = Site()
    site.table.before = [fault] * 5

    async def handle(message: Message) -> None:
        site.seen.append(message)
        site.table.before = [fault] * 5

    await site.store.fill(b"x")
    async with site.listening(handle, visibility_timeout=5.0) as listener:
        await settled(listener, 1)
        figures = listener.state().queues[QUEUE]
    assert [message.attempt for message in site.seen] == [1]
    assert (figures.retried, figures.lost_leases) == (0, 0)


@simulated
async def test_a_write_whose_answer_was_lost_is_known_as_one_s_own() -> None:
    """The insert, a checkpoint and the last write were carried out and not answered: nobody is taken for another."""
    site = Site()

    async def handle(message: Message) -> None:
        site.seen.append(message)
        site.table.after = [UnknownOutcome("lost")]
        await message.checkpoint("half")
        site.table.after = [UnknownOutcome("lost")]

    site.table.after = [UnknownOutcome("lost")]
    await site.store.fill(b"x")
    async with site.listening(handle) as listener:
        await settled(listener, 1)
        assert listener.state().queues[QUEUE].retried == 0
    assert len(site.seen) == 1
    assert await site.table.standings() == [Standing.DONE]


@pytest.mark.parametrize("key", [lambda message: 7, lambda message: "", lambda message: message.nothing])
@simulated
async def test_a_key_that_fails_is_a_failed_attempt(key: Any) -> None:
    """The handler is not called without its guard; the message is buried in the end, with the reason."""
    site = Site(key=key)
    await site.store.fill(b"x")
    async with site.listening(max_attempts=2) as listener:
        await settled(listener, 1, "buried")
        burial = listener.state().queues[QUEUE].last_burial
        assert burial is not None
        assert "the ledger's key" in burial
    assert site.seen == []


@simulated
async def test_old_entries_are_forgotten() -> None:
    """After ``keep``, by an hourly look; younger ones stay."""
    site = Site(keep=10 * PURGE_S)
    await site.store.fill(b"x")
    async with site.listening() as listener:
        await settled(listener, 1)
        await pass_time(9 * PURGE_S)
        await site.store.fill(b"y")
        await settled(listener, 2)
        assert len(await site.table.standings()) == 2
        await pass_time(3 * PURGE_S)
        assert len(await site.table.standings()) == 1


@simulated
async def test_checkpoints_are_bounded_and_need_a_ledger() -> None:
    """More than 32 KiB, or no ledger at all, is said to the handler."""
    site = Site()

    async def handle(message: Message) -> None:
        with pytest.raises(BadInput):
            await message.checkpoint(b"x" * (32 * 1024 + 1))
        await message.checkpoint(b"x" * (32 * 1024))

    async def without(message: Message) -> None:
        with pytest.raises(ConfigurationError, match="ledger"):
            await message.checkpoint("x")

    await site.store.fill(b"x")
    await run_until(site.listening(handle), 1)
    await site.store.fill(b"x")
    await run_until(listening(site.store, without), 1)


@pytest.mark.parametrize(
    "options", [{"lease": 0}, {"lease": float("nan")}, {"lease": 60, "keep": 120}, {"scope": "a/b"}, {"scope": ""}]
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """When the ledger is made, not when the first message comes."""
    with pytest.raises(BadInput):
        Ledger("memory:x", **options)


async def test_a_plain_function_writes_checkpoints_from_its_thread(tmp_path: Path) -> None:
    """On a real loop, with the ledger in a file: the second attempt resumes."""
    seen: list[bytes | None] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(message: Message) -> None:
        seen.append(message.progress)
        if message.progress is None:
            message.checkpoint_from_thread("half")
            raise Retry(0)
        loop.call_soon_threadsafe(done.set)

    async with MemoryStore(uuid.uuid4().hex) as store:
        await store.put(QUEUE, [NewMessage(b"x")])
        async with listening(store, handle, ledger=f"sqlite://{tmp_path}/ledger.db"), asyncio.timeout(300):
            await done.wait()
    assert seen == [None, b"half"]


@simulated
async def test_a_table_that_refuses_for_good_ends_no_listener() -> None:
    """An answer that no repetition changes is told in the log, and the message comes back when its lease ends."""
    site = Site()
    await site.store.fill(b"x")
    site.store.receiving = [raising(StoreUnavailable("x"))]
    async with site.listening() as listener:
        await settled(listener, 1)
        await site.store.fill(b"y")
        site.table.before = [BadInput("bad_parameter", "no")]
        await settled(listener, 2)
