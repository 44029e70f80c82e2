"""``queuebell demo``: play the white paper's scenario on this machine, on real files and with real processes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from typing import Final

import msgspec

from queuebell.cost.options import number, seconds
from queuebell.cost.progress import Progress
from queuebell.demo.outcome import Outcome
from queuebell.demo.plan import DemoFailed, Plan
from queuebell.demo.telling import tell_bill, tell_report, tell_verdict

OK: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options."""
    plan = Plan()
    parser.add_argument(
        "--workers",
        type=number(2, 32),
        default=plan.workers,
        metavar="N",
        help=f"worker processes, 2 to 32; one of them is killed half-way (default {plan.workers})",
    )
    parser.add_argument(
        "--bursts",
        type=number(1, 20),
        default=plan.bursts,
        metavar="N",
        help=f"bursts of work (default {plan.bursts})",
    )
    parser.add_argument(
        "--quiet",
        type=seconds(0.1, 3600),
        default=plan.quiet_s,
        metavar="S",
        help=f"seconds of quiet after each burst, 0.1 to 3600 (default {plan.quiet_s})",
    )
    parser.add_argument(
        "--files", type=number(1, 1_000_000), default=None, metavar="N", help="analyse only N files, evenly spread"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder with the bridge's data and the logs")
    parser.add_argument(
        "--auth",
        action="store_true",
        help="have the bridge ask for keys, and give one each to producer, workers, process controller and onlooker",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON; progress goes to standard error")


def run(args: argparse.Namespace) -> int:
    """Play the demo; 0 if everything held, 1 if not, 130 if interrupted."""
    plan = Plan(
        workers=args.workers,
        bursts=args.bursts,
        quiet_s=args.quiet,
        files=args.files,
        keep=args.keep,
        auth=args.auth,
    )
    return perform(plan, as_json=args.json)


def perform(plan: Plan, *, as_json: bool = False) -> int:
    """Play a plan, tell how it went, and return the exit code."""
    progress = Progress.on(sys.stderr if as_json else sys.stdout)
    # What there is to say the demo says itself: a listener's warning that the bridge is gone would stand beside the one
    # clear line about it.
    logging.getLogger("queuebell").addHandler(logging.NullHandler())
    try:
        outcome = asyncio.run(_play(plan, progress))
    except (asyncio.CancelledError, KeyboardInterrupt):
        progress.line("interrupted; every process is stopped")
        return INTERRUPTED
    except DemoFailed as failure:
        progress.line()
        print(f"queuebell demo: {failure}", file=sys.stderr)
        return FAILED
    finally:
        progress.close()
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(outcome)).decode() + "\n")
    else:
        _tell(outcome, progress)
    return OK if outcome.ok else FAILED


async def _play(plan: Plan, progress: Progress) -> Outcome:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    # A second Ctrl-C must not cut the stopping short: the children would outlive us. They get at most a few seconds.
    asked = False

    def stop() -> None:
        nonlocal asked
        if not asked:
            asked = True
            progress.now("stop", "ending every process", at_once=True)
            task.cancel()

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(each, stop)
    # Only now, when Ctrl-C is minded: the web client alone takes a third of a second to load.
    from queuebell.demo.scenario import play

    return await play(plan, progress)


def _tell(outcome: Outcome, progress: Progress) -> None:
    for title, lines in (
        ("The report", tell_report(outcome.report)),
        (f"The bill, for {outcome.bill.listeners} listeners in {outcome.bill.seconds:.1f} s", tell_bill(outcome.bill)),
        ("The check", tell_verdict(outcome)),
    ):
        progress.line()
        progress.heading(title)
        for line in lines:
            progress.line(line)
    progress.line()
    progress.heading("All of it held." if outcome.ok else "FAILED")
