"""The store on a file: group commit, full disks, restarts, crashes, and space given back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from queuebell.bridge.contract.errors import (
    ConfigurationError,
    QueueNotFound,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreOwned,
    StoreUnavailable,
)
from queuebell.bridge.queues.base import Claim, NewMessage, Settlement, Settling
from queuebell.bridge.queues.embedded import file as sqlite_file
from queuebell.bridge.queues.embedded.file import messages_in, open_file, open_to_others
from queuebell.bridge.queues.embedded.sqlite import SqliteStore
from tests.bridge.queues.clocks import FakeClock
from tests.bridge.queues.ears import Ear
from tests.support.writers import counts_of, engine_of


def modes(folder: Path) -> dict[str, int]:
    """The permissions of all that stands in a folder."""
    return {each.name: each.stat().st_mode & 0o777 for each in folder.iterdir()}


HOLDER = """
import asyncio, sys
from queuebell.bridge.queues.embedded.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await store.close()

asyncio.run(main())
"""


CHILD = """
import asyncio, sys
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.embedded.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    number = 0
    while True:
        await store.put("billing/orders", [NewMessage(b"%d" % (number + n)) for n in range(8)])
        number += 8
        print(number, flush=True)

asyncio.run(main())
"""


Q = "billing/orders"
WHERE = "queue.db"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / WHERE


@pytest_asyncio.fixture
async def store(path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(path, clock=clock, wall=clock.wall)
    await made.open()
    yield made
    await made.close()


def statements(store: SqliteStore) -> list[str]:
    """Return a list that fills with every statement from now on."""
    heard: list[str] = []
    engine_of(store).state.connection.set_trace_callback(heard.append)
    return heard


async def limit_pages(store: SqliteStore, spare: int) -> None:
    """Leave room for ``spare`` more pages in the file, as a full disk would; -1 lifts the limit."""
    execute = engine_of(store).state.execute
    (pages,) = execute("PRAGMA page_count").fetchone()
    execute(f"PRAGMA max_page_count={2**30 if spare < 0 else pages + spare}").fetchone()


async def test_deletes_of_one_commit_share_a_statement(store: SqliteStore) -> None:
    """Each has its own outcome all the same: a stranger, an old receipt, one named twice, a queue that is not there."""
    await store.put(Q, [NewMessage(b"x")] * 8)
    await store.put("billing/other", [NewMessage(b"x")])
    held = [Claim(message.id, message.pop_receipt) for message in (await store.receive(Q, 8)).messages]
    (other,) = (await store.receive("billing/other")).messages
    # Calls that came together lately are waited for; the first of those that came one by one would be alone.
    await asyncio.gather(*(store.receive("billing/other") for _ in range(9)))

    def deleting(queue: str, *claims: Claim) -> asyncio.Task[Settling]:
        return asyncio.create_task(store.settle(queue, Settlement(delete=claims)), name="settle")

    heard = statements(store)
    asked = [
        deleting(Q, held[0]),
        deleting(Q, Claim(held[1].id, "0" * 16)),
        deleting(Q, Claim("f" * 16, "0" * 16)),
        deleting(Q, held[2], held[0], held[3]),
        deleting(Q, held[1]),
        deleting("billing/unknown", held[4]),
        deleting("billing/unknown", held[5]),
        deleting("billing/other", Claim(other.id, other.pop_receipt)),
        deleting(Q, Claim(other.id, other.pop_receipt)),
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    codes = [
        [settled.code or "ok" for settled in answer.delete] if isinstance(answer, Settling) else type(answer)
        for answer in answers
    ]
    assert codes == [
        ["ok"],
        ["pop_receipt_mismatch"],
        ["message_not_found"],
        ["ok", "message_not_found", "ok"],
        ["ok"],
        QueueNotFound,
        QueueNotFound,
        ["ok"],
        ["message_not_found"],
    ]
    assert heard.count("COMMIT") == 1
    assert sum(line.startswith("DELETE FROM messages") for line in heard) == 3
    depth = await store.depth(Q)
    assert depth is not None and (depth.visible, depth.invisible) == (0, 4)


async def test_a_full_disk_fails_what_needs_room_and_nothing_else(store: SqliteStore, path: Path) -> None:
    """507 for the puts, everything acknowledged stays, and with room again all goes on."""
    ear = Ear()
    store.observe(ear)
    await store.put(Q, [NewMessage(b"kept")])
    await limit_pages(store, 2)
    big = [NewMessage(b"x" * 60_000)]
    answers = await asyncio.gather(
        store.receive(Q, 1, 5.0), store.put(Q, big), store.put("billing/other", big), return_exceptions=True
    )
    assert [type(answer).__name__ for answer in answers] == ["Received", "StoreFull", "StoreFull"]
    assert isinstance(answers[1], StoreFull)
    assert answers[1].status == 507
    assert str(path) in (store.failure() or "")
    # Counts are those of the table, after a failed commit too.
    engine = engine_of(store)
    assert counts_of(engine.state.queues[Q].tally) == counts_of(engine.state.counted(engine.state.queues[Q].id))
    assert await store.depth("billing/other") is None
    assert sum(backlog.put for backlog in ear.backlogs) == 1
    await limit_pages(store, -1)
    await store.put(Q, big)
    assert store.failure() is None
    assert [m.body for m in await store.peek(Q)] == [b"x" * 60_000]


async def test_a_file_that_was_removed_takes_nothing(store: SqliteStore, path: Path, clock: FakeClock) -> None:
    """Nothing is acknowledged into a file that nobody can find again; readiness tells it without any call."""
    await store.put(Q, [NewMessage(b"x")])
    assert store.failure() is None
    path.rename(path.with_name("moved.db"))
    clock.now += 60
    assert store.failure() is None  # asking tries the file; the answer comes after
    assert await store.depth(Q) is not None
    assert store.failure() is not None
    with pytest.raises(StoreUnavailable):
        await store.put(Q, [NewMessage(b"y")])
    path.with_name("moved.db").rename(path)
    clock.now += 60
    store.failure()
    depth = await store.depth(Q)
    assert store.failure() is None
    assert depth.visible == 1


@pytest.mark.parametrize("jump", [-1e6, -1.0, 0.0, 1e6])
async def test_a_wall_clock_that_jumps_moves_nothing(
    store: SqliteStore, path: Path, clock: FakeClock, jump: float
) -> None:
    """While running it is not asked; at start time goes on from the file's newest, so a lease lasts no longer (O2)."""
    asked = clock.wall()
    await store.put(Q, [NewMessage(b"x")])
    await store.receive(Q, 1, 10.0)
    await store.close()
    later = FakeClock()
    again = SqliteStore(path, clock=later, wall=lambda: asked + jump)
    received = await again.receive(Q, 1, 10.0)
    if jump > 0:
        assert len(received.messages) == 1
    else:
        assert received.messages == []
        assert received.next_visible_in_ms == 10_000
        later.now += 10.0
        (message,) = (await again.receive(Q, 1, 10.0)).messages
        assert message.dequeue_count == 2
        # Dates do not go back either.
        (receipt,) = await again.put(Q, [NewMessage(b"y")])
        assert [m.inserted_at >= message.inserted_at for m in await again.peek(Q)] == [True]
        assert receipt.id > message.id
    await again.close()


async def test_space_is_given_back(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a big clear, the file shrinks; calls are answered meanwhile."""
    monkeypatch.setattr("queuebell.bridge.queues.embedded.committer._FREE_PAGES", 64)
    body = b"x" * 8000
    for _ in range(50):
        await store.put(Q, [NewMessage(body)] * 32)
    await store.put("billing/kept", [NewMessage(b"kept")])
    await store.close()
    before = path.stat().st_size
    assert before > 50 * 32 * len(body)
    async with SqliteStore(path) as again:
        await again.clear(Q)
        async with asyncio.timeout(300):
            while path.stat().st_size >= before / 4:
                assert await again.depth(Q) is not None
                await asyncio.sleep(0.02)
        assert engine_of(again).state.execute("SELECT COUNT(*) FROM messages").fetchone() == (1,)
        assert [m.body for m in await again.peek("billing/kept")] == [b"kept"]


async def fill(path: Path, count: int = 64) -> None:
    store = SqliteStore(path)
    for _ in range(count // 32):
        await store.put(Q, [NewMessage(b"x" * 500)] * 32)
    await store.close()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def one_line(error: BaseException, path: Path) -> bool:
    text = str(error)
    return "\n" not in text and str(path) in text


async def refused(path: Path, expected: type[Exception]) -> Exception:
    """Open and expect a refusal; the file stays as it was, and nothing is left open or locked."""
    before = digest(path)
    store = SqliteStore(path)
    with pytest.raises(expected) as caught:
        await store.open()
    await store.close()
    assert digest(path) == before
    assert one_line(caught.value, path)
    return caught.value


async def test_a_file_with_broken_pages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    await fill(path, 640)
    data = bytearray(path.read_bytes())
    data[4096 : 20 * 4096] = b"\xa5" * (19 * 4096)
    path.write_bytes(data)
    await refused(path, StoreDamaged)


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A file of a later version is left to that version, and the error names both."""
    path = tmp_path / "queue.db"
    await fill(path)
    newest = len(sqlite_file.STEPS)
    # The header has it without a sign.
    for version, said in ((newest + 1, newest + 1), (99, 99), (-1, 2**32 - 1)):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version={version}")
        error = await refused(path, ConfigurationError)
        assert f"schema {said}, this one knows {newest}" in str(error)


async def test_the_messages_of_a_file_that_nobody_serves_are_counted(tmp_path: Path) -> None:
    """Nothing is made where there is none; what cannot be read is named, and whether it is damaged."""
    path = tmp_path / "odd?name#.db"
    assert messages_in(path) == 0 and not path.exists()
    await fill(path)
    assert messages_in(path) == 64
    path.write_bytes(b"these are my notes" * 100)
    with pytest.raises(StoreDamaged) as damaged:
        messages_in(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreUnavailable) as unreadable:
        messages_in(path)
    assert one_line(damaged.value, path) and one_line(unreadable.value, path)


async def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A file stands where the directory should be, or a directory where the file or its lock should."""
    (tmp_path / "file").write_bytes(b"")
    store = SqliteStore(tmp_path / "file" / "queue.db")
    with pytest.raises(StoreUnavailable, match=r"/file: File exists"):
        await store.open()
    await store.close()
    store = SqliteStore(tmp_path)
    with pytest.raises(StoreError) as caught:
        await store.open()
    await store.close()
    assert one_line(caught.value, tmp_path)
    (tmp_path / "queue.db.lock").mkdir()
    store = SqliteStore(tmp_path / "queue.db")
    with pytest.raises(StoreUnavailable, match=r"queue\.db\.lock: Is a directory"):
        await store.open()
    await store.close()


async def test_settings_are_checked(tmp_path: Path) -> None:
    """``synchronous`` is one of three words."""
    store = SqliteStore(tmp_path / "queue.db", synchronous="OFF")
    with pytest.raises(ConfigurationError):
        await store.open()


def test_migration_goes_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older file is brought up to date, a step that fails leaves the file at the version before."""
    path = tmp_path / "queue.db"
    one = sqlite_file.STEPS[0]
    monkeypatch.setattr(sqlite_file, "STEPS", (one,))
    connection, lock = sqlite_file.open_file(path)
    connection.close()
    lock.release()
    broken = ("CREATE TABLE third (x)", "this is no SQL")
    monkeypatch.setattr(sqlite_file, "STEPS", (one, ("CREATE TABLE second (x)",), broken))
    with pytest.raises(StoreUnavailable):
        sqlite_file.open_file(path)
    monkeypatch.setattr(sqlite_file, "STEPS", (one, ("CREATE TABLE second (x)",)))
    connection, lock = sqlite_file.open_file(path)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    version = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    lock.release()
    assert {"messages", "second"} <= tables
    assert "third" not in tables
    assert version == (2,)


async def test_kill_9_loses_nothing_acknowledged(path: Path) -> None:
    """What a process was told is on the disk is there after it was killed, and nobody else's lock is in the way."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, str(path), stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    acknowledged = 0
    while acknowledged < 400:
        acknowledged = int(await child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    rest = await child.stdout.read()
    await child.wait()
    acknowledged = max([acknowledged, *(int(line) for line in rest.split(b"\n")[:-1])])
    store = SqliteStore(path)
    found: list[int] = []
    while messages := (await store.receive(Q, 32, 60.0)).messages:
        found += [int(message.body) for message in messages]
    await store.close()
    # Puts are all or none: at most the one under way is there without having been acknowledged.
    assert found == list(range(len(found)))
    assert len(found) in (acknowledged, acknowledged + 8)


async def test_a_second_process_is_refused_by_name(tmp_path: Path) -> None:
    """One owner at a time; the next one may come when it is gone."""
    path = tmp_path / "queue.db"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "open\n"
        store = SqliteStore(path)
        with pytest.raises(StoreOwned) as caught:
            await store.open()
        assert str(holder.pid) in str(caught.value) and "--data" in str(caught.value)
        with pytest.raises(StoreOwned):
            await store.put(Q, [NewMessage(b"x")])
        holder.communicate("\n")
    # The same store may try again.
    await store.put(Q, [NewMessage(b"x")])
    await store.close()


async def test_a_defect_in_one_operation_ends_neither_writer_nor_others(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unforeseen exception goes to its caller alone, and its half-done work is taken back."""
    await store.put(Q, [NewMessage(b"x")])
    engine = engine_of(store)

    def broken(*args: object) -> None:
        engine.put(Q, [NewMessage(b"half")], None)
        raise ZeroDivisionError

    monkeypatch.setattr(engine, "peek", broken)
    answers = await asyncio.gather(store.put(Q, [NewMessage(b"y")]), store.peek(Q), return_exceptions=True)
    assert [type(answer) for answer in answers] == [list, ZeroDivisionError]
    depth = await store.depth(Q)
    assert depth.visible == 2


def test_a_folder_that_is_open_is_said(tmp_path: Path) -> None:
    """Only where others can come to something in it; closing either is enough."""
    folder = tmp_path / "data"
    assert open_to_others(folder) == ""
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    assert open_to_others(folder) == ""
    connection, lock = open_file(folder / "queue.db")
    connection.close()
    lock.release()
    assert open_to_others(folder) == ""
    (folder / "queue.db").chmod(0o644)
    assert "every user of this machine" in open_to_others(folder)
    folder.chmod(0o750)
    assert open_to_others(folder) == ""
    (folder / "queue.db").chmod(0o600)
    folder.chmod(0o757)
    assert "replace" in open_to_others(folder)


async def test_what_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    """From its birth: the folder, the file, its log, its lock, and the room that is set aside, whatever the umask."""
    before = os.umask(0)
    try:
        folder = tmp_path / "new" / "data"
        store = SqliteStore(folder / "queue.db")
        await store.open()
        try:
            await store.put("a/b", [b"secret"])
            found = modes(folder)
            assert {"queue.db", "queue.db-wal", "queue.db.lock", "queue.db.reserve"} <= found.keys()
            assert set(found.values()) == {0o600}
            assert folder.stat().st_mode & 0o777 == 0o700
            assert folder.parent.stat().st_mode & 0o777 == 0o755
        finally:
            await store.close()
    finally:
        os.umask(before)


async def test_a_second_store_in_this_process_is_refused(tmp_path: Path) -> None:
    first, second = SqliteStore(tmp_path / "queue.db"), SqliteStore(tmp_path / "queue.db")
    await first.open()
    with pytest.raises(StoreOwned):
        await second.open()
    await second.close()
    await first.put(Q, [NewMessage(b"x")])
    await first.close()
