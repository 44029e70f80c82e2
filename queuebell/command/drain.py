"""Ask workers to stop: they receive nothing more, finish what they handle, and leave.

Exit code 1 where no worker of this name or instance has a session at the bridge, 69 if no bridge answers.
"""

from __future__ import annotations

import argparse
import sys

from queuebell.bridge.contract.errors import BusUnavailable
from queuebell.bridge.service.state.answers import Listeners
from queuebell.command.client import OK, BridgeClient, add_client_arguments, client_settings, plain, print_json

_ASKED = 204
_REFUSED = (404, 409)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``drain``."""
    parser.add_argument("worker", metavar="WORKER", help="its instance, or its name as in status; of one name, all")
    add_client_arguments(parser, "bridge")


def run(args: argparse.Namespace) -> int:
    """Find the workers, and ask each."""
    asked: list[str] = []
    with BridgeClient(client_settings(args).bridge) as client:
        status, told = client.read("/v1/listeners", Listeners)
        if status != OK or told is None:
            raise BusUnavailable(f"the bridge at {client.url} cannot list its workers: it answered {status}")
        for each in told.listeners:
            if (
                each.kind == "listener"
                and isinstance(each.instance, str)
                and args.worker in (each.listener, each.instance)
            ):
                status, answer = client.post(f"/v1/listeners/drain?instance={each.instance}")
                if status == _ASKED:
                    asked.append(each.instance)
                elif status in _REFUSED:
                    why = client.refusal(answer).get("detail") if isinstance(answer, dict) else "it has just gone"
                    print(plain(f"queuebell drain: {each.listener} ({each.instance}): {why}"), file=sys.stderr)
                else:
                    raise BusUnavailable(
                        f"the bridge at {client.url} cannot ask a worker to stop: it answered {status}"
                    )
    if args.json:
        print_json({"asked": asked})
    elif asked:
        print(plain(f"asked {len(asked)} {'worker' if len(asked) == 1 else 'workers'} to stop: {args.worker}"))
    if not asked and not args.json:
        print(plain(f"queuebell drain: the bridge at {client.url} has no worker {args.worker}"), file=sys.stderr)
    return 0 if asked else 1
