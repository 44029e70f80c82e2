"""How a bridge stands, as it is shown: queues, listeners, readiness."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

import msgspec

from bridge.core.bell import Bell
from bridge.core.ledger import Debt
from bridge.core.slots import Seat

Checks = dict[str, tuple[Callable[[], tuple[bool, str]], bool]]
"""By name: what asks whether it works and how it stands, and whether readiness requires it."""

ROWS_MAX: Final = 1000
"""Findings of one kind in one answer."""


def unattended(debt: Debt) -> str | None:
    """Say in words that work waits and no session is there to look (B14), or None where all is well.

    A paused queue is to be left alone, so nobody is missed there. Nor is anybody where the queue service holds the
    queue and nothing is in it, whatever was announced.
    """
    if stranded(debt):
        count = "1 message waits" if debt.visible == 1 else f"{debt.visible} messages wait"
        return f"{count} in the bridge's own queue, but the listeners of this name read another store"
    waiting = debt.visible + debt.invisible if debt.exists else 0
    known_empty = debt.exists and not waiting and not debt.read_elsewhere
    if len(debt.seats) or debt.paused or known_empty or not (debt.dirty or waiting):
        return None
    announced = "work was announced" if debt.triggers else "its last listener left before it had looked"
    what = f"{waiting} waiting" if waiting else announced
    return f"nobody is subscribed; {what}; nobody will look until a listener comes"


def stranded(debt: Debt) -> bool:
    """Say whether messages are visible in the queue service while all listeners of the queue take from elsewhere.

    A listener is known to take from elsewhere once it has covered: before its first answer it may not know its store.
    """
    elsewhere = debt.read_elsewhere and debt.seats.any_foreign and not debt.seats.any_own
    return elsewhere and debt.exists and not debt.paused and debt.visible > 0


def failing(bell: Bell) -> int:
    """Count the queues of sessions whose receives fail, as they said."""
    return sum(seat.failing_since is not None for each in bell.sessions.named() for seat in each.seats.values())


def failing_s(seat: Seat, now: float) -> float | None:
    """Return for how long the receives of a session have failed at a queue, None where the last was answered."""
    return None if seat.failing_since is None else round(max(0.0, now - seat.failing_since), 3)


def describe(bell: Bell, queue: str) -> dict[str, object] | None:
    """Return how one queue stands, or None for one that was never put to, triggered or subscribed."""
    debt = bell.ledger.find(queue)
    if debt is None:
        return None
    return {
        "queue": queue,
        "exists": debt.exists,
        "paused": debt.paused,
        "depth": {"visible": debt.visible, "invisible": debt.invisible} if debt.exists else None,
        "gen": debt.gen,
        "dirty": debt.dirty,
        "sessions": len(debt.seats),
        "unattended": unattended(debt),
        "wakes": dict(debt.wakes),
        "receives": {"total": debt.receives, "empty": debt.empty},
        "wake_sources": dict(debt.wake_sources),
        "triggers": debt.triggers,
    }


def listeners(bell: Bell, now: float) -> list[dict[str, object]]:
    """Return the sessions that said hello, oldest first.

    ``failing_s`` of a queue is for how long its receives have failed, None where the last was answered.
    """
    return [
        {
            "listener": session.listener,
            "instance": session.instance,
            "channel": session.kind,
            "connected_s": round(now - session.opened_at, 3),
            "silent_s": round(now - session.last_heard, 3),
            "queues": [
                {
                    "queue": seat.queue,
                    "capacity": seat.capacity,
                    "free": seat.free,
                    "has_room": seat.has_room,
                    "owns": bell.ledger.debts[seat.queue].owner == session.id,
                    "failing_s": failing_s(seat, now),
                }
                for seat in session.seats.values()
            ],
        }
        for session in bell.sessions.named()
    ]


def findings(bell: Bell, now: float, *, stalled: Container[int], notices_suspend: bool) -> dict[str, object]:
    """Return what a person should know of a bridge that runs; it changes nothing.

    ``unattended``: queues with work that nobody looks at, with ``exists`` (in the queue service; the counts of others
    are not known here), ``visible``, ``invisible``, ``dirty``, ``stranded`` (its listeners take from another store) and
    ``detail``;
    ``sessions``: those in trouble, with ``listener``, ``instance``, ``channel``, ``queue`` (or null), ``state``
    (``silent failing stuck deaf behind``) and ``detail``;
    ``audit_found``: work that nobody had been told of, since the start;
    ``notices_suspend``: whether a suspend of this machine would be noticed; ``left_out``: rows beyond 1000 of a kind;
    ``numbers``: the numbers of the protocol that this bridge goes by, one row a rule with its ``match``.
    """
    lonely: list[dict[str, object]] = []
    left_out = 0
    for debt in bell.ledger.debts.values():
        detail = unattended(debt)
        if detail is None:
            continue
        if len(lonely) >= ROWS_MAX:
            left_out += 1
            continue
        lonely.append(
            {
                "queue": debt.queue,
                "exists": debt.exists,
                "visible": debt.visible,
                "invisible": debt.invisible,
                "dirty": debt.dirty,
                "stranded": stranded(debt),
                "detail": detail,
            }
        )
    troubled = _troubled(bell, now, stalled)
    return {
        "unattended": lonely,
        "sessions": troubled[:ROWS_MAX],
        "audit_found": bell.own.audit_found,
        "notices_suspend": notices_suspend,
        "left_out": left_out + max(0, len(troubled) - ROWS_MAX),
        "numbers": [
            {"match": match, **msgspec.structs.asdict(numbers)} for match, numbers in bell.dispatch.tuning.each()
        ],
    }


def _troubled(bell: Bell, now: float, stalled: Container[int]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for session in bell.sessions.named():
        who: dict[str, object] = {
            "listener": session.listener,
            "instance": session.instance,
            "channel": session.kind,
        }
        silent = now - session.last_heard
        if silent > 2 * max(session.beat_s, bell.sessions.heartbeat_s):
            rows.append(
                {
                    **who,
                    "queue": None,
                    "state": "silent",
                    "detail": f"has missed a heartbeat: silent for {silent:.0f} s",
                }
            )
        if session.id in stalled:
            rows.append({**who, "queue": None, "state": "behind", "detail": "its connection takes nothing just now"})
        for seat in session.seats.values():
            state = "stuck" if seat.stuck else "deaf" if seat.deaf else None
            if state is not None:
                rows.append({**who, "queue": seat.queue, "state": state, "detail": _SEATS[state]})
            since = failing_s(seat, now)
            if since is not None:
                detail = f"its receives have failed for {since:.0f} s"
                rows.append({**who, "queue": seat.queue, "state": "failing", "detail": detail})
    return rows


_SEATS: Final = {
    "stuck": "said that a receive had begun and showed no progress since",
    "deaf": "did not take up the messages that it was handed",
}


def readiness(
    failure: str | None, draining: bool, others: Checks, refusing: str | None = None
) -> tuple[bool, dict[str, dict[str, object]]]:
    """Return whether everything required works, and each check by name.

    ``refusing`` says that puts are being refused for now; the bridge is ready all the same.
    """
    intake = "the bridge is stopping" if draining else "triggers are taken"
    checks: dict[str, dict[str, object]] = {
        "store": {"ok": failure is None, "detail": failure or "the queue service's file takes writes"},
        "intake": {"ok": not draining, "detail": intake if refusing is None else f"{intake}; {refusing}"},
    }
    ready = failure is None and not draining
    for name, (check, required) in others.items():
        ok, detail = check()
        checks[name] = {"ok": ok, "detail": detail if required else f"{detail} (not required)"}
        ready = ready and (ok or not required)
    return ready, checks
