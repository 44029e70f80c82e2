"""Say who would get a trigger of a queue now, on which channel, and why another would not.

Nothing is changed by asking. Exit code 1 for a queue that the bridge never heard of, 69 where no bridge answers.
"""

from __future__ import annotations

import argparse
import sys
from urllib.parse import quote

from bridge.cli.client import BridgeClient, add_client_arguments, client_settings, print_json, print_table
from bridge.contract.errors import BusUnavailable
from bridge.contract.partitioning import parse_physical


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``explain``."""
    parser.add_argument("queue", metavar="ACCOUNT/QUEUE")
    add_client_arguments(parser, "bridge")


def run(args: argparse.Namespace) -> int:
    """Ask and show."""
    queue = parse_physical(args.queue)
    url = client_settings(args).bridge
    with BridgeClient(url) as client:
        status, explained = client.get(f"/v1/queues/{quote(queue)}/explain")
    if status == 404:
        print(f"queuebell explain: the bridge never heard of {queue}", file=sys.stderr)
        return 1
    if status != 200 or not isinstance(explained, dict):
        raise BusUnavailable(f"the bridge at {url} does not explain: it answered {status}")
    if args.json:
        print_json(explained)
        return 0
    print(f"{queue}: {explained.get('summary')}")
    if explained.get("unattended"):
        print(f"  {explained['unattended']}")
    sessions = explained.get("sessions") or []
    if sessions:
        print()
        print_table(
            ["LISTENER", "CHANNEL", "FREE", "WOKEN", "WHY"],
            [
                [row.get("listener"), row.get("channel"), row.get("free"), _yes(row.get("gets")), row.get("detail")]
                for row in sessions
            ],
        )
    subscribers = explained.get("subscribers") or []
    if subscribers:
        print()
        print_table(
            ["SUBSCRIBER", "CHANNEL", "HEARS", "WHY"],
            [
                [row.get("listener"), row.get("channel"), _yes(row.get("hears")), row.get("detail")]
                for row in subscribers
            ],
        )
    return 0


def _yes(value: object) -> str:
    return "yes" if value else "no"
