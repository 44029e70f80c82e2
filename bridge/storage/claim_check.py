"""Bodies over a queue's limit: compressed and put aside in a blob store, and only a claim travels on the queue.

The blob is durable before its message is put, and removed after its message was deleted. So a crash in between leaves
an orphan, which a sweep removes, and never a message without its body.
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

from bridge.contract.burial import glimpse
from bridge.contract.claim import (
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
from bridge.contract.errors import BadInput, QueuebellError, QueueNotFound, StoreUnavailable, UnknownOutcome
from bridge.contract.names import POISON_SUFFIX, parse_reference
from bridge.contract.partitioning import logical_reference
from bridge.queues.base import NEVER, NewMessage, QueueStore
from bridge.storage.blobs.base import Blob, BlobStore

BODY_MAX: Final = 64 * 1024 * 1024
ORPHAN_AGE_S: Final = 7 * 86_400.0
ORPHAN_AGE_MIN_S: Final = 3600.0
"""A message may be put long after its blob; below this no sweep takes a blob for an orphan."""
EXPIRED_AGE_S: Final = 28 * 86_400.0
"""So long after its message should have expired a blob goes where nobody can look whether it has."""
_PEEK: Final = 32

log = logging.getLogger("queuebell.claims")


class Swept(msgspec.Struct, frozen=True):
    """What a sweep did with the old blobs of a queue.

    ``removed`` were orphans, ``referenced`` have a message, and of ``unknown`` nobody could tell: they stay.
    """

    removed: int = 0
    referenced: int = 0
    unknown: int = 0


class ClaimCheck:
    """Puts bodies aside and fetches them back.

    ``blobs`` is a blob store's URL or a `BlobStore`; one opened here is closed here. ``limit`` is from how many bytes
    on a body is put aside, None for the queue store's own limit, which is never exceeded. ``body_max`` bytes (64 MiB)
    bound what is put and what is unpacked, whatever a claim says. ``token`` gives 32 hex digits, never the same twice.
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
            from bridge.storage.blobs import open_blobs

            blobs = open_blobs(blobs)
        self._blobs: BlobStore = blobs
        self._limit = limit
        self._body_max = body_max
        self._token = token

    async def put_aside(
        self, queue: str, message: NewMessage, body_bytes_max: int, store: QueueStore | None = None
    ) -> NewMessage:
        """Return the message to put: itself, or a claim in its place once its body is durable as a blob.

        ``body_bytes_max`` is what the queue store takes. ``store`` is that store: its fingerprint goes into the blob's
        name, so that no sweep of another store takes the blob for an orphan. A small body that looks like a claim is
        put aside too, so that no body can be taken for one. Raises `BadInput` (``message_too_large``) above
        ``body_max``, and `StoreUnavailable` or `StoreFull` where it cannot be kept: nothing was put on the queue then.
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
        """Return the body that a claim stands for; any other body is returned as it is.

        Raises `BlobNotFound` or `BadClaim` where no further attempt will help, `StoreUnavailable` where one may.
        """
        if not is_claim(body):
            return body
        claim = read_claim(body)
        if claim.size > self._body_max:
            raise BadClaim(f"a claim of {claim.size} bytes exceeds this worker's limit of {self._body_max}")
        data = await self._blobs.get(claim.blob)
        return await asyncio.to_thread(_unpack, data, claim)

    async def copy(self, body: bytes, queue: str, store: QueueStore | None = None) -> bytes:
        """Return a claim of its own for a message that is put on another ``queue`` in place of this one.

        Each message owns its blob. Any other body is returned as it is. ``store`` is as in `put_aside`. Raises what
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
        """Remove the blob of a message that was deleted, or was never put; any other body is left alone.

        A buried message has its claim behind the facts of its burial, and it counts as one.
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

        An orphan is proved: the queue's messages were all looked at and none has a claim on it. That can only be done
        where the store counts exactly and looks at messages without taking them, when nothing is leased or delayed, and
        with no more than 32 there. Where it cannot be told, blobs stay, but those whose message has expired: by its
        time to live and ``older_than`` besides where the store can never tell, and by 28 days besides where it could
        not now. A blob whose name tells another store's fingerprint is that store's to prove: here it only goes by the
        latter. ``also`` names other queues that messages of this one are moved to as they stand; its poison queue is
        looked at anyway, that of all partitions too, and of a poison queue the partitions that bury there. Costs one
        listing of blobs, and where there are old ones up to nine calls of the queue store, six more for each of
        ``also``. Raises what the stores raise.
        """
        parse_reference(queue)
        if not older_than >= ORPHAN_AGE_MIN_S:
            raise BadInput("bad_parameter", f"older_than must be {ORPHAN_AGE_MIN_S:g} seconds or more")
        old = await self._old(queue, older_than)
        here = (None, _place(store, queue))
        claimed: set[str] | None = set()
        if any(place_of(blob.name) in here for blob in old):
            base = queue.removesuffix(POISON_SUFFIX)
            # A message that is moved is put before it is deleted: looked at before and after, it is seen in one place.
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
                orphan = _expired(blob, older_than if ours and not _tells(store) else late)
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
        """Close the blob store if it was opened here; may be called twice."""
        if self._owned:
            await self._blobs.close()

    async def _write(self, name: str, data: bytes) -> None:
        try:
            await self._blobs.put(name, data)
        except UnknownOutcome as error:
            # Of the message it is known: it was not put. The blob may be there, as an orphan.
            raise StoreUnavailable(f"cannot store the body: {error}") from error

    async def _old(self, queue: str, older_than: float) -> list[Blob]:
        """Return the blobs of our making that are old enough."""
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


def _expired(blob: Blob, besides: float) -> bool:
    """Say whether its message has expired so many seconds ago, by the blob store's clock."""
    ttl = lives_for(blob.name)
    return ttl is not None and blob.age_s > ttl + besides


def _place(store: QueueStore | None, queue: str) -> str:
    """Return the place that a blob's name tells: the same for all who name the store alike.

    What is named by a loopback address is another store on each machine: two that share their blobs would sweep away
    each other's.
    """
    if store is None:
        return ""
    host = urlsplit(str(store)).hostname or ""
    where = platform.node() if host in {"localhost", "::1"} or host.startswith("127.") else ""
    return hashlib.sha256((store.fingerprint(queue) + where).encode()).hexdigest()[:16]


def _tells(store: QueueStore) -> bool:
    """Say whether this store can ever prove that nobody has a claim on a blob."""
    return store.capabilities.exact_depth and store.capabilities.peek


async def _partitions(store: QueueStore, logical: str) -> list[str]:
    """Return the queues that are partitions of ``logical`` by their names, as far as they exist."""
    found: list[str] = []
    after = ""
    while page := await store.queues(f"{logical}-p", after, 1000):
        found += [queue for queue in page if logical_reference(queue) == logical]
        after = page[-1]
    return found


async def _claimed(store: QueueStore, queues: Sequence[str]) -> set[str] | None:
    """Return the blobs that messages of these queues have a claim on, None where that cannot be known."""
    if not _tells(store):
        return None
    claimed: set[str] = set()
    for queue in queues:
        try:
            before = await store.peek(queue, _PEEK)
            depth = await store.counts(queue)
            after = await store.peek(queue, _PEEK)
        except QueueNotFound:
            continue
        # What was there before and after the count was there at the count: if they are as many, there were no others.
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
    """Return the claim that a message's body is, or that stands behind the facts of its burial; None for any other."""
    _, inner, _ = glimpse(body, CLAIM_BYTES_MAX + 1)
    return inner if is_claim(inner) else None


def _pack(body: bytes) -> tuple[bytes, str, str]:
    """Return what is stored, the body's hash, and the encoding: compressed where that makes it shorter."""
    sha256 = hashlib.sha256(body).hexdigest()
    packed = zlib.compress(body)
    return (packed, sha256, ZLIB) if len(packed) < len(body) else (body, sha256, IDENTITY)


def _unpack(data: bytes, claim: Claim) -> bytes:
    body = data
    if claim.encoding == ZLIB:
        unpacking = zlib.decompressobj()
        try:
            body = unpacking.decompress(data, claim.size + 1)  # a bomb stops at its first byte too many
        except zlib.error as error:
            raise BadClaim(f"blob {claim.blob} is damaged: {error}") from error
    if len(body) != claim.size or hashlib.sha256(body).hexdigest() != claim.sha256:
        raise BadClaim(f"blob {claim.blob} is damaged: its content has changed")
    return body


async def put_aside_all(
    check: ClaimCheck, store: QueueStore, queue: str, messages: Sequence[NewMessage]
) -> list[NewMessage]:
    """Put aside what is too large of the messages of one put; where one fails, what was put aside for it is removed."""
    ready: list[NewMessage] = []
    try:
        for message in messages:
            ready.append(await check.put_aside(queue, message, store.capabilities.body_bytes_max, store))  # noqa: PERF401
    except Exception:
        await drop_all(check, ready, messages)
        raise
    return ready


async def drop_all(check: ClaimCheck, ready: Sequence[NewMessage], given: Sequence[NewMessage]) -> None:
    """Remove the blobs of messages that were not put; one that cannot be removed is left to the sweep."""
    for message, original in zip(ready, given, strict=False):
        if message is not original:
            try:
                await check.drop(message.body)
            except QueuebellError as error:
                log.info("the blob of a message that was not put stays until the next sweep: %s", error)
