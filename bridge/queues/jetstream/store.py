"""The store behind ``nats://host:4222``: JetStream work queues, a stream and a pull consumer a queue.

A receive asks for what is there and does not wait: the server says at once when there is no more. The lease is the
consumer's ``ack_wait``, one for all who receive; it is lengthened where a receive asks for more, and never shortened
(`bridge.queues.jetstream.store`).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Final

import msgspec

from bridge.brokers.address import Address
from bridge.brokers.base import Incoming
from bridge.brokers.nats.access import check_installed
from bridge.contract.errors import ConfigurationError, QueueNotFound, StoreError, StoreUnavailable, UnknownOutcome
from bridge.contract.headers import headers_in, readable_headers
from bridge.contract.names import is_token
from bridge.queues.base import (
    Capabilities,
    Claim,
    Counts,
    Depth,
    Extend,
    NewMessage,
    PutReceipt,
    Received,
    Release,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
    digest_of,
)
from bridge.queues.checked import CheckedStore
from bridge.queues.jetstream.api import (
    API,
    NANO,
    WAIT_S,
    ConsumerGone,
    ConsumerState,
    Delivery,
    JetStreamApi,
    Names,
    Refusal,
    Stored,
    decoded,
    meaning,
    reference_of,
)
from bridge.queues.jetstream.wire import ANSWER_S, OPTIONS, Answers, NoResponder, Wire, status_of
from bridge.queues.recount import Recount
from bridge.queues.side_by_side import apart, outcomes, side_by_side

log = logging.getLogger("queuebell.store")

AGAIN_S: Final = (0.0, 0.002, 0.02)
"""When a consumer that has not heard of a message yet is asked again: it hears within milliseconds of the put."""
DRAINED: Final = "404"
EXPIRED: Final = "408"
REPLICAS_MAX: Final = 5


class _Put(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    error: Refusal | None = None


class JetStreamStore(CheckedStore):
    """The queues of one NATS server or cluster; connects at the first call. Answers may take ``timeout`` seconds.

    Servers of a cluster are listed as for the NATS bus. Options of the address: ``credentials``, ``nkey``, ``name``,
    ``inbox`` and those of TLS as there; ``prefix`` (``queuebell``) of streams, subjects and consumers; ``replicas`` of
    streams that it makes (1, or 3 where three servers or more are listed).
    """

    kind = "jetstream"
    capabilities = Capabilities(
        exact_depth=False,
        zero_depth=True,
        next_visible=False,
        delayed_put=False,
        update_body=False,
        peek=False,
        time_to_live=False,
        metadata=False,
        pause=False,
        resolution_ms=100,
        ordered=False,
        fenced=False,
        put_receipts=False,
        atomic_put=False,
        own_leases=False,
        headers=True,
    )

    def __init__(self, url: str, *, timeout: float = ANSWER_S) -> None:
        where = Address(url, schemes=("nats", "tls"), options=OPTIONS, several=True)
        self._prefix = where.options.get("prefix", "queuebell")
        # Who names three servers wants to do without one of them; fewer than three cannot.
        self._replicas = where.number("replicas", 3 if len(where.hosts) >= 3 else 1, most=REPLICAS_MAX)
        if not is_token(self._prefix) or not self._replicas:
            raise ConfigurationError("store: prefix is letters, digits, '_' and '-'; replicas is 1 to 5")
        self._where = where
        self._wire = Wire(where, timeout)
        self._api = JetStreamApi(self._wire)
        self._leases = Leases(self._api)
        self._recount = Recount()
        self._fit: set[str] = set()
        """Streams whose configuration was found good for a queue."""

    def check_client(self) -> None:
        """Raise `ConfigurationError` where the client library is not installed; needs no network."""
        check_installed()

    def __str__(self) -> str:
        return self._where.text

    def fingerprint(self, queue: str) -> str:
        """Return 32 hex digits for this queue at this address; another list of a cluster's servers has another."""
        return digest_of("jetstream", self._where.place, self._names(queue).stream)

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        """Put messages in order, each acknowledged by the server once it is stored."""
        names = self._names(queue)
        await self._wire.connect()
        self._wire.check_size(max(len(message.body) + size_of(written(message.headers)) for message in messages))
        self._recount.stirred(queue)
        try:
            await self._check_stream(names)
            stored = await self._publish(names, messages)
        except (NoResponder, QueueNotFound):
            # No stream, or one that has no leader just now: the cluster elects another within seconds. It is made
            # before anything is put: another stream that hears this subject would take the message, for nobody.
            if not create and await self.depth(queue) is None:
                raise QueueNotFound(f"there is no queue {queue}") from None
            try:
                await self._make(names)
            except UnknownOutcome as error:
                raise StoreUnavailable(f"{error}, when the stream was to be made; no message was put") from error
            stored = await self._publish(names, messages)
        return [PutReceipt(str(one.seq), "", 0) for one in stored]

    async def _receive(self, queue: str, limit: int, lease_ms: int) -> Received:
        """Take messages; their leases last the consumer's ``ack_wait``, as long as was asked for at least."""
        lease_s = lease_ms / 1000
        names = self._names(queue)
        await self._check_stream(names)
        consumer = await self._leases.consumer(names, lease_s)
        try:
            found, status = await self._pull(names, consumer, limit)
        except NoResponder:
            self._fit.discard(names.stream)
            self._leases.forget(names)
            await self._check_stream(names)
            consumer = await self._leases.consumer(names, lease_s)
            found, status = await self._pull(names, consumer, limit)
        behind = False
        try:
            for pause in AGAIN_S:
                behind = status == DRAINED and await self._behind(names, found)
                if not behind:
                    break
                await asyncio.sleep(pause)
                more, status = await self._pull(names, consumer, limit - len(found))
                found += more
        except StoreError:
            if not found:
                raise
            behind = True  # what came is leased and can be worked on
        if found:
            self._recount.stirred(queue)
            again = any(message.dequeue_count > 1 for message in found)
            await self._leases.look_again(names, lease_s, lost=again)
        if behind:
            return Received(found, blocked=True)
        if len(found) == limit or status == DRAINED:
            if found or not self._recount.worth(queue):
                return Received(found)
        elif status != EXPIRED or consumer.leases_max < 0:
            return Received(found, blocked=True)  # moved, stopped or silent: what else is there was not told
        state = await self._state(names, queue)
        if state is None:
            return Received(found, blocked=status != DRAINED)
        if not found:
            state.check_running(names)
        blocked = 0 < state.leases_max <= state.num_ack_pending
        depth = Depth(state.num_pending, state.num_ack_pending)
        counts = None if depth.visible else Counts(0, depth.invisible, leased=depth.invisible)
        return Received(found, depth, blocked=blocked, counts=counts)

    async def _behind(self, names: Names, found: list[StoredMessage]) -> bool:
        """Say whether the stream holds what its consumer has not heard of.

        The server tells its consumers of a message after it has acknowledged the put. Seen of 2.15 on two busy cores:
        of 6,000 receives, each just after a put, 115 were answered that there is none, for up to 4 ms.
        """
        stream = await self._api.stream(names)
        if not stream.messages or max((int(message.id) for message in found), default=0) >= stream.last_seq:
            return False
        consumer = await self._api.consumer(names)
        if consumer is not None:
            consumer.check_running(names)
        # Numbers alone would be wrong of messages removed by hand, counts alone of those that a filter leaves out.
        return consumer is None or (
            consumer.delivered.stream_seq < stream.last_seq and consumer.num_ack_pending < stream.messages
        )

    async def _settle(self, queue: str, settlement: Settlement) -> Settling:
        """Carry out each item by a request; an extension lasts ``ack_wait`` again."""
        self._check_open()
        names = self._names(queue)
        if not (settlement.delete or settlement.release or settlement.extend):
            return Settling([], [], [])
        lease_s = max((item.visibility_s for item in settlement.extend), default=0.0)
        await self._leases.hold(names, lease_s)
        if settlement.extend:
            await self._leases.look_again(names, lease_s)
        if settlement.release:
            self._recount.stirred(queue)
        delete, release, extend = len(settlement.delete), len(settlement.release), len(settlement.extend)
        words = [b"+ACK"] * delete + [_nak(item) for item in settlement.release] + [b"+WPI"] * extend
        items: list[Claim | Release | Extend] = [*settlement.delete, *settlement.release, *settlement.extend]
        calls = (partial(self._acknowledge, names, item, word) for item, word in zip(items, words, strict=True))
        told = outcomes(await apart("jetstream settle", calls))
        return Settling(told[:delete], told[delete : delete + release], told[delete + release :])

    async def depth(self, queue: str) -> Depth | None:
        """Count: never delivered, and delivered but not acknowledged; None for a queue that does not exist."""
        state = await self._counted(self._names(queue))
        if state is None:
            return None
        self._recount.counted(queue, state.num_pending + state.num_ack_pending)
        return Depth(state.num_pending, state.num_ack_pending)

    async def counts(self, queue: str) -> Counts | None:
        """Count likewise; a second request asks since when the first that was never delivered is there."""
        names = self._names(queue)
        state = await self._counted(names)
        if state is None:
            return None
        visible, leased = state.num_pending, state.num_ack_pending
        at = await self._api.stored_at(names, state.delivered.stream_seq + 1) if visible else None
        said = state.ts or datetime.datetime.now(datetime.UTC)
        oldest_ms = None if at is None else max(0, round((said - at).total_seconds() * 1000))
        return Counts(visible, leased, leased=leased, oldest_ms=oldest_ms)

    async def _counted(self, names: Names) -> ConsumerState | None:
        try:
            state = await self._api.consumer(names)
            if state is None:
                state = ConsumerState({}, (await self._api.stream(names)).messages)
        except QueueNotFound:
            return None
        return state

    async def clear(self, queue: str) -> None:
        """Remove every message."""
        await self._api.purge_stream(self._names(queue))

    async def _create(self, queue: str, metadata: dict[str, str] | None) -> bool:
        names = self._names(queue)
        try:
            await self._api.stream(names)
        except QueueNotFound:
            await self._make(names)
            return True
        return False

    async def delete(self, queue: str) -> None:
        """Remove the stream with its consumer and messages."""
        names = self._names(queue)
        self._fit.discard(names.stream)
        self._leases.forget(names)
        with contextlib.suppress(QueueNotFound):
            await self._api.remove_stream(names)

    async def _queues(self, prefix: str, after: str, limit: int) -> list[str]:
        """List references; the server is asked for all of them."""
        streams = await self._api.stream_names(f"{self._prefix}.queue.*.*")
        found = (reference_of(self._prefix, stream) for stream in streams)
        return sorted(ref for ref in found if ref is not None and ref > after and ref.startswith(prefix))[:limit]

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        self._closed = True
        await self._wire.close()

    # Requests -------------------------------------------------------------------------------------------------------

    def _names(self, queue: str) -> Names:
        return Names.of(self._prefix, queue)

    async def _check_stream(self, names: Names) -> None:
        """Refuse a stream that is not fit for a queue, at its first use. Raises `QueueNotFound` for a missing one."""
        if names.stream in self._fit:
            return
        try:
            await self._api.stream(names)
        except UnknownOutcome as error:
            # A user that may put and nothing else gets no answer. It is not asked again: each try takes its time-out.
            log.warning("jetstream: the settings of the stream %s cannot be read: %s", names.stream, error)
        self._fit.add(names.stream)

    async def _make(self, names: Names) -> None:
        self._fit.discard(names.stream)
        self._leases.forget(names)
        await self._api.make_stream(names, self._replicas)

    async def _state(self, names: Names, queue: str) -> ConsumerState | None:
        try:
            state = await self._api.consumer(names)
        except StoreError:
            return None  # the receive itself was answered
        if state is not None:
            self._recount.counted(queue, state.num_pending + state.num_ack_pending)
        return state

    async def _publish(self, names: Names, messages: Sequence[NewMessage]) -> list[Stored]:
        """Send all in order, then wait for all; some may stand where one failed."""
        results = await side_by_side("jetstream put", (self._publish_one(names, message) for message in messages))
        failed = [error for error in results if isinstance(error, StoreError)]
        if not failed:
            return [stored for stored in results if isinstance(stored, Stored)]
        put = len(messages) - len(failed)
        if not put and not any(isinstance(error, UnknownOutcome) for error in failed):
            raise failed[0]
        raise UnknownOutcome(f"{put} of {len(messages)} messages were put, then: {failed[0]}") from failed[0]

    async def _publish_one(self, names: Names, message: NewMessage) -> Stored | StoreError:
        with self._wire.asking() as answers:
            try:
                self._wire.send(names.subject, message.body, answers, written(message.headers))
                answer = decoded((await answers.next()).payload, _Put)
            except StoreError as error:
                return error
        if answer.error is not None:
            return meaning(answer.error)
        if answer.stream != names.stream:
            self._fit.discard(names.stream)
            return StoreError(f"jetstream: {names.stream} is gone, and the stream {answer.stream} took the message")
        return Stored(answer.stream, answer.seq)

    async def _pull(self, names: Names, consumer: ConsumerState, limit: int) -> tuple[list[StoredMessage], str]:
        """Return the messages and the server's last word; empty where the batch was full, or no word came."""
        asked: dict[str, object] = {"batch": limit, "no_wait": True}
        if consumer.leases_max > 0:
            asked["expires"] = round(WAIT_S * NANO)
        found: list[StoredMessage] = []
        subject = f"{API}.CONSUMER.MSG.NEXT.{names.stream}.{names.consumer}"
        async with self._wire.pulling(subject, msgspec.json.encode(asked)) as answers:
            while len(found) < limit:
                message = await self._next(answers, found)
                if message is None:
                    return found, ""
                delivery = Delivery.of(".".join(message.reply_to or ()))
                if delivery is None:
                    status = status_of(message)
                    if not found and status not in (DRAINED, EXPIRED):
                        said = message.headers.get("description", "")
                        raise StoreUnavailable(f"jetstream: nothing was received: {said} ({status})")
                    return found, status
                found.append(_stored(message, delivery))
        return found, ""

    async def _next(self, answers: Answers, found: list[StoredMessage]) -> Incoming | None:
        try:
            return await answers.next()
        except UnknownOutcome:
            if not found:
                raise
            return None  # what came is leased and can be worked on

    async def _acknowledge(self, names: Names, item: Claim | Release | Extend, word: bytes) -> Settled:
        delivery = Delivery.of(item.pop_receipt)
        if delivery is None or (delivery.stream, delivery.consumer) != (names.stream, names.consumer):
            return Settled(False, code="pop_receipt_mismatch")
        if str(delivery.sequence) != item.id:
            return Settled(False, code="message_not_found")
        try:
            await self._wire.ask(item.pop_receipt, word)
        except NoResponder:
            if await self._stands(names):
                raise UnknownOutcome("jetstream: the consumer has no leader just now, which would take this") from None
            return Settled(False, code="message_not_found")
        return Settled(True, item.pop_receipt if isinstance(item, Extend) else None)

    async def _stands(self, names: Names) -> bool:
        """Say whether the consumer is there, led or not; where the cluster cannot say, that is raised."""
        try:
            return await self._api.consumer(names) is not None
        except QueueNotFound:
            return False


def _nak(item: Release) -> bytes:
    return b'-NAK {"delay": %d}' % (item.after_ms * 1_000_000) if item.after_ms else b"-NAK"


def _stored(message: Incoming, delivery: Delivery) -> StoredMessage:
    receipt = ".".join(message.reply_to or ())
    return StoredMessage(
        str(delivery.sequence),
        receipt,
        message.payload,
        delivery.delivered,
        delivery.stored_at,
        headers=read(message),
    )


LOOK_AGAIN_S: Final = 60.0
"""When what is known of a consumer is read anew, once messages are leased by it; a quiet queue costs nothing."""
DOUBT_S: Final = 1.0
"""The same where a lease may have been lost, or where two may have lengthened at the same moment."""
GLANCE_S: Final = 1.0
"""How long that may take: the messages are leased already, and whoever asked for them waits."""
PUT_OFF_S: Final = 10.0
"""When a look that failed is tried again: a server that is silent about consumers must not hold up every receive."""
DEFAULT_LEASE_S: Final = 30.0


class _Known:
    """A consumer as it was read, and when; when a look at it failed since."""

    __slots__ = ("at", "doubted", "failed_at", "state")

    def __init__(self, state: ConsumerState, *, doubted: bool) -> None:
        self.state = state
        self.at = monotonic()
        self.doubted = doubted
        self.failed_at: float | None = None

    def due(self, *, lost: bool) -> bool:
        """Say whether it is to be read anew."""
        now = monotonic()
        if self.failed_at is not None and now - self.failed_at < PUT_OFF_S:
            return False
        return now - self.at >= (DOUBT_S if lost or self.doubted else LOOK_AGAIN_S)


class Leases:
    """The consumers of one store as they are known here, by stream."""

    def __init__(self, api: JetStreamApi) -> None:
        self._api = api
        self._known: dict[str, _Known] = {}

    def forget(self, names: Names) -> None:
        """Have the consumer read anew at the next call, and made by the next receive where it is missing."""
        self._known.pop(names.stream, None)

    async def consumer(self, names: Names, lease_s: float) -> ConsumerState:
        """Return the consumer, made where it is missing, with leases of at least ``lease_s``."""
        known = self._known.get(names.stream)
        if known is not None:
            try:
                return await self._long_enough(names, known.state, lease_s)
            except (ConsumerGone, QueueNotFound):
                self.forget(names)
        state = await self._read(names)
        if state is None:
            state = await self._api.make_consumer(names, lease_s or DEFAULT_LEASE_S)
            self._known[names.stream] = _Known(state, doubted=False)
        return await self._long_enough(names, state, lease_s)

    async def hold(self, names: Names, lease_s: float) -> None:
        """Have the leases that were given out last at least ``lease_s``.

        Raises `QueueNotFound` where nothing is known of the queue and it is not there. What was known and is gone is
        forgotten: each acknowledgement is told of it.
        """
        known = self._known.get(names.stream)
        state = await self._read(names) if known is None else known.state
        if state is None:
            return
        try:
            await self._long_enough(names, state, lease_s)
        except (ConsumerGone, QueueNotFound):
            self.forget(names)

    async def look_again(self, names: Names, lease_s: float, *, lost: bool = False) -> None:
        """Read the consumer anew if that is due; ``lost`` says that a lease may have ended too early.

        Leases that are too short by then are lengthened, those given out too. What fails here is tried again after
        `PUT_OFF_S`.
        """
        known = self._known.get(names.stream)
        if known is None or not known.due(lost=lost):
            return
        try:
            async with asyncio.timeout(GLANCE_S):
                state = await self._read(names)
                if state is not None:
                    await self._long_enough(names, state, lease_s)
        except (ConsumerGone, QueueNotFound):
            self.forget(names)
        except (StoreError, TimeoutError):
            known.failed_at = monotonic()

    async def _read(self, names: Names) -> ConsumerState | None:
        state = await self._api.consumer(names)
        if state is None:
            self.forget(names)
        else:
            self._known[names.stream] = _Known(state, doubted=False)
        return state

    async def _long_enough(self, names: Names, state: ConsumerState, lease_s: float) -> ConsumerState:
        if state.ack_wait_s < lease_s:
            state = await self._api.lengthen(names, lease_s)
            # The server has no way to change it only if it is as it was read: another may write a shorter one now.
            self._known[names.stream] = _Known(state, doubted=True)
        return state


REST: Final = "queuebell-headers"
_LINE_BYTES: Final = len(": \r\n")
_FRAME_BYTES: Final = len("NATS/1.0\r\n\r\n")


def written(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the headers to send, None for none."""
    if not headers:
        return None
    plain = {name: value for name, value in headers.items() if _passes(value)}
    rest = {name: value for name, value in headers.items() if name not in plain}
    return {**plain, REST: json.dumps(rest)} if rest else plain


def size_of(headers: Mapping[str, str] | None) -> int:
    """Return how many bytes they take beside the payload."""
    if headers is None:
        return 0
    return _FRAME_BYTES + sum(len(name) + len(value) + _LINE_BYTES for name, value in headers.items())


def read(message: Incoming) -> dict[str, str]:
    """Return the headers of a message, of other producers' those that a message of ours may have."""
    if not message.headers and message.content_type is None:
        return {}
    found = dict(message.headers)
    rest = found.pop(REST, "")
    if message.content_type is not None:
        found["content-type"] = message.content_type
    return readable_headers([*headers_in(rest).items(), *found.items()])


def _passes(value: str) -> bool:
    return bool(value) and value.isascii() and value.isprintable() and value.strip() == value
