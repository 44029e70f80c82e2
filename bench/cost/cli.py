"""``python -m bench cost``: what waiting costs, from the real rules, for the white paper's customer.

Plays one day of a fleet of workers under each way of waiting, on a virtual clock, and counts every storage
transaction, and the hours of worker processes that are always there or started from zero. The wake rules, the bridge's,
the scaler's and the back-offs are those that run in production. The defaults take some minutes of all processors;
--quick takes seconds.
"""

from __future__ import annotations

import argparse
import decimal
import pathlib
import random
import re
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final

import msgspec

from bench.cost.clockwork import START_S
from bench.cost.comparison import PAPER_IDLE_S, Comparison, check_paper, make_row
from bench.cost.crew import play, play_all
from bench.cost.day import Day, draw_day
from bench.cost.picture import draw_picture
from bench.cost.policy import POLICIES
from bench.cost.report import tell
from bench.cost.tariff import PROCESS_HOUR, Tariff
from queuebell.bridge.contract.errors import BadInput
from queuebell.command.options import number, seconds
from queuebell.command.progress import Progress

OK: Final = 0
FAILED: Final = 1

THREADS: Final = 200
ITEMS: Final = (2_000, 200_000)
BURSTS: Final = 6
QUICK_THREADS: Final = 6
QUICK_ITEMS: Final = (1_000, 4_000)
DAY_MAX_S: Final = 31 * 86_400.0
START_MAX_S: Final = 25.0
"""Less than what a scaler gives a process (30 s)."""


USAGE: Final = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 2 for an option that cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m bench cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except BadInput as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comparison."""
    add = parser.add_argument
    add("--threads", type=number(1, 10_000), metavar="N", help=f"dequeue threads (default {THREADS})")
    add("--hours-busy", type=_hours, default=2.0, metavar="H", help="hours of work in the day (default 2)")
    add("--day", type=_duration, default=86_400.0, metavar="TIME", help="length of the day: 24h, 90m (default 24h)")
    add(
        "--batch-items",
        type=_range,
        metavar="MIN:MAX",
        help=f"messages in a burst, drawn between these (default {ITEMS[0]}:{ITEMS[1]})",
    )
    add("--bursts", type=number(1, 1000), default=BURSTS, metavar="N", help=f"bursts of work (default {BURSTS})")
    add(
        "--policy",
        type=_policies,
        action="extend",
        metavar="NAME,...",
        help=f"which to compare, of {', '.join(POLICIES)}; may be given again (default all)",
    )
    add("--price", type=_price, default=Decimal("0.01"), metavar="D", help="dollars for --per transactions (0.01)")
    add("--per", type=number(1, 10**12), default=10_000, metavar="N", help="transactions for --price (10000)")
    add(
        "--process-hour",
        type=_price,
        default=PROCESS_HOUR,
        metavar="D",
        help=f"dollars for an hour of a worker process ({PROCESS_HOUR}, as of 2009)",
    )
    add(
        "--start",
        type=seconds(0, START_MAX_S),
        default=START_S,
        metavar="S",
        help=f"seconds from the start of a process until it listens (default {START_S:g})",
    )
    add("--seed", type=number(0, 2**63), default=1, metavar="N", help="seed of all chance (default 1)")
    add("--svg", type=pathlib.Path, metavar="FILE", help="write the chart as a picture, too")
    add("--json", action="store_true", help="print JSON")
    add(
        "--quick",
        action="store_true",
        help=f"{QUICK_THREADS} threads and bursts of {QUICK_ITEMS[0]}:{QUICK_ITEMS[1]} unless told otherwise: seconds "
        "instead of minutes, of a smaller fleet",
    )


def run(args: argparse.Namespace) -> int:
    """Play, tell, and return 0; 1 if the white paper's sum was not reproduced."""
    if args.svg is not None and (args.svg.is_dir() or not args.svg.parent.is_dir()):
        raise BadInput("bad_parameter", "--svg names a file in a folder that exists")
    policies = args.policy or list(POLICIES)
    if len(set(policies)) != len(policies):
        raise BadInput("bad_parameter", "--policy names one policy twice")
    threads = args.threads or (QUICK_THREADS if args.quick else THREADS)
    items = args.batch_items or (QUICK_ITEMS if args.quick else ITEMS)
    day = draw_day(
        length_s=args.day,
        busy_s=args.hours_busy * 3600,
        bursts=args.bursts,
        items_min=items[0],
        items_max=items[1],
        threads=threads,
        draw=random.Random(args.seed).random,
        start_s=args.start,
    )
    tariff = Tariff(args.price, args.per, args.process_hour)
    progress = Progress.on(sys.stderr)
    shares = dict.fromkeys(policies, 0.0)

    def told(name: str, share: float) -> None:
        shares[name] = share
        under_way = ", ".join(each for each, done in shares.items() if 0 < done < 1)
        progress.now("cost", under_way, share=sum(shares.values()) / len(shares))
        if share == 1.0 and not progress.live:
            progress.line(f"{name}: done")

    try:
        comparison = compare(policies, day, threads, args.seed, tariff, told)
    finally:
        progress.close()
    if args.json:
        sys.stdout.write(to_json(comparison))
    else:
        sys.stdout.write("\n".join(tell(comparison)) + "\n")
    if args.svg is not None:
        args.svg.write_text(draw_picture(comparison), encoding="utf-8")
    return OK if comparison.paper.agrees else FAILED


def compare(
    names: list[str], day: Day, threads: int, seed: int, tariff: Tariff, told: Callable[[str, float], None]
) -> Comparison:
    """Play the policies ``names`` and the white paper's thread, and set them side by side."""
    outcomes = play_all(names, day, threads, seed, told)
    return Comparison(
        threads=threads,
        seed=seed,
        day=day,
        tariff=tariff,
        paper=check_paper(play("polling", Day(PAPER_IDLE_S), 1, seed)),
        rows=[make_row(outcome, tariff, day) for outcome in outcomes],
    )


def to_json(comparison: Comparison) -> str:
    """Write a comparison as JSON; dollars are text, so that no reader rounds them."""
    return msgspec.json.format(msgspec.json.encode(comparison)).decode() + "\n"


def _hours(text: str) -> float:
    value = float(text)
    if not 0 < value <= 24 * 31:
        raise argparse.ArgumentTypeError("must be more than 0 hours")
    return value


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)(s|m|h)", text)
    value = float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if not 60 <= value <= DAY_MAX_S:
        raise argparse.ArgumentTypeError("must be a time from 1m to 744h, such as 24h, 90m or 3600s")
    return value


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError("must be MIN:MAX, such as 2000:200000")
    return int(match[1]), int(match[2])


def _policies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not set(names) <= set(POLICIES) or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"must be different names of {', '.join(POLICIES)}")
    return names


def _price(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except decimal.InvalidOperation:
        value = Decimal(-1)
    if not value.is_finite() or not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError("must be dollars, such as 0.01")
    return value
