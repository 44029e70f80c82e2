"""``queuebell demo``: real work for real processes on this machine, and its cost next to polling."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import QueuebellError
from queuebell.command.options import number, seconds
from queuebell.command.progress import Progress
from queuebell.demo.outcome import Plan

OK: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options."""
    parser.add_argument(
        "--workers",
        type=number(2, 32),
        default=4,
        metavar="N",
        help="worker processes, 2 to 32; one of them is killed half-way (default 4)",
    )
    parser.add_argument("--bursts", type=number(1, 20), default=3, metavar="N", help="bursts of work (default 3)")
    parser.add_argument(
        "--quiet",
        type=seconds(0.1, 3600),
        default=1.2,
        metavar="S",
        help="seconds of quiet after each burst, 0.1 to 3600 (default 1.2)",
    )
    parser.add_argument(
        "--files", type=number(1, 1_000_000), default=None, metavar="N", help="analyse only N files, evenly spread"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON; progress goes to standard error")


def run(args: argparse.Namespace) -> int:
    """Play the demo; return 0 if all held, 1 if not, 130 if interrupted."""
    return perform(Plan(args.workers, args.bursts, args.quiet, args.files), as_json=args.json)


def perform(plan: Plan, *, as_json: bool = False) -> int:
    """Play a plan and print its result; return the exit code."""
    progress = Progress.on(sys.stderr if as_json else sys.stdout)
    # The demo reports failures itself, in one line. Warnings of its own scaler would stand next to that line.
    logging.getLogger("queuebell").addHandler(logging.NullHandler())
    try:
        return asyncio.run(_play(plan, progress, as_json=as_json))
    except (asyncio.CancelledError, KeyboardInterrupt):
        progress.line("interrupted; every process is stopped")
        return INTERRUPTED
    finally:
        progress.close()


async def _play(plan: Plan, progress: Progress, *, as_json: bool) -> int:
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        # A second Ctrl-C does not cut the stopping short: processes would outlive the demo.
        if not task.cancelling():
            progress.now("stop", "ending every process", at_once=True)
            task.cancel()

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(each, stop)
    # Loaded only now, when Ctrl-C is handled: the web client alone takes a third of a second.
    from queuebell.demo.scenario import DemoFailed, play

    try:
        outcome = await play(plan, progress)
    except (DemoFailed, QueuebellError, OSError) as failure:
        progress.line()
        print(f"queuebell demo: {failure}", file=sys.stderr)
        return FAILED
    faults = outcome.faults
    if as_json:
        said = {"ok": not faults, "faults": faults, **msgspec.to_builtins(outcome)}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(said)).decode() + "\n")
        return FAILED if faults else OK
    sums = outcome.totals
    progress.line()
    progress.heading(
        f"{outcome.files:,} files, {sums.lines:,} lines, {sums.functions:,} functions, {sums.classes:,} classes"
    )
    for line in outcome.table():
        progress.line(line)
    progress.line()
    for line in faults:
        progress.line(f"  {line}")
    progress.heading("FAILED" if faults else "All of it held: the result equals the direct analysis.")
    return FAILED if faults else OK
