"""Put, get, look at and manage the queues of a store, by default those of the bridge's queue service.

It talks to the service and never opens its file. The service tells its bridge of every put; for a store elsewhere name
the bridge with --bridge, and a put is published there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from bridge.cli import queue_init, queue_partitioned, queue_transfer, replay
from bridge.cli.client import BridgeClient, add_client_arguments, client_settings, print_json
from bridge.config import DEFAULT_BRIDGE
from bridge.contract.errors import BadInput, BusUnavailable, ConfigurationError, QueueNotFound, StoreUnavailable
from bridge.contract.partitioning import Partitions, parse_physical, parse_queue
from bridge.queue import QueueStore

Action = Callable[[QueueStore, argparse.Namespace], Awaitable[int]]

_PUTS: Final = frozenset({"put", "import", "replay"})
_SERVICE: Final = "where the queue service is, if no --store is named"
_PUBLISHES: Final = (
    f"publish the put there (default: publish nothing; the queue service tells its own bridge); {_SERVICE}"
)
_DONE: Final = 204
_REFUSED: Final = frozenset({404, 409})
_LOCAL_SCHEMES = ("sqlite:", "memory:")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands of ``queue``."""
    subs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, summary: str, call: Action, *, queue: bool = True) -> argparse.ArgumentParser:
        sub = subs.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.set_defaults(call=call)
        if queue:
            whole = name in queue_transfer.OF_PARTITIONS or name in queue_partitioned.ACTIONS
            more = "ACCOUNT/QUEUE:COUNT for all partitions of one" if whole else None
            sub.add_argument("queue", metavar="ACCOUNT/QUEUE", help=more)
        return sub

    put = action("put", "put messages: the arguments, the --file ones, or each line of standard input", _put)
    put.add_argument("bodies", nargs="*", metavar="BODY")
    put.add_argument("--file", action="append", default=[], metavar="FILE", help="one message of this file's bytes")
    put.add_argument("--key", help="put to the partition of this key (default: to all partitions in turn)")
    put.add_argument("--id", help="put the one message once, however often it is sent; workers see it as its key")
    put.add_argument("--delay-ms", type=int, default=0, metavar="MS", help="visible only after so many milliseconds")
    put.add_argument("--ttl-s", type=int, default=-1, metavar="S", help="expires after so many seconds (-1: never)")

    get = action("get", "take messages: write each body on a line of its own, then delete it", queue_transfer.get)
    get.add_argument("--max", type=int, default=1, metavar="N", help="at most so many (default 1)")
    get.add_argument("--visibility-s", type=float, default=30.0, metavar="S", help="lease while writing (default 30)")
    get.add_argument("--keep", action="store_true", help="do not delete; they come back when the lease ends")

    peek = action("peek", "look at visible messages without taking them", queue_transfer.peek)
    peek.add_argument("--max", type=int, default=32, metavar="N", help="at most so many, 1 to 32 (default 32)")

    export = action("export", "write all visible messages as JSON lines, and give them back", queue_transfer.export)
    export.add_argument("--file", metavar="FILE", help="default: standard output")
    export.add_argument("--delete", action="store_true", help="delete them once they are written")
    import_ = action("import", "put messages from JSON lines as export writes them", queue_transfer.import_)
    import_.add_argument("--file", metavar="FILE", help="default: standard input")

    create = action("create", "make a queue; does nothing where it stands", _create)
    create.add_argument("--metadata", action="append", default=[], metavar="KEY=VALUE")
    list_ = action("list", "name the queues", _list, queue=False)
    list_.add_argument("--prefix", default="", metavar="TEXT")
    simple: list[tuple[str, str, Action]] = [
        ("clear", "remove every message of a queue", _clear),
        ("delete", "remove a queue and its messages", _delete),
        ("pause", "give out no message of a queue until it is resumed; puts go on", _pause),
        ("resume", "give out a paused queue's messages again, and wake its workers", _resume),
        ("depth", "count a queue's messages", _depth),
    ]
    for name, summary, call in simple:
        action(name, summary, call)
    summary = "put buried messages back where they failed, and delete them here"
    replay.add_arguments(action("replay", summary, replay.run))
    for name, sub in subs.choices.items():
        add_client_arguments(sub, "store")
        sub.add_argument("--bridge", metavar="URL", help=_PUBLISHES if name in _PUTS else _SERVICE)
    summary = "have the bridge forget a queue elsewhere that is gone, or was a mistake; no store is asked"
    forget = subs.add_parser("forget", help=summary, description=summary, allow_abbrev=False)
    forget.add_argument("queue", metavar="ACCOUNT/QUEUE")
    add_client_arguments(forget, "bridge")
    summary = "make or migrate the tables of a store that needs some"
    init = subs.add_parser("init", help=summary, description=summary, allow_abbrev=False)
    queue_init.add_arguments(init)
    add_client_arguments(init)


def run(args: argparse.Namespace) -> int:
    """Do one action with the store."""
    if args.action == "init":
        return queue_init.run(args)
    if args.action == "forget":
        return _forget(args)
    args.partitions = None
    if getattr(args, "queue", None) is not None:
        given = parse_queue(args.queue)
        args.partitions = given if isinstance(given, Partitions) else None
    if getattr(args, "key", None) is not None and args.partitions is None:
        raise BadInput("bad_parameter", "--key chooses a partition: name the queue as ACCOUNT/QUEUE:COUNT")
    if args.action == "create":
        args.entries = _metadata(args.metadata)
    settings = client_settings(args)
    # Whoever names a bridge and no store means the queue service of that bridge.
    unnamed = args.store is None and settings.store == DEFAULT_BRIDGE
    url = settings.bridge if unnamed and settings.bridge.startswith("http") else settings.store
    if url.startswith(_LOCAL_SCHEMES):
        raise ConfigurationError("store: this command never opens a data file: run 'queuebell serve' and name its URL")
    code = asyncio.run(_with_store(url, args))
    if args.action in _PUTS and args.bridge is None and not url.startswith("http") and not getattr(args, "dry_run", 0):
        # Only the queue service tells its bridge by itself, and a sleeping worker would hear of it at the next sweep.
        print(
            "queuebell queue: no bridge was told; unless the store itself rings, name one with --bridge, or use "
            "'queuebell publish'",
            file=sys.stderr,
        )
    return code


async def _with_store(url: str, args: argparse.Namespace) -> int:
    from bridge.queues import open_store

    store = open_store(url)
    try:
        if args.partitions is not None and args.action not in queue_transfer.OF_PARTITIONS:
            return await queue_partitioned.run(store, args.partitions, args)
        return await args.call(store, args)  # type: ignore[no-any-return]
    except QueueNotFound as error:
        # A store's own words repeat nothing that it was given; here it is the caller's own.
        if args.queue not in str(error):
            error.add_note(args.queue)
        raise
    except StoreUnavailable as error:
        if url.startswith("http"):  # other addresses may hold a secret
            error.add_note(f"at {url}")
        raise
    finally:
        await store.close()


async def _put(store: QueueStore, args: argparse.Namespace) -> int:
    return await queue_transfer.put(store, args)


async def _create(store: QueueStore, args: argparse.Namespace) -> int:
    new = await store.create(args.queue, args.entries)
    _tell(args, {"queue": args.queue, "created": new}, "created" if new else "stands already")
    return 0


def _metadata(pairs: list[str]) -> dict[str, str] | None:
    metadata: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigurationError("metadata: an entry is KEY=VALUE")
        metadata[key] = value
    return metadata or None


async def _list(store: QueueStore, args: argparse.Namespace) -> int:
    after = ""
    while page := await store.queues(args.prefix, after, 1000):
        for name in page:
            if args.json:
                print_json({"queue": name})
            else:
                print(name)
        after = page[-1]
    return 0


async def _clear(store: QueueStore, args: argparse.Namespace) -> int:
    await store.clear(args.queue)
    _tell(args, {"queue": args.queue, "cleared": True}, "cleared")
    return 0


async def _delete(store: QueueStore, args: argparse.Namespace) -> int:
    """Delete; 1 where there was nothing to delete, which is most likely a slip of the pen."""
    stood = await store.depth(args.queue) is not None
    await store.delete(args.queue)
    if not stood:
        words = f"does not exist; if the bridge still names it: queuebell queue forget {args.queue}"
        _tell(args, {"queue": args.queue, "deleted": False, "exists": False}, words)
        return 1
    _tell(args, {"queue": args.queue, "deleted": True}, "deleted")
    return 0


def _forget(args: argparse.Namespace) -> int:
    """Have the bridge forget a queue and what was announced there; 1 where it never heard of it, or will not."""
    queue = parse_physical(args.queue)
    url = client_settings(args).bridge
    with BridgeClient(url) as client:
        status, answer = client.post(f"/v1/queues/{quote(queue)}/forget")
    if status == _DONE:
        _tell(args, {"queue": queue, "forgotten": True}, "forgotten")
        return 0
    if status in _REFUSED and isinstance(answer, dict):
        print(f"queuebell queue: {queue}: {answer.get('detail')}", file=sys.stderr)
        return 1
    raise BusUnavailable(f"the bridge at {url} does not forget: it answered {status}")


async def _pause(store: QueueStore, args: argparse.Namespace) -> int:
    await store.pause(args.queue)
    _tell(args, {"queue": args.queue, "paused": True}, "paused")
    return 0


async def _resume(store: QueueStore, args: argparse.Namespace) -> int:
    await store.pause(args.queue, False)
    _tell(args, {"queue": args.queue, "paused": False}, "resumed")
    return 0


async def _depth(store: QueueStore, args: argparse.Namespace) -> int:
    depth = await store.depth(args.queue)
    if depth is None:
        _tell(args, {"queue": args.queue, "exists": False}, "does not exist")
        return 1
    counts = {"visible": depth.visible, "invisible": depth.invisible}
    _tell(
        args, {"queue": args.queue, "exists": True, **counts}, f"{depth.visible} visible, {depth.invisible} invisible"
    )
    return 0


def _tell(args: argparse.Namespace, entry: dict[str, Any], words: str) -> None:
    if args.json:
        print_json(entry)
    else:
        print(f"{args.queue}: {words}")
