"""The operations of the embedded queues on one SQLite connection, each within the open transaction.

The caller calls `State.tick` before and `State.commit` after a group of operations, and answers only then. An
operation that raises `QueuebellError` has changed nothing, so the other operations of its commit are not affected.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from queuebell.bridge.contract.errors import BadInput, QueueNotFound
from queuebell.bridge.contract.headers import HEADERS_BYTES_MAX, HEADERS_MAX
from queuebell.bridge.queues.base import (
    BODY_BYTES_MAX,
    NEVER,
    PUT_WINDOW_S,
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
    Settling,
    StoredMessage,
)
from queuebell.bridge.queues.checked import CONFLICT
from queuebell.bridge.queues.embedded.state import EMPTY, Grant, GrantResult, Queue, State, Value
from queuebell.bridge.queues.limits import lease_ms
from queuebell.bridge.queues.served import Browsed, Discarded, Looked, NoRoom, ReadRoom, Stamped

_log = logging.getLogger("queuebell.store")

_encode = msgspec.json.Encoder().encode
_Row = tuple[int, int, int | None, int, bytes, bytes | None]

_SELECT_VISIBLE = "SELECT seq, n, exp, ins, body, headers FROM messages WHERE q=? AND vis<=? ORDER BY vis, seq LIMIT ?"
_SELECT_SIZES = (
    "SELECT length(body) + ifnull(length(headers), 0) FROM messages WHERE q=? AND vis<=? ORDER BY vis, seq LIMIT ?"
)
_BROWSE = (
    "SELECT seq, n, exp, ins, body, headers, vis FROM messages WHERE q=? AND vis<=? AND (vis, seq)>(?, ?) "
    "ORDER BY vis, seq LIMIT ?"
)
_BROWSE_BACK = (
    "SELECT seq, n, exp, ins, body, headers, vis FROM messages WHERE q=? AND vis<=? AND (vis, seq)<(?, ?) "
    "ORDER BY vis DESC, seq DESC LIMIT ?"
)
# With two bounds below SQLite would search by the first, and step over all rows in between.
_INVISIBLE = "SELECT vis, seq, rcpt FROM messages WHERE q=? AND (vis, seq)>(?, ?) ORDER BY vis, seq LIMIT ?"
_INVISIBLE_BACK = (
    "SELECT vis, seq, rcpt FROM messages WHERE q=? AND (vis, seq)<(?, ?) AND vis>? ORDER BY vis DESC, seq DESC LIMIT ?"
)
_BROWSED_MAX = 1024
"""Messages of either state that one call looks at for those of one: it takes a few milliseconds at most."""
_ONE = "SELECT seq, n, exp, ins, body, headers, vis, rcpt FROM messages WHERE seq=? AND q=?"
_LEASE = "UPDATE messages SET vis=?, rcpt=?, n=n+1 WHERE seq=?"
_DELETE = "DELETE FROM messages WHERE seq=? AND q=? AND rcpt=? RETURNING vis, exp"
# The lowest bit of a receipt is set for a lease, so that a row shows whether its time is a delay.
_LEASED = 1
_SELECT_HELD = "SELECT vis FROM messages WHERE seq=? AND q=? AND rcpt=?"
_SELECT_ANY = "SELECT 1 FROM messages WHERE seq=? AND q=?"
_MOVE = "UPDATE messages SET vis=?, rcpt=? WHERE seq=?"
_MOVE_BODY = "UPDATE messages SET vis=?, rcpt=?, body=? WHERE seq=?"
_RESTORE = "UPDATE messages SET vis=?, rcpt=?, n=max(n-?, 0) WHERE seq=?"
_NAMES = "SELECT name FROM queues WHERE name>? AND name>=? AND name<? ORDER BY name LIMIT ?"
_NAMES_AND_METADATA = _NAMES.replace("name", "name, metadata", 1)

# Below this number, single statements are as fast.
_FEW = 3
# More than one for each that is put, so that expired keys go faster than new ones come.
_FORGOTTEN_PER_PUT = 4

T = TypeVar("T")

# The body, and the headers with all JSON escapes.
_MESSAGE_BYTES = BODY_BYTES_MAX + 2 * HEADERS_BYTES_MAX + 6 * HEADERS_MAX

# A wake never carries more (`bridge.core.embedded_queues.CARRY_BYTES_MAX`); a single message is always below it.
_CARRIED_BYTES = _MESSAGE_BYTES

_MISMATCH = Settled(False, code="pop_receipt_mismatch")
_NOT_FOUND = Settled(False, code="message_not_found")
_OK = Settled(True)


class _Carried:
    """The memory budget for messages that a wake carries."""

    def take(self, size: int) -> bool:
        return size <= _CARRIED_BYTES

    def shrink(self, size: int) -> None:
        pass


_CARRIED = _Carried()


class Engine:
    """Puts, receives, settlements and all other operations, without waiting or threads.

    ``clock`` returns monotonic seconds, ``wall`` seconds since the epoch (read once), ``receipts`` random numbers of 63
    bits. ``check`` may raise just before each commit. ``boot`` is part of every `Received`. ``put_window_s`` is the
    least time for which the key of a put is remembered.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        receipts: Callable[[], int],
        boot: str,
        check: Callable[[], None] | None = None,
        put_window_s: float = PUT_WINDOW_S,
    ) -> None:
        self.boot = boot
        self.state = State(connection, clock, wall, check, int(put_window_s * 1000))
        self._receipts = receipts

    def put(self, name: str, messages: Sequence[NewMessage], grant: Grant | None) -> list[PutReceipt]:
        """Put messages, and lease the first ones for the session of ``grant`` (O7)."""
        state = self.state
        queue = state.ensure(name)
        tally, number, now, up = queue.tally, queue.id, state.now, state.up
        receipt = self._receipt()
        text = hex16(receipt)
        leased: list[StoredMessage] = []
        direct = until = lease = 0
        if grant is not None:
            until = up + lease_ms(grant.lease_s)
            if not tally.visible and not queue.paused and grant.limit > 0:
                # The fast path of O7: no earlier message is visible, so these are leased as they are written.
                direct, lease = grant.limit, self._receipt() | _LEASED
        counts: dict[tuple[int, int | None], int] = {}
        receipts: list[PutReceipt] = []
        values: list[Value] = []
        seq, plain, size = state.seq, 0, 0
        for id_, message in zip(hexes(seq + 1, len(messages)), messages, strict=True):
            seq += 1
            delay, body = message.visible_after_ms, message.body
            size += len(body)
            headers = None
            if message.headers:
                headers = _encode(message.headers)
                size += len(headers)
            if not delay and message.ttl_s == NEVER and not direct:
                # Nearly all messages are like this; they are counted together.
                plain += 1
                values += (seq, number, now, None, 0, receipt, now, body, headers)
            else:
                vis = up + delay if delay else now
                exp = None if message.ttl_s == NEVER else up + message.ttl_s * 1000
                key = (vis, exp)
                counts[key] = counts.get(key, 0) + 1
                if direct and not delay and len(leased) < direct:
                    values += (seq, number, until, exp, 1, lease, now, body, headers)
                    leased.append(message_of(seq, hex16(lease), body, 1, now, exp, headers))
                else:
                    values += (seq, number, vis, exp, 0, receipt, now, body, headers)
            receipts.append(PutReceipt(id_, text, delay))
        state.seq = seq
        state.insert(values, size)
        if plain:
            counts[(now, None)] = counts.get((now, None), 0) + plain
        for (vis, exp), count in counts.items():
            tally.add(vis, exp, count)
            state.on_rollback(tally.remove, vis, exp, count)
            state.delay(queue, vis, count)
        state.touch(name).put += len(messages)
        if grant is not None:
            before = queue.visible
            if leased:
                tally.move(now, until, len(leased))
                state.on_rollback(tally.move, until, now, len(leased))
            elif before and grant.limit > 0:
                with contextlib.suppress(NoRoom):  # A worker receives them instead.
                    leased = self._take(queue, min(grant.limit, before), until, _CARRIED)
            state.grant_results.append(GrantResult(name, grant.session, leased, before))
        return receipts

    def put_existing(self, name: str, messages: Sequence[NewMessage], grant: Grant | None) -> Stamped[list[PutReceipt]]:
        """Put on a queue that exists, and return the time of the put. Raises `QueueNotFound`."""
        self._find(name)
        return self._stamped(self.put(name, messages, grant))

    def put_once(
        self, name: str, key: str, digest: bytes, message: NewMessage, grant: Grant | None, create: bool
    ) -> PutReceipt | None:
        """Put a message under a key; return None where this very one was put before.

        Raises `BadInput` where another body was put under the key, and `QueueNotFound` where the queue is missing and
        not to be made (``create``).
        """
        state, keys = self.state, self.state.keys
        queue = state.current(name)
        if queue is not None:
            known = keys.find(queue.id, key, state.now)
            if known == digest:
                if grant is not None:
                    state.grant_results.append(GrantResult(name, grant.session, [], queue.visible))
                return None
            if known is not None:
                raise BadInput("message_conflict", CONFLICT)
        elif not create:
            raise QueueNotFound("there is no such queue")
        number = state.ensure(name).id
        state.begin()
        due = keys.due
        state.on_rollback(setattr, keys, "count", keys.count)
        state.on_rollback(setattr, keys, "due", due)
        # Before the message, so that one that is handed over by this very put has its key as well.
        keys.insert(state.seq + 1, number, state.up + keys.window_ms, digest, key)
        (receipt,) = self.put(name, (message,), grant)
        if grant is not None and state.grant_results[-1].messages:
            # Leased as it was written: only this call knows its key.
            handed = state.grant_results[-1]
            messages = [replace(each, key=key) if each.id == receipt.id else each for each in handed.messages]
            state.grant_results[-1] = replace(handed, messages=messages)
        if due is not None and due <= state.now:
            # Without a flush: what is due is older than the window, so its message was written by an earlier commit.
            state.forget_keys(_FORGOTTEN_PER_PUT)
        return receipt

    def receive(
        self, name: str, limit: int, lease: int, source: str | None = None, room: ReadRoom | None = None
    ) -> Received:
        """Receive up to ``limit`` visible messages for ``lease`` milliseconds; runs no statement if none is visible.

        Raises `NoRoom` if ``room`` is too small for their bodies.
        """
        state = self.state
        queue = self._find(name)
        messages: list[StoredMessage] = []
        if queue.visible:
            messages = self._take(queue, min(limit, queue.visible), state.up + lease, room)
        touch = state.touch(name)
        touch.receives += 1
        touch.empty += not messages
        if source is not None:
            touch.count(source, bool(messages))
        # Counted after the messages were leased.
        return Received(
            messages,
            Depth(queue.visible, queue.invisible),
            state.due_in(queue.next_visible()),
            self.boot,
            next_delayed_in_ms=state.due_in(queue.next_delayed(state.now)),
        )

    def receive_stamped(
        self, name: str, limit: int, lease: int, source: str | None, room: ReadRoom | None = None
    ) -> Stamped[Received]:
        """Receive, and return the time of the receive."""
        return self._stamped(self.receive(name, limit, lease, source, room))

    def finds_nothing(self, name: object) -> bool:
        """Return whether a receive now would find nothing; runs no statement."""
        state = self.state
        queue = state.queues.get(name) if isinstance(name, str) else None
        if queue is None:
            return True
        queue.tally.advance(state.now)
        return not queue.visible and not queue.tally.has_expired()

    def settle(self, name: str, settlement: Settlement) -> Settling:
        """Delete, release and extend, item by item."""
        state = self.state
        queue = self._find(name)
        now = state.now
        state.flush()
        state.begin()
        state.touch(name)
        deleted = self._delete_all(queue, settlement.delete)
        receipt = self._receipt() if settlement.release or settlement.extend else 0
        released = [
            self._move(
                queue,
                item.id,
                item.pop_receipt,
                state.up + item.after_ms if item.after_ms else now,
                receipt,
                uncount=item.uncounted,
            )
            for item in settlement.release
        ]
        for item, outcome in zip(settlement.release, released, strict=True):
            if item.after_ms and outcome.ok:
                state.delay(queue, state.up + item.after_ms, 1)
        lease = receipt | _LEASED
        extended = [
            self._move(queue, item.id, item.pop_receipt, state.up + lease_ms(item.visibility_s), lease, item.body)
            for item in settlement.extend
        ]
        return Settling(deleted, released, extended)

    def update(self, name: str, claim: Claim, visibility_s: float, body: bytes | None) -> Stamped[Settled]:
        """Change when a message becomes visible (now where it is 0), and its body where one is given."""
        if visibility_s > 0 or body is not None:
            # With a body and 0 seconds these are two steps of one commit: no other call sees the state between them.
            extend = Extend(claim.id, claim.pop_receipt, visibility_s or 1.0, body)
            settled = self.settle(name, Settlement(extend=(extend,))).extend[0]
            if visibility_s > 0 or settled.pop_receipt is None:
                return self._stamped(settled)
            claim = Claim(claim.id, settled.pop_receipt)
        return self._stamped(self.settle(name, Settlement(release=(Release(claim.id, claim.pop_receipt),))).release[0])

    def reclaim(self, name: str, claims: Sequence[Claim], uncount: bool = True) -> None:
        """Return delivered messages to the queue if they still have exactly these receipts (O7)."""
        state = self.state
        queue = state.current(name)
        now = state.now
        state.touch(name)
        if queue is None:
            return
        state.flush()
        void = self._receipt()
        for claim in claims:
            seq, receipt = number_of(claim.id), number_of(claim.pop_receipt)
            held = self._held(queue, seq, receipt)
            if held is None:
                continue
            state.begin()
            # A message that is visible again keeps its place in the order.
            vis = min(held, now)
            state.execute(_RESTORE, (vis, void, int(uncount), seq))
            queue.tally.move(held, vis)
            state.on_rollback(queue.tally.move, vis, held)

    def refresh(self, name: str) -> None:
        """Update a queue to the current time and report its state (O3)."""
        state = self.state
        state.current(name)
        state.touch(name)

    def peek(self, name: str, limit: int, room: ReadRoom | None = None) -> list[StoredMessage]:
        """Return visible messages without leasing them, including those of a paused queue.

        Raises `NoRoom` if ``room`` is too small for their bodies.
        """
        queue = self._find(name)
        if not queue.tally.visible or queue.behind:
            return []
        rows = self._read(queue, min(limit, queue.tally.visible), room)
        messages = [message_of(seq, "", body, n, ins, exp, headers) for seq, n, exp, ins, body, headers in rows]
        return self._with_keys(queue, [row[0] for row in rows], messages)

    def browse(self, name: str, limit: int, after: tuple[int, int] | None, newest: bool) -> Browsed:
        """Return visible messages after any position, including those of a paused queue."""
        queue = self._find(name)
        state = self.state
        state.flush()
        place = after or ((INTEGER_MAX, INTEGER_MAX) if newest else (-1, -1))
        # SQLite searches by the first of two upper bounds, and would step over all rows in between.
        until = min(state.now, place[0]) if newest else state.now
        where = (queue.id, until, *place, limit + 1)
        rows = state.execute(_BROWSE_BACK if newest else _BROWSE, where).fetchall()
        more, rows = len(rows) > limit, rows[:limit]
        messages = [message_of(seq, "", body, n, ins, exp, headers) for seq, n, exp, ins, body, headers, _ in rows]
        places = [f"{row[6]}.{row[0]}" for row in rows]
        messages = self._with_keys(queue, [row[0] for row in rows], messages)
        return Browsed(messages, places[-1] if more else None, places, [None] * len(rows))

    def browse_invisible(
        self, name: str, limit: int, after: tuple[int, int] | None, newest: bool, leased: bool
    ) -> Browsed:
        """Return messages that are leased, or that are delayed, in the order in which that ends, or its reverse."""
        queue = self._find(name)
        state = self.state
        state.flush()
        if newest:
            where = (queue.id, *(after or (INTEGER_MAX, INTEGER_MAX)), state.now, _BROWSED_MAX)
            rows = state.execute(_INVISIBLE_BACK, where).fetchall()
        else:
            place = max(after or (0, 0), (state.now, INTEGER_MAX))
            rows = state.execute(_INVISIBLE, (queue.id, *place, _BROWSED_MAX)).fetchall()
        fitting = [(vis, seq) for vis, seq, receipt in rows if bool(receipt & _LEASED) is leased]
        page = fitting[:limit]
        last = page[-1] if len(fitting) > limit else rows[-1][:2] if len(rows) == _BROWSED_MAX else None
        found = [state.execute(_ONE, (seq, queue.id)).fetchone() for _, seq in page]
        messages = [message_of(seq, "", body, n, ins, exp, headers) for seq, n, exp, ins, body, headers, *_ in found]
        messages = self._with_keys(queue, [seq for _, seq in page], messages)
        places, due = [f"{vis}.{seq}" for vis, seq in page], [state.due_in(vis) for vis, _ in page]
        return Browsed(messages, last and f"{last[0]}.{last[1]}", places, due)

    def look(self, name: str, id_or_key: str) -> Looked | None:
        """Return the message with this id or this key, and where it is."""
        queue, state = self._find(name), self.state
        rows = self._rows(queue, id_or_key)
        if not rows:
            return None
        seq, n, exp, ins, body, headers, vis, receipt = rows[0]
        (message,) = self._with_keys(queue, [seq], [message_of(seq, "", body, n, ins, exp, headers)])
        if vis <= state.now:
            return Looked(message, "waiting", None)
        return Looked(message, "running" if receipt & _LEASED else "later", state.due_in(vis))

    def discard(self, name: str, id_or_key: str, by_id: bool) -> Discarded:
        """Delete the message with this id, or else this key."""
        queue = self._find(name)
        rows = self._rows(queue, id_or_key, by_id)
        if len(rows) != 1:
            return Discarded("ambiguous" if rows else "missing")
        ((seq, *_, vis, receipt),) = rows
        id_ = hex16(seq)
        if vis > self.state.now and receipt & _LEASED:
            return Discarded("leased", id_)
        self.settle(name, Settlement(delete=[Claim(id_, hex16(receipt))]))
        return Discarded("deleted", id_)

    def _rows(self, queue: Queue, id_or_key: str, by_id: bool = False) -> list[tuple[Any, ...]]:
        """Return the message with this id first, and another that was put under this key."""
        state = self.state
        state.flush()
        seqs = [number_of(id_or_key), None if by_id else state.keys.seq_of(queue.id, id_or_key)]
        rows = (state.execute(_ONE, (seq, queue.id)).fetchone() for seq in dict.fromkeys(seqs) if seq is not None)
        return [row for row in rows if row is not None]

    def depth(self, name: str) -> Depth | None:
        """Count the messages; None if there is no such queue."""
        queue = self.state.current(name)
        return None if queue is None else Depth(queue.visible, queue.invisible)

    def counts(self, name: str) -> Counts | None:
        """Return all counts; None if there is no such queue."""
        queue = self.state.current(name)
        if queue is None:
            return None
        leased, oldest_ms = queue.tally.invisible - queue.waiting, self.state.oldest_ms(queue)
        return Counts(queue.visible, queue.invisible, leased=leased, delayed=queue.waiting, oldest_ms=oldest_ms)

    def exists(self, name: str) -> bool:
        """Return whether the queue exists."""
        return name in self.state.queues

    def oldest_ms(self, name: str) -> int | None:
        """Return how long the message visible longest has waited; None if none is visible."""
        state = self.state
        queue = state.current(name)
        return None if queue is None else state.oldest_ms(queue)

    def clear(self, name: str) -> None:
        """Remove every message immediately, however many: the queue gets another number."""
        state = self.state
        queue = self._find(name)
        total = queue.tally.total
        state.touch(name)
        if not total and queue.id not in state.keys.queues:
            return
        state.flush()
        state.begin()
        old_number, old_tally = queue.id, queue.tally
        state.on_rollback(setattr, queue, "id", old_number)
        state.on_rollback(setattr, queue, "tally", old_tally)
        state.queue_number += 1
        state.execute("UPDATE queues SET id=? WHERE id=?", (state.queue_number, old_number))
        queue.id = state.queue_number
        queue.tally = type(old_tally)(state.now)
        queue.tally.rose = old_tally.rose
        state.on_rollback(setattr, queue, "delayed", queue.delayed)
        queue.delayed = EMPTY
        self._forget_all(old_number)
        state.discard(old_number, total)

    def pause(self, name: str, paused: bool) -> None:
        """Pause or resume a queue; a resume reports visible messages as a rise."""
        state = self.state
        queue = self._find(name)
        if queue.paused == paused:
            return
        state.begin()
        state.execute("UPDATE queues SET paused=? WHERE id=?", (int(paused), queue.id))
        state.on_rollback(setattr, queue, "paused", queue.paused)
        queue.paused = paused
        if not paused:
            queue.tally.rose = queue.tally.visible > 0
        state.touch(name)

    def paused(self, name: str) -> bool:
        """Return whether a queue is paused; False if it does not exist."""
        found = self.state.queues.get(name)
        return found is not None and found.paused

    def create(self, name: str, metadata: dict[str, str] | None) -> bool:
        """Create a queue; return whether it is new."""
        state = self.state
        text = json.dumps(metadata or {}, ensure_ascii=False, sort_keys=True)
        new = name not in state.queues
        queue = state.ensure(name, text)
        if not new and metadata is not None:
            state.begin()
            state.execute("UPDATE queues SET metadata=? WHERE id=?", (text, queue.id))
        state.touch(name)
        return new

    def metadata(self, name: str) -> dict[str, str]:
        """Return a queue's metadata. Raises `QueueNotFound`."""
        queue = self._find(name)
        (text,) = self.state.execute("SELECT metadata FROM queues WHERE id=?", (queue.id,)).fetchone()
        found: dict[str, str] = json.loads(text)
        return found

    def create_alike(self, name: str, metadata: dict[str, str]) -> bool | None:
        """Make a queue; return False where it exists with the same metadata, None where it has other metadata."""
        if name not in self.state.queues:
            return self.create(name, metadata)
        return False if self.metadata(name) == metadata else None

    def replace_metadata(self, name: str, metadata: dict[str, str]) -> None:
        """Set the metadata of a queue that exists. Raises `QueueNotFound`."""
        self._find(name)
        self.create(name, metadata)

    def metadata_and_depth(self, name: str) -> tuple[dict[str, str], Depth]:
        """Return metadata and depth of a queue that exists. Raises `QueueNotFound`."""
        queue = self._find(name)
        return self.metadata(name), Depth(queue.visible, queue.invisible)

    def delete(self, name: str) -> None:
        """Delete a queue and its messages; no-op if it does not exist."""
        state = self.state
        queue = state.queues.get(name)
        if queue is None:
            return
        state.flush()
        state.begin()
        state.execute("DELETE FROM queues WHERE id=?", (queue.id,))
        del state.queues[name]
        state.on_rollback(state.queues.__setitem__, name, queue)
        self._forget_all(queue.id)
        state.discard(queue.id, queue.tally.total)
        state.touch(name)

    def remove(self, name: str) -> None:
        """Delete a queue that exists. Raises `QueueNotFound`."""
        self._find(name)
        self.delete(name)

    def queues(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return names in ascending order."""
        return [name for (name,) in self.state.execute(_NAMES, _page(prefix, after, limit))]

    def listing(self, prefix: str, after: str, limit: int) -> list[tuple[str, dict[str, str]]]:
        """Return names with their metadata, in ascending order."""
        rows = self.state.execute(_NAMES_AND_METADATA, _page(prefix, after, limit))
        return [(name, json.loads(text)) for name, text in rows]

    def probe(self) -> None:
        """Write only the clock, to test whether the file works."""
        self.state.begin()

    # -- parts of operations ---------------------------------------------------------------------------------------

    def _forget_all(self, number: int) -> None:
        """Stop looking for keys of a queue number that is no longer in use."""
        state = self.state
        if number in state.keys.queues:
            state.keys.queues.discard(number)
            state.on_rollback(state.keys.queues.add, number)

    def _find(self, name: str) -> Queue:
        queue = self.state.current(name)
        if queue is None:
            raise QueueNotFound("there is no such queue")
        return queue

    def _stamped(self, answer: T) -> Stamped[T]:
        return Stamped(answer, self.state.now, self.state.up)

    def _read(self, queue: Queue, count: int, room: ReadRoom | None) -> list[_Row]:
        """Read visible messages, longest visible first, within the memory budget."""
        state = self.state
        state.flush()
        where = (queue.id, state.now, count)
        if room is not None and not room.take(count * _MESSAGE_BYTES):
            # Too small for the largest messages: read the real sizes, which are in the rows' heads.
            size = sum(length for (length,) in state.execute(_SELECT_SIZES, where))
            if not room.take(size):
                raise NoRoom(size)
        rows = state.execute(_SELECT_VISIBLE, where).fetchall()
        if room is not None:
            room.shrink(sum(len(row[4]) + len(row[5] or b"") for row in rows))
        return rows

    def _take(self, queue: Queue, count: int, until: int, room: ReadRoom | None = None) -> list[StoredMessage]:
        state = self.state
        rows = self._read(queue, count, room)
        state.begin()
        receipt = self._receipt() | _LEASED
        if len(rows) == 1:
            state.execute(_LEASE, (until, receipt, rows[0][0]))
        else:
            state.connection.executemany(_LEASE, [(until, receipt, row[0]) for row in rows])
        queue.tally.move(state.now, until, len(rows))
        state.on_rollback(queue.tally.move, until, state.now, len(rows))
        if len(rows) < count:
            # Never observed; but a count that is too high would wake listeners in vain for ever.
            _log.error("counts of a queue differ from its table by %d; counting again", count - len(rows))
            state.recount(queue)
        text = hex16(receipt)
        messages = [message_of(seq, text, body, n + 1, ins, exp, headers) for seq, n, exp, ins, body, headers in rows]
        return self._with_keys(queue, [row[0] for row in rows], messages)

    def _with_keys(self, queue: Queue, seqs: list[int], messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return messages with their keys, if the queue has any."""
        state = self.state
        if queue.id not in state.keys.queues or not seqs:
            return messages
        keys = state.keys.of(seqs)
        return [
            replace(message, key=keys[seq]) if seq in keys else message
            for seq, message in zip(seqs, messages, strict=True)
        ]

    def _delete_all(self, queue: Queue, claims: Sequence[Claim]) -> list[Settled]:
        """Delete many messages by one statement: row by row, they would take a third of a settlement's time."""
        state = self.state
        if len(claims) < _FEW:
            return [self._delete(queue, claim.id, claim.pop_receipt) for claim in claims]
        wanted = [(number_of(claim.id), number_of(claim.pop_receipt)) for claim in claims]
        known = [seq for seq, _ in wanted if seq is not None]
        marks = ",".join("?" * len(known))
        # The queue is compared in Python: with `AND q=?` SQLite would scan the index of the whole queue.
        rows = {
            seq: (receipt, vis, exp)
            for seq, number, receipt, vis, exp in state.execute(
                f"SELECT seq, q, rcpt, vis, exp FROM messages WHERE seq IN ({marks})",  # noqa: S608
                known,
            )
            if number == queue.id
        }
        gone: list[int] = []
        counts: dict[tuple[int, int | None], int] = {}
        delayed: dict[int, int] = {}
        settled: list[Settled] = []
        for seq, receipt in wanted:
            row = rows.get(seq) if seq is not None else None
            if row is None or seq is None:
                settled.append(_NOT_FOUND)
            elif row[0] != receipt:
                settled.append(_MISMATCH)
            else:
                # If named twice in one request, it is not found the second time.
                del rows[seq]
                gone.append(seq)
                when = (row[1], row[2])
                counts[when] = counts.get(when, 0) + 1
                if not row[0] & _LEASED:
                    delayed[row[1]] = delayed.get(row[1], 0) + 1
                settled.append(_OK)
        if gone:
            state.execute(f"DELETE FROM messages WHERE seq IN ({','.join('?' * len(gone))})", gone)  # noqa: S608
        for (vis, exp), count in counts.items():
            queue.tally.remove(vis, exp, count)
            state.on_rollback(queue.tally.add, vis, exp, count)
        for vis, count in delayed.items():
            state.undelay(queue, vis, count)
        state.freed += len(gone)
        return settled

    def _delete(self, queue: Queue, id_: str, pop_receipt: str) -> Settled:
        state = self.state
        seq, receipt = number_of(id_), number_of(pop_receipt)
        row = None
        if seq is not None and receipt is not None:
            row = state.execute(_DELETE, (seq, queue.id, receipt)).fetchone()
        if row is None:
            return self._miss(queue, seq)
        queue.tally.remove(*row)
        state.on_rollback(queue.tally.add, *row)
        if receipt is not None and not receipt & _LEASED:
            state.undelay(queue, row[0], 1)
        state.freed += 1
        return _OK

    def _move(
        self,
        queue: Queue,
        id_: str,
        pop_receipt: str,
        vis: int,
        receipt: int,
        body: bytes | None = None,
        uncount: bool = False,
    ) -> Settled:
        state = self.state
        seq = number_of(id_)
        under = number_of(pop_receipt)
        held = self._held(queue, seq, under)
        if held is None or under is None:
            return self._miss(queue, seq)
        if uncount:
            state.execute(_RESTORE, (vis, receipt, 1, seq))
        elif body is None:
            state.execute(_MOVE, (vis, receipt, seq))
        else:
            state.execute(_MOVE_BODY, (vis, receipt, body, seq))
        queue.tally.move(held, vis)
        state.on_rollback(queue.tally.move, vis, held)
        if not under & _LEASED:
            state.undelay(queue, held, 1)
        return Settled(True, pop_receipt=hex16(receipt))

    def _held(self, queue: Queue, seq: int | None, receipt: int | None) -> int | None:
        """Return when a message with this receipt becomes or became visible; None if it has another."""
        if seq is None or receipt is None:
            return None
        row = self.state.execute(_SELECT_HELD, (seq, queue.id, receipt)).fetchone()
        return None if row is None else int(row[0])

    def _miss(self, queue: Queue, seq: int | None) -> Settled:
        if seq is not None and self.state.execute(_SELECT_ANY, (seq, queue.id)).fetchone() is not None:
            return _MISMATCH
        return _NOT_FOUND

    def _receipt(self) -> int:
        # The second highest bit is always set: equally wide receipts are overwritten in place.
        return self._receipts() & (INTEGER_MAX >> 1) & ~_LEASED | (1 << 62)


def _page(prefix: str, after: str, limit: int) -> tuple[str, str, str, int]:
    # Names are ASCII; this is greater than every name with the prefix.
    return after, prefix, prefix + "\x7f", limit


INTEGER_MAX: Final = 2**63 - 1
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PAIRS: Final = [f"{number:02x}" for number in range(256)]
_headers = msgspec.json.Decoder(dict[str, str]).decode
_is_hex16 = re.compile("[0-9a-f]{16}").fullmatch


def message_of(
    seq: int, receipt: str, body: bytes, n: int, ins: int, exp: int | None, headers: bytes | None
) -> StoredMessage:
    """Return the message of a row."""
    expires = None if exp is None else _date(exp)
    if headers is None:
        return StoredMessage(hex16(seq), receipt, body, n, _date(ins), expires)
    return StoredMessage(hex16(seq), receipt, body, n, _date(ins), expires, None, _headers(headers))


def hex16(number: int) -> str:
    """Return an id or a receipt as text."""
    return f"{number:016x}"


def hexes(first: int, count: int) -> list[str]:
    """Return ``count`` consecutive numbers as `hex16` does; most batches differ only in the last two digits."""
    low = first & 0xFF
    if low + count > len(_PAIRS):
        return [hex16(first + step) for step in range(count)]
    high = f"{first >> 8:014x}"
    return [high + pair for pair in _PAIRS[low : low + count]]


def number_of(text: object) -> int | None:
    """Return the number of an id or a receipt, or None if this store cannot have created it."""
    if not isinstance(text, str) or _is_hex16(text) is None:
        return None
    number = int(text, 16)
    return number if number <= INTEGER_MAX else None


def _date(ms: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=ms)
