"""Buried messages go back to where they failed, put there before they are deleted here; or they are discarded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from bridge.contract.burial import Burial, facts, glimpse, opened, replay_target, write_burial
from bridge.contract.claim import CLAIM_BYTES_MAX, is_claim
from bridge.contract.errors import BadInput, BlobNotFound, UnknownOutcome
from bridge.contract.names import POISON_SUFFIX, parse_reference
from bridge.producer.held_leases import HeldLeases
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import BATCH_MAX, Claim, NewMessage, QueueStore, Settlement, StoredMessage, check_settled
from bridge.storage.claim_check import ClaimCheck, claim_in

LEASE_S: Final = 300.0


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages, and what becomes of them.

    ``ids`` empty is all of them; ``reason`` is a text that stands in the reason of their burial; ``most`` counts those
    that are chosen. ``plain`` puts the body alone, without the facts of the burial.
    """

    ids: frozenset[str] = frozenset()
    reason: str = ""
    most: int | None = None
    to: str | None = None
    delay_ms: int = 0
    plain: bool = False
    discard: bool = False


class Done(msgspec.Struct):
    """How far a run is: messages that went, that stay though they were chosen, and that may be handled twice."""

    moved: int = 0
    stay: int = 0
    twice: int = 0
    not_found: list[str] = []


class Teller(Protocol):
    """Hears of each message that was chosen."""

    def moved(self, message: StoredMessage, target: str, new_id: str, burial: Burial | None) -> None:
        """It went to ``target``; one that is discarded to ""."""
        ...

    def stays(self, message: StoredMessage, why: str) -> None:
        """It stays."""
        ...


class Replaying:
    """One run. It ends by itself: it looks at no more messages than were there when it began.

    What is not chosen stays leased until the end, so that it is met once, and is given back then. A crash between put
    and delete leaves a message in both places, never in none. ``may`` says where messages may be put.
    """

    def __init__(
        self,
        store: QueueStore,
        target: QueueStore | PublishingQueue,
        queue: str,
        choice: Choice,
        present: int,
        *,
        clock: Callable[[], float],
        teller: Teller | None = None,
        check: ClaimCheck | None = None,
        may: Callable[[str], bool] = lambda queue: True,
    ) -> None:
        self.done = Done()
        self._store = store
        self._held = HeldLeases(store, queue, LEASE_S, clock)
        self._target = target
        self._queue = queue
        self._choice = choice
        self._check = check
        self._may = may
        self._teller = teller
        self._left = present
        self._ids = set(choice.ids)
        self._put_ids: set[tuple[str, str]] = set()

    async def run(self) -> Done:
        """Go on until all that was there has been looked at, and give back what stays.

        Cancelled it finishes the batch under way, and gives the rest back. Raises what the store raises.
        """
        more = True
        try:
            while more and self._left > 0:
                # A batch under way is finished when it is interrupted: put and deleted, or given back.
                batch = asyncio.create_task(self._batch(), name=f"replay[{self._queue}]")
                try:
                    more = await asyncio.shield(batch)
                except asyncio.CancelledError:
                    await asyncio.wait([batch])
                    if not batch.cancelled():
                        batch.exception()
                    raise
        finally:
            await self._held.give_back()
            self.done.not_found = sorted(self._ids)
        return self.done

    async def _batch(self) -> bool:
        """Take some messages and move them; False once there are no more to take."""
        choice, store = self._choice, self._store
        most = [BATCH_MAX, store.capabilities.batch_max, self._left]
        if choice.most is not None:
            most.append(choice.most - self.done.moved)
        if min(most) < 1 or (choice.ids and not self._ids):
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
        choice = self._choice
        if choice.ids and message.id not in self._ids:
            return None
        try:
            burial, body = await self._original(message.body)
            if choice.reason and (burial is None or choice.reason not in burial.reason):
                return None
            if choice.discard:
                return "", burial, b""
            if burial is not None and (burial.queue, burial.id) in self._put_ids:
                return None  # it failed again already
            target = target_of(self._queue, burial, choice.to)
            if not self._may(target):
                raise BadInput("forbidden", f"'put' is not granted on {target}")
            body = await self._travelling(message.body, body, target)
        except (BadInput, BlobNotFound) as error:
            self.done.stay += 1
            self._ids.discard(message.id)
            if self._teller is not None:
                self._teller.stays(message, str(error))
            return None
        return target, burial, body

    async def _original(self, body: bytes) -> tuple[Burial | None, bytes]:
        """Return the facts, and the claim behind them or the beginning of a body; for a plain put the whole body."""
        burial, inner, _ = glimpse(body, CLAIM_BYTES_MAX + 1)
        if is_claim(inner) and self._check is not None and not self._choice.discard:
            within, whole = opened(await self._check.fetch(inner))
            if within is not None:
                return burial or within, whole if self._choice.plain else inner
        return burial, opened(body)[1] if self._choice.plain else inner

    async def _travelling(self, stored: bytes, inner: bytes, target: str) -> bytes:
        """Return what is put: the message as it stands, or its body alone; a claim is copied, or goes straight back."""
        plain, check = self._choice.plain, self._check
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
        """Put a group of messages, then delete them: a crash between leaves both, never none."""
        if not group:
            return
        new_ids = [""] * len(group)
        if target:
            try:
                delay_ms = self._choice.delay_ms
                batch = [NewMessage(body, delay_ms, headers=message.headers) for message, _, body in group]
                receipts = await self._held.in_time(self._target.put(target, batch))
            except UnknownOutcome as error:
                error.add_note(f"{len(group)} messages stay, and may also have been put on {target}")
                raise
            new_ids = [receipt.id for receipt in receipts]
        claims = [Claim(message.id, self._held.pop(message.id)) for message, _, _ in group]
        self._put_ids.update((target, new_id) for new_id in new_ids)
        for (message, burial, _), new_id in zip(group, new_ids, strict=True):
            self.done.moved += 1
            self._ids.discard(message.id)
            if self._teller is not None:
                self._teller.moved(message, target, new_id, burial)
        try:
            settled = (await self._held.in_time(self._store.settle(self._queue, Settlement(delete=claims)))).delete
        except BaseException:
            self.done.twice += len(claims)
            raise
        for (message, _, body), one in zip(group, settled, strict=True):
            if not one.ok:
                self.done.twice += 1
            elif self._check is not None and claim_in(body) != claim_in(message.body):
                await self._check.drop(message.body)
        check_settled(self._queue, settled)


def target_of(queue: str, burial: Burial | None, to: str | None) -> str:
    """Return where a buried message goes; only ``to`` leads out of the account. Raises `BadInput` for nowhere."""
    if to is not None and "/" in to and to != queue:
        return parse_reference(to)
    return replay_target(queue, burial, to)
