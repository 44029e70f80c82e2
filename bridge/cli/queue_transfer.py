"""The actions of ``queuebell queue`` that carry message bodies in and out."""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import datetime
import os
import pathlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import IO, Any

import msgspec

from bridge.cli.client import bus_address, print_json, tamed, tamed_json
from bridge.contract.burial import Burial, opened
from bridge.contract.errors import BadInput, QueueNotFound
from bridge.contract.partitioning import Partitions
from bridge.partitions import PartitionedQueue
from bridge.publishing_queue import PublishingQueue
from bridge.queue import (
    BATCH_MAX,
    NEVER,
    Claim,
    NewMessage,
    QueueStore,
    Release,
    Settlement,
    StoredMessage,
    once,
)

EXPORT_LEASE_S = 3600.0
OF_PARTITIONS = frozenset({"put", "get", "peek"})
"""What is done here with all partitions of a queue, too; the rest takes one queue."""
_LINE_BYTES_MAX = 1024 * 1024
_CHUNK_BYTES = 256 * 1024


class Line(msgspec.Struct, omit_defaults=True):
    """One message of an export; what an import does not need is there for people."""

    body: str | None = None
    body_base64: str | None = None
    visible_after_ms: int = 0
    ttl_s: int | None = None
    expires_at: datetime.datetime | None = None
    id: str | None = None
    key: str | None = None
    inserted_at: datetime.datetime | None = None
    dequeue_count: int | None = None
    burial: Burial | None = None


async def put(store: QueueStore, args: argparse.Namespace) -> int:
    """Put what is given; from standard input line by line, as it comes in."""
    count = 0
    # An argument's bytes as the shell gave them, even where they are no UTF-8.
    bodies = [body.encode("utf-8", "surrogateescape") for body in args.bodies]
    bodies += [_read(name) for name in args.file]
    if args.id is not None:
        return await _put_once(store, bodies, args)
    async with _putter(store, args) as send:
        if bodies:
            count = await send.all([NewMessage(body, args.delay_ms, args.ttl_s) for body in bodies])
        else:
            async for lines in _arriving_lines(sys.stdin.fileno()):
                count += await send.all([NewMessage(line, args.delay_ms, args.ttl_s) for line in lines])
    if args.json:
        print_json({"queue": args.queue, "put": count})
    else:
        print(f"{args.queue}: put {count}")
    return 0


async def _put_once(store: QueueStore, bodies: list[bytes], args: argparse.Namespace) -> int:
    """Put the one message under its id; doing it again changes nothing."""
    if len(bodies) != 1:
        raise BadInput("bad_parameter", "--id names one message: give one BODY, or one --file")
    if args.partitions is not None and args.key is None:
        raise BadInput("bad_parameter", "--id of a partitioned queue needs --key: an id belongs to one partition")
    async with _putter(store, args) as send:
        new = await send.once(args.id, NewMessage(bodies[0], args.delay_ms, args.ttl_s))
    if args.json:
        print_json({"queue": args.queue, "put": int(new), "id": args.id})
    else:
        print(f"{args.queue}: {'put 1' if new else 'put 0; this very message was put before'}")
    return 0


async def get(store: QueueStore, args: argparse.Namespace) -> int:
    """Take messages, write them, and delete what was written; a crash between the two shows them again."""
    if args.max < 1:
        raise BadInput("bad_parameter", "--max is at least 1")
    await _of_each(args, lambda queue, left: _get(store, queue, left, args))
    return 0


async def peek(store: QueueStore, args: argparse.Namespace) -> int:
    """Write visible messages and leave them where they are."""
    if not 1 <= args.max <= BATCH_MAX:
        raise BadInput("bad_parameter", f"--max is from 1 to {BATCH_MAX}")
    await _of_each(args, lambda queue, left: _peek(store, queue, left, args))
    return 0


async def export(store: QueueStore, args: argparse.Namespace) -> int:
    """Write all visible messages; each is leased for an hour meanwhile, then given back or deleted."""
    held: list[StoredMessage] = []
    count = 0
    try:
        with _output(args.file) as out:
            while messages := (await store.receive(args.queue, BATCH_MAX, EXPORT_LEASE_S)).messages:
                if not args.delete:
                    held += messages
                for message in messages:
                    line = msgspec.json.encode(_line(message))
                    out.write((tamed_json(line.decode()).encode() if out.isatty() else line) + b"\n")
                out.flush()
                if args.delete:
                    await _delete(store, args.queue, messages)
                count += len(messages)
    finally:
        for start in range(0, len(held), BATCH_MAX):
            part = [Release(message.id, message.pop_receipt) for message in held[start : start + BATCH_MAX]]
            await store.settle(args.queue, Settlement(release=part))
    depth = await store.depth(args.queue)
    hidden = depth.invisible if depth is not None else 0
    more = f"; {hidden} are leased or delayed and were left out" if hidden else ""
    print(f"{args.queue}: exported {count}{more}", file=sys.stderr)
    return 0


async def import_(store: QueueStore, args: argparse.Namespace) -> int:
    """Put the messages of an export; those that have expired meanwhile are left out."""
    count = expired = number = 0
    async with _putter(store, args) as send:
        with _input(args.file) as source:
            async for lines in _arriving_lines(source):
                batch: list[NewMessage] = []
                for raw in lines:
                    number += 1
                    if not raw.strip():
                        continue
                    message = _message(raw, number)
                    if message is None:
                        expired += 1
                    else:
                        batch.append(message)
                count += await send.all(batch)
    left_out = f"; {expired} had expired" if expired else ""
    print(f"{args.queue}: imported {count}{left_out}", file=sys.stderr)
    return 0


class _Sender:
    """Puts to a queue or its partitions, and publishes too where ``target`` does."""

    def __init__(self, target: QueueStore | PublishingQueue, args: argparse.Namespace) -> None:
        self._target = target
        self._queue = args.queue
        self._key = getattr(args, "key", None)
        self._partitions: Partitions | None = args.partitions
        self._partitioned = None if args.partitions is None else PartitionedQueue(target, args.partitions)

    async def once(self, id_: str, message: NewMessage) -> bool:
        """Put a message under an id, to the partition of the key; say whether it is new."""
        queue = self._queue if self._partitions is None else self._partitions.of(self._key or "")
        if isinstance(self._target, PublishingQueue):
            return await self._target.put_once(queue, id_, message) is not None
        return await once(self._target).put_once(queue, id_, message) is not None

    async def all(self, messages: list[NewMessage]) -> int:
        for start in range(0, len(messages), BATCH_MAX):
            batch = messages[start : start + BATCH_MAX]
            put: list[Any]
            if self._partitioned is not None:
                put = await self._partitioned.put(batch, key=self._key)
            else:
                put = await self._target.put(self._queue, batch)
            assert len(put) == len(batch)
        return len(messages)


@contextlib.asynccontextmanager
async def _putter(store: QueueStore, args: argparse.Namespace) -> AsyncIterator[_Sender]:
    if args.bridge is None:
        yield _Sender(store, args)
        return
    from bridge.publisher import Publisher

    async with Publisher(bus_address(args)) as publisher:
        yield _Sender(PublishingQueue(store, publisher), args)


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
        received = await store.receive(queue, min(left, BATCH_MAX), args.visibility_s)
        if not received.messages:
            break
        for message in received.messages:
            _write(message, args)
        sys.stdout.flush()
        if not args.keep:
            await _delete(store, queue, received.messages)
        left -= len(received.messages)
    return limit - left


async def _peek(store: QueueStore, queue: str, limit: int, args: argparse.Namespace) -> int:
    messages = await store.peek(queue, limit)
    for message in messages:
        _write(message, args)
    return len(messages)


async def _delete(store: QueueStore, queue: str, messages: list[StoredMessage]) -> None:
    claims = [Claim(message.id, message.pop_receipt) for message in messages]
    settling = await store.settle(queue, Settlement(delete=claims))
    lost = sum(not settled.ok for settled in settling.delete)
    if lost:
        print(f"{queue}: {lost} leases ended before their messages were deleted; they come again", file=sys.stderr)


def _write(message: StoredMessage, args: argparse.Namespace) -> None:
    """Show a message with the body that was put at first; an export keeps the facts of its burial before it.

    The bytes are those of the body, but for a terminal, which a stranger's could drive.
    """
    burial, body = opened(message.body)
    if args.json:
        print_json(_line(msgspec.structs.replace(message, body=body), burial))
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
    )
    try:
        line.body = message.body.decode()
    except UnicodeDecodeError:
        line.body_base64 = base64.b64encode(message.body).decode()
    return line


def _message(raw: bytes, number: int) -> NewMessage | None:
    try:
        line = msgspec.json.decode(raw, type=Line)
        if (line.body is None) == (line.body_base64 is None):
            raise BadInput("bad_json", f"line {number}: a message has either body or body_base64")
        body = line.body.encode() if line.body is not None else base64.b64decode(line.body_base64 or "", validate=True)
    except (msgspec.DecodeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput("bad_json", f"line {number}: not a message: {error}") from None
    ttl = NEVER if line.ttl_s is None else line.ttl_s
    if line.expires_at is not None and line.ttl_s is None:
        ttl = int((line.expires_at - datetime.datetime.now(datetime.UTC)).total_seconds())
        if ttl < 1:
            return None
    return NewMessage(body, line.visible_after_ms, ttl)


async def _arriving_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Give the lines that have arrived, without waiting for more of them to fill a batch."""
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
    """Wait for input while the loop goes on.

    In a daemon thread and without Python's buffer: an executor's thread, or one that holds the buffer's lock, would
    keep an interrupted command from ending until more input comes.
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
        # The loop is closed where the command was interrupted meanwhile: nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, data, error)

    threading.Thread(target=read, name="queuebell-input", daemon=True).start()
    return await arrived


def _read(name: str) -> bytes:
    return pathlib.Path(name).read_bytes()


@contextlib.contextmanager
def _output(name: str | None) -> Iterator[IO[bytes]]:
    if name is None:
        yield sys.stdout.buffer
    else:
        with pathlib.Path(name).open("wb") as file:
            yield file


@contextlib.contextmanager
def _input(name: str | None) -> Iterator[int]:
    if name is None:
        yield sys.stdin.fileno()
    else:
        with pathlib.Path(name).open("rb") as file:
            yield file.fileno()
