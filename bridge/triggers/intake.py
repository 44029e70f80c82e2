"""Triggers from a broker: the topic names the queue, and the body is empty or has more.

An empty body is one trigger of size 1. Otherwise it is a trigger as JSON or a CloudEvent, and is rejected and counted
unless it names the queue of its topic. The mark comes first, then the broker's acknowledgement and the sender's answer
(B1). Every bridge marks every trigger (B16), so there is no queue group.

With authentication a plain message cannot identify its sender. Unless the broker's access list is trusted, each is
counted as rejected, and neither acknowledged nor answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.brokers.base import ANY, Broker, Incoming, Topic
from queuebell.bridge.contract.errors import BadInput, QueuebellError
from queuebell.bridge.contract.event import EVENT_BYTES_MAX, PAYLOAD_SIZE_MAX, CloudQueueWorkDetected, check_depth
from queuebell.bridge.contract.throttle import Throttle
from queuebell.bridge.observe.facts import AccessRefused, TriggerRefused

if TYPE_CHECKING:
    from queuebell.bridge.service.bridge import Bridge

log = logging.getLogger("queuebell.bridge")

LOG_EVERY_S: Final = 1.0
BATCH_MAX: Final = 1024
_TOPICS_MAX: Final = 100_000

Decode = Callable[[Incoming], list[CloudQueueWorkDetected]]


class Bridged(CloudQueueWorkDetected, frozen=True, omit_defaults=True):
    """A trigger sent to other bridges; ``via`` is the boot of the sending bridge, which recognizes its echo by it.

    It is in the body because MQTT 3.1.1 has no headers. Other clients ignore unknown fields.
    """

    via: str | None = None


_decode = msgspec.json.Decoder(Bridged).decode


class Intake:
    """Receives the triggers of the bus ``bus``; ``on_echo`` is called with those that this bridge has sent."""

    def __init__(
        self,
        bridge: Bridge,
        bus: str,
        prefix: str,
        *,
        trusted: bool = True,
        on_echo: Callable[[Bridged], None] | None = None,
    ) -> None:
        self.bus = bus
        self._bridge = bridge
        self._boot = bridge.boot
        self._prefix = prefix
        self._trusted = trusted
        self._on_echo = on_echo
        self._broker: Broker | None = None
        self._decode_other: Decode = _decode_nats
        self._plain: dict[Topic, CloudQueueWorkDetected] = {}
        self._batch: dict[object, _Waiting] = {}
        self._batched = 0
        self._complaints = Throttle(LOG_EVERY_S)

    async def attach(self, broker: Broker) -> None:
        """Receive triggers on a new connection. Raises `BusUnavailable`."""
        self._broker = broker
        self._decode_other = _decode_mqtt if broker.kind == "mqtt" else _decode_nats
        pattern = (self._prefix, "trigger", ANY, ANY)
        if self._trusted:
            await broker.subscribe(pattern, self.on_message, at_least_once=True)
        else:
            # Not at least once: a stream or session keeps its messages until the broker is trusted.
            await broker.subscribe(pattern, self.reject)

    def reject(self, incoming: Incoming) -> None:
        """Count a message of an unknown sender, which gets no answer and repeats it."""
        queue = _queue_of(incoming) if len(incoming.topic) == 4 else ""
        self._bridge.emit(AccessRefused("unauthenticated", "", Verb.RING.value, queue, self.bus))

    def on_message(self, incoming: Incoming) -> None:
        """Handle a message; it is marked at the end of this turn of the event loop at the latest. Never raises."""
        plain = not (incoming.headers or incoming.content_type or incoming.redelivered)
        key = (incoming.topic, incoming.payload)
        same = self._batch.get(key) if plain else None
        if same is not None:
            # A flood of equal messages is read once and marked once.
            same.senders.append(incoming)
        else:
            try:
                events = self._read(incoming)
            except BadInput as error:
                self._refuse(incoming, error)
                return
            if not plain or len(events) != 1:
                self._mark(events, incoming)
                return
            event = events[0]
            if not self._batch:
                asyncio.get_running_loop().call_soon(self._mark_batch)
            merges = event.id is None and not event.not_before_ms
            # Events with an id (B13) or a due time (B2) do not merge.
            self._batch[key if merges else len(self._batch)] = _Waiting(event, [incoming])
        self._batched += 1
        if self._batched >= BATCH_MAX:
            self._mark_batch()

    def _mark_batch(self) -> None:
        """Mark the messages of one turn of the event loop together, at two thirds of the cost."""
        waiting, self._batch, self._batched = list(self._batch.values()), {}, 0
        if not waiting:
            return
        try:
            events, counts = [each.merged() for each in waiting], [len(each.senders) for each in waiting]
            self._bridge.trigger(events, bus=self.bus, counts=counts)
        except QueuebellError:
            # The bridge accepts all or none, so mark them one by one: a rejected one must not stop the others.
            for each in waiting:
                for incoming in each.senders:
                    self._mark((each.event,), incoming)
        else:
            for each in waiting:
                for incoming in each.senders:
                    if incoming.acknowledge is not None or incoming.reply_to is not None:
                        self._acknowledge(incoming)

    def _mark(self, events: Sequence[CloudQueueWorkDetected], incoming: Incoming) -> None:
        try:
            if events:
                self._bridge.trigger(events, bus=self.bus, redelivered=incoming.redelivered)
        except BadInput as error:
            self._refuse(incoming, error)
        except QueuebellError as error:
            log.debug("a trigger was not accepted: %s", error, extra={"bus": self.bus})
        else:
            self._acknowledge(incoming)

    def _acknowledge(self, incoming: Incoming) -> None:
        if incoming.acknowledge is not None:
            incoming.acknowledge()
        if incoming.reply_to is not None:
            self._answer(incoming.reply_to)

    def _refuse(self, incoming: Incoming, error: BadInput) -> None:
        self._count(error)
        # An invalid message stays invalid: unacknowledged it would be redelivered forever and block the others. One
        # that a stopping bridge rejects may go to the next bridge.
        if error.code != "draining" and incoming.acknowledge is not None:
            incoming.acknowledge()

    def _read(self, incoming: Incoming) -> Sequence[CloudQueueWorkDetected]:
        topic, payload = incoming.topic, incoming.payload
        if len(topic) != 4:
            raise BadInput("bad_queue_reference", "a trigger's topic must end with account and queue")
        if incoming.headers or incoming.content_type:
            return self._of_queue(topic, self._decode_other(incoming))
        if not payload:
            return (self._plain.get(topic) or self._bare_event(topic),)
        try:
            if len(payload) > EVENT_BYTES_MAX or b'"specversion"' in payload:
                return self._of_queue(topic, self._decode_other(incoming))
            check_depth(payload)
            event = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # An array, or invalid: the other decoder decides.
            return self._of_queue(topic, self._decode_other(incoming))
        if event.queue_name != topic[3] or event.storage_account != topic[2]:
            raise BadInput("bad_trigger", "the body names a different queue than the topic")
        if event.via is not None and event.via == self._boot:
            if self._on_echo is not None:
                self._on_echo(event)
            return ()  # sent by this bridge
        return (event,)

    def _bare_event(self, topic: Topic) -> CloudQueueWorkDetected:
        if len(self._plain) >= _TOPICS_MAX:
            self._plain.clear()
        event = self._plain[topic] = CloudQueueWorkDetected(topic[2], topic[3])
        return event

    @staticmethod
    def _of_queue(topic: Topic, events: list[CloudQueueWorkDetected]) -> list[CloudQueueWorkDetected]:
        for event in events:
            if event.queue_name != topic[3] or event.storage_account != topic[2]:
                raise BadInput("bad_trigger", "the body names a different queue than the topic")
        return events

    def _answer(self, topic: Topic) -> None:
        # An answer under the own prefix would be a trigger, a wake or a frame.
        if self._broker is None or topic[0] == self._prefix:
            return
        try:
            self._broker.publish(topic, b"")
        except BadInput as error:
            self._count(error)

    def _count(self, error: BadInput) -> None:
        self._bridge.emit(TriggerRefused(self.bus, error.code))
        held = self._complaints.passes(asyncio.get_running_loop().time())
        if held is not None:
            log.warning(
                "invalid message on a bus: %s", error,
                extra={"bus": self.bus, "code": error.code, "more_since_last": held},
            )  # fmt: skip


class _Waiting(msgspec.Struct):
    """A trigger of this turn of the event loop, and all messages that sent it."""

    event: CloudQueueWorkDetected
    senders: list[Incoming]

    def merged(self) -> CloudQueueWorkDetected:
        """Return one event for all of them."""
        if len(self.senders) == 1:
            return self.event
        size = min(self.event.payload_size * len(self.senders), PAYLOAD_SIZE_MAX)
        return msgspec.structs.replace(self.event, payload_size=size)


def _decode_nats(incoming: Incoming) -> list[CloudQueueWorkDetected]:
    from queuebell.bridge.contract.cloudevents import decode_nats

    headers: Mapping[str, str] = incoming.headers
    if incoming.content_type is not None:
        headers = {**headers, "content-type": incoming.content_type}
    if not incoming.payload and not _describes(headers):
        return _bare(incoming)
    return decode_nats(headers, incoming.payload, _queue_of(incoming))


def _decode_mqtt(incoming: Incoming) -> list[CloudQueueWorkDetected]:
    from queuebell.bridge.contract.cloudevents import decode_mqtt

    if not incoming.payload and not _describes(incoming.headers):
        return _bare(incoming)
    return decode_mqtt(incoming.content_type, incoming.headers, incoming.payload, _queue_of(incoming))


def _describes(headers: Mapping[str, str]) -> bool:
    """Return whether headers make an empty body a binary CloudEvent."""
    return "ce-specversion" in headers or "specversion" in headers


def _queue_of(incoming: Incoming) -> str:
    return f"{incoming.topic[2]}/{incoming.topic[3]}"


def _bare(incoming: Incoming) -> list[CloudQueueWorkDetected]:
    return [CloudQueueWorkDetected(incoming.topic[2], incoming.topic[3])]
