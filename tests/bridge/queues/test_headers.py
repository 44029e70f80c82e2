"""Headers where the store is ours: in older files, in one commit with many, and in what is handed over."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bridge.contract.headers import HEADERS_BYTES_MAX, HEADERS_MAX
from bridge.queues.base import BODY_BYTES_MAX, NewMessage, StoredMessage
from bridge.queues.embedded import file as sqlite_file
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.embedded.sqlite import SqliteStore
from bridge.queues.embedded.terms import Grant, NoRoom
from tests.bridge.queues.clocks import FakeClock
from tests.bridge.queues.ears import Ear
from tests.conformance.headers import HOSTILE

QUEUE = "billing/orders"


class Room:
    """Room for so many bytes, which remembers what it was asked for."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept = 0

    def take(self, size: int) -> bool:
        return size <= self.size

    def keep(self, size: int) -> None:
        self.kept = size


def told(messages: list[StoredMessage]) -> list[tuple[bytes, dict[str, str]]]:
    return [(message.body, message.headers) for message in messages]


async def test_a_file_of_the_version_before_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages are there, without headers, beside new ones that have some, also after a restart."""
    clock = FakeClock()
    path = tmp_path / "queue.db"
    with monkeypatch.context() as before:
        before.setattr(sqlite_file, "STEPS", sqlite_file.STEPS[:3])
        connection, lock = sqlite_file.open_file(path)
        connection.execute("INSERT INTO queues VALUES (1, ?, '{}', 0, 5)", (QUEUE,))
        connection.execute("INSERT INTO messages VALUES (7, 1, 5, NULL, 0, 1, 5, ?)", (b"old" * 10_000,))
        connection.execute("UPDATE clock SET seq=7, queue=1")
        connection.close()
        lock.release()
    async with SqliteStore(path, clock=clock, wall=clock.wall) as store:
        await store.put(QUEUE, [NewMessage("new", headers=HOSTILE)])
        wanted = [(b"old" * 10_000, {}), (b"new", HOSTILE)]
        assert told(await store.peek(QUEUE)) == wanted
    async with SqliteStore(path, clock=clock, wall=clock.wall) as store:
        assert told((await store.receive(QUEUE, 2)).messages) == wanted
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(sqlite_file.STEPS),)
    connection.close()


async def test_each_row_of_a_commit_keeps_its_own() -> None:
    """Some with and some without, delayed and not, over all the sizes of blocks that rows are written in."""
    clock = FakeClock()
    async with MemoryStore("rows", clock=clock, wall=clock.wall) as store:
        for begun in range(0, 128, 32):
            await store.put(
                QUEUE,
                [
                    NewMessage(b"%d" % each, 1000 * (each % 2), headers={"n": str(each)} if each % 3 else {})
                    for each in range(begun, begun + 32)
                ],
            )
        await clock.let_pass(2)
        for _ in range(4):
            for message in (await store.receive(QUEUE, 32)).messages:
                each = int(message.body)
                assert message.headers == ({"n": str(each)} if each % 3 else {})


async def test_a_message_that_is_handed_over_has_its_headers() -> None:
    """In the commit of its put, whether others waited or not, and under a key too."""
    clock = FakeClock()
    async with MemoryStore("handed", clock=clock, wall=clock.wall) as store:
        ear = Ear(Grant("1", 5, 2.0))
        store.observe(ear)
        await store.put(QUEUE, [NewMessage("one", headers=HOSTILE), NewMessage("two")])
        assert told(ear.carried()) == [(b"one", HOSTILE), (b"two", {})]
        await store.put(QUEUE, [NewMessage("waits", headers={"a": "b"})])
        ear.next_grant = Grant("2", 5, 2.0)
        await store.put_once(QUEUE, "key", NewMessage("three", headers=HOSTILE))
        assert told(ear.carried()) == [(b"waits", {"a": "b"}), (b"three", HOSTILE)]


async def test_headers_count_where_room_is_asked_for() -> None:
    """What is read is counted before it is read, and what is kept is what there is."""
    dear = {f"{number:02}": '"' * 126 for number in range(HEADERS_MAX)}
    clock = FakeClock()
    async with MemoryStore("room", clock=clock, wall=clock.wall) as store:
        await store.put(QUEUE, [NewMessage(b"x" * BODY_BYTES_MAX, headers=dear)])
        most = BODY_BYTES_MAX + 2 * HEADERS_BYTES_MAX + 6 * HEADERS_MAX
        with pytest.raises(NoRoom) as refused:
            await store.peek(QUEUE, room=Room(BODY_BYTES_MAX))
        assert BODY_BYTES_MAX + HEADERS_BYTES_MAX < refused.value.size <= most
        # Read for what it really takes, where there is none for the most that it could.
        exact = Room(refused.value.size)
        # By itself: to show how texts as long as these differ takes minutes.
        same = told((await store.receive(QUEUE, room=exact)).messages) == [(b"x" * BODY_BYTES_MAX, dear)]
        assert same
        assert exact.kept == exact.size


def test_headers_count_in_the_log() -> None:
    """Whose length is guessed, so that it is written back into the file in time."""
    clock = FakeClock()
    connection = sqlite_file.open_memory()
    engine = Engine(connection, clock=clock, wall=clock.wall, receipts=lambda: 1, boot="0" * 32)
    engine.put(QUEUE, [NewMessage(b"", headers={"a": "x" * 8000})] * 32, None)
    engine.state.commit()
    assert engine.state.log_pages > 32 * 8000 // 4096
    connection.close()
