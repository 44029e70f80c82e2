"""Show which listeners a trigger of a queue would wake now, on which channel, and why not the others.

It changes nothing. Exit code 1 for a queue that the bridge does not know, 69 if no bridge answers.
"""

from __future__ import annotations

import argparse
from urllib.parse import quote

from queuebell.bridge.contract.names import POISON_SUFFIX, poison_reference
from queuebell.bridge.contract.partitioning import parse_physical
from queuebell.bridge.contract.wire import Processes
from queuebell.bridge.service.state.answers import Explained, QueueState
from queuebell.bridge.service.state.status import workers
from queuebell.command.client import (
    BridgeClient,
    add_client_arguments,
    client_settings,
    plain,
    print_json,
    print_table,
    trouble,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``explain``."""
    parser.add_argument("queue", metavar="ACCOUNT/QUEUE")
    add_client_arguments(parser, "bridge")


def run(args: argparse.Namespace) -> int:
    """Ask and show."""
    queue = parse_physical(args.queue)
    with BridgeClient(client_settings(args).bridge) as client:
        explained = client.view(queue, "explain", Explained, verb="explain")
        state = client.read(f"/v1/queues/{quote(queue)}", QueueState)[1]
    if explained is None:
        return 1
    if args.json:
        print_json(explained)
        return 0
    print(f"{queue}: {explained.summary}")
    if explained.unattended:
        trouble(f"  {explained.unattended}")
    letters = explained.waits_for_a_person
    if letters is None and state is not None and state.buried:
        letters = f"{state.buried} of its messages are dead-lettered"
    if letters:
        where = "" if state is not None and state.depth is not None and state.depth_age_ms is None else " --store URL"
        poison = (state and state.buried_in) or (queue if queue.endswith(POISON_SUFFIX) else poison_reference(queue))
        print(f"  {letters}; see why: queuebell queue replay --dry-run {poison}{where}")
    for each in explained.rejected:
        trouble(f"  {each.detail}")
    if explained.sessions:
        print()
        print_table(
            ["LISTENER", "CHANNEL", "FREE", "WOKEN", "WHY"],
            [[row.listener, row.channel, row.free, _yes(row.gets), row.detail] for row in explained.sessions],
        )
    for row in explained.sessions:
        if isinstance(told := row.processes, Processes):
            stand, *lines = workers(told).split(" | ")
            print(plain(f"{row.listener}: {stand}"))
            for line in lines:
                print(plain(f"  {line}"))
    if explained.subscribers:
        print()
        print_table(
            ["SUBSCRIBER", "CHANNEL", "HEARS", "WHY"],
            [[row.listener, row.channel, _yes(row.hears), row.detail] for row in explained.subscribers],
        )
    return 0


def _yes(value: object) -> str:
    return "yes" if value else "no"
