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
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from queuebell.command.progress import Progress
from tests.simulation.faults import KINDS, Fault
from tests.simulation.plan import PRESETS, Plan
from tests.simulation.run import Outcome, run
from tests.support.total_queue import Numbers

SEEDS: Final = 1000
QUIET_S: Final = 300.0
"""Quiet at the end of each run, in which receives of empty queues are counted."""
FAILURES: Final = 5
ENOUGH: Final = 16
"""From so many runs on, a rule that was never checked is named in the verdict."""
RUNS_OF_A_PROCESS: Final = 200
"""A process is replaced after so many runs, so that a long campaign does not grow."""


class Job(msgspec.Struct, frozen=True):
    """One run to play; ``faults`` None draws them from the seed."""

    plan: Plan
    seed: int
    faults: list[Fault] | None = None


class Played(msgspec.Struct, frozen=True):
    """A job and its outcome, or the traceback of an exception in the simulator itself."""

    job: Job
    outcome: Outcome | None
    broken: str = ""


def play_one(job: Job) -> Played:
    try:
        return Played(job, run(job.plan, job.seed, job.faults))
    except Exception:
        return Played(job, None, traceback.format_exc())


def play(jobs: Iterable[Job], processes: int) -> Iterator[Played]:
    """Play the runs in ``processes`` processes, and yield each as it ends, in any order."""
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=RUNS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(play_one, jobs)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    if min(args.seeds, args.jobs) <= 0 or args.first < 0:
        parser.error("--seeds and --jobs must be more than 0, and --first 0 or more")
    if args.bridges > 1 and args.auth:
        parser.error("--bridges: several bridges ask for no keys here")
    progress = Progress.on(sys.stdout, plainly=True)
    try:
        return (_campaign if args.seed is None else _replay)(args, progress)
    finally:
        progress.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    both = "default both, in turn"
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"runs to play (default {SEEDS:,})")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, metavar="N", help="play only this seed, and print its story")
    parser.add_argument("--store", choices=("own", "elsewhere", "both"), default="both", help=f"the store ({both})")
    parser.add_argument("--channel", choices=("wire", "broker", "both"), default="both", help=f"the channel ({both})")
    parser.add_argument("--faults", nargs="*", choices=KINDS, metavar="KIND", help="default all; none without a kind")
    parser.add_argument("--auth", action="store_true", help="the bridge asks for keys, which change among the faults")
    parser.add_argument("--bridges", type=int, choices=(1, 2, 3, 5), default=1, help="bridges in front of one store")
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
    differs |= {} if args.faults is None else {"faults": tuple(args.faults)}
    return msgspec.structs.replace(preset, **differs)


def _campaign(args: argparse.Namespace, progress: Progress) -> int:
    began, done, total = time.monotonic(), 0, Numbers()
    failed: list[Played] = []
    checked: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    longest = 0.0
    calm: dict[str, list[float]] = {}
    seeds = range(args.first, args.first + args.seeds)
    for played in play((Job(plan_of(args, seed), seed) for seed in seeds), args.jobs):
        done += 1
        outcome = played.outcome
        if outcome is None or not outcome.ok:
            failed.append(played)
        if outcome is not None:
            figures = outcome.figures
            total += Numbers.of(outcome.total)
            checked.update(figures.checked)
            reached.update(outcome.coverage)
            calm.setdefault(played.job.plan.store, []).append(figures.calm_receives)
            calm.setdefault(f"{played.job.plan.store} s", []).append(figures.calm_s)
            longest = max(longest, figures.worst_gap_s)
        text = f"{done:,} runs, {total.acknowledged:,} messages, lost {total.lost:,}, failed {len(failed):,}"
        progress.now("simulate", text, share=done / args.seeds)
    progress.line(f"{done:,} runs in {time.monotonic() - began:.0f} s")
    for name, count in total.as_dict().items():
        progress.line(f"  {name:<13}{count:>12,}")
    for store in [store for store in ("elsewhere", "own") if sum(calm.get(f"{store} s", ()))]:
        rate = sum(calm[store]) / sum(calm[f"{store} s"]) * 3600
        progress.line(f"  {rate:.1f} receives an hour of an empty queue ({store})")
    progress.line(f"  {longest:.1f} s longest wait")
    progress.line("  checked: " + ", ".join(f"{rule} {count:,}" for rule, count in sorted(checked.items())))
    progress.line("  reached: " + ", ".join(f"{name} {count:,}" for name, count in sorted(reached.items())))
    for played in failed[:FAILURES]:
        job, outcome = played.job, played.outcome
        progress.line(f"seed {job.seed} of {job.plan.name}: play it again with --seed")
        for line in played.broken.splitlines() if outcome is None else outcome.violations[:5]:
            progress.line(line)
    unchecked = [rule for rule, count in sorted(checked.items()) if not count] if done >= ENOUGH else []
    verdict = f"FAILED: {len(failed):,} of {done:,} runs." if failed else "All of it held."
    progress.heading(f"{verdict} Never checked: {', '.join(unchecked)}." if unchecked else verdict)
    return 1 if failed else 0


def _replay(args: argparse.Namespace, progress: Progress) -> int:
    plan = plan_of(args, args.seed)
    outcome = run(plan, args.seed, keep_story=True)
    progress.heading(f"seed {args.seed} of {plan.name}")
    for line in (*outcome.story, "", *outcome.violations, f"trace {outcome.trace_sha256}"):
        progress.line(line)
    progress.heading("held" if outcome.ok else "FAILED")
    return 0 if outcome.ok else 1
