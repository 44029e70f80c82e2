"""The engine against a naive model of a queue, with random histories, failed transactions and restarts among them."""

from __future__ import annotations

import sqlite3

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge.contract.errors import QueueNotFound
from bridge.queues.base import Claim, Extend, NewMessage, Release, Settlement
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.file import open_memory
from bridge.queues.embedded.terms import Grant
from bridge.queues.embedded.upkeep import Upkeep
from tests.bridge.queues.clocks import FakeClock

Q = "a/b"


class Entry:
    """One message of the model."""

    def __init__(self, seq: int, vis: int, exp: int | None, receipt: str, body: bytes, n: int = 0) -> None:
        self.seq, self.vis, self.exp, self.receipt, self.body, self.n = seq, vis, exp, receipt, body, n


class EngineMachine(RuleBasedStateMachine):
    """Every rule is one commit; some are taken back first, as after a full disk, and then done again."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.last_receipt = 0
        self.connection: sqlite3.Connection = open_memory()
        self.engine = self.start()
        self.model: dict[int, Entry] | None = None
        self.paused = False
        self.seq = 0
        self.old_claims: list[Claim] = []

    def start(self) -> Engine:
        return Engine(self.connection, clock=self.clock, wall=self.clock.wall, receipts=self.receipt, boot="0" * 32)

    def receipt(self) -> int:
        self.last_receipt += 1
        return self.last_receipt

    def teardown(self) -> None:
        self.connection.close()

    def do(self, fails: bool, operation: str, *args: object) -> object:
        """Run one operation as one commit, after a failed attempt if ``fails``."""
        for attempt in range(1 + fails):
            self.engine.state.tick()
            try:
                result = getattr(self.engine, operation)(*args)
            except QueueNotFound:
                result = QueueNotFound
            if fails and attempt == 0:
                self.engine.state.rollback()
        self.engine.state.commit()
        return result

    @property
    def now(self) -> int:
        return self.engine.state.now

    def expire(self) -> None:
        if self.model is not None:
            self.model = {s: e for s, e in self.model.items() if e.exp is None or e.exp > self.now}

    def given_out(self) -> list[Entry]:
        """What a receive could take."""
        return [] if self.paused else self.visible()

    def visible(self) -> list[Entry]:
        entries = [entry for entry in (self.model or {}).values() if entry.vis <= self.now]
        return sorted(entries, key=lambda entry: (entry.vis, entry.seq))

    @rule(
        count=st.integers(1, 5),
        delay=st.sampled_from([0, 0, 3, 50]),
        ttl=st.sampled_from([-1, -1, 1]),
        limit=st.integers(0, 4),
        fails=st.booleans(),
    )
    def put(self, count: int, delay: int, ttl: int, limit: int, fails: bool) -> None:
        grant = Grant("s", limit, 0.02) if limit else None
        body = b"%d" % self.last_receipt
        receipts = self.do(fails, "put", Q, [NewMessage(body, delay, ttl)] * count, grant)
        handed = self.engine.state.take_handed()
        assert isinstance(receipts, list)
        self.model = {} if self.model is None else self.model
        self.expire()
        for receipt in receipts:
            seq = int(receipt.id, 16)
            assert seq > self.seq
            self.seq = seq
            exp = None if ttl < 0 else self.now + ttl * 1000
            self.model[seq] = Entry(seq, self.now + delay, exp, receipt.pop_receipt, body)
        if grant is None:
            assert handed == []
            return
        (hand,) = handed
        expected = self.given_out()
        assert hand.visible == len(expected)
        # Nobody could take anything before: the first ones put. Otherwise those that waited longest.
        assert [int(m.id, 16) for m in hand.messages] == [e.seq for e in expected[:limit]]
        for message in hand.messages:
            self.lease(message.id, message.pop_receipt, message.dequeue_count, self.now + 20)

    def lease(self, id_: str, receipt: str, count: int, until: int) -> None:
        entry = self.model[int(id_, 16)]
        entry.n += 1
        assert count == entry.n
        entry.receipt, entry.vis = receipt, until
        self.old_claims.append(Claim(id_, receipt))

    @rule(limit=st.integers(1, 6), lease=st.sampled_from([1, 20, 1000]), fails=st.booleans())
    def receive(self, limit: int, lease: int, fails: bool) -> None:
        received = self.do(fails, "receive", Q, limit, lease)
        if self.model is None:
            assert received is QueueNotFound
            return
        self.expire()
        expected = self.given_out()[:limit]
        assert [int(m.id, 16) for m in received.messages] == [entry.seq for entry in expected]
        assert [m.body for m in received.messages] == [entry.body for entry in expected]
        for message in received.messages:
            self.lease(message.id, message.pop_receipt, message.dequeue_count, self.now + lease)
        left = [entry.vis for entry in self.model.values() if entry.vis > self.now]
        visible = len(self.given_out())
        assert (received.depth.visible, received.depth.invisible) == (visible, len(self.model) - visible)
        assert received.next_visible_in_ms == (min(left) - self.now if left and not self.paused else None)

    @precondition(lambda self: self.old_claims)
    @rule(data=st.data(), kind=st.sampled_from(["delete", "release", "extend", "reclaim"]), fails=st.booleans())
    def settle(self, data: st.DataObject, kind: str, fails: bool) -> None:
        claim = data.draw(st.sampled_from(self.old_claims))
        after = data.draw(st.sampled_from([0, 7]))
        if kind == "reclaim":
            self.do(fails, "reclaim", Q, [claim])
            code = None
        else:
            items = {
                "delete": claim,
                "release": Release(claim.id, claim.pop_receipt, after),
                "extend": Extend(claim.id, claim.pop_receipt, 0.03, b"new"),
            }
            settling = self.do(fails, "settle", Q, Settlement(**{kind: [items[kind]]}))
            if self.model is None:
                assert settling is QueueNotFound
                return
            (settled,) = getattr(settling, kind)
            code = settled.code
        self.expire()
        entry = (self.model or {}).get(int(claim.id, 16))
        if entry is None or entry.receipt != claim.pop_receipt:
            if kind != "reclaim":
                assert code == ("message_not_found" if entry is None else "pop_receipt_mismatch")
            return
        assert code is None
        assert self.model is not None
        if kind == "delete":
            del self.model[entry.seq]
        elif kind == "release":
            entry.vis, entry.receipt = self.now + after, settled.pop_receipt
        elif kind == "extend":
            entry.vis, entry.receipt, entry.body = self.now + 30, settled.pop_receipt, b"new"
            self.old_claims.append(Claim(claim.id, settled.pop_receipt))
        else:
            entry.vis, entry.receipt, entry.n = min(entry.vis, self.now), "void", entry.n - 1

    @rule(ms=st.sampled_from([1, 5, 20, 1001]))
    def time_passes(self, ms: int) -> None:
        self.clock.now += ms / 1000

    @rule(fails=st.booleans())
    def clear(self, fails: bool) -> None:
        if self.do(fails, "clear", Q) is not QueueNotFound:
            self.model = {}

    @rule(paused=st.booleans(), fails=st.booleans())
    def pause(self, paused: bool, fails: bool) -> None:
        if self.do(fails, "pause", Q, paused) is QueueNotFound:
            assert self.model is None
            return
        resumed = self.paused and not paused
        self.paused = paused
        self.expire()
        for level in self.engine.state.take_levels():
            assert level.paused is paused
            assert (level.visible, level.invisible) == (
                len(self.given_out()),
                len(self.model or {}) - len(self.given_out()),
            )
            assert not (paused and level.rose)
            assert not resumed or level.rose == bool(self.visible())

    @rule(fails=st.booleans())
    def delete_queue(self, fails: bool) -> None:
        self.do(fails, "delete", Q)
        self.model = None
        self.paused = False

    @rule()
    def restart(self) -> None:
        """Everything that counts is in the file."""
        self.engine = self.start()

    @rule()
    def tidy(self) -> None:
        if self.engine.state.garbage:
            Upkeep(self.engine.state).tidy()

    @invariant()
    def counts_are_those_of_the_table_and_the_model(self) -> None:
        self.engine.state.tick()
        queue = self.engine.state.look(Q)
        self.engine.state.commit()
        self.expire()
        assert (queue is None) == (self.model is None)
        if queue is not None and self.model is not None:
            assert queue.tally.same_counts(self.engine.state.counted(queue.id))
            invisible = len(self.model) - len(self.visible())
            assert (queue.tally.visible, queue.tally.invisible) == (len(self.visible()), invisible)
            assert queue.paused is self.paused
            waiting = "SELECT COUNT(*) FROM messages WHERE q=? AND vis>? AND NOT rcpt & 1"
            where = (queue.id, self.engine.state.now)
            assert queue.waiting == self.engine.state.execute(waiting, where).fetchone()[0]
            given_out = len(self.given_out())
            assert (queue.visible, queue.invisible) == (given_out, len(self.model) - given_out)


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEngine = EngineMachine.TestCase
