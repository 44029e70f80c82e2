"""``python -m tests.chaos``: a long run of messages under faults; ``--cluster``: the same of three bridges.

``--rows``: every row of the fault catalogue.

Exit codes: 0 all promises kept, 1 one was broken, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tests.chaos.catalogue import chosen
from tests.chaos.cluster_run import ClusterOutcome, ClusterRun
from tests.chaos.long_faults import FAULTS
from tests.chaos.long_run import NONE, LongRun, Outcome
from tests.chaos.pace import Pace
from tests.chaos.row import Measurement, Row, run

O = TypeVar("O", Outcome, ClusterOutcome)


def say(line: str) -> None:
    """Tell of progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def tell(line: str = "") -> None:
    """Write a line of the result."""
    sys.stdout.write(line + "\n")


def rows(numbers: str | None, *, markdown: bool, as_json: bool, auth: bool) -> int:
    """Run the rows that this machine lets us run, and write the table."""
    lines: list[tuple[str, ...]] = []
    results: list[dict[str, object]] = []
    failed = 0
    for row in chosen(numbers):
        measurement, words = attempt(row, auth=auth)
        broken = measurement.faults() if measurement else []
        failed += bool(broken) or (measurement is None and not words.startswith("`"))
        if measurement is not None and not broken:
            say(f"{row.number} {row.fault}: {measurement}")
        else:
            say(f"{row.number} {row.fault}: {words or '; '.join(broken)}")
        lines.append(table_row(row, measurement, words or "; ".join(broken)))
        results.append(
            {
                "number": row.number,
                "fault": row.fault,
                "broken": broken,
                "words": words,
                **(
                    {}
                    if measurement is None
                    else {
                        "worst_wake_s": measurement.worst_wake_s,
                        "bound_s": measurement.bound.seconds,
                        **measurement.total._asdict(),
                        "figures": measurement.figures,
                    }
                ),
            }
        )
    if as_json:
        tell(json.dumps(results))
    else:
        table(lines, markdown=markdown)
    return 1 if failed else 0


def attempt(row: Row, *, auth: bool) -> tuple[Measurement | None, str]:
    """Run a row; without a measurement the words say why: a command, or what failed."""
    if row.inject is None or not row.possible():
        return None, f"`{row.command}`"
    with tempfile.TemporaryDirectory(prefix="queuebell-chaos-") as folder:
        try:
            return asyncio.run(run(row, Path(folder), auth=auth)), ""
        except Exception as error:
            return None, f"FAILED: {type(error).__name__}: {str(error)[:300]}".splitlines()[0]


def table_row(row: Row, measurement: Measurement | None, words: str) -> tuple[str, ...]:
    """Return one line of the table."""
    bound = row.promise(Pace())
    head = (f"{row.number} {row.fault}", row.how, f"{bound.words}: {bound.seconds:.1f} s")
    if measurement is None:
        return (*head, "not here: " + words if words.startswith("`") else words, "")
    worst = f"{measurement.worst_wake_s:.2f} s"
    worst += "".join(f"; {name} {value}" for name, value in measurement.figures.items())
    worst += f"; BROKEN: {words}" if words else ""
    return (*head, worst, f"{measurement.total.lost}/{measurement.total.unexpected}")


def table(lines: list[tuple[str, ...]], *, markdown: bool) -> None:
    """Write the table."""
    head = ("fault", "how injected", "promised", "worst measured", "lost/unexpected")
    if markdown:
        tell("| " + " | ".join(head) + " |")
        tell("|" + "---|" * len(head))
        for line in lines:
            tell("| " + " | ".join(line) + " |")
        periods = Pace()
        tell()
        tell(
            f"Periods of these runs: H {periods.heartbeat_s:g} s, A {periods.start_ack_s:g} s, R "
            f"{periods.store_call_s:g} s, T {periods.sweep_s:g} s, V {periods.visibility_s:g} s, first poll without a "
            f"bridge within {periods.poll_cap_s:g} s."
        )
        return
    for line in lines:
        tell(f"{line[0]:58} {line[2]:48} {line[3]} {line[4]}")


def long(options: argparse.Namespace) -> int:
    """Do the long run, and write what came of it."""
    wanted = list(FAULTS) if options.faults == "all" else []
    if options.faults not in ("all", "none"):
        wanted = [number.strip().upper() for number in options.faults.split(",")]
        for number in wanted:
            if number not in FAULTS:
                say(f"no such fault in a long run: {number}; there are {', '.join(FAULTS)}")
                return 2
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    say(f"seed {seed}; {options.messages:,} messages; faults: {', '.join(wanted) or 'none'}")
    story = LongRun(options.messages, minutes=options.minutes, seed=seed, faults=wanted, say=say, auth=options.auth)
    return finish(story.run, verdict, as_json=options.json)


def cluster(options: argparse.Namespace) -> int:
    """Do the long run of a cluster, and write what came of it."""
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    say(f"seed {seed}; {options.messages:,} messages; three bridges, three NATS servers and PostgreSQL")
    story = ClusterRun(options.messages, minutes=options.minutes, seed=seed, say=say, auth=options.auth)
    return finish(story.run, cluster_verdict, as_json=options.json)


def finish(run: Callable[[Path], Coroutine[Any, Any, O]], verdict: Callable[[O], None], *, as_json: bool) -> int:
    """Do a run in a folder of its own, which stays where a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix="queuebell-chaos-"))
    try:
        outcome = asyncio.run(run(folder))
    except Exception as error:
        say(f"FAILED: {error}; notes and logs stay in {folder}")
        return 1
    if as_json:
        tell(json.dumps(outcome.as_json()))
    else:
        verdict(outcome)
    if outcome.broken:
        say(f"notes and logs stay in {folder}")
        return 1
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    folder.rmdir()
    return 0


def numbers(outcome: Outcome | ClusterOutcome) -> None:
    """Write what all runs have."""
    for name, value in outcome.total._asdict().items():
        tell(f"{name:14} {value:12,}")
    tell(f"duplicates     {outcome.total.duplicated / max(1, outcome.handled):12.3%} of {outcome.handled:,} handled")
    tell(f"throughput     {outcome.handled / outcome.took_s:12,.0f} a second, {outcome.took_s:.0f} s in all")
    tell()


def cluster_verdict(outcome: ClusterOutcome) -> None:
    """Write the numbers of a cluster for people."""
    numbers(outcome)
    tell("killed                                             times   worst wake")
    for kind in sorted({*outcome.kills, *outcome.worst_wake_s}):
        label = "between kills" if kind == NONE else kind
        wake = f"{outcome.worst_wake_s[kind]:10.2f} s" if kind in outcome.worst_wake_s else ""
        tell(f"{label:50} {outcome.kills.get(kind, ''):>5} {wake}")
    tell()
    tell(f"longest wait   {max(outcome.worst_wake_s.values(), default=0.0):12.2f} s of a probe")
    tell(f"seed {outcome.seed}: " + ("every promise was kept" if not outcome.broken else "; ".join(outcome.broken)))


def verdict(outcome: Outcome) -> None:
    """Write the numbers for people."""
    numbers(outcome)
    tell("fault                                              times   worst wake   promised")
    for number, wake in sorted(outcome.worst_wake_s.items()):
        fault = FAULTS.get(number)
        label = f"{number} {fault.what}" if fault else "between faults"
        bound = f"{outcome.bounds_s[number]:8.1f} s" if number in outcome.bounds_s else ""
        tell(f"{label:50} {outcome.faults.get(number, ''):>5} {wake:10.2f} s {bound}")
    missed = [number for number in FAULTS if not outcome.faults.get(number)]
    tell()
    tell(f"injected: {', '.join(number for number in FAULTS if outcome.faults.get(number)) or 'nothing'}")
    tell(f"not injected, so nothing is shown of them: {', '.join(missed) or 'none'}")
    tell(f"seed {outcome.seed}: " + ("every promise was kept" if not outcome.broken else "; ".join(outcome.broken)))


def main(arguments: list[str]) -> int:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="to be acknowledged (default 1,000,000)")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="put no longer than this (default: until all are put)"
    )
    kinds = "; ".join(f"{number} {fault.what}" for number, fault in FAULTS.items())
    parser.add_argument(
        "--faults",
        default="all",
        help=f"all, none, or numbers separated by commas; of a long run: {kinds}; of --rows: those of the catalogue",
    )
    parser.add_argument("--seed", type=int, default=None, help="draws kinds, moments and victims of faults")
    parser.add_argument("--json", action="store_true", help="write the result as JSON")
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="of three bridges that take turns on three NATS servers and PostgreSQL: one of them or a worker is killed "
        "every second, and half way all bridges and NATS servers are restarted in turn",
    )
    parser.add_argument("--rows", action="store_true", help="run the rows of the fault catalogue instead")
    parser.add_argument("--markdown", action="store_true", help="with --rows: write the table for docs/guarantees.md")
    parser.add_argument("--auth", action="store_true", help="have all bridges ask for keys, and give everybody one")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        if options.rows:
            numbers = None if options.faults == "all" else options.faults
            return rows(numbers, markdown=options.markdown, as_json=options.json, auth=options.auth)
        if options.messages < 1 or options.minutes < 0:
            parser.error("--messages is 1 or more, --minutes 0 or more")
        if options.cluster and options.faults != "all":
            parser.error("--faults is none of --cluster")
        return cluster(options) if options.cluster else long(options)
    except ValueError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say(f"interrupted after {time.monotonic() - began:.0f} s")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
