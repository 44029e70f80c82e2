"""Several bridges on one broker: a trigger that only one of them was told of, by HTTP or in process, is told to all.

Republished events name their publish (``id`` and ``source``), so that a bridge that hears them on two brokers marks
once (B13), and who republished (``via``), so that nobody takes its own echo for news (B16).
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from bridge.brokers.base import Broker
from bridge.contract.event import CloudQueueWorkDetected
from bridge.triggers.intake import Bridged

OWED_MAX: Final = 10_000
_encoder = msgspec.json.Encoder()


class Republisher:
    """Tells one broker what came by other ways than ``brokers`` (names of buses)."""

    def __init__(self, boot: str, prefix: str, brokers: Collection[str]) -> None:
        self._boot = boot
        self._prefix = prefix
        self._brokers = frozenset(brokers)
        self._broker: Broker | None = None
        self._numbers = itertools.count(1)
        self._source = f"queuebell:bridge:{boot}"
        # One for each queue: after an outage the other bridges need to look, not to hear how often.
        self._owed: OrderedDict[str, CloudQueueWorkDetected] = OrderedDict()

    def attach(self, broker: Broker | None) -> None:
        """Use another connection, or none; what was owed is told now."""
        self._broker = broker
        if broker is not None:
            owed, self._owed = self._owed, OrderedDict()
            for event in owed.values():
                self._tell(event)

    def hear(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> None:
        """Take triggers that were marked."""
        if bus not in self._brokers:
            for event in events:
                self._tell(event)

    def _tell(self, event: CloudQueueWorkDetected) -> None:
        topic = (self._prefix, "trigger", event.storage_account, event.queue_name)
        if self._broker is None or not self._broker.publish(topic, _encoder.encode(self._bridged(event))):
            self._owed[event.queue] = event
            if len(self._owed) > OWED_MAX:
                self._owed.popitem(last=False)

    def _bridged(self, event: CloudQueueWorkDetected) -> Bridged:
        named = bool(event.id and event.source)
        return Bridged(
            storage_account=event.storage_account,
            queue_name=event.queue_name,
            payload_size=event.payload_size,
            id=event.id if named else str(next(self._numbers)),
            source=event.source if named else self._source,
            time=event.time,
            not_before_ms=event.not_before_ms,
            traceparent=event.traceparent,
            via=self._boot,
        )
