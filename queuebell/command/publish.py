"""Tell the bridge that messages were put on a queue, once.

For queues in other stores: the queue service tells its own bridge of each put. Exit code 69 if no bridge answers, 1 if
it refuses the key.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.event import NOT_BEFORE_MS_MAX, CloudQueueWorkDetected, check_event
from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.contract.partitioning import Partitions, parse_queue
from queuebell.command.client import add_client_arguments, bus_address, print_json
from queuebell.command.options import seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``publish``."""
    parser.add_argument(
        "queue",
        metavar="ACCOUNT/QUEUE",
        help="or ACCOUNT/QUEUE:COUNT for the partition of --key, or for all without a key",
    )
    parser.add_argument("--key", help="of a partitioned queue, the key of the messages")
    parser.add_argument("--size", type=int, default=1, metavar="N", help="how many messages were put (default 1)")
    parser.add_argument(
        "--delay",
        type=seconds(0, NOT_BEFORE_MS_MAX / 1000),
        default=0.0,
        metavar="S",
        help="seconds until the messages become visible",
    )
    parser.add_argument("--id", help="id of this publish; use the same one only to repeat it")
    parser.add_argument("--source", help="name of the publisher (default: random)")
    parser.add_argument("--traceparent", help="W3C trace context")
    add_client_arguments(parser, "bridge")


def run(args: argparse.Namespace) -> int:
    """Publish one trigger, or one for each partition, and wait for the bridge's mark."""
    id_ = args.id or secrets.token_hex(16)
    source = args.source or f"queuebell:command:{secrets.token_hex(8)}"
    queues = _queues(args)
    events = [
        check_event(
            CloudQueueWorkDetected(
                *split_reference(queue),
                # Which queues the messages are on is unknown: each gets an even share, at least one.
                payload_size=-(-args.size // len(queues)),
                id=id_ if len(queues) == 1 else f"{id_}-p{number}",
                source=source,
                not_before_ms=round(args.delay * 1000),
                traceparent=args.traceparent,
            )
        )
        for number, queue in enumerate(queues)
    ]
    asyncio.run(_publish(bus_address(args), events))
    for event in events:
        if args.json:
            print_json({"accepted": 1, "queue": event.queue, "id": event.id})
        else:
            print(f"published {event.queue}: {event.payload_size}")
    return 0


def _queues(args: argparse.Namespace) -> tuple[str, ...]:
    given = parse_queue(args.queue)
    if isinstance(given, Partitions):
        return given.references if args.key is None else (given.of(args.key),)
    if args.key is not None:
        raise BadInput("bad_parameter", "--key chooses a partition: name the queue as ACCOUNT/QUEUE:COUNT")
    return (given,)


async def _publish(url: str, events: list[CloudQueueWorkDetected]) -> None:
    from queuebell.bridge.producer.buses import open_bus

    bus = open_bus(url)
    try:
        await bus.publish(events)
    finally:
        await bus.close()
