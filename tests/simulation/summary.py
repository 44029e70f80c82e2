"""What many runs came to together; pure."""

from __future__ import annotations

from collections import Counter

import msgspec

from tests.simulation.checks import rule_of
from tests.simulation.crew import Played
from tests.simulation.plan import Plan
from tests.simulation.total_queue import Numbers

FAILURES_MAX = 20
"""Failed runs that are kept one by one; the rest is counted."""


class Failure(msgspec.Struct, frozen=True):
    """One run in which something did not hold; ``rule`` is the first broken, ``broken`` the simulation's traceback."""

    plan: Plan
    seed: int
    rule: str
    violations: list[str]
    trace_sha256: str
    command: str
    broken: str = ""


class Gap(msgspec.Struct, frozen=True):
    """The longest wait for a receive in one situation, beside what is promised; seconds."""

    situation: str
    worst_s: float
    bound_s: float | None


class Shortest(msgspec.Struct, frozen=True):
    """The shortest story that still breaks the rule, and the command that plays it."""

    rule: str
    faults: list[str]
    differs: dict[str, str]
    violations: list[str]
    story: list[str]
    tries: int
    command: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a campaign; ``ok`` if and only if every run that was asked for was played, and held."""

    ok: bool
    runs: int
    failed: int
    broken_rules: dict[str, int]
    failures: list[Failure]
    shortest: Shortest | None
    seconds: float
    runs_per_s: float
    messages_per_s: float
    virtual_hours: float
    steps: int
    total: dict[str, int]
    receives_per_hour_empty: dict[str, float | None]
    calm_hours: dict[str, float]
    restarts: int
    restart_receives: int
    gaps: list[Gap]
    coverage: dict[str, int]
    checked: dict[str, int]
    traces: dict[str, str]
    """By plan and seed the hash of its trace; only of the first few runs."""


class Summary:
    """Adds up runs; give it everything that was played, in any order."""

    def __init__(self) -> None:
        self.runs = 0
        self.failed = 0
        self.numbers = Numbers()
        self.failures: list[Failure] = []
        self._rules: Counter[str] = Counter()
        self._virtual_s = 0.0
        self._steps = 0
        self._calm: dict[str, tuple[int, float]] = {}
        self._restarts = 0
        self._restart_receives = 0
        self._gaps: dict[str, Gap] = {}
        self._coverage: Counter[str] = Counter()
        self._checked: Counter[str] = Counter()
        self._traces: dict[str, str] = {}

    def add(self, played: Played, command: str) -> Failure | None:
        """Add one run; return its failure if it has one. ``command`` replays it."""
        self.runs += 1
        job, outcome = played.job, played.outcome
        if outcome is None:
            return self._fail(Failure(job.plan, job.seed, "broken", [], "", command, played.broken))
        self.numbers += Numbers.of(outcome.total)
        self._virtual_s += outcome.virtual_s
        self._steps += outcome.steps
        figures = outcome.figures
        receives, seconds = self._calm.get(job.plan.store, (0, 0.0))
        self._calm[job.plan.store] = (receives + figures.calm_receives, seconds + figures.calm_s)
        self._restarts += figures.restarts
        self._restart_receives = max(self._restart_receives, figures.restart_receives)
        for situation, worst in figures.worst_gap_s.items():
            known = self._gaps.get(situation)
            if known is None or worst > known.worst_s:
                self._gaps[situation] = Gap(situation, worst, figures.bound_s)
        # Not Counter.update for what is 0: that a situation was never reached is worth telling.
        for name, count in outcome.coverage.items():
            self._coverage[name] += count
        for name, count in figures.checked.items():
            self._checked[name] += count
        if len(self._traces) < FAILURES_MAX:
            self._traces[f"{job.plan.name}/{job.seed}"] = outcome.trace_sha256
        if outcome.ok and not any(figures.checked.values()):
            outcome = msgspec.structs.replace(outcome, violations=["broken: the run ended before anything was checked"])
        elif outcome.ok:
            return None
        violations = outcome.violations or ["broken: the run failed and no rule says why"]
        return self._fail(
            Failure(job.plan, job.seed, rule_of(violations[0]), violations, outcome.trace_sha256, command)
        )

    def report(self, seconds: float, shortest: Shortest | None = None, *, whole: bool = True) -> Report:
        """Return what it all came to in so many real seconds; ``whole`` unless runs are missing."""
        return Report(
            ok=whole and not self.failed,
            runs=self.runs,
            failed=self.failed,
            broken_rules=dict(sorted(self._rules.items())),
            failures=self.failures,
            shortest=shortest,
            seconds=round(seconds, 3),
            runs_per_s=round(self.runs / seconds, 3) if seconds else 0.0,
            messages_per_s=round(self.numbers.acknowledged / seconds, 1) if seconds else 0.0,
            virtual_hours=round(self._virtual_s / 3600, 3),
            steps=self._steps,
            total=self.numbers.as_dict(),
            receives_per_hour_empty={
                store: round(receives / calm_s * 3600, 3) if calm_s else None
                for store, (receives, calm_s) in sorted(self._calm.items())
            },
            calm_hours={store: round(calm_s / 3600, 3) for store, (_, calm_s) in sorted(self._calm.items())},
            restarts=self._restarts,
            restart_receives=self._restart_receives,
            gaps=sorted(self._gaps.values(), key=lambda gap: (-gap.worst_s, gap.situation)),
            coverage=dict(sorted(self._coverage.items())),
            checked=dict(sorted(self._checked.items())),
            traces=dict(sorted(self._traces.items())),
        )

    def _fail(self, failure: Failure) -> Failure:
        self.failed += 1
        self._rules[failure.rule] += 1
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(failure)
        return failure
