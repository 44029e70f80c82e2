"""What happens to the messages of a queue while somebody watches it: put, woken for, received, settled.

Nothing is recorded of a queue that nobody watches; each read of its events watches it for two minutes.
"""

from __future__ import annotations

import datetime
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from queuebell.bridge.contract.burial import facts
from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.contract.times import from_rfc3339, rfc3339
from queuebell.bridge.contract.wire import CarriedMessage
from queuebell.bridge.observe.facts import Fact, HandedBack, OwnerStuck, StartMissed, Unannounced, Woken
from queuebell.bridge.queues.base import NewMessage, PutReceipt, Received, Settlement, Settling

QUEUES_MAX: Final = 10
"""Watched queues; one more is refused."""
EVENTS_MAX: Final = 2000
"""Newest events that are kept of a watched queue: about 400 KB."""
WATCHED_S: Final = 120.0
SHOWN_MAX: Final = 200
"""Events of one answer."""
_DETAIL_MAX: Final = 200
_FRESH_S: Final = 2.0


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a queue, or of one of its messages."""

    n: int
    """Its number: events of a watch are numbered from 1 in their order."""
    at: str
    what: str
    id: str = ""
    """The message; empty of what concerns the queue."""
    detail: str = ""


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """Some events of a queue, oldest first."""

    since: str
    """When the watch began; before, nothing was recorded."""
    events: list[Event]
    last: int
    """The number of the newest event, to be passed as ``after``."""
    dropped: int
    """Events that are no longer kept."""


class _Watched:
    def __init__(self, since: float) -> None:
        self.since = since
        self.until = 0.0
        self.last = 0
        self.early: dict[str, None] = {}
        """Messages whose put was recorded with the wake that carries them."""
        self.put: dict[str, None] = {}
        """Messages whose put was recorded."""
        self.buried: dict[str, None] = {}
        """Messages that became dead letters, whose deletion is still to come."""
        self.named: dict[str, str] = {}
        """Messages by the key of their put."""
        self.kept: deque[tuple[int, float, str, str, str]] = deque(maxlen=EVENTS_MAX)


class MessageEvents:
    """Records the events of watched queues; a store and the bridge tell it of each, and it never raises for them.

    ``name_of`` returns how a session's listener is called. ``watching`` is called with True before the first queue is
    watched, and with False once none is: facts are needed in between. ``clock`` counts seconds, ``wall`` is the time of
    day.
    """

    def __init__(
        self,
        name_of: Callable[[int], str],
        watching: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.watched: dict[str, _Watched] = {}
        self._name_of = name_of
        self._watching = watching
        self._clock = clock
        self._wall = wall

    def read(self, queue: str, after: int = 0, id_: str = "") -> Events | None:
        """Watch a queue, and return up to 200 events after a number, of one message if given; the newest at the end.

        ``id_`` is the message's id or the key of its put. None if there are ten watched queues without this one.
        """
        now = self._clock()
        self._forget_old(now)
        if queue not in self.watched:
            if len(self.watched) >= QUEUES_MAX:
                return None
            if not self.watched:
                self._watching(True)
            self.watched[queue] = _Watched(self._wall())
        watch = self.watched[queue]
        watch.until = now + WATCHED_S
        id_ = watch.named.get(id_, id_)
        found = [each for each in watch.kept if each[0] > after and (not id_ or each[3] == id_)][-SHOWN_MAX:]
        events = [Event(n=n, at=_text(at), what=what, id=of, detail=detail) for n, at, what, of, detail in found]
        return Events(since=_text(watch.since), events=events, last=watch.last, dropped=watch.last - len(watch.kept))

    def name(self, queue: str, key: str, id_: str) -> None:
        """Have a key of a put mean this message of a watched queue."""
        if (watch := self.watched.get(queue)) is not None:
            watch.named[key] = id_
            _bounded(watch.named)

    def knows(self, queue: str, id_: str) -> bool:
        """Return whether anything was recorded of a message, or under the key of a put."""
        watch = self.watched.get(queue)
        return watch is not None and (id_ in watch.named or id_ in watch.put)

    def put(self, queue: str, messages: Sequence[NewMessage], receipts: Sequence[PutReceipt], key: str = "") -> None:
        """Record messages that were put; a dead letter also where it failed."""
        watch = self.watched.get(queue)
        for message, receipt in zip(messages, receipts, strict=False):
            if watch is None:
                break
            if key:
                self.name(queue, key, receipt.id)
            if receipt.id in watch.early:
                del watch.early[receipt.id]
                continue
            delay = message.visible_after_ms
            self._add(queue, "put", receipt.id, f"visible in {delay / 1000:g} s" if delay else "")
            watch.put[receipt.id] = None
            _bounded(watch.put)
        origin = self.watched.get(queue.removesuffix(POISON_SUFFIX)) if queue.endswith(POISON_SUFFIX) else None
        for message, receipt in zip(messages, receipts, strict=False) if origin is not None else ():
            burial = facts(message.body)
            # Why it failed is for those who may look at the dead letters.
            if burial is not None and burial.queue + POISON_SUFFIX == queue and origin is not None:
                self._add(burial.queue, "dead letter", burial.id, f"as {receipt.id} of {queue}")
                origin.buried[burial.id] = None
                _bounded(origin.buried)

    def received(self, queue: str, answer: Received, lease_s: float, source: str | None) -> None:
        """Record a receive, also an empty one."""
        why = f", because of {source}" if source else ""
        for message in answer.messages:
            detail = f"attempt {message.dequeue_count}, leased for {lease_s:g} s{why}"
            self._add(queue, "received", message.id, detail)
        if not answer.messages:
            self._add(queue, "nothing received", "", why.removeprefix(", "))

    def settled(self, queue: str, asked: Settlement, settling: Settling) -> None:
        """Record the outcome of each message of a settlement."""
        watch = self.watched.get(queue)
        buried = {} if watch is None else watch.buried
        for claim, done in zip(asked.delete, settling.delete, strict=False):
            what = "deleted here" if claim.id in buried else "done"
            buried.pop(claim.id, None)
            self._add(queue, what if done.ok else "not deleted", claim.id, done.code or "")
        for release, done in zip(asked.release, settling.release, strict=False):
            after = f"visible in {release.after_ms / 1000:g} s" if release.after_ms else "visible now"
            detail = done.code or after + (", uncounted" if release.uncounted else "")
            self._add(queue, "returned" if done.ok else "not returned", release.id, detail)
        for extend, done in zip(asked.extend, settling.extend, strict=False):
            detail = done.code or f"for {extend.visibility_s:g} s"
            self._add(queue, "lease renewed" if done.ok else "lease not renewed", extend.id, detail)

    def discarded(self, queue: str, id_: str) -> None:
        """Record a message that somebody deleted."""
        self._add(queue, "discarded", id_)

    def carried(self, queue: str, session: int, messages: Sequence[CarriedMessage]) -> None:
        """Record messages that a wake carries to a worker: before the call that put them is answered."""
        watch = self.watched.get(queue)
        for message in messages:
            fresh = message.dequeue_count == 1 and self._wall() - _seconds(message.inserted_at) < _FRESH_S
            if watch is not None and fresh and message.id not in watch.put:
                self._add(queue, "put", message.id)
                watch.early[message.id] = watch.put[message.id] = None
                _bounded(watch.early)  # some are of callers that went away
                _bounded(watch.put)
            detail = f"to {self._name_of(session)}, attempt {message.dequeue_count}"
            self._add(queue, "sent with a wake", message.id, detail)

    def __call__(self, fact: Fact) -> None:
        """Record wakes, and what goes wrong with them."""
        if isinstance(fact, Woken):
            waited = f"after {fact.waited_s * 1000:.1f} ms"
            self._add(fact.queue, "wake", "", f"to {self._name_of(fact.session)}: {fact.reason}, {waited}")
        elif isinstance(fact, StartMissed):
            self._add(fact.queue, "wake unanswered", "", f"{fact.asked} more are woken")
        elif isinstance(fact, OwnerStuck):
            self._add(fact.queue, "worker stuck", "", f"{self._name_of(fact.session)}; its work went to another")
        elif isinstance(fact, HandedBack):
            self._add(fact.queue, "taken back", "", f"{fact.count} messages that a worker did not accept")
        elif isinstance(fact, Unannounced):
            self._add(fact.queue, "found without a trigger", "", f"{fact.count} times: a publish was lost")

    def _add(self, queue: str, what: str, id_: str, detail: str = "") -> None:
        watch = self.watched.get(queue)
        if watch is not None and watch.until <= (now := self._clock()):
            self._forget_old(now)
        elif watch is not None:
            watch.last += 1
            watch.kept.append((watch.last, self._wall(), what, id_, detail[:_DETAIL_MAX]))

    def _forget_old(self, now: float) -> None:
        old = [name for name, watch in self.watched.items() if watch.until <= now]
        for name in old:
            del self.watched[name]
        if old and not self.watched:
            self._watching(False)


def _bounded(names: dict[str, Any]) -> None:
    if len(names) > EVENTS_MAX:
        del names[next(iter(names))]


def _seconds(moment: str) -> float:
    return from_rfc3339(moment).timestamp()


def _text(at: float) -> str:
    return rfc3339(datetime.datetime.fromtimestamp(at, datetime.UTC))
