"""Rules with one fault each, to see whether a simulated run finds it."""

from __future__ import annotations

from typing import Any

from bridge.contract.event import CloudQueueWorkDetected
from bridge.core.bell import Bell
from bridge.core.ledger import Debt
from bridge.core.sessions import Session
from bridge.core.slots import Seat


class DropsMarksWhileOwned(Bell):
    """V12: somebody looks already, so the trigger is forgotten."""

    def trigger(self, now: float, event: CloudQueueWorkDetected, bus: str, **options: Any) -> None:
        debt = self.ledger.find(event.queue)
        if debt is None or debt.owner is None:
            super().trigger(now, event, bus, **options)


class SettlesByAnyCover(Bell):
    """V9: an empty receive settles everything, whatever it knew of."""

    def _settle(self, debt: Debt, place: Seat, now: float, gen: int) -> None:
        super()._settle(debt, place, now, max(gen, debt.gen))


class WakesNobody(Bell):
    """V3: the debt is noted, and its wake never written."""

    def take(self, now: float, number: int) -> list[Any]:
        super().take(now, number)
        return []


class ForgetsLeasesOfTheDead(Bell):
    """V7: a session ends, and no timer stands for what it held."""

    def _leave(self, now: float, session: Session, queue: str) -> None:
        place = session.seats[queue]
        place.leases, place.touched = [], False
        super()._leave(now, session, queue)
