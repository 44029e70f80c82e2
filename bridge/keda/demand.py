"""Compute the work of a queue for externally scaled workers (Z1), and whether any should run.

Both answers come from one number, as a queue is active while it has work: KEDA's metric and activity always agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from queuebell.bridge.core.pending_work import CHECK_ONLY
from queuebell.bridge.keda.counts import Count, Key
from queuebell.bridge.keda.scaled_object import Target

if TYPE_CHECKING:
    from queuebell.bridge.core.pending_work import PendingWork
    from queuebell.bridge.core.sessions import SessionQueue
    from queuebell.bridge.service.bridge import Bridge


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The known state of a queue at a moment."""

    announced: bool = False
    """Work was announced, without an empty receive since."""
    paused: bool = False
    """Paused: all messages count as invisible."""
    visible: int | None = None
    """None if unknown."""
    invisible: int = 0
    """Leased or delayed."""
    leased: int | None = None
    """Leased ones among them, also those of workers without a session; None if unknown."""
    busy: int = 0
    """Workers with a session at this bridge that hold messages."""
    unseen: bool = False
    """Other bridges may have workers, and this bridge does not know whether they are busy."""
    lapsed: bool = False
    """The store counts messages with an expired lease as invisible until the next receive."""
    due_s: float | None = None
    """Seconds until the next message becomes visible; None if unknown."""


def demand(known: Known, per_process: int, start_s: float) -> int | None:
    """Return the number of messages that need workers; None if unknown.

    Leased messages count, as their workers must keep running; delayed ones do not. If the count does not distinguish
    them, as many count as leased as the busy workers here can hold, or all if other bridges may have workers, so that
    no busy worker is stopped. A busy worker counts as one message at least, and so does work that was announced or is
    due within ``start_s``. Of a paused queue only leased messages count.
    """
    held = min(known.invisible, known.busy * per_process) if known.leased is None else known.leased
    if known.paused:
        return max(known.busy, held)
    if known.lapsed or (known.unseen and known.leased is None):
        held = known.invisible
    found = (known.visible or 0) + held
    soon = known.announced or (known.due_s is not None and known.due_s <= start_s)
    found = max(found, known.busy, int(soon))
    return None if not found and known.unseen and known.visible is None else found


def changes_in(known: Known, start_s: float) -> float | None:
    """Return the seconds until a due message adds work; None if none is due."""
    if known.due_s is None or known.paused or known.due_s <= start_s:
        return None
    return known.due_s - start_s


COUNT_LIFETIME_S: Final = 60.0
"""Lifetime of a count, and of listeners' reported counts."""


def count_key(bridge: Bridge, target: Target) -> Key | None:
    """Return where to count a target's messages; None if the bridge knows them itself, or if it is unknown."""
    engine = bridge.own is None and bridge.keeps_queues
    return (target.queue, target.store) if target.store is not None or engine else None


def known_state(bridge: Bridge, target: Target, count: Count | None) -> Known:
    """Return what is known now, without calling a store; ``count`` is the newest one of an external store.

    For an external queue that is not counted, it uses announcements and the listeners' sessions and reported counts.
    """
    now, queue = bridge.now(), target.queue
    work = bridge.scheduler.pending.find(queue)
    entries = () if work is None else work.sessions
    busy = sum(_holds(entry) for entry in entries)
    due_s = None if work is None else _due_s(bridge, work, now)
    unseen = _others_may_have_workers(bridge, queue, now)
    if count_key(bridge, target) is not None:
        if count is None or count.failed or now - count.at > COUNT_LIFETIME_S:
            return Known(announced=work is not None and work.dirty, busy=busy, unseen=True, due_s=due_s)
        return Known(
            # The count replaces a check that is only pending after a gap.
            announced=work is not None and work.dirty and work.work_reported,
            paused=count.paused,
            visible=count.visible,
            invisible=count.invisible,
            leased=count.leased,
            busy=busy,
            unseen=unseen,
            lapsed=count.lapsed,
            due_s=due_s,
        )
    if work is None:
        # Unknown, or evicted from the table of queues.
        return Known(announced=bridge.scheduler.pending.evicted_with_work > 0, unseen=unseen)
    if work.exists and not (work.last_empty_external and not work.sessions.any_own):
        return Known(
            # A worker that has not received yet may not know its store.
            announced=work.dirty and work.sessions.any_foreign,
            paused=work.paused,
            visible=work.visible,
            invisible=work.invisible,
            leased=work.leased,
            busy=busy,
            due_s=due_s,
        )
    reported = (
        work.counted
        if work.counted is not None and len(work.sessions) and now - work.counted.at < COUNT_LIFETIME_S
        else None
    )
    return Known(
        announced=work.dirty,
        visible=None if reported is None else reported.visible,
        invisible=0 if reported is None else reported.invisible,
        leased=None if reported is None else reported.leased,
        busy=busy,
        unseen=unseen,
        due_s=due_s,
    )


def _holds(entry: SessionQueue) -> bool:
    """Return whether a session is a worker that reports held messages."""
    return not entry.scaler and bool(entry.leases or entry.carried or 0 <= entry.free < entry.capacity)


def _others_may_have_workers(bridge: Bridge, queue: str, now: float) -> bool:
    """Return whether another bridge may have workers of a queue."""
    if bridge.coordinator is None:
        return bridge.scheduler.on_engine
    members = bridge.coordinator.members
    return members.alone(bridge.coordinator.at(now)) or any(queue in peer.abilities for peer in members.peers.values())


def _due_s(bridge: Bridge, work: PendingWork, now: float) -> float | None:
    times = [bridge.scheduler.dispatch.agenda.when(("reread", work.queue))]
    # Checks that are not due to a message do not count.
    known = [*work.due.items(), *work.due_to_all.items()]
    times += [each.next() for reason, each in known if reason not in CHECK_ONLY]
    return min((max(0.0, at - now) for at in times if at is not None), default=None)
