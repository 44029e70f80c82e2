"""Put, get, peek at and manage the queues of a store, by default those of the bridge's queue service.

It talks to the service and never opens its file. The service tells its bridge of each put; for another store, --bridge
names the bridge to publish each put to.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, get_args
from urllib.parse import quote

from queuebell.bridge.contract.address import http_addresses
from queuebell.bridge.contract.errors import (
    BadInput,
    BusUnavailable,
    ConfigurationError,
    NoQueueService,
    QueueNotFound,
    StoreUnavailable,
    Unsupported,
)
from queuebell.bridge.contract.headers import checked_headers
from queuebell.bridge.contract.partitioning import Partitions, parse_physical, parse_queue
from queuebell.bridge.producer.partitions import PartitionedQueue
from queuebell.bridge.queues.base import DELAY_MS_MAX, Depth, MessageState, QueueStore
from queuebell.command import queue_history, queue_init, queue_transfer, queue_watch, replay
from queuebell.command.client import BridgeClient, add_client_arguments, client_settings, print_json
from queuebell.command.main import ActionParser, show_examples
from queuebell.command.options import seconds
from queuebell.settings import DEFAULT_BRIDGE

Action = Callable[[QueueStore, argparse.Namespace], Awaitable[int]]

_PUTS: Final = frozenset({"put", "import", "replay"})
_OF_PARTITIONS: Final = frozenset({"put", "get", "peek", "create", "clear", "delete", "pause", "resume", "depth"})
"""The actions that also take all partitions of a queue; the others take one queue."""
_SERVICE: Final = f"the bridge whose queues they are, without --store (default {DEFAULT_BRIDGE}; QUEUEBELL_BRIDGE)"
_PUBLISHES: Final = f"{_SERVICE}; with --store: publish each put there"
_EXAMPLES: Final = {
    "put": ("billing/orders 'order 20'", "billing/orders 'order 20' --id order-20 --delay 60"),
    "get": ("billing/orders", "billing/orders --max 10 --keep --json"),
    "peek": ("billing/orders-poison --json", "billing/orders --state later"),
    "show": ("billing/orders order-17", "billing/orders order-17 --json"),
    "discard": ("billing/orders order-17", "billing/orders-poison 0000000000000017 --json"),
    "export": ("billing/orders --file orders.jsonl", "billing/orders --file orders.jsonl --delete"),
    "import": ("billing/orders --once --file orders.jsonl",),
    "create": ("billing/orders --metadata team=billing",),
    "list": ("--prefix billing/", "--json"),
    "clear": ("billing/orders",),
    "delete": ("billing/orders",),
    "pause": ("billing/orders",),
    "resume": ("billing/orders",),
    "depth": ("billing/orders --oldest", "billing/orders:8 --json"),
    "replay": ("billing/orders-poison --dry-run", "billing/orders-poison --max 10 --delay 60"),
}
_DONE: Final = 204
_CONFLICT: Final = 409
_REFUSED: Final = frozenset({404, _CONFLICT})
_LOCAL_SCHEMES = ("sqlite:", "memory:")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:").match


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands of ``queue``."""
    subs = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=ActionParser)

    def action(name: str, summary: str, call: Action, *, queue: bool = True) -> argparse.ArgumentParser:
        sub = subs.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.set_defaults(call=call)
        sub.add_argument("address", metavar="STORE_URL", nargs="?", help="the store's address, as --store names it")
        if queue:
            more = "ACCOUNT/QUEUE:COUNT for all partitions of one" if name in _OF_PARTITIONS else None
            sub.add_argument("queue", metavar="ACCOUNT/QUEUE", help=more)
        return sub

    put = action("put", "put messages: each BODY, each --file, or each line of standard input", queue_transfer.put)
    put.add_argument("bodies", nargs="*", metavar="BODY", help="none, or one that is -: each line of standard input")
    put.add_argument("--file", action="append", default=[], metavar="FILE", help="put this file as one message")
    put.add_argument("--key", help="put to the partition of this key (default: to each partition in turn)")
    put.add_argument(
        "--id", help="put the message once, even if the command is repeated; workers see the id as the message's key"
    )
    put.add_argument(
        "--existing", action="store_true", help="refuse a queue that does not exist, and suggest a similar name"
    )
    put.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="a header of each message; repeatable"
    )
    put.add_argument(
        "--delay",
        type=seconds(0, DELAY_MS_MAX / 1000),
        default=0.0,
        metavar="S",
        help="seconds until it becomes visible",
    )
    put.add_argument("--ttl", type=int, default=-1, metavar="S", help="seconds until it expires (default -1: never)")

    get = action("get", "take messages: write each body on a line of its own, then delete it", queue_transfer.get)
    get.add_argument("--max", type=int, default=1, metavar="N", help="at most this many (default 1)")
    get.add_argument(
        "--visibility-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="lease in seconds while it is written (default 30)",
    )
    get.add_argument(
        "--keep",
        action="store_true",
        help="do not delete; the messages come back when the lease ends, uncounted where the store allows it",
    )

    peek = action("peek", "show messages without taking them", queue_transfer.peek)
    peek.add_argument("--max", type=int, default=32, metavar="N", help="at most this many (default 32)")
    peek.add_argument(
        "--state",
        choices=get_args(MessageState),
        default="waiting",
        help="which: to be received (default), delayed, or at a worker",
    )
    peek.add_argument("--contains", metavar="TEXT", default="", help="only with this text in body, id, key or headers")
    show = action("show", "show one message, where it is, and why it is a dead letter", queue_transfer.show)
    show.add_argument("id", metavar="ID", help="its id, or the id under which it was put")
    discard = action("discard", "delete messages by their ids; those at a worker stay", queue_transfer.discard)
    discard.add_argument("ids", metavar="ID", nargs="+", help="its id, or the id under which it was put")

    export = action("export", "write all visible messages as JSON lines; they stay in the queue", queue_transfer.export)
    export.add_argument("--file", metavar="FILE", help="a new or empty file (default: standard output)")
    export.add_argument(
        "--delete", action="store_true", help="append to FILE, which may exist, and delete what is written"
    )
    import_ = action("import", "put the messages of an export", queue_transfer.import_)
    import_.add_argument("--file", metavar="FILE", help="default: standard input")
    import_.add_argument(
        "--once", action="store_true", help="put each under its own id, so that another import with --once adds nothing"
    )

    create = action("create", "create a queue, if it does not exist", _create)
    create.add_argument("--metadata", action="append", default=[], metavar="KEY=VALUE")
    list_ = action("list", "list the queues", _list, queue=False)
    list_.add_argument("--prefix", default="", metavar="TEXT")
    simple: list[tuple[str, str, Action]] = [
        ("clear", "remove every message of a queue", _clear),
        ("delete", "remove a queue and its messages", _delete),
        ("pause", "deliver no messages of a queue until it is resumed; puts still work", _pause),
        ("resume", "deliver a paused queue's messages again, and wake its workers", _resume),
    ]
    for name, summary, call in simple:
        action(name, summary, call)
    depth = action("depth", "count a queue's messages", _depth)
    depth.add_argument("--oldest", action="store_true", help="also show the age of the oldest, as --json always does")
    summary = "move dead letters back to the queue where they failed"
    replay.add_arguments(action("replay", summary, replay.run))
    for name, sub in subs.choices.items():
        add_client_arguments(sub, "store")
        sub.add_argument("--bridge", metavar="URL", help=_PUBLISHES if name in _PUTS else _SERVICE)
    for name, examples in _EXAMPLES.items():
        show_examples(subs.choices[name], f"queue {name}", examples)
    summary = "make the bridge forget a queue of another store that is gone or was a mistake; no store is changed"
    forget = subs.add_parser("forget", help=summary, description=summary, allow_abbrev=False)
    forget.add_argument("queue", metavar="ACCOUNT/QUEUE")
    add_client_arguments(forget, "bridge")
    show_examples(forget, "queue forget", ("billing/old",))
    summary = "show what happened on a queue: put, handled and failed, how long messages waited, and who paused it"
    history = subs.add_parser("history", help=summary, description=summary, allow_abbrev=False)
    queue_history.add_arguments(history)
    add_client_arguments(history, "bridge")
    show_examples(history, "queue history", ("billing/orders", "billing/orders --span 7d --json"))
    summary = "watch what happens to the messages of a queue, or to one: put, wakes, receives, outcomes"
    watch = subs.add_parser("watch", help=summary, description=summary, allow_abbrev=False)
    queue_watch.add_arguments(watch)
    add_client_arguments(watch, "bridge")
    show_examples(watch, "queue watch", ("billing/orders", "billing/orders 0000000000000017 --json"))
    summary = "create or migrate the tables of a store that needs them"
    init = subs.add_parser("init", help=summary, description=summary, allow_abbrev=False)
    queue_init.add_arguments(init)
    add_client_arguments(init)
    show_examples(init, "queue init", ("postgres://app@db/jobs --notify", "postgres://app@db/jobs --no-notify"))


def run(args: argparse.Namespace) -> int:
    """Do one action with the store."""
    if args.action == "init":
        return queue_init.run(args)
    if args.action == "forget":
        return _forget(args)
    if args.action == "history":
        return queue_history.run(args)
    if args.action == "watch":
        return queue_watch.run(args)
    _take_address(args)
    args.partitions = None
    if getattr(args, "queue", None) is not None:
        given = parse_queue(args.queue)
        args.partitions = given if isinstance(given, Partitions) else None
    if getattr(args, "key", None) is not None and args.partitions is None:
        raise BadInput("bad_parameter", "--key chooses a partition: name the queue as ACCOUNT/QUEUE:COUNT")
    if args.action == "put":
        args.headers = _headers(args.header)
    if args.action == "create":
        args.entries = _metadata(args.metadata)
    settings = client_settings(args)
    # A bridge without a store means the queue service of that bridge.
    unnamed = args.store is None and settings.store == DEFAULT_BRIDGE
    if args.store is None and args.bridge is not None and args.action not in _PUTS:
        unnamed = True  # the command line's bridge counts more than a store of the environment or a file
    url = settings.bridge if unnamed and settings.bridge.startswith("http") else settings.store
    if url.startswith(_LOCAL_SCHEMES):
        raise ConfigurationError("store: this command never opens a data file: run 'queuebell serve' and name its URL")
    args.warns = args.action in _PUTS and args.bridge is None and not url.startswith("http")
    args.warns = args.warns and not getattr(args, "dry_run", 0)
    args.nothing = False  # whether there was nothing to put
    return asyncio.run(_with_store(url, args))


def _take_address(args: argparse.Namespace) -> None:
    """Accept the store's address as the first operand: `queue put URL QUEUE BODY`, as in `queue init` and `listen`."""
    first = args.address
    if first is None or _ADDRESS(first) is None:
        several = next((name for name in ("bodies", "ids") if hasattr(args, name)), "")
        if first is not None and several:
            setattr(args, several, [args.queue, *getattr(args, several)])
            args.queue = first
        elif first is not None:
            raise BadInput(
                "bad_parameter",
                f"{args.action} takes one queue; a text before the queue is the address of a store, "
                f"as in http://HOST:PORT (given: {first})" + ("; --file names a file" if hasattr(args, "file") else ""),
            )
        return
    if args.store is not None:
        raise BadInput("bad_parameter", "the store is named twice: as the first operand, and by --store")
    args.store = first


async def _with_store(url: str, args: argparse.Namespace) -> int:
    from queuebell.bridge.queues import open_store

    store = open_store(url)
    try:
        if args.partitions is not None and args.action not in _OF_PARTITIONS:
            raise BadInput(
                "bad_parameter",
                f"{args.action} needs a single queue: name a partition, such as {args.partitions.reference(0)}, one "
                "after the other; the key of a message is written nowhere, so only its partition is known",
            )
        code: int = await args.call(store, args)
        if args.warns and code == 0 and not args.nothing and not await queue_transfer.triggers(store):
            # A sleeping worker would otherwise find it at the next sweep.
            print(
                "queuebell queue: no trigger was sent: an idle worker may find this a minute later; name the bridge "
                "with --bridge, or run 'queuebell publish'",
                file=sys.stderr,
            )
        return code
    except QueueNotFound as error:
        # A store's message does not repeat the name; the caller gave it, so it may be shown.
        if args.queue not in str(error):
            error.add_note(args.queue)
        raise
    except NoQueueService as error:
        raise StoreUnavailable(
            f"{error}. Is the address right? queuebell serve prints its own when it starts"
        ) from None
    except StoreUnavailable as error:
        if url.startswith("http") and url not in str(error):  # other addresses may hold a secret
            error.add_note(f"at {url}")
        raise
    finally:
        await store.close()


class _OneQueue:
    """A single queue with the methods of `PartitionedQueue`."""

    def __init__(self, store: QueueStore, queue: str) -> None:
        self._store = store
        self._queue = queue

    async def create(self, metadata: dict[str, str] | None) -> int:
        return int(await self._store.create(self._queue, metadata))

    async def clear(self) -> None:
        await self._store.clear(self._queue)

    async def pause(self, paused: bool) -> None:
        await self._store.pause(self._queue, paused)

    async def delete(self) -> None:
        await self._store.delete(self._queue)


def _whole(store: QueueStore, args: argparse.Namespace) -> _OneQueue | PartitionedQueue:
    return _OneQueue(store, args.queue) if args.partitions is None else PartitionedQueue(store, args.partitions)


async def _create(store: QueueStore, args: argparse.Namespace) -> int:
    new = await _whole(store, args).create(args.entries)
    if args.partitions is None:
        return _tell(args, {"created": bool(new)}, "created" if new else "already exists")
    stood = args.partitions.count - new
    return _tell(args, {"created": new}, f"created {new}" + (f"; {stood} already exist" if stood else ""))


def _metadata(pairs: list[str]) -> dict[str, str] | None:
    metadata: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigurationError("metadata: an entry is KEY=VALUE")
        metadata[key] = value
    return metadata or None


def _headers(pairs: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name in headers:
            raise BadInput("bad_parameter", "--header is NAME=VALUE, each name once")
        headers[name] = value
    return checked_headers(headers)


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
    await _whole(store, args).clear()
    return _tell(args, {"cleared": True}, "cleared")


async def _delete(store: QueueStore, args: argparse.Namespace) -> int:
    """Delete; 1 if the queue did not exist, which is most likely a typing error."""
    stood = [depth for depth in (await _depths(store, args)).values() if depth is not None]
    await _whole(store, args).delete()
    if stood:
        count = sum(depth.visible + depth.invisible for depth in stood)
        return _tell(args, {"deleted": True, "messages": count}, f"deleted, with {count} messages")
    hint = f"; if the bridge still names it: queuebell queue forget {args.queue}" if args.partitions is None else ""
    _tell(args, {"deleted": False, "exists": False}, f"there is no such queue{hint}")
    return 1


def _forget(args: argparse.Namespace) -> int:
    """Make the bridge forget a queue and its triggers; 1 if it does not know the queue, or refuses."""
    queue = parse_physical(args.queue)
    forgotten, refusals, gone = False, {}, []
    # Each bridge has its own list of queues.
    for where in http_addresses(client_settings(args).bridge, "bridge"):
        try:
            with BridgeClient(where.url) as client:
                status, answer = client.post(f"/v1/queues/{quote(queue)}/forget")
                if status == _DONE:
                    forgotten = True
                elif status in _REFUSED and isinstance(answer, dict):
                    refusals[status] = client.refusal(answer).get("detail")
                else:
                    raise BusUnavailable(f"the bridge at {client.url} cannot forget a queue: it answered {status}")
        except BusUnavailable as error:
            gone.append(str(error))
    if gone:
        raise BusUnavailable("; ".join(gone))
    if not forgotten or _CONFLICT in refusals:
        print(f"queuebell queue: {queue}: {refusals[max(refusals)]}", file=sys.stderr)
        return 1
    return _tell(args, {"forgotten": True}, "forgotten")


async def _pause(store: QueueStore, args: argparse.Namespace) -> int:
    await _whole(store, args).pause(True)
    return _tell(args, {"paused": True}, "paused")


async def _resume(store: QueueStore, args: argparse.Namespace) -> int:
    await _whole(store, args).pause(False)
    return _tell(args, {"paused": False}, "resumed")


async def _depths(store: QueueStore, args: argparse.Namespace) -> dict[str, Depth | None]:
    queues = (args.queue,) if args.partitions is None else args.partitions.references
    return {queue: await store.depth(queue) for queue in queues}


async def _depth(store: QueueStore, args: argparse.Namespace) -> int:
    """Count; of partitions the sum and each one, which shows how evenly the work is spread."""
    depths = await _depths(store, args)
    found = [depth for depth in depths.values() if depth is not None]
    if not found:
        _tell(args, *_counts(None))
        return 1
    entry, words = _counts(Depth(sum(one.visible for one in found), sum(one.invisible for one in found)))
    if store.capabilities.oldest_age:
        oldest_ms = await _oldest_ms(store, [queue for queue, depth in depths.items() if depth and depth.visible])
        entry["oldest_ms"] = oldest_ms
        if args.oldest and oldest_ms is not None:
            words += f"; the oldest has waited {oldest_ms / 1000:.1f} s"
    if args.partitions is None:
        return _tell(args, entry, words)
    parts = {queue: _counts(depth) for queue, depth in depths.items()}
    _tell(args, {**entry, "partitions": [{"queue": queue, **part} for queue, (part, _) in parts.items()]}, words)
    for queue, (_, part_words) in parts.items() if not args.json else ():
        print(f"  {queue}: {part_words}")
    return 0


async def _oldest_ms(store: QueueStore, queues: list[str]) -> int | None:
    try:
        waits = [await store.oldest_ms(queue) for queue in queues]
    except Unsupported:  # a queue service of an older version
        return None
    return max((wait for wait in waits if wait is not None), default=None)


def _counts(depth: Depth | None) -> tuple[dict[str, Any], str]:
    if depth is None:
        return {"exists": False}, "there is no such queue"
    entry = {"exists": True, "visible": depth.visible, "invisible": depth.invisible}
    return entry, f"{depth.visible} visible, {depth.invisible} invisible"


def _tell(args: argparse.Namespace, entry: dict[str, Any], words: str) -> int:
    if args.json:
        print_json({"queue": args.queue, **entry})
    else:
        print(f"{args.queue}: {words}")
    return 0
