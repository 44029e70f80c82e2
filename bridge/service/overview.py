"""What the page shows, made of what the bridge knows anyway: no store is asked for it, and nothing is changed.

A view is bounded, however many queues and listeners there are: it has `ROWS` rows, sorted and filtered here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bridge.contract.names import POISON_SUFFIX
from bridge.core.bell import Bell
from bridge.core.ledger import Debt
from bridge.service.state import Check, Cluster, Explained, ListenerState, QueueState
from bridge.service.status import buried, content, failing_s, newest_counts, unattended

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
    """Messages in its poison queue; None where nobody has told."""
    buried_ms: int | None
    """How old that number is; None where it is of now."""
    untold: dict[str, str]
    """What is not known, and why (`bridge.service.state.Content`)."""
    listeners: int
    paused: bool
    dirty: bool
    triggers: int
    receives: int
    empty: int
    trouble: str | None
    """In words: work that nobody looks at, or receives that fail."""


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


class OneQueue(msgspec.Struct, frozen=True, kw_only=True):
    """One queue; ``row`` None for one that was never heard of."""

    row: QueueRow | None
    state: QueueState | None = None
    explained: Explained | None = None
    run: Run | None = None


class ListenerRows(msgspec.Struct, frozen=True, kw_only=True):
    """The list of listeners."""

    found: int
    first: int
    rows: list[ListenerState]


def row(bell: Bell, debt: Debt, now: float) -> QueueRow:
    """Return how one queue stands."""
    known = content(bell, debt, now)
    depth = known.get("depth")
    trouble = unattended(bell, debt) or failing(debt, now)
    waits = debt.dirty or bool(depth and depth.visible)
    oldest_ms = known.get("oldest_ms")
    since = debt.visible_since if debt.visible else debt.marked_at
    return QueueRow(
        queue=debt.queue,
        visible=None if depth is None else depth.visible,
        invisible=None if depth is None else depth.invisible,
        leased=known.get("leased"),
        delayed=known.get("delayed"),
        oldest_ms=oldest_ms,
        counted_ms=known.get("depth_age_ms"),
        at_least=known.get("depth_at_least", False),
        waiting_ms=oldest_ms if oldest_ms is not None else max(0, round((now - since) * 1000)) if waits else None,
        buried=known.get("buried"),
        buried_ms=known.get("buried_age_ms"),
        untold=known["untold"],
        listeners=len(debt.seats),
        paused=debt.paused,
        dirty=debt.dirty,
        triggers=debt.triggers,
        receives=debt.receives,
        empty=debt.empty,
        trouble=trouble,
    )


def queues(bell: Bell, now: float, wanted: Wanted, sees: Callable[[str], bool]) -> Queues:
    """Return the list of the queues that the reader ``sees``."""
    look_for = wanted.filter.casefold()
    order = _ORDERS[wanted.sort]
    chosen: list[tuple[float, str, Debt]] = []
    visible = leased = troubled = triggers = receives = empty = seen = 0
    graves: dict[str, int] = {}
    for debt in bell.ledger.debts.values():
        if not sees(debt.queue):
            continue
        seen += 1
        visible += counts(debt)[0]
        leased += _leased(debt)
        if debt.queue.endswith(POISON_SUFFIX):
            graves.setdefault(debt.queue, messages(debt))
        elif debt.buried is not None and (told := buried(bell, debt)) is not None:
            graves[told.queue] = told.messages
        trouble = _troubled(bell, debt)
        troubled += trouble
        triggers += debt.triggers
        receives += debt.receives
        empty += debt.empty
        if look_for in debt.queue.casefold():
            chosen.append((order(bell, debt, trouble), debt.queue, debt))
    chosen.sort(key=lambda each: each[:2])
    return Queues(
        found=len(chosen),
        first=wanted.first,
        rows=[row(bell, debt, now) for _, _, debt in chosen[wanted.first : wanted.first + ROWS]],
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


def listeners(rows: Iterable[ListenerState], wanted: Wanted) -> ListenerRows:
    """Return the list of listeners; a filter looks at their names and at those of their queues."""
    look_for = wanted.filter.casefold()
    chosen = [
        each
        for each in rows
        if look_for in each.listener.casefold() or any(look_for in held.queue.casefold() for held in each.queues)
    ]
    if wanted.sort == "name":
        chosen.sort(key=lambda each: each.listener)
    cut = chosen[wanted.first : wanted.first + ROWS]
    return ListenerRows(
        found=len(chosen),
        first=wanted.first,
        rows=[msgspec.structs.replace(each, queues=each.queues[:ROWS]) for each in cut],
    )


def counts(debt: Debt) -> tuple[int, int]:
    """Return what is visible and what is invisible, 0 where it is not known."""
    known = newest_counts(debt)
    return (0, 0) if known is None else (known.visible, known.invisible)


def _leased(debt: Debt) -> int:
    known = newest_counts(debt)
    return 0 if known is None else known.leased or 0


def messages(debt: Debt) -> int:
    """Return how many messages are known to be in a queue."""
    return sum(counts(debt))


def failing(debt: Debt, now: float) -> str | None:
    """Say in words for how long the receives of a queue's listeners have failed, or None where one works."""
    since = [failing_s(seat, now) for seat in debt.seats]
    failed = [each for each in since if each is not None]
    if not failed:
        return None
    who = "of its only listener" if len(since) == 1 else f"of {len(failed)} of its {len(since)} listeners"
    return f"the receives {who} have failed for {max(failed):.0f} s"


def _troubled(bell: Bell, debt: Debt) -> bool:
    if any(seat.failing_since is not None for seat in debt.seats):
        return True
    # Asked of those only that may be: a list of ten thousand is made once a second.
    return bool(debt.dirty or debt.visible or debt.invisible) and unattended(bell, debt) is not None


_ORDERS: Final[dict[str, Callable[[Bell, Debt, bool], float]]] = {
    "trouble": lambda bell, debt, trouble: -1e18 * trouble - counts(debt)[0],
    "name": lambda bell, debt, trouble: 0.0,
    "waiting": lambda bell, debt, trouble: -counts(debt)[0],
    "leased": lambda bell, debt, trouble: -_leased(debt),
    "buried": lambda bell, debt, trouble: -_buried(bell, debt),
    "listeners": lambda bell, debt, trouble: -len(debt.seats),
    "triggers": lambda bell, debt, trouble: -debt.triggers,
    "receives": lambda bell, debt, trouble: -debt.receives,
}


def _buried(bell: Bell, debt: Debt) -> int:
    known = buried(bell, debt)
    return 0 if known is None else known.messages
