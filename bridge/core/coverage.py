"""What sessions are told of their queues: how long ago each was covered, and which of its numbers are its own."""

from __future__ import annotations

from bridge.contract.bounds import SLACK_S, SPREAD_S, STORE_CALL_S
from bridge.contract.wire import CoverAge, WelcomedQueue
from bridge.core.due import Agenda
from bridge.core.ledger import Debt
from bridge.core.own import Own
from bridge.core.settings import Periods
from bridge.core.slots import Seat


def queue_state(debt: Debt, own: Own, periods: Periods, now: float) -> WelcomedQueue:
    """Return a queue as a welcome tells of it, with those of its numbers that are not the session's own."""
    numbers = debt.numbers
    return WelcomedQueue(
        debt.queue,
        debt.gen,
        not debt.dirty,
        _covered_age_ms(debt, own, now),
        sweep_ms=_told(numbers.sweep_s, periods.sweep_s),
        slack_ms=_told(numbers.slack_s, SLACK_S),
        spread_ms=_told(numbers.spread_s, SPREAD_S),
        store_call_ms=_told(numbers.store_call_s, STORE_CALL_S),
    )


def cover_age(debt: Debt, own: Own, now: float, seat: Seat, agenda: Agenda[tuple[str, int | str]]) -> CoverAge:
    """Return a queue as a heartbeat tells of it; a scaler hears of other workers (Z5), and of what is due (Z2)."""
    age_ms = _covered_age_ms(debt, own, now)
    if not seat.scaler:
        return CoverAge(debt.gen, age_ms)
    times = [at for kind in ("due", "reread") if (at := agenda.when((kind, debt.queue))) is not None]
    due_ms = max(0, round((min(times) - now) * 1000)) if times else None
    return CoverAge(debt.gen, age_ms, debt.seats.workers_for(seat), due_ms)


def _covered_age_ms(debt: Debt, own: Own, now: float) -> int | None:
    if own.by_level(debt):
        # O5: 0 only if nothing is visible in this very tick.
        return 0 if not debt.visible else max(1, round((now - debt.visible_since) * 1000))
    return None if debt.covered_at is None else round((now - debt.covered_at) * 1000)


def _told(value_s: float, default_s: float) -> int | None:
    """Return milliseconds, or None for what the listener takes to be so anyway."""
    return None if value_s == default_s else round(value_s * 1000)
