"""How much work a queue holds for workers that somebody else starts and ends (Z1), and whether any should run.

Both answers are one number: a queue is active while there is work. So KEDA never hears of a metric without activity, or
the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bridge.core.pending_work import DOUBTS
from bridge.keda.counts import Count, Key
from bridge.keda.scaled_object import Target

if TYPE_CHECKING:
    from bridge.core.pending_work import PendingWork
    from bridge.core.session_queue import SessionQueue
    from bridge.service.bridge import Bridge


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a queue at one moment."""

    announced: bool = False
    """Work was announced, and no empty receive has answered that yet."""
    paused: bool = False
    """Gives nothing out; all its messages count as invisible."""
    visible: int | None = None
    """None where nobody has counted."""
    invisible: int = 0
    """Leased or delayed."""
    leased: int | None = None
    """How many of those somebody holds, a worker without a session included; None where the count does not tell."""
    busy: int = 0
    """Workers with a session here that hold messages."""
    unseen: bool = False
    """There may be workers with other bridges, and nobody knows here whether those are busy."""
    lapsed: bool = False
    """The store counts a message whose lease has ended as invisible, until somebody receives."""
    due_s: float | None = None
    """In how many seconds the next message becomes visible, where anybody knows."""


def work(known: Known, per_process: int, start_s: float) -> int | None:
    """Return the messages that workers are wanted for, 0 where nobody is; None where that cannot be told.

    Leased messages are work of the workers that hold them; delayed ones need no worker yet. Where the count does not
    tell the two apart, as many are leased as the busy workers here can hold, and all of them where workers may be
    elsewhere, so that no busy worker is ended. A busy worker holds one message at least. What was announced, or is due
    within ``start_s``, is one message at least. Of a paused queue only what is still held counts.
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
    """Return after how many seconds there is more work although nothing happens; None where nothing is due."""
    if known.due_s is None or known.paused or known.due_s <= start_s:
        return None
    return known.due_s - start_s


TOLD_S: Final = 60.0
"""For so long a count is believed, and what listeners counted."""


def counted_at(bridge: Bridge, target: Target) -> Key | None:
    """Return where a target's messages are counted; None where the bridge knows, or nobody can say."""
    engine = bridge.own is None and bridge.keeps_queues
    return (target.queue, target.store) if target.store is not None or engine else None


def look(bridge: Bridge, target: Target, count: Count | None) -> Known:
    """Return what is known now; ``count`` is the newest of a target that is counted elsewhere. Costs no store a call.

    Of a queue elsewhere that nobody counts its listeners tell: whether work waits that was announced, who is busy, and
    what their newest receive was told.
    """
    now, queue = bridge.now(), target.queue
    work = bridge.scheduler.ledger.find(queue)
    entries = () if work is None else work.sessions
    busy = sum(_holds(entry) for entry in entries)
    due_s = None if work is None else _due_s(bridge, work, now)
    unseen = _others(bridge, queue, now)
    if counted_at(bridge, target) is not None:
        if count is None or count.failed or now - count.at > TOLD_S:
            return Known(announced=work is not None and work.dirty, busy=busy, unseen=True, due_s=due_s)
        return Known(
            # Where somebody should only make sure (a broker was away, say), the count has.
            announced=work is not None and work.dirty and work.announced,
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
        # Never heard of, or forgotten for want of room.
        return Known(announced=bridge.scheduler.ledger.unknown > 0, unseen=unseen)
    if work.exists and not (work.read_elsewhere and not work.sessions.any_own):
        return Known(
            # Who has not received yet may not know its store.
            announced=work.dirty and work.sessions.any_foreign,
            paused=work.paused,
            visible=work.visible,
            invisible=work.invisible,
            leased=work.leased,
            busy=busy,
            due_s=due_s,
        )
    told = work.counted if work.counted is not None and len(work.sessions) and now - work.counted.at < TOLD_S else None
    return Known(
        announced=work.dirty,
        visible=None if told is None else told.visible,
        invisible=0 if told is None else told.invisible,
        leased=None if told is None else told.leased,
        busy=busy,
        unseen=unseen,
        due_s=due_s,
    )


def _holds(entry: SessionQueue) -> bool:
    """Say whether a session is a worker's that holds messages, as far as it has said."""
    return not entry.scaler and bool(entry.leases or entry.carried or 0 <= entry.free < entry.capacity)


def _others(bridge: Bridge, queue: str, now: float) -> bool:
    """Say whether workers of a queue may be with another bridge."""
    if bridge.coordinator is None:
        return bridge.scheduler.on_engine
    members = bridge.coordinator.members
    return members.alone(now) or any(queue in peer.abilities for peer in members.peers.values())


def _due_s(bridge: Bridge, work: PendingWork, now: float) -> float | None:
    times = [bridge.scheduler.dispatch.agenda.when(("reread", work.queue))]
    # Looks that are only to make sure are none of a message.
    known = [*work.due.items(), *work.due_to_all.items()]
    times += [each.next() for reason, each in known if reason not in DOUBTS]
    return min((max(0.0, at - now) for at in times if at is not None), default=None)
