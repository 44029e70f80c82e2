"""Plain subscribers are told again of work that stays (B12).

They say nothing, so nobody knows what they heard: one that failed, that was slow, or that came to a broker's topic
after the wake was published would not hear of the work there is until more came. So the level is told, not the edge.
"""

from __future__ import annotations

from bridge.core.dispatch import Dispatch, Timer
from bridge.core.ledger import Debt

TICK: Timer = ("again", 0)
LOOKS = 4
"""How often within the period the levels are looked at: a reminder comes late by a fourth of it at most."""


class Reminders:
    """Tells of what waits, ``again_s`` after the last that was told of its queue; on the common ground of dispatch."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._d = dispatch
        self._since = float("-inf")
        """When plain subscribers came where there were none: each is caught up as it comes."""

    def announcing(self, now: float, present: bool) -> None:
        """There are plain subscribers from now on, or none any more; without them nothing is done."""
        self._d.announcing = present
        if not present:
            self._d.agenda.clear(TICK)
        elif TICK not in self._d.agenda:
            self._since = now
            self._d.agenda.set(TICK, now + self._d.periods.again_s / LOOKS)

    def tick(self, now: float) -> None:
        """Tell again of what is due, and come back."""
        period = self._d.periods.again_s
        for debt in self._d.ledger.debts.values():
            if now - max(debt.rung_at, self._since) >= period and self._known(debt):
                size = debt.visible or max(1, debt.size)
                since = debt.visible_since if debt.visible else debt.marked_at
                self._d.ring(debt, now, "resync", size, since, shared=True)
        self._d.agenda.set(TICK, now + period / LOOKS)

    @staticmethod
    def _known(debt: Debt) -> bool:
        """Whether somebody would say that the work is done.

        Of a queue elsewhere only sessions do: without any, reminders would never end.
        """
        return debt.visible > 0 or (debt.waits and len(debt.seats) > 0)
