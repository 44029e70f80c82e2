"""The store on a file: group commit, full disks, restarts, crashes, and space given back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio

from bridge.contract.errors import Closed, QueueNotFound, StoreFull, StoreUnavailable
from bridge.queues.base import Claim, Extend, NewMessage, Release, Settlement, Settling
from bridge.queues.embedded.calls import Committer
from bridge.queues.embedded.sqlite import SqliteStore
from tests.bridge.queues.clocks import FakeClock
from tests.bridge.queues.ears import Ear
from tests.support.writers import counts_of, engine_of

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


async def let_go(store: SqliteStore) -> None:
    """Wait until the writer has let the engine go, which it does after it told of its commit."""
    async with asyncio.timeout(100):
        while store._in_use.locked():
            await asyncio.sleep(0)


async def test_calls_that_wait_share_one_commit(store: SqliteStore) -> None:
    """However many callers, one transaction takes all that wait (group commit)."""
    heard = statements(store)
    tasks = [asyncio.create_task(store.put(f"billing/q{n % 3}", [NewMessage(b"x")]), name=f"put{n}") for n in range(60)]
    await asyncio.gather(*tasks)
    commits = heard.count("COMMIT")
    assert heard.count("BEGIN IMMEDIATE") == commits
    assert 1 <= commits <= 3
    assert sum(line.startswith("UPDATE clock") for line in heard) == commits


async def test_calls_of_one_turn_are_one_commit(store: SqliteStore) -> None:
    """What is asked for before the loop turns again reaches the writer together: the first call does not go alone."""
    ear = Ear()
    store.observe(ear)

    async def put() -> None:
        # Gives up the interpreter's lock, as reading a socket does: a writer that has been called would go now.
        hashlib.sha256(bytes(1 << 21)).digest()
        await store.put(Q, [NewMessage(b"x")])

    await asyncio.gather(*(put() for _ in range(16)))
    assert ear.commits == 1


async def test_a_settle_finds_its_rows_by_number(store: SqliteStore) -> None:
    """However many claims, no statement walks the index of the whole queue: a backlog would stop every settle."""
    await store.put(Q, [NewMessage(b"x")] * 32)
    held = (await store.receive(Q, 32)).messages
    heard = statements(store)
    await store.settle(Q, Settlement(delete=[Claim(message.id, message.pop_receipt) for message in held]))
    engine_of(store).state.connection.set_trace_callback(None)
    looked = [line for line in heard if "FROM messages" in line]
    assert looked
    for line in looked:
        ((*_, plan),) = engine_of(store).state.execute(f"EXPLAIN QUERY PLAN {line}").fetchall()
        assert "INTEGER PRIMARY KEY" in plan, plan


async def test_one_refusal_spoils_no_other_call(store: SqliteStore) -> None:
    """In a group each call has its own outcome."""
    answers = await asyncio.gather(
        store.put(Q, [NewMessage(b"x")]),
        store.receive("billing/unknown"),
        store.put(Q, [NewMessage(b"y")]),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [list, QueueNotFound, list]


async def test_an_empty_receive_runs_no_statement(store: SqliteStore) -> None:
    """Looking at an empty queue costs neither SQL nor disk."""
    await store.put(Q, [NewMessage(b"x", 1000)])
    heard = statements(store)
    assert (await store.receive(Q, 32, 1.0)).messages == []
    assert await store.depth(Q) is not None
    assert heard == []


async def test_an_empty_receive_does_not_go_to_the_writer(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known without a statement is answered on the loop, also that there is no queue; and it is told."""
    ear = Ear()
    store.observe(ear)
    await store.create(Q)
    await let_go(store)
    asked: list[object] = []
    monkeypatch.setattr(store, "_calls", SimpleNamespace(put=asked.append))
    commits = ear.commits
    answers = await asyncio.gather(
        store.receive(Q), store.receive_stamped(Q), store.receive("billing/unknown"), return_exceptions=True
    )
    assert asked == []
    assert isinstance(answers[2], QueueNotFound)
    assert ear.commits == commits + 1
    assert (ear.levels[-1].queue, ear.levels[-1].receives, ear.levels[-1].empty) == (Q, 2, 2)
    monkeypatch.undo()


async def test_a_receive_stays_behind_what_was_asked_for_before_it(store: SqliteStore) -> None:
    """A put that is under way is found by the receive that comes after it, whoever asks and whenever the loop turns."""
    await store.create(Q)
    for turns in range(1, 8):
        putting = asyncio.create_task(store.put(Q, [NewMessage(b"x")]), name="put")
        for _ in range(turns):
            await asyncio.sleep(0)
        received = await store.receive(Q)
        await putting
        assert len(received.messages) == 1, turns


async def test_a_receive_leaves_the_engine_to_whoever_uses_it(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the writer tidies, an empty receive waits for it as every call does."""
    tidying, go, tidy = threading.Event(), threading.Event(), Committer.tidy

    def slowly(committer: Committer) -> None:
        tidying.set()
        assert go.wait(30)
        tidy(committer)

    monkeypatch.setattr(Committer, "tidy", slowly)
    await asyncio.gather(*(store.put(Q, [NewMessage(b"x")] * 32) for _ in range(40)))
    await store.clear(Q)
    assert await asyncio.to_thread(tidying.wait, 30)
    receiving = asyncio.create_task(store.receive(Q), name="receive")
    for _ in range(8):
        await asyncio.sleep(0)
    assert not receiving.done()
    go.set()
    assert (await receiving).messages == []


async def test_what_came_due_or_expired_is_the_writers(store: SqliteStore, clock: FakeClock) -> None:
    """Time alone makes a message visible, or has rows to remove; a receive at that moment is no empty one."""
    await store.put(Q, [NewMessage(b"x", 1000), NewMessage(b"y", 0, 2)])
    assert [message.body for message in (await store.receive(Q, 2, 60.0)).messages] == [b"y"]
    assert (await store.receive(Q, 2)).messages == []
    await clock.let_pass(1.1)
    assert [message.body for message in (await store.receive(Q, 2, 60.0)).messages] == [b"x"]
    await clock.let_pass(1.0)
    await let_go(store)
    heard: list[tuple[str, str]] = []
    engine_of(store).state.connection.set_trace_callback(
        lambda line: heard.append((threading.current_thread().name, line))
    )
    assert (await store.receive(Q, 2)).messages == []
    assert any(line.startswith("DELETE FROM messages") for _, line in heard)
    assert {thread for thread, _ in heard} == {"queuebell-writer"}


async def test_deletes_of_one_commit_share_a_statement(store: SqliteStore) -> None:
    """Each has its own outcome all the same: a stranger, an old receipt, one named twice, a queue that is not there."""
    await store.put(Q, [NewMessage(b"x")] * 8)
    await store.put("billing/other", [NewMessage(b"x")])
    held = [Claim(message.id, message.pop_receipt) for message in (await store.receive(Q, 8)).messages]
    (other,) = (await store.receive("billing/other")).messages

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


async def test_a_cancelled_call_is_carried_out(store: SqliteStore) -> None:
    """Cancelling leaves the outcome unknown; here it is that the put happened."""
    task = asyncio.create_task(store.put(Q, [NewMessage(b"x")]), name="put")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    depth = await store.depth(Q)
    assert depth.visible == 1


async def test_close_carries_out_what_waits(path: Path, clock: FakeClock) -> None:
    """Calls before close are answered and on the disk, calls after it refused."""
    store = SqliteStore(path, clock=clock, wall=clock.wall)
    await store.open()
    tasks = [asyncio.create_task(store.put(Q, [NewMessage(b"x")]), name=f"put{n}") for n in range(20)]
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(Closed):
        await store.put(Q, [NewMessage(b"x")])
    assert len(await asyncio.gather(*tasks)) == 20
    assert not path.with_name(WHERE + "-wal").exists()
    again = SqliteStore(path, clock=clock, wall=clock.wall)
    depth = await again.depth(Q)
    await again.close()
    assert depth.visible == 20


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
    assert sum(level.put for level in ear.levels) == 1
    await limit_pages(store, -1)
    await store.put(Q, big)
    assert store.failure() is None
    assert [m.body for m in await store.peek(Q)] == [b"x" * 60_000]


async def test_a_rise_is_told_although_the_commit_failed(store: SqliteStore, clock: FakeClock) -> None:
    """Time passes whether or not the disk is full: what came due is told."""
    ear = Ear()
    store.observe(ear)
    await store.put(Q, [NewMessage(b"x", 10)])
    await limit_pages(store, 0)
    clock.now += 0.010
    ear.levels.clear()
    with pytest.raises(StoreFull):
        await store.put(Q, [NewMessage(b"x" * 60_000)])
    assert [(level.visible, level.rose, level.put) for level in ear.levels] == [(1, True, 0)]
    await limit_pages(store, -1)


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


async def test_everything_is_there_after_a_restart(store: SqliteStore, path: Path, clock: FakeClock) -> None:
    """Bodies, leases, delays, expiry, counts, metadata, receipts."""
    await store.create(Q, {"a": "b"})
    await store.put(Q, [NewMessage(b"leased"), NewMessage(b"free"), NewMessage(b"later", 8000)])
    await store.put(Q, [NewMessage(b"expires", 0, 1)])
    (leased,) = (await store.receive(Q, 1, 5.0)).messages
    await store.close()
    clock.now += 1.0
    again = SqliteStore(path, clock=clock, wall=clock.wall)
    await again.open()
    (level,) = again.levels()
    assert (level.visible, level.invisible, level.rose, level.next_visible_in_ms) == (1, 2, True, 4000)
    assert (await again.standing(Q))[0] == {"a": "b"}
    assert [m.body for m in (await again.receive(Q, 5, 1.0)).messages] == [b"free"]
    settling = await again.settle(Q, Settlement(delete=[Claim(leased.id, leased.pop_receipt)]))
    assert settling.delete[0].ok
    await again.close()


async def test_a_pause_survives_a_restart_and_so_does_its_end(store: SqliteStore, path: Path, clock: FakeClock) -> None:
    """Also with messages that were cleared in between, which gives the queue another number."""
    await store.put(Q, [NewMessage(b"gone")])
    await store.pause(Q)
    await store.clear(Q)
    await store.put(Q, [NewMessage(b"a"), NewMessage(b"b", 50)])
    await store.close()
    clock.now += 1.0
    again = SqliteStore(path, clock=clock, wall=clock.wall)
    await again.open()
    (level,) = again.levels()
    assert (level.paused, level.visible, level.invisible, level.rose) == (True, 0, 2, False)
    assert level.next_visible_in_ms is None
    assert (await again.receive(Q, 5, 1.0)).messages == []
    await again.pause(Q, False)
    await again.close()
    third = SqliteStore(path, clock=clock, wall=clock.wall)
    await third.open()
    (level,) = third.levels()
    assert (level.paused, level.visible, level.invisible, level.rose) == (False, 2, 0, True)
    await third.close()


async def test_a_pause_that_cannot_be_written_is_taken_back(store: SqliteStore, path: Path) -> None:
    """The caller hears of it, and the queue gives out as before."""
    await store.put(Q, [NewMessage(b"a")])
    path.rename(path.with_suffix(".away"))
    with pytest.raises(StoreUnavailable):
        await store.pause(Q)
    path.with_suffix(".away").rename(path)
    assert [m.body for m in (await store.receive(Q, 5, 1.0)).messages] == [b"a"]


async def test_numbers_are_never_given_twice(store: SqliteStore, path: Path, clock: FakeClock) -> None:
    """An id outlives its message: a stale claim must never meet a newer one."""
    (first,) = await store.put(Q, [NewMessage(b"x")])
    await store.clear(Q)
    await store.delete(Q)
    await store.close()
    again = SqliteStore(path, clock=clock, wall=clock.wall)
    (second,) = await again.put(Q, [NewMessage(b"y")])
    assert second.id > first.id
    await again.close()


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


CHILD = """
import asyncio, sys
from bridge.queues.base import NewMessage
from bridge.queues.embedded.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    number = 0
    while True:
        await store.put("billing/orders", [NewMessage(b"%d" % (number + n)) for n in range(8)])
        number += 8
        print(number, flush=True)

asyncio.run(main())
"""


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


async def test_space_is_given_back(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a big clear, the file shrinks; calls are answered meanwhile."""
    monkeypatch.setattr("bridge.queues.embedded.upkeep._FREE_PAGES", 64)
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


async def test_what_a_clear_left_is_removed_after_a_restart(path: Path, clock: FakeClock) -> None:
    """A crash between clearing and removing brings nothing back."""
    store = SqliteStore(path, clock=clock, wall=clock.wall)
    for _ in range(40):
        await store.put(Q, [NewMessage(b"x")] * 32)
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        # As a clear leaves it: the queue goes on under another number.
        connection.execute("UPDATE queues SET id=77")
        connection.execute("UPDATE clock SET queue=77")
    again = SqliteStore(path, clock=clock, wall=clock.wall)
    depth = await again.depth(Q)
    assert (depth.visible, depth.invisible) == (0, 0)
    await again.put(Q, [NewMessage(b"new")])
    async with asyncio.timeout(300):
        while engine_of(again).state.garbage:
            await again.depth(Q)
            await asyncio.sleep(0.02)
    assert engine_of(again).state.execute("SELECT COUNT(*) FROM messages").fetchone() == (1,)
    await again.close()


async def test_no_descriptor_stays_behind(path: Path, clock: FakeClock) -> None:
    """Opening and closing leaves nothing open."""
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        store = SqliteStore(path, clock=clock, wall=clock.wall)
        await store.put(Q, [NewMessage(b"x")])
        await store.close()
    assert len(list(Path("/dev/fd").iterdir())) == before


async def test_time_really_passes(path: Path) -> None:
    """With the real clock a delayed message is there when the level said, at millisecond visibilities."""
    store, ear = SqliteStore(path), Ear()
    await store.open()
    store.observe(ear)
    await store.put(Q, [NewMessage(b"x", 5)])
    loop = asyncio.get_running_loop()
    for _ in range(10):
        level = ear.levels[-1]
        if level.visible:
            break
        assert level.next_visible_in_ms is not None
        loop.call_later((level.next_visible_in_ms + 1) / 1000, store.reread, Q)
        await ear.next_level()
    (message,) = (await store.receive(Q, 1, 1.0)).messages
    settling = await store.settle(Q, Settlement(release=[Release(message.id, message.pop_receipt)]))
    assert settling.release[0].ok
    await store.close()


async def test_a_restart_knows_the_leased_from_the_delayed(tmp_path: Path) -> None:
    """A lease that was extended is one, what was given back for later is none, and a delete takes off the right one."""
    store = SqliteStore(tmp_path / "queue.db")
    await store.put(Q, [NewMessage(b"1"), NewMessage(b"2"), NewMessage(b"later", 60_000)])
    one, two = (await store.receive(Q, 2, 60.0)).messages
    longer = Extend(one.id, one.pop_receipt, 90.0)
    settled = await store.settle(Q, Settlement(extend=[longer], release=[Release(two.id, two.pop_receipt, 90_000)]))
    await store.close()
    store = SqliteStore(tmp_path / "queue.db")
    told = await store.counts(Q)
    assert told is not None
    assert (told.visible, told.leased, told.delayed) == (0, 1, 2)
    receipt = settled.extend[0].pop_receipt
    assert receipt is not None
    await store.settle(Q, Settlement(delete=[Claim(one.id, receipt)]))
    told = await store.counts(Q)
    assert told is not None
    assert (told.leased, told.delayed) == (0, 2)
    await store.close()
