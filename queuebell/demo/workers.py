"""The worker processes, which a real scaler starts and ends: how many there were when, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from listeners.scaling.actuators.base import Hears
from listeners.scaling.actuators.process import ProcessActuator

GRACE_S: Final = 30.0


class Workers(ProcessActuator):
    """The scaler's child processes; ``fell`` hears of one that ended although nobody asked it to, ``changed`` of all.

    ``last_words`` returns what a process wrote last.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        fell: Callable[[str], None],
        changed: Callable[[int], None],
        last_words: Callable[[str], str],
    ) -> None:
        super().__init__(command, grace=GRACE_S, environment=environment)
        self.course = [0]
        """How many there were, one after the other."""
        self.unwell: list[str] = []
        """A line for each that was asked to end and did not end well."""
        self._fell = fell
        self._changed = changed
        self._last_words = last_words
        self._scaler: Hears
        self._began: dict[str, float] = {}
        self._asked: set[str] = set()
        self._killed: set[str] = set()
        self._ended_s = 0.0

    @property
    def process_s(self) -> float:
        """Return the seconds of all processes together, up to now."""
        return self._ended_s + sum(time.monotonic() - began for began in self._began.values())

    def kill(self, number: int) -> bool:
        """End a process with -9: no farewell, no settling, its leases stay behind; False where it has just ended."""
        child = self._children.get(str(number))
        if child is None:
            return False
        self._killed.add(str(number))
        child.process.kill()
        return True

    # What the scaler asks -------------------------------------------------------------------------------------------

    async def open(self, hears: Hears) -> None:
        """Hear what becomes of processes before the scaler does."""
        self._scaler = hears
        await super().open(self)

    async def start(self, count: int) -> list[str]:
        """Start so many."""
        began = time.monotonic()
        numbers = await super().start(count)
        self._began |= dict.fromkeys(numbers, began)
        self._count_them()
        return numbers

    async def stop(self, ids: Sequence[str]) -> None:
        """Note who was asked to."""
        self._asked |= set(ids)
        await super().stop(ids)

    # What processes tell --------------------------------------------------------------------------------------------

    def found(self, ids: list[str]) -> None:
        """Hear of workers that it has not started; of child processes there are none."""
        self._scaler.found(ids)

    def ready(self, number: str) -> None:
        """Hear that a worker listens."""
        self._scaler.ready(number)

    def says(self, number: str, *, busy: bool) -> None:
        """Hear that a worker has work, or none any more."""
        self._scaler.says(number, busy=busy)

    def ended(self, number: str, code: int | None, why: str) -> None:
        """Hear that a worker has ended."""
        self._ended_s += time.monotonic() - self._began.pop(number, time.monotonic())
        self._count_them()
        self._scaler.ended(number, code, why)
        if number in self._killed:
            return
        words = self._last_words(number)
        how = f"worker {number}: {why}" + (f": {words}" if words else "")
        if number not in self._asked:
            self._fell(how)
        elif code:
            self.unwell.append(how)

    def _count_them(self) -> None:
        now = len(self.running())
        if now != self.course[-1]:
            self.course.append(now)
        self._changed(now)
