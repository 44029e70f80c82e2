"""The writer of the embedded queue goes on after whatever breaks it, and says truly how it stands."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from queuebell.bridge.contract.errors import StoreDamaged, StoreError, StoreFull, StoreUnavailable, UnknownOutcome
from queuebell.bridge.queues.base import Claim, NewMessage, Settlement
from queuebell.bridge.queues.embedded import file as sqlite_file
from queuebell.bridge.queues.embedded import sqlite
from queuebell.bridge.queues.embedded.committer import Call, Commit, Committer
from queuebell.bridge.queues.embedded.engine import Engine
from queuebell.bridge.queues.embedded.file import Reserve, open_memory
from queuebell.bridge.queues.embedded.sqlite import SqliteStore
from tests.support.writers import committer_of, engine_of

Q = "billing/orders"


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """One open store."""
    made = SqliteStore(tmp_path / "queue.db")
    await made.open()
    yield made
    await made.close()


class Breaks:
    """Stands in for a function of the writer, and fails the first ``times`` it is called."""

    def __init__(self, real: Any, error: Exception, times: int = 1) -> None:
        self.real, self.error, self.times, self.calls = real, error, times, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return self.real(*arguments, **named)


async def test_a_disk_that_goes_away_while_room_is_short_does_not_end_the_writer(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where the reserve is looked for, nor where a step of tidying fails otherwise; both are reported."""
    await store.put(Q, [NewMessage(b"x")])
    committer = committer_of(store)
    assert committer.reserve is not None
    stale = OSError(errno.ESTALE, "Stale file handle")
    monkeypatch.setattr(Path, "exists", Breaks(Path.exists, stale, 1_000))
    committer.reserve.short = True
    committer.tidy()
    assert committer.reserve.short is True
    monkeypatch.undo()
    committer.reserve.short = False
    monkeypatch.setattr(committer.upkeep, "tidy", Breaks(committer.upkeep.tidy, stale))
    committer.tidy()
    assert "tidying failed (OSError: [Errno 116] Stale file handle); messages are safe" in str(store.failure())
    await store.put(Q, [NewMessage(b"y")])
    assert store.failure() is None
    assert (await store.receive(Q, 2)).messages[1].body == b"y"


@pytest.mark.parametrize("where", ["run", "_outcome", "untidy"])
async def test_what_breaks_the_writer_costs_the_calls_in_hand_and_is_reported(
    store: SqliteStore, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those in hand are answered, readiness fails until the next commit, and calls that come later are carried out."""
    monkeypatch.setattr(sqlite, "_BROKEN_PAUSE_S", 0.0)
    await store.put(Q, [NewMessage(b"x")])
    committer = committer_of(store)
    if where == "untidy":
        monkeypatch.setattr(type(committer), "untidy", property(Breaks(lambda _: False, RuntimeError("a defect"))))
        await store.put(Q, [NewMessage(b"y")])
    else:
        monkeypatch.setattr(committer, where, Breaks(getattr(committer, where), RuntimeError("a defect")))
        with pytest.raises(UnknownOutcome, match=r"unexpected error in the writer \(RuntimeError: a defect\)"):
            await store.put(Q, [NewMessage(b"y")])
        assert "unexpected error in the writer" in str(store.failure())
    await store.put(Q, [NewMessage(b"z")])
    # The writer wrote of its defect before it took the next call.
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "please report this" in record.getMessage().lower()
    assert store.failure() is None
    depth = await store.depth(Q)
    assert depth is not None and depth.visible == (2 if where == "run" else 3)
    async with asyncio.timeout(60):
        await store.close()


COMMIT, ROLLBACK = "COMMIT", "ROLLBACK"


@pytest.mark.parametrize(
    ("code", "at", "raised", "said"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, COMMIT, UnknownOutcome, "disk I/O error"),
        (sqlite3.SQLITE_IOERR_WRITE, COMMIT, StoreUnavailable, "disk I/O error"),
        (sqlite3.SQLITE_IOERR_FSYNC, "UPDATE clock", StoreUnavailable, "disk I/O error"),
        (sqlite3.SQLITE_FULL, COMMIT, StoreFull, "no space left"),
        (sqlite3.SQLITE_BUSY, COMMIT, StoreUnavailable, "another process has the data file open"),
        (sqlite3.SQLITE_CORRUPT, "INSERT", StoreDamaged, "the data file is damaged (disk I/O error)"),
    ],
)
@pytest.mark.parametrize("rolls_back", [True, False])
def test_a_commit_that_fails_says_whether_it_may_have_been_done(
    code: int, at: str, raised: type[StoreError], said: str, rolls_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Only where its last page may be on the disk is it unknown; the next one that works ends the failure."""
    with contextlib.closing(open_memory()) as connection:
        engine = Engine(connection, clock=lambda: 0.0, wall=lambda: 1.0, receipts=lambda: 2, boot="a" * 32)
        committer = Committer(engine, "here")
        execute, failing = engine.state.execute, True

        def fails(statement: str, *values: Any) -> sqlite3.Cursor:
            if failing and (statement.startswith(at) or (not rolls_back and statement == ROLLBACK)):
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = code
                raise error
            return execute(statement, *values)

        engine.state.execute = fails
        put = Call(engine.put, (Q, [NewMessage(b"x")], None), None, Q)
        told: list[Commit] = []
        committer.run([put], told.append)
        assert type(put.error) is raised and str(put.error) == f"here: {said}"
        # On a full disk it is tried again once the log is shorter.
        attempts = 2 if raised is StoreFull and rolls_back else 1
        assert committer.failure == f"here: {said}" and committer.writes == attempts
        assert told[0].calls == [put]
        assert ("rollback failed too" in caplog.text) is not rolls_back
        assert caplog.text.count(f"here: {said}") == 1
        failing = False
        if not rolls_back:
            connection.rollback()
        committer.run([put], told.append)
        assert put.error is None and committer.failure is None and "here: writes work again" in caplog.text
        assert [(backlog.put, backlog.visible) for backlog in told[1].backlogs] == [
            (1, 1)
        ] and committer.writes == attempts + 1


async def test_a_receive_that_cannot_be_answered_in_memory_is_answered_by_the_writer(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quick way runs on the event loop: a defect there would leave its callers waiting for ever."""
    engine = engine_of(store)
    monkeypatch.setattr(engine, "finds_nothing", Breaks(engine.finds_nothing, RuntimeError("a defect")))
    await store.create(Q, {})
    async with asyncio.timeout(60):
        assert (await store.receive(Q)).messages == []


MIB = 1 << 20
RESERVE = 4 * MIB
Q_FULL_DISK = "billing/big"
BATCHES = 5


class SmallDisk:
    """A disk of ``size`` bytes below one folder, as far as files are given their bytes beforehand; 0 is without end.

    ``held`` is set when room was set aside.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.size = 0
        self.held = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def free(self) -> int:
        """Return what is left of it."""
        return self.size - self.used() if self.size else 1 << 40

    def used(self) -> int:
        """Return what its files have."""
        return sum(each.stat().st_size for each in self.folder.iterdir())

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        """Do as `os.posix_fallocate` does."""
        if size > self.free():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.truncate(descriptor, size)
        self._loop.call_soon_threadsafe(self.held.set)


@pytest_asyncio.fixture
async def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    """A disk that has no end until the test says one, and a small reserve and log for it."""
    found = SmallDisk(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", found.allocate)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=found.free(), f_frsize=1))
    monkeypatch.setattr(sqlite, "Reserve", functools.partial(Reserve, size=RESERVE))
    monkeypatch.setattr(sqlite_file, "_LOG_BYTES", MIB)
    return found


class Times:
    """Time as the test says."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def opened(disk: SmallDisk, times: Times) -> AsyncIterator[SqliteStore]:
    """Open the store of a disk."""
    async with SqliteStore(disk.folder / "queue.db", clock=times, wall=times) as store:
        yield store


async def fill(disk: SmallDisk, times: Times) -> None:
    """Leave some 10 MiB of messages on a disk that has no byte left, the reserve given up as by who filled it."""
    async with opened(disk, times) as store:
        for _ in range(BATCHES):
            await store.put(Q_FULL_DISK, [NewMessage(b"x" * 65_000, 0, 60)] * 32)
    assert Reserve(disk.folder / "queue.db.reserve", RESERVE).release()
    disk.size = disk.used()
    disk.held.clear()


async def handled(store: SqliteStore, _: Times) -> None:
    """Drain it as workers do."""
    while messages := (await store.receive(Q_FULL_DISK, 32)).messages:
        claims = [Claim(each.id, each.pop_receipt) for each in messages]
        await store.settle(Q_FULL_DISK, Settlement(delete=claims))


async def test_room_is_made_while_work_never_stops(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between commits too: after so many of them as are documented puts are taken, however busy it is."""
    times = Times()
    await fill(disk, times)
    # A quiet moment never comes: whoever waits for one waits for ever.
    monkeypatch.setattr(sqlite, "_QUIET_S", 3600.0)
    async with opened(disk, times) as store:
        await handled(store, times)
        for _ in range(4 * (RESERVE // MIB + 8)):
            try:
                await store.put(Q_FULL_DISK, [NewMessage(b"room")])
            except StoreFull:
                await store.depth(Q_FULL_DISK)
            else:
                break
        else:
            raise AssertionError("puts were refused for ever")
