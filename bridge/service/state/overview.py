"""Build the views of the page from the bridge's state; calls no store, changes nothing.

A view has at most `ROWS` rows, sorted and filtered here, however many queues and listeners there are.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.sessions import Session
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.history import History
from queuebell.bridge.observe.slices import SLICE, Slices, sliced
from queuebell.bridge.service.state.answers import Check, Cluster, Explained, ListenerState, QueueState
from queuebell.bridge.service.state.content import DeadLetterCount, buried, content, newest_counts, oldest_since
from queuebell.bridge.service.state.status import listener
from queuebell.bridge.service.state.trouble import Troubles, in_trouble, is_silent

ROWS: Final = 100

Sort = Literal["trouble", "name", "waiting", "leased", "buried", "listeners", "triggers", "receives"]


class Wanted(msgspec.Struct, frozen=True):
    """Selects rows of a list: those with ``filter`` in their name, in the order ``sort``, from number ``first`` on.

    Of queues ``only`` those in trouble, with dead letters or paused.
    """

    filter: Annotated[str, Meta(max_length=200)] = ""
    only: Literal["all", "trouble", "buried", "paused"] = "all"
    sort: Sort = "trouble"
    first: Annotated[int, Meta(ge=0, le=10_000_000)] = 0


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of the list; counters since the bridge started."""

    queue: str
    visible: int | None
    """None if unknown: the listeners of an external store have not reported it yet."""
    invisible: int | None
    leased: int | None
    """None if the store does not distinguish leased from delayed messages; so is ``delayed``."""
    delayed: int | None
    oldest_ms: int | None
    """Time for which the oldest visible message has waited; None if there is none, or it is unknown."""
    counted_ms: int | None
    """Age of these counts; None if they are the bridge's own and current."""
    at_least: bool
    waiting_ms: int | None
    """Time for which work has waited: the age of the oldest message, or, if unknown, of the first announcement since
    the last empty receive; None if nothing waits."""
    buried: int | None
    """Dead letters in its poison queue; None if unknown, or if the reader may not see that queue."""
    buried_ms: int | None
    """Age of that count; None if it is current."""
    untold: dict[str, str]
    """Unknown fields, and why (`queuebell.bridge.service.state.answers.Content`)."""
    running_ms: int | None
    """Run time of its longest-running handler; None if all are quick."""
    listeners: int
    paused: bool
    dirty: bool
    triggers: int
    receives: int
    empty: int
    handled: int
    """Ended attempts, with any outcome, as workers reported."""
    failed: int
    """Failed attempts among them."""
    failed_5m: int | None
    """Failed attempts of the last 5 minutes; None if the bridge keeps no history of the queue."""
    trouble: str | None
    """Describes unattended or unannounced work, failing receives or a hanging handler."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of all queues that the reader may see."""

    queues: int
    visible: int
    """Without dead letters."""
    leased: int
    oldest_ms: int
    """For how long the oldest work waits, dead letters left out; 0 if none does."""
    buried: int
    troubled: int
    triggers: int
    receives: int
    empty: int


class Self(msgspec.Struct, frozen=True, kw_only=True):
    """The bridge itself, for readers with that permission."""

    boot: str
    draining: bool
    sessions: int
    ready: bool
    checks: dict[str, Check]
    cluster: Cluster
    latency: dict[str, list[float]]
    """Of ``wake`` and ``start``: the counts up to each of ``bounds``, then the total, since the start."""
    bounds: list[float]
    failed_5m: int
    """Failed attempts of the last 5 minutes, of all queues."""


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """The list of queues, with totals."""

    found: int
    """Number of queues that match the filter."""
    first: int
    rows: list[QueueRow]
    totals: Totals
    bridge: Self | UnsetType = UNSET


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a queue's newest replay or discard."""

    what: str
    """``replayed`` or ``discarded``."""
    running: bool
    moved: int
    stay: int
    """Selected but not moved: their destination is unknown, or not granted."""
    why: str
    """Why the newest of those stays; empty if none does."""
    twice: int
    """Put but not deleted here: they may be handled twice."""
    error: str


class RunningRow(msgspec.Struct, frozen=True, kw_only=True):
    """A listener's message with the longest-running handler."""

    listener: str
    instance: str
    id: str
    attempt: int
    ms: int


class OneQueue(msgspec.Struct, frozen=True, kw_only=True):
    """One queue; ``row`` is None if it is unknown."""

    row: QueueRow | None
    state: QueueState | None = None
    explained: Explained | None = None
    run: Run | None = None
    running: list[RunningRow] = []
    """Handlers that have run for some seconds, the longest first."""
    buses: dict[str, int] = {}
    """Triggers by bus."""
    triggered_ms: int | None = None
    """Age of the newest trigger."""


class ListenerRows(msgspec.Struct, frozen=True, kw_only=True):
    """The list of listeners."""

    found: int
    first: int
    rows: list[ListenerState]


def row(
    scheduler: WakeScheduler,
    work: PendingWork,
    now: float,
    troubles: Troubles,
    sees: Callable[[str], bool],
    history: History | None = None,
) -> QueueRow:
    """Return the row of one queue; dead letters only if ``sees`` accepts the poison queue."""
    known = content(scheduler, work, now, sees)
    depth = known.get("depth")
    dead = _dead_letters(scheduler, work, sees)
    reported = (work.jobs or {}).values()
    waits = work.waits or bool(depth and depth.visible)
    oldest_ms = known.get("oldest_ms")
    since = work.visible_since if work.visible else work.requested_at
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
        buried=None if dead is None else dead.messages,
        buried_ms=None if dead is None or dead.at is None else round((now - dead.at) * 1000),
        untold=known["untold"],
        running_ms=troubles.running_ms(work),
        listeners=len(work.sessions),
        paused=work.paused,
        dirty=work.dirty,
        triggers=work.triggers,
        receives=work.receives,
        empty=work.empty,
        handled=sum(sum(jobs.outcomes.values()) for jobs in reported),
        failed=sum(sum(jobs.failures.values()) for jobs in reported),
        failed_5m=None if history is None else history.failed(work.queue),
        trouble=troubles.of(work),
    )


def queues(
    scheduler: WakeScheduler,
    now: float,
    wanted: Wanted,
    sees: Callable[[str], bool],
    history: History | None = None,
) -> Slices[Queues]:
    """Build the list of the queues that ``sees`` accepts."""
    pattern = wanted.filter.casefold()
    order = _ORDERS[wanted.sort]
    troubles = Troubles(scheduler, now)
    yield from troubles.gather()
    most = wanted.first + ROWS
    chosen: list[list[tuple[float, str, PendingWork]]] = []
    visible = leased = troubled = triggers = receives = empty = seen = matching = 0
    oldest = now
    dead: dict[str, int] = {}
    for part in sliced(scheduler.pending.by_queue.values()):
        found: list[tuple[float, str, PendingWork]] = []
        for work in part:
            if not sees(work.queue):
                continue
            seen += 1
            leased += _leased(work)
            if work.queue.endswith(POISON_SUFFIX):
                dead.setdefault(work.queue, messages(work))
            else:
                # A dead letter waits for a person, not for a worker.
                visible += counts(work)[0]
                if (since := oldest_since(work)) is None and work.waits:
                    since = work.visible_since if work.visible else work.requested_at
                oldest = oldest if since is None else min(oldest, since)
            if work.buried is not None and (known := _dead_letters(scheduler, work, sees)) is not None:
                dead[known.queue] = known.messages
            trouble = troubles.of(work) is not None
            troubled += trouble
            triggers += work.triggers
            receives += work.receives
            empty += work.empty
            if pattern in work.queue.casefold():
                counted = wanted.only == "buried" or wanted.sort in ("trouble", "buried")
                letters = _dead_letters(scheduler, work, sees) if counted else None
                below = 0 if letters is None else letters.messages
                if wanted.only == "all" or _ONLY[wanted.only](work, trouble, below):
                    found.append((order(work, trouble, below), work.queue, work))
        matching += len(found)
        if most <= SLICE and chosen:
            found += chosen.pop()  # for a first page, keep only the rows shown
        chosen.append(sorted(found)[:most])
        yield
    shown: list[PendingWork] = []
    for entry, (_, _, work) in enumerate(itertools.islice(heapq.merge(*chosen), most)):
        if entry >= wanted.first:
            shown.append(work)
        elif entry % SLICE == 0:
            yield
    while chosen:
        del chosen[-20:]  # freeing thousands at once takes milliseconds
        yield
    rows: list[QueueRow] = []
    for part in sliced(shown, 20):
        rows += (row(scheduler, work, now, troubles, sees, history) for work in part)
        yield
    return Queues(
        found=matching,
        first=wanted.first,
        rows=rows,
        totals=Totals(
            queues=seen,
            visible=visible,
            leased=leased,
            oldest_ms=max(0, round(1000 * (now - oldest))),
            buried=sum(dead.values()),
            troubled=troubled,
            triggers=triggers,
            receives=receives,
            empty=empty,
        ),
    )


def listeners(
    scheduler: WakeScheduler, now: float, plain: Iterable[ListenerState], wanted: Wanted
) -> Slices[ListenerRows]:
    """Build the list of sessions and ``plain`` subscribers; the filter matches their names and those of their queues.

    Only rows that are shown are described, as there may be ten thousand.
    """
    pattern = wanted.filter.casefold()
    chosen: list[tuple[bool, str, Session | ListenerState]] = []
    for part in sliced(scheduler.sessions.named()):
        chosen += (
            (not _session_troubled(scheduler, session, now), session.listener, session)
            for session in part
            if _names(pattern, session.listener, session.queues)
        )
        yield
    chosen += [
        (each.state in {UNSET, "ok"}, each.listener, each)
        for each in plain
        if _names(pattern, each.listener, (held.queue for held in each.queues))
    ]
    by_trouble = wanted.sort == "trouble"
    chosen.sort(key=lambda each: (by_trouble and each[0], each[1]))
    cut = [each for _, _, each in chosen[wanted.first : wanted.first + ROWS]]
    present = (each for each in cut if not isinstance(each, Session) or scheduler.sessions.get(each.id) is each)
    rows = [listener(scheduler, each, now) if isinstance(each, Session) else each for each in present]
    return ListenerRows(
        found=len(chosen),
        first=wanted.first,
        rows=[msgspec.structs.replace(each, queues=each.queues[:ROWS]) for each in rows],
    )


def running(scheduler: WakeScheduler, queue: str, now: float) -> list[RunningRow]:
    """Return the longest-running handlers of a queue."""
    work = scheduler.pending.find(queue)
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


def _names(pattern: str, name: str, queues: Iterable[str]) -> bool:
    return not pattern or pattern in name.casefold() or any(pattern in queue.casefold() for queue in queues)


def _session_troubled(scheduler: WakeScheduler, session: Session, now: float) -> bool:
    return is_silent(scheduler, session, now) or any(in_trouble(entry) for entry in session.queues.values())


def counts(work: PendingWork) -> tuple[int, int]:
    """Return the numbers of visible and invisible messages, 0 if unknown."""
    known = newest_counts(work)
    held = _held_back(work)
    return (0, 0) if known is None else (known.visible + held, known.invisible - held)


def _held_back(work: PendingWork) -> int:
    """Return the number of messages that a pause holds back: the store counts them as invisible, the page does not."""
    return work.invisible - work.leased - work.delayed if work.paused and newest_counts(work) is work else 0


def _leased(work: PendingWork) -> int:
    known = newest_counts(work)
    return 0 if known is None else known.leased or 0


def messages(work: PendingWork) -> int:
    """Return the known number of messages in a queue."""
    return sum(counts(work))


def _dead_letters(scheduler: WakeScheduler, work: PendingWork, sees: Callable[[str], bool]) -> DeadLetterCount | None:
    """Return the count of a queue's dead letters, if ``sees`` accepts the poison queue."""
    known = buried(scheduler, work)
    return known if known is not None and sees(known.queue) else None


_ONLY: Final[dict[str, Callable[[PendingWork, bool, int], bool]]] = {
    "trouble": lambda work, trouble, buried: trouble,
    "paused": lambda work, trouble, buried: work.paused,
    # A poison queue by itself, too: nothing may be known of the queue above it.
    "buried": lambda work, trouble, buried: buried > 0 or (work.queue.endswith(POISON_SUFFIX) and messages(work) > 0),
}
_ORDERS: Final[dict[str, Callable[[PendingWork, bool, int], float]]] = {
    "trouble": lambda work, trouble, buried: -1e18 * trouble - 1e15 * (buried > 0) - counts(work)[0],
    "name": lambda work, trouble, buried: 0.0,
    "waiting": lambda work, trouble, buried: -counts(work)[0],
    "leased": lambda work, trouble, buried: -_leased(work),
    "buried": lambda work, trouble, buried: -buried,
    "listeners": lambda work, trouble, buried: -len(work.sessions),
    "triggers": lambda work, trouble, buried: -work.triggers,
    "receives": lambda work, trouble, buried: -work.receives,
}
