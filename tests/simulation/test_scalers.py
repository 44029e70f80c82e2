"""Listeners that scalers start: whole runs hold with zero processes and any number, and wrong rules are found.

| rule | what breaks it | seen in |
|---|---|---|
| Z1 | more than the maximum | `asks_beyond` |
| Z2 | a start too many, a busy one ended, nobody ended | `starts_all`, `ends_anybody`, `keeps_all` |
| Z3 | no `more`, so that nobody starts | `covers_all` |
| Z4 | an end that is never heard of | `forgets_ends` |
| Z4 | workers that outlived the scaler before and are not found | `finds_nobody` |
| O0 | a queue that is the bridge's own, and the scaler never says so | `knows_no_boot` |
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from queuebell.listeners.scaling.processes import Processes
from queuebell.listeners.scaling.queue_scaler import QueueScaler
from queuebell.listeners.scaling.scaled_queue import ScaledQueue
from queuebell.listeners.scaling.scaler import Scaler
from tests.simulation.faults import SCALE_KINDS, Fault, draw_faults
from tests.simulation.kernel import Kernel
from tests.simulation.plan import PRESETS, Plan
from tests.simulation.run import Outcome, run

PLANS = ("own-wire", "own-broker", "elsewhere-wire", "elsewhere-broker", "elsewhere-vague", "own-queues")
CHUNK = 24
CALM: dict[str, Any] = {"faults": (), "delayed_share": 0.0, "handler_failure_share": 0.0, "quiet_s": 300.0}


def scaled(preset: str, scalers: int = 1, **changes: Any) -> Plan:
    """Return a preset whose listeners are started."""
    plan = PRESETS[preset]
    return msgspec.structs.replace(plan, scalers=max(scalers, plan.queues), **changes)


@pytest.mark.parametrize(
    "seeds",
    [
        range(len(PLANS)),
        *(pytest.param(range(first, first + CHUNK), marks=pytest.mark.rest) for first in range(6, 54, CHUNK)),
        *(pytest.param(range(first, first + CHUNK), marks=pytest.mark.long) for first in range(54, 294, CHUNK)),
    ],
    ids=str,
)
def test_every_seed_of_scalers_holds(seeds: range) -> None:
    """Nothing is lost, waits are bounded, no busy worker ends, and none is left where nothing is to be done."""
    failed: list[str] = []
    for seed in seeds:
        plan = scaled(PLANS[seed % len(PLANS)], 1 + seed // len(PLANS) % 2, quiet_s=200.0, outlive=seed % 4 == 3)
        outcome = run(plan, seed)
        failed += [f"{outcome.plan} seed {seed}: {line}" for line in outcome.violations]
        assert outcome.total["attempted"] == plan.messages * plan.producers
        assert all(outcome.figures.checked[rule] for rule in ("I1", "I4", "I7", "Z1", "Z2", "Z3"))
    assert not failed


@pytest.mark.parametrize(
    "seeds",
    [range(2), pytest.param(range(2, 14), marks=pytest.mark.rest), pytest.param(range(14, 26), marks=pytest.mark.long)],
    ids=str,
)
def test_every_seed_of_scalers_holds_with_keys_and_with_several_bridges(seeds: range) -> None:
    """The same where the bridge asks for keys, and where three bridges take turns."""
    failed: list[str] = []
    for seed in seeds:
        clusters = sorted(name for name in PRESETS if PRESETS[name].bridges > 1)
        for plan in (scaled(PLANS[seed % 4], auth=True), scaled(clusters[seed % 4], 2)):
            failed += [f"{plan.name} seed {seed}: {line}" for line in run(plan, seed).violations]
    assert not failed


def test_from_zero_to_a_receive_in_calm() -> None:
    """With nothing wrong the wait is a wake and a start, each time from no process at all; and no count is in vain."""
    outcome = run(scaled("own-wire", **CALM), 1)
    checked = outcome.figures.checked
    assert outcome.ok, outcome.violations
    assert checked["Z2 prompt"] > 5 and checked["Z1"] > 5 and checked["Z2 zero"] == 1
    assert outcome.receives_per_hour_empty == 0


def test_an_empty_queue_elsewhere_costs_a_count_a_sweep() -> None:
    """And no process."""
    outcome = run(scaled("elsewhere-wire", **CALM | {"quiet_s": 3600.0}), 1)
    assert outcome.ok, outcome.violations
    assert outcome.receives_per_hour_empty is not None and 50 <= outcome.receives_per_hour_empty <= 67


def test_every_kind_of_fault_of_scalers_is_drawn() -> None:
    """Starts that fail, die, hang and are slow; scalers that are killed; none of it without scalers."""
    plan = scaled("own-broker")
    drawn = [fault for seed in range(20) for fault in draw_faults(plan, Kernel(seed).chance("some"))]
    assert {fault.kind for fault in drawn} >= set(SCALE_KINDS)
    assert any(fault.kind == "crash" and fault.target == "scaler-0" for fault in drawn)
    alone = [fault for seed in range(20) for fault in draw_faults(PRESETS["own-broker"], Kernel(seed).chance("some"))]
    assert not {fault.kind for fault in alone} & set(SCALE_KINDS)


def broken(outcome: Outcome) -> set[str]:
    """Return the rules that a run breaks."""
    return {line.split()[0].rstrip(":") for line in outcome.violations}


def asks_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maximum is no bound."""

    def ask(self: Processes, now: float, count: int) -> int:
        self.asked += max(0, count) * 2
        return count

    monkeypatch.setattr(Processes, "ask", ask)


def starts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is no bound."""

    def launch(self: Processes, now: float) -> int:
        count, self.asked = self.asked, 0
        self.launching += count
        return count

    monkeypatch.setattr(Processes, "launch", launch)


def ends_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is beyond what is wanted ends, busy or not."""
    monkeypatch.setattr(
        Processes, "spare", lambda self, now, wanted, **_: [n for n in self.ids if not self.ends(n)][wanted:]
    )
    monkeypatch.setattr(Processes, "idle", lambda self, now: [n for n in self.ids if not self.ends(n)])


def keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody ever ends."""
    monkeypatch.setattr(Processes, "spare", lambda self, now, wanted, **_: [])


def covers_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every count is taken for an empty one."""
    counted = ScaledQueue.counted
    monkeypatch.setattr(
        ScaledQueue, "counted", lambda self, now, rid, count: counted(self, now, rid, type(count)(0, count.invisible))
    )


def forgets_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has ended is taken for one that runs."""
    monkeypatch.setattr(Processes, "ended", lambda self, *_: False)


def knows_no_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a broker only the answers of the store say whose it is."""
    monkeypatch.setattr(Scaler, "_answered", lambda self, *_: None)


def finds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that outlived the scaler before are not counted."""
    monkeypatch.setattr(QueueScaler, "found", lambda self, ids: None)


SCALER_DIES = [Fault(at, "crash", "scaler-0", 1.0) for at in range(10, 300, 7)]
BUSY: dict[str, Any] = {"burst": 12, "concurrency": 1, "handler_s": (5.0, 8.0), "outlive": True}


@pytest.mark.parametrize(
    ("plant", "preset", "changes", "rule"),
    [
        (asks_beyond, "own-wire", {"burst": 12}, "Z1"),
        (starts_all, "own-wire", {"burst": 12, "start_rate": 1, "concurrency": 1}, "Z2"),
        (ends_anybody, "own-wire", {"idle_s": 1.0, "handler_s": (3.0, 4.0), "burst": 8}, "Z2"),
        (keeps_all, "elsewhere-wire", {}, "Z2"),
        (covers_all, "elsewhere-wire", {"healed_s": 100.0, "messages": 6}, "lost"),
        (forgets_ends, "elsewhere-wire", {"healed_s": 100.0, "idle_s": 5.0}, "lost"),
        (knows_no_boot, "own-broker", {}, "I2"),
        (finds_nobody, "own-wire", BUSY, "Z2"),
    ],
)
def test_planted_faults_of_scalers_are_found(
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    preset: str,
    changes: dict[str, Any],
    rule: str,
) -> None:
    """Each is seen within a few calm runs, which hold without it."""
    plan = scaled(preset, **CALM | changes)
    # For one an answer must not have told already when the bridge says welcome.
    faults = {knows_no_boot: [Fault(10.0, "crash", "scaler-0", 5.0)], finds_nobody: SCALER_DIES}
    play = functools.partial(run, plan, faults=faults.get(plant, []))
    assert not broken(play(1))
    plant(monkeypatch)
    assert any(rule in broken(play(seed)) for seed in (1, 2, 3))


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
