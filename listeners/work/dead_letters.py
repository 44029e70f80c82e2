"""Dead-letter and replay messages: put each on another queue, with its facts, before it is deleted here."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from queuebell.bridge.contract.backoff import Draw, FullJitter
from queuebell.bridge.contract.bounds import STORE_CALL_S
from queuebell.bridge.contract.burial import (
    BODY_LOST,
    HISTORY_MAX,
    Attempt,
    Burial,
    after,
    opened,
    replay_target,
    shortened,
    write_burial,
)
from queuebell.bridge.contract.claim import is_claim, lost_claim
from queuebell.bridge.contract.errors import BadInput, QueuebellError, StoreFull, StoreUnavailable
from queuebell.bridge.queues.base import NewMessage, QueueStore, StoredMessage
from queuebell.listeners.work.claims import BodyLost, Claims
from queuebell.listeners.work.failures import RepeatedFailure
from queuebell.listeners.work.lease import Held
from queuebell.listeners.work.retry import STAYS_S, DeadLetter, Delete, ReplayTo, RetryLater
from queuebell.listeners.work.retry_until import NoLongerWanted

log = logging.getLogger("queuebell.listener")

NO_CLAIM_CHECK: Final = (
    "its body was put aside, and this worker has no claim_check to fetch it with (an option of the listener or of the "
    "broker, or --claim-check URL)"
)

Wanted = Callable[[], bool]
Now = Callable[[], datetime.datetime]


class NoClaimCheck(Exception):
    """A body was put aside, and this worker has no claim check: the attempt fails; another worker may have one."""


class DeadLettering:
    """Moves messages of one queue to its poison queue, and messages of a poison queue back.

    ``poison`` None never dead-letters. ``announce`` is called with each queue that was put to, and in how many
    milliseconds the message is visible there. ``now`` is the wall clock for ``buried_at``.
    """

    def __init__(
        self,
        queue: str,
        store: QueueStore,
        *,
        poison: str | None,
        claims: Claims | None,
        listener: str,
        announce: Callable[[str, int], None],
        counts: Counter[str],
        now: Now,
        draw: Draw,
    ) -> None:
        self.last: str | None = None
        """The last dead letter, for people."""
        self.store_call_s = STORE_CALL_S
        self._queue = queue
        self._store = store
        self._poison = poison
        self._claims = claims
        self._listener = listener
        self._announce = announce
        self._counts = counts
        self._now = now
        self._draw = draw
        self.history = History()
        self._unfetched = RepeatedFailure()

    def failed(self, held: Held, reason: str) -> None:
        """Remember a failed attempt for the dead letter that may follow."""
        if self._poison is not None:
            self.history.failed(held.stored.id, held.stored.dequeue_count, self._now(), reason)

    async def open(self, held: Held, wanted: Wanted) -> StoredMessage:
        """Return the message with its original body; its dead-letter facts stay in ``held``.

        Raises `claims.BodyLost` and `NoLongerWanted` as `Claims.fetch` does, and `NoClaimCheck` for a claim,
        or a body that begins like one, where there is no claim check: a handler would take the claim for the body. A
        message that was dead-lettered for its lost body has the claim as its body until that body is back.
        """
        stored = held.stored
        held.burial, body = opened(stored.body)
        if is_claim(body):
            if self._claims is None:
                self._warn_of_claim(stored.id)
                raise NoClaimCheck(NO_CLAIM_CHECK)
            try:
                inner, body = opened(await self._claims.fetch(body, wanted))
            except BodyLost:
                if self._poison is not None or held.burial is None or held.burial.failure != BODY_LOST:
                    raise
                inner, body = None, lost_claim(body)
            if inner is not None:
                held.burial = inner if held.burial is None else after(held.burial, inner)
        return stored if body is stored.body else msgspec.structs.replace(stored, body=body)

    async def bury(self, held: Held, decided: DeadLetter, wanted: Wanted) -> bool:
        """Put the message on the poison queue with its facts; a crash before its delete leaves two, never none.

        Retries while the store is away or full. False once the message is no longer ``wanted``. If it is cancelled,
        ``held.moved`` shows whether the message is there.
        """
        poison = self._poison
        assert poison is not None, "a verdict dead-letters only where there is a poison queue"

        def landed(id_: str) -> None:
            self.last = f"{held.stored.id}: {decided.reason}"
            why = "message %s of %s moves to %s as %s: %s"
            log.warning(why, held.stored.id, self._queue, poison, id_, decided.reason)
            self._announce(poison, 0)

        before, body = opened(held.stored.body)
        burial = after(self._facts(held, decided), before)
        try:
            if self._claims is not None:
                claim, body = body, await self._claims.copy(body, poison, self._store, wanted)
                held.blob_moved = body is claim and is_claim(body)
            travels = await self._travelling(burial, body, poison, wanted)
            try:
                message = NewMessage(travels, headers=held.stored.headers)
                await self._put(held, poison, message, f"dead-letter message {held.stored.id}", wanted, landed)
            except BadInput as error:
                if travels is body:
                    raise
                self._bare(burial, str(error))
                message = NewMessage(body, headers=held.stored.headers)
                await self._put(held, poison, message, f"dead-letter message {held.stored.id}", wanted, landed)
        except NoLongerWanted:
            return False
        return True

    async def replay(self, held: Held, decided: ReplayTo, wanted: Wanted) -> Delete | RetryLater | None:
        """Put the message where it came from or should go, and return what to do with the one here.

        Retried later if it cannot go there; None once it is no longer ``wanted``.
        """
        delay_ms = round(decided.after_s * 1000)
        try:
            target = replay_target(self._queue, held.burial, decided.queue)
            capable = self._store.capabilities
            if delay_ms > (capable.delay_ms_max if capable.delayed_put else 0):
                raise BadInput("bad_parameter", "this store cannot delay a message by so much")
            body = await self._copied(held.stored.body, target, wanted)

            def landed(id_: str) -> None:
                log.info("message %s of %s is replayed to %s as %s", held.stored.id, self._queue, target, id_)
                self._announce(target, delay_ms)

            what = f"replay message {held.stored.id} to {target}"
            message = NewMessage(body, delay_ms, headers=held.stored.headers)
            await self._put(held, target, message, what, wanted, landed)
        except NoLongerWanted:
            return None
        except QueuebellError as error:
            why = "message %s of %s cannot be replayed and stays: %s"
            log.error(why, held.stored.id, self._queue, error)
            return RetryLater(STAYS_S)
        return Delete()

    def _warn_of_claim(self, id_: str) -> None:
        count = self._unfetched.failed(asyncio.get_running_loop().time())
        if count:
            log.warning(
                "message %s of %s cannot be handled here (%d attempts since the last report): %s. The message and "
                "its body are kept. Start this worker with the claim_check of its producers, then replay the dead "
                "letters",
                id_,
                self._queue,
                count,
                NO_CLAIM_CHECK,
            )

    def _facts(self, held: Held, decided: DeadLetter) -> Burial:
        stored = held.stored
        return Burial(
            queue=self._queue,
            id=stored.id,
            inserted_at=stored.inserted_at,
            buried_at=self._now(),
            reason=decided.reason,
            attempts=stored.dequeue_count,
            failure=decided.failure,
            error=decided.error,
            trace=decided.trace,
            traceparent=held.traceparent,
            listener=self._listener,
            history=self.history.of(stored.id),
            key=stored.key,
        )

    async def _travelling(self, burial: Burial, body: bytes, poison: str, wanted: Wanted) -> bytes:
        """Return the body to put: facts and all if they fit or can be put aside, else with fewer facts, or bare."""
        limit = self._store.capabilities.body_bytes_max
        travels = write_burial(burial, body, limit, shorten=False)
        if travels is None and self._claims is not None and not is_claim(body):
            travels = await self._claims.put_aside(poison, burial, body, self._store, wanted)
        travels = travels or write_burial(burial, body, limit)
        if travels is None:
            self._bare(burial, f"body and failure exceed {limit} bytes")
            return body
        return travels

    def _bare(self, burial: Burial, why: str) -> None:
        """Log the facts that do not fit beside the message."""
        self._counts["burials_bare"] += 1
        facts = msgspec.json.encode(burial).decode("utf-8", "replace")
        log.error(
            "message %s of %s is dead-lettered with its body only; its failure is recorded in this line alone (%s): %s",
            burial.id,
            self._queue,
            why,
            facts,
        )

    async def _copied(self, body: bytes, target: str, wanted: Wanted) -> bytes:
        """Return the body to replay, which owns its blob if it was put aside. Raises `BadInput` if it cannot."""
        burial, inner = opened(body)
        if not is_claim(inner):
            return body
        assert self._claims is not None, "without a claim check no handler sees a claim, and none wants it replayed"
        claim = await self._claims.copy(inner, target, self._store, wanted)
        if claim is inner:
            raise BadInput("not_found", "its body was put aside and is gone")
        if burial is None:
            return claim
        limit = self._store.capabilities.body_bytes_max
        travels = write_burial(burial, claim, limit)
        if travels is None:
            self._bare(burial, f"body and failure exceed {limit} bytes")
        return travels or claim

    async def _put(
        self, held: Held, queue: str, message: NewMessage, what: str, wanted: Wanted, landed: Callable[[str], None]
    ) -> None:
        """Put a message, however long the store is away; call ``landed`` with its new id, also if cancelled."""
        backoff = FullJitter(0.1, 5.0)
        while True:
            putting = asyncio.create_task(self._try(queue, message), name=f"move[{self._queue}]#{held.number}")
            held.moving = True
            try:
                await asyncio.shield(putting)
                return
            except (StoreUnavailable, StoreFull, TimeoutError) as error:
                log.warning("%s: cannot %s yet: %s", self._queue, what, str(error) or "time-out")
            except asyncio.CancelledError:
                # It may be done already: released, the message would be in both queues.
                await _answered(putting, wanted)
                raise
            finally:
                held.moving = False
                if putting.done() and not putting.cancelled() and putting.exception() is None:
                    held.moved = True
                    landed(putting.result())
            await asyncio.sleep(backoff.miss(self._draw))
            if not wanted():
                raise NoLongerWanted

    async def _try(self, queue: str, message: NewMessage) -> str:
        async with asyncio.timeout(self.store_call_s):
            (receipt,) = await self._store.put(queue, [message])
        return receipt.id


async def _answered(putting: asyncio.Task[str], wanted: Wanted) -> None:
    """Wait for a put in flight, as long as its call may take, unless the message is no longer held."""
    try:
        if wanted():
            await asyncio.wait([putting])
    finally:
        if not putting.done():
            putting.cancel()
            await asyncio.wait([putting])


MESSAGES_MAX: Final = 1024
REASON_MAX: Final = 256


class History:
    """The failed attempts at ``most`` messages, 16 of each; the message that failed longest ago is forgotten first.

    That is some 4 MiB where every message fails. Attempts of other listeners, or before this one started, are unknown.
    """

    def __init__(self, most: int = MESSAGES_MAX) -> None:
        self._most = most
        self._attempts: OrderedDict[str, tuple[Attempt, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    def failed(self, id_: str, attempt: int, at: datetime.datetime, reason: str) -> None:
        """Remember that an attempt failed at a moment, for a reason."""
        known = self._attempts.get(id_, ())
        self._attempts[id_] = (*known, Attempt(attempt, at, shortened(reason, REASON_MAX)))[-HISTORY_MAX:]
        self._attempts.move_to_end(id_)
        if len(self._attempts) > self._most:
            self._attempts.popitem(last=False)

    def of(self, id_: str) -> tuple[Attempt, ...]:
        """Return the failed attempts at a message, oldest first."""
        return self._attempts.get(id_, ())

    def forget(self, id_: str) -> None:
        """Forget a message."""
        self._attempts.pop(id_, None)
