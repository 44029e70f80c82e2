"""Puts that are carried out once, where the store is ours: how long keys are known, and that they cost no more."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bridge.contract.errors import BadInput, StoreUnavailable
from bridge.queues.base import NewMessage, Settlement
from bridge.queues.embedded import file as sqlite_file
from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.embedded.sqlite import SqliteStore
from bridge.queues.embedded.state import State
from bridge.queues.embedded.terms import Grant
from tests.bridge.queues.clocks import FakeClock
from tests.bridge.queues.ears import Ear
from tests.conformance.leases import claim
from tests.support.writers import engine_of

QUEUE = "billing/orders"
ONE = NewMessage(b"one")
WINDOW_S = 600.0


def sqlite(tmp_path: Path, clock: FakeClock) -> SqliteStore:
    return SqliteStore(tmp_path / "queue.db", clock=clock, wall=clock.wall)


async def handle(store: MemoryStore | SqliteStore) -> None:
    """Receive the one visible message and delete it."""
    (message,) = (await store.receive(QUEUE, 32)).messages
    await store.settle(QUEUE, Settlement(delete=[claim(message)]))


async def test_keys_outlive_a_restart(tmp_path: Path) -> None:
    """Handled before it or not: the same put is not carried out again, and other bodies are refused."""
    clock = FakeClock()
    async with sqlite(tmp_path, clock) as store:
        await store.put_once(QUEUE, "handled", ONE)
        await handle(store)
        await store.put_once(QUEUE, "waiting", ONE)
    async with sqlite(tmp_path, clock) as store:
        assert store.remembered == 2
        assert await store.put_once(QUEUE, "handled", ONE) is None
        assert await store.put_once(QUEUE, "waiting", ONE) is None
        with pytest.raises(BadInput):
            await store.put_once(QUEUE, "waiting", NewMessage(b"two"))
        (message,) = (await store.receive(QUEUE, 32)).messages
        assert message.key == "waiting"


async def test_a_key_is_known_for_its_window_and_as_long_as_its_message() -> None:
    """To the millisecond: a handled one until the window is over, one that waits until it was handled."""
    clock = FakeClock()
    async with MemoryStore("window", clock=clock, wall=clock.wall) as store:
        await store.put_once(QUEUE, "handled", ONE)
        await handle(store)
        await store.put_once(QUEUE, "waiting", ONE)
        clock.now += WINDOW_S - 0.01
        assert await store.put_once(QUEUE, "handled", ONE) is None
        clock.now += 0.02
        assert await store.put_once(QUEUE, "handled", NewMessage(b"two")) is not None
        assert await store.put_once(QUEUE, "waiting", ONE) is None
        clock.now += 10 * WINDOW_S
        assert await store.put_once(QUEUE, "waiting", ONE) is None


async def test_what_expired_is_forgotten_after_its_window() -> None:
    """A message that nobody took in time was still put: only the window counts."""
    clock = FakeClock()
    async with MemoryStore("expired", clock=clock, wall=clock.wall) as store:
        brief = NewMessage(b"one", ttl_s=10)
        assert await store.put_once(QUEUE, "brief", brief) is not None
        clock.now += 20
        assert await store.put_once(QUEUE, "brief", brief) is None
        clock.now += WINDOW_S
        assert await store.put_once(QUEUE, "brief", brief) is not None


async def test_keys_do_not_pile_up() -> None:
    """Each put forgets more of what is over than it adds; what waits is kept."""
    clock = FakeClock()
    async with MemoryStore("piling", clock=clock, wall=clock.wall) as store:
        for number in range(10):
            await store.put_once(QUEUE, f"stays{number}", ONE)
        await store.pause(QUEUE)
        for number in range(100):
            await store.put_once("billing/others", f"k{number}", ONE)
        await store.clear("billing/others")
        assert store.remembered == 110
        clock.now += WINDOW_S + 1
        for number in range(40):
            await store.put_once("billing/others", f"l{number}", ONE)
        assert store.remembered == 50
        for number in range(10):
            assert await store.put_once(QUEUE, f"stays{number}", ONE) is None


async def test_keys_are_forgotten_between_calls(tmp_path: Path) -> None:
    """Where puts have ended, the upkeep forgets as soon as anything is written; and counts as the table does."""
    clock = FakeClock()
    store = sqlite(tmp_path, clock)
    async with store:
        for number in range(20):
            await store.put_once(QUEUE, f"k{number}", ONE)
        await store.clear(QUEUE)
        clock.now += WINDOW_S + 1
        while store.remembered:
            await store.put(QUEUE, [ONE])
    connection = sqlite3.connect(tmp_path / "queue.db")
    assert connection.execute("SELECT COUNT(*) FROM once").fetchone() == (0,)
    connection.close()


async def test_a_file_of_the_version_before_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages are there, without keys, and it takes puts that are carried out once."""
    clock = FakeClock()
    path = tmp_path / "queue.db"
    with monkeypatch.context() as before:
        before.setattr(sqlite_file, "STEPS", sqlite_file.STEPS[:1])
        connection, lock = sqlite_file.open_file(path)
        connection.execute("INSERT INTO queues VALUES (1, ?, '{}', 0)", (QUEUE,))
        connection.execute("INSERT INTO messages VALUES (7, 1, 5, NULL, 0, 1, 5, ?)", (b"old",))
        connection.execute("UPDATE clock SET seq=7, queue=1")
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        connection.close()
        lock.release()
    async with sqlite(tmp_path, clock) as store:
        assert store.made(QUEUE) == 0
        await store.put_once(QUEUE, "new", ONE)
        found = (await store.receive(QUEUE, 32)).messages
        assert [(message.body, message.key) for message in found] == [(b"old", None), (b"one", "new")]
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(sqlite_file.STEPS),)
    connection.close()


async def test_a_put_that_failed_leaves_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that failed took the key along with the message, also in memory."""
    clock = FakeClock()
    faults: list[Exception] = []
    commit = State.commit

    def failing(state: State) -> bool:
        if faults:
            state.flush()
            raise faults.pop()
        return commit(state)

    monkeypatch.setattr(State, "commit", failing)
    async with MemoryStore("failing", clock=clock, wall=clock.wall) as store:
        await store.put(QUEUE, [NewMessage(b"zero")])
        faults.append(StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            await store.put_once(QUEUE, "key", ONE)
        assert faults == []
        assert store.remembered == 0
        assert await store.put_once(QUEUE, "key", NewMessage(b"two")) is not None
        assert store.remembered == 1
        assert [message.body for message in await store.peek(QUEUE)] == [b"zero", b"two"]


async def test_a_message_that_is_handed_over_tells_its_key() -> None:
    """In the commit of its put, whether others waited or not; and a put that was known hands over nothing."""
    clock = FakeClock()
    async with MemoryStore("handing", clock=clock, wall=clock.wall) as store:
        ear = Ear(Grant("1", 5, 2.0))
        store.observe(ear)
        await store.put_once(QUEUE, "first", ONE)
        assert [message.key for message in ear.carried()] == ["first"]
        ear.next_grant = Grant("2", 5, 2.0)
        commits = len(ear.levels)
        assert await store.put_once(QUEUE, "first", ONE) is None
        assert (ear.handed[-1].session, ear.carried()) == ("2", [])
        # Its level is not told: nobody is woken.
        assert len(ear.levels) == commits
        await store.put(QUEUE, [NewMessage(b"plain")])
        ear.next_grant = Grant("3", 5, 2.0)
        await store.put_once(QUEUE, "second", ONE)
        assert [message.key for message in ear.carried()] == [None, "second"]
        ear.next_grant = Grant("4", 5, 2.0)
        with pytest.raises(BadInput):
            await store.put_once(QUEUE, "second", NewMessage(b"other"))
        assert (ear.handed[-1].session, ear.carried()) == ("4", [])


async def test_only_what_has_keys_is_asked_for_them() -> None:
    """Neither a queue that never had one nor a page without messages costs a look; a batch costs one."""
    async with MemoryStore("looks") as store:
        await store.put(QUEUE, ["one", "two"])
        await store.put_once("billing/once", "key", "one")
        await store.put("billing/once", ["two"])
        heard: list[str] = []
        engine_of(store).state.connection.set_trace_callback(heard.append)
        assert len((await store.receive(QUEUE, 2)).messages) == 2
        assert (await store.browse("billing/once", 2)).following is None
        assert [each.key for each in (await store.receive("billing/once", 2)).messages] == ["key", None]
        assert (await store.browse("billing/once", 2)).messages == []
        assert sum("FROM once" in line for line in heard) == 2
