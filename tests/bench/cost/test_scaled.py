"""Days of workers from zero, counted by hand.

Crossed with what a day has: a queue of one's own, in another store, and with a rough count; bursts, rest and the end of
the day; one process, several, and their unequal slots.
"""

from __future__ import annotations

import random

import pytest

from bench.cost.crew import play
from bench.cost.day import Burst, Day
from bench.cost.policy import POLICIES
from bench.cost.scaled import ScaledFleet

IDLE_S = 60.0
FROM_ZERO = [name for name, policy in POLICIES.items() if policy.from_zero]
BURST = Day(600.0, 2.0, (Burst(100.0, 320),), start_s=1.5)


class Watched(ScaledFleet):
    """Notes who is asked to stop while it holds messages, and how many run at once and with how many slots."""

    busy_ends = 0
    slots: list[int]

    def _ask_to_stop(self, at: float, worker: object) -> None:
        self.busy_ends += bool(worker.held)  # type: ignore[attr-defined]
        super()._ask_to_stop(at, worker)  # type: ignore[arg-type]

    def _launch(self, at: float) -> str:
        number = super()._launch(at)
        self.slots = [*getattr(self, "slots", []), sum(each.capacity for each in self._running.values())]
        return number


def watched(name: str, day: Day, threads: int) -> Watched:
    return Watched(POLICIES[name], day, threads, random.Random(1).random)


@pytest.mark.parametrize("name", FROM_ZERO)
def test_an_idle_hour(name: str) -> None:
    """Nothing runs; an own queue costs one count at most, another one for every sweep, and a rough 0 a receive."""
    hour = play(name, Day(3600.0), 70, 1)
    assert (hour.starts, hour.listeners, hour.process_s, hour.hits) == (0, 0, 0.0, 0)
    assert hour.counts <= (1 if name == "own-zero-32" else 67)
    assert hour.misses == (hour.counts if name == "rough-32" else 0)


@pytest.mark.parametrize("name", ["zero-32", "own-zero-32"])
def test_a_burst_from_zero_and_back(name: str) -> None:
    """As many as the work is worth, from the put until they have been idle for a minute: these are the hours."""
    fleet = watched(name, BURST, 70)
    done = fleet.run()
    assert done.puts == done.deletes == 320
    assert (done.listeners, done.starts) == (3, 3), "70 threads are 32, 32 and 6"
    assert fleet.slots == [32, 64, 70]
    assert fleet.busy_ends == 0
    # 320 messages of 2 s on 70 slots are 9.2 s of work at least; nobody runs much longer than that and the idle.
    assert 3 * (1.5 + 9.2 + IDLE_S) < done.process_s < 3 * (1.5 + 2 * 9.2 + IDLE_S + 20)
    assert fleet.rules.processes.ids == []


AT = random.Random(5)
TRICKLE = Day(11000.0, 2.0, tuple(Burst(100.0 + 180.0 * step + 170.0 * AT.random(), 1) for step in range(60)))
"""Puts at every distance from the end of the worker before, so that some come just after it."""


@pytest.mark.parametrize("name", FROM_ZERO)
def test_a_put_after_the_last_worker_ended_waits_for_a_start_only(name: str) -> None:
    """Whatever its scaler thought of the work before: no pause of it stands that nothing would end."""
    done = watched(name, TRICKLE, 70).run()
    assert done.puts == done.deletes == 60
    assert done.first.max_s <= TRICKLE.start_s + 0.1
    assert done.counts <= 3 * sum(done.wakes.values()), "no storm of counts for it"
