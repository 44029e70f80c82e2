"""The store behind ``nats://host:4222``: JetStream work queues, a stream and a pull consumer a queue.

A receive asks for what is there and does not wait: the server says at once when there is no more. The lease is the
consumer's ``ack_wait``, one for all who receive; it is lengthened where a receive asks for more, and never shortened
(`bridge.queues.jetstream_leases`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from bridge.broker import Incoming
from bridge.brokers.address import Address
from bridge.brokers.nats_access import check_installed
from bridge.contract.errors import (
    ConfigurationError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from bridge.contract.names import is_token
from bridge.queue import (
    NEVER,
    Capabilities,
    Claim,
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
)
from bridge.queues.jetstream_api import API, NANO, ConsumerState, JetStreamApi, Refusal, Stored, decoded, meaning
from bridge.queues.jetstream_leases import Leases
from bridge.queues.jetstream_names import Delivery, Names, reference_of
from bridge.queues.jetstream_wire import ANSWER_S, OPTIONS, Answers, NoResponder, Wire, status_of
from bridge.queues.limits import check_list, check_metadata, check_peek, check_put, check_receive, check_settlement
from bridge.queues.recount import Recount
from bridge.queues.side_by_side import side_by_side

log = logging.getLogger("queuebell.store")

WAIT_S: Final = 0.05
"""How long the server waits with an answer where leases are limited: only then would it say nothing at the limit."""
DRAINED: Final = "404"
EXPIRED: Final = "408"
REPLICAS_MAX: Final = 5


class _Put(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    error: Refusal | None = None


class JetStreamStore:
    """The queues of one NATS server or cluster; connects at the first call. Answers may take ``timeout`` seconds.

    Options of the address: ``credentials``, ``nkey``, ``name``, ``inbox`` and those of TLS as for the NATS bus;
    ``prefix`` (``queuebell``) of streams, subjects and consumers; ``replicas`` (1) of streams that it makes.
    """

    own = False
    capabilities = Capabilities(
        exact_depth=False,
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
    )

    def __init__(self, url: str, *, timeout: float = ANSWER_S) -> None:
        where = Address(url, schemes=("nats", "tls"), options=OPTIONS)
        self._prefix = where.options.get("prefix", "queuebell")
        self._replicas = where.number("replicas", 1, most=REPLICAS_MAX)
        if not is_token(self._prefix) or not self._replicas:
            raise ConfigurationError("store: prefix is letters, digits, '_' and '-'; replicas is 1 to 5")
        self._where = where
        self._wire = Wire(where, timeout)
        self._api = JetStreamApi(self._wire)
        self._leases = Leases(self._api)
        self._recount = Recount()

    def check_client(self) -> None:
        """Raise `ConfigurationError` where the client library is not installed; needs no network."""
        check_installed()

    def __str__(self) -> str:
        return self._where.text

    def fingerprint(self, queue: str) -> str:
        """Return 32 hex digits for this queue at this address; two servers of a cluster have two."""
        return hashlib.sha256(f"jetstream\n{self._where.text}\n{self._names(queue).stream}".encode()).hexdigest()[:32]

    async def put(self, queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
        """Put 1 to 32 messages in order, each acknowledged by the server once it is stored."""
        check_put(queue, messages)
        if any(message.visible_after_ms for message in messages):
            raise Unsupported("jetstream: a message cannot be put for later; publish the trigger of a later put")
        if any(message.ttl_s != NEVER for message in messages):
            raise Unsupported("jetstream: messages have no time to live of their own")
        names = self._names(queue)
        await self._wire.connect()
        self._wire.check_size(max(len(message.body) for message in messages))
        self._recount.stirred(queue)
        try:
            stored = await self._publish(names, messages)
        except NoResponder:
            await self._make(names)
            stored = await self._publish(names, messages)
        return [PutReceipt(str(one.seq), "", 0) for one in stored]

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Take up to ``limit`` messages; their leases last the consumer's ``ack_wait``, ``visibility_s`` at least."""
        lease_s = check_receive(queue, limit, visibility_s, source) / 1000
        names = self._names(queue)
        consumer = await self._leases.consumer(names, lease_s)
        try:
            found, status = await self._pull(names, consumer, limit)
        except NoResponder:
            self._leases.forget(names)
            consumer = await self._leases.consumer(names, lease_s)
            found, status = await self._pull(names, consumer, limit)
        if found:
            self._recount.stirred(queue)
            again = any(message.dequeue_count > 1 for message in found)
            await self._leases.look_again(names, lease_s, lost=again)
        if len(found) == limit or status == DRAINED:
            if found or not self._recount.worth(queue):
                return Received(found)
        elif status != EXPIRED or consumer.leases_max < 0:
            return Received(found, blocked=True)  # moved, stopped or silent: what else is there was not told
        state = await self._state(names, queue)
        if state is None:
            return Received(found, blocked=status != DRAINED)
        blocked = 0 < state.leases_max <= state.num_ack_pending
        return Received(found, Depth(state.num_pending, state.num_ack_pending), blocked=blocked)

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Delete, release and extend, a request for each; an extension lasts ``ack_wait`` again."""
        check_settlement(queue, settlement)
        if any(item.body is not None for item in settlement.extend):
            raise Unsupported("jetstream: the body of a message cannot be changed")
        self._wire.check_open()
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
        outcomes = await side_by_side(
            "jetstream settle",
            (self._acknowledge(names, item, word) for item, word in zip(items, words, strict=True)),
        )
        return Settling(outcomes[:delete], outcomes[delete : delete + release], outcomes[delete + release :])

    async def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        """Raise `Unsupported`: a stream shows leased messages like others."""
        check_peek(queue, limit)
        self._wire.check_open()
        raise Unsupported("jetstream: what is visible cannot be looked at without taking it")

    async def depth(self, queue: str) -> Depth | None:
        """Count: never delivered, and delivered but not acknowledged; None for a queue that does not exist."""
        names = self._names(queue)
        try:
            state = await self._api.consumer(names)
            if state is None:
                state = ConsumerState({}, await self._api.stream_messages(names))
        except QueueNotFound:
            return None
        self._recount.counted(queue, state.num_pending + state.num_ack_pending)
        return Depth(state.num_pending, state.num_ack_pending)

    async def clear(self, queue: str) -> None:
        """Remove every message."""
        await self._api.purge_stream(self._names(queue))

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Raise `Unsupported`."""
        self._wire.check_open()
        raise Unsupported("jetstream: a queue cannot be paused; stop its listeners instead")

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Make the stream; say whether it is new."""
        check_metadata(metadata)
        if metadata:
            raise Unsupported("jetstream: metadata is for whoever manages the streams")
        names = self._names(queue)
        try:
            await self._api.stream_messages(names)
        except QueueNotFound:
            await self._make(names)
            return True
        return False

    async def delete(self, queue: str) -> None:
        """Remove the stream with its consumer and messages."""
        names = self._names(queue)
        self._leases.forget(names)
        try:
            await self._api.remove_stream(names)
        except QueueNotFound:
            return

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """List references; the server is asked for all of them."""
        check_list(prefix, after, limit)
        streams = await self._api.stream_names(f"{self._prefix}.queue.*.*")
        found = (reference_of(self._prefix, stream) for stream in streams)
        return sorted(ref for ref in found if ref is not None and ref > after and ref.startswith(prefix))[:limit]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        await self._wire.close()

    # Requests -------------------------------------------------------------------------------------------------------

    def _names(self, queue: str) -> Names:
        return Names.of(self._prefix, queue)

    async def _make(self, names: Names) -> None:
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
        results = await side_by_side(
            "jetstream put", (self._publish_one(names.subject, message.body) for message in messages)
        )
        failed = [error for error in results if isinstance(error, StoreError)]
        if not failed:
            return [stored for stored in results if isinstance(stored, Stored)]
        put = len(messages) - len(failed)
        if not put and not any(isinstance(error, UnknownOutcome) for error in failed):
            raise failed[0]
        raise UnknownOutcome(f"{put} of {len(messages)} messages were put, then: {failed[0]}") from failed[0]

    async def _publish_one(self, subject: str, body: bytes) -> Stored | StoreError:
        with self._wire.asking() as answers:
            try:
                self._wire.send(subject, body, answers)
                answer = decoded((await answers.next()).payload, _Put)
            except StoreError as error:
                return error
        if answer.error is not None:
            return meaning(answer.error)
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
                if 0 < consumer.deliveries_max <= delivery.delivered:
                    log.warning(
                        "message %s of stream %s is on its last delivery: the consumer %s was made with max_deliver. "
                        "Should its handler fail, it stays in the stream and nobody receives it again",
                        delivery.sequence,
                        names.stream,
                        names.consumer,
                    )
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
            return Settled(False, code="message_not_found")
        return Settled(True, item.pop_receipt if isinstance(item, Extend) else None)


def _nak(item: Release) -> bytes:
    return b'-NAK {"delay": %d}' % (item.after_ms * 1_000_000) if item.after_ms else b"-NAK"


def _stored(message: Incoming, delivery: Delivery) -> StoredMessage:
    receipt = ".".join(message.reply_to or ())
    return StoredMessage(str(delivery.sequence), receipt, message.payload, delivery.delivered, delivery.stored_at)
