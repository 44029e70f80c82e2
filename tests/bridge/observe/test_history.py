"""What a bridge keeps of each queue's past: compared with every single fact, and across a restart."""

from __future__ import annotations

import asyncio
import datetime
import logging
import pathlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuebell.bridge.contract.cluster import Past, decode_cluster_message, encode_cluster_message
from queuebell.bridge.contract.jobs import Jobs, Spread
from queuebell.bridge.contract.times import rfc3339
from queuebell.bridge.observe import history
from queuebell.bridge.observe.facts import Fact, JobsTold, QueueMoved, ReceivesTold, SessionClosed, SessionOpened
from queuebell.bridge.observe.history import SPANS, TIERS, History, HistoryRow
from queuebell.bridge.observe.slices import at_once
from queuebell.bridge.service.history_file import HistoryFile
from tests.support.sim_loop import simulated

SUMS = ("put", "receives", "empty", "done", "failed", "dead", "started", "waited_ms", "handling_ms")
NOON = 1_800_014_400.0
Q = "billing/orders"


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


def text(at: float) -> str:
    return rfc3339(datetime.datetime.fromtimestamp(at, datetime.UTC))


def ended(done: int = 0, **failures: int) -> JobsTold:
    waited = Spread([0] * 8 + [done], 400 * done) if done else Spread()
    outcomes = {"done": done, "failed": sum(failures.values()) - ("Dead" in failures), "buried": "Dead" in failures}
    return JobsTold(Q, "handle", Jobs(outcomes, failures, handling=Spread([done], 7 * done), waiting=waited))


FACTS = st.one_of(
    st.builds(lambda put, seen: QueueMoved(Q, seen, 0, put, 2, 1), st.integers(0, 9), st.integers(0, 50)),
    st.builds(lambda found, empty: ReceivesTold(Q, "trigger", found, empty), st.integers(0, 9), st.integers(0, 9)),
    st.builds(lambda done, failed: ended(done, Late=failed), st.integers(0, 9), st.integers(0, 9)),
)


def summed(facts: list[Fact]) -> dict[str, int]:
    moved = [fact for fact in facts if isinstance(fact, QueueMoved)]
    told = [fact for fact in facts if isinstance(fact, ReceivesTold)]
    jobs = [fact.more for fact in facts if isinstance(fact, JobsTold)]
    started = sum(sum(each.waiting.counts) for each in jobs)
    return {
        "put": sum(fact.put for fact in moved),
        "receives": sum(fact.receives for fact in moved) + sum(fact.found + fact.empty for fact in told),
        "empty": sum(fact.empty for fact in (*moved, *told)),
        "done": sum(each.outcomes["done"] for each in jobs),
        "failed": sum(sum(each.failures.values()) for each in jobs),
        "dead": 0,
        "started": started,
        "waited_ms": 400 * started,
        "handling_ms": 7 * started,
        "waiting": max((fact.visible for fact in moved), default=0),
        "longest_ms": 1000 if started else 0,
    }


@given(st.lists(st.tuples(st.sampled_from([0, 1, 4, 59, 61, 900, 3600, 86_400]), FACTS), max_size=30))
def test_each_step_holds_what_happened_in_it(happened: list[tuple[int, Fact]]) -> None:
    """For every span, and after a restart too."""
    clock = Clock()
    kept = History(clock)
    at: list[tuple[float, Fact]] = []
    for later, fact in happened:
        clock.now += later
        kept(fact)
        at.append((clock.now, fact))
    restored = History(clock)
    restored.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(at_once(kept.save())), type=history.Saved))
    for span in SPANS:
        step_s, rows, _ = TIERS[span]
        newest = int(clock.now) // step_s
        steps: dict[int, list[Fact]] = {}
        for when, fact in at:
            steps.setdefault(int(when) // step_s, []).append(fact)
        expected: list[HistoryRow] = []
        left = 0
        for slot, facts in sorted(steps.items()):
            # What is left stays until something says otherwise.
            left = [left, *(fact.visible for fact in facts if isinstance(fact, QueueMoved))][-1]
            counts = {**summed(facts), "left": left}
            if newest - rows < slot <= newest and any(counts.values()):
                expected.append(HistoryRow(at=text(slot * step_s), **counts))
        past = kept.read(Q, span)
        assert past.rows == expected
        assert sum(each.count for each in past.failures) == sum(
            fact.more.failures["Late"]
            for when, fact in at
            if isinstance(fact, JobsTold)
            and int(when) // 300 >= max((newest - rows + 1) * step_s, int(clock.now) - 86_400 + 300) // 300
        )
        if at:
            assert restored.read(Q, span) == past
    assert (Q in kept) is bool(happened)


def test_failures_are_told_apart_by_class_and_time() -> None:
    """Eight by name for each queue; what failed a day ago is gone."""
    clock = Clock()
    kept = History(clock)
    kept(ended(1, **{f"E{n}": n for n in range(1, 11)}, Dead=1))
    clock.now += 600
    kept(ended(E1=3))
    (row, _) = kept.read(Q, "1h").rows
    assert (row.done, row.failed, row.dead, row.longest_ms) == (1, 56, 1, 1000)
    rows = [(each.at[11:16], each.failure, each.count) for each in kept.read(Q, "1h").failures]
    early = text(NOON)[11:16]
    assert rows[:9] == [(early, f"E{n}", n) for n in range(1, 9)] + [(early, "other", 9 + 10 + 1)]
    assert rows[9:] == [(text(NOON + 600)[11:16], "E1", 3)]
    assert [each.failure for each in kept.read(Q, "5m").failures] == ["E1"]
    clock.now -= 302  # a clock that is put back a little costs nothing
    kept(ended(E1=1))
    assert kept.read(Q, "5m").failures[0].count == 2
    assert len(kept.read(Q, "1h").rows) == 2
    clock.now += 87_000
    kept(ended(E2=1))
    assert [(each.failure, each.count) for each in kept.read(Q, "7d").failures] == [("E2", 1)]


def test_the_busiest_queues_have_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busier one takes the place of the idlest at the next review, and not before."""
    monkeypatch.setattr(history, "QUEUES_MAX", 2)
    clock = Clock()
    kept = History(clock)
    for name, count in (("a/one", 5), ("a/two", 2), ("a/three", 3)):
        for _ in range(count):
            kept(QueueMoved(name, 1, 0, 1, 0, 0))
    assert [name in kept for name in ("a/one", "a/two", "a/three")] == [True, True, False]
    clock.now += 900
    kept(QueueMoved("a/one", 1, 0, 1, 0, 0))
    assert [name in kept for name in ("a/one", "a/two", "a/three")] == [True, False, True]
    assert kept.read("a/three", "7d").rows == []


def test_marks_say_what_was_done_and_by_whom() -> None:
    clock = Clock()
    kept = History(clock, lambda session: (Q, "a/other") if session == 7 else ())
    kept.mark("bridge started")
    clock.now += 10
    kept.mark("paused", "alice", Q)
    assert [(each.what, each.by) for each in kept.read(Q, "5m").marks] == [("bridge started", ""), ("paused", "alice")]
    assert [each.what for each in kept.read("a/other", "5m").marks] == ["bridge started"]
    kept(SessionOpened(7, "shop", "listener", 2))
    kept(SessionClosed(7, "shop", "bye"))
    kept(SessionClosed(8, "unknown", "bye"))
    clock.now += 295
    marks = [each.what for each in kept.read(Q, "5m").marks]
    assert marks == ["paused", "worker shop came", "worker shop went: bye"] and "a/other" not in kept


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), FACTS), max_size=20), st.sampled_from([0, 50, 5000]))
def test_members_of_a_cluster_show_the_same(happened: list[tuple[bool, int, Fact]], ahead: int) -> None:
    """Whoever it was told; also if their clocks differ, which moves what happened at the other by that at most."""
    clocks = Clock(), Clock()
    members = [History(clock, lambda _: (Q,)) for clock in clocks]
    clocks[1].now += ahead

    def tell() -> None:
        for one, other in (members, members[::-1]):
            step, queues = one.take()
            past = Past(boot="0" * 32, step=step, queues=queues)
            told = decode_cluster_message(encode_cluster_message(past))
            assert isinstance(told, Past)
            other.add_past(told.step, told.queues)

    tell()
    for at_second, later, fact in [(False, 0, ended(1)), *happened]:
        members[at_second](msgspec.structs.replace(fact, visible=0) if isinstance(fact, QueueMoved) else fact)
        tell()
        for clock in clocks:
            clock.now += later
    members[0].mark("paused", "clerk", Q)
    members[1](SessionOpened(1, "shop", "websocket", 1))
    tell()
    one, other = (member.read(Q, "7d") for member in members)
    assert {name: sum(getattr(row, name) for row in one.rows) for name in SUMS} == {
        name: sum(getattr(row, name) for row in other.rows) for name in SUMS
    }
    assert sum(row.count for row in one.failures) == sum(row.count for row in other.failures)
    assert members[0].failed(Q) == members[1].failed(Q) and members[0].failed() == members[1].failed()
    assert sorted((mark.what, mark.by) for mark in one.marks) == [("paused", "clerk"), ("worker shop came", "")]
    assert sorted((mark.what, mark.by) for mark in other.marks) == [("paused", "clerk"), ("worker shop came", "")]
    if ahead == 0:
        assert one.rows == other.rows


async def test_a_restart_keeps_it(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be read or written costs the history only, and says so."""
    file = tmp_path / "history.msgpack"
    first = History()
    kept = HistoryFile(tmp_path / "history.msgpack", first)
    await kept.read()
    kept.start()
    first(QueueMoved(Q, 1, 0, 7, 0, 0))
    first(ended(Late=3))
    await kept.stop()
    assert file.stat().st_mode & 0o777 == 0o600
    second = History()
    again = HistoryFile(tmp_path / "history.msgpack", second)
    await again.read()
    again.start()
    assert [row.put for row in second.read(Q, "7d").rows] == [7] and second.failed() == second.failed(Q) == 3
    await again.stop()
    whole = file.read_bytes()
    newer = msgspec.msgpack.encode(msgspec.structs.replace(at_once(first.save()), version=2))
    short = at_once(first.save())
    short.queues[Q].values = b"short"
    endless = at_once(first.save())
    endless.queues[Q].values = b"\x00\x00\xc0\x7f" * (len(endless.queues[Q].values) // 4)
    later = at_once(first.save())
    later.queues[Q].since = 1e300
    strange = (short, endless, later)
    for damaged in (b"", whole[:-3], b"\xc1", newer, *map(msgspec.msgpack.encode, strange)):
        file.write_bytes(damaged)
        third = History()
        other = HistoryFile(tmp_path / "history.msgpack", third)
        caplog.clear()
        await other.read()
        other.start()
        assert "starts empty" in caplog.text and Q not in third
        await other.stop()
    file.unlink()
    file.mkdir()
    (file / "in the way").touch()
    third(QueueMoved(Q, 1, 0, 7, 0, 0))
    with caplog.at_level(logging.WARNING):
        blocked = HistoryFile(tmp_path / "history.msgpack", third)
        await blocked.read()
        blocked.start()
        await blocked.stop()
    assert "cannot be written; no message is affected" in caplog.text
    assert third.changed and [path.name for path in tmp_path.iterdir()] == ["history.msgpack"]


@simulated
async def test_a_disk_that_hangs_is_waited_for_at_a_stop_for_ten_seconds(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    first = History()
    kept = HistoryFile(tmp_path / "history.msgpack", first)
    kept.start()
    first(QueueMoved(Q, 1, 0, 7, 0, 0))
    monkeypatch.setattr(asyncio, "to_thread", hangs)
    before = asyncio.get_running_loop().time()
    await kept.stop()
    assert asyncio.get_running_loop().time() - before == pytest.approx(10, abs=0.1)
    assert "the disk does not answer" in caplog.text
