"""A cluster member's link over its broker: passes messages of the other bridges to the rules, and sends theirs (C1-C6).

It decides nothing; invalid messages are counted and logged once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from queuebell.bridge.brokers.base import ANY, Broker, Incoming, SubscriptionRefused
from queuebell.bridge.contract.cluster import (
    Able,
    Asked,
    ClusterMessage,
    Covered,
    Member,
    Past,
    Sent,
    decode_cluster_message,
    encode_cluster_message,
)
from queuebell.bridge.contract.errors import BadInput, BusUnavailable
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.throttle import Throttle
from queuebell.bridge.observe.facts import ClusterMessageRefused
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.triggers.intake import Bridged

log = logging.getLogger("queuebell.bridge")

LOG_EVERY_S: Final = 1.0
RETRY_S: Final = 0.1
SLICE: Final = 250
"""Triggers sent before the broker is asked whether it has them: some milliseconds of work."""
_encode: Final = msgspec.json.Encoder().encode
_SUBJECTS: Final = {
    Member: "member",
    Able: "able",
    Covered: "covered",
    Asked: "asked",
    Sent: "sent",
    Past: "past",
}


class BrokerClusterLink:
    """Sends and receives the messages of a cluster under ``prefix``. Create it before the bridge starts.

    ``heard_by_all`` are the buses whose triggers every member receives directly.
    """

    def __init__(self, bridge: Bridge, prefix: str, heard_by_all: Collection[str], **about: str | None) -> None:
        self._bridge = bridge
        self._prefix = prefix
        self._heard_by_all = frozenset(heard_by_all)
        self._broker: Broker | None = None
        self._forbidden: str | None = None
        self._numbers = itertools.count(1)
        self._source = f"queuebell:bridge:{bridge.boot}"
        self._complaints = Throttle(LOG_EVERY_S)
        self.unconfirmed: Callable[[], int] = lambda: 0
        """Returns the number of triggers that were sent and have not come back from the broker."""
        self._member = bridge.join_cluster(self, **about)

    async def attach(self, broker: Broker) -> None:
        """Use a new connection, or act alone if the broker denies access. Raises `BusUnavailable`."""
        try:
            await broker.subscribe((self._prefix, "cluster", ANY), self._on_message)
        except SubscriptionRefused as error:
            # The connection stays: it carries triggers and sessions too.
            self._forbidden = str(error)
            self._bridge.add_check("cluster", self.check, required=False)
            log.warning(
                "the broker denies this bridge access to the cluster's subjects: it acts alone and loses "
                "nothing; allow its user to subscribe to and publish on %s.cluster.*", self._prefix,
                extra={"error": str(error)},
            )  # fmt: skip
            return
        self._forbidden = None
        self._broker = broker
        self._member.connected(True)

    def check(self) -> tuple[bool, str]:
        """Return whether the broker grants access to the cluster's subjects, for `/readyz`."""
        if self._forbidden is None:
            return True, "the cluster's subjects are accessible"
        denied = "the broker denies this bridge access to the cluster's subjects, so it acts alone"
        return False, f"{denied}: {self._forbidden}"

    def detach(self) -> None:
        """Act alone: the connection is lost."""
        if self._broker is not None:
            self._broker = None
            self._member.connected(False)

    def broadcast(self, message: ClusterMessage) -> None:
        """Send a message now or drop it: later it would be outdated."""
        if self._broker is not None:
            self._broker.publish((self._prefix, "cluster", _SUBJECTS[type(message)]), encode_cluster_message(message))

    @property
    def shares(self) -> bool:
        """Whether the other members mark the same triggers."""
        return self._broker is not None

    def with_ids(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> Sequence[CloudQueueWorkDetected]:
        """Give an id to each trigger without one that is sent to the others, so that they can refer to it (C6)."""
        if bus in self._heard_by_all:
            return events
        return [
            event
            if event.id and event.source
            else msgspec.structs.replace(event, id=str(next(self._numbers)), source=self._source)
            for event in events
        ]

    def reaches_all(self, bus: str) -> bool:
        """Return whether every member receives this bus directly."""
        return bus in self._heard_by_all

    def send_triggers(self, events: Sequence[CloudQueueWorkDetected]) -> int:
        """Send triggers to the others; return how many, from the first on, were sent."""
        if self._broker is None:
            return 0
        for place, event in enumerate(events):
            topic = (self._prefix, "trigger", event.storage_account, event.queue_name)
            sent = Bridged(**msgspec.structs.asdict(event), via=self._bridge.boot)
            if not self._broker.publish(topic, _encode(sent)):
                return place
        return len(events)

    async def hand_over_queues(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Send the others what is pending here, as triggers (C7).

        Returns once the broker has confirmed them, on a later connection if this one breaks. It has no time limit.
        """
        for begin in range(0, max(1, len(events)), SLICE):
            left, last = self.with_ids(events[begin : begin + SLICE], ""), begin + SLICE >= len(events)
            while self._forbidden is None and (left or (last and self.unconfirmed())):
                broker, count = self._broker, self.send_triggers(left)
                if broker is not None and count:
                    # Unconfirmed triggers are sent again with the same ids.
                    with contextlib.suppress(BusUnavailable):
                        await broker.barrier()
                        left = left[count:]
                        continue
                await asyncio.sleep(RETRY_S)

    def _on_message(self, incoming: Incoming) -> None:
        try:
            message = decode_cluster_message(incoming.payload)
        except BadInput as error:
            self._bridge.emit(ClusterMessageRefused("", str(error)))
            passed = self._complaints.passes(self._bridge.now())
            if passed is not None:
                log.warning(
                    "invalid message on the cluster's subjects: %s; nothing is lost", error,
                    extra={"topic": ".".join(incoming.topic), "left_out": passed},
                )  # fmt: skip
            return
        if message is not None:
            self._member.on_message(message)
