"""I1: what is visible is met by a receive that begins within B, while one listener could have begun it throughout.

The clock of a queue starts anew with every receive, so that it bounds every gap and not only the first. For each
listener it runs while messages are visible and that listener lives, is subscribed, has a free slot and reaches a store
that answers; what only stands together, but not at once in one listener, promises nothing.
"""

from __future__ import annotations

import math
from typing import Final

from tests.simulation.promise import Promise

NO_FAULT: Final = "no fault"
"""The situation of a gap that began when nothing had been wrong for as long as B."""


STANDING_S: Final = 60.0
"""How long nothing has been wrong, and no process came or went, before an own queue is held to its tighter bound:
back-offs of up to 30 s, and sessions that are held alive for D, are over by then."""


class _Queue:
    """How one queue stands; ``able`` says since when each listener could receive, the earliest first."""

    __slots__ = ("able", "broken", "since", "visible")

    def __init__(self) -> None:
        self.visible = 0
        self.since = 0.0
        self.able: dict[str, float] = {}
        self.broken = False


class WakeCheck:
    """Measures every gap, keeps the longest for each situation, and writes down those beyond B.

    Own queues have a second, tighter bound while nothing is wrong and everything has been standing for `STANDING_S`.
    ``look`` is what has to begin. ``measured`` counts the gaps, ``prompt`` those held against the tighter bound. Times
    are true virtual seconds and never go back.
    """

    def __init__(self, bounds: Promise, violations: list[str], look: str = "receive") -> None:
        self._look = look
        self.measured = 0
        self.prompt = 0
        self.worst_s: dict[str, float] = {}
        self._bounds = bounds
        self._violations = violations
        self._queues: dict[str, _Queue] = {}
        self._rooms: dict[tuple[str, str], bool] = {}
        """By worker and queue: whether it said that it could receive."""
        self._still: dict[str, None] = {}
        self._store_up = True
        self._wrong = 0
        self._disturbed_at = 0.0
        # Kinds of faults under way, and since when each that is over is over.
        self._faults: dict[tuple[str, str], int] = {}
        self._mended: dict[str, float] = {}

    def level(self, at: float, queue: str, visible: int) -> None:
        q = self._queue(queue)
        if q.visible and not visible:
            self._measure(at, queue, q)
            q.broken = False
        elif visible and not q.visible:
            q.since = at
        q.visible = visible

    def receive(self, at: float, queue: str) -> None:
        q = self._queue(queue)
        if q.visible:
            self._measure(at, queue, q)
        q.since = at
        q.broken = False

    def room(self, at: float, worker: str, queue: str, able: bool) -> None:
        self._rooms[worker, queue] = able
        self._weigh(at, worker, queue)

    def gone(self, at: float, worker: str) -> None:
        self._still.pop(worker, None)
        for key in [key for key in self._rooms if key[0] == worker]:
            self._rooms[key] = False
            self._weigh(at, *key)
            del self._rooms[key]

    def still(self, at: float, worker: str, still: bool) -> None:
        if still:
            self._still[worker] = None
        else:
            self._still.pop(worker, None)
        for name, queue in list(self._rooms):
            if name == worker:
                self._weigh(at, worker, queue)

    def store(self, at: float, up: bool) -> None:
        self._store_up = up
        for worker, queue in list(self._rooms):
            self._weigh(at, worker, queue)

    def fault(self, at: float, kind: str, target: str, began: bool) -> None:
        """Something went wrong, or was mended; it only names the situation of the gaps meanwhile."""
        label = f"bridge: {kind}" if target.startswith("bridge") and ">" not in target else kind
        count = self._faults.get((label, target), 0) + (1 if began else -1)
        if count > 0:
            self._faults[label, target] = count
        else:
            self._faults.pop((label, target), None)
            self._mended[label] = at

    def disturb(self, at: float, wrong: int = 0) -> None:
        """A process came or went; ``wrong`` is 1 where a fault began or something stood still, -1 where that ended."""
        for queue, q in self._queues.items():
            if q.visible:
                self._judge_prompt(at, queue, q)
        self._wrong = max(0, self._wrong + wrong)
        self._disturbed_at = at

    def finish(self, at: float) -> None:
        for queue, q in self._queues.items():
            if q.visible:
                self._measure(at, queue, q)

    # -- within --------------------------------------------------------------------------------------------------------

    def _queue(self, queue: str) -> _Queue:
        q = self._queues.get(queue)
        if q is None:
            q = self._queues[queue] = _Queue()
        return q

    def _weigh(self, at: float, worker: str, queue: str) -> None:
        q = self._queue(queue)
        able = self._store_up and worker not in self._still and self._rooms[worker, queue]
        if able and worker not in q.able:
            q.able[worker] = at
        elif not able and worker in q.able:
            if q.visible:
                if worker == next(iter(q.able)):
                    self._judge_prompt(at, queue, q)
                self._note(at, queue, q, worker)
            del q.able[worker]

    def _measure(self, at: float, queue: str, q: _Queue) -> None:
        self._judge_prompt(at, queue, q)
        # Who was able first stands first: whoever becomes able is added at the end.
        if q.able:
            self._note(at, queue, q, next(iter(q.able)))

    def _note(self, at: float, queue: str, q: _Queue, worker: str) -> None:
        began = max(q.since, q.able[worker])
        gap = at - began
        self.measured += 1
        situation = self._situation(began)
        if gap > self.worst_s.get(situation, -1.0):
            self.worst_s[situation] = gap
        if gap > self._bounds.wake_s and not q.broken:
            q.broken = True
            self._violations.append(
                f"I1 {queue}: {q.visible} visible since {q.since:.3f} s or before and {worker} able since"
                f" {q.able[worker]:.3f} s, but at {at:.3f} s no {self._look} had begun for {gap:.3f} s;"
                f" promised within {self._bounds.wake_s:.1f} s"
            )

    def _judge_prompt(self, at: float, queue: str, q: _Queue) -> None:
        """Hold a gap against the tighter bound, as far as it lies where nothing was wrong."""
        promised = self._bounds.prompt_s
        if self._wrong or q.broken or not q.able or promised == math.inf:
            return
        began = max(q.since, next(iter(q.able.values())), self._disturbed_at + STANDING_S)
        if at < began:
            return
        self.prompt += 1
        if at - began > promised:
            q.broken = True
            self._violations.append(
                f"I1 {queue}: {q.visible} visible in an own queue, {next(iter(q.able))} able and nothing wrong, but at"
                f" {at:.3f} s no receive had begun for {at - began:.3f} s; promised within {promised:.1f} s"
            )

    def _situation(self, began: float) -> str:
        """Name the last thing that was wrong since shortly before: what was lost then is found only now."""
        if self._faults:
            return next(reversed(self._faults))[0]
        recent = [(at, label) for label, at in self._mended.items() if at + min(self._bounds.wake_s, 600.0) >= began]
        return max(recent)[1] if recent else NO_FAULT
