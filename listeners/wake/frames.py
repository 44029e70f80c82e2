"""Translate between a wake machine and the frames of a session.

All users of the machine send the same frames through this: `queuebell.listeners.work.dequeue` over a real channel, and
`bench/cost/` and the worlds of the tests without one.
"""

from __future__ import annotations

from queuebell.bridge.contract.wire import (
    BridgeHeartbeat,
    EmptyReceive,
    More,
    QueueBeat,
    Report,
    Room,
    Seen,
    Started,
    Subscription,
    Welcome,
)
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.table import Command, SendEmptyReceive, SendMore, SendRoom, SendStarted


def frame_of(command: Command, queue: str, *, own: bool) -> Report | None:
    """Return the frame that a command sends; None for one that the bridge does not hear of."""
    match command:
        case SendStarted(boot, gen):
            return Started(queue, boot, gen)
        case SendEmptyReceive(boot, gen, age_s, next_visible_s, after_s):
            next_ms = None if next_visible_s is None else round(next_visible_s * 1000)
            # Down: what other bridges forgive by it must have begun after, and not a moment before (C4).
            return EmptyReceive(
                queue, boot, gen, _milliseconds(age_s), next_ms, own=own, after_ms=max(0, int(after_s * 1000))
            )
        case SendMore(depth, unannounced):
            return More(queue, depth, unannounced)
        case SendRoom(free, gen):
            return Room(queue, free, gen)
        case _:
            return None


def beat_of(machine: Controller, now: float, failing_since: float | None = None, hung: int = 0) -> QueueBeat:
    """Return a queue's levels for a heartbeat that leaves now (S2); its receives have failed since then, if any do."""
    gen, covered, age_s, free = machine.beat(now)
    receiving_ms = None if age_s is None else _milliseconds(age_s)
    failing_ms = None if failing_since is None else _milliseconds(now - failing_since)
    starved = None if machine.place is None else machine.place.starved
    return QueueBeat(gen, covered, receiving_ms, free, failing_ms=failing_ms, hung=hung, starved=starved)


def subscription_of(
    machine: Controller, queue: str, capacity: int, visibility_s: float, *, store: str | None = None, busy: bool = False
) -> Subscription:
    """Return a queue's part of a hello; with its free slots if it is ``busy``.

    A broken connection ends no handler, and a worker that reconnects gets no more messages than it can start (O7).
    """
    return Subscription(
        queue,
        capacity,
        max(1, round(visibility_s * 1000)),
        store,
        machine.own,
        None if machine.boot is None else Seen(machine.boot, machine.gen),
        max(0, machine.available) if busy else None,
    )


def last_empty_receives(frame: Welcome | BridgeHeartbeat, sent_at: float) -> dict[str, float]:
    """Return by queue the last empty receive that an answer reports, as a time; the request left at ``sent_at``.

    The bridge computes ages after it received the request, so each time is a lower bound, as L10 needs.
    """
    if isinstance(frame, Welcome):
        ages = {state.queue: state.covered_age_ms for state in frame.queues}
    else:
        ages = {queue: cover.covered_age_ms for queue, cover in frame.queues.items()}
    return {queue: sent_at - age_ms / 1000 for queue, age_ms in ages.items() if age_ms is not None}


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
