"""The actions of ``queuebell queue`` that carry message bodies in and out."""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import datetime
import hashlib
import math
import os
import pathlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from time import monotonic
from typing import IO, Any, Final, TypedDict

import msgspec

from queuebell.bridge.contract.address import is_http
from queuebell.bridge.contract.burial import Burial, Moment, opened, write_burial
from queuebell.bridge.contract.decode_errors import in_plain_words
from queuebell.bridge.contract.errors import BadInput, NotAllowed, QueueNotFound, Unsupported
from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.contract.times import rfc3339
from queuebell.bridge.producer.held_leases import HeldLeases
from queuebell.bridge.producer.partitions import PartitionedQueue
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import (
    BATCH_MAX,
    BODY_BYTES_MAX,
    NEVER,
    TTL_S_MAX,
    Claim,
    EachOnceStore,
    MessageState,
    NewMessage,
    QueueStore,
    Release,
    Settlement,
    StoredMessage,
    check_settled,
    once,
)
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.queues.limits import check_put
from queuebell.bridge.queues.served import Looked
from queuebell.bridge.queues.side_by_side import side_by_side
from queuebell.command.client import bus_address, print_json, tamed, tamed_json
from queuebell.command.progress import Progress

EXPORT_LEASE_S: Final = 60.0
"""Lease of each page in seconds; a killed export keeps its page from workers no longer than this."""
_LINE_BYTES_MAX = 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_SEARCHES: Final = 32
"""Searches of 512 dead letters each for one message."""
ONCE_AT_ONCE: Final = 32
"""Concurrent puts of an import with keys, if the store takes one per request."""
EACH_ONCE: Final = 256
"""Puts in one request, if the store takes many."""


class Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One message of an export.

    An import ignores the id and the put's dates; the record of a burial is for poison queues only.
    """

    body: str | None = None
    body_base64: str | None = None
    visible_after_ms: int = 0
    ttl_s: int | None = None
    expires_at: Moment | None = None
    id: str | None = None
    key: str | None = None
    inserted_at: Moment | None = None
    dequeue_count: int | None = None
    burial: Burial | None = None
    headers: dict[str, str] = {}
    state: MessageState | None = None
    """Of a message that was shown where it is; an import delays one that was delayed by what was left."""
    visible_in_ms: int | None = None


async def put(store: QueueStore, args: argparse.Namespace) -> int:
    """Put the given bodies, or lines of standard input as they arrive."""
    count = 0
    # An argument's bytes as the shell gave them, even if they are not UTF-8.
    given = [] if args.bodies == ["-"] and not args.file else args.bodies
    bodies = [body.encode("utf-8", "surrogateescape") for body in given]
    bodies += [_read(name) for name in args.file]
    if args.id is not None:
        return await _put_once(store, bodies, args)
    async with putting(store, args, tell=_must_tell(store, args.bridge)) as target:
        send = _Sender(target, args)
        if bodies:
            count = await send.all([_given(body, args) for body in bodies])
        else:
            with _telling(send, "put", args):
                async for lines in _arriving_lines(sys.stdin.fileno()):
                    count += await send.all([_given(line, args) for line in lines])
    args.nothing = not count
    if args.json:
        print_json({"queue": args.queue, "put": count})
    else:
        print(f"{args.queue}: put {count}")
    return 0


def _given(body: bytes, args: argparse.Namespace) -> NewMessage:
    return NewMessage(body, round(args.delay * 1000), args.ttl, args.headers)


async def _put_once(store: QueueStore, bodies: list[bytes], args: argparse.Namespace) -> int:
    """Put one message under its id; a repetition changes nothing."""
    if len(bodies) != 1:
        raise BadInput("bad_parameter", "--id names one message: give one BODY, or one --file")
    if args.partitions is not None and args.key is None:
        raise BadInput("bad_parameter", "--id of a partitioned queue needs --key: an id belongs to one partition")
    async with putting(store, args, tell=_must_tell(store, args.bridge)) as target:
        send = _Sender(target, args)
        new = await send.once(args.id, _given(bodies[0], args))
    if args.json:
        print_json({"queue": args.queue, "put": int(new), "id": args.id})
    else:
        print(f"{args.queue}: {'put 1' if new else 'put 0; this message was put before'}")
    return 0


async def get(store: QueueStore, args: argparse.Namespace) -> int:
    """Take messages, write them, then delete them; after a crash in between they come again."""
    if args.max < 1:
        raise BadInput("bad_parameter", "--max is at least 1")
    await _of_each(args, lambda queue, left: _get(store, queue, left, args))
    return 0


async def peek(store: QueueStore, args: argparse.Namespace) -> int:
    """Write visible messages and leave them where they are."""
    if args.max < 1 or (args.state == "waiting" and not args.contains and args.max > BATCH_MAX):
        raise BadInput("bad_parameter", f"--max is from 1 to {BATCH_MAX}; with --state later or running it may be more")
    await _of_each(args, lambda queue, left: _peek(store, queue, left, args))
    return 0


async def show(store: QueueStore, args: argparse.Namespace) -> int:
    """Write one message by its id, or the id under which it was put, and where it is; 1 if there is none."""
    bridge, where = _of_a_bridge(store), ""
    found = await bridge.look(args.queue, args.id)
    if found is None and (found := await _dead_letter_of(bridge, args.queue, args.id)) is not None:
        where = f"in {_poison_of(args.queue)}: "
    if found is None:
        text = (
            f"{args.queue} has no message {tamed(args.id.encode())}: it was handled, deleted, moved under another id, "
            "or it expired, or there never was one"
        )
        print_json({"error": text}) if args.json else print(text, file=sys.stderr)
        return 1
    if not args.json:
        till = "" if found.due_in_ms is None else f", for another {found.due_in_ms / 1000:.1f} s"
        message, (burial, _) = found.message, opened(found.message.body)
        print(f"{where}{found.state}{till}; attempts: {message.dequeue_count}; put at {rfc3339(message.inserted_at)}")
        print(f"id: {message.id}" + (f"; put under: {message.key}" if message.key else ""))
        if message.expires_at is not None:
            print(f"expires at {rfc3339(message.expires_at)}")
        if burial is not None:
            print(f"failed as message {burial.id}" + (f", put under {burial.key}" if burial.key else ""))
            why = tamed(burial.reason.encode("utf-8", "replace"))
            times = "1 attempt" if burial.attempts == 1 else f"{burial.attempts} attempts"
            back = "it was a " if not where and burial.queue == args.queue else ""
            print(f"{back}dead letter of {burial.queue} after {times}: {why}")
        for name, value in message.headers.items():
            print(f"{name}: {tamed(value.encode())}")
        print(flush=True)
    _write(found.message, args, found.state, found.due_in_ms)
    return 0


def _poison_of(queue: str) -> str:
    return queue if queue.endswith(POISON_SUFFIX) else queue + POISON_SUFFIX


async def _dead_letter_of(bridge: HttpStore, queue: str, name: str) -> Looked | None:
    """Return the dead letter that a message became, by the id that it had, or that of its put."""
    poison, after = _poison_of(queue), ""
    for _ in range(_SEARCHES):
        try:
            page = await bridge.browse(poison, "waiting", BATCH_MAX, after, contains=name)
        except (QueueNotFound, Unsupported, NotAllowed):
            return None
        for message in page.messages:
            if (burial := opened(message.body)[0]) is not None and name in (burial.id, burial.key):
                return Looked(message, "waiting", None)
        if page.following is None:
            return None
        after = page.following
    return None


async def discard(store: QueueStore, args: argparse.Namespace) -> int:
    """Delete messages by their ids, or those under which they were put; 1 if one of them stays or is gone."""
    bridge, done = _of_a_bridge(store), 0
    left: dict[str, str] = {}
    try:
        for id_ in args.ids:
            if deleted := await bridge.discard(args.queue, id_):
                done += 1
            else:
                why = "is at a worker, which decides about it: it stays"
                if deleted is None:
                    why = "is not there: it is gone, or there never was one"
                    if (letter := await _dead_letter_of(bridge, args.queue, id_)) is not None:
                        why = f"is a dead letter: queuebell queue discard {_poison_of(args.queue)} {letter.message.id}"
                left[id_] = why
                print(f"{args.queue}: message {tamed(id_.encode())} {why}", file=sys.stderr)
    finally:
        if args.json:
            print_json({"queue": args.queue, "discarded": done, "left": left})
        else:
            print(f"{args.queue}: discarded {done}")
    return 0 if done == len(args.ids) else 1


def _of_a_bridge(store: QueueStore) -> HttpStore:
    if not isinstance(store, HttpStore):
        raise Unsupported(
            "only a bridge can do this, for its embedded queues; other stores show what waits: queue peek"
        )
    return store


async def export(store: QueueStore, args: argparse.Namespace) -> int:
    """Write all visible messages; they stay in the queue, or are deleted once they are written.

    It receives them page by page. If the store counts exactly, keeps an order and can release without counting, each
    page is released before it is written, so that the order is as before. In other stores released messages would
    come again, so all are held until the end, with renewed leases.

    Messages to be deleted are on the disk before, appended to what an interrupted export left in the file.
    """
    there = await store.depth(args.queue)
    if there is None:  # before the file is made
        raise QueueNotFound(f"there is no queue {args.queue}: nothing was exported")
    if store.capabilities.pause and await store.paused(args.queue):
        print(
            f"{args.queue} is paused, and a paused queue returns no messages: nothing was exported. Stop its workers, "
            f"run `queuebell queue resume {args.queue}`, and export again",
            file=sys.stderr,
        )
        return 1
    # The capabilities of a bridge on a shared store are known after its first answer.
    able = store.capabilities
    passing = able.exact_depth and able.ordered and able.uncounted_release and not args.delete
    left = there.visible if passing else sys.maxsize
    leases = HeldLeases(store, args.queue, EXPORT_LEASE_S, monotonic)
    seen: set[str] = set()
    lapped = False
    progress = Progress.on(sys.stderr, plainly=True)
    try:
        with _output(args.file, behind=args.delete) as out:
            while left > 0:
                page = await leases.receive(min(BATCH_MAX, able.batch_max, BATCH_MAX if lapped else left))
                fresh = [message for message in page if message.id not in seen]
                left -= len(fresh)
                seen.update(message.id for message in fresh)
                if passing and len(fresh) < len(page):
                    # A message released in the same tick of the clock as others were put is not behind them and comes
                    # again: hold all from now on.
                    passing, lapped = False, True
                if passing:
                    await leases.release_all()
                _export(fresh, out)
                if not (out.isatty() and progress.live):
                    share = min(1.0, len(seen) / max(1, there.visible))
                    progress.now("export", f"{len(seen):,} messages", share=share)
                if args.delete:
                    if args.file is not None:
                        os.fsync(out.fileno())
                    claims = [Claim(message.id, leases.receipt(message.id)) for message in page]
                    await _delete(store, args.queue, claims)
                    # Only after the delete: an interrupted one leaves messages to release.
                    for claim in claims:
                        leases.pop(claim.id)
                if not page or not (fresh or lapped):
                    break
                await leases.renew()
    finally:
        progress.close()
        await leases.release_all()
    # By the count before the export: some stores count released messages as leased for a while.
    hidden = min(there.invisible, max(0, there.visible + there.invisible - len(seen)))
    more = f"; {hidden} leased or delayed messages were left out" if hidden else ""
    if seen and not args.delete and not able.uncounted_release:
        more += "; this store counts each delivery, so that the export cost each message one attempt"
    print(f"{args.queue}: exported {len(seen)}{more}", file=sys.stderr)
    return 0


def _export(messages: list[StoredMessage], out: IO[bytes]) -> None:
    for message in messages:
        # Without the delivery to this export, which is not an attempt.
        handed_out = max(0, message.dequeue_count - 1)
        line = msgspec.json.encode(_line(msgspec.structs.replace(message, dequeue_count=handed_out)))
        out.write((tamed_json(line.decode()).encode() if out.isatty() else line) + b"\n")
    out.flush()


async def import_(store: QueueStore, args: argparse.Namespace) -> int:
    """Put the messages of an export, except those that have expired.

    With ``--once`` each is put under its own key, and a repetition changes nothing.
    """
    if args.once and args.partitions is not None:
        raise BadInput("bad_parameter", "--once: an id belongs to one partition, and an export does not say which")
    count = expired = number = known = read_bytes = 0
    progress = Progress.on(sys.stderr, plainly=True)
    async with putting(store, args, tell=_must_tell(store, args.bridge)) as target:
        send = _Sender(target, args)
        with _input(args.file) as source, _telling(send, "imported", args), contextlib.closing(progress):
            size = os.fstat(source).st_size
            async for lines in _arriving_lines(source):
                read_bytes += sum(map(len, lines)) + len(lines)
                share = min(1.0, read_bytes / size) if size else None
                progress.now("import", f"{count + known:,} messages", share=share)
                batch: list[tuple[str, NewMessage]] = []
                for raw in lines:
                    number += 1
                    if not raw.strip():
                        continue
                    read = _message(raw, number, args.queue)
                    if read is None:
                        expired += 1
                    else:
                        batch.append(read)
                if args.once:
                    new = await send.each_once(batch)
                    known += len(batch) - new
                    count += new
                else:
                    count += await send.all([message for _, message in batch])
    args.nothing = not count
    left_out = f"; {known} were put before" if known else ""
    left_out += f"; {expired} had expired" if expired else ""
    print(f"{args.queue}: imported {count}{left_out}", file=sys.stderr)
    return 0


class _More(TypedDict, total=False):
    create: bool


class _Sender:
    """Puts to a queue or its partitions, and publishes too where ``target`` does."""

    def __init__(self, target: QueueStore | PublishingQueue, args: argparse.Namespace) -> None:
        self.done = 0
        """Messages put so far."""
        self._target = target
        self._queue = args.queue
        self._key = getattr(args, "key", None)
        self._answered = False
        self._more: _More = {"create": False} if getattr(args, "existing", False) else {}
        self._partitioned = None if args.partitions is None else PartitionedQueue(target, args.partitions)

    async def once(self, id_: str, message: NewMessage) -> bool:
        """Put a message under an id, to the partition of the key; say whether it is new."""
        if self._partitioned is not None and self._key is not None:
            return await self._partitioned.put_once(self._key, id_, message, **self._more) is not None
        if isinstance(self._target, PublishingQueue):
            return await self._target.put_once(self._queue, id_, message, **self._more) is not None
        return await once(self._target).put_once(self._queue, id_, message, **self._more) is not None

    async def each_once(self, messages: list[tuple[str, NewMessage]]) -> int:
        """Put messages under their keys, some concurrently and roughly in order; return how many are new."""
        new = 0
        if isinstance(self._target, EachOnceStore):
            for start in range(0, len(messages), EACH_ONCE):
                new += (some_new := await self._target.put_each_once(self._queue, messages[start : start + EACH_ONCE]))
                self.done += some_new
            return new
        rest = messages
        while rest:
            # The first alone: before its answer a store over HTTP would ask for each whether it supports headers.
            size, self._answered = ONCE_AT_ONCE if self._answered else 1, True
            some, rest = rest[:size], rest[size:]
            new += (some_new := sum(await side_by_side("import", (self.once(key, message) for key, message in some))))
            self.done += some_new
        return new

    async def all(self, messages: list[NewMessage]) -> int:
        for start in range(0, len(messages), BATCH_MAX):
            batch = messages[start : start + BATCH_MAX]
            put: list[Any]
            if self._partitioned is not None:
                put = await self._partitioned.put(batch, key=self._key, **self._more)
            else:
                put = await self._target.put(self._queue, batch, **self._more)
            assert len(put) == len(batch)
            self.done += len(batch)
        return len(messages)


@contextlib.contextmanager
def _telling(send: _Sender, what: str, args: argparse.Namespace) -> Iterator[None]:
    """Say what was done if the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        again = "; a repetition puts them again" if what == "put" else "; a repetition needs --once, or doubles them"
        if getattr(args, "once", False):
            again = "; repeat it to put the others"
        print(
            f"{args.queue}: {what} {send.done}, then failed or was interrupted{again if send.done else ''}",
            file=sys.stderr,
        )
        raise


def _must_tell(store: QueueStore, bridge: str | None) -> bool:
    """Return whether to publish puts to the bridge; its own queue service notifies it by itself."""
    if bridge is None or not is_http(bridge):
        return bridge is not None
    from queuebell.bridge.queues.http.store import normalised

    return str(store) != normalised(bridge)


@contextlib.asynccontextmanager
async def putting(
    store: QueueStore, args: argparse.Namespace, *, tell: bool
) -> AsyncIterator[QueueStore | PublishingQueue]:
    """Yield the store, or a queue that also publishes its puts to the named bridge."""
    if not tell:
        yield store
        return
    from queuebell.bridge.producer.publisher import Publisher

    async with Publisher(bus_address(args)) as publisher:
        queue = PublishingQueue(store, publisher)
        yield queue
        await queue.close()
    if publisher.state().unsent and not await triggers(store):
        print(
            "queuebell queue: the messages are safe, but no bridge took the trigger: an idle worker may find them a "
            "minute later. Once the bridge is reachable, run 'queuebell publish'",
            file=sys.stderr,
        )


async def triggers(store: QueueStore) -> bool:
    """Return whether the store itself triggers on a put, as after `queue init --notify`."""
    asks = getattr(store, "triggers_puts", None)
    return asks is not None and bool(await asks())


async def _of_each(args: argparse.Namespace, take: Callable[[str, int], Awaitable[int]]) -> None:
    """Take ``--max`` messages from a queue, or from one partition after the other; a missing partition is empty."""
    if args.partitions is None:
        await take(args.queue, args.max)
        return
    left, missing = args.max, 0
    for queue in args.partitions.references:
        if left > 0:
            try:
                left -= await take(queue, left)
            except QueueNotFound:
                missing += 1
    if missing == args.partitions.count:
        raise QueueNotFound(f"none of the partitions of {args.partitions} exists")


async def _get(store: QueueStore, queue: str, limit: int, args: argparse.Namespace) -> int:
    left = limit
    while left > 0:
        received = await store.receive(queue, min(left, BATCH_MAX), args.visibility_timeout)
        if not received.messages:
            if left == limit and store.capabilities.pause and await store.paused(queue):
                print(
                    f"{queue} is paused: it returns no messages until `queuebell queue resume {queue}`", file=sys.stderr
                )
            break
        for message in received.messages:
            _write(message, args)
        sys.stdout.flush()
        if args.keep:
            await _keep_leased(store, queue, received.messages, args.visibility_timeout)
        else:
            await _delete(store, queue, [Claim(message.id, message.pop_receipt) for message in received.messages])
        left -= len(received.messages)
    return limit - left


async def _peek(store: QueueStore, queue: str, limit: int, args: argparse.Namespace) -> int:
    if args.state == "waiting" and not args.contains:
        messages = await store.peek(queue, limit)
        for message in messages:
            _write(message, args)
        return len(messages)
    shown, after = 0, ""
    while shown < limit:
        page = await _of_a_bridge(store).browse(queue, args.state, min(BATCH_MAX, limit - shown), after, args.contains)
        for message, due_in_ms in zip(page.messages, page.due_in_ms, strict=True):
            _write(message, args, args.state, due_in_ms)
        shown += len(page.messages)
        if page.following is None:
            return shown
        after = page.following
    print(f"{queue}: there may be more than these {limit}; --max shows more", file=sys.stderr)
    return shown


async def _keep_leased(store: QueueStore, queue: str, messages: list[StoredMessage], lease_s: float) -> None:
    """Let messages come back when their leases end without counting the attempt, if the store can."""
    if store.capabilities.uncounted_release:
        after_ms = math.ceil(lease_s * 1000)
        release = [Release(message.id, message.pop_receipt, after_ms, uncounted=True) for message in messages]
        check_settled(queue, (await store.settle(queue, Settlement(release=release))).release)


async def _delete(store: QueueStore, queue: str, claims: list[Claim]) -> None:
    settling = await store.settle(queue, Settlement(delete=claims))
    lost = sum(not (settled.ok or settled.open) for settled in settling.delete)
    if lost:
        print(f"{queue}: {lost} leases ended before their messages were deleted; they come again", file=sys.stderr)
    check_settled(queue, settling.delete)


def _write(
    message: StoredMessage, args: argparse.Namespace, state: MessageState | None = None, due_in_ms: int | None = None
) -> None:
    """Write a message with its original body; an export keeps the record of its burial before it.

    The body is written byte by byte, except on a terminal, where control characters are escaped.
    """
    burial, body = opened(message.body)
    if args.json:
        line = _line(msgspec.structs.replace(message, body=body), burial)
        line.state, line.visible_in_ms = state, due_in_ms
        print_json(line)
    elif sys.stdout.isatty():
        sys.stdout.buffer.write(tamed(body).encode(sys.stdout.encoding, "backslashreplace") + b"\n")
    else:
        sys.stdout.buffer.write(body + b"\n")


def _line(message: StoredMessage, burial: Burial | None = None) -> Line:
    line = Line(
        burial=burial,
        id=message.id,
        key=message.key,
        inserted_at=message.inserted_at,
        expires_at=message.expires_at,
        dequeue_count=message.dequeue_count,
        headers=message.headers,
    )
    try:
        line.body = message.body.decode()
    except UnicodeDecodeError:
        line.body_base64 = base64.b64encode(message.body).decode()
    return line


def _message(raw: bytes, number: int, queue: str) -> tuple[str, NewMessage] | None:
    """Read a line: the key to put under, and the message; None if it has expired."""
    try:
        line = msgspec.json.decode(raw, type=Line)
        if (line.body is None) == (line.body_base64 is None):
            raise BadInput("bad_json", f"line {number}: a message has either body or body_base64")
        body = line.body.encode() if line.body is not None else base64.b64decode(line.body_base64 or "", validate=True)
    except BadInput:
        raise
    except msgspec.ValidationError as error:
        raise BadInput("bad_json", f"line {number}: not a message: {in_plain_words(error, Line)}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise BadInput("bad_json", f"line {number}: not a message: {error}") from None
    if line.burial is not None and queue.endswith(POISON_SUFFIX):
        # As `peek --json` shows a dead letter; in another queue it is an ordinary message.
        packed = write_burial(line.burial, body, BODY_BYTES_MAX)
        if packed is None:
            raise BadInput("message_too_large", f"line {number}: a dead letter that is too large with its facts")
        body = packed
    ttl = NEVER if line.ttl_s is None else line.ttl_s
    if line.expires_at is not None and line.ttl_s is None:
        ttl = int((line.expires_at - datetime.datetime.now(datetime.UTC)).total_seconds())
        if ttl < 1:
            return None
        if ttl > TTL_S_MAX:
            ttl = NEVER  # some stores express "never" so
    # Two lines of one exported message have the same key; hand-written lines without ids each have their own.
    named = "\n".join((line.id or f"line {number}", str(line.inserted_at))).encode() + b"\n" + body
    key = line.key or f"import:{hashlib.sha256(named).hexdigest()[:32]}"
    try:
        left_ms = line.visible_in_ms if line.state == "later" else None
        message = NewMessage(body, line.visible_after_ms or left_ms or 0, ttl, line.headers)
        check_put(queue, [message])
    except BadInput as error:
        raise BadInput(error.code, f"line {number}: {error}") from None
    return key, message


async def _arriving_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines that have arrived, without waiting for a full batch."""
    rest = b""
    while chunk := await _chunk(descriptor):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LINE_BYTES_MAX:
            raise BadInput("message_too_large", "a line of the input is longer than any message may be")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


async def _chunk(descriptor: int) -> bytes:
    """Wait for input without blocking the loop.

    It reads in a daemon thread, without Python's buffer: an executor's thread, or one that holds the buffer's lock,
    would keep an interrupted command running until more input arrives.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[bytes] = loop.create_future()

    def deliver(data: bytes, error: OSError | None) -> None:
        if arrived.done():
            return
        if error is not None:
            arrived.set_exception(error)
        else:
            arrived.set_result(data)

    def read() -> None:
        data, error = b"", None
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except OSError as caught:
            error = caught
        # The loop is closed if the command was interrupted meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, data, error)

    threading.Thread(target=read, name="queuebell-input", daemon=True).start()
    return await arrived


def _read(name: str) -> bytes:
    with _reading(name) as file:
        return file.read()


def _reading(name: str) -> IO[bytes]:
    try:
        return pathlib.Path(name).open("rb")
    except OSError as error:
        raise BadInput("bad_parameter", f"cannot read {name}: {error.strerror}; nothing was put") from None


@contextlib.contextmanager
def _output(name: str | None, *, behind: bool) -> Iterator[IO[bytes]]:
    """Yield the output; ``behind`` appends to the file, after removing a last line that is not a whole message.

    Otherwise raises `BadInput` for a file that has content.
    """
    if name is None:
        yield sys.stdout.buffer
    elif behind:
        with pathlib.Path(name).open("a+b") as file:
            whole = _whole_lines(file)
            file.seek(whole)
            if _is_message(file.read()):
                file.write(b"\n")
            else:
                file.truncate(whole)
            yield file
    else:
        try:
            held = pathlib.Path(name).stat().st_size
        except FileNotFoundError:
            held = 0
        if held:
            # It may hold the only copy of messages: those that an export with --delete took from their queue.
            raise BadInput("bad_parameter", f"{name} exists and is not empty: name another file, or remove it")
        with pathlib.Path(name).open("wb") as file:
            yield file


def _is_message(line: bytes) -> bool:
    """Return whether a line without an end is a message all the same: it may be the only copy."""
    try:
        msgspec.json.decode(line, type=Line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _whole_lines(file: IO[bytes]) -> int:
    """Return the offset after the last complete line of a file."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - _CHUNK_BYTES)
        file.seek(begin)
        if (found := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + found + 1
        end = begin
    return 0


@contextlib.contextmanager
def _input(name: str | None) -> Iterator[int]:
    if name is None:
        yield sys.stdin.fileno()
    else:
        with _reading(name) as file:
            yield file.fileno()
