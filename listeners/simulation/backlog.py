"""A queue store elsewhere as a pure machine: time, chance and receipts come in as arguments.

It keeps what `bridge.queue` promises for put, receive, settle, peek, depth and clear, and can be told to be as vague as
real stores are: to count what is leased as if it could be taken, to keep the next due time to itself, to find nothing
although there is something, and to make messages visible only at whole ticks of its clock. That a call was carried out
and its answer lost is the network's business, not the store's.
"""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bridge.contract.errors import QueueNotFound
from bridge.queue import (
    NEVER,
    Capabilities,
    Claim,
    Depth,
    NewMessage,
    PutReceipt,
    Received,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
)
from bridge.queues import limits

_EPOCH: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
# Entries of messages that moved on are dropped when their time comes; renewed leases would pile them up until then.
_SLACK: Final = 64


class Moved(NamedTuple):
    """From ``at`` (seconds) on, ``visible`` messages of a queue could be received."""

    at: float
    queue: str
    visible: int


class _Message:
    """One message; ``version`` grows with every change of its visibility, so that older heap entries are void."""

    __slots__ = ("body", "count", "expires", "inserted", "ready", "receipt", "seq", "version", "vis")

    def __init__(self, seq: int, body: bytes, vis: int, expires: int | None, inserted: int) -> None:
        self.seq = seq
        self.body = body
        self.vis = vis
        self.expires = expires
        self.inserted = inserted
        self.count = 0
        self.version = 0
        self.ready = False
        self.receipt = ""


class _Queue:
    """One queue: its messages by number, those that can be taken, and those that wait for a time."""

    __slots__ = ("expiring", "messages", "ready", "told", "visible", "waiting")

    def __init__(self) -> None:
        self.messages: dict[int, _Message] = {}
        self.ready: list[tuple[int, int, int]] = []
        self.waiting: list[tuple[int, int, int]] = []
        self.expiring: list[tuple[int, int]] = []
        self.visible = 0
        self.told = 0


class Backlog:
    """Every queue of one store. All times are seconds of one clock; one that goes back is taken for standing still.

    ``draw`` gives numbers from 0 to below 1: a receive that could take something finds nothing with probability
    ``false_empty``, which may be set at any time; it is drawn only where it is above 0. Every method raises what
    `bridge.queue.QueueStore` promises for bad arguments and unknown queues.
    """

    def __init__(self, capabilities: Capabilities | None = None, *, draw: Callable[[], float] | None = None) -> None:
        self.capabilities = capabilities or Capabilities(metadata=False, pause=False)
        self.false_empty = 0.0
        self._draw = draw
        self._queues: dict[str, _Queue] = {}
        self._now = 0
        self._next_seq = 0
        self._next_receipt = 0
        self._moves: list[Moved] = []

    # -- what callers ask ----------------------------------------------------------------------------------------------

    def put(self, now: float, queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
        """Put 1 to 32 messages, all or none, and make the queue where it is missing."""
        limits.check_put(queue, messages)
        self.advance(now)
        q = self._queues.setdefault(queue, _Queue())
        receipts = []
        for new in messages:
            expires = None if new.ttl_s == NEVER else self._now + new.ttl_s * 1000
            message = _Message(self._next_seq, new.body, self._due(new.visible_after_ms), expires, self._now)
            self._next_seq += 1
            q.messages[message.seq] = message
            message.receipt = self._receipt()
            if expires is not None:
                heapq.heappush(q.expiring, (expires, message.seq))
            self._place(q, message)
            receipts.append(PutReceipt(str(message.seq), message.receipt, message.vis - self._now))
        self._told(queue, q, self._now)
        return receipts

    def receive(self, now: float, queue: str, limit: int = 1, visibility_s: float = 30.0) -> Received:
        """Take up to ``limit`` visible messages, longest visible first, each leased for ``visibility_s``."""
        lease = limits.check_receive(queue, limit, visibility_s)
        self.advance(now)
        q = self._known(queue)
        taken: list[StoredMessage] = []
        blind = self.false_empty > 0.0 and q.visible > 0 and self._draw is not None and self._draw() < self.false_empty
        until = self._due(lease)
        while not blind and q.ready and len(taken) < limit:
            _, seq, version = heapq.heappop(q.ready)
            message = q.messages.get(seq)
            if message is None or message.version != version:
                continue
            message.count += 1
            message.receipt = self._receipt()
            self._move(q, message, until)
            taken.append(_stored(message, message.receipt))
        self._told(queue, q, self._now)
        upcoming = self._next_due(q) if self.capabilities.next_visible else None
        # What a blind receive did not see it cannot count either.
        depth = None if blind else self._depth(q)
        return Received(taken, depth, None if upcoming is None else upcoming - self._now)

    def settle(self, now: float, queue: str, settlement: Settlement) -> Settling:
        """Delete, release and extend; every item has its own outcome."""
        limits.check_settlement(queue, settlement)
        self.advance(now)
        q = self._known(queue)
        deleted = [self._delete(q, claim) for claim in settlement.delete]
        released = [
            self._change(q, release.id, release.pop_receipt, self._due(release.after_ms), None)
            for release in settlement.release
        ]
        extended = [
            self._change(q, each.id, each.pop_receipt, self._due(limits.lease_ms(each.visibility_s)), each.body)
            for each in settlement.extend
        ]
        self._told(queue, q, self._now)
        return Settling(deleted, released, extended)

    def peek(self, now: float, queue: str, limit: int = 32) -> list[StoredMessage]:
        """Look at up to ``limit`` visible messages, longest visible first."""
        limits.check_peek(queue, limit)
        self.advance(now)
        q = self._known(queue)
        ready = sorted((message for message in q.messages.values() if message.ready), key=lambda m: (m.vis, m.seq))
        return [_stored(message, "") for message in ready[:limit]]

    def depth(self, now: float, queue: str) -> Depth | None:
        """Count as well as this store can; None for a queue that does not exist."""
        self.advance(now)
        q = self._queues.get(queue)
        return None if q is None else self._depth(q)

    def clear(self, now: float, queue: str) -> None:
        """Remove every message, leased ones too."""
        self.advance(now)
        q = self._known(queue)
        q.messages.clear()
        q.ready.clear()
        q.waiting.clear()
        q.expiring.clear()
        q.visible = 0
        self._told(queue, q, self._now)

    # -- what the world asks -------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Let time pass: what came due can be taken, what expired is gone."""
        # Down to a whole millisecond, but never below one that the argument stands for in binary.
        until = int(now * 1000 + 1e-6)
        if until <= self._now:
            return
        self._now = until
        for name, q in self._queues.items():
            while (at := self._next_of(q)) is not None and at <= until:
                self._pass(q, at)
                self._told(name, q, at)

    def next_change(self, now: float) -> float | None:
        """Return when time alone changes something next, in seconds and never before ``now``; None if nothing waits."""
        times = [at for q in self._queues.values() if (at := self._next_of(q)) is not None]
        return max(now, min(times) / 1000) if times else None

    def take_moves(self) -> list[Moved]:
        """Return every change of a number of visible messages since the last call, in order; this is the truth."""
        moves, self._moves = self._moves, []
        return moves

    def visible(self, queue: str) -> int:
        """Return how many messages could be received as of the last call, whatever the store would say."""
        q = self._queues.get(queue)
        return 0 if q is None else q.visible

    def total(self, queue: str) -> int:
        """Return how many messages there are as of the last call, leased and delayed ones too."""
        q = self._queues.get(queue)
        return 0 if q is None else len(q.messages)

    # -- within --------------------------------------------------------------------------------------------------------

    def _known(self, queue: str) -> _Queue:
        q = self._queues.get(queue)
        if q is None:
            raise QueueNotFound(f"queue {queue} does not exist in this store")
        return q

    def _due(self, after_ms: int) -> int:
        """Return the time that is ``after_ms`` from now, at the next whole tick of this store (B2)."""
        if not after_ms:
            return self._now
        tick = self.capabilities.resolution_ms
        return -(-(self._now + after_ms) // tick) * tick

    def _receipt(self) -> str:
        self._next_receipt += 1
        return f"r{self._next_receipt}"

    def _place(self, q: _Queue, message: _Message) -> None:
        entry = (message.vis, message.seq, message.version)
        if message.vis <= self._now:
            message.ready = True
            q.visible += 1
            heapq.heappush(q.ready, entry)
            return
        heapq.heappush(q.waiting, entry)
        if len(q.waiting) > 2 * len(q.messages) + _SLACK:
            q.waiting = [(m.vis, m.seq, m.version) for m in q.messages.values() if not m.ready]
            heapq.heapify(q.waiting)

    def _move(self, q: _Queue, message: _Message, vis: int) -> None:
        if message.ready:
            message.ready = False
            q.visible -= 1
        message.vis = vis
        message.version += 1
        self._place(q, message)

    def _delete(self, q: _Queue, claim: Claim) -> Settled:
        message, refused = self._claimed(q, claim.id, claim.pop_receipt)
        if message is None:
            return refused
        self._remove(q, message)
        return Settled(True)

    def _change(self, q: _Queue, name: str, receipt: str, vis: int, body: bytes | None) -> Settled:
        message, refused = self._claimed(q, name, receipt)
        if message is None:
            return refused
        message.receipt = self._receipt()
        if body is not None:
            message.body = body
        self._move(q, message, vis)
        return Settled(True, message.receipt)

    def _claimed(self, q: _Queue, name: str, receipt: str) -> tuple[_Message | None, Settled]:
        message = q.messages.get(int(name)) if name.isascii() and name.isdigit() else None
        if message is None:
            return None, Settled(False, code="message_not_found")
        if message.receipt != receipt:
            return None, Settled(False, code="pop_receipt_mismatch")
        return message, Settled(True)

    def _remove(self, q: _Queue, message: _Message) -> None:
        del q.messages[message.seq]
        if message.ready:
            q.visible -= 1

    def _depth(self, q: _Queue) -> Depth:
        if self.capabilities.exact_depth:
            return Depth(q.visible, len(q.messages) - q.visible)
        return Depth(len(q.messages), 0)

    def _next_due(self, q: _Queue) -> int | None:
        while q.waiting:
            vis, seq, version = q.waiting[0]
            message = q.messages.get(seq)
            if message is not None and message.version == version:
                return vis
            heapq.heappop(q.waiting)
        return None

    def _next_of(self, q: _Queue) -> int | None:
        due = self._next_due(q)
        while q.expiring and q.expiring[0][1] not in q.messages:
            heapq.heappop(q.expiring)
        expiry = q.expiring[0][0] if q.expiring else None
        if due is None or expiry is None:
            return expiry if due is None else due
        return min(due, expiry)

    def _pass(self, q: _Queue, at: int) -> None:
        """Do what the moment ``at`` brings; what expires then is never visible in it."""
        while q.expiring and q.expiring[0][0] <= at:
            message = q.messages.get(heapq.heappop(q.expiring)[1])
            if message is not None:
                self._remove(q, message)
        while (due := self._next_due(q)) is not None and due <= at:
            entry = heapq.heappop(q.waiting)
            message = q.messages[entry[1]]
            message.ready = True
            q.visible += 1
            heapq.heappush(q.ready, entry)

    def _told(self, name: str, q: _Queue, at: int) -> None:
        if q.visible != q.told:
            q.told = q.visible
            self._moves.append(Moved(at / 1000, name, q.visible))


def _stored(message: _Message, receipt: str) -> StoredMessage:
    return StoredMessage(
        str(message.seq),
        receipt,
        message.body,
        message.count,
        _EPOCH + datetime.timedelta(milliseconds=message.inserted),
        None if message.expires is None else _EPOCH + datetime.timedelta(milliseconds=message.expires),
    )
