"""Predict which sessions a trigger would wake now, and why the others would not be; changes nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.sessions import SessionQueue
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.service.state.answers import (
    Explained,
    ExplainedSession,
    ExplainedSubscriber,
    ListenerState,
    Subject,
)
from queuebell.bridge.service.state.content import content
from queuebell.bridge.service.state.status import failing_s, rejected, unattended, waits_for_a_person

if TYPE_CHECKING:
    from queuebell.bridge.service.bridge import Bridge


WOKEN: Final = "woken"
_SEPARATORS: Final = {"nats": ".", "mqtt": "/"}

_WORKERS: Final = {
    WOKEN: "has room, and was used least recently",
    "owner": "already has the work; it is woken for more too",
    "capacity_0": "receives nothing: its capacity is 0",
    "full": "no free handler slot; it is woken again once it reports room",
    "failing": "its receives fail; it is woken again once one succeeds",
    "stuck": "reported a start but made no progress; it is woken again once it does",
    "deaf": "did not accept the messages sent to it; it is woken again once it responds",
    "owned": "has room, but another worker already has the work",
    "later": "has room, but the workers before it, used less recently, have enough for the hinted size",
    "told": "has room, but a wake for the visible messages was already sent",
    "nothing": "has room, but this trigger wakes no worker",
    "draining": "the bridge is stopping and accepts no triggers",
}

_SCALERS: Final = _WORKERS | {
    WOKEN: "no worker has room, so it counts the messages and starts workers",
    "owner": "counts the messages, as no worker had room; it is woken for more too",
    "capacity_0": "starts no workers: it is stopping",
    "full": "cannot start workers now; it is asked again once it can",
    "hears": "its workers are starting; it checks whether they are enough",
    "failing": "its counts fail; it is asked again once one succeeds",
    "owned": "starts workers if none has room, but one already has the work",
    "later": "starts workers if none has room, but others come first",
}

_QUEUES: Final = {
    "wakes": "a {what} now would wake {count} of {all}",
    "joins": "a {what} now would go to the worker that already has the work",
    "waits": "a {what} now would wait for the first worker with room: none has any",
    "no_session": "no worker is connected; a {what} now would wait for the first one",
    "told": "a {what} now would wake no worker: a wake for the visible messages was already sent",
    "paused": "the queue is paused: a {what} now would wake no worker until it is resumed",
    "draining": "the bridge is stopping and accepts no triggers",
}


def of(bridge: Bridge, queue: str) -> Explained | None:
    """Explain a trigger of ``queue`` at this bridge now; None for an unknown queue."""
    stalled = bridge.flushes.stalled
    return explain(bridge.scheduler, queue, bridge.now(), draining=bridge.draining, stalled=stalled)


def explain(
    scheduler: WakeScheduler, queue: str, now: float, *, draining: bool, stalled: Container[int] = ()
) -> Explained | None:
    """Explain a trigger of ``queue`` now; None for an unknown queue.

    ``stalled`` has the numbers of sessions whose connection is behind. `plain` adds plain subscribers.
    """
    work = scheduler.pending.find(queue)
    if work is None:
        return None
    own = work.sessions.any_own and not work.sessions.any_foreign
    outcome, chosen = _outcome(scheduler, work, own=own, draining=draining)
    what = "put" if own else "trigger"
    ready = work.sessions.pick(len(work.sessions))
    order = [*chosen, *ready, *work.sessions]
    places = {entry.session: entry for entry in order}
    picked = {entry.session for entry in chosen}
    summary = _QUEUES[outcome].format(what=what, count=len(chosen), all=_counted(len(work.sessions), "session"))
    if (
        scheduler.coordinator is not None
        and outcome == "wakes"
        and (before := scheduler.coordinator.bridges_ahead(work, now))
    ):
        first = "another bridge of the cluster comes first; if it reports no check within"
        summary = f"{first} {scheduler.coordinator.waits_s(work, before):g} s, {summary}"
    if outcome == "no_session" and (members := _members_with(scheduler, queue)):
        summary = f"no worker is connected to this bridge; a {what} now would go to workers at {', '.join(members)}"
    if own and outcome not in {"paused", "draining"}:
        summary += "; a trigger without a put does nothing"
        summary += ": the visible messages are known" if work.visible else ": no message is visible"
    return Explained(
        queue=queue,
        asked=what,
        outcome=outcome,
        summary=summary,
        **_content(scheduler, work, now),
        paused=work.paused,
        dirty=work.dirty,
        gen=work.gen,
        unattended=unattended(scheduler, work),
        waits_for_a_person=waits_for_a_person(scheduler, work, now),
        rejected=[rejected(each, now) for each in scheduler.rejections.recent(now) if each.queue == queue],
        trigger_adds=not own and not draining,
        sessions=[_session(scheduler, work, entry, now, outcome, picked, stalled) for entry in places.values()],
    )


def _content(scheduler: WakeScheduler, work: PendingWork, now: float) -> dict[str, Any]:
    """Return what is known of a queue's messages, without its dead letters, which explain no trigger."""
    known = content(scheduler, work, now, lambda _: False)
    known["untold"].pop("buried", None)
    return known


def plain(explained: Explained, subscribers: Iterable[ListenerState], subjects: Iterable[Subject]) -> Explained:
    """Add the plain subscribers of the queue: event streams, webhooks and subjects of buses."""
    # Each put and each trigger is announced, whether or not it wakes a session (B12, O1).
    announced = explained.outcome not in {"paused", "draining"}
    rows = []
    for row in subscribers:
        if any(each.queue == explained.queue for each in row.queues):
            state = row.state or "ok"
            trouble = "" if state == "ok" else f"{state}: {row.detail or 'it does not answer'}"
            rows.append(_subscriber(row, "", announced, trouble, state != "disabled"))
    for subject in subjects:
        separator = _SEPARATORS.get(subject.channel, "/")
        topic = separator.join((subject.prefix, "wake", *split_reference(explained.queue)))
        trouble = "" if subject.connected else "the bus is down"
        rows.append(_subscriber(subject, topic, announced, trouble, subject.connected))
    return msgspec.structs.replace(explained, subscribers=rows)


def _members_with(scheduler: WakeScheduler, queue: str) -> list[str]:
    """Name the other cluster members that report sessions of a queue."""
    peers = () if scheduler.coordinator is None else scheduler.coordinator.members.peers.values()
    return sorted(peer.member.address or peer.boot for peer in peers if queue in peer.abilities)


def _subscriber(
    row: ListenerState | Subject, topic: str, announced: bool, trouble: str, able: bool
) -> ExplainedSubscriber:
    effect = f"each subscriber of {topic} receives the wake" if topic else "receives the wake"
    return ExplainedSubscriber(
        listener=row.listener,
        channel=row.channel,
        hears=announced and able,
        detail=trouble or (effect if announced else "no wake is sent"),
        topic=topic or msgspec.UNSET,
    )


def _outcome(
    scheduler: WakeScheduler, work: PendingWork, *, own: bool, draining: bool
) -> tuple[str, list[SessionQueue]]:
    """Return the outcome of a wake request, without making it, and the sessions it would wake."""
    entries = work.sessions
    if draining:
        return "draining", []
    if work.paused and (own or not len(entries)):
        return "paused", []
    if not len(entries):
        return "no_session", []
    if own and work.dirty:
        # O1: a backlog that does not rise wakes no one; the worker woken before processes it.
        return ("told", []) if entries.any_ready or work.owner is not None else ("waits", [])
    owner = None if work.owner is None else entries.get(work.owner)
    if work.dirty and owner is not None:
        if work.numbers.wake == "all":
            return "joins", [owner, *entries.workers_except(owner.session)]
        return "joins", [owner]
    carrying = entries.pick_to_carry() if own else None
    if work.numbers.wake == "all":
        chosen = entries.pick_all()
    elif carrying is not None:
        chosen = [carrying]
    else:
        chosen = entries.pick_for(work.size + 1 if work.dirty else 1)
    return ("wakes", chosen) if chosen else ("waits", [])


def _session(
    scheduler: WakeScheduler,
    work: PendingWork,
    entry: SessionQueue,
    now: float,
    outcome: str,
    chosen: set[int],
    stalled: Container[int],
) -> ExplainedSession:
    session = scheduler.sessions.get(entry.session)
    owns = work.owner == entry.session
    hears = entry is work.sessions.barred_scaler() and outcome not in {"paused", "draining"}
    gets = entry.session in chosen or hears
    why = "hears" if hears else _why(entry, outcome, gets=gets, owns=owns)
    detail = (_SCALERS if entry.scaler else _WORKERS)[why] + (
        "; its connection accepts no data right now" if gets and entry.session in stalled else ""
    )
    since = failing_s(entry, now)
    if since is not None:
        what = "counts" if entry.scaler else "receives"
        detail += f" (for {since:.0f} s)" if why == "failing" else f"; its {what} have failed for {since:.0f} s"
    return ExplainedSession(
        listener="" if session is None else session.listener,
        instance=None if session is None else session.instance,
        channel="" if session is None else session.kind,
        gets=gets,
        why=why,
        detail=detail,
        free=entry.free,
        capacity=entry.capacity,
        owns=owns,
        delayed=entry.session in stalled,
        failing_s=since,
        processes=entry.processes if entry.scaler else msgspec.UNSET,
    )


def _why(entry: SessionQueue, outcome: str, *, gets: bool, owns: bool) -> str:
    if outcome == "draining":
        return "draining"
    if owns:
        return "owner"
    if gets:
        return WOKEN
    if entry.capacity <= 0:
        return "capacity_0"
    if entry.full:
        # A failing worker reports room only after a receive succeeds, whatever slots are free.
        return "full" if entry.failing_since is None else "failing"
    if entry.stuck:
        return "stuck"
    if entry.unresponsive:
        return "deaf"
    return {"joins": "owned", "wakes": "later", "told": "told"}.get(outcome, "nothing")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
