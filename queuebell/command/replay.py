"""``queuebell queue replay``: buried messages go back to where they failed, put there before they are deleted here."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import sys
from collections.abc import Sequence
from time import monotonic
from typing import Final

from bridge.contract.burial import Burial, opened, replay_target, shortened, write_burial
from bridge.contract.claim import is_claim
from bridge.contract.errors import BadInput, BlobNotFound, UnknownOutcome
from bridge.contract.names import POISON_SUFFIX, parse_reference
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import (
    BATCH_MAX,
    DELAY_MS_MAX,
    Claim,
    NewMessage,
    QueueStore,
    Settlement,
    StoredMessage,
    check_settled,
)
from bridge.storage.claim_check import ClaimCheck, claim_in
from queuebell.command.client import print_json, print_table
from queuebell.command.held_leases import HeldLeases
from queuebell.command.queue_transfer import putting

LEASE_S: Final = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``replay``."""
    parser.add_argument("--to", metavar="QUEUE", help="put them here (default: the queue that each came from)")
    parser.add_argument("--id", action="append", default=[], metavar="ID", dest="ids", help="only these messages")
    parser.add_argument("--max", type=int, metavar="N", help="at most so many (default: all that is there now)")
    parser.add_argument("--after", type=float, default=0.0, metavar="S", help="visible there after so many seconds")
    parser.add_argument(
        "--plain", action="store_true", help="put the body alone, for workers that are no listeners of Queuebell"
    )
    parser.add_argument("--claim-check", metavar="URL", help="blob store of bodies that were put aside")
    parser.add_argument("--dry-run", action="store_true", help="list what would be replayed, and take nothing")


async def run(store: QueueStore, args: argparse.Namespace) -> int:
    """Replay, and return 0; 1 where the queue does not exist, or a message that was asked for stays."""
    if args.max is not None and args.max < 1:
        raise BadInput("bad_parameter", "--max is at least 1")
    if not 0 <= args.after * 1000 <= DELAY_MS_MAX:
        raise BadInput("bad_parameter", f"--after is from 0 to {DELAY_MS_MAX // 1000} seconds")
    depth = await store.depth(args.queue)
    if depth is None:
        _tell(args, {"queue": args.queue, "exists": False}, f"{args.queue}: does not exist")
        return 1
    present = depth.visible + depth.invisible
    if args.dry_run:
        return await _list(store, args, present)
    async with putting(store, args, tell=args.bridge is not None) as target, contextlib.AsyncExitStack() as stack:
        check = None
        if args.claim_check is not None:
            check = await stack.enter_async_context(ClaimCheck(args.claim_check))
        return await _Replay(store, target, check, args, present).run()


class _Replay:
    """One run. It ends by itself: it looks at no more messages than were there when it began.

    What is not to be replayed stays leased until the end, so that it is met once, and is given back then.
    """

    def __init__(
        self,
        store: QueueStore,
        target: QueueStore | PublishingQueue,
        check: ClaimCheck | None,
        args: argparse.Namespace,
        present: int,
    ) -> None:
        self._store = store
        self._held = HeldLeases(store, args.queue, LEASE_S, monotonic)
        self._target = target
        self._check = check
        self._args = args
        self._left = present
        self._ids = set(args.ids)
        self._replayed = 0
        self._stay = 0
        self._twice = 0
        self._put_ids: set[tuple[str, str]] = set()

    async def run(self) -> int:
        """Replay until all that was there has been looked at, and give back what stays."""
        more = True
        try:
            while more and self._left > 0:
                # A batch under way is finished when the command is interrupted: put and deleted, or given back.
                batch = asyncio.create_task(self._batch(), name=f"replay[{self._args.queue}]")
                try:
                    more = await asyncio.shield(batch)
                except asyncio.CancelledError:
                    await asyncio.wait([batch])
                    if not batch.cancelled():
                        batch.exception()
                    raise
        finally:
            await self._held.give_back()
            self._sum()
        return 1 if self._stay or self._ids or self._twice else 0

    async def _batch(self) -> bool:
        """Take some messages and replay them; False once there are no more to take."""
        args, store = self._args, self._store
        most = [BATCH_MAX, store.capabilities.batch_max, self._left]
        if args.max is not None:
            most.append(args.max - self._replayed)
        if min(most) < 1 or (args.ids and not self._ids):
            return False
        await self._held.renew()
        messages = await self._held.receive(min(most))
        self._left -= len(messages)
        groups: dict[str, list[tuple[StoredMessage, Burial | None, bytes]]] = {}
        for message in messages:
            ready = await self._ready(message)
            await self._held.renew()
            if ready is not None:
                groups.setdefault(ready[0], []).append((message, *ready[1:]))
        for target, group in groups.items():
            await self._held.renew()
            # What was lost meanwhile is another's, who may put it back as well.
            await self._move(target, [each for each in group if each[0].id in self._held])
        return bool(messages)

    async def _ready(self, message: StoredMessage) -> tuple[str, Burial | None, bytes] | None:
        """Return where a message goes and what is put there; None where it stays."""
        args = self._args
        if args.ids and message.id not in self._ids:
            return None
        try:
            burial, body = await self._original(message.body)
            if burial is not None and (burial.queue, burial.id) in self._put_ids:
                return None  # it failed again already
            target = _target(args, burial)
            body = await self._travelling(message.body, body, target)
        except (BadInput, BlobNotFound) as error:
            self._stay += 1
            self._ids.discard(message.id)
            _tell(args, {"id": message.id, "stays": str(error)}, f"{message.id}: stays: {error}")
            return None
        return target, burial, body

    async def _original(self, body: bytes) -> tuple[Burial | None, bytes]:
        """Return the facts and what stands behind them: a body, or a claim on one."""
        burial, inner = opened(body)
        if is_claim(inner) and self._check is not None:
            within, whole = opened(await self._check.fetch(inner))
            if within is not None:
                return burial or within, whole if self._args.plain else inner
        return burial, inner

    async def _travelling(self, stored: bytes, inner: bytes, target: str) -> bytes:
        """Return what is put: the message as it stands, or its body alone; a claim is copied, or goes straight back."""
        args, check = self._args, self._check
        limit = self._store.capabilities.body_bytes_max
        claim = claim_in(stored)
        if claim is None or not is_claim(inner):
            if len(inner) > limit:
                raise BadInput("message_too_large", f"its body was put aside and is over the {limit} bytes of a queue")
            return inner if args.plain else stored
        if check is None:
            if args.plain or args.queue != target + POISON_SUFFIX:
                raise BadInput("bad_parameter", "its body was put aside: name the blob store with --claim-check")
            return stored
        burial, _ = opened(stored)
        copied = await check.copy(claim, target, self._store)
        if burial is None or args.plain:
            return copied
        return write_burial(burial, copied, limit) or copied

    async def _move(self, target: str, group: Sequence[tuple[StoredMessage, Burial | None, bytes]]) -> None:
        """Put a group of messages, then delete them: a crash between leaves both, never none."""
        if not group:
            return
        args = self._args
        delay_ms = round(args.after * 1000)
        try:
            receipts = await self._held.in_time(
                self._target.put(target, [NewMessage(body, delay_ms) for _, _, body in group])
            )
        except UnknownOutcome as error:
            error.add_note(f"{len(group)} messages stay, and may have been put on {target} too")
            raise
        claims = [Claim(message.id, self._held.pop(message.id)) for message, _, _ in group]
        self._put_ids.update((target, receipt.id) for receipt in receipts)
        for (message, burial, _), receipt in zip(group, receipts, strict=True):
            self._replayed += 1
            self._ids.discard(message.id)
            fields = {"id": message.id, "to": target, "new_id": receipt.id, **_facts(burial)}
            why = "" if burial is None else f" ({burial.attempts} attempts; {shortened(burial.reason, 200)})"
            _tell(args, fields, f"{message.id}: to {target} as {receipt.id}{why}")
        try:
            settled = (await self._held.in_time(self._store.settle(args.queue, Settlement(delete=claims)))).delete
        except BaseException:
            self._twice += len(claims)
            raise
        for (message, _, body), one in zip(group, settled, strict=True):
            if not one.ok:
                self._twice += 1
            elif self._check is not None and claim_in(body) != claim_in(message.body):
                await self._check.drop(message.body)
        check_settled(args.queue, settled)

    def _sum(self) -> None:
        args = self._args
        words = f"{args.queue}: replayed {self._replayed}"
        if self._stay:
            words += f"; {self._stay} stay"
        if self._ids:
            words += f"; not found: {', '.join(sorted(self._ids))}"
        if self._twice:
            words += f"; {self._twice} could not be deleted here and may be handled twice"
        fields = {
            "queue": args.queue,
            "replayed": self._replayed,
            "stay": self._stay,
            "not_found": sorted(self._ids),
            "twice": self._twice,
        }
        if args.json:
            print_json(fields)
        else:
            print(words, file=sys.stderr)


async def _list(store: QueueStore, args: argparse.Namespace, present: int) -> int:
    """Show what would be replayed, as far as the store shows messages without handing them out."""
    now = datetime.datetime.now(datetime.UTC)
    most = BATCH_MAX if args.ids or args.max is None else min(BATCH_MAX, args.max)
    rows: list[tuple[str, str | None, int | None, int, str | None]] = []
    for message in await store.peek(args.queue, most) if present else []:
        if args.ids and message.id not in args.ids:
            continue
        burial, _ = opened(message.body)
        try:
            target: str | None = _target(args, burial)
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
            print(f"{args.queue}: {len(rows)} of {present} are shown, those that are visible first", file=sys.stderr)
    return 0


def _target(args: argparse.Namespace, burial: Burial | None) -> str:
    """Return where a message goes; only ``--to`` leads out of the account."""
    if args.to is not None and "/" in args.to and args.to != args.queue:
        return parse_reference(args.to)
    return replay_target(args.queue, burial, args.to)


def _facts(burial: Burial | None) -> dict[str, object]:
    if burial is None:
        return {}
    return {"from": burial.queue, "reason": burial.reason, "attempts": burial.attempts, "burials": burial.burials}


def _tell(args: argparse.Namespace, fields: dict[str, object], words: str) -> None:
    if args.json:
        print_json(fields)
    else:
        print(words if words.isprintable() else ascii(words)[1:-1])
