"""``queuebell queue replay``: move dead letters back to the queue where they failed.

Each is put there before it is deleted here.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
from time import monotonic

from queuebell.bridge.contract.burial import Burial, facts, shortened
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.producer.replay import ReplayOptions, ReplayResult, ReplayRun, target_of
from queuebell.bridge.queues.base import BATCH_MAX, DELAY_MS_MAX, QueueStore, StoredMessage
from queuebell.bridge.storage.claim_check import ClaimCheck
from queuebell.command.client import print_json, print_table
from queuebell.command.options import seconds
from queuebell.command.queue_transfer import putting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``replay``."""
    parser.add_argument("--to", metavar="QUEUE", help="the queue to put them to (default: where each came from)")
    parser.add_argument("--id", action="append", default=[], metavar="ID", dest="ids", help="only these messages")
    parser.add_argument("--max", type=int, metavar="N", help="at most this many (default: all that are there now)")
    parser.add_argument(
        "--delay",
        type=seconds(0, DELAY_MS_MAX / 1000),
        default=0.0,
        metavar="S",
        help="seconds until they become visible there",
    )
    parser.add_argument(
        "--plain", action="store_true", help="put only the body, for workers that do not use Queuebell's listener"
    )
    parser.add_argument("--claim-check", metavar="URL", help="blob store of large bodies")
    parser.add_argument("--dry-run", action="store_true", help="list the messages that would be replayed")


async def run(store: QueueStore, args: argparse.Namespace) -> int:
    """Replay, and return 0; 1 if the queue does not exist or a wanted message stays."""
    if args.max is not None and args.max < 1:
        raise BadInput("bad_parameter", "--max is at least 1")
    depth = await store.depth(args.queue)
    if depth is None:
        _tell(args, {"queue": args.queue, "exists": False}, f"{args.queue}: there is no such queue")
        return 1
    present = depth.visible + depth.invisible
    poison = args.queue + POISON_SUFFIX
    if not present and not args.queue.endswith(POISON_SUFFIX) and await store.depth(poison) is not None:
        raise BadInput("bad_parameter", f"{args.queue} has no messages; its dead letters are in {poison}")
    if args.dry_run:
        return await _list(store, args, present)
    choice = ReplayOptions(
        ids=frozenset(args.ids),
        most=args.max,
        to=args.to,
        delay_ms=round(args.delay * 1000),
        plain=args.plain,
    )
    async with putting(store, args, tell=args.bridge is not None) as target, contextlib.AsyncExitStack() as stack:
        check = None
        if args.claim_check is not None:
            check = await stack.enter_async_context(ClaimCheck(args.claim_check))
        replaying = ReplayRun(
            store, target, args.queue, choice, present, clock=monotonic, observer=_Told(args), check=check
        )
        try:
            done = await replaying.run()
        finally:
            _sum(args, replaying.result)
    return 1 if done.stay or done.not_found or done.twice else 0


class _Told:
    """Writes a line for each message."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args

    def moved(self, message: StoredMessage, target: str, new_id: str, burial: Burial | None) -> None:
        """Write where it went."""
        fields = {"id": message.id, "to": target, "new_id": new_id, **_facts(burial)}
        why = "" if burial is None else f" ({burial.attempts} attempts; {shortened(burial.reason, 200)})"
        _tell(self._args, fields, f"{message.id}: to {target} as {new_id}{why}")

    def stays(self, message: StoredMessage, why: str) -> None:
        """Write why it stays."""
        _tell(self._args, {"id": message.id, "stays": why}, f"{message.id}: stays: {why}")


def _sum(args: argparse.Namespace, done: ReplayResult) -> None:
    words = f"{args.queue}: replayed {done.moved}"
    if done.stay:
        words += f"; {done.stay} stay"
    if done.not_found:
        words += f"; not found: {', '.join(done.not_found)}"
    if done.twice:
        words += f"; {done.twice} could not be deleted here and may be handled twice"
    fields = {
        "queue": args.queue,
        "replayed": done.moved,
        "stay": done.stay,
        "not_found": done.not_found,
        "twice": done.twice,
    }
    if args.json:
        print_json(fields)
    else:
        print(words, file=sys.stderr)


async def _list(store: QueueStore, args: argparse.Namespace, present: int) -> int:
    """Show what would be replayed, as far as the store can show messages without leasing them."""
    now = datetime.datetime.now(datetime.UTC)
    most = BATCH_MAX if args.ids or args.max is None else min(BATCH_MAX, args.max)
    rows: list[tuple[str, str | None, int | None, int, str | None]] = []
    for message in await store.peek(args.queue, most) if present else []:
        if args.ids and message.id not in args.ids:
            continue
        burial = facts(message.body)
        try:
            target: str | None = target_of(args.queue, burial, args.to)
        except BadInput:
            target = None
        since = message.inserted_at if burial is None else burial.buried_at
        age = max(0, round((now - since).total_seconds()))
        if args.json:
            print_json({"id": message.id, "to": target, "age_s": age, **_facts(burial)})
        elif burial is None:
            rows.append((message.id, target, None, age, None))
        else:
            rows.append((message.id, target, burial.attempts, age, burial.reason))
    if not args.json:
        print_table(("id", "to", "attempts", "age s", "reason"), rows)
        if present > len(rows):
            print(f"{args.queue}: {len(rows)} of {present} messages shown, visible ones first", file=sys.stderr)
    return 0


def _facts(burial: Burial | None) -> dict[str, object]:
    if burial is None:
        return {}
    return {"from": burial.queue, "reason": burial.reason, "attempts": burial.attempts, "burials": burial.burials}


def _tell(args: argparse.Namespace, fields: dict[str, object], words: str) -> None:
    if args.json:
        print_json(fields)
    else:
        print(words if words.isprintable() else ascii(words)[1:-1])
