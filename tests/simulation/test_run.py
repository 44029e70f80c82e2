"""Whole runs: they hold, they repeat themselves, and they find what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.keys import Access, AccessList, Identity
from queuebell.bridge.core.round import Round
from queuebell.bridge.core.timers import Timers
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.service import bridge as service
from queuebell.bridge.service import sessions
from queuebell.listeners import listener, pool
from queuebell.listeners.wake.pool import Share
from tests.exploration import mutants
from tests.simulation import servers
from tests.simulation.faults import KINDS, Fault, draw_faults
from tests.simulation.plan import PRESETS, Plan
from tests.simulation.planted import (
    CarriesBeyondCapacity,
    DropsBatches,
    ForgetsPuts,
    MergesNothing,
    SleepsOverPuts,
    TrustsEachFlush,
    WakesNobody,
    raises,
)
from tests.simulation.process import Kernel
from tests.simulation.run import Outcome, run
from tests.support.command import ROOT, environment

DEAF = 42
"""Of exceptions alone: a seed whose exceptions meet a batch with the flush of a session."""
CHUNK = 6
TRACES = {
    "--seed 3 --store own --channel wire": "94997550099460ce4acf3ac402a80878d8c8b370d42fb24ece7775eb2946c681",
    "--seed 7 --store elsewhere --channel broker": "820435bfd11e40ff9cf68b3ce1af9bf5cb956136e200fe6bf5b515978d876332",
    "--seed 2 --store own --channel broker --auth": "2aa992697e7bbda0702b1acc232fb163be482b03bc46ac776a03c834d41eae9a",
}
"""What a change of the rules changes: the last line of a run."""
PLANS = sorted(name for name, plan in PRESETS.items() if plan.bridges == 1)
WITH_KEYS = ("own-wire", "own-broker", "elsewhere-wire", "elsewhere-broker")
RACES = (
    "killed in a receive",
    "killed in a handler",
    "killed in a settlement",
    "killed in a put",
    "producer killed before publishing",
    "bridge killed while it owed a look",
)


def chunks(few: int, rest: int, every: int, first: int = 0) -> list[Any]:
    """Return ranges of seeds: a few of all tests, those up to ``rest`` for `make test-rest`, others for `test-long`."""
    starts = [(max(few, start), min(start + CHUNK, every)) for start in range(first, every, CHUNK)]
    mark = {True: pytest.mark.rest, False: pytest.mark.long}
    return [range(few), *(pytest.param(range(*seeds), marks=mark[seeds[0] < rest]) for seeds in starts)]


def every_seed_holds(plan_of: Callable[[int], Plan], seeds: range, checked: str) -> None:
    """No run breaks a promise or loses a message, whatever its seed brings about, and each checks these rules."""
    failed: list[str] = []
    for seed in seeds:
        plan = plan_of(seed)
        outcome = run(plan, seed)
        failed += [f"{outcome.plan} seed {seed}: {line}" for line in outcome.violations]
        # A run that was cut off breaks nothing: it has lasted as long as its plan says, and everything was put.
        assert outcome.virtual_s >= plan.hours * 3600 and outcome.steps >= 1000
        assert outcome.total["attempted"] == plan.messages * plan.producers
        assert all(outcome.figures.checked[rule] for rule in checked.split())
    assert not failed


@pytest.mark.parametrize("seeds", chunks(len(PLANS), 24, 1008), ids=str)
def test_every_seed_holds(seeds: range) -> None:
    every_seed_holds(lambda seed: PRESETS[PLANS[seed % len(PLANS)]], seeds, "I1 I4 I5 I7")


@pytest.mark.parametrize("seeds", chunks(len(WITH_KEYS), 10, 196, first=4), ids=str)
def test_every_seed_holds_with_authentication(seeds: range) -> None:
    """The same where everybody has a key, which is revoked, replaced and ends, and the access file breaks."""
    plans = [replace(PRESETS[name], auth=True) for name in WITH_KEYS]
    every_seed_holds(lambda seed: plans[seed % len(plans)], seeds, "I1 I4 I5 I7 K2")


def caches_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was known once is known for ever."""
    real = AccessWatch.identify

    def identify(self: AccessWatch, secret: str) -> Identity | None:
        known = self.__dict__.setdefault("known", {})
        return known.setdefault(secret, real(self, secret))

    monkeypatch.setattr(AccessWatch, "identify", identify)


def keeps_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that stands goes on, whatever becomes of the key that opened it."""
    monkeypatch.setattr(AccessWatch, "_end_unauthorized", lambda self: None)


def believes_a_broken_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be used grants nothing."""
    real = AccessWatch.check

    def check(self: AccessWatch) -> None:
        real(self)
        if self.invalid_reason is not None:
            self._access = Access(AccessList())

    monkeypatch.setattr(AccessWatch, "check", check)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("plant", "preset", "kind", "rule"),
    [
        (caches_keys, "own-wire", "key_revoked", "K1"),
        (caches_keys, "elsewhere-broker", "key_revoked", "K1"),
        (keeps_sessions, "own-broker", "key_expires", "K1"),
        (keeps_sessions, "elsewhere-wire", "grants_shrunk", "K1"),
        (believes_a_broken_file, "own-wire", "access_broken", "K2"),
    ],
)
def test_planted_faults_of_access_are_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], preset: str, kind: str, rule: str
) -> None:
    """A key that is remembered, a session that outlives it, a broken file that is believed: each is seen."""
    plan = replace(PRESETS[preset], auth=True, faults=(kind,), messages=60)
    assert not broken(plan, 1)
    plant(monkeypatch)
    assert any(rule in broken(plan, seed) for seed in range(1, 5))


def test_the_races_are_reached() -> None:
    """Kills come in the middle of a receive, a handler, a settlement, a put, and between a put and its publication."""
    plan = replace(PRESETS["elsewhere-wire"], faults=("crash", "killed_before_publish"), fault_gap_s=6.0, messages=60)
    left = set(RACES)
    for seed in range(20):
        left -= run(plan, seed).coverage.keys()
        if not left:
            break
    assert not left


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
@pytest.mark.parametrize(("words", "trace"), TRACES.items())
def test_a_seed_gives_the_same_trace_in_every_process(words: str, trace: str, hash_seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words.split()],
        capture_output=True,
        text=True,
        env=environment({"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}),
        cwd=ROOT,
        timeout=500,
        check=True,
    )
    assert f"trace {trace}" in done.stdout


def test_every_kind_of_fault_is_drawn() -> None:
    """A few seeds draw each, some only with keys, several bridges or scalers, and cut off whom they should."""
    brokered = {"auth": True}, {"scalers": 1}
    plans = [replace(PRESETS[name], **more) for name in ("own-broker", "elsewhere-broker") for more in brokered]
    plans.append(PRESETS["cluster-elsewhere-wire"])
    drawn = [fault for plan in plans for seed in range(20) for fault in draw_faults(plan, Kernel(seed).chance("some"))]
    assert {fault.kind for fault in drawn} == set(KINDS)
    assert {fault.length_s for fault in drawn if fault.kind == "stall"} == {0.9, 3.4, 10.0}
    assert {fault.target for fault in drawn} >= {"bridge-1>broker", "scaler-0", "worker-0", "producer-0", "store"}


def broken(plan: Plan, seed: int, scheduler: type[WakeScheduler] = WakeScheduler) -> set[str]:
    """Return what a run with these rules of the bridge breaks."""
    return run(plan, seed, scheduler=scheduler).broken


@pytest.mark.rest
@pytest.mark.parametrize(
    ("scheduler", "preset", "changes", "rule"),
    [
        (mutants.DropsWhileOwned, "elsewhere-wire", {}, "I8"),
        (mutants.AnyCover, "elsewhere-wire", {}, "I3"),
        (WakesNobody, "own-wire", {"faults": (), "deadman": False, "healed_s": 100.0}, "lost"),
        (ForgetsPuts, "own-wire", {}, "O4"),
        (SleepsOverPuts, "own-wire", {"faults": ()}, "I1"),
        (CarriesBeyondCapacity, "own-wire", {"burst": 8}, "I5"),
        (MergesNothing, "own-wire", {}, "I5"),
    ],
)
def test_planted_faults_are_found(
    scheduler: type[WakeScheduler], preset: str, changes: dict[str, object], rule: str
) -> None:
    """A mark dropped, a cover believed blindly, a wake never sent, a put slept over, a flood: a few runs see each."""
    plan = replace(PRESETS[preset], messages=60, **changes)
    seed = next(seed for seed in range(8) if rule in broken(plan, seed, scheduler))
    assert not broken(plan, seed)


@pytest.mark.parametrize("preset", ["own-wire", "own-broker", "elsewhere-wire", "elsewhere-broker"])
def test_a_restart_in_calm_is_judged(preset: str) -> None:
    """I6 is put to the test in a run that restarts its bridge, and holds; over a broker sessions go on, each once."""
    plan = replace(PRESETS[preset], quiet_s=10.0, quiet_restart=True)
    for seed in (5, 6, 7):
        outcome = run(plan, seed)
        assert outcome.violations == [] and outcome.figures.checked["I6"] == 1


@pytest.mark.rest
def test_forgotten_leases_are_lost() -> None:
    """A worker dies with messages in hand; where no store tells of them, only the bridge's timer has somebody look."""
    plan = replace(
        PRESETS["elsewhere-wire"],
        next_visible=False,
        sweep=False,
        deadman=False,
        handler_s=(5.0, 25.0),
        delayed_share=0.0,
        healed_s=100.0,
    )
    faults = [Fault(200.0 + 80.0 * number, "crash", f"worker-{number}", 300.0) for number in range(2)]
    wrong = (run(plan, seed, faults, scheduler=mutants.NoTimerAtTheEnd).total["lost"] for seed in range(6))
    seed = next(seed for seed, lost in enumerate(wrong) if lost)
    assert run(plan, seed, faults).ok


def test_quiet_hours_cost_what_is_promised() -> None:
    """An empty own queue sees no receive in an hour; one elsewhere its sweeps, and at most 67."""
    elsewhere = "elsewhere-wire"
    for name, rounds, scalers, most in (
        ("own-wire", False, 0, 0), (elsewhere, True, 0, 0), (elsewhere, True, 1, 0),
        ("cluster-elsewhere-wire", True, 0, 0), (elsewhere, False, 0, 67),
    ):  # fmt: skip
        plan = replace(PRESETS[name], rounds=rounds, scalers=scalers, hours=60 / 3600, faults=(), quiet_s=3600.0)
        outcome: Outcome = run(plan, 1)
        assert outcome.ok, outcome.violations
        assert outcome.receives_per_hour_empty is not None and outcome.receives_per_hour_empty <= most
        if rounds:
            assert 60 <= outcome.coverage["round answered"] * 3600 / outcome.virtual_s <= 67
    assert outcome.receives_per_hour_empty >= 50


@pytest.mark.rest
def test_a_bridge_that_drops_a_batch_for_one_exception_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the exception that nobody took, and by the session that is deaf after it; the bridge as it is keeps I1."""
    plan = replace(PRESETS["own-wire"], faults=("exception",))
    sound = run(plan, DEAF)
    assert sound.ok
    assert {"exception in Outlet.writable", "exception in an observer"} <= sound.coverage.keys()
    monkeypatch.setattr(servers, "Bridge", DropsBatches)
    for module in (service, sessions):
        monkeypatch.setattr(module, "swallow", raises)
    found = run(plan, DEAF, scheduler=TrustsEachFlush)
    assert any(line.startswith("I1 ") for line in found.violations)
    assert any("is broken" in line for line in found.violations)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("own-broker", {}),
        ("elsewhere-wire", {}),
        ("cluster-own-wire", {"bridges": 2}),
        ("cluster-elsewhere-broker", {}),
        ("own-wire", {"scalers": 1}),
        ("elsewhere-wire", {"scalers": 2, "outlive": True}),
    ],
)
def test_exceptions_at_any_call_lose_nothing(name: str, changes: dict[str, object]) -> None:
    """Of a bridge, a worker and a scaler, of one bridge and of several; nothing is deaf or stuck after them."""
    plan = replace(PRESETS[name], faults=("exception",), **changes)
    outcome = run(plan, 3)
    assert outcome.violations == []
    assert any(each.startswith("exception in ") for each in outcome.coverage)


ROUNDS: list[tuple[str, dict[str, Any]]] = [
    ("elsewhere-wire", {"queues": 3}),
    ("cluster-elsewhere-wire", {"queues": 2, "bridges": 2}),
    ("elsewhere-broker", {"queues": 3, "quiet_s": 600.0, "quiet_restart": True}),
    ("elsewhere-wire", {"scalers": 1, "workers": 2}),
    ("cluster-own-wire", {"queues": 3, "bridges": 2}),
]
"""One and several bridges, sessions of both kinds, a scaler, and a store that bridges share."""


@pytest.mark.parametrize("seeds", chunks(len(ROUNDS), 12, 120), ids=str)
def test_every_seed_of_rounds_holds(seeds: range) -> None:
    """Bridges ask the store about all queues at once, and the bounds stay."""
    plans = [replace(PRESETS[name], rounds=True, messages=30, **more) for name, more in ROUNDS]
    every_seed_holds(lambda seed: plans[seed % len(plans)], seeds, "I1 I4 I5 I7")


@pytest.mark.rest
def test_rounds_that_claim_too_much_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that counts a queue as empty in which it found messages puts off its sweep and every dead-man timer."""
    plan = replace(PRESETS["elsewhere-wire"], rounds=True, queues=3, messages=30)
    assert run(plan, 3).ok
    monkeypatch.setattr(Round, "found_empty_at", lambda self, queue, place: self.began)
    monkeypatch.setattr(Timers, "round_found", lambda self, work, now, began: None)
    found = run(plan, 3)
    assert found.total["lost"] and "I1" in found.broken


FAVOURED, QUIET = Share(weight=4), {"quiet_s": 600.0, "quiet_restart": True}
VAGUE = {"queues": 4, "workers": 2, "pool": 3, "shares": (Share(limit=1), Share(reserved=1)), "handler_s": (0.01, 20.0)}
POOLS: list[tuple[str, dict[str, Any]]] = [
    ("own-wire", {"queues": 3, "pool": 4, "shares": (FAVOURED, Share(), Share(priority=1, reserved=1)), **QUIET}),
    ("own-broker", {"queues": 2, "pool": 1, "shares": (FAVOURED,)}),
    ("elsewhere-broker", {"queues": 3, "pool": 2, "shares": (FAVOURED, Share(), Share(priority=1)), **QUIET}),
    ("elsewhere-mostly-crashes", {"queues": 2, "workers": 2, "pool": 1}),
    ("elsewhere-vague", VAGUE),
]


@pytest.mark.parametrize("seeds", chunks(len(POOLS), 12, 120), ids=str)
def test_every_seed_of_pools_holds(seeds: range) -> None:
    """No slot is used twice, and quiet queues cost nothing."""
    plans = [replace(PRESETS[name], **{"messages": 40, "burst": 8, **pool}) for name, pool in POOLS]
    every_seed_holds(lambda seed: plans[seed % len(plans)], seeds, "I1 I4 I5 I7")


@pytest.mark.rest
@pytest.mark.parametrize(
    ("where", "name", "wrong", "rule"),
    [
        (listener, "Controller", mutants.KeepsRoomToItself, "I1"),
        (listener, "Controller", mutants.OwesAndDoesNotAsk, "I1"),
        (pool, "Sharing", mutants.GrantsTwice, "I5"),
    ],
)
def test_planted_faults_of_pools_are_found(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, wrong: type, rule: str
) -> None:
    narrow = replace(
        PRESETS["own-wire"], queues=2, workers=1, messages=14, hours=100 / 3600, handler_s=(3.0, 9.0), pool=2,
        faults=(), delayed_share=0.0, handler_failure_share=0.0, healed_s=400.0,
    )  # fmt: skip
    assert not broken(narrow, 1)
    monkeypatch.setattr(where, name, wrong)
    assert any(rule in broken(narrow, seed) for seed in range(16))
