"""Several bridges that take turns: whole runs hold, wrong turns are found, and turns cost what is promised."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from queuebell.bridge.core.cluster.coordinator import Coordinator
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.triggers.republishing import Republisher
from tests.exploration.cluster import mutants
from tests.simulation.faults import Fault
from tests.simulation.plan import PRESETS, Plan
from tests.simulation.run import run
from tests.simulation.test_run import broken, chunks, every_seed_holds

CLUSTERS = [name for name in sorted(PRESETS) if PRESETS[name].bridges > 1]
SIZES = (3, 2, 5)
DIRECT = PRESETS["cluster-elsewhere-wire"]


@pytest.mark.parametrize("seeds", chunks(len(CLUSTERS), 10, 244, first=4), ids=str)
def test_every_seed_of_several_bridges_holds(seeds: range) -> None:
    """No run of 2, 3 or 5 bridges loses a message, forgives what was not paid, or breaks another promise."""

    def plan_of(seed: int) -> Plan:
        size = SIZES[seed // len(CLUSTERS) % len(SIZES)]
        return msgspec.structs.replace(PRESETS[CLUSTERS[seed % len(CLUSTERS)]], bridges=size)

    every_seed_holds(plan_of, seeds, "I1 I3 I4 I7 I8 C4 C5")


def with_turns(wrong: type[Coordinator]) -> type[WakeScheduler]:
    """Return rules that take turns like this."""

    class Joined(WakeScheduler):
        def join(self, **about: str | None) -> Coordinator:
            taken = self.dispatch.coordinator = self.coordinator = wrong(self.dispatch, self.timers, **about)
            return taken

    return Joined


DENSE = {"faults": (), "messages": 200, "hours": 40 / 3600, "handler_s": (0.001, 0.01), "producers": 3, "burst": 1}
SUSPENDS = {"faults": ("suspend",), "fault_gap_s": 5.0}


@pytest.mark.rest
@pytest.mark.parametrize(
    ("scheduler", "changes", "rule"),
    [
        (with_turns(mutants.ForgivesByArrival), {}, "C4"),
        (with_turns(mutants.StandsStill), SUSPENDS, "C4"),
        (with_turns(mutants.ForgivesTheDebt), DENSE, "C4"),
        (with_turns(mutants.CoversFromArrival), {}, "C5"),
        (with_turns(mutants.BeganWhenItCame), {}, "C4"),
    ],
    ids=["W1", "W2", "W3", "W6", "W13"],
)
def test_wrong_turns_are_found(scheduler: type[WakeScheduler], changes: dict[str, object], rule: str) -> None:
    """Forgiven by arrival, by a word from before a sleep, all for one; swept from arrival; begun with the cover."""
    plan = msgspec.structs.replace(DIRECT, **changes)
    seed = next(seed for seed in range(6) if rule in broken(plan, seed, scheduler))
    assert not broken(plan, seed)


# Without sweep and dead-man timers only the rules of turns bring anybody to look.
BARE_RULES = {"sweep": False, "deadman": False, "healed_s": 100.0, "delayed_share": 0.0, "handler_failure_share": 0.0}


@pytest.mark.rest
def test_w9_what_one_alone_heard_and_tells_nobody_waits_for_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: a producer knows one bridge, the worker has its session with another, and no word between them arrives."""
    plan = msgspec.structs.replace(DIRECT, faults=(), workers=1, producers=2, delayed_share=0.0, handler_s=(0.01, 0.05))
    words_lost = [Fault(0.0, "word_loss", "broker", 1000.0, 1.0)]

    def longest(seed: int) -> float:
        return run(plan, seed, words_lost).figures.worst_gap_s

    assert longest(0) <= 5.0
    monkeypatch.setattr(Republisher, "republish", lambda *_: None)
    assert any(longest(seed) >= 20.0 for seed in range(4))


WAIT_MOST_S = 0.25
"""Calm, nobody ever waits for another's turn: the first place behind another is A and this much."""


def calm(bridges: int, **changes: Any) -> Plan:
    """Return a plan in which nothing goes wrong: a trigger a second."""
    return msgspec.structs.replace(
        PRESETS["cluster-elsewhere-broker"],
        bridges=bridges, producers=1, every_s=1.0, handler_s=(0.01, 0.05), handler_failure_share=0.0, faults=(),
        # A lease that its listener settles soon is no reason to look at its end.
        next_visible=False,
        **{"workers": 6, **changes},
    )  # fmt: skip


def longest_wait(scheduler: type[WakeScheduler]) -> float:
    """Return how long a message waited at most, calm, with three bridges and one worker."""
    outcome = run(calm(3, workers=1, messages=20, queues=4, hours=90.0 / 3600), 0, [], scheduler=scheduler)
    assert not outcome.violations
    return outcome.figures.worst_gap_s


@pytest.mark.rest
def test_w8_who_waits_for_a_member_without_a_worker_waits_for_nothing() -> None:
    """C3: with one worker and three bridges, a trigger is looked at at once, whoever comes first in the order."""
    assert longest_wait(WakeScheduler) <= WAIT_MOST_S
    assert longest_wait(with_turns(mutants.TakesUnknownForAble)) >= 2.0


def test_a_rolling_restart_under_load_delays_nobody() -> None:
    """C7: each bridge leaves in order and comes again; nothing is lost, and the longest wait is a second at most."""
    plan = msgspec.structs.replace(DIRECT, faults=(), handler_s=(0.01, 0.05), **BARE_RULES)
    faults = [Fault(60.0 + 60.0 * number, "restart", f"bridge-{number}", 10.0) for number in range(3)]
    for seed in range(2):
        outcome = run(plan, seed, faults)
        assert not outcome.violations
        assert outcome.figures.worst_gap_s <= 1.0


def test_the_first_in_order_is_killed_and_others_look() -> None:
    """C2: kills of one bridge after the other, whichever is first: A + 0.5 s + A rounds + R, and nothing is lost."""
    plan = msgspec.structs.replace(DIRECT, faults=(), handler_s=(0.01, 0.05), **BARE_RULES)
    faults = [Fault(20.0 + 20.0 * number, "crash", f"bridge-{number % 3}", 8.0) for number in range(12)]
    for seed in range(2):
        outcome = run(plan, seed, faults)
        assert not outcome.violations
        assert outcome.figures.worst_gap_s <= 2.5 + 2.0 + 10.0


@pytest.mark.parametrize("named", [True, False], ids=["named", "bare"])
@pytest.mark.parametrize(
    "size", [1, pytest.param(2, marks=pytest.mark.rest), 3, pytest.param(5, marks=pytest.mark.rest)]
)
def test_calm_turns_cost_what_one_bridge_costs(size: int, named: bool) -> None:
    """A trigger with an id costs one receive, one without two at most; one word between bridges, and no waiting."""
    outcome = run(calm(size, messages=100, hours=250.0 / 3600, named=named), 0, [])
    figures = outcome.figures
    assert outcome.ok, outcome.violations
    assert figures.triggers == 100
    assert figures.load_receives <= (1.02 if named else 2.0) * 100
    assert figures.words.get("covered", 0) <= (size > 1) * (102 if named else 202)
    assert figures.worst_gap_s <= WAIT_MOST_S
