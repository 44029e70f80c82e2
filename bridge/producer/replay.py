"""`ReplayRun`: returns dead letters to the queue where they failed, or discards them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from queuebell.bridge.contract.burial import Burial, facts, glimpse, opened, replay_target, write_burial
from queuebell.bridge.contract.claim import CLAIM_BYTES_MAX, is_claim
from queuebell.bridge.contract.errors import BadInput, BlobNotFound, UnknownOutcome
from queuebell.bridge.contract.names import POISON_SUFFIX, parse_reference
from queuebell.bridge.producer.held_leases import HeldLeases
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import (
    BATCH_MAX,
    Claim,
    NewMessage,
    QueueStore,
    Settlement,
    StoredMessage,
    check_settled,
)
from queuebell.bridge.storage.claim_check import ClaimCheck, claim_in

LEASE_S: Final = 300.0


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The messages to select and what to do with them.

    Without ``ids`` all are selected; ``reason`` is a part of the reason of the dead letter; ``most`` limits the
    selected ones. ``to`` is another queue. ``plain`` puts the body alone, without the facts of the dead letter.
    """

    ids: frozenset[str] = frozenset()
    reason: str = ""
    most: int | None = None
    to: str | None = None
    delay_ms: int = 0
    plain: bool = False
    discard: bool = False


class ReplayResult(msgspec.Struct):
    """Progress: messages moved, selected ones that stay, and ones that may be handled twice."""

    moved: int = 0
    stay: int = 0
    why: str = ""
    """Why the newest of those stays."""
    twice: int = 0
    not_found: list[str] = []


class ReplayObserver(Protocol):
    """Is called for each selected message."""

    def moved(self, message: StoredMessage, target: str, new_id: str, burial: Burial | None) -> None:
        """It was put on ``target``, or discarded ("")."""

    def stays(self, message: StoredMessage, why: str) -> None:
        """It stays in the queue, for the reason ``why``."""


class ReplayRun:
    """One replay. It ends by itself: it receives at most ``present`` messages, those that were there when it began.

    Messages that are not selected stay leased until the end, so that each is received once; then they are released.
    Messages are put before they are deleted: a crash in between leaves a message in both places, never in none.
    ``may_put`` returns whether messages may be put on a queue.
    """

    def __init__(
        self,
        store: QueueStore,
        target: QueueStore | PublishingQueue,
        queue: str,
        options: ReplayOptions,
        present: int,
        *,
        clock: Callable[[], float],
        observer: ReplayObserver | None = None,
        check: ClaimCheck | None = None,
        may_put: Callable[[str], bool] = lambda queue: True,
    ) -> None:
        self.result = ReplayResult()
        self._store = store
        self._held = HeldLeases(store, queue, LEASE_S, clock)
        self._target = target
        self._queue = queue
        self._options = options
        self._check = check
        self._may_put = may_put
        self._observer = observer
        self._left = present
        self._ids = set(options.ids)
        self._put_ids: set[tuple[str, str]] = set()

    async def run(self) -> ReplayResult:
        """Replay all, release what stays, and return the result.

        After a cancellation it finishes the current batch and releases the rest. Raises what the store raises.
        """
        more = True
        try:
            while more and self._left > 0:
                # A batch is finished even when interrupted: put and deleted, or released.
                batch = asyncio.create_task(self._batch(), name=f"replay[{self._queue}]")
                try:
                    more = await asyncio.shield(batch)
                except asyncio.CancelledError:
                    await asyncio.wait([batch])
                    if not batch.cancelled():
                        batch.exception()
                    raise
        finally:
            await self._held.release_all()
            self.result.not_found = sorted(self._ids)
        return self.result

    async def _batch(self) -> bool:
        """Receive some messages and move them; False once there are no more."""
        options, store = self._options, self._store
        most = [BATCH_MAX, store.capabilities.batch_max, self._left]
        if options.most is not None:
            most.append(options.most - self.result.moved)
        if min(most) < 1 or (options.ids and not self._ids):
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
            # A message whose lease was lost meanwhile belongs to another receiver.
            await self._move(target, [each for each in group if each[0].id in self._held])
        return bool(messages)

    async def _ready(self, message: StoredMessage) -> tuple[str, Burial | None, bytes] | None:
        """Return where a message goes, its facts and what to put there; None if it stays."""
        options = self._options
        if options.ids and message.id not in self._ids:
            return None
        try:
            burial, body = await self._original(message.body)
            if options.reason and (burial is None or options.reason not in burial.reason):
                return None
            if options.discard:
                return "", burial, b""
            if burial is not None and (burial.queue, burial.id) in self._put_ids:
                return None  # this replay put it, and it failed again
            target = target_of(self._queue, burial, options.to)
            if not self._may_put(target):
                raise BadInput("forbidden", f"'put' is not granted on {target}")
            body = await self._to_put(message.body, body, target)
        except (BadInput, BlobNotFound) as error:
            self.result.stay += 1
            self.result.why = str(error)
            self._ids.discard(message.id)
            if self._observer is not None:
                self._observer.stays(message, str(error))
            return None
        return target, burial, body

    async def _original(self, body: bytes) -> tuple[Burial | None, bytes]:
        """Return the facts and the claim or beginning of the body; the whole body for a plain put."""
        burial, inner, _ = glimpse(body, CLAIM_BYTES_MAX + 1)
        if is_claim(inner) and self._check is not None and not self._options.discard:
            within, whole = opened(await self._check.fetch(inner))
            if within is not None:
                return burial or within, whole if self._options.plain else inner
        return burial, opened(body)[1] if self._options.plain else inner

    async def _to_put(self, stored: bytes, inner: bytes, target: str) -> bytes:
        """Return what to put: the message as it is or its body alone; a claim's blob is copied."""
        plain, check = self._options.plain, self._check
        limit = self._store.capabilities.body_bytes_max
        claim = claim_in(stored)
        if claim is None or not is_claim(inner):
            if len(inner) > limit:
                raise BadInput(
                    "message_too_large", f"its body is in the blob store and exceeds the {limit} bytes of a queue"
                )
            return inner if plain else stored
        if check is None:
            if plain or self._queue != target + POISON_SUFFIX:
                raise BadInput("bad_parameter", "its body is in the blob store: name that store with --claim-check")
            return stored
        burial = facts(stored)
        copied = await check.copy(claim, target, self._store)
        if burial is None or plain:
            return copied
        return write_burial(burial, copied, limit) or copied

    async def _move(self, target: str, group: Sequence[tuple[StoredMessage, Burial | None, bytes]]) -> None:
        """Put a group of messages, then delete them."""
        if not group:
            return
        new_ids = [""] * len(group)
        if target:
            try:
                delay_ms = self._options.delay_ms
                batch = [NewMessage(body, delay_ms, headers=message.headers) for message, _, body in group]
                receipts = await self._held.in_time(self._target.put(target, batch))
            except UnknownOutcome as error:
                error.add_note(f"{len(group)} messages stay, and may also have been put on {target}")
                raise
            new_ids = [receipt.id for receipt in receipts]
        claims = [Claim(message.id, self._held.pop(message.id)) for message, _, _ in group]
        self._put_ids.update((target, new_id) for new_id in new_ids)
        for (message, burial, _), new_id in zip(group, new_ids, strict=True):
            self.result.moved += 1
            self._ids.discard(message.id)
            if self._observer is not None:
                self._observer.moved(message, target, new_id, burial)
        try:
            settled = (await self._held.in_time(self._store.settle(self._queue, Settlement(delete=claims)))).delete
        except BaseException:
            self.result.twice += len(claims)
            raise
        for (message, _, body), one in zip(group, settled, strict=True):
            if not one.ok:
                self.result.twice += 1
            elif self._check is not None and claim_in(body) != claim_in(message.body):
                await self._check.drop(message.body)
        check_settled(self._queue, settled)


def target_of(queue: str, burial: Burial | None, to: str | None) -> str:
    """Return the queue a dead letter goes to; only ``to`` can name another account. Raises `BadInput` without one."""
    if to is not None and "/" in to and to != queue:
        return parse_reference(to)
    return replay_target(queue, burial, to)
