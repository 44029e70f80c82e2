"""What happened on each queue during the last week, from facts; pure, and bounded in memory.

Rows are 5 s long for 5 minutes, 1 minute for an hour, 15 minutes for a day and 1 hour for a week. An idle queue costs
nothing: its rows change only with a fact, or when somebody reads them.
"""

from __future__ import annotations

import datetime
import heapq
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from queuebell.bridge.contract.cluster import PAST_TEXT_MAX, PAST_TEXTS_MAX, PastRow
from queuebell.bridge.contract.jobs import BOUNDS_S, OTHER, Spread
from queuebell.bridge.contract.times import rfc3339
from queuebell.bridge.contract.wire import MS_MAX
from queuebell.bridge.observe.facts import Fact, JobsTold, QueueMoved, ReceivesTold, SessionClosed, SessionOpened
from queuebell.bridge.observe.slices import Slices, sliced

QUEUES_MAX: Final = 500
"""Queues with a history: some 25 KB each. Where there are more, the busiest of the last 15 minutes have one."""
CLASSES_MAX: Final = 8
"""Classes of failures by name for each queue; the rest is `OTHER`."""
MARKS_MAX: Final = 32
CLOCKS_S: Final = 60
"""By how much another member's clock may be behind for what happened there to be shown in the same rows."""
_OTHERS_MAX: Final = 10_000
"""Queues without a history that are counted, to find those that are busier."""

Span = Literal["5m", "1h", "1d", "7d"]


class _Tier(NamedTuple):
    step_s: int
    rows: int
    first: int
    """The number of its first row in the array of all rows."""


TIERS: Final[Mapping[Span, _Tier]] = {
    "5m": _Tier(5, 60, 0),
    "1h": _Tier(60, 60, 60),
    "1d": _Tier(900, 96, 120),
    "7d": _Tier(3600, 168, 216),
}
_ROWS: Final = 384
_STEP_S: Final = 5
_REVIEW_S: Final = 900
FAILURE_STEP_S: Final = 300
_FAILURE_ROWS: Final = 288
SPANS: Final[tuple[Span, ...]] = get_args(Span)


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened on a queue in one step."""

    at: str
    """When the step began."""
    put: int = 0
    """Messages put; known for queues of the bridge only."""
    receives: int = 0
    """Receives, and wakes that carried messages."""
    empty: int = 0
    done: int = 0
    failed: int = 0
    """Failed attempts."""
    dead: int = 0
    """Attempts whose message became a dead letter."""
    started: int = 0
    """First attempts."""
    waited_ms: int = 0
    """The sum of their times from put to first attempt."""
    handling_ms: int = 0
    """The sum of the handlers' times."""
    waiting: int = 0
    """The most messages that were visible; known for queues of the bridge only."""
    left: int = 0
    """How many of them were left at the end of the step, and until the next one."""
    longest_ms: int = 0
    """An upper bound of the longest time from put to first attempt, in milliseconds; -1 above half an hour."""


COLUMNS: Final = HistoryRow.__struct_fields__[1:]
_WIDTH: Final = len(COLUMNS)
_PUT, _RECEIVES, _EMPTY, _DONE, _FAILED, _DEAD, _STARTED, _WAITED_MS, _HANDLING_MS = range(9)
_WAITING, _LEFT, _LONGEST_MS = range(9, _WIDTH)
_SUMS: Final = _WAITING
"""Columns before this one are sums."""
_LONGER_MS: Final = 2.0**31
_MOST: Final = 2.0**50
"""Of any count; exact as it is saved."""


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """Failed attempts of one class in five minutes."""

    at: str
    failure: str
    count: int


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was done to a queue, or to the bridge."""

    at: str
    what: str
    by: str = ""
    """The principal; empty without an access file."""


class QueueHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's history: steps without any event are left out."""

    span: Span
    step_s: int
    now: str
    kept: bool
    """False where the bridge keeps no history of this queue: others are busier, or nothing has happened."""
    since: str
    """When this history began; before, nothing is known."""
    rows: list[HistoryRow]
    failures: list[FailureRow]
    """Of the last day at most."""
    marks: list[Mark]


_Moment = Annotated[float, Meta(ge=0, le=4e9)]
_Marks = Annotated[list[tuple[_Moment, str, str]], Meta(max_length=MARKS_MAX)]


class _Kept(msgspec.Struct):
    """One queue as it is saved; arrays as bytes."""

    since: _Moment
    slots: bytes
    values: bytes
    failed: dict[str, bytes]
    failed_slot: Annotated[int, Meta(ge=0, le=2**32)]
    marks: _Marks


class Saved(msgspec.Struct):
    """All that is saved."""

    version: int
    queues: dict[str, _Kept]
    marks: _Marks


class _QueuePast:
    """One queue's rows. The row of the current 5 seconds is kept apart, and added to all tiers once it is over."""

    __slots__ = ("current", "events", "failed", "failed_slot", "marks", "since", "slot", "slots", "values", "workers")

    def __init__(self, now: float) -> None:
        self.since = now
        self.events = 0
        """Since the last review."""
        self.slot = 0.0
        self.current = [0.0] * _WIDTH
        self.slots = array("I", bytes(4 * _ROWS))
        self.values = array("f", bytes(4 * _ROWS * _WIDTH))
        self.failed: dict[str, array[int]] = {}
        self.failed_slot = 0
        self.marks: deque[tuple[float, str, str]] = deque(maxlen=MARKS_MAX)
        self.workers: deque[tuple[float, str, str]] = deque(maxlen=MARKS_MAX)
        """Of workers that came and went, since the bridge started."""

    def at(self, slot: float) -> list[float]:
        """Return the row of these 5 seconds, to be added to."""
        if slot != self.slot:
            self.close()
            self.slot = slot
        return self.current

    def close(self) -> None:
        """Add the current row to all tiers."""
        current = self.current
        if any(current):
            self.add(int(self.slot), current)
            self.current = [0.0] * _WIDTH
            self.current[_LEFT] = current[_LEFT]  # until it changes

    def add(self, step: int, more: list[float]) -> None:
        """Add a row of 5 seconds to all tiers."""
        values, slots = self.values, self.slots
        for step_s, rows, first in TIERS.values():
            slot = step * _STEP_S // step_s
            row = first + slot % rows
            begin = row * _WIDTH
            if slots[row] != slot:
                slots[row] = slot
                values[begin : begin + _WIDTH] = array("f", more)
                continue
            for column in range(_SUMS):
                values[begin + column] = min(values[begin + column] + more[column], _MOST)
            for column in (_WAITING, _LONGEST_MS):
                values[begin + column] = max(values[begin + column], more[column])
            values[begin + _LEFT] = more[_LEFT]

    def fail(self, now: float, failures: Mapping[str, int]) -> None:
        """Count failures by class; a step that is over a day old is overwritten."""
        slot = int(now) // FAILURE_STEP_S
        ahead = slot - self.failed_slot
        if ahead > 0 or ahead <= -_FAILURE_ROWS:  # a clock that was put back a little keeps what there is
            gone = range(self.failed_slot + 1, slot + 1) if 0 < ahead < _FAILURE_ROWS else range(_FAILURE_ROWS)
            for name, counts in list(self.failed.items()):
                for each in gone:
                    counts[each % _FAILURE_ROWS] = 0
                if not any(counts):
                    del self.failed[name]
            self.failed_slot = slot
        for name, count in failures.items():
            if name not in self.failed and len(self.failed) >= CLASSES_MAX:
                name = OTHER
            counts = self.failed.setdefault(name, array("I", bytes(4 * _FAILURE_ROWS)))
            place = slot % _FAILURE_ROWS
            counts[place] = min(2**32 - 1, counts[place] + count)

    def saved(self) -> _Kept:
        self.close()
        failed = {name: counts.tobytes() for name, counts in self.failed.items()}
        return _Kept(
            self.since, self.slots.tobytes(), self.values.tobytes(), failed, self.failed_slot, list(self.marks)
        )

    @classmethod
    def of(cls, kept: _Kept) -> _QueuePast:
        """Restore what was saved. Raises `ValueError` for another size, or what is no count."""
        past = cls(kept.since)
        arrays: list[tuple[array[Any], bytes]] = [(past.slots, kept.slots), (past.values, kept.values)]
        for name, raw in list(kept.failed.items())[: CLASSES_MAX + 1]:
            past.failed[name] = array("I", bytes(4 * _FAILURE_ROWS))
            arrays.append((past.failed[name], raw))
        for into, raw in arrays:
            if len(raw) != len(into) * into.itemsize:
                raise ValueError("a row of another size")
            memoryview(into).cast("B")[:] = raw
        if not all(0 <= value <= _MOST for value in past.values):
            raise ValueError("a count out of range")
        past.failed_slot = kept.failed_slot
        past.marks.extend(kept.marks)
        return past


class _Unsent:
    """What happened on a queue here since the last `History.take`."""

    __slots__ = ("failures", "marks", "row", "workers")

    def __init__(self) -> None:
        self.row = [0.0] * _WIDTH
        self.failures: Counter[str] = Counter()
        self.marks: deque[tuple[str, str]] = deque(maxlen=PAST_TEXTS_MAX)
        self.workers: deque[str] = deque(maxlen=PAST_TEXTS_MAX)

    def row_to_send(self) -> PastRow:
        numbers = {name: min(MS_MAX, round(value)) for name, value in zip(COLUMNS, self.row, strict=True) if value}
        for name in ("waiting", "left"):  # of queues of this bridge, which no other has
            numbers.pop(name, None)
        if numbers.get("longest_ms", 0) >= _LONGER_MS:
            numbers["longest_ms"] = -1
        failures = {_shown(name): count for name, count in self.failures.most_common(CLASSES_MAX)}
        if (rest := self.failures.total() - sum(failures.values())) > 0:
            failures[OTHER] = failures.get(OTHER, 0) + rest
        marks = [(_shown(what), _shown(by)) for what, by in self.marks]
        return PastRow(**numbers, failures=failures, marks=marks, workers=list(map(_shown, self.workers)))


class History:
    """An observer of facts that keeps the past of the 500 busiest queues, by the wall clock ``clock``.

    A queue's past belongs to its name: a queue that is deleted and made again goes on with it. ``queues_of`` returns
    the queues of a session.
    """

    def __init__(
        self, clock: Callable[[], float] = time.time, queues_of: Callable[[int], Iterable[str]] = lambda _: ()
    ) -> None:
        self.changed = False
        """Whether anything happened since `save`."""
        self._clock = clock
        self._queues_of = queues_of
        self._sessions: dict[int, tuple[str, ...]] = {}
        self._queues: dict[str, _QueuePast] = {}
        self._all = _QueuePast(0.0)
        """Failures of all queues, since the start."""
        self._unsent: dict[str, _Unsent] | None = None
        self._others: dict[str, int] = {}
        self._review_at = clock() + _REVIEW_S
        self._marks: deque[tuple[float, str, str]] = deque(maxlen=MARKS_MAX)
        self._on: dict[type[Fact], Callable[[Any], None]] = {
            QueueMoved: self._moved,
            ReceivesTold: self._told,
            JobsTold: self._ended,
            SessionOpened: self._came,
            SessionClosed: self._went,
        }

    def __call__(self, fact: Fact) -> None:
        """Count one fact."""
        on = self._on.get(type(fact))
        if on is not None:
            on(fact)

    def _came(self, fact: SessionOpened) -> None:
        self._sessions[fact.session] = queues = tuple(self._queues_of(fact.session))
        self._mark_all(queues, f"worker {fact.listener} came")

    def _went(self, fact: SessionClosed) -> None:
        self._mark_all(self._sessions.pop(fact.session, ()), f"worker {fact.listener} went: {fact.reason}")

    def _moved(self, fact: QueueMoved) -> None:
        # No history for each queue that a bridge finds at its start.
        for row in self._rows(fact.queue, new=bool(fact.put or fact.receives)):
            row[_PUT] += fact.put
            row[_RECEIVES] += fact.receives
            row[_EMPTY] += fact.empty
            row[_WAITING] = max(row[_WAITING], fact.visible)
            row[_LEFT] = fact.visible

    def _told(self, fact: ReceivesTold) -> None:
        for row in self._rows(fact.queue):
            row[_RECEIVES] += fact.found + fact.empty
            row[_EMPTY] += fact.empty

    def _ended(self, fact: JobsTold) -> None:
        rows, more = self._rows(fact.queue), fact.more
        for row in rows:
            row[_DONE] += more.outcomes.get("done", 0)
            row[_FAILED] += sum(more.failures.values())
            row[_DEAD] += more.outcomes.get("buried", 0)
            row[_STARTED] += sum(more.waiting.counts)
            row[_WAITED_MS] += more.waiting.total_ms
            row[_HANDLING_MS] += more.handling.total_ms
            row[_LONGEST_MS] = max(row[_LONGEST_MS], _longest_ms(more.waiting))
        if more.failures:
            now = self._clock()
            self._all.at(now // _STEP_S)[_FAILED] += sum(more.failures.values())
            if rows:
                self._queues[fact.queue].fail(now, more.failures)
                if self._unsent is not None:
                    self._unsent_of(fact.queue).failures.update(more.failures)

    def _rows(self, queue: str, *, new: bool = True) -> Sequence[list[float]]:
        """Return the rows to be added to: that of the current 5 seconds, and what others have not been told.

        None of a queue without a history.
        """
        now = self._clock()
        if not now < self._review_at <= now + _REVIEW_S:  # also where the clock was put back
            self._choose(now)
        past = self._queues.get(queue)
        if past is None and new:
            past = self._new(queue, now)
        if past is None:
            return ()
        self.changed = True
        past.events += 1
        slot = now // _STEP_S
        row = past.current if slot == past.slot else past.at(slot)
        return (row,) if self._unsent is None else (row, self._unsent_of(queue).row)

    def _unsent_of(self, queue: str) -> _Unsent:
        assert self._unsent is not None
        return self._unsent.setdefault(queue, _Unsent())

    def take(self) -> tuple[int, dict[str, PastRow]]:
        """Return what happened here since the last call, and the number of the current 5 seconds; first nothing."""
        taken, self._unsent = self._unsent or {}, {}
        return int(self._clock()) // _STEP_S, {queue: unsent.row_to_send() for queue, unsent in taken.items()}

    def add_past(self, step: int, rows: Mapping[str, PastRow]) -> None:
        """Add what happened at another member; as if it were now if its clock is ahead, or over a minute behind."""
        now = self._clock()
        here = int(now) // _STEP_S
        if not here - CLOCKS_S // _STEP_S <= step <= here:
            step = here
        for queue, more in rows.items():
            past = self._queues.get(queue) or self._new(queue, now)
            row = [float(getattr(more, name, 0)) for name in COLUMNS]
            row[_LONGEST_MS] = _LONGER_MS if more.longest_ms < 0 else row[_LONGEST_MS]
            if more.failed:
                self._all.add(step, row)
            if past is not None:
                self.changed = True
                past.events += 1
                past.add(step, row)
                past.fail(now, more.failures)
                past.marks.extend((now, what, by) for what, by in more.marks)
                past.workers.extend((now, what, "") for what in more.workers)

    def mark(self, what: str, by: str = "", queue: str = "") -> None:
        """Record what was done to a queue, or to the bridge, which every queue's history shows."""
        now = self._clock()
        past = self._queues.get(queue) or self._new(queue, now) if queue else None
        if past is not None or not queue:
            (self._marks if past is None else past.marks).append((now, what, by))
            self.changed = True
        if past is not None and self._unsent is not None:
            self._unsent_of(queue).marks.append((what, by))

    def _mark_all(self, queues: Iterable[str], what: str) -> None:
        """Mark the queues that have a history; many workers push out only each other."""
        now = self._clock()
        for queue in queues:
            past = self._queues.get(queue)
            if past is not None:
                past.workers.append((now, what, ""))
                if self._unsent is not None:
                    self._unsent_of(queue).workers.append(what)

    def __contains__(self, queue: str) -> bool:
        """Return whether anything is known of a queue."""
        return queue in self._queues

    def read(self, queue: str, span: Span) -> QueueHistory:
        """Return the rows of a span that ends now, oldest first; none of a queue of which nothing is known."""
        now = self._clock()
        past = self._queues.get(queue) or _QueuePast(now)
        past.close()
        step_s, rows, first = TIERS[span]
        newest = int(now) // step_s
        found = []
        for slot in range(newest - rows + 1, newest + 1):
            row = first + slot % rows
            if past.slots[row] == slot:
                values = past.values[row * _WIDTH : (row + 1) * _WIDTH]
                found.append(_row(slot * step_s, values))
        begin = (newest - rows + 1) * step_s
        marks = [each for each in heapq.merge(self._marks, past.marks, past.workers) if each[0] >= begin]
        return QueueHistory(
            span=span,
            step_s=step_s,
            now=_text(now),
            kept=queue in self._queues,
            since=_text(past.since),
            rows=found,
            failures=_failures(past, begin, now),
            marks=[Mark(at=_text(at), what=what, by=by) for at, what, by in marks],
        )

    def failed(self, queue: str = "") -> int | None:
        """Return the failed attempts of the last 5 minutes, of all queues by default; None without a history."""
        past = self._queues.get(queue) if queue else self._all
        if past is None:
            return None
        step_s, rows, first = TIERS["5m"]
        newest = int(self._clock()) // step_s
        slots, values = past.slots, past.values
        counted = range(newest - rows + 1, newest + 1)
        kept = sum(values[row * _WIDTH + _FAILED] for row in range(first, first + rows) if slots[row] in counted)
        return round(kept + past.current[_FAILED]) if int(past.slot) in counted else round(kept)

    def save(self) -> Slices[Saved]:
        """Copy all that is kept, slice by slice; the copy may be written in any thread."""
        self.changed = False
        queues: dict[str, _Kept] = {}
        for part in sliced(self._queues.items(), 20):
            queues |= {name: past.saved() for name, past in part}
            yield
        return Saved(1, queues, list(self._marks))

    def restore(self, saved: Saved) -> None:
        """Begin with what was saved; in any thread, before any fact. Raises `ValueError` if it cannot be read."""
        if saved.version != 1:
            raise ValueError(f"version {saved.version}")
        self._queues = {name: _QueuePast.of(kept) for name, kept in list(saved.queues.items())[:QUEUES_MAX]}
        _, rows, first = TIERS["5m"]
        for past in self._queues.values():
            for row in range(first, first + rows):
                failed = [0.0] * _WIDTH
                failed[_FAILED] = past.values[row * _WIDTH + _FAILED]
                if failed[_FAILED]:
                    self._all.add(past.slots[row], failed)
        self._marks.extend(saved.marks)

    def _new(self, queue: str, now: float) -> _QueuePast | None:
        """Begin a history, or only count the queue where there is no room."""
        if len(self._queues) < QUEUES_MAX:
            past = self._queues[queue] = _QueuePast(now)
            return past
        if queue in self._others or len(self._others) < _OTHERS_MAX:
            self._others[queue] = self._others.get(queue, 0) + 1
        return None

    def _choose(self, now: float) -> None:
        """Give queues that were busier since the last review a history instead of those that were less so."""
        self._review_at = now + _REVIEW_S
        busiest = heapq.nlargest(QUEUES_MAX, ((count, name) for name, count in self._others.items()))
        idlest = heapq.nsmallest(len(busiest), ((past.events, name) for name, past in self._queues.items()))
        for (count, name), (events, old) in zip(busiest, idlest, strict=False):
            if count <= events:
                break
            del self._queues[old]
            if self._unsent is not None:
                self._unsent.pop(old, None)
            self._queues[name] = _QueuePast(now)
        self._others.clear()
        for past in self._queues.values():
            past.events = 0


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:PAST_TEXT_MAX])


def _longest_ms(spread: Spread) -> float:
    for number in range(len(spread.counts) - 1, -1, -1):
        if spread.counts[number]:
            return 1000 * BOUNDS_S[number] if number < len(BOUNDS_S) else _LONGER_MS
    return 0.0


def _row(at: float, values: array[float]) -> HistoryRow:
    numbers = dict(zip(COLUMNS, map(round, values), strict=True))
    if numbers["longest_ms"] >= _LONGER_MS:
        numbers["longest_ms"] = -1
    return HistoryRow(at=_text(at), **numbers)


def _failures(past: _QueuePast, begin: float, now: float) -> list[FailureRow]:
    newest = int(now) // FAILURE_STEP_S
    first = max(int(begin) // FAILURE_STEP_S, newest - _FAILURE_ROWS + 1, past.failed_slot - _FAILURE_ROWS + 1)
    return [
        FailureRow(at=_text(slot * FAILURE_STEP_S), failure=name, count=count)
        for slot in range(first, min(newest, past.failed_slot) + 1)
        for name, counts in past.failed.items()
        if (count := counts[slot % _FAILURE_ROWS])
    ]


def _text(at: float) -> str:
    return rfc3339(datetime.datetime.fromtimestamp(at, datetime.UTC))
