"""Show what happened on a queue, as its bridge kept it.

It changes nothing. Exit code 1 for a queue that the bridge does not know, 69 if no bridge answers.
"""

from __future__ import annotations

import argparse
from collections import Counter

from queuebell.bridge.contract.partitioning import parse_physical
from queuebell.bridge.observe.history import SPANS, HistoryRow, QueueHistory
from queuebell.command.client import BridgeClient, client_settings, plain, print_json, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``queue history``."""
    parser.add_argument("queue", metavar="ACCOUNT/QUEUE")
    text = "how far back: 5 minutes, 1 hour (default), 1 day or 7 days"
    parser.add_argument("--span", choices=SPANS, default="1h", help=text)


def run(args: argparse.Namespace) -> int:
    """Ask and show."""
    queue = parse_physical(args.queue)
    with BridgeClient(client_settings(args).bridge) as client:
        past = client.view(queue, f"history?span={args.span}", QueueHistory, verb="show a history")
    if past is None:
        return 1
    if args.json:
        print_json(past)
        return 0
    print(f"{queue}: since {past.since}, a row for each {past.step_s} s in which something happened")
    if past.rows:
        heads = ["FROM", "PUT", "DONE", "FAILED", "DEAD", "RECEIVES", "EMPTY", "WAITING", "MEAN WAIT", "LONGEST WAIT"]
        print_table(heads, [_cells(row) for row in past.rows], spare=("EMPTY", "RECEIVES", "LONGEST WAIT"))
    else:
        print("nothing happened in this time")
    counts: Counter[str] = Counter()
    for failure in past.failures:
        counts[failure.failure] += failure.count
    for name, count in counts.most_common():
        times = [each.at for each in past.failures if each.failure == name]
        first, last = max(times[0], past.since), max(times[-1], past.since)
        print(
            plain(
                f"failed with {name}: {count} attempts; the first in the 5 minutes from {first}, the last from {last}"
            )
        )
    for mark in past.marks:
        print(plain(f"{mark.at} {mark.what}" + (f" by {mark.by}" if mark.by else "")))
    return 0


def _cells(row: HistoryRow) -> list[object]:
    mean = f"{row.waited_ms / row.started / 1000:.3f} s" if row.started else None
    longest = "over 30 min" if row.longest_ms < 0 else f"{row.longest_ms / 1000:g} s" if row.longest_ms else None
    return [row.at, row.put, row.done, row.failed, row.dead, row.receives, row.empty, row.waiting, mean, longest]
