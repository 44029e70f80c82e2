"""The ledger as such: its limits, its writes, who waits for whom and how long, and what becomes of each failure."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from bridge.contract.errors import (
    BadInput,
    Closed,
    ConfigurationError,
    Conflict,
    NotPrepared,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.storage.tables.base import Entity
from listeners import Ledger, Message
from listeners.core.record import Record, Standing
from listeners.core.settle import Failed, Outcome, Succeeded
from listeners.work.ledger import Entry, Once, check_progress, purge_all
from listeners.work.retry_until import NoLongerWanted
from tests.listeners.rig import QUEUE
from tests.listeners.test_ledger import OTHER, Table, by_body
from tests.support.sim_loop import pass_time, simulated

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
PARTITION = "billing.orders"
WORDS = "billing/orders 1 2026-11-21T12:00:00+00:00"


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


class Site:
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


# What a ledger is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"lease": 1}, None),
        ({"lease": 0.999}, "lease is from 1 to 604800 seconds"),
        ({"lease": 604_800, "keep": 1_209_601}, None),
        ({"lease": 604_801, "keep": 1_300_000}, "lease is from 1 to 604800 seconds"),
        ({"lease": 60, "keep": 120.1}, None),
        ({"lease": 60, "keep": 120}, "keep is more than two leases, in seconds"),
        ({"lease": 60, "keep": float("nan")}, "keep is more than two leases, in seconds"),
        ({"scope": "orders_2-x"}, None),
        ({"scope": "a.b"}, "scope is a token: letters, digits, '_' and '-'"),
    ],
)
def test_limits_of_the_options(options: dict[str, Any], fault: str | None) -> None:
    """A lease of a second to a week, entries kept for more than two of them, a scope that can be part of a key."""
    if fault is not None:
        with pytest.raises(BadInput) as refused:
            Ledger("memory:limits", **options)
        assert (refused.value.code, str(refused.value)) == ("bad_parameter", fault)
        return
    ledger = Ledger("memory:limits", **options)
    assert isinstance(ledger.lease, float) and ledger.lease == options.get("lease", 60.0)
    assert isinstance(ledger.keep, float) and ledger.keep == options.get("keep", 604_800.0)


@simulated
async def test_what_was_opened_here_is_closed_here() -> None:
    """A table given by its address, more than once without harm; one that was given as it is belongs to others."""
    ledger = Ledger("memory:closing")
    for _ in range(2):
        await ledger.close()
    with pytest.raises(Closed):
        await ledger.table.get(PARTITION, "x")
    table = Table()
    await Ledger(table).close()
    assert await table.get(PARTITION, "x") is None


def test_where_an_entry_stands() -> None:
    """The same in each version: entries are remembered for a week. Any text is a key, half a surrogate pair too."""
    ledger, scoped = Ledger("memory:x"), Ledger("memory:x", scope="all")
    assert (ledger.partition(QUEUE), scoped.partition(QUEUE)) == (PARTITION, "all")
    assert ledger.row("order-7") == "df8cf80227ec3237922df0ecd88385c546e4a31bdb8127b033f01e6f21f175df"
    assert ledger.row("\ud800") == "91a681b998555fb475479817b126c94e57e52011fa1842c5d188795a4a05226b"


def test_what_an_attempt_says_of_itself() -> None:
    """Its key, that it has begun, who it is, its message, its number and its lease; nobody is anybody else."""
    own = Ledger("memory:x", lease=7, holder=lambda: "h")
    assert own.wanted(message(attempt=3)) == Record(WORDS, Standing.BEGUN, "h", WORDS, 3, 7.0, None)
    keyed = Ledger("memory:x", key=by_body, holder=lambda: "h")
    assert keyed.wanted(message()) == Record("order-7", Standing.BEGUN, "h", WORDS, 1, 60.0, None)
    holders = {Ledger("memory:x").wanted(message()).holder for _ in range(20)}
    assert len(holders) == 20 and {len(holder) for holder in holders} == {32}


@pytest.mark.parametrize(
    ("key", "fits"), [("k", True), ("k" * 1024, True), ("", False), ("k" * 1025, False), (7, False)]
)
def test_limits_of_a_key(key: Any, fits: bool) -> None:
    """Text of 1 to 1024 characters."""
    ledger = Ledger("memory:x", key=lambda _: key)
    if fits:
        assert ledger.wanted(message()).key == key
    else:
        with pytest.raises(TypeError, match="1 to 1024 characters"):
            ledger.wanted(message())


@pytest.mark.parametrize(
    ("progress", "fits"), [(b"x" * 32_768, True), (b"x" * 32_769, False), ("x", False), (b"", True)]
)
@simulated
async def test_limits_of_a_checkpoint(progress: Any, fits: bool) -> None:
    """32 KiB of bytes; what is refused says so, and nothing is written."""
    entry = await (site := Site()).entry()
    if fits:
        check_progress(progress)
        await entry.checkpoint(progress)
        assert (await site.record()).progress == entry.progress == progress
        return
    with pytest.raises(BadInput, match="at most 32768 bytes") as refused:
        await entry.checkpoint(progress)
    assert (refused.value.code, site.table.calls) == ("too_large", [])


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ConfigurationError("no such role"), True),
        (NotPrepared("no tables yet"), False),
        (StoreUnavailable("away"), False),
        (BadInput("bad_parameter", "odd"), False),
        (None, False),
    ],
)
@simulated
async def test_the_first_question_to_the_table(
    error: Exception | None, raised: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What can never work is raised before a message is received; what may come back is only noted."""
    caplog.set_level(logging.DEBUG, "queuebell.ledger")
    site, asked = Site(), []

    async def get(partition: str, row: str) -> Entity | None:
        asked.append((partition, row))
        if error is not None:
            raise error
        return None

    site.table.get = get  # type: ignore[method-assign]
    if raised:
        with pytest.raises(ConfigurationError, match="no such role"):
            await site.ledger.check()
    else:
        await site.ledger.check()
    assert asked == [("queuebell", site.ledger.row("check"))]
    lines = [record.getMessage() for record in caplog.records if record.name == "queuebell.ledger"]
    noted = error is not None and not isinstance(error, ConfigurationError)
    assert lines == ([f"the ledger does not answer yet: {error}"] if noted else [])


@simulated
async def test_a_worker_waits_five_seconds_for_the_first_answer(caplog: pytest.LogCaptureFixture) -> None:
    """It begins without: whatever is silent now may answer later."""
    caplog.set_level(logging.DEBUG, "queuebell.ledger")
    site = Site()
    site.table.latency = 1e6
    await site.ledger.check()
    assert now() == 5.0
    assert caplog.records[-1].getMessage() == "the ledger does not answer yet: time-out"


# Forgetting ----------------------------------------------------------------------------------------------------------


@simulated
async def test_old_entries_are_forgotten_page_by_page() -> None:
    """Those of ``keep`` and older, of this queue, however many; what is written meanwhile is not old, and stays."""
    site, pages = Site(keep=200.0), []
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
    site, asked = Site(), []
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
        f"{OTHER}: forgetting old entries of the ledger broke",
        f"{OTHER}: 1 old entries forgotten",
    ]


# One entry -----------------------------------------------------------------------------------------------------------


@simulated
async def test_writes_of_an_entry_follow_each_other() -> None:
    """Each names the ETag of the one before, keeps what was written, and after the last word nothing is written."""
    site = Site()
    entry = await site.entry()
    site.table.latency = 1.0
    assert (entry.key, entry.progress, entry.lost) == ("order-7", None, False)
    await asyncio.gather(entry.checkpoint(b"one"), entry.checkpoint(b"two"), entry.write(Standing.BEGUN))
    assert (now(), site.table.calls) == (3.0, ["replace"] * 3)
    wanted = msgspec.structs.replace(site.ledger.wanted(message()), holder="h1", progress=b"two")
    assert await site.record() == wanted
    await entry.write(Standing.DONE)
    site.table.calls.clear()
    await entry.write(Standing.OPEN)
    await entry.write(Standing.BEGUN, b"late")
    assert site.table.calls == []
    assert await site.record() == msgspec.structs.replace(wanted, standing=Standing.DONE)


@simulated
async def test_what_was_let_go_is_written_no_more() -> None:
    """It is open for whoever comes next, with the progress made."""
    site = Site()
    entry = await site.entry()
    await entry.checkpoint(b"half")
    await entry.let_go()
    assert entry.lost
    with pytest.raises(Conflict, match="may have taken over"):
        await entry.checkpoint(b"late")
    found = await site.record()
    assert (found.standing, found.progress) == (Standing.OPEN, b"half")


@pytest.mark.parametrize("found", ["ours", "theirs", "nothing", "unreadable"])
@simulated
async def test_a_write_that_meets_another(found: str) -> None:
    """One of our own whose answer was lost is written over; anybody else's, or none at all, and the key is lost."""
    site = Site()
    entry = await site.entry()
    row = site.ledger.row("order-7")
    entity = await site.table.get(PARTITION, row)
    assert entity is not None
    if found == "nothing":
        await site.table.delete(PARTITION, row, entity.etag)
    elif found == "unreadable":
        await site.table.replace(PARTITION, row, b"?", entity.etag)
    else:
        await site.stand(holder="h1" if found == "ours" else "other")
    site.table.calls.clear()
    if found == "ours":
        await entry.checkpoint(b"half")
        assert ((await site.record()).progress, entry.lost) == (b"half", False)
        await entry.checkpoint(b"more")
        assert entry.progress == (await site.record()).progress == b"more"
        return
    with pytest.raises(Conflict):
        await entry.checkpoint(b"half")
    assert (entry.lost, entry.progress) == (True, None)
    assert site.table.calls == ["replace", "get"]
    with pytest.raises(Conflict):
        await entry.checkpoint(b"half")
    assert site.table.calls == ["replace", "get"], "it is known, and not asked for again"


@pytest.mark.parametrize("ours", [True, False])
@simulated
async def test_an_entry_whose_first_write_went_unheard_is_looked_at_first(ours: bool) -> None:
    """It has no ETag to write with: it reads whose entry stands there, and writes over its own and no other's."""
    site = Site()
    begun = await site.entry()
    entry = Entry(site.ledger, site.ledger.row("order-7"), PARTITION, await site.record(), half)
    assert begun.etag is not None and entry.etag is None
    if not ours:
        await site.stand()
    site.table.calls.clear()
    if ours:
        await entry.checkpoint(b"half")
        assert site.table.calls == ["get", "replace"]
        assert ((await site.record()).progress, entry.lost) == (b"half", False)
        return
    with pytest.raises(Conflict, match="whether its first write was carried out is not known"):
        await entry.checkpoint(b"half")
    assert (site.table.calls, entry.lost) == (["get"], True)


# Running under it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempt", "calls"), [(1, ["insert", "replace"]), (2, ["get", "insert", "replace"])])
@simulated
async def test_what_a_message_costs(attempt: int, calls: list[str]) -> None:
    """A first attempt looks for nothing; a later one looks first. The handler gets the entry, and its progress."""
    site = Site()
    assert await site.run(message(attempt=attempt)) == [Succeeded()]
    assert site.table.calls == calls
    assert (await site.record()).standing is Standing.DONE
    assert isinstance(site.given[0].entry, Entry) and site.given[0].progress is None


@pytest.mark.parametrize(
    ("changes", "age_s", "outcome", "progress"),
    [
        ({"standing": Standing.DONE}, 0, Succeeded(), None),
        ({"standing": Standing.OPEN, "progress": b"half"}, 0, Succeeded(), b"half"),
        ({"message": WORDS, "progress": b"half"}, 0, Succeeded(), b"half"),
        ({"progress": b"half"}, 60.1, Succeeded(), b"half"),
    ],
)
@simulated
async def test_what_stands_decides(
    changes: dict[str, Any], age_s: float, outcome: Outcome, progress: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Done is done, and told in the log; what is open, our own message's, or too old is taken over where it stopped."""
    caplog.set_level(logging.INFO, "queuebell.ledger")
    site = Site()
    await site.stand(**changes)
    await pass_time(age_s)
    assert await site.run(message(attempt=2)) == [outcome]
    done = changes.get("standing") is Standing.DONE
    assert [each.progress for each in site.given] == ([] if done else [progress])
    assert (await site.record()).holder == ("other" if done else "h1")
    told = [record.getMessage() for record in caplog.records if "came again" in record.getMessage()]
    assert told == ([f"message {WORDS} came again: 'order-7' is done"] if "progress" not in changes else [])


@pytest.mark.parametrize(("left_s", "looks"), [(60.0, [5.25, 10.5, 15.75]), (2.0, [2.1105])])
@simulated
async def test_who_waits_looks_again(left_s: float, looks: list[float], caplog: pytest.LogCaptureFixture) -> None:
    """Every five seconds and a bit, or just after the other's lease; told once, and by a read each."""
    caplog.set_level(logging.INFO, "queuebell.ledger")
    site, asked = Site(), []
    await site.stand()
    await pass_time(60.0 - left_s)
    began = now()

    def wanted() -> bool:
        asked.append(round(now() - began, 4))
        return asked[-1] < 15

    if left_s == 60.0:
        with pytest.raises(NoLongerWanted):
            await site.run(message(attempt=2), wanted=wanted)
        assert site.table.calls == ["get"] * 3
        assert site.called == []
    else:
        assert await site.run(message(attempt=2), wanted=wanted) == [Succeeded()]
    assert [at for at in sorted(set(asked)) if at] == looks
    told = [record.getMessage() for record in caplog.records if record.name == "queuebell.ledger"]
    assert told == [f"1 messages of {QUEUE} wait: somebody works on their keys"]


@simulated
async def test_a_first_attempt_that_meets_another_reads_from_then_on() -> None:
    """Its insert is refused once; nothing is inserted again while somebody else stands there."""
    site = Site()
    await site.stand()
    with pytest.raises(NoLongerWanted):
        await site.run(message(), wanted=lambda: now() < 10)
    assert site.table.calls == ["insert", "get", "get"]
    site.table.calls.clear()
    with pytest.raises(NoLongerWanted):
        await site.run(message(), wanted=lambda: len(site.table.calls) < 1)
    assert site.table.calls == ["insert"]


@simulated
async def test_whoever_was_slower_looks_again_a_moment_later() -> None:
    """After a hundredth of a second and up to a tenth of that: not at once, and not all of them together."""
    site, looked = Site(), []
    await site.stand(standing=Standing.DONE)
    get = site.table.get

    async def noted(partition: str, row: str) -> Entity | None:
        looked.append(now())
        return await get(partition, row)

    site.table.get = noted  # type: ignore[method-assign]
    assert await site.run(message()) == [Succeeded()]
    assert looked == [0.0105]


@simulated
async def test_a_table_that_is_away_is_told_with_what_was_asked_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """Looking, beginning and writing are each tried again, and the log names the key and the fault."""
    site = Site()
    site.table.before = [StoreUnavailable("blind")]

    async def call(given: list[Message]) -> Sequence[Outcome]:
        site.table.before = [StoreUnavailable("deaf")]
        return await always(given)

    get = site.table.get

    async def looked(partition: str, row: str) -> Entity | None:
        found = await get(partition, row)
        site.table.before = [StoreUnavailable("dumb")]
        return found

    site.table.get = looked  # type: ignore[method-assign]
    assert await site.run(message(attempt=2), call=call) == [Succeeded()]
    assert site.table.calls == ["get", "get", "insert", "insert", "replace", "replace"]
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    row = "df8cf80227ec3237922df0ecd88385c546e4a31bdb8127b033f01e6f21f175df"
    assert told == [
        "cannot read the ledger for 'order-7' yet, trying again: blind",
        "cannot begin 'order-7' in the ledger yet, trying again: dumb",
        f"cannot write entry {row} of the ledger ('order-7') yet, trying again: deaf",
    ]


@simulated
async def test_an_insert_whose_answer_was_lost_is_our_own() -> None:
    """It is found a moment later by its holder, and the work begins at once."""
    site = Site()
    site.table.after = [UnknownOutcome("lost")]
    assert await site.run(message()) == [Succeeded()]
    assert now() < 1
    assert (await site.record()).holder == "h1"


@simulated
async def test_of_a_batch_each_goes_its_own_way(caplog: pytest.LogCaptureFixture) -> None:
    """Begun, done, waiting, unreadable, a twin, a key that fails: one outcome each, and the handler sees the begun."""

    def key(given: Message) -> str:
        if given.text() == "odd":
            raise ZeroDivisionError("no key")
        return by_body(given)

    site = Site(key=key)
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


@simulated
async def test_an_entry_is_renewed_at_half_of_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    """While the handler runs, by a task with a name; a renewal that is refused in passing is told, and tried again."""
    site = Site(lease=10.0)
    at: list[float] = []
    names: set[str] = set()
    replace = site.table.replace

    async def noted(partition: str, row: str, data: bytes, etag: str) -> str:
        at.append(now())
        if len(at) == 2:
            raise BadInput("bad_parameter", "not now")
        return await replace(partition, row, data, etag)

    site.table.replace = noted  # type: ignore[method-assign]

    async def call(given: list[Message]) -> Sequence[Outcome]:
        await pass_time(17)
        names.update(task.get_name() for task in asyncio.all_tasks())
        return await always(given)

    assert await site.run(message("k" * 50), call=call) == [Succeeded()]
    assert at == [5.0, 10.0, 15.0, 17.0]
    assert f"ledger-renew[{'k' * 40}]" in names
    await pass_time(0)
    assert not any(task.get_name().startswith("ledger-renew") for task in asyncio.all_tasks())
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line == f"the entry of {'k' * 50!r} could not be renewed: not now"


@pytest.mark.parametrize("count", [1, 2])
@simulated
async def test_a_key_taken_over_ends_the_handler_of_one_message(count: int, caplog: pytest.LogCaptureFixture) -> None:
    """It works in vain; a batch goes on for the others, and only what was taken over has failed."""
    site = Site(lease=10.0)
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
    assert told == ["another attempt has taken over 'order-7'; this one ends"]


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("no")])
@pytest.mark.parametrize("error", [Conflict("theirs"), BadInput("bad_parameter", "odd"), Closed("closed")])
@simulated
async def test_a_last_word_that_cannot_be_written(outcome: Outcome, error: Exception) -> None:
    """Success that nobody can read later is a failed attempt, a failure is one anyhow; a closed ledger is told."""
    site = Site()

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


@pytest.mark.parametrize("trouble", ["none", "taken over", "silent"])
@simulated
async def test_a_handler_that_is_cancelled_lets_go_of_its_keys(trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    """All of them, for half a second at most: a stop does not wait for a table that is away, and says so."""
    site = Site()

    async def call(given: list[Message]) -> Sequence[Outcome]:
        if trouble == "taken over":
            await site.stand("one")
        await pass_time(3)
        site.table.latency = 1e6 if trouble == "silent" else 0.0
        await pass_time(1e6)
        return await always(given)

    running = asyncio.create_task(site.run(message("one"), message("two", id_="2"), call=call), name="handler")
    await pass_time(7)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert now() == (7.5 if trouble == "silent" else 7.0)
    site.table.latency = 0.0
    left = [(await site.record(word)).standing for word in ("one", "two")]
    assert (
        left
        == {
            "none": [Standing.OPEN, Standing.OPEN],
            "taken over": [Standing.BEGUN, Standing.OPEN],
            "silent": [Standing.BEGUN, Standing.BEGUN],
        }[trouble]
    )
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    unheard = "the ledger has not heard that 2 keys are let go of; whoever comes next waits for their leases: "
    assert told == ([unheard + "no answer in time"] if trouble == "silent" else [])


@simulated
async def test_a_stop_while_the_last_words_are_written() -> None:
    """They get half a second more; a success not heard by then has failed, and the stop comes with the next wait."""
    site, told = Site(), []
    words = ["one", "two", "three", "four"]

    async def call(given: list[Message]) -> Sequence[Outcome]:
        site.table.latency = 0.3
        return [Failed("no") if each.text() == "four" else Succeeded() for each in given]

    async def work() -> None:
        told.append(await site.run(*[message(word, id_=word) for word in words], call=call))
        await pass_time(100)

    running = asyncio.create_task(work(), name="handler")
    await pass_time(0.4)
    running.cancel()
    await asyncio.wait([running])
    unheard = Failed("the ledger did not hear of its success before the worker stopped")
    assert told == [[Succeeded(), Succeeded(), unheard, Failed("no")]]
    assert running.cancelled() and now() == 0.9
    site.table.latency = 0.0
    left = [(await site.record(word)).standing for word in words]
    assert left == [Standing.DONE, Standing.DONE, Standing.BEGUN, Standing.BEGUN]


@pytest.mark.parametrize("count", [0, 2])
@simulated
async def test_a_handler_owes_an_outcome_for_each_message(count: int) -> None:
    """Neither fewer nor more are taken: nobody could say which of them belongs to which message."""
    site = Site()

    async def call(given: list[Message]) -> Sequence[Outcome]:
        return [Succeeded()] * count

    with pytest.raises(ValueError, match="zip"):
        await site.run(message(), call=call)
