"""``python -m bench [--quick] [--out FILE] [NAME ...]``: measure, say how it goes, write bench/RESULTS.md.

``python -m bench cost`` plays a day of waiting in virtual time instead, with options of its own (`bench.cost.cli`).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from bench.figures import Report
from bench.machine import describe
from bench.results import write
from bench.sizes import FULL, QUICK, Scale
from bench.stage import Stage

NAMES: Final = (
    "put_to_handler",
    "idle",
    "throughput",
    "ingestion",
    "intake",
    "intake_nats",
    "intake_mqtt",
    "nats_hop",
    "fan_out",
    "auth",
    "page",
    "sessions",
    "store",
)
ON_REQUEST: Final = ("azure", "cluster", "growth", "peers", "postgres", "postgres_pressure", "rounds", "scale", "wire")
"""Those that need what is not installed everywhere, or more than ten minutes; each says what."""
DAY_MINUTES: Final = 1440
NOT_MEASURED: Final = "NOT MEASURED"
RESULTS: Final = Path(__file__).with_name("RESULTS.md")


async def measure(names: list[str], scale: Scale) -> list[Report]:
    """Carry out the measurements one after the other; one that fails is reported as such."""
    reports = []
    for name in names:
        module = importlib.import_module(f"bench.{name}")
        begun = time.monotonic()

        def say(text: str, name: str = name, begun: float = begun) -> None:
            print(f"{name:>15} {time.monotonic() - begun:5.1f} s  {text}", flush=True)

        say("begins")
        try:
            async with Stage() as stage:
                report = await module.measure(stage, scale, say)
        except Exception as error:
            report = Report(name, notes=[f"{NOT_MEASURED}: {type(error).__name__}: {error}"])
        for figure in report.figures:
            verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
            say(f"{figure.name}: {figure.value}  {figure.target}  {verdict}".rstrip())
        if any(note.startswith(NOT_MEASURED) for note in report.notes):
            say(report.notes[-1])
        reports.append(report)
    return reports


def main() -> int:
    """Run the command line; 0 when all was measured, whether or not it met its target."""
    if sys.argv[1:2] == ["cost"]:
        from bench.cost.cli import main as cost

        return cost(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Queuebell on this machine.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which figures: {', '.join(NAMES)} (default: all these); {', '.join(ON_REQUEST)}; "
        "cost, which takes its own options",
    )
    parser.add_argument("--quick", action="store_true", help="only see that everything runs; the numbers mean nothing")
    parser.add_argument(
        "--out", type=Path, help="where to write (default: bench/RESULTS.md for a full run, else nowhere)"
    )
    parser.add_argument("--idle-minutes", type=float, help="how long the peers are left alone (default: 10)")
    given = parser.parse_args()
    asked = [name.replace("-", "_") for name in given.names]
    if unknown := [name for name in asked if name not in NAMES + ON_REQUEST]:
        parser.error(f"no such figure: {', '.join(unknown)}")
    names = asked or list(NAMES)
    scale = QUICK if given.quick else FULL
    if given.idle_minutes is not None:
        if not 0 < given.idle_minutes <= DAY_MINUTES:
            parser.error("--idle-minutes is more than 0 and a day (1440) at most")
        scale = msgspec.structs.replace(scale, peers_idle_s=60 * given.idle_minutes)
    machine = describe(Path(tempfile.gettempdir()))
    begun = time.monotonic()
    try:
        with asyncio.Runner() as runner:
            # A bench that is told to end ends its processes too.
            runner.get_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
            reports = runner.run(measure(names, scale))
    except KeyboardInterrupt:
        return 130
    out = given.out or (RESULTS if not given.quick and not given.names else None)
    if out is not None:
        write(out, machine, reports, ["python -m bench", *sys.argv[1:]], time.monotonic() - begun)
        print(f"written to {out}")
    return int(any(note.startswith(NOT_MEASURED) for report in reports for note in report.notes))


if __name__ == "__main__":
    sys.exit(main())
