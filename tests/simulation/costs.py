"""What a trigger costs while bridges take turns, beside what it costs a single bridge: plans and table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tests.simulation.jobs import Job, Played
from tests.simulation.plan import LOAD_FROM_S, PRESETS, Plan
from tests.simulation.promise import promise

WORKERS: Final = 6
TRIGGERS: Final = 300
LOAD_PER_S: Final = 1000.0
LOAD_S: Final = 5.0
NAMED_MOST: Final = 1.02
BARE_MOST: Final = 2.0
LOAD_MOST: Final = 1.1
"""Of what one bridge receives."""
WORDS_MOST_PER_S: Final = 20.0
"""Of triggers without names, of a queue and a bridge whose workers look: covers within 50 ms are one word. Names fill a
word with every 32."""
NAMES_A_WORD: Final = 32
WAIT_MOST_S: Final = 0.25
"""Calm, nobody ever waits for another's turn: the first place behind another is A and this much."""
_IDLE_S: Final = 3600.0
_KINDS: Final = ("calm", "bare", "load", "flood", "idle")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One size of cluster. ``words`` are those said besides the one a second that says who is there."""

    bridges: int
    receives_a_trigger: float
    receives_a_bare_trigger: float
    receives_per_s: float
    receives_per_s_beside_one: float
    words_a_trigger: float
    words_per_s: float
    words_per_s_bare: float
    receives_an_idle_hour: float
    longest_wait_s: float
    violations: list[str]


def jobs(sizes: Sequence[int], seed: int) -> list[Job]:
    """Return the runs of each size: triggers one after the other and many at once, with and without names, and none."""
    found = []
    for bridges in sizes:
        calm = msgspec.structs.replace(
            PRESETS["cluster-elsewhere-broker"],
            bridges=bridges,
            workers=WORKERS,
            producers=1,
            messages=TRIGGERS,
            every_s=1.0,
            handler_s=(0.01, 0.05),
            handler_failure_share=0.0,
            # A lease that its listener settles soon is no reason to look at its end.
            next_visible=False,
            faults=(),
            hours=(LOAD_FROM_S + TRIGGERS + 1.0) / 3600,
        )
        bare = msgspec.structs.replace(calm, named=False)
        load = msgspec.structs.replace(calm, messages=1, ring_per_s=LOAD_PER_S, hours=(LOAD_FROM_S + LOAD_S) / 3600)
        flood = msgspec.structs.replace(load, named=False)
        idle = msgspec.structs.replace(
            calm, messages=1, hours=(LOAD_FROM_S + 1.0) / 3600, quiet_s=_IDLE_S + promise(calm).churn_s
        )
        found += [Job(plan, seed, []) for plan in (calm, bare, load, flood, idle)]
    return found


def table(played: Mapping[int, Sequence[Played]]) -> list[Row]:
    """Put the runs of each size into a row; one bridge's are needed, for the others are held against them."""
    one = _load(played[1])
    return [_row(bridges, runs, one) for bridges, runs in sorted(played.items())]


def tell(rows: Sequence[Row]) -> list[str]:
    """Lay out the table."""
    rate = f"at {LOAD_PER_S:,.0f} triggers a second:"
    lines = [
        f"  {'':<9}{'receives a trigger':>18}{'words a':>9}{rate:>30}{'idle':>12}",
        (
            f"  {'bridges':<9}{'named':>9}{'bare':>9}{'trigger':>9}"
            f"{'receives':>11}{'of one':>8}{'words':>11}{'an hour':>12}"
        ),
    ]
    for row in rows:
        lines.append(
            f"  {row.bridges:<9}{row.receives_a_trigger:>9.3f}{row.receives_a_bare_trigger:>9.3f}"
            f"{row.words_a_trigger:>9.2f}{row.receives_per_s:>9.1f}/s{row.receives_per_s_beside_one:>8.2f}"
            f"{row.words_per_s_bare:>5.1f}, {row.words_per_s:>4.1f}{row.receives_an_idle_hour:>12.1f}"
        )
        lines += [f"    {violation}" for violation in row.violations[:5]]
    lines.append("  words: bare triggers, named ones; what says once a second who is there is not counted")
    lines.append(
        f"  the longest that a message waited while all was calm: {max(row.longest_wait_s for row in rows):.2f} s"
    )
    return lines


def _row(bridges: int, runs: Sequence[Played], one: float) -> Row:
    violations: list[str] = []
    figures = {}
    for run in runs:
        if run.outcome is None:
            violations.append(f"broken: {run.broken.rstrip().splitlines()[-1]}")
        else:
            figures[_kind(run.job.plan)] = run.outcome.figures
            violations += run.outcome.violations
    if len(figures) < len(_KINDS):
        return Row(
            bridges=bridges, receives_a_trigger=0.0, receives_a_bare_trigger=0.0, receives_per_s=0.0,
            receives_per_s_beside_one=0.0, words_a_trigger=0.0, words_per_s=0.0, words_per_s_bare=0.0,
            receives_an_idle_hour=0.0, longest_wait_s=0.0, violations=violations,
        )  # fmt: skip
    calm, bare, load, flood, idle = (figures[kind] for kind in _KINDS)
    waits = [*calm.worst_gap_s.values(), *bare.worst_gap_s.values()]
    row = Row(
        bridges=bridges,
        receives_a_trigger=calm.load_receives / calm.triggers,
        receives_a_bare_trigger=bare.load_receives / bare.triggers,
        receives_per_s=load.load_receives / load.load_s,
        receives_per_s_beside_one=load.load_receives / load.load_s / one,
        words_a_trigger=_words(calm.words) / calm.triggers,
        words_per_s=_words(load.words) / load.load_s,
        words_per_s_bare=_words(flood.words) / flood.load_s,
        receives_an_idle_hour=idle.calm_receives / idle.calm_s * 3600,
        longest_wait_s=max(waits),
        violations=violations,
    )
    bounds = (
        ("receives a named trigger", row.receives_a_trigger, NAMED_MOST),
        ("receives a bare trigger", row.receives_a_bare_trigger, BARE_MOST),
        ("receives under load, of one bridge's", row.receives_per_s_beside_one, LOAD_MOST),
        ("words a trigger", row.words_a_trigger, bridges + 1.0),
        ("words a second under load", row.words_per_s, WORDS_MOST_PER_S * bridges + LOAD_PER_S / NAMES_A_WORD),
        ("words a second under load, bare", row.words_per_s_bare, WORDS_MOST_PER_S * bridges),
        ("receives an idle hour", row.receives_an_idle_hour, 67.0),
        ("seconds of waiting", row.longest_wait_s, WAIT_MOST_S),
    )
    violations += [
        f"costs: {what}: {measured:.3f}; promised {most:g}" for what, measured, most in bounds if measured > most
    ]
    return row


def _load(runs: Sequence[Played]) -> float:
    for run in runs:
        if _kind(run.job.plan) == "load" and run.outcome is not None and run.outcome.figures.load_s:
            return run.outcome.figures.load_receives / run.outcome.figures.load_s
    return float("inf")


def _kind(plan: Plan) -> str:
    if plan.ring_per_s:
        return "load" if plan.named else "flood"
    if plan.quiet_s:
        return "idle"
    return "calm" if plan.named else "bare"


def _words(said: Mapping[str, int]) -> int:
    return sum(count for kind, count in said.items() if kind != "member")
