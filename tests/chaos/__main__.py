"""``python -m tests.chaos``: a long run of messages under faults; ``--cluster``: the same of three bridges.

``--rows``: every row of the fault catalogue.

Exit codes: 0 all promises kept, 1 one was broken, 2 usage.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.catalogue import chosen
from tests.chaos.cluster_run import ClusterRun
from tests.chaos.long_run import FAULTS, NONE, LongRun, Outcome
from tests.chaos.pace import Pace
from tests.chaos.row import Measurement, Row, run


def say(line: str) -> None:
    """Tell of progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def tell(line: str = "") -> None:
    """Write a line of the result."""
    sys.stdout.write(line + "\n")


def rows(numbers: str, *, markdown: bool, auth: bool) -> int:
    """Run the rows that this machine lets us run, and write the table."""
    head = ("fault", "how injected", "promised", "worst measured", "lost/unexpected")
    table = [head, ("---",) * len(head)]
    failed = False
    for row in chosen(numbers):
        if row.inject is None or not row.possible():
            line, broken = told(row, None, f"not here: `{row.command}`"), False
        else:
            with tempfile.TemporaryDirectory(prefix="queuebell-chaos-") as folder:
                try:
                    found = asyncio.run(run(row, Path(folder), auth=auth))
                    line, broken = told(row, found, "; ".join(found.faults())), bool(found.faults())
                except Exception as error:
                    words = f"FAILED: {type(error).__name__}: {str(error)[:300]}".splitlines()[0]
                    line, broken = told(row, None, words), True
        failed |= broken
        say("; ".join(line))
        table.append(line)
    for line in table if markdown else ():
        tell("| " + " | ".join(line) + " |")
    return int(failed)


def told(row: Row, found: Measurement | None, words: str) -> tuple[str, ...]:
    """Return one line of the table."""
    bound = row.promise(Pace())
    head = (f"{row.number} {row.fault}", row.how, f"{bound.words}: {bound.seconds:.1f} s")
    if found is None:
        return (*head, words, "")
    worst = f"{found.worst_wake_s:.2f} s" + "".join(f"; {name} {value}" for name, value in found.figures.items())
    return (*head, worst + (f"; BROKEN: {words}" if words else ""), f"{found.total.lost}/{found.total.unexpected}")


def long(messages: int, seed: int, faults: list[str], *, cluster: bool, auth: bool) -> int:
    """Do a long run in a folder of its own, which stays where a promise was broken, and write what came of it."""
    folder = Path(tempfile.mkdtemp(prefix="queuebell-chaos-"))
    say(f"seed {seed}; {messages:,} messages; notes and logs are in {folder}")
    if cluster:
        outcome = asyncio.run(ClusterRun(messages, seed=seed, say=say, auth=auth).run(folder))
    else:
        outcome = asyncio.run(LongRun(messages, seed=seed, say=say, auth=auth).run(folder, faults))
    verdict(outcome)
    if not outcome.broken:
        shutil.rmtree(folder)
    return int(bool(outcome.broken))


def verdict(outcome: Outcome) -> None:
    """Write the numbers for people."""
    for name, value in outcome.total._asdict().items():
        tell(f"{name:14} {value:12,}")
    tell(f"duplicates     {outcome.total.duplicated / max(1, outcome.handled):12.3%} of {outcome.handled:,} handled")
    tell(f"throughput     {outcome.handled / outcome.took_s:12,.0f} a second, {outcome.took_s:.0f} s in all")
    tell()
    tell("fault                                              times   worst wake   promised")
    for number in sorted({*outcome.faults, *outcome.worst_wake_s}):
        label = "between faults" if number == NONE else number
        label = f"{number} {FAULTS[number].what}" if number in FAULTS else label
        wake = f"{outcome.worst_wake_s[number]:10.2f} s" if number in outcome.worst_wake_s else ""
        bound = f"{outcome.bounds_s[number]:8.1f} s" if number in outcome.bounds_s else ""
        tell(f"{label:50} {outcome.faults.get(number, ''):>5} {wake:12} {bound}")
    tell()
    tell(f"seed {outcome.seed}: " + ("every promise was kept" if not outcome.broken else "; ".join(outcome.broken)))


def main(arguments: list[str]) -> int:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="to be acknowledged (default 1,000,000)")
    kinds = "; ".join(f"{number} {fault.what}" for number, fault in FAULTS.items())
    parser.add_argument(
        "--faults",
        default="",
        help=f"numbers separated by commas; of a long run: {kinds}; with --rows: those there",
    )
    parser.add_argument("--seed", type=int, help="draws kinds, moments and victims of faults")
    parser.add_argument("--cluster", action="store_true", help="a long run of three bridges, see cluster_run.py")
    parser.add_argument("--rows", action="store_true", help="run the rows of the fault catalogue instead")
    parser.add_argument(
        "--markdown", action="store_true", help="with --rows: write the table for docs/explanation/guarantees.md"
    )
    parser.add_argument("--auth", action="store_true", help="have all bridges ask for keys, and give everybody one")
    options = parser.parse_args(arguments)
    try:
        if options.rows:
            return rows(options.faults, markdown=options.markdown, auth=options.auth)
        faults = options.faults.upper().split(",") if options.faults else list(FAULTS)
        if strangers := set(faults) - set(FAULTS):
            raise ValueError(f"no such fault in a long run: {', '.join(strangers)}")
    except ValueError as error:
        parser.error(str(error))
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    return long(options.messages, seed, faults, cluster=options.cluster, auth=options.auth)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
