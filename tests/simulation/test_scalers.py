"""Listeners that scalers start: whole runs hold with zero processes and any number, and wrong rules are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from queuebell.listeners.scaling.processes import Processes
from queuebell.listeners.scaling.queue_scaler import QueueScaler
from queuebell.listeners.scaling.scaled_queue import ScaledQueue
from queuebell.listeners.scaling.scaler import Scaler
from tests.simulation.faults import Fault
from tests.simulation.plan import PRESETS, Plan
from tests.simulation.run import run
from tests.simulation.test_cluster import CLUSTERS
from tests.simulation.test_run import chunks, every_seed_holds

PLANS = ("own-wire", "own-broker", "elsewhere-wire", "elsewhere-broker", "elsewhere-vague", "own-queues")
CALM: dict[str, Any] = {"faults": (), "delayed_share": 0.0, "handler_failure_share": 0.0, "quiet_s": 300.0}


def scaled(preset: str, scalers: int = 1, **changes: Any) -> Plan:
    """Return a preset whose listeners are started."""
    plan = PRESETS[preset]
    return msgspec.structs.replace(plan, scalers=max(scalers, plan.queues), **changes)


@pytest.mark.parametrize("seeds", chunks(len(PLANS), 18, 294, first=6), ids=str)
def test_every_seed_of_scalers_holds(seeds: range) -> None:
    """Nothing is lost, waits are bounded, no busy worker ends, and none is left where nothing is to be done."""

    def plan_of(seed: int) -> Plan:
        preset, scalers = PLANS[seed % len(PLANS)], 1 + seed // len(PLANS) % 2
        return scaled(preset, scalers, quiet_s=200.0, outlive=seed % 4 == 3)

    every_seed_holds(plan_of, seeds, "I1 I4 I7 Z1 Z2 Z3")


@pytest.mark.parametrize("seeds", chunks(2, 8, 26, first=2), ids=str)
def test_every_seed_of_scalers_holds_with_keys_and_with_several_bridges(seeds: range) -> None:
    """The same where the bridge asks for keys, and where three bridges take turns."""
    every_seed_holds(lambda seed: scaled(PLANS[seed % 4], auth=True), seeds, "I1")
    every_seed_holds(lambda seed: scaled(CLUSTERS[seed % 4], 2), seeds, "I1")


def test_from_zero_to_a_receive_in_calm() -> None:
    """With nothing wrong the wait is a wake and a start, each time from no process at all; and no count is in vain."""
    outcome = run(scaled("own-wire", **CALM), 1)
    checked = outcome.figures.checked
    assert outcome.ok, outcome.violations
    assert checked["Z2 prompt"] > 5 and checked["Z1"] > 5 and checked["Z2 zero"] == 1
    assert outcome.receives_per_hour_empty == 0


@pytest.mark.parametrize(("preset", "most"), [("elsewhere-wire", 67), ("elsewhere-vague", 201)])
def test_an_empty_queue_elsewhere_costs_a_count_a_sweep(preset: str, most: int) -> None:
    """A rough one of nothing costs a receive besides, two where one may miss messages; and no worker starts for it."""
    outcome = run(scaled(preset, **CALM | {"quiet_s": 3600.0}), 1)
    assert outcome.ok and 50 <= (outcome.receives_per_hour_empty or 0) <= most, outcome.violations


SCALER_DIES = [Fault(at, "crash", "scaler-0", 1.0) for at in range(10, 300, 7)]
BUSY: dict[str, Any] = {"burst": 12, "concurrency": 1, "handler_s": (5.0, 8.0), "outlive": True}


def _asks(self: Processes, now: float, count: int) -> int:
    self.asked += max(0, count) * 2
    return count


def _launches_all(self: Processes, now: float) -> int:
    count, self.asked = self.asked, 0
    self.launching += count
    return count


def _living(self: Processes, *_: object) -> list[str]:
    return [number for number in self.ids if not self.ends(number)]


def _counts_nothing(self: ScaledQueue, now: float, rid: int, count: Any, counted: Any = ScaledQueue.counted) -> Any:
    return counted(self, now, rid, type(count)(0, count.invisible))


SHORT = {"healed_s": 100.0}
WRONG: list[tuple[str, dict[tuple[type, str], Callable[..., Any]], str, dict[str, Any], list[Fault]]] = [
    # The maximum is no bound.
    ("Z1", {(Processes, "ask"): _asks}, "own-wire", {"burst": 12}, []),
    # The rate is no bound.
    ("Z2", {(Processes, "launch"): _launches_all}, "own-wire", {"burst": 12, "start_rate": 1, "concurrency": 1}, []),
    # Whoever is beyond what is wanted ends, busy or not.
    (
        "Z2",
        {(Processes, "spare"): lambda self, now, wanted, **_: _living(self)[wanted:], (Processes, "idle"): _living},
        "own-wire",
        {"idle_s": 1.0, "handler_s": (3.0, 4.0), "burst": 8},
        [],
    ),
    # Nobody ever ends.
    ("Z2", {(Processes, "spare"): lambda *_, **__: []}, "elsewhere-wire", {}, []),
    # Every count is taken for an empty one (Z3).
    ("lost", {(ScaledQueue, "counted"): _counts_nothing}, "elsewhere-wire", {"messages": 6, **SHORT}, []),
    # A process that has ended is taken for one that runs (Z4).
    ("lost", {(Processes, "ended"): lambda *_: False}, "elsewhere-wire", {"idle_s": 5.0, **SHORT}, []),
    # Over a broker only the answers of the store say whose a queue is (O0); one must not have told already when the
    # bridge says welcome.
    ("I2", {(Scaler, "_answered"): lambda *_: None}, "own-broker", {}, [Fault(10.0, "crash", "scaler-0", 5.0)]),
    # Those that outlived the scaler before are not counted (Z4).
    ("Z2", {(QueueScaler, "found"): lambda *_: None}, "own-wire", BUSY, SCALER_DIES),
]


@pytest.mark.rest
@pytest.mark.parametrize(("rule", "plant", "preset", "changes", "faults"), WRONG)
def test_planted_faults_of_scalers_are_found(
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
    plant: dict[tuple[type, str], Callable[..., Any]],
    preset: str,
    changes: dict[str, Any],
    faults: list[Fault],
) -> None:
    """Each is seen within a few calm runs, which hold without it."""
    plan = scaled(preset, **CALM | changes)
    assert not run(plan, 1, faults).broken
    for (kind, name), wrong in plant.items():
        monkeypatch.setattr(kind, name, wrong)
    assert any(rule in run(plan, seed, faults).broken for seed in (1, 2, 3))


def test_a_scaler_killed_at_each_step_leaves_nobody_and_loses_nothing() -> None:
    """In a count, in a start, while a worker ends: each is reached, and the next scaler counts only its own."""
    plan = scaled("elsewhere-wire", faults=("crash",), fault_gap_s=4.0, messages=60, idle_s=3.0, start_s=(1.0, 3.0))
    left = {"scaler killed in a count", "scaler killed in a start", "scaler killed while a worker ended"}
    for seed in range(20):
        outcome = run(plan, seed)
        assert outcome.ok, outcome.violations
        left -= outcome.coverage.keys()
        if not left:
            break
    assert not left
