"""Run the real bridge and real listeners in virtual time, over a network that fails, and see whether any wake is lost.

  python -m tests.simulation                          a thousand seeds
  python -m tests.simulation --seeds 100000           a night's work
  python -m tests.simulation --seed 17                the run of one seed again, with its story
  python -m tests.simulation --messages 10000000      until ten million messages were acknowledged
  python -m tests.simulation --auth                   a thousand seeds of a bridge that asks for keys
  python -m tests.simulation --bridges 3              a thousand seeds of three bridges that take turns
  python -m tests.simulation --scalers 1              a thousand seeds of listeners that a scaler starts and ends
  python -m tests.simulation --costs                  what a trigger costs 1, 2, 3 and 5 bridges that take turns
  python -m tests.simulation --idle                   what an empty queue costs 1, 10, 100 and 1,000 listeners

Bridge, listeners, publishers and rules are the real code; clocks, network, brokers and stores elsewhere are simulated.
A run is a function of its options and its seed: the same seed gives the same trace, on any machine. The exit code is 0
if everything held, 1 if not, 2 for a wrong option, 130 after Ctrl-C, 141 where nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from bridge.contract.errors import BadInput
from queuebell.command.progress import Progress
from tests.simulation import costs, idle
from tests.simulation.campaign import Campaign, Stopped
from tests.simulation.crew import Crew, CrewLost, Job, Played
from tests.simulation.fault import ACCESS_KINDS, CLUSTER_KINDS, SCALE_KINDS
from tests.simulation.report import (
    tell_costs,
    tell_coverage,
    tell_failure,
    tell_fault,
    tell_numbers,
    tell_shortest,
    tell_verdict,
)
from tests.simulation.selection import Selection, parse_exact, parse_faults, plan_of
from tests.simulation.summary import Report

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
NOBODY_READS: Final = 141
"""As a command that SIGPIPE ends: 1 would say that something did not hold."""
SEEDS: Final = 1000
SEEDS_MAX: Final = 10**9
IDLE_HOURS: Final = 1.0
IDLE_HELP: Final = (
    "measure what an empty queue costs instead; each fleet's row is told when it is done, the smallest first: seconds"
    " up to 100 listeners, minutes for 1,000 (--workers plays one fleet only)"
)
COSTS_HELP: Final = (
    "measure what a trigger costs 1, 2, 3 and 5 bridges that take turns instead: receives, and words between them"
    " (--bridges measures one size beside a single bridge)"
)
BRIDGES: Final = (1, 2, 3, 5)
RUNS_A_ROW: Final = 2
_NUMBER: Final = re.compile(r"([0-9][0-9_]*)(?:[eE]\+?([0-9]{1,3}))?")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 2 for an option that cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except BadInput as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return USAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``simulate``."""
    parser.add_argument("--seeds", type=_whole(1, SEEDS_MAX), metavar="N", help=f"runs to play (default {SEEDS:,})")
    parser.add_argument(
        "--first", type=_whole(0, SEEDS_MAX), default=0, metavar="N", help="the first of these seeds (default 0)"
    )
    parser.add_argument(
        "--seed",
        type=_whole(0, 2 * SEEDS_MAX),
        metavar="N",
        help="play only the run that a campaign plays of this seed, and print its story; it has one store and one"
        " channel, by turns, unless --store and --channel name others",
    )
    parser.add_argument(
        "--exact", type=_told(parse_exact), metavar="JSON", help="play the very story that a failure printed"
    )
    parser.add_argument(
        "--hours", type=_hours, metavar="H", help="virtual hours of each run's phase with faults (default: 5 minutes)"
    )
    parser.add_argument("--workers", type=_whole(1, 10_000), metavar="N", help="listeners of each run (default 3)")
    parser.add_argument(
        "--messages",
        type=_whole(1, 10**12),
        metavar="N",
        help="play until so many messages were acknowledged in all, in runs of up to 50,000 with large bursts"
        " (digits, 1_000_000 or 1e6)",
    )
    parser.add_argument(
        "--store",
        choices=("own", "elsewhere", "both"),
        default="both",
        help="where the messages wait: in the bridge's own service or elsewhere (default both, in turn)",
    )
    parser.add_argument(
        "--channel",
        choices=("wire", "broker", "both"),
        default="both",
        help="how wakes travel: a connection each, or a broker that loses some (default both, in turn)",
    )
    parser.add_argument(
        "--faults",
        type=_told(parse_faults),
        default=None,
        metavar="KINDS",
        help="all (default), none, or some: crash,half_open",
    )
    parser.add_argument(
        "--auth",
        action="store_true",
        help="have the bridge ask for keys, which are revoked, replaced and expire among the faults",
    )
    parser.add_argument(
        "--bridges",
        type=int,
        choices=BRIDGES,
        help="bridges that take turns, on one NATS and in front of one store (default 1)",
    )
    parser.add_argument(
        "--scalers",
        type=_whole(1, 3),
        metavar="N",
        help="have scalers on N machines start the listeners, up to --workers each, and end them when they are idle",
    )
    parser.add_argument(
        "--jobs", type=_whole(1, 1024), metavar="N", help="processes that play runs (default: one a core)"
    )
    parser.add_argument("--idle", action="store_true", help=IDLE_HELP)
    parser.add_argument("--costs", action="store_true", help=COSTS_HELP)
    parser.add_argument("--json", action="store_true", help="print the result as JSON; progress goes to standard error")


def run(args: argparse.Namespace) -> int:
    """Play; 0 if everything held, 1 if not, 130 if interrupted."""
    _refuse_what_excludes(args)
    return perform(args)


_EXCLUDED: Final[dict[str, tuple[str, ...]]] = {
    "exact": ("seed", "seeds", "idle", "hours", "workers", "messages", "faults", "auth", "bridges", "costs", "scalers"),
    "idle": ("seed", "seeds", "messages", "faults", "auth", "costs", "scalers"),
    "seed": ("seeds",),
    "costs": ("seed", "seeds", "messages", "faults", "auth", "hours", "workers", "scalers"),
}
"""By option: those that would do nothing beside it."""


def _refuse_what_excludes(args: argparse.Namespace) -> None:
    """Raise `BadInput` for options of which one would do nothing."""
    given = {name for name, value in vars(args).items() if value is not None and value is not False}
    for option, others in _EXCLUDED.items():
        clash = [other for other in others if other in given] if option in given else []
        if clash:
            raise BadInput("bad_parameter", f"--{clash[0]} does nothing beside --{option}: leave one of them out")
    if args.auth and _bridges(args) > 1:
        raise BadInput(
            "bad_parameter", "--auth does nothing beside --bridges: several simulated bridges ask for no keys"
        )
    for kind in args.faults or ():
        if kind in CLUSTER_KINDS and _bridges(args) == 1:
            raise BadInput("bad_parameter", f"--faults {kind} does nothing without --bridges, for one has no others")
        if kind in SCALE_KINDS and not args.scalers:
            raise BadInput("bad_parameter", f"--faults {kind} does nothing without --scalers, for nobody starts any")
        if kind in ACCESS_KINDS and not args.auth:
            raise BadInput("bad_parameter", f"--faults {kind} does nothing without --auth, for nobody has a key")


def perform(args: argparse.Namespace, crew: Callable[[int], Crew] = Crew) -> int:
    """Do what the options say with a crew of their size, tell how it went, and return the exit code."""
    progress = Progress.on(sys.stderr if args.json else sys.stdout, plainly=True)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with crew(args.jobs or os.cpu_count() or 1) as players:
            if args.idle:
                return _idle(args, players, progress)
            if args.costs:
                return _costs(args, players, progress)
            if args.exact is not None or args.seed is not None:
                return _replay(args, players, progress)
            return _play(args, players, progress)
    except KeyboardInterrupt:
        progress.line("interrupted; every process is stopped")
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads on: nothing is known to have failed. What is still unwritten must not fail once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except CrewLost as lost:
        progress.line()
        sys.stderr.write(f"python -m tests.simulation: {lost}\n")
        return FAILED
    finally:
        progress.close()
        signal.signal(signal.SIGTERM, before)


def _play(args: argparse.Namespace, crew: Crew, progress: Progress) -> int:
    selection = _selection(args)
    seeds = args.seeds if args.seeds is not None or args.messages is not None else SEEDS
    campaign = Campaign(selection, crew, progress, first=args.first, seeds=seeds)
    try:
        report = campaign.play()
    except Stopped as stopped:
        played = f"after {stopped.report.runs:,} of {seeds:,} runs" if seeds else f"after {stopped.report.runs:,} runs"
        _tell(stopped.report, args, progress, interrupted=played)
        progress.line("interrupted; every process is stopped, and what was reached stands above")
        return INTERRUPTED
    _tell(report, args, progress)
    return OK if report.ok else FAILED


def _tell(report: Report, args: argparse.Namespace, progress: Progress, *, interrupted: str = "") -> None:
    if args.json:
        _print_json(report)
        return
    progress.line()
    progress.heading("What was played")
    for line in (*tell_numbers(report), "", *tell_costs(report), "", *tell_coverage(report)):
        progress.line(line)
    for failure in report.failures:
        progress.line()
        for line in tell_failure(failure):
            progress.line(line)
    if report.failed > len(report.failures):
        progress.line(f"and {report.failed - len(report.failures):,} failed runs more")
    if report.shortest is not None:
        progress.line()
        progress.heading(f"The shortest story that breaks {report.shortest.rule}")
        for line in tell_shortest(report.shortest):
            progress.line(line)
    progress.line()
    progress.heading(tell_verdict(report, interrupted))


def _replay(args: argparse.Namespace, crew: Crew, progress: Progress) -> int:
    if args.exact is not None:
        plan, seed, faults = args.exact
        jobs = [Job(plan, seed, faults, keep_story=True)]
    else:
        jobs = [Job(plan_of(_selection(args), args.seed), args.seed, keep_story=True)]
    told: list[dict[str, Any]] = []
    ok = True
    for job in jobs:
        played = crew.play_one(job)
        outcome = played.outcome
        ok = ok and outcome is not None and outcome.ok
        if args.json:
            told.append({"plan": job.plan, "seed": job.seed, "outcome": outcome, "broken": played.broken})
            continue
        progress.heading(f"seed {job.seed} of {job.plan.name}")
        for line in _story(played):
            progress.line(line)
    if args.json:
        _print_json(told)
    return OK if ok else FAILED


def _story(played: Played) -> list[str]:
    outcome = played.outcome
    if outcome is None:
        return [*played.broken.rstrip().splitlines(), "FAILED: the simulation itself broke"]
    faults = [f"  {tell_fault(fault)}" for fault in played.job.faults or ()]
    numbers = ", ".join(f"{name} {count:,}" for name, count in outcome.total.items())
    verdict = "held" if outcome.ok else "FAILED"
    return [
        *faults,
        *outcome.story,
        "",
        *outcome.violations,
        numbers,
        f"trace {outcome.trace_sha256}",
        f"{verdict}: {outcome.virtual_s:,.1f} virtual seconds in {outcome.steps:,} steps",
    ]


def _idle(args: argparse.Namespace, crew: Crew, progress: Progress) -> int:
    stores = ("own", "elsewhere") if args.store == "both" else (args.store,)
    channel = "wire" if args.channel == "both" else args.channel
    fleets = idle.FLEETS if args.workers is None else (args.workers,)
    hours = IDLE_HOURS if args.hours is None else args.hours
    if _bridges(args) > 1:
        stores = ("own",) if args.store == "own" else ("elsewhere",)
    jobs = idle.jobs(stores, channel, fleets, hours, args.first, _bridges(args))
    waiting: dict[tuple[str, int], list[Played]] = {}
    table: list[idle.Row] = []
    played = 0
    if not args.json:
        progress.heading("What an empty queue costs the whole fleet")
        progress.line(idle.tell_head())
    try:
        for each in crew.play(jobs):
            if each is not None:
                played += 1
                plan = each.job.plan
                fleet = waiting.setdefault((idle.store_of(plan), plan.workers), [])
                fleet.append(each)
                if len(fleet) == RUNS_A_ROW:
                    # Told at once: the largest fleets take the longest, and not everybody waits for them.
                    table.append(idle.row(fleet))
                    for line in () if args.json else idle.tell_row(table[-1]):
                        progress.line(line)
            progress.now("idle", f"{played} of {len(jobs)} runs", share=played / len(jobs))
    finally:
        if args.json:
            _print_json(sorted(table, key=lambda row: (row.store != "own", row.listeners)))
    return OK if len(table) == len(stores) * len(fleets) and all(row.ok for row in table) else FAILED


def _costs(args: argparse.Namespace, crew: Crew, progress: Progress) -> int:
    sizes = BRIDGES if args.bridges is None else tuple(sorted({1, args.bridges}))
    jobs = costs.jobs(sizes, args.first)
    played: dict[int, list[Played]] = {size: [] for size in sizes}
    for each in crew.play(jobs):
        if each is not None:
            played[each.job.plan.bridges].append(each)
        done = sum(map(len, played.values()))
        progress.now("costs", f"{done} of {len(jobs)} runs", share=done / len(jobs))
    table = costs.table(played)
    if args.json:
        _print_json(table)
    else:
        progress.heading("What a trigger costs while bridges take turns")
        for line in costs.tell(table):
            progress.line(line)
    return OK if all(not row.violations for row in table) else FAILED


def _bridges(args: argparse.Namespace) -> int:
    return 1 if args.bridges is None else int(args.bridges)


def _selection(args: argparse.Namespace) -> Selection:
    return Selection(
        store=args.store,
        channel=args.channel,
        faults=args.faults,
        hours=args.hours,
        workers=args.workers,
        messages=args.messages,
        auth=args.auth,
        bridges=_bridges(args),
        scalers=args.scalers or 0,
    )


def _print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
    sys.stdout.flush()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _whole(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        found = _NUMBER.fullmatch(text)
        if found is None:
            raise argparse.ArgumentTypeError("must be a whole number: digits, 1_000_000 or 1e6")
        value: int = int(found[1].replace("_", "")) * 10 ** min(int(found[2] or 0), 30)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {least:,} to {most:,}")
        return value

    return number


def _hours(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0.01 <= value <= 10_000):
        raise argparse.ArgumentTypeError("must be 0.01 to 10,000")
    return value


def _told(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Have argparse tell what is wrong with an option in the words of who reads it."""

    def told(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return told
