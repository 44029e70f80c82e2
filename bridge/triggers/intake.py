"""Triggers in from a broker: the topic names the queue, the body says more or nothing.

An empty body is one trigger of size 1. A body is trigger JSON or CloudEvents, and names the queue of its topic or is
refused and counted. First the mark, then the broker's acknowledgement and the sender's answer (B1). Never in a queue
group: every bridge marks every trigger (B16).

Where the bridge asks who is there, a plain message cannot say: unless the broker's own access list is trusted to have
let the right ones in, each is counted as refused, and neither acknowledged nor answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from bridge.access.grants import Verb
from bridge.brokers.base import ANY, Broker, Incoming, Topic
from bridge.contract.errors import BadInput, QueuebellError
from bridge.contract.event import EVENT_BYTES_MAX, PAYLOAD_SIZE_MAX, CloudQueueWorkDetected, check_depth
from bridge.contract.throttle import Throttle
from bridge.observe.facts import AccessRefused, Fact, TriggerRefused

if TYPE_CHECKING:
    from bridge.service.bridge import Bridge

log = logging.getLogger("queuebell.bridge")

COMPLAIN_EVERY_S: Final = 1.0
BATCH_MAX: Final = 1024
_TOPICS_MAX: Final = 100_000

Decode = Callable[[Incoming], list[CloudQueueWorkDetected]]


class Bridged(CloudQueueWorkDetected, frozen=True, omit_defaults=True):
    """A trigger as one bridge tells it to others; ``via`` is the boot of who does, so that it knows its own echo.

    In the body and not in a header, because MQTT 3.1.1 has none. Others ignore a field that they do not know.
    """

    via: str | None = None


_decode = msgspec.json.Decoder(Bridged).decode


class _Waiting:
    """A trigger that came in this turn of the loop, and who sent the same."""

    __slots__ = ("event", "senders")

    def __init__(self, event: CloudQueueWorkDetected, incoming: Incoming) -> None:
        self.event = event
        self.senders = [incoming]

    @property
    def count(self) -> int:
        return len(self.senders)

    def add(self, incoming: Incoming) -> None:
        self.senders.append(incoming)

    def whole(self) -> CloudQueueWorkDetected:
        """Return one event for all of them."""
        if len(self.senders) == 1:
            return self.event
        size = min(self.event.payload_size * len(self.senders), PAYLOAD_SIZE_MAX)
        return msgspec.structs.replace(self.event, payload_size=size)


class Intake:
    """Takes triggers from one bus under the name ``bus``; what this bridge told the others is for ``back``."""

    def __init__(
        self,
        bridge: Bridge,
        bus: str,
        prefix: str,
        tell: Callable[[Fact], None],
        *,
        trusted: bool = True,
        back: Callable[[Bridged], None] | None = None,
    ) -> None:
        self.bus = bus
        self._bridge = bridge
        self._boot = bridge.boot
        self._prefix = prefix
        self._tell = tell
        self._trusted = trusted
        self._back = back
        self._broker: Broker | None = None
        self._decode_other: Decode = _decode_nats
        self._plain: dict[Topic, CloudQueueWorkDetected] = {}
        self._batch: dict[object, _Waiting] = {}
        self._heard = 0
        self._complaints = Throttle(COMPLAIN_EVERY_S)

    async def attach(self, broker: Broker) -> None:
        """Hear triggers on a fresh connection. Raises `BusUnavailable`."""
        self._broker = broker
        self._decode_other = _decode_mqtt if broker.kind == "mqtt" else _decode_nats
        pattern = (self._prefix, "trigger", ANY, ANY)
        if self._trusted:
            await broker.subscribe(pattern, self.hear, at_least_once=True)
        else:
            # Not at least once: what a stream or a session holds is kept for when somebody trusts it.
            await broker.subscribe(pattern, self.refuse)

    def refuse(self, incoming: Incoming) -> None:
        """Count one message of nobody knows whom. Its sender hears nothing, and says it again."""
        queue = _queue_of(incoming) if len(incoming.topic) == 4 else ""
        self._tell(AccessRefused("unauthenticated", "", Verb.RING.value, queue, self.bus))

    def hear(self, incoming: Incoming) -> None:
        """Take one message; it is marked at the end of this turn of the loop at the latest. Never raises."""
        plain = not (incoming.headers or incoming.content_type or incoming.redelivered)
        key = (incoming.topic, incoming.payload)
        same = self._batch.get(key) if plain else None
        if same is not None:
            # A flood says the same again and again: it is read once, and marked once.
            same.add(incoming)
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
            # Events with a name are each for themselves (B13), and due times are kept one by one (B2).
            self._batch[key if merges else len(self._batch)] = _Waiting(event, incoming)
        self._heard += 1
        if self._heard >= BATCH_MAX:
            self._mark_batch()

    def _mark_batch(self) -> None:
        """Mark what came in one turn of the loop in one go, which costs a third less than one by one."""
        waiting, self._batch, self._heard = list(self._batch.values()), {}, 0
        if not waiting:
            return
        try:
            events, counts = [each.whole() for each in waiting], [each.count for each in waiting]
            self._bridge.trigger(events, bus=self.bus, counts=counts)
        except QueuebellError:
            # One that is refused must not take the others with it: the bridge takes all or none.
            for each in waiting:
                for incoming in each.senders:
                    self._mark((each.event,), incoming)
        else:
            for each in waiting:
                for incoming in each.senders:
                    if incoming.acknowledge is not None or incoming.reply_to is not None:
                        self._confirm(incoming)

    def _mark(self, events: Sequence[CloudQueueWorkDetected], incoming: Incoming) -> None:
        try:
            if events:
                self._bridge.trigger(events, bus=self.bus, redelivered=incoming.redelivered)
        except BadInput as error:
            self._refuse(incoming, error)
        except QueuebellError as error:
            log.debug("a trigger was not accepted: %s", error, extra={"bus": self.bus})
        else:
            self._confirm(incoming)

    def _confirm(self, incoming: Incoming) -> None:
        if incoming.acknowledge is not None:
            incoming.acknowledge()
        if incoming.reply_to is not None:
            self._answer(incoming.reply_to)

    def _refuse(self, incoming: Incoming, error: BadInput) -> None:
        self._count(error)
        # A message that is wrong stays wrong: unacknowledged it would come again for ever and block the others. One
        # that a stopping bridge does not take may be given to the next.
        if error.code != "draining" and incoming.acknowledge is not None:
            incoming.acknowledge()

    def _read(self, incoming: Incoming) -> Sequence[CloudQueueWorkDetected]:
        topic, payload = incoming.topic, incoming.payload
        if len(topic) != 4:
            raise BadInput("bad_queue_reference", "a trigger's topic must end with account and queue")
        if incoming.headers or incoming.content_type:
            return self._of_queue(topic, self._decode_other(incoming))
        if not payload:
            return (self._plain.get(topic) or self._bare(topic),)
        try:
            if len(payload) > EVENT_BYTES_MAX or b'"specversion"' in payload:
                return self._of_queue(topic, self._decode_other(incoming))
            check_depth(payload)
            event = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # An array, or wrong: told apart, and told off, in one place.
            return self._of_queue(topic, self._decode_other(incoming))
        if event.queue_name != topic[3] or event.storage_account != topic[2]:
            raise BadInput("bad_trigger", "the body names a different queue than the topic")
        if event.via is not None and event.via == self._boot:
            if self._back is not None:
                self._back(event)
            return ()  # our own echo
        return (event,)

    def _bare(self, topic: Topic) -> CloudQueueWorkDetected:
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
        # An answer under our own prefix would be a trigger, a wake or a frame that we never meant.
        if self._broker is None or topic[0] == self._prefix:
            return
        try:
            self._broker.publish(topic, b"")
        except BadInput as error:
            self._count(error)

    def _count(self, error: BadInput) -> None:
        self._tell(TriggerRefused(self.bus, error.code))
        held = self._complaints.passes(asyncio.get_running_loop().time())
        if held is not None:
            log.warning(
                "invalid message on a bus: %s", error,
                extra={"bus": self.bus, "code": error.code, "more_since_last": held},
            )  # fmt: skip


def _decode_nats(incoming: Incoming) -> list[CloudQueueWorkDetected]:
    from bridge.contract.cloudevents import decode_nats

    headers: Mapping[str, str] = incoming.headers
    if incoming.content_type is not None:
        headers = {**headers, "content-type": incoming.content_type}
    if not incoming.payload and not _describes(headers):
        return _named(incoming)
    return decode_nats(headers, incoming.payload, _queue_of(incoming))


def _decode_mqtt(incoming: Incoming) -> list[CloudQueueWorkDetected]:
    from bridge.contract.cloudevents import decode_mqtt

    if not incoming.payload and not _describes(incoming.headers):
        return _named(incoming)
    return decode_mqtt(incoming.content_type, incoming.headers, incoming.payload, _queue_of(incoming))


def _describes(headers: Mapping[str, str]) -> bool:
    """Say whether headers make an empty body a binary CloudEvent."""
    return "ce-specversion" in headers or "specversion" in headers


def _queue_of(incoming: Incoming) -> str:
    return f"{incoming.topic[2]}/{incoming.topic[3]}"


def _named(incoming: Incoming) -> list[CloudQueueWorkDetected]:
    return [CloudQueueWorkDetected(incoming.topic[2], incoming.topic[3])]
