"""Tell the bridge that messages were put on a queue, once; exit code 69 where no bridge answers.

The queue service tells its own bridge of every put: this is for queues that live elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets

from bridge.cli.client import add_client_arguments, client_settings, print_json
from bridge.contract.event import CloudQueueWorkDetected, check_event
from bridge.contract.names import parse_reference, split_reference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``publish``."""
    parser.add_argument("queue", metavar="ACCOUNT/QUEUE")
    parser.add_argument("--size", type=int, default=1, metavar="N", help="how many messages were put (default 1)")
    parser.add_argument(
        "--not-before-ms", type=int, default=0, metavar="MS", help="they become visible only after so many milliseconds"
    )
    parser.add_argument("--id", help="name of this very publish; repeat one only to repeat the publish")
    parser.add_argument("--source", help="who publishes (default: random)")
    parser.add_argument("--traceparent", help="W3C trace context")
    add_client_arguments(parser, "bridge")


def run(args: argparse.Namespace) -> int:
    """Publish one trigger and wait for the bridge's mark."""
    account, queue = split_reference(parse_reference(args.queue))
    event = check_event(
        CloudQueueWorkDetected(
            storage_account=account,
            queue_name=queue,
            payload_size=args.size,
            id=args.id or secrets.token_hex(16),
            source=args.source or f"queuebell:command:{secrets.token_hex(8)}",
            not_before_ms=args.not_before_ms,
            traceparent=args.traceparent,
        )
    )
    asyncio.run(_publish(client_settings(args).bridge, event))
    if args.json:
        print_json({"accepted": 1, "queue": event.queue, "id": event.id})
    else:
        print(f"published {event.queue}: {event.payload_size}")
    return 0


async def _publish(url: str, event: CloudQueueWorkDetected) -> None:
    from bridge.buses import open_bus

    bus = open_bus(url)
    try:
        await bus.publish([event])
    finally:
        await bus.close()
