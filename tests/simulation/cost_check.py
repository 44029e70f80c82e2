"""I2 and I6: what an empty queue costs while nothing happens, and what a bridge that starts again costs.

A queue is calm once nothing of it moved for T + R and no process came, went or stood still for V longer. Receives of
calm queues are counted until the calm ends; then the count is held against the bound for a stretch of that length.
"""

from __future__ import annotations

import math
from typing import Final

from tests.simulation.promise import Promise

RESTART_WITHIN_S: Final = 4.0
"""A bridge away for longer makes its listeners look by themselves, rightly (L9)."""
RESTART_WATCH_S: Final = 50.0
"""How long receives are laid to a restart: less than the shortest time to the next sweep."""


class _Queue:
    """One queue: since when nothing of it moved, and what was counted in the stretch of calm under way."""

    __slots__ = ("counted", "moved_at", "restart", "visible")

    def __init__(self) -> None:
        self.visible = 0
        self.moved_at = 0.0
        self.counted = 0
        self.restart: int | None = None
        """Receives since the bridge went, None while no restart is watched."""


class CostCheck:
    """Counts receives of calm queues.

    ``receives`` and ``seconds`` are those of all calm stretches of all queues together; ``restarts`` and
    ``restart_receives`` the restarts watched to their end, and the most receives that one queue saw in one of them.
    """

    def __init__(self, bounds: Promise, violations: list[str]) -> None:
        self.receives = 0
        self.seconds = 0.0
        self.stretches = 0
        self.restarts = 0
        self.restart_receives = 0
        self._bounds = bounds
        self._violations = violations
        self._queues: dict[str, _Queue] = {}
        self._churned_at = 0.0
        self._wrong = 0
        self._away = False
        self._down_at: float | None = None
        self._watch_until = math.inf

    def know(self, queue: str) -> None:
        """A listener serves this queue; one that nothing ever happened to is watched as well."""
        self._queue(queue)

    def moved(self, at: float, queue: str, visible: int | None = None) -> None:
        """Something of this queue moved: a message, a trigger, a handler; ``visible`` where that changed."""
        self._lapse(at)
        q = self._queue(queue)
        self._end(at, queue, q)
        if visible is not None:
            q.visible = visible
        q.moved_at = at
        q.restart = None

    def receive(self, at: float, queue: str) -> None:
        q = self._queue(queue)
        self._lapse(at)
        if q.restart is not None:
            q.restart += 1
            self._judge_restart(at, queue, q)
        if at > self._calm_from(q):
            q.counted += 1

    def churn(self, at: float, wrong: int = 0) -> None:
        """A process came or went; ``wrong`` is 1 where a fault began or something stood still, -1 where that ended."""
        self._lapse(at)
        self._end_all(at)
        self._wrong = max(0, self._wrong + wrong)
        self._churned_at = at
        for q in self._queues.values():
            q.restart = None

    def bridge(self, at: float, up: bool) -> None:
        self._lapse(at)
        if not up:
            calm = [q for q in self._queues.values() if at > self._calm_from(q)]
            self.churn(at)
            for q in calm:
                q.restart = 0
            self._down_at, self._watch_until, self._away = at, math.inf, True
            return
        self._away = False
        watched = [(queue, q, q.restart) for queue, q in self._queues.items()]
        self.churn(at)
        if self._down_at is not None and at - self._down_at <= RESTART_WITHIN_S:
            self._watch_until = at + RESTART_WATCH_S
            for queue, q, count in watched:
                q.restart = count
                self._judge_restart(at, queue, q)
        else:
            self._down_at = None

    def finish(self, at: float) -> None:
        self._lapse(at)
        self._end_all(at)

    # -- within --------------------------------------------------------------------------------------------------------

    def _queue(self, queue: str) -> _Queue:
        q = self._queues.get(queue)
        if q is None:
            q = self._queues[queue] = _Queue()
        return q

    def _calm_from(self, q: _Queue) -> float:
        if q.visible or self._wrong or self._away:
            return math.inf
        return max(q.moved_at + self._bounds.calm_s, self._churned_at + self._bounds.churn_s)

    def _end_all(self, at: float) -> None:
        for queue, q in self._queues.items():
            self._end(at, queue, q)

    def _end(self, at: float, queue: str, q: _Queue) -> None:
        length = at - self._calm_from(q)
        counted, q.counted = q.counted, 0
        if length <= 0:
            return
        self.receives += counted
        self.seconds += length
        self.stretches += 1
        allowed = self._bounds.receives(length)
        if counted > allowed:
            self._violations.append(
                f"I2 {queue}: {counted} receives in {length:.3f} s of calm until {at:.3f} s;"
                f" promised at most {allowed} ({self._bounds.receives_an_hour} an hour)"
            )

    def _judge_restart(self, at: float, queue: str, q: _Queue) -> None:
        """Hold the receives since the bridge went against I6, as soon as it is known to have been a restart."""
        if self._away or q.restart is None or q.restart <= self._bounds.receives_a_restart:
            return
        self._violations.append(
            f"I6 {queue}: {q.restart} receives by {at:.3f} s after the bridge went at {self._down_at or 0:.3f} s and"
            f" came back; promised at most {self._bounds.receives_a_restart}"
        )
        # Once is enough to say so.
        q.restart = None

    def _lapse(self, at: float) -> None:
        if at < self._watch_until:
            return
        for q in self._queues.values():
            if q.restart is not None:
                self.restarts += 1
                self.restart_receives = max(self.restart_receives, q.restart)
                q.restart = None
        self._down_at, self._watch_until = None, math.inf
