"""The actions of ``queuebell queue`` on all partitions of a queue, ``ACCOUNT/QUEUE:COUNT``."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bridge.cli.client import print_json
from bridge.contract.errors import BadInput
from bridge.contract.partitioning import Partitions
from bridge.partitions import PartitionedQueue
from bridge.queue import QueueStore

Action = Callable[[QueueStore, Partitions, argparse.Namespace], Awaitable[int]]


async def run(store: QueueStore, partitions: Partitions, args: argparse.Namespace) -> int:
    """Do one action with all partitions; raises `BadInput` for one that takes a single queue."""
    action = ACTIONS.get(args.action)
    if action is None:
        raise BadInput(
            "bad_parameter",
            f"{args.action} takes one queue: name a partition, as in {partitions.reference(0)}, one after the other; "
            "the key of a message is written nowhere, so only its partition is known",
        )
    return await action(store, partitions, args)


async def _create(store: QueueStore, partitions: Partitions, args: argparse.Namespace) -> int:
    new = await PartitionedQueue(store, partitions).create(args.entries)
    words = f"created {new}" + ("" if new == partitions.count else f"; {partitions.count - new} stand already")
    return _tell(args, {"queue": str(partitions), "created": new}, words)


async def _clear(store: QueueStore, partitions: Partitions, args: argparse.Namespace) -> int:
    await PartitionedQueue(store, partitions).clear()
    return _tell(args, {"queue": str(partitions), "cleared": True}, "cleared")


async def _delete(store: QueueStore, partitions: Partitions, args: argparse.Namespace) -> int:
    depths = [await store.depth(queue) for queue in partitions.references]
    await PartitionedQueue(store, partitions).delete()
    if all(depth is None for depth in depths):
        _tell(args, {"queue": str(partitions), "deleted": False, "exists": False}, "does not exist")
        return 1
    return _tell(args, {"queue": str(partitions), "deleted": True}, "deleted")


async def _pause(store: QueueStore, partitions: Partitions, args: argparse.Namespace) -> int:
    await PartitionedQueue(store, partitions).pause()
    return _tell(args, {"queue": str(partitions), "paused": True}, "paused")


async def _resume(store: QueueStore, partitions: Partitions, args: argparse.Namespace) -> int:
    await PartitionedQueue(store, partitions).pause(False)
    return _tell(args, {"queue": str(partitions), "paused": False}, "resumed")


async def _depth(store: QueueStore, partitions: Partitions, args: argparse.Namespace) -> int:
    """Write the sum, and each partition: how unevenly the work lies is what one wants to see."""
    depths = {queue: await store.depth(queue) for queue in partitions.references}
    found = {queue: depth for queue, depth in depths.items() if depth is not None}
    if not found:
        _tell(args, {"queue": str(partitions), "exists": False}, "does not exist")
        return 1
    visible = sum(depth.visible for depth in found.values())
    invisible = sum(depth.invisible for depth in found.values())
    entry: dict[str, Any] = {"queue": str(partitions), "exists": True, "visible": visible, "invisible": invisible}
    entry["partitions"] = [
        {"queue": queue, "exists": True, "visible": depth.visible, "invisible": depth.invisible}
        if depth is not None
        else {"queue": queue, "exists": False}
        for queue, depth in depths.items()
    ]
    _tell(args, entry, f"{visible} visible, {invisible} invisible")
    if not args.json:
        for queue, depth in depths.items():
            words = "does not exist" if depth is None else f"{depth.visible} visible, {depth.invisible} invisible"
            print(f"  {queue}: {words}")
    return 0


ACTIONS: Final[dict[str, Action]] = {
    "create": _create,
    "clear": _clear,
    "delete": _delete,
    "pause": _pause,
    "resume": _resume,
    "depth": _depth,
}
"""What is done here; ``put``, ``get`` and ``peek`` are in `queue_transfer`."""


def _tell(args: argparse.Namespace, entry: dict[str, Any], words: str) -> int:
    if args.json:
        print_json(entry)
    else:
        print(f"{args.queue}: {words}")
    return 0
