"""What the page shows, made of what the bridge knows anyway: no store is asked for it, and nothing is changed.

A view is bounded, however many queues and listeners there are: it has `ROWS` rows, sorted and filtered here.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bridge.contract.names import POISON_SUFFIX
from bridge.core.pending_work import PendingWork
from bridge.core.sessions import Session
from bridge.core.wake_scheduler import WakeScheduler
from bridge.observe.slices import SLICE, Slices, sliced
from bridge.service.state.answers import Check, Cluster, Explained, ListenerState, QueueState
from bridge.service.state.content import DeadLetterCount, buried, content, newest_counts
from bridge.service.state.status import listener
from bridge.service.state.trouble import Troubles, in_trouble, is_silent

ROWS: Final = 100

Sort = Literal["trouble", "name", "waiting", "leased", "buried", "listeners", "triggers", "receives"]


class Wanted(msgspec.Struct, frozen=True):
    """Which rows of a list: from number ``first`` on, of those with ``filter`` in their name, in the order ``sort``."""

    filter: Annotated[str, Meta(max_length=200)] = ""
    sort: Sort = "trouble"
    first: Annotated[int, Meta(ge=0, le=10_000_000)] = 0


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of the list; counters since the bridge started."""

    queue: str
    visible: int | None
    """None where it is not known: a queue elsewhere whose listeners were told of no number yet."""
    invisible: int | None
    leased: int | None
    """None where the store does not tell it apart from what is delayed; likewise ``delayed``."""
    delayed: int | None
    oldest_ms: int | None
    """For how long the message that has been visible longest has waited; None where none is, or it is not known."""
    counted_ms: int | None
    """How old these numbers are; None where they are the bridge's own, and of now."""
    at_least: bool
    waiting_ms: int | None
    """For how long work has waited: the oldest message, or where its age is not known what was announced since its
    queue was last found empty; None where nothing waits."""
    buried: int | None
    """Messages in its poison queue; None where nobody has told, and for a reader who may not look there."""
    buried_ms: int | None
    """How old that number is; None where it is of now."""
    untold: dict[str, str]
    """What is not known, and why (`bridge.service.state.answers.Content`)."""
    running_ms: int | None
    """For how long the longest of its handlers has run, None where all are quick."""
    listeners: int
    paused: bool
    dirty: bool
    triggers: int
    receives: int
    empty: int
    handled: int
    """Attempts of handlers that ended, as their workers told, whatever became of them."""
    failed: int
    """Those of them that failed, whatever followed."""
    trouble: str | None
    """In words: work that nobody looks at or that nobody tells of, receives that fail, a handler that hangs."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all queues that the reader may see."""

    queues: int
    visible: int
    leased: int
    buried: int
    troubled: int
    triggers: int
    receives: int
    empty: int


class Self(msgspec.Struct, frozen=True, kw_only=True):
    """The bridge itself, for whom it is granted."""

    boot: str
    draining: bool
    sessions: int
    ready: bool
    checks: dict[str, Check]
    cluster: Cluster
    latency: dict[str, list[float]]
    """Of ``wake`` and ``start``, how many there were up to each of ``bounds``, and at last in all; since the start."""
    bounds: list[float]


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """The list of queues, and what stands above it."""

    found: int
    """How many there are with this filter."""
    first: int
    rows: list[QueueRow]
    totals: Totals
    bridge: Self | UnsetType = UNSET


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """How far the newest replay or discard of a queue is."""

    what: str
    """``replayed`` or ``discarded``."""
    running: bool
    moved: int
    stay: int
    """Chosen, and not moved: where they should go is not known, or not granted."""
    twice: int
    """Put, and not deleted here: they may be handled twice."""
    error: str


class RunningRow(msgspec.Struct, frozen=True, kw_only=True):
    """The message whose handler has run longest in one listener."""

    listener: str
    instance: str
    id: str
    attempt: int
    ms: int


class OneQueue(msgspec.Struct, frozen=True, kw_only=True):
    """One queue; ``row`` None for one that was never heard of."""

    row: QueueRow | None
    state: QueueState | None = None
    explained: Explained | None = None
    run: Run | None = None
    running: list[RunningRow] = []
    """The longest first, of handlers that have run for some seconds."""
    buses: dict[str, int] = {}
    """Triggers by the bus that they came by."""
    triggered_ms: int | None = None
    """How long ago the newest of them came."""


class ListenerRows(msgspec.Struct, frozen=True, kw_only=True):
    """The list of listeners."""

    found: int
    first: int
    rows: list[ListenerState]


def row(
    scheduler: WakeScheduler, work: PendingWork, now: float, troubles: Troubles, sees: Callable[[str], bool]
) -> QueueRow:
    """Return how one queue stands, to a reader who ``sees`` queues of these names."""
    known = content(scheduler, work, now, sees)
    depth = known.get("depth")
    graves = _graves(scheduler, work, sees)
    told = (work.jobs or {}).values()
    waits = work.waits or bool(depth and depth.visible)
    oldest_ms = known.get("oldest_ms")
    since = work.visible_since if work.visible else work.marked_at
    return QueueRow(
        queue=work.queue,
        visible=None if depth is None else depth.visible + _held_back(work),
        invisible=None if depth is None else depth.invisible - _held_back(work),
        leased=known.get("leased"),
        delayed=known.get("delayed"),
        oldest_ms=oldest_ms,
        counted_ms=known.get("depth_age_ms"),
        at_least=known.get("depth_at_least", False),
        waiting_ms=oldest_ms if oldest_ms is not None else max(0, round((now - since) * 1000)) if waits else None,
        buried=None if graves is None else graves.messages,
        buried_ms=None if graves is None or graves.at is None else round((now - graves.at) * 1000),
        untold=known["untold"],
        running_ms=troubles.running_ms(work),
        listeners=len(work.sessions),
        paused=work.paused,
        dirty=work.dirty,
        triggers=work.triggers,
        receives=work.receives,
        empty=work.empty,
        handled=sum(sum(jobs.outcomes.values()) for jobs in told),
        failed=sum(sum(jobs.failures.values()) for jobs in told),
        trouble=troubles.of(work),
    )


def queues(scheduler: WakeScheduler, now: float, wanted: Wanted, sees: Callable[[str], bool]) -> Slices[Queues]:
    """Gather the list of the queues that the reader ``sees``."""
    look_for = wanted.filter.casefold()
    order = _ORDERS[wanted.sort]
    troubles = Troubles(scheduler, now)
    yield from troubles.gather()
    most = wanted.first + ROWS
    chosen: list[list[tuple[float, str, PendingWork]]] = []
    visible = leased = troubled = triggers = receives = empty = seen = matching = 0
    graves: dict[str, int] = {}
    for part in sliced(scheduler.ledger.by_queue.values()):
        found: list[tuple[float, str, PendingWork]] = []
        for work in part:
            if not sees(work.queue):
                continue
            seen += 1
            visible += counts(work)[0]
            leased += _leased(work)
            if work.queue.endswith(POISON_SUFFIX):
                graves.setdefault(work.queue, messages(work))
            elif work.buried is not None and (told := _graves(scheduler, work, sees)) is not None:
                graves[told.queue] = told.messages
            trouble = troubles.of(work) is not None
            troubled += trouble
            triggers += work.triggers
            receives += work.receives
            empty += work.empty
            if look_for in work.queue.casefold():
                below = _graves(scheduler, work, sees) if wanted.sort == "buried" else None
                found.append((order(work, trouble, 0 if below is None else below.messages), work.queue, work))
        matching += len(found)
        if most <= SLICE and chosen:
            found += chosen.pop()  # of a first page no more is kept than is shown
        chosen.append(sorted(found)[:most])
        yield
    shown: list[PendingWork] = []
    for entry, (_, _, work) in enumerate(itertools.islice(heapq.merge(*chosen), most)):
        if entry >= wanted.first:
            shown.append(work)
        elif entry % SLICE == 0:
            yield
    while chosen:
        del chosen[-20:]  # to let go of thousands takes milliseconds too
        yield
    rows: list[QueueRow] = []
    for part in sliced(shown, 20):
        rows += (row(scheduler, work, now, troubles, sees) for work in part)
        yield
    return Queues(
        found=matching,
        first=wanted.first,
        rows=rows,
        totals=Totals(
            queues=seen,
            visible=visible,
            leased=leased,
            buried=sum(graves.values()),
            troubled=troubled,
            triggers=triggers,
            receives=receives,
            empty=empty,
        ),
    )


def listeners(
    scheduler: WakeScheduler, now: float, plain: Iterable[ListenerState], wanted: Wanted
) -> Slices[ListenerRows]:
    """Gather the list of sessions and of ``plain`` subscribers; a filter looks at names of theirs and of their queues.

    Only those that are shown are described: there may be ten thousand.
    """
    look_for = wanted.filter.casefold()
    chosen: list[tuple[bool, str, Session | ListenerState]] = []
    for part in sliced(scheduler.sessions.named()):
        chosen += (
            (not _session_troubled(scheduler, session, now), session.listener, session)
            for session in part
            if _names(look_for, session.listener, session.queues)
        )
        yield
    chosen += [
        (each.state in {UNSET, "ok"}, each.listener, each)
        for each in plain
        if _names(look_for, each.listener, (held.queue for held in each.queues))
    ]
    by_trouble = wanted.sort == "trouble"
    chosen.sort(key=lambda each: (by_trouble and each[0], each[1]))
    cut = [each for _, _, each in chosen[wanted.first : wanted.first + ROWS]]
    there = (each for each in cut if not isinstance(each, Session) or scheduler.sessions.get(each.id) is each)
    rows = [listener(scheduler, each, now) if isinstance(each, Session) else each for each in there]
    return ListenerRows(
        found=len(chosen),
        first=wanted.first,
        rows=[msgspec.structs.replace(each, queues=each.queues[:ROWS]) for each in rows],
    )


def running(scheduler: WakeScheduler, queue: str, now: float) -> list[RunningRow]:
    """Return whose handlers have run longest on a queue."""
    work = scheduler.ledger.find(queue)
    sessions = [scheduler.sessions.get(entry.session) for entry in (() if work is None else work.sessions)]
    rows = [
        RunningRow(
            listener=session.listener,
            instance=session.instance or "",
            id=held.id,
            attempt=held.attempt,
            ms=max(0, round(1000 * (now - held.since))),
        )
        for session in sessions
        if session is not None and (held := session.running.get(queue)) is not None
    ]
    return sorted(rows, key=lambda each: -each.ms)[:ROWS]


def _names(look_for: str, name: str, queues: Iterable[str]) -> bool:
    return not look_for or look_for in name.casefold() or any(look_for in queue.casefold() for queue in queues)


def _session_troubled(scheduler: WakeScheduler, session: Session, now: float) -> bool:
    return is_silent(scheduler, session, now) or any(in_trouble(entry) for entry in session.queues.values())


def counts(work: PendingWork) -> tuple[int, int]:
    """Return what waits and what is invisible, 0 where it is not known."""
    known = newest_counts(work)
    held = _held_back(work)
    return (0, 0) if known is None else (known.visible + held, known.invisible - held)


def _held_back(work: PendingWork) -> int:
    """Return how many messages wait for the end of a pause: its store counts them as invisible, and people do not."""
    return work.invisible - work.leased - work.delayed if work.paused and newest_counts(work) is work else 0


def _leased(work: PendingWork) -> int:
    known = newest_counts(work)
    return 0 if known is None else known.leased or 0


def messages(work: PendingWork) -> int:
    """Return how many messages are known to be in a queue."""
    return sum(counts(work))


def _graves(scheduler: WakeScheduler, work: PendingWork, sees: Callable[[str], bool]) -> DeadLetterCount | None:
    """Return what is known of a queue's poison queue, of one that the reader may look at."""
    known = buried(scheduler, work)
    return known if known is not None and sees(known.queue) else None


_ORDERS: Final[dict[str, Callable[[PendingWork, bool, int], float]]] = {
    "trouble": lambda work, trouble, buried: -1e18 * trouble - counts(work)[0],
    "name": lambda work, trouble, buried: 0.0,
    "waiting": lambda work, trouble, buried: -counts(work)[0],
    "leased": lambda work, trouble, buried: -_leased(work),
    "buried": lambda work, trouble, buried: -buried,
    "listeners": lambda work, trouble, buried: -len(work.sessions),
    "triggers": lambda work, trouble, buried: -work.triggers,
    "receives": lambda work, trouble, buried: -work.receives,
}
