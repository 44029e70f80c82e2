"""Z1 to Z7 as far as somebody outside can see them: what scalers start, whom they end, and that nobody stays.

How long work waits is two promises. A scaler that could count does so within B, as a listener receives (``I1``). And
from nothing to a receive it takes a wake and a start, while nothing is wrong (``Z2``).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import msgspec

from tests.simulation.plan import Plan
from tests.simulation.promise import PATH_S, Promise
from tests.simulation.wake_check import WakeCheck

RATE_S: Final = 0.95
"""The second within which so many starts are begun, less what one takes more than another until it is a process."""
SAID_S: Final = 0.5
"""Within which a scaler knows that a worker of its machine has become busy."""


class _Scaler:
    """One scaler: its workers that live, and when it started some."""

    __slots__ = ("hosts", "living", "started")

    def __init__(self, hosts: list[str]) -> None:
        self.hosts = hosts
        self.living: dict[str, bool] = {}
        """By host, whether it was told to end or lost its scaler."""
        self.started: deque[float] = deque()


class ScaleCheck:
    """Feed it what happens; ``violations`` is shared.

    ``wake`` measures how long counts are waited for. Times never go back.
    """

    def __init__(self, plan: Plan, bounds: Promise, violations: list[str]) -> None:
        self.started = self.ends = self.zeros = 0
        prompt = bounds.prompt_s + plan.start_s[1] + PATH_S
        self.counts = WakeCheck(msgspec.structs.replace(bounds, prompt_s=math.inf), violations, "count or receive")
        self.receives = WakeCheck(msgspec.structs.replace(bounds, wake_s=math.inf, prompt_s=prompt), violations)
        self._plan = plan
        self._violations = violations
        self._scalers = {
            name: _Scaler(plan.worker_names[number :: plan.scalers]) for number, name in enumerate(plan.scaler_names)
        }
        self._of = {host: name for name, scaler in self._scalers.items() for host in scaler.hosts}
        self._still: set[str] = set()

    def checked(self) -> dict[str, int]:
        """Return how often each rule had something to check; none without scalers."""
        if not self._scalers:
            return {}
        return {
            "Z1": self.started,
            "Z2": self.ends,
            "Z2 prompt": self.receives.prompt,
            "Z2 zero": self.zeros,
            "Z3": self.counts.measured,
        }

    # -- processes ----------------------------------------------------------------------------------------------------

    def up(self, at: float, process: str) -> None:
        name = self._of.get(process)
        if name is None:
            return
        scaler, plan = self._scalers[name], self._plan
        scaler.living[process] = False
        scaler.started.append(at)
        while scaler.started[0] <= at - RATE_S:
            scaler.started.popleft()
        kept = sum(not lost for lost in scaler.living.values())
        self.started += 1
        if kept > plan.workers:
            self._broken(at, "Z1", f"{name}: {kept} workers run; promised {plan.workers} at most")
        if len(scaler.started) > plan.start_rate:
            self._broken(
                at, "Z2", f"{name}: {len(scaler.started)} starts in a second; promised {plan.start_rate} at most"
            )

    def down(self, at: float, process: str) -> None:
        self._still.discard(process)
        scaler = self._scalers.get(process)
        if scaler is not None:
            # Its workers hear of it; the next scaler of this machine counts only its own (Z4).
            scaler.started.clear()
            for host in scaler.living:
                scaler.living[host] = not self._plan.outlive
            self._gone(at, process)
            return
        name = self._of.get(process)
        if name is not None:
            self._scalers[name].living.pop(process, None)

    def asked(self, at: float, scaler: str, worker: str, all_: bool, busy_since: float | None) -> None:
        self.ends += 1
        if busy_since is not None and not all_ and at - busy_since > SAID_S:
            self._broken(
                at,
                "Z2",
                f"{scaler} ended {worker}, where a handler had been running since {busy_since:.3f} s;"
                " promised is that no worker is ended to save while it holds a message",
            )

    def finish(self, at: float) -> None:
        """End the run: nobody may live whose scaler is gone, and no more than are kept where there is no work."""
        for name, scaler in self._scalers.items():
            left = [host for host, lost in scaler.living.items() if lost and host not in self._still]
            if left:
                self._violations.append(f"Z4 at {at:.3f} s {', '.join(left)}: still there though {name} is gone")

    # -- work ---------------------------------------------------------------------------------------------------------

    def calm(self, at: float) -> None:
        """So late after all work nobody is left but who is kept, where the store says that there is none."""
        for name, scaler in self._scalers.items():
            self.zeros += 1
            if scaler.living:
                text = f"{len(scaler.living)} workers though there has been no work for long; promised none"
                self._violations.append(f"Z2 at {at:.3f} s {name}: {text}")

    def room(self, at: float, scaler: str, queue: str, able: bool, free: int, coming: int) -> None:
        self.counts.room(at, scaler, queue, able and free > 0)
        self.receives.room(at, scaler, queue, able and free + coming > 0)

    def level(self, at: float, queue: str, visible: int) -> None:
        self.counts.level(at, queue, visible)
        self.receives.level(at, queue, visible)

    def received(self, at: float, queue: str) -> None:
        self.counts.receive(at, queue)
        self.receives.receive(at, queue)

    def counted(self, at: float, queue: str) -> None:
        self.counts.receive(at, queue)

    # -- what is wrong ------------------------------------------------------------------------------------------------

    def store(self, at: float, up: bool) -> None:
        self.counts.store(at, up)
        self.receives.store(at, up)

    def still(self, at: float, process: str, still: bool) -> None:
        if still:
            self._still.add(process)
        else:
            self._still.discard(process)
        for check in (self.counts, self.receives):
            check.still(at, process, still)

    def disturb(self, at: float, wrong: int = 0, process: str = "") -> None:
        """As `WakeCheck.disturb`; that a scaler's worker comes or goes is nothing out of the ordinary."""
        if wrong or process not in self._of:
            self.receives.disturb(at, wrong)

    def _gone(self, at: float, process: str) -> None:
        self.counts.gone(at, process)
        self.receives.gone(at, process)

    def _broken(self, at: float, rule: str, text: str) -> None:
        self._violations.append(f"{rule} at {at:.3f} s {text}")
