"""Bodies above a queue's limit: compressed and stored as a blob, with only a claim in the queue.

The blob is durable before its message is put, and removed after its message was deleted. A crash in between leaves an
orphan, which a sweep removes, and never a message without its body.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import platform
import secrets
import zlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec

from queuebell.bridge.contract.burial import glimpse
from queuebell.bridge.contract.claim import (
    CLAIM_BYTES_MAX,
    IDENTITY,
    ZLIB,
    BadClaim,
    Claim,
    blob_name,
    is_claim,
    lives_for,
    place_of,
    read_claim,
    write_claim,
)
from queuebell.bridge.contract.errors import BadInput, QueuebellError, QueueNotFound, StoreUnavailable, UnknownOutcome
from queuebell.bridge.contract.names import POISON_SUFFIX, parse_reference
from queuebell.bridge.contract.partitioning import logical_reference
from queuebell.bridge.queues.base import NEVER, NewMessage, QueueStore
from queuebell.bridge.storage.blobs.base import Blob, BlobStore

BODY_MAX: Final = 64 * 1024 * 1024
ORPHAN_AGE_S: Final = 7 * 86_400.0
ORPHAN_AGE_MIN_S: Final = 3600.0
"""The least age of an orphan: a message can be put long after its blob."""
EXPIRED_AGE_S: Final = 28 * 86_400.0
"""How long after its message's time to live a blob is removed where the queue cannot be checked."""
_PEEK: Final = 32

log = logging.getLogger("queuebell.claims")


class Swept(msgspec.Struct, frozen=True):
    """The result of a sweep: ``removed`` were orphans, ``referenced`` have a message, ``unknown`` cannot be checked."""

    removed: int = 0
    referenced: int = 0
    unknown: int = 0


class ClaimCheck:
    """Stores large bodies as blobs and fetches them back.

    ``blobs`` is a blob store's URL or a `BlobStore`; `close` closes one opened by its URL. Bodies above ``limit`` bytes
    are stored as blobs; None is the queue store's own limit, which is never exceeded. ``body_max`` bytes (64 MiB) limit
    what is put and what is unpacked, whatever a claim contains. ``token`` returns 32 hex digits that never repeat.
    """

    def __init__(
        self,
        blobs: str | BlobStore,
        *,
        limit: int | None = None,
        body_max: int = BODY_MAX,
        token: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        if limit is not None and limit < 0:
            raise BadInput("bad_parameter", "limit must be a number of bytes, 0 or more, or None")
        self._owned = isinstance(blobs, str)
        if isinstance(blobs, str):
            from queuebell.bridge.storage.blobs import open_blobs

            blobs = open_blobs(blobs)
        self._blobs: BlobStore = blobs
        self._limit = limit
        self._body_max = body_max
        self._token = token

    async def put_aside(
        self, queue: str, message: NewMessage, body_bytes_max: int, store: QueueStore | None = None
    ) -> NewMessage:
        """Return the message to put: itself, or a claim once its body is durable as a blob.

        ``body_bytes_max`` is the queue store's limit. ``store`` is that store: its fingerprint is part of the blob's
        name, so that sweeps of other stores leave the blob alone. A small body that looks like a claim becomes a blob
        too, so that no body is mistaken for a claim. Raises `BadInput` (``message_too_large``) above ``body_max``, and
        `StoreUnavailable` or `StoreFull` where it cannot be stored: nothing was put then.
        """
        body = message.body
        limit = body_bytes_max if self._limit is None else min(self._limit, body_bytes_max)
        if len(body) <= limit and not is_claim(body):
            return message
        if len(body) > self._body_max:
            raise BadInput("message_too_large", f"a body in a blob store may have at most {self._body_max} bytes")
        data, sha256, encoding = await asyncio.to_thread(_pack, body)
        name = blob_name(queue, message.ttl_s, self._token(), _place(store, queue))
        await self._write(name, data)
        claim = write_claim(Claim(name, sha256, len(body), encoding))
        return NewMessage(claim, message.visible_after_ms, message.ttl_s, message.headers)

    async def fetch(self, body: bytes) -> bytes:
        """Return the body of a claim; any other body is returned unchanged.

        Raises `BlobNotFound` or `BadClaim` where another attempt will not help, `StoreUnavailable` where it may.
        """
        if not is_claim(body):
            return body
        claim = read_claim(body)
        if claim.size > self._body_max:
            raise BadClaim(f"a claim of {claim.size} bytes exceeds this worker's limit of {self._body_max}")
        data = await self._blobs.get(claim.blob)
        return await asyncio.to_thread(_unpack, data, claim)

    async def copy(self, body: bytes, queue: str, store: QueueStore | None = None) -> bytes:
        """Copy the blob for a message that moves to another ``queue``, and return the new claim.

        Each message owns its blob. Any other body is returned unchanged. ``store`` is as in `put_aside`. Raises what
        `fetch` raises.
        """
        if not is_claim(body):
            return body
        claim = read_claim(body)
        data = await self._blobs.get(claim.blob)
        name = blob_name(queue, NEVER, self._token(), _place(store, queue))
        await self._write(name, data)
        return write_claim(msgspec.structs.replace(claim, blob=name))

    async def drop(self, body: bytes) -> None:
        """Remove the blob of a message that was deleted or was never put; ignores any other body.

        The body of a dead letter contains its claim too.
        """
        claim = claim_in(body)
        if claim is not None:
            try:
                name = read_claim(claim).blob
            except BadClaim:
                return
            await self._blobs.delete(name)

    async def sweep(
        self, store: QueueStore, queue: str, *, older_than: float = ORPHAN_AGE_S, also: Sequence[str] = ()
    ) -> Swept:
        """Remove the orphans among the blobs of ``queue`` that are older than so many seconds (3600 at least).

        A blob is an orphan when every message of the queue was checked and none claims it. This needs a store with
        exact counts and `peek`, no message in flight or delayed, and at most 32 messages. Otherwise blobs stay until
        their message has expired: ``older_than`` seconds after its time to live where the store can never be checked,
        28 days after it where it could not be checked now, or where the blob's name has another store's fingerprint.

        ``also`` names other queues that messages of this one move to with their claims. The poison queue is always
        checked, that of all partitions too; for a poison queue the partitions that dead-letter there. Costs one listing
        of blobs; with old ones, up to nine calls of the queue store, and six more for each of ``also``. Raises what the
        stores raise.
        """
        parse_reference(queue)
        if not older_than >= ORPHAN_AGE_MIN_S:
            raise BadInput("bad_parameter", f"older_than must be {ORPHAN_AGE_MIN_S:g} seconds or more")
        old = await self._old(queue, older_than)
        here = (None, _place(store, queue))
        claimed: set[str] | None = set()
        if any(place_of(blob.name) in here for blob in old):
            base = queue.removesuffix(POISON_SUFFIX)
            # A move puts before it deletes: checks before and after see the message in one place.
            poison = [base + POISON_SUFFIX]
            if (logical := logical_reference(base)) is not None:
                poison.append(logical + POISON_SUFFIX)
            poison += [other for other in also if other not in (base, *poison)]
            partitions = await _partitions(store, base) if queue != base else []
            claimed = await _claimed(store, [*poison, base, *partitions, *poison])
        late = max(older_than, EXPIRED_AGE_S)
        removed = referenced = 0
        for blob in old:
            ours = place_of(blob.name) in here
            if ours and claimed is not None:
                orphan = blob.name not in claimed
                referenced += not orphan
            else:
                orphan = _expired(blob, older_than if ours and not _can_prove(store) else late)
            if orphan:
                await self._blobs.delete(blob.name)
                removed += 1
        if removed:
            log.info("%s: removed %d blobs whose messages no longer exist", queue, removed)
        return Swept(removed, referenced, len(old) - removed - referenced)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the blob store if it was opened by its URL; may be called twice."""
        if self._owned:
            await self._blobs.close()

    async def _write(self, name: str, data: bytes) -> None:
        try:
            await self._blobs.put(name, data)
        except UnknownOutcome as error:
            # The message was not put; the blob may exist, as an orphan.
            raise StoreUnavailable(f"cannot store the body: {error}") from error

    async def _old(self, queue: str, older_than: float) -> list[Blob]:
        """Return the claim checks' blobs that are old enough."""
        old: list[Blob] = []
        after = ""
        while page := await self._blobs.blobs(f"{queue}/", after):
            after = page[-1].name
            old += [blob for blob in page if blob.age_s > older_than and _is_ours(blob.name)]
        return old


def _is_ours(name: str) -> bool:
    try:
        lives_for(name)
    except BadClaim:
        return False
    return True


def _expired(blob: Blob, after: float) -> bool:
    """Return whether its message expired more than ``after`` seconds ago, by the blob store's clock."""
    ttl = lives_for(blob.name)
    return ttl is not None and blob.age_s > ttl + after


def _place(store: QueueStore | None, queue: str) -> str:
    """Return the store's fingerprint for blob names.

    A loopback address is another store on each machine: two that share their blobs would remove each other's.
    """
    if store is None:
        return ""
    host = urlsplit(str(store)).hostname or ""
    where = platform.node() if host in {"localhost", "::1"} or host.startswith("127.") else ""
    return hashlib.sha256((store.fingerprint(queue) + where).encode()).hexdigest()[:16]


def _can_prove(store: QueueStore) -> bool:
    """Return whether this store can ever prove that no message claims a blob."""
    return store.capabilities.exact_depth and store.capabilities.peek


async def _partitions(store: QueueStore, logical: str) -> list[str]:
    """Return the existing queues that are partitions of ``logical`` by their names."""
    found: list[str] = []
    after = ""
    while page := await store.queues(f"{logical}-p", after, 1000):
        found += [queue for queue in page if logical_reference(queue) == logical]
        after = page[-1]
    return found


async def _claimed(store: QueueStore, queues: Sequence[str]) -> set[str] | None:
    """Return the blobs that messages of these queues claim, None if that is unknown."""
    if not _can_prove(store):
        return None
    claimed: set[str] = set()
    for queue in queues:
        try:
            before = await store.peek(queue, _PEEK)
            depth = await store.counts(queue)
            after = await store.peek(queue, _PEEK)
        except QueueNotFound:
            continue
        # Messages seen before and after the count were there at the count; if the numbers match, there were no others.
        seen = {message.id for message in before}
        if depth is not None and (
            depth.invisible or depth.visible != len(seen) or seen != {message.id for message in after}
        ):
            return None
        for message in before:
            claim = claim_in(message.body)
            if claim is not None:
                try:
                    claimed.add(read_claim(claim).blob)
                except BadClaim:
                    continue
    return claimed


def claim_in(body: bytes) -> bytes | None:
    """Return the claim of a message or dead letter; None for any other body."""
    _, inner, _ = glimpse(body, CLAIM_BYTES_MAX + 1)
    return inner if is_claim(inner) else None


def _pack(body: bytes) -> tuple[bytes, str, str]:
    """Return the data to store, the body's hash, and the encoding: compressed where that is shorter."""
    sha256 = hashlib.sha256(body).hexdigest()
    packed = zlib.compress(body)
    return (packed, sha256, ZLIB) if len(packed) < len(body) else (body, sha256, IDENTITY)


def _unpack(data: bytes, claim: Claim) -> bytes:
    body = data
    if claim.encoding == ZLIB:
        unpacking = zlib.decompressobj()
        try:
            body = unpacking.decompress(data, claim.size + 1)  # a zip bomb stops one byte above its size
        except zlib.error as error:
            raise BadClaim(f"blob {claim.blob} is damaged: {error}") from error
    if len(body) != claim.size or hashlib.sha256(body).hexdigest() != claim.sha256:
        raise BadClaim(f"blob {claim.blob} is damaged: its content has changed")
    return body


async def put_aside_all(
    check: ClaimCheck, store: QueueStore, queue: str, messages: Sequence[NewMessage]
) -> list[NewMessage]:
    """Store the large bodies of one put as blobs; if one fails, remove the others."""
    ready: list[NewMessage] = []
    try:
        for message in messages:
            ready.append(await check.put_aside(queue, message, store.capabilities.body_bytes_max, store))  # noqa: PERF401
    except Exception:
        await drop_all(check, ready, messages)
        raise
    return ready


async def drop_all(check: ClaimCheck, ready: Sequence[NewMessage], given: Sequence[NewMessage]) -> None:
    """Remove the blobs of messages that were not put; a sweep removes those that fail."""
    for message, original in zip(ready, given, strict=False):
        if message is not original:
            try:
                await check.drop(message.body)
            except QueuebellError as error:
                log.info("the blob of a message that was not put stays until the next sweep: %s", error)
