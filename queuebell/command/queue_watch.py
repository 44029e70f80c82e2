"""Watch what happens to the messages of a queue until interrupted; it changes nothing.

Exit code 1 for a queue that the bridge does not know, 69 if no bridge answers.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final
from urllib.parse import quote

from queuebell.bridge.contract.partitioning import parse_physical
from queuebell.bridge.service.message_events import Events
from queuebell.command.client import BridgeClient, client_settings, plain, print_json

_EVERY_S: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``queue watch``."""
    parser.add_argument("queue", metavar="ACCOUNT/QUEUE")
    parser.add_argument("id", metavar="ID", nargs="?", default="", help="only of this message")
    parser.add_argument("--once", action="store_true", help="show what was recorded while somebody watched, and end")


def run(args: argparse.Namespace) -> int:
    """Ask once a second, and show what is new."""
    queue = parse_physical(args.queue)
    after, since = 0, ""
    while True:
        with BridgeClient(client_settings(args).bridge) as client:
            wanted = f"events?after={after}&id={quote(args.id, safe='')}"
            found = client.view(queue, wanted, Events, verb="show events")
        if found is None:
            return 1
        if found.since != since:
            if not args.json:
                ends = "" if args.once else "; Ctrl-C ends this"
                print(f"{queue}: watched since {found.since}{ends}", file=sys.stderr)
            again, since = bool(since), found.since
            if again:  # Another watch: the bridge was started again, or nobody had asked for ten minutes.
                after = 0
                continue
        if not args.id and found.events and found.events[0].n > after + 1 and after and not args.json:
            print(f"({found.events[0].n - after - 1} more events are not shown)")
        for event in found.events:
            if args.json:
                print_json(event)
            else:
                print(
                    plain(
                        f"{event.at}  {event.id or '-':16}  {event.what}"
                        + (f": {event.detail}" if event.detail else "")
                    )
                )
        sys.stdout.flush()
        after = found.last
        if args.once:
            return 0
        time.sleep(_EVERY_S)
