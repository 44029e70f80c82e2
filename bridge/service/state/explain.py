"""Who would get a trigger now, on which channel, and why another would not; it changes nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bridge.contract.names import split_reference
from bridge.core.pending_work import Debt
from bridge.core.session_queue import Seat
from bridge.core.wake_scheduler import Bell
from bridge.service.state.answers import (
    Explained,
    ExplainedSession,
    ExplainedSubscriber,
    ListenerState,
    Subject,
)
from bridge.service.state.content import content
from bridge.service.state.status import failing_s, rejected, unattended, waits_for_a_person

if TYPE_CHECKING:
    from bridge.service.bridge import Bridge


WOKEN: Final = "woken"
_SEPARATORS: Final = {"nats": ".", "mqtt": "/"}

_SEATS: Final = {
    WOKEN: "has room, and was used least recently",
    "owner": "took the work on already; it hears of more",
    "capacity_0": "takes nothing: its capacity is 0",
    "full": "no free handler slot; it is asked again when it says that it has room",
    "failing": "its receives fail; it is asked again when one was answered",
    "stuck": "said that it started and showed no progress since; it is asked again when it does",
    "deaf": "did not take up what it was handed; it is asked again when it shows that it hears",
    "owned": "has room, but another took the work on already",
    "later": "has room, but those before it, used less recently, have enough for the size that was hinted at",
    "told": "has room, but what is visible was told already",
    "nothing": "has room, but this trigger wakes nobody",
    "draining": "the bridge is stopping and takes no triggers",
}

_SCALERS: Final = _SEATS | {
    WOKEN: "no worker has room, so it counts and starts some",
    "owner": "counts, for no worker had room; it hears of more",
    "capacity_0": "starts nobody: it stops",
    "full": "starts nobody now; it is asked again when it can",
    "hears": "its workers are starting; it counts whether they are enough",
    "failing": "its counts fail; it is asked again when one was answered",
    "owned": "starts some where no worker has room, and one took the work on already",
    "later": "starts some where no worker has room, and others come first",
}

_QUEUES: Final = {
    "wakes": "a {what} now wakes {count} of {all}",
    "joins": "a {what} now goes to who took the work on already",
    "waits": "a {what} now waits for the first with room: nobody has any",
    "no_session": "nobody listens; a {what} now waits for the first that comes",
    "told": "a {what} now wakes nobody: messages are visible and nobody new has to hear of it",
    "paused": "the queue is paused: a {what} now wakes nobody until it is resumed",
    "draining": "the bridge is stopping and takes no triggers",
}


def of(bridge: Bridge, queue: str) -> Explained | None:
    """Return who would get a trigger of ``queue`` at this bridge now, or None for a queue never heard of."""
    stalled = bridge.flushes.stalled
    return explain(bridge.bell, queue, bridge.now(), draining=bridge.draining, stalled=stalled)


def explain(bell: Bell, queue: str, now: float, *, draining: bool, stalled: Container[int] = ()) -> Explained | None:
    """Return who would get a trigger of ``queue`` now, or None for a queue never heard of.

    ``stalled`` are the numbers of sessions whose connection is behind; for plain subscribers see `plain`.
    """
    debt = bell.ledger.find(queue)
    if debt is None:
        return None
    own = debt.seats.any_own and not debt.seats.any_foreign
    outcome, chosen = _outcome(bell, debt, own=own, draining=draining)
    what = "put" if own else "trigger"
    ready = debt.seats.pick(len(debt.seats))
    order = [*chosen, *ready, *debt.seats]
    places = {seat.session: seat for seat in order}
    picked = {seat.session for seat in chosen}
    summary = _QUEUES[outcome].format(what=what, count=len(chosen), all=_counted(len(debt.seats), "session"))
    if bell.turns is not None and outcome == "wakes" and (before := bell.turns.before(debt, now)):
        first = "another bridge of the cluster comes first; if nothing is heard of its look for"
        summary = f"{first} {bell.turns.waits_s(debt, before):g} s, {summary}"
    if outcome == "no_session" and (there := _listened_at(bell, queue)):
        summary = f"nobody listens at this bridge; a {what} now is looked for by listeners at {', '.join(there)}"
    if own and outcome not in {"paused", "draining"}:
        summary += "; a trigger that is no put adds nothing"
        summary += ", for the queue service knows what is visible" if debt.visible else ": nothing is visible"
    return Explained(
        queue=queue,
        asked=what,
        outcome=outcome,
        summary=summary,
        **_content(bell, debt, now),
        paused=debt.paused,
        dirty=debt.dirty,
        gen=debt.gen,
        unattended=unattended(bell, debt),
        waits_for_a_person=waits_for_a_person(bell, debt, now),
        rejected=[rejected(each, now) for each in bell.rejections.recent(now) if each.queue == queue],
        trigger_adds=not own and not draining,
        sessions=[_session(bell, debt, seat, now, outcome, picked, stalled) for seat in places.values()],
    )


def _content(bell: Bell, debt: Debt, now: float) -> dict[str, Any]:
    """Return what is known of a queue's messages; what was buried explains no trigger."""
    known = content(bell, debt, now, lambda _: False)
    known["untold"].pop("buried", None)
    return known


def plain(explained: Explained, subscribers: Iterable[ListenerState], subjects: Iterable[Subject]) -> Explained:
    """Return ``explained`` with the plain subscribers of its queue: event streams, webhooks, and subjects of buses."""
    # Each put and each trigger is announced, whether or not a session has to hear of it (B12, O1).
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


def _listened_at(bell: Bell, queue: str) -> list[str]:
    """Name the other bridges of the cluster that have sessions of a queue, as they said."""
    peers = () if bell.turns is None else bell.turns.members.peers.values()
    return sorted(peer.word.address or peer.boot for peer in peers if queue in peer.abilities)


def _subscriber(
    row: ListenerState | Subject, topic: str, announced: bool, trouble: str, able: bool
) -> ExplainedSubscriber:
    heard = f"whoever subscribes to {topic} hears the wake" if topic else "hears the wake"
    return ExplainedSubscriber(
        listener=row.listener,
        channel=row.channel,
        hears=announced and able,
        detail=trouble or (heard if announced else "there is no wake to hear"),
        topic=topic or msgspec.UNSET,
    )


def _outcome(bell: Bell, debt: Debt, *, own: bool, draining: bool) -> tuple[str, list[Seat]]:
    """Say what a mark would do, by the same rules and without making it, and which seats it would wake."""
    seats = debt.seats
    if draining:
        return "draining", []
    if own and debt.paused:
        return "paused", []
    if not len(seats):
        return "no_session", []
    if own and debt.dirty:
        # O1: a level that does not rise is no news; who was told of it works through it.
        return ("told", []) if seats.any_ready or debt.owner is not None else ("waits", [])
    owner = None if debt.owner is None else seats.get(debt.owner)
    if debt.dirty and owner is not None:
        if debt.numbers.wake == "all":
            return "joins", [owner, *seats.workers_besides(owner.session)]
        return "joins", [owner]
    carrying = seats.pick_to_carry() if own else None
    if debt.numbers.wake == "all":
        chosen = seats.pick_all()
    elif carrying is not None:
        chosen = [carrying]
    else:
        chosen = seats.pick_for(debt.size + 1 if debt.dirty else 1)
    return ("wakes", chosen) if chosen else ("waits", [])


def _session(
    bell: Bell, debt: Debt, seat: Seat, now: float, outcome: str, chosen: set[int], stalled: Container[int]
) -> ExplainedSession:
    session = bell.sessions.get(seat.session)
    owns = debt.owner == seat.session
    hears = seat is debt.seats.barred_scaler() and outcome not in {"paused", "draining"}
    gets = seat.session in chosen or hears
    why = "hears" if hears else _why(seat, outcome, gets=gets, owns=owns)
    detail = (_SCALERS if seat.scaler else _SEATS)[why] + (
        "; its connection takes nothing just now" if gets and seat.session in stalled else ""
    )
    since = failing_s(seat, now)
    if since is not None:
        what = "counts" if seat.scaler else "receives"
        detail += f" (for {since:.0f} s)" if why == "failing" else f"; its {what} have failed for {since:.0f} s"
    return ExplainedSession(
        listener="" if session is None else session.listener,
        instance=None if session is None else session.instance,
        channel="" if session is None else session.kind,
        gets=gets,
        why=why,
        detail=detail,
        free=seat.free,
        capacity=seat.capacity,
        owns=owns,
        delayed=seat.session in stalled,
        failing_s=since,
        processes=seat.processes if seat.scaler else msgspec.UNSET,
    )


def _why(seat: Seat, outcome: str, *, gets: bool, owns: bool) -> str:
    if outcome == "draining":
        return "draining"
    if owns:
        return "owner"
    if gets:
        return WOKEN
    if seat.capacity <= 0:
        return "capacity_0"
    if seat.full:
        # It speaks of room again once a receive was answered, whatever slots are free.
        return "full" if seat.failing_since is None else "failing"
    if seat.stuck:
        return "stuck"
    if seat.deaf:
        return "deaf"
    return {"joins": "owned", "wakes": "later", "told": "told"}.get(outcome, "nothing")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
