"""The engine against a naive model of two queues: random histories, failed transactions and restarts among them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from queuebell.bridge.contract.errors import BadInput, QueueNotFound
from queuebell.bridge.queues.base import (
    Claim,
    Counts,
    Depth,
    Extend,
    NewMessage,
    PutReceipt,
    Received,
    Release,
    Settled,
    Settlement,
    StoredMessage,
)
from queuebell.bridge.queues.embedded.committer import Upkeep
from queuebell.bridge.queues.embedded.engine import Engine
from queuebell.bridge.queues.embedded.file import open_memory
from queuebell.bridge.queues.embedded.state import Backlog, Grant, GrantResult
from queuebell.bridge.queues.served import Discarded, Looked
from tests.bridge.queues.clocks import WALL, FakeClock
from tests.support.writers import counts_of

Q = "a/b"
BOTH = (Q, "a/c")
WINDOW_MS = 30
MISMATCH = Settled(False, code="pop_receipt_mismatch")
NOT_FOUND = Settled(False, code="message_not_found")
MADE_UP = [Claim("no id", "no receipt"), Claim("f" * 16, "f" * 16), Claim(f"{1:016x}", "no receipt")]


class Entry(msgspec.Struct):
    """One message of the model; ``key`` is that it was put under."""

    seq: int
    put: NewMessage
    vis: int
    exp: int | None
    ins: int
    receipt: str
    key: str | None
    body: bytes
    n: int = 0
    leased: bool = False

    def seen(self, receipt: str) -> StoredMessage:
        """Return it as a call shows it."""
        exp = None if self.exp is None else date(self.exp)
        return StoredMessage(
            f"{self.seq:016x}", receipt, self.body, self.n, date(self.ins), exp, self.key, self.put.headers
        )


class Key(msgspec.Struct):
    """What was put under a key: until when it is known for sure, and since when its message is gone."""

    digest: bytes
    seq: int
    until: int
    gone_at: int | None = None


class Modelled:
    """One queue of the model."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.keys: dict[str, Key] = {}
        self.metadata: dict[str, str] = {}
        self.paused = False

    def remove(self, seq: int, now: int) -> None:
        """Have a message gone; its key stands on."""
        key = self.entries.pop(seq).key
        if key is not None and self.keys[key].seq == seq:
            self.keys[key].gone_at = now


class Told(msgspec.Struct):
    """What the next backlog of a queue is to tell of the calls of its commit."""

    put: int = 0
    receives: int = 0
    empty: int = 0
    sources: dict[str, tuple[int, int]] = {}


def date(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=ms)


_messages = st.lists(
    st.builds(
        NewMessage,
        st.sampled_from([b"", b"one", b"two"]),
        st.sampled_from([0, 0, 3, 50]),
        st.sampled_from([-1, -1, 1]),
        st.sampled_from([{}, {}, {"tenant": "acme"}]),
    ),
    min_size=1,
    max_size=5,
)
_queue = st.sampled_from([Q, Q, BOTH[1]])
_limit = st.none() | st.integers(0, 4)


class EngineMachine(RuleBasedStateMachine):
    """Most rules are one commit, others share it with the next; some are taken back first, as after a full disk."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.us = 0
        self.last_receipt = 0
        self.connection = open_memory()
        self.engine = self.start()
        self.model: dict[str, Modelled] = {}
        self.seq = 0
        self.claims: list[Claim] = []
        self.leases: list[Claim] = []
        self.open = False
        self.told: dict[str, Told] = {}
        # Whether something was visible when a queue was told last, and what may have changed that unseen.
        self.stood: dict[str, bool] = {}
        self.unsure: set[str] = set()

    def start(self) -> Engine:
        engine = Engine(
            self.connection,
            clock=self.clock,
            wall=self.clock.wall,
            receipts=self.receipt,
            boot="0" * 32,
            put_window_s=WINDOW_MS / 1000,
        )
        # A queue of three is large enough to be removed bit by bit.
        vars(engine.state)["discard"] = functools.partial(engine.state.discard, small=2)
        return engine

    def receipt(self) -> int:
        self.last_receipt += 6
        return self.last_receipt

    def teardown(self) -> None:
        self.connection.close()

    # -- one call, and what all calls have in common -------------------------------------------------------------------

    def do(self, how: str, queue: str, call: Callable[[Engine], Any]) -> Any:
        """Carry out a call; ``how``: alone, after an attempt that is taken back, or in one commit with the next."""
        state = self.engine.state
        for attempt in range(2 if how == "again" and not self.open else 1):
            if not self.open:
                state.tick()
                assert -2 <= state.now - round((WALL + 1000) * 1000) - self.us / 1000 <= 1
                assert 0 <= state.up - state.now <= 1
            try:
                result = call(self.engine)
            except (QueueNotFound, BadInput) as error:
                result = type(error)
            if how == "again" and not self.open and attempt == 0:
                state.rollback()
                assert state.take_grant_results() == []
                self.unsure.update(BOTH)
        self.expire(queue)
        self.open = how == "with next"
        if self.open:
            self.unsure.add(queue)
        return result

    def told_of(self, queue: str) -> Told:
        return self.told.setdefault(queue, Told())

    def commit(self) -> None:
        """Commit what is open; each queue that was touched is told as it stands."""
        self.open = False
        self.engine.state.commit()
        backlogs = self.engine.state.take_backlogs()
        names = [backlog.queue for backlog in backlogs]
        assert len(set(names)) == len(names) and set(names) >= self.told.keys()
        for backlog in backlogs:
            self.check(backlog, self.told.get(backlog.queue, Told()))
        self.told.clear()

    def check(self, backlog: Backlog, told: Told) -> None:
        name, stands = backlog.queue, self.model.get(backlog.queue)
        expected = Backlog(name, False, 0, 0, False, told.put, told.receives, told.empty, None, sources=told.sources)
        if stands is not None:
            counts = self.counts(name)
            assert counts is not None and counts.leased is not None and counts.delayed is not None
            future = [each.exp for each in stands.entries.values() if each.exp is not None]
            if not stands.paused:
                future += [each.vis for each in stands.entries.values() if each.vis > self.now]
            expected = msgspec.structs.replace(
                expected,
                exists=True,
                visible=counts.visible,
                invisible=counts.invisible,
                next_visible_in_ms=self.due_in(min(future, default=None)),
                paused=stands.paused,
                leased=counts.leased,
                delayed=counts.delayed,
                oldest_ms=counts.oldest_ms,
            )
        assert msgspec.structs.replace(backlog, rose=False) == expected
        if backlog.visible and not self.stood.get(name):
            assert backlog.rose
        elif backlog.rose and name not in self.unsure:
            assert not self.stood.get(name)
        self.stood[name] = backlog.visible > 0
        self.unsure.discard(name)

    @property
    def now(self) -> int:
        return self.engine.state.now

    @property
    def up(self) -> int:
        return self.engine.state.up

    def due_in(self, at: int | None) -> int | None:
        return None if at is None else max(1, at - self.up)

    def expire(self, queue: str) -> None:
        stands = self.model.get(queue)
        for each in [] if stands is None else [*stands.entries.values()]:
            if stands is not None and each.exp is not None and each.exp <= self.now:
                stands.remove(each.seq, self.now)
                self.unsure.add(queue)

    def visible(self, queue: str) -> list[Entry]:
        """What may be looked at, in the order of receives."""
        stands = self.model.get(queue)
        entries = [each for each in stands.entries.values() if each.vis <= self.now] if stands else []
        return sorted(entries, key=lambda each: (each.vis, each.seq))

    def given_out(self, queue: str) -> list[Entry]:
        """What a receive could take."""
        stands = self.model.get(queue)
        return self.visible(queue) if stands and not stands.paused else []

    def counts(self, queue: str) -> Counts | None:
        stands = self.model.get(queue)
        if stands is None:
            return None
        later = [each for each in stands.entries.values() if each.vis > self.now]
        given_out = self.given_out(queue)
        leased = sum(each.leased for each in later)
        return Counts(
            len(given_out),
            len(stands.entries) - len(given_out),
            leased=leased,
            delayed=len(later) - leased,
            oldest_ms=self.now - given_out[0].vis if given_out else None,
        )

    def lease(self, entries: list[Entry], messages: list[StoredMessage], until: int) -> None:
        """Have these messages be those entries, leased from now on, under a receipt that nobody had."""
        assert [message.id for message in messages] == [f"{each.seq:016x}" for each in entries]
        for each, message in zip(entries, messages, strict=True):
            assert message.pop_receipt != each.receipt
            each.n, each.vis, each.leased, each.receipt = each.n + 1, until, True, message.pop_receipt
            assert message == each.seen(message.pop_receipt)
            self.claims.append(Claim(message.id, message.pop_receipt))
            self.leases.append(self.claims[-1])

    def add(self, queue: str, put: list[NewMessage], receipts: list[PutReceipt], key: str | None = None) -> None:
        stands = self.model.setdefault(queue, Modelled())
        for message, receipt in zip(put, receipts, strict=True):
            delay = message.visible_after_ms
            seq = int(receipt.id, 16)
            assert seq > self.seq and receipt.visible_in_ms == delay
            self.seq = seq
            exp = None if message.ttl_s < 0 else self.up + message.ttl_s * 1000
            vis = self.up + delay if delay else self.now
            stands.entries[seq] = Entry(seq, message, vis, exp, self.now, receipt.pop_receipt, key, message.body)
            self.claims.append(Claim(receipt.id, receipt.pop_receipt))
        self.told_of(queue).put += len(put)

    def hand_over(self, queue: str, grant: Grant | None, handed: list[GrantResult], put: bool) -> None:
        """Nobody could take anything before: the first ones put. Otherwise those that waited longest."""
        if grant is None:
            assert handed == []
            return
        (hand,) = handed
        given_out = self.given_out(queue)
        assert (hand.queue, hand.session, hand.visible) == (queue, "s", len(given_out))
        self.lease(given_out[: grant.limit] if put else [], hand.messages, self.up + 20)

    # -- rules ---------------------------------------------------------------------------------------------------------

    _how = st.sampled_from(["alone", "alone", "again", "with next"])

    @rule(how=_how, queue=_queue, put=_messages, limit=_limit)
    def put(self, how: str, queue: str, put: list[NewMessage], limit: int | None) -> None:
        grant = None if limit is None else Grant("s", limit, 0.02)
        receipts = self.do(how, queue, lambda engine: engine.put(queue, put, grant))
        self.add(queue, put, receipts)
        self.hand_over(queue, grant, self.engine.state.take_grant_results(), True)

    @rule(
        how=_how,
        queue=_queue,
        put=_messages,
        limit=_limit,
        key=st.sampled_from(["k1", "k2"]),
        create=st.booleans(),
    )
    def put_once(self, how: str, queue: str, put: list[NewMessage], limit: int | None, key: str, create: bool) -> None:
        grant, message = None if limit is None else Grant("s", limit, 0.02), put[0]
        digest = hashlib.sha256(message.body).digest()
        result = self.do(how, queue, lambda engine: engine.put_once(queue, key, digest, message, grant, create))
        handed = self.engine.state.take_grant_results()
        stands = self.model.get(queue)
        if stands is None and not create:
            assert result is QueueNotFound
            return
        known = stands.keys.get(key) if stands else None
        if known is not None and (known.gone_at is None or self.now < known.until):
            assert result is (None if known.digest == digest else BadInput)
        elif known is None or (known.gone_at is not None and self.now > known.gone_at + WINDOW_MS + 1):
            assert isinstance(result, PutReceipt)
        if isinstance(result, PutReceipt):
            if known is not None and stands is not None and known.seq in stands.entries:
                stands.entries[known.seq].key = None
            self.add(queue, [message], [result], key)
            self.model[queue].keys[key] = Key(digest, int(result.id, 16), self.up + WINDOW_MS)
        if result is not BadInput:
            self.hand_over(queue, grant, handed, isinstance(result, PutReceipt))

    @rule(
        how=_how,
        queue=_queue,
        limit=st.integers(1, 6),
        lease=st.sampled_from([1, 20, 1000]),
        source=st.sampled_from([None, None, "broker"]),
    )
    def receive(self, how: str, queue: str, limit: int, lease: int, source: str | None) -> None:
        finds_nothing = False

        def take(engine: Engine) -> Received:
            nonlocal finds_nothing
            finds_nothing = engine.finds_nothing(queue)
            return engine.receive(queue, limit, lease, source)

        received = self.do(how, queue, take)
        stands = self.model.get(queue)
        if stands is None:
            assert received is QueueNotFound and finds_nothing
            return
        expected = self.given_out(queue)[:limit]
        assert not (finds_nothing and expected)
        self.lease(expected, received.messages, self.up + lease)
        given_out = len(self.given_out(queue))
        assert received.depth == Depth(given_out, len(stands.entries) - given_out)
        later = [each for each in stands.entries.values() if each.vis > self.now and not stands.paused]
        assert received.next_visible_in_ms == self.due_in(min((each.vis for each in later), default=None))
        delayed = min((each.vis for each in later if not each.leased), default=None)
        assert received.next_delayed_in_ms == self.due_in(delayed)
        assert received.boot == self.engine.boot
        told = self.told_of(queue)
        told.receives += 1
        told.empty += not expected
        if source is not None:
            found, empty = told.sources.get(source, (0, 0))
            told.sources = {source: (found + bool(expected), empty + (not expected))}

    def drawn(self, data: st.DataObject, most: int) -> list[Claim]:
        newest = self.claims[-12:]
        return data.draw(st.lists(st.sampled_from(newest + newest + MADE_UP), max_size=most))

    @rule(how=_how, queue=_queue, data=st.data(), after=st.sampled_from([0, 7]), body=st.sampled_from([None, b"new"]))
    def settle(self, how: str, queue: str, data: st.DataObject, after: int, body: bytes | None) -> None:
        asked = Settlement(
            delete=self.drawn(data, 5),
            release=[Release(each.id, each.pop_receipt, after, after == 7) for each in self.drawn(data, 2)],
            extend=[Extend(each.id, each.pop_receipt, 0.03, body) for each in self.drawn(data, 2)],
        )
        settling = self.do(how, queue, lambda engine: engine.settle(queue, asked))
        stands = self.model.get(queue)
        if stands is None:
            assert settling is QueueNotFound
            return
        self.told_of(queue)
        if asked.delete and asked.release:
            # What was visible may be deleted, and then the first one released: it rises within the commit.
            self.unsure.add(queue)
        for claim, settled in zip(asked.delete, settling.delete, strict=True):
            entry = self.held(stands, claim, settled)
            if entry is not None:
                stands.remove(entry.seq, self.now)
        for release, settled in zip(asked.release, settling.release, strict=True):
            entry = self.held(stands, release, settled)
            if entry is not None:
                entry.vis, entry.leased = self.up + after if after else self.now, False
                entry.receipt, entry.n = settled.pop_receipt, max(0, entry.n - release.uncounted)
        for extend, settled in zip(asked.extend, settling.extend, strict=True):
            entry = self.held(stands, extend, settled)
            if entry is not None:
                entry.vis, entry.leased, entry.receipt = self.up + 30, True, settled.pop_receipt
                entry.body = entry.body if body is None else body

    def held(self, stands: Modelled, claim: Claim | Release | Extend, settled: Settled) -> Entry | None:
        """Return the message that is held under a claim; where there is none, the answer says why."""
        try:
            entry = stands.entries.get(int(claim.id, 16))
        except ValueError:
            entry = None
        if entry is None or entry.receipt != claim.pop_receipt:
            assert settled == (NOT_FOUND if entry is None else MISMATCH)
            return None
        assert settled.ok and settled.code is None and settled.pop_receipt != claim.pop_receipt
        if not isinstance(claim, Claim):
            assert settled.pop_receipt is not None
            self.claims.append(Claim(claim.id, settled.pop_receipt))
        return entry

    @precondition(lambda self: self.leases)
    @rule(how=_how, queue=_queue, data=st.data(), uncount=st.booleans())
    def reclaim(self, how: str, queue: str, data: st.DataObject, uncount: bool) -> None:
        claims = data.draw(st.lists(st.sampled_from(self.leases[-12:]), min_size=1, max_size=3))
        self.do(how, queue, lambda engine: engine.reclaim(queue, claims, uncount))
        self.told_of(queue)
        stands = self.model.get(queue)
        for claim in claims if stands is not None else ():
            entry = self.model[queue].entries.get(int(claim.id, 16))
            if entry is not None and entry.receipt == claim.pop_receipt:
                entry.vis, entry.receipt = min(entry.vis, self.now), "void"
                entry.n, entry.leased = max(0, entry.n - uncount), False

    @rule(how=_how, queue=_queue, data=st.data())
    def discard(self, how: str, queue: str, data: st.DataObject) -> None:
        """Of those that wait, are delayed or are leased, by the id or the key; a leased one stays."""
        entries = sorted(self.model[queue].entries.values(), key=lambda each: each.seq) if queue in self.model else []
        entry = data.draw(st.sampled_from([None, *entries[:4]]))
        id_ = "f" * 16 if entry is None else entry.key or f"{entry.seq:016x}"
        done = self.do(how, queue, lambda engine: engine.discard(queue, id_, False))
        if queue not in self.model:
            assert done is QueueNotFound
            return
        stands = self.model[queue]
        if entry is None or entry.seq not in stands.entries:
            assert done.outcome == "missing"
        elif entry.leased and entry.vis > self.now:
            assert done == Discarded("leased", f"{entry.seq:016x}")
        else:
            assert done == Discarded("deleted", f"{entry.seq:016x}")
            self.told_of(queue)
            stands.remove(entry.seq, self.now)

    @rule(how=_how, queue=_queue, again=st.sampled_from([None, {}, {"team": "é"}]))
    def create(self, how: str, queue: str, again: dict[str, str] | None) -> None:
        new = self.do(how, queue, lambda engine: engine.create(queue, again))
        assert new is (queue not in self.model)
        self.told_of(queue)
        stands = self.model.setdefault(queue, Modelled())
        stands.metadata = stands.metadata if again is None else again

    @rule(how=_how, queue=_queue)
    def clear(self, how: str, queue: str) -> None:
        stands = self.model.get(queue)
        if self.do(how, queue, lambda engine: engine.clear(queue)) is QueueNotFound:
            assert stands is None
            return
        assert stands is not None
        stands.entries.clear()
        stands.keys.clear()
        self.told_of(queue)

    @rule(how=_how, queue=_queue, paused=st.booleans())
    def pause(self, how: str, queue: str, paused: bool) -> None:
        stands = self.model.get(queue)
        if self.do(how, queue, lambda engine: engine.pause(queue, paused)) is QueueNotFound:
            assert stands is None
            return
        assert stands is not None
        if stands.paused is not paused:
            self.told_of(queue)
            self.stood[queue] = False
        stands.paused = paused

    @rule(how=_how, queue=_queue)
    def delete_queue(self, how: str, queue: str) -> None:
        self.do(how, queue, lambda engine: engine.delete(queue))
        if self.model.pop(queue, None) is not None:
            self.told_of(queue)
            self.unsure.add(queue)

    @rule(how=_how, queue=_queue)
    def refresh(self, how: str, queue: str) -> None:
        self.do(how, queue, lambda engine: engine.refresh(queue))
        self.told_of(queue)

    @rule(us=st.sampled_from([500, 1000, 5000, 20_000, 1_001_000]))
    def time_passes(self, us: int) -> None:
        self.commit()
        self.us += us
        self.clock.now = 1000.0 + self.us / 1e6

    @rule()
    def restart(self) -> None:
        """Everything that counts is in the file."""
        self.commit()
        self.engine = self.start()
        backlogs = self.engine.state.backlogs()
        assert {backlog.queue for backlog in backlogs} == self.model.keys()
        self.stood.clear()
        for backlog in backlogs:
            self.expire(backlog.queue)
            self.check(backlog, Told())
            assert backlog.rose is (backlog.visible > 0)

    @rule()
    def tidy(self) -> None:
        """What is left is nobody's."""
        self.commit()
        upkeep = Upkeep(self.engine.state)
        while self.engine.state.deleted_queue_ids:
            upkeep.tidy()
        (rows,) = self.connection.execute("SELECT COUNT(*) FROM messages").fetchone()
        assert rows == sum(len(stands.entries) for stands in self.model.values())

    # -- whatever has happened -----------------------------------------------------------------------------------------

    @invariant()
    def what_is_told_and_shown_is_the_models(self) -> None:
        if not self.open:
            self.commit()
            self.engine.state.tick()
        engine = self.engine
        for name in BOTH:
            depth, counts = engine.depth(name), engine.counts(name)
            self.expire(name)
            assert counts == self.counts(name)
            assert depth == (None if counts is None else Depth(counts.visible, counts.invisible))
            assert engine.oldest_ms(name) == (None if counts is None else counts.oldest_ms)
            assert engine.exists(name) is (name in self.model)
            stands, queue = self.model.get(name), engine.state.queues.get(name)
            assert engine.paused(name) is (stands is not None and stands.paused)
            assert (queue is None) == (stands is None)
            if queue is not None and stands is not None:
                assert engine.metadata(name) == stands.metadata
                seen = [each.seen("") for each in self.visible(name)]
                assert engine.peek(name, 3) == seen[:3]
                assert self.browsed(name, False) == seen and self.browsed(name, True) == seen[::-1]
                for leased, newest in itertools.product((False, True), repeat=2):
                    self.invisible_are_the_models(name, stands, leased, newest)
                engine.state.flush()
                assert counts_of(queue.tally) == counts_of(engine.state.counted(queue.id))
        listing = [(name, self.model[name].metadata) for name in BOTH if name in self.model]
        assert engine.listing("a/", "", 9) == listing
        assert engine.queues("a/", "", 1) == [name for name, _ in listing[:1]]
        assert engine.queues("a/", Q, 9) == [name for name, _ in listing if name != Q]
        assert engine.queues("a", "", 9) == [name for name, _ in listing] and engine.queues("b", "", 9) == []
        if not self.open:
            self.commit()

    def invisible_are_the_models(self, name: str, stands: Modelled, leased: bool, newest: bool) -> None:
        """By pages of two, and each alone by its id and by its key."""
        place = "running" if leased else "later"
        due = [each for each in stands.entries.values() if each.vis > self.now and each.leased is leased]
        due.sort(key=lambda each: (each.vis, each.seq), reverse=newest)
        found: list[tuple[StoredMessage, int | None]] = []
        following: str | None = f"{2**63 - 1}.0" if newest else "0.0"
        while following is not None:
            vis, _, seq = following.partition(".")
            page = self.engine.browse_invisible(name, 2, (int(vis), int(seq)), newest, leased)
            found += zip(page.messages, page.due_in_ms, strict=True)
            following = page.following
        assert found == [(each.seen(""), self.due_in(each.vis)) for each in due]
        for each in due[:3]:
            looked = Looked(each.seen(""), place, self.due_in(each.vis))
            assert self.engine.look(name, f"{each.seq:016x}") == looked
            assert each.key is None or self.engine.look(name, each.key) == looked
        assert self.engine.look(name, "f" * 16) is self.engine.look(name, "no such key") is None

    def browsed(self, name: str, newest: bool) -> list[StoredMessage]:
        """All pages of two."""
        messages: list[StoredMessage] = []
        after = None
        while True:
            page = self.engine.browse(name, 2, after, newest)
            messages += page.messages
            if page.following is None:
                return messages
            assert len(page.messages) == 2
            vis, _, seq = page.following.partition(".")
            after = (int(vis), int(seq))


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEngine = EngineMachine.TestCase


@contextlib.contextmanager
def expiring(count: int) -> Iterator[Engine]:
    """An engine with so many messages that expire together, one that does not, and one of another queue."""
    clock, connection = FakeClock(), open_memory()
    engine = Engine(connection, clock=clock, wall=clock.wall, receipts=lambda: 6, boot="0" * 32)
    engine.put(Q, [NewMessage(b"x", ttl_s=1)] * count + [NewMessage(b"stays")], None)
    engine.put("a/other", [NewMessage(b"y")], None)
    engine.state.commit()
    engine.state.take_backlogs()
    clock.now += 1.0
    with contextlib.closing(connection):
        yield engine


def rows(engine: Engine) -> int:
    """How many messages are in the table."""
    return int(engine.state.execute("SELECT COUNT(*) FROM messages").fetchone()[0])


@pytest.mark.parametrize("count", [1500, 15_000])
def test_many_that_expire_together_go_in_slices(count: int) -> None:
    """No commit removes more than some, none is given out meanwhile, and what stays rises at the end."""
    with expiring(count) as engine:
        state = engine.state
        left, commits = rows(engine), 0
        while True:
            state.tick()
            assert engine.put("a/other", [NewMessage(b"z")], None)
            received = engine.receive(Q, 32, 1000)
            state.commit()
            commits += 1
            (backlog,) = (each for each in state.take_backlogs() if each.queue == Q)
            assert left - (rows(engine) - 1) <= 1000
            left = rows(engine)
            if received.messages:
                break
            assert (backlog.visible, backlog.rose) == (0, False)
            assert received.depth.visible == 0 and received.depth.invisible > 0
            assert received.next_visible_in_ms == backlog.next_visible_in_ms == 1
            assert engine.peek(Q, 32) == []
        assert [each.body for each in received.messages] == [b"stays"]
        assert commits == -(-count // 1000)
        assert rows(engine) == 2 + commits


def test_a_slice_that_is_taken_back_changes_nothing() -> None:
    """Neither counts nor whether the queue gives something out; a clear in the middle leaves nothing behind."""
    with expiring(2500) as engine:
        state = engine.state
        state.tick()
        engine.refresh(Q)
        state.rollback()
        assert rows(engine) == 2502
        assert not state.queues[Q].behind and state.queues[Q].tally.total == 2501
        state.tick()
        engine.clear(Q)
        state.commit()
        state.tick()
        engine.put(Q, [NewMessage(b"new")], None)
        assert [each.body for each in engine.receive(Q, 32, 1000).messages] == [b"new"]
        state.commit()
