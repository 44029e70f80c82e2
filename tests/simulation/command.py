"""Run the real bridge and real listeners in virtual time, over a network that fails, and check that no wake is lost.

  python -m tests.simulation                  a thousand seeds
  python -m tests.simulation --seed 17        the run of one seed again, with its story
  python -m tests.simulation --auth           a bridge with keys, which are revoked, replaced and expire
  python -m tests.simulation --bridges 3      three bridges that take turns
  python -m tests.simulation --scalers 1      listeners that a scaler starts and stops

A run is a function of its options and its seed: the same seed gives the same trace on any machine. The exit code is 0
if every rule held, 1 if not, 2 for a wrong option.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from queuebell.command.progress import Progress
from tests.simulation.checks import rule_of
from tests.simulation.fault import ACCESS_KINDS, CLUSTER_KINDS, SCALE_KINDS, Fault, check_kinds, draw_faults
from tests.simulation.jobs import Job, Played, play, play_one
from tests.simulation.kernel import Kernel
from tests.simulation.plan import PRESETS, Plan, check
from tests.simulation.run import run
from tests.support.total_queue import Numbers

SEEDS: Final = 1000
BRIDGES: Final = (1, 2, 3, 5)
QUIET_S: Final = 300.0
"""Quiet at the end of each run, in which receives of empty queues are counted."""
FAILURES: Final = 5
"""Failed runs that are printed; the rest is counted."""
SHRINK_RUNS: Final = 100
STORY_LINES: Final = 60
ENOUGH: Final = 16
"""From so many runs on, a rule that was never checked is named in the verdict."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    if problem := _problem(args):
        parser.error(problem)
    progress = Progress.on(sys.stdout, plainly=True)
    try:
        if args.seed is not None:
            return _replay(args, progress)
        return _campaign(args, progress)
    finally:
        progress.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    both = "default both, in turn"
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"runs to play (default {SEEDS:,})")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, metavar="N", help="play only this seed, and print its story")
    parser.add_argument("--hours", type=float, metavar="H", help="virtual hours with faults (default 5 minutes)")
    parser.add_argument("--workers", type=int, metavar="N", help="listeners of each run (default 3)")
    parser.add_argument("--store", choices=("own", "elsewhere", "both"), default="both", help=f"the store ({both})")
    parser.add_argument("--channel", choices=("wire", "broker", "both"), default="both", help=f"the channel ({both})")
    parser.add_argument("--faults", type=_faults, metavar="KINDS", help="all (default), none, or some: crash,half_open")
    parser.add_argument("--auth", action="store_true", help="the bridge asks for keys, which change among the faults")
    parser.add_argument("--bridges", type=int, choices=BRIDGES, default=1, help="bridges in front of one store")
    parser.add_argument("--scalers", type=int, choices=(0, 1, 2, 3), default=0, help="scalers that start the listeners")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: cores)")


def plan_of(args: argparse.Namespace, seed: int) -> Plan:
    """Return the plan of this seed: stores and channels in turn, and every second round restarts the bridge."""
    stores = ("own", "elsewhere") if args.store == "both" else (args.store,)
    channels = ("wire", "broker") if args.channel == "both" else (args.channel,)
    names = [f"{'cluster-' * (args.bridges > 1)}{store}-{channel}" for store in stores for channel in channels]
    preset = PRESETS[names[seed % len(names)]]
    differs: dict[str, Any] = {"quiet_s": QUIET_S, "auth": args.auth, "bridges": args.bridges, "scalers": args.scalers}
    # By fours for any number of presets, so that --seed with --store and --channel plays the same run.
    differs |= {"quiet_restart": bool(seed // 4 % 2), "outlive": args.scalers > 0 and bool(seed // 8 % 2)}
    differs |= {} if args.faults is None else {"faults": args.faults}
    differs |= {} if args.workers is None else {"workers": args.workers}
    if args.hours is not None:
        # As many messages an hour as the preset has.
        differs |= {"hours": args.hours, "messages": max(1, round(preset.messages * args.hours / preset.hours))}
    return msgspec.structs.replace(preset, **differs)


def _faults(text: str) -> tuple[str, ...] | None:
    if text in ("all", "none"):
        return None if text == "all" else ()
    kinds = tuple(text.split(","))
    check_kinds(kinds)
    return kinds


def _problem(args: argparse.Namespace) -> str:
    """Return what is wrong with the options; empty if nothing is."""
    kinds = set(args.faults or ())
    for option, given, without in (
        ("--bridges", args.bridges > 1, CLUSTER_KINDS),
        ("--scalers", args.scalers, SCALE_KINDS),
        ("--auth", args.auth, ACCESS_KINDS),
    ):
        if not given and kinds & set(without):
            return f"--faults {min(kinds & set(without))} does nothing without {option}"
    if min(args.seeds, args.jobs) < 1 or args.first < 0:
        return "--seeds and --jobs must be at least 1, --first at least 0"
    try:
        check(plan_of(args, 0))
    except ValueError as error:
        return str(error)
    return ""


def _campaign(args: argparse.Namespace, progress: Progress) -> int:
    began, done, total = time.monotonic(), 0, Numbers()
    failed: list[Played] = []
    checked: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    gaps: dict[str, float] = {}
    calm: Counter[str] = Counter()
    for played in play(
        (Job(plan_of(args, seed), seed) for seed in range(args.first, args.first + args.seeds)), args.jobs
    ):
        done += 1
        outcome = played.outcome
        if outcome is None or not outcome.ok:
            failed.append(played)
        if outcome is not None:
            total += Numbers.of(outcome.total)
            checked.update(outcome.figures.checked)
            reached.update(outcome.coverage)
            calm[f"{played.job.plan.store} receives"] += outcome.figures.calm_receives
            calm[f"{played.job.plan.store} seconds"] += round(outcome.figures.calm_s)
            for situation, worst in outcome.figures.worst_gap_s.items():
                gaps[situation] = max(worst, gaps.get(situation, 0.0))
        text = f"{done:,} runs, {total.acknowledged:,} messages, lost {total.lost:,}, failed {len(failed):,}"
        progress.now("simulate", text, share=done / args.seeds)
    progress.line(f"{done:,} runs in {time.monotonic() - began:.0f} s")
    for name, count in total.as_dict().items():
        progress.line(f"  {name:<13}{count:>12,}")
    for store in sorted({key.split()[0] for key in calm}):
        if seconds := calm[f"{store} seconds"]:
            rate = calm[f"{store} receives"] / seconds * 3600
            progress.line(f"  {rate:.1f} receives an hour of an empty queue ({store})")
    for situation, worst in sorted(gaps.items(), key=lambda gap: -gap[1])[:8]:
        progress.line(f"  {worst:>6.1f} s longest wait while {situation}")
    progress.line("  checked: " + ", ".join(f"{rule} {count:,}" for rule, count in sorted(checked.items())))
    progress.line("  reached: " + ", ".join(f"{name} {count:,}" for name, count in sorted(reached.items())))
    for played in failed[:FAILURES]:
        for line in _failure(played):
            progress.line(line)
    first = next((played for played in failed if played.outcome is not None), None)
    if first is not None:
        for line in _shortest(first):
            progress.line(line)
    unchecked = [rule for rule, count in sorted(checked.items()) if not count] if done >= ENOUGH else []
    verdict = f"FAILED: {len(failed):,} of {done:,} runs." if failed else "All of it held."
    progress.heading(f"{verdict} Never checked: {', '.join(unchecked)}." if unchecked else verdict)
    return 1 if failed else 0


def _failure(played: Played) -> list[str]:
    violations = played.broken.splitlines() if played.outcome is None else played.outcome.violations[:5]
    return [f"seed {played.job.seed} of {played.job.plan.name}: play it again with --seed", *violations]


def _shortest(failure: Played) -> list[str]:
    """Leave out faults while the same rule still breaks, and return what is left with the end of its story."""
    job, outcome = failure.job, failure.outcome
    assert outcome is not None
    rule = rule_of(outcome.violations[0])
    faults: list[Fault] = draw_faults(job.plan, Kernel(job.seed).chance("faults"))
    for fault in faults[:SHRINK_RUNS]:
        fewer = [each for each in faults if each is not fault]
        again = play_one(Job(job.plan, job.seed, fewer)).outcome
        if again is not None and any(rule_of(line) == rule for line in again.violations):
            faults = fewer
    story = run(job.plan, job.seed, faults, keep_story=True)
    told = [f"  {fault}" for fault in faults] or ["  no fault"]
    return [f"The faults without which seed {job.seed} keeps {rule}:", *told, *story.story[-STORY_LINES:]]


def _replay(args: argparse.Namespace, progress: Progress) -> int:
    plan = plan_of(args, args.seed)
    outcome = run(plan, args.seed, keep_story=True)
    progress.heading(f"seed {args.seed} of {plan.name}")
    for line in (*outcome.story, "", *outcome.violations, f"trace {outcome.trace_sha256}"):
        progress.line(line)
    progress.heading("held" if outcome.ok else "FAILED")
    return 0 if outcome.ok else 1
