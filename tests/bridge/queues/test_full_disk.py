"""A full disk on which the queue is drained takes puts again by itself, however it was drained, and after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from bridge.contract.errors import QueueNotFound, StoreFull
from bridge.queues.base import Claim, NewMessage, Settlement
from bridge.queues.embedded import calls, sqlite
from bridge.queues.embedded import file as sqlite_file
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.reserve import Reserve
from bridge.queues.embedded.sqlite import SqliteStore
from bridge.queues.embedded.state import State
from bridge.queues.embedded.upkeep import Upkeep

MIB = 1 << 20
RESERVE = 4 * MIB
Q = "billing/big"
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
            await store.put(Q, [NewMessage(b"x" * 65_000, 0, 60)] * 32)
    assert Reserve(disk.folder / "queue.db.reserve", RESERVE).give_up()
    disk.size = disk.used()
    disk.held.clear()


async def handled(store: SqliteStore, _: Times) -> None:
    """Drain it as workers do."""
    while messages := (await store.receive(Q, 32)).messages:
        claims = [Claim(each.id, each.pop_receipt) for each in messages]
        await store.settle(Q, Settlement(delete=claims))


async def cleared(store: SqliteStore, _: Times) -> None:
    """Drain it at once; the rows go bit by bit later."""
    await store.clear(Q)


async def deleted(store: SqliteStore, _: Times) -> None:
    """Remove the queue."""
    await store.delete(Q)


async def expired(store: SqliteStore, times: Times) -> None:
    """Let its messages expire; somebody looks."""
    times.now += 3600.0
    with contextlib.suppress(QueueNotFound):
        await store.receive(Q)


WAYS = [handled, cleared, deleted, expired]


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("drain", WAYS)
async def test_draining_makes_room(
    disk: SmallDisk, drain: Callable[[SqliteStore, Times], Awaitable[None]], restart: bool
) -> None:
    """Nobody asks for anything meanwhile; then the first put is taken."""
    times = Times()
    await fill(disk, times)
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened(disk, times))
        assert "no room left" in (store.failure() or "")
        with pytest.raises(StoreFull, match="no room left"):
            await store.put(Q, [NewMessage(b"no room")])
        if restart:
            # Drained while what makes room is kept from doing so, as by a kill.
            with pytest.MonkeyPatch.context() as kept:
                kept.setattr(
                    Upkeep, "tidy", lambda self: setattr(self, "_vacuuming", False) or self._state.garbage.clear()
                )
                await drain(store, times)
                await stack.aclose()
            store = await stack.enter_async_context(opened(disk, times))
        else:
            await drain(store, times)
        async with asyncio.timeout(30):
            await disk.held.wait()
        await store.depth(Q)
        assert store.failure() is None, "nobody has to put something to find out"
        await store.put(Q, [NewMessage(b"room")])
        (message,) = (await store.receive(Q)).messages
        assert message.body == b"room"
        assert disk.free() >= 0, "it was made of the disk that there is"


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
                await store.put(Q, [NewMessage(b"room")])
            except StoreFull:
                await store.depth(Q)
            else:
                break
        else:
            raise AssertionError("puts were refused for ever")


async def test_what_is_left_in_the_queue_keeps_its_room(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half drained there is not room enough; nothing is lost, nothing runs on, and the rest of it makes it."""
    times = Times()
    await fill(disk, times)
    disk.size -= 5 * MIB
    committers: set[calls.Committer] = set()
    run = calls.Committer.run

    def noted(committer: calls.Committer, *asked: Any) -> None:
        committers.add(committer)
        run(committer, *asked)

    monkeypatch.setattr(calls.Committer, "run", noted)
    async with opened(disk, times) as store:
        kept = (await store.receive(Q, 32, 3600.0)).messages
        while messages := (await store.receive(Q, 32)).messages:
            claims = [Claim(each.id, each.pop_receipt) for each in messages]
            await store.settle(Q, Settlement(delete=claims))
        (committer,) = committers
        async with asyncio.timeout(30):
            while committer.untidy:
                await store.depth(Q)
        with pytest.raises(StoreFull):
            await store.put(Q, [NewMessage(b"no room")])
        claims = [Claim(each.id, each.pop_receipt) for each in kept]
        assert all(each.ok for each in (await store.settle(Q, Settlement(delete=claims))).delete)
        async with asyncio.timeout(30):
            await disk.held.wait()
        await store.put(Q, [NewMessage(b"room")])


async def test_the_reserve_is_given_up_where_the_log_alone_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may be short when another program takes the last byte: a delete then gets what was set aside for it."""
    async with SqliteStore(tmp_path / "queue.db") as store:
        await store.put(Q, [NewMessage(b"x")])
        (message,) = (await store.receive(Q)).messages
        reserve = tmp_path / "queue.db.reserve"
        real = State.commit

        def commit(self: State) -> bool:
            if self.connection.in_transaction and reserve.stat().st_size:
                self.execute("PRAGMA max_page_count=1")
                self.execute("CREATE TABLE more (x)")
            return real(self)

        monkeypatch.setattr(State, "commit", commit)
        claim = Claim(message.id, message.pop_receipt)
        (settled,) = (await store.settle(Q, Settlement(delete=[claim]))).delete
        assert settled.ok
        assert reserve.stat().st_size == 0


def test_a_step_that_fails_is_not_repeated_without_end(tmp_path: Path) -> None:
    """Tidying that finds no room for itself waits for the next commit that works."""
    from bridge.queues.embedded.file import open_file

    connection, lock = open_file(tmp_path / "queue.db")
    engine = Engine(connection, clock=Times(), wall=Times(), receipts=lambda: 7, boot="a" * 32)
    reserve = Reserve(tmp_path / "queue.db.reserve", RESERVE)
    reserve.hold()
    reserve.give_up()
    committer = calls.Committer(engine, "here", reserve)
    assert committer.untidy
    committer.upkeep.tidy = lambda: connection.execute("no SQL")  # type: ignore[method-assign, assignment, return-value]
    committer.tidy()
    assert committer.upkeep.untidy
    assert not committer.untidy
    committer.run([calls.Call(engine.probe, (), None)], lambda _: None)
    connection.close()
    lock.release()
