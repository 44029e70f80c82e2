"""How a bridge stands, as it is shown: queues, listeners, readiness."""

from __future__ import annotations

from collections.abc import Callable

from bridge.core.bell import Bell

Checks = dict[str, tuple[Callable[[], tuple[bool, str]], bool]]
"""By name: what asks whether it works and how it stands, and whether readiness requires it."""


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
        "wakes": dict(debt.wakes),
        "receives": {"total": debt.receives, "empty": debt.empty},
        "triggers": debt.triggers,
    }


def listeners(bell: Bell, now: float) -> list[dict[str, object]]:
    """Return the sessions that said hello, oldest first."""
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
                }
                for seat in session.seats.values()
            ],
        }
        for session in bell.sessions.named()
    ]


def readiness(failure: str | None, draining: bool, others: Checks) -> tuple[bool, dict[str, dict[str, object]]]:
    """Return whether everything required works, and each check by name."""
    checks: dict[str, dict[str, object]] = {
        "store": {"ok": failure is None, "detail": failure or "the queue service's file takes writes"},
        "intake": {"ok": not draining, "detail": "the bridge is stopping" if draining else "triggers are taken"},
    }
    ready = failure is None and not draining
    for name, (check, required) in others.items():
        ok, detail = check()
        checks[name] = {"ok": ok, "detail": detail if required else f"{detail} (not required)"}
        ready = ready and (ok or not required)
    return ready, checks
