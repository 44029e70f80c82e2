"""A handler's effect happens once although its message came twice, and long work resumes where it stopped."""

from __future__ import annotations

import asyncio
import datetime
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from queuebell.bridge.contract.errors import (
    BadInput,
    Closed,
    ConfigurationError,
    Conflict,
    StoreUnavailable,
)
from queuebell.bridge.storage.tables.base import Entity
from queuebell.bridge.storage.tables.memory import MemoryTable
from queuebell.listeners import PULL_ONLY, Ledger, Listener, Message
from queuebell.listeners.work.ledger import (
    AlreadyDone,
    Begin,
    Entry,
    Once,
    Record,
    Standing,
    Wait,
    _read,
    decide,
    purge_all,
)
from queuebell.listeners.work.retry import Failed, Outcome, Succeeded
from tests.listeners.rig import QUEUE, Store, listening, run_until, settled
from tests.support.sim_loop import pass_time, simulated

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


NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


PARTITION = "billing.orders"


def message(text: str = "order-7", *, id_: str = "1", attempt: int = 1) -> Message:
    return Message(id_, QUEUE, text.encode(), attempt, NOON)


def half() -> float:
    """Draw the middle."""
    return 0.5


def now() -> float:
    return round(asyncio.get_running_loop().time() - 1000.0, 6)


async def always(given: list[Message]) -> Sequence[Outcome]:
    """Succeed."""
    return [Succeeded()] * len(given)


class LedgerRulesSite:
    """A ledger by body over a table that can be broken, and what handlers were called with."""

    def __init__(self, *, lease: float = 60.0, **options: Any) -> None:
        self.table = Table()
        holders = iter(range(1, 1000))
        given = {"key": by_body, **options}
        self.ledger = Ledger(self.table, lease=lease, holder=lambda: f"h{next(holders)}", **given)
        self.once = Once(self.ledger, half)
        self.called: list[list[str]] = []
        self.given: list[Message] = []

    async def run(
        self,
        *messages: Message,
        call: Callable[[list[Message]], Any] = always,
        wanted: Callable[[], bool] = lambda: True,
    ) -> list[Outcome | None]:
        async def noted(given: list[Message]) -> Sequence[Outcome]:
            self.called.append([each.text() for each in given])
            self.given += given
            told: Sequence[Outcome] = await call(given)
            return told

        return await self.once.run(list(messages), noted, wanted)

    async def stand(self, text: str = "order-7", **changes: Any) -> Record:
        """Write an entry as somebody else's attempt would."""
        record = msgspec.structs.replace(
            Record(text, Standing.BEGUN, "other", "elsewhere", 1, self.ledger.lease), **changes
        )
        row = self.ledger.row(text)
        found = await Table.get(self.table, PARTITION, row)
        data = msgspec.json.encode(record)
        if found is None:
            await self.table.insert(PARTITION, row, data)
        else:
            await self.table.replace(PARTITION, row, data, found.etag)
        self.table.calls.clear()
        return record

    async def record(self, text: str = "order-7") -> Record:
        found = await self.table.get(PARTITION, self.ledger.row(text))
        return msgspec.json.decode(found.data, type=Record)

    async def entry(self) -> Entry:
        """Begin a key and return the hold on it."""
        mine = self.ledger.wanted(message())
        row = self.ledger.row(mine.key)
        etag = await self.table.insert(PARTITION, row, msgspec.json.encode(mine))
        self.table.calls.clear()
        entry = Entry(self.ledger, row, PARTITION, mine, half)
        entry.etag = etag
        return entry


# Forgetting ----------------------------------------------------------------------------------------------------------
@simulated
async def test_old_entries_are_forgotten_page_by_page() -> None:
    """Those of ``keep`` and older, of this queue, however many; what is written meanwhile is not old, and stays."""
    site, pages = LedgerRulesSite(keep=200.0), []
    rows = [f"{number}r" for number in range(5)]
    for row in rows:
        await site.table.insert(PARTITION, row, b"x")
    await site.table.insert("billing.other", "r0", b"x")
    await pass_time(100)
    await site.table.insert(PARTITION, "young", b"x")
    listed = site.table.entities

    async def entities(partition: str, *, older_than_s: float = 0.0, after: str = "", limit: int = 2) -> list[Entity]:
        page = await listed(partition, older_than_s=older_than_s, after=after, limit=limit)
        pages.append((after, [entity.row for entity in page]))
        if page and page[0].row == "2r":
            await site.table.replace(PARTITION, "2r", b"y", page[0].etag)
        return page

    site.table.entities = entities  # type: ignore[method-assign]
    await pass_time(99.999)
    assert await site.ledger.purge(QUEUE) == 0
    await pass_time(0.001)
    assert await site.ledger.purge(QUEUE) == 4
    assert pages == [("", []), ("", ["0r", "1r"]), ("1r", ["2r", "3r"]), ("3r", ["4r"]), ("4r", [])]
    assert [entity.row for entity in await listed(PARTITION)] == ["2r", "young"]
    assert len(await listed("billing.other")) == 1


@simulated
async def test_old_entries_are_looked_for_each_hour(caplog: pytest.LogCaptureFixture) -> None:
    """Of each queue, spread by a fifth; what fails for one is told, and neither the others nor the next hour fail."""
    caplog.set_level(logging.INFO, "queuebell.ledger")
    site, asked = LedgerRulesSite(), []
    answers: list[Any] = [3, StoreUnavailable("away"), 0, ZeroDivisionError("odd"), 0, 1]

    async def purge(queue: str) -> int:
        asked.append((now(), queue))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    site.ledger.purge = purge  # type: ignore[method-assign]
    draws = iter([0.0, 0.5, 1.0, 0.5])
    purging = asyncio.create_task(purge_all(site.ledger, [QUEUE, OTHER], lambda: next(draws)), name="purge")
    await pass_time(3600 * 3.1)
    purging.cancel()
    await asyncio.wait([purging])
    hours = [0.8 * 3600, 1.8 * 3600, 3.0 * 3600]
    assert asked == [(at, queue) for at in hours for queue in (QUEUE, OTHER)]
    lines = [record.getMessage() for record in caplog.records if record.name == "queuebell.ledger"]
    assert lines == [
        f"{QUEUE}: 3 old entries forgotten",
        f"{OTHER}: old entries of the ledger could not be forgotten now: away",
        f"{OTHER}: unexpected error while removing old entries of the ledger",
        f"{OTHER}: 1 old entries forgotten",
    ]


# Running under it ----------------------------------------------------------------------------------------------------


@simulated
async def test_of_a_batch_each_goes_its_own_way(caplog: pytest.LogCaptureFixture) -> None:
    """Begun, done, waiting, unreadable, a twin, a key that fails: one outcome each, and the handler sees the begun."""

    def key(given: Message) -> str:
        if given.text() == "odd":
            raise ZeroDivisionError("no key")
        return by_body(given)

    site = LedgerRulesSite(key=key)
    await site.stand("done", standing=Standing.DONE)
    await site.stand("held")
    await site.table.insert(PARTITION, site.ledger.row("strange"), b'{"key": 7}')
    words = ["odd", "new", "done", "held", "strange", "new", "bad", "held"]
    batch = [message(word, id_=str(number), attempt=2) for number, word in enumerate(words)]

    async def call(given: list[Message]) -> Sequence[Outcome]:
        return [Failed("no") if each.text() == "bad" else Succeeded() for each in given]

    outcomes = await site.run(*batch, call=call)
    row = site.ledger.row("strange")
    assert outcomes == [
        Failed("the ledger's key: ZeroDivisionError: no key"),
        Succeeded(),
        Succeeded(),
        None,
        Failed(f"entry {PARTITION}/{row} of the ledger cannot be read; is this worker too old?"),
        Succeeded(),
        Failed("no"),
        None,
    ]
    assert site.called == [["new", "bad"]]
    assert [(await site.record(word)).standing for word in ("new", "bad")] == [Standing.DONE, Standing.OPEN]
    failed = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in failed] == [f"message 0 of {QUEUE}: its ledger key failed"]
    assert failed[0].exc_info


@pytest.mark.parametrize("count", [1, 2])
@simulated
async def test_a_key_taken_over_ends_the_handler_of_one_message(count: int, caplog: pytest.LogCaptureFixture) -> None:
    """It works in vain; a batch goes on for the others, and only what was taken over has failed."""
    site = LedgerRulesSite(lease=10.0)
    batch = [message(), message("order-8", id_="2")][:count]

    async def call(given: list[Message]) -> Sequence[Outcome]:
        await site.stand()
        await pass_time(100)
        return await always(given)

    running = asyncio.create_task(site.run(*batch, call=call), name="handler")
    await asyncio.wait([running])
    if count == 1:
        assert running.cancelled() and now() == 5.0
    else:
        taken = Failed("another attempt has taken over its key meanwhile")
        assert (running.result(), now()) == ([taken, Succeeded()], 100.0)
    assert (await site.record()).holder == "other"
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == [
        "another worker has taken over key 'order-7' after this attempt's lease ended; this attempt is cancelled"
    ]


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("no")])
@pytest.mark.parametrize("error", [Conflict("theirs"), BadInput("bad_parameter", "odd"), Closed("closed")])
@simulated
async def test_a_last_word_that_cannot_be_written(outcome: Outcome, error: Exception) -> None:
    """Success that nobody can read later is a failed attempt, a failure is one anyhow; a closed ledger is told."""
    site = LedgerRulesSite()

    async def call(given: list[Message]) -> Sequence[Outcome]:
        if isinstance(error, Conflict):
            await site.stand()
        else:
            site.table.before = [error]
        return [outcome]

    if isinstance(error, Closed):
        with pytest.raises(Closed):
            await site.run(message(), call=call)
        return
    told = await site.run(message(), call=call)
    if isinstance(outcome, Failed):
        assert told == [outcome]
    elif isinstance(error, Conflict):
        assert told == [Failed("another attempt has taken over its key meanwhile")]
    else:
        assert told == [Failed("the ledger could not be written: odd")]


MINE = Record("order-7", Standing.BEGUN, "me", "m1", 2, 60.0)


def theirs(**changes: object) -> Record:
    base = Record("order-7", Standing.BEGUN, "they", "m2", 1, 60.0, b"half")
    return msgspec.structs.replace(base, **changes)


RESUMED = Begin(msgspec.structs.replace(MINE, progress=b"half"))


@pytest.mark.parametrize(
    ("found", "age", "expected"),
    [
        (None, 0.0, Begin(MINE)),
        (theirs(standing=Standing.DONE), 0.0, AlreadyDone()),
        (theirs(standing=Standing.DONE), 1e9, AlreadyDone()),
        (theirs(standing=Standing.OPEN), 0.0, RESUMED),
        (theirs(), 10.0, Wait(50.0)),
        (theirs(), 60.0, Wait(0.0)),
        (theirs(), 60.1, RESUMED),
        (theirs(lease_s=5.0), 10.0, RESUMED),
        (theirs(message="m1", attempt=1), 0.0, RESUMED),
        (theirs(message="m1", attempt=2), 0.0, Wait(60.0)),
        (theirs(message="m1", attempt=3), 0.0, Wait(60.0)),
        (theirs(holder="me"), 0.0, RESUMED),
    ],
)
def test_who_may_begin(found: Record | None, age: float, expected: object) -> None:
    """Nobody once it is done; at once what failed or was handed out anew; else after the entry's own lease."""
    assert decide(found, age, MINE) == expected
