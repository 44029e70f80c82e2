"""One member of a cluster on its broker: it brings the words of the others to the rules, and says theirs (C1 to C6).

It decides nothing. What is no word is counted and told of once a second; the rules judge the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from bridge.brokers.base import ANY, Broker, Incoming, SubscriptionRefused
from bridge.contract.cluster import (
    Able,
    ClusterMessage,
    Covered,
    Member,
    Sent,
    decode_cluster_message,
    encode_cluster_message,
)
from bridge.contract.errors import BadInput, BusUnavailable
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.throttle import Throttle
from bridge.observe.facts import ClusterMessageRefused
from bridge.service.bridge import Bridge
from bridge.triggers.intake import Bridged

log = logging.getLogger("queuebell.bridge")

COMPLAIN_EVERY_S: Final = 1.0
AGAIN_S: Final = 0.1
SLICE: Final = 250
"""So many triggers are told before the broker is asked whether it has them: some milliseconds of work."""
_encode: Final = msgspec.json.Encoder().encode
_SUBJECTS: Final = {Member: "member", Able: "able", Covered: "covered", Sent: "sent"}


class BrokerClusterLink:
    """What one bridge hears of the others of its cluster, and says to them, under ``prefix``.

    ``heard_by_all`` are the buses whose triggers every member hears by itself. Make it before the bridge starts.
    """

    def __init__(self, bridge: Bridge, prefix: str, heard_by_all: Collection[str], **about: str | None) -> None:
        self._bridge = bridge
        self._prefix = prefix
        self._heard_by_all = frozenset(heard_by_all)
        self._broker: Broker | None = None
        self._forbidden: str | None = None
        self._numbers = itertools.count(1)
        self._source = f"queuebell:bridge:{bridge.boot}"
        self._complaints = Throttle(COMPLAIN_EVERY_S)
        self.unproven: Callable[[], int] = lambda: 0
        """How many triggers that were marked here the broker has not brought back."""
        self._member = bridge.join_cluster(self, **about)

    async def attach(self, broker: Broker) -> None:
        """Speak and hear on a fresh connection, or be alone where the broker forbids it. Raises `BusUnavailable`."""
        try:
            await broker.subscribe((self._prefix, "cluster", ANY), self._hear)
        except SubscriptionRefused as error:
            # Not the end of the connection: triggers and sessions come by it too.
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
        """Return whether the broker lets this bridge hear the others, for `/readyz`."""
        if self._forbidden is None:
            return True, "the cluster's subjects are accessible"
        return (
            False,
            f"the broker denies this bridge access to the cluster's subjects, so it acts alone: {self._forbidden}",
        )

    def detach(self) -> None:
        """The connection is gone: be alone."""
        if self._broker is not None:
            self._broker = None
            self._member.connected(False)

    def broadcast(self, message: ClusterMessage) -> None:
        """Say one word; if that cannot be done now, not at all: what is said later would be wrong, or said again."""
        if self._broker is not None:
            self._broker.publish((self._prefix, "cluster", _SUBJECTS[type(message)]), encode_cluster_message(message))

    @property
    def shares(self) -> bool:
        """Whether what is marked here is marked by the others too."""
        return self._broker is not None

    def with_ids(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> Sequence[CloudQueueWorkDetected]:
        """Give a name to each that has none and is going to be told to the others: their covers then name it (C6)."""
        if bus in self._heard_by_all:
            return events
        return [
            event
            if event.id and event.source
            else msgspec.structs.replace(event, id=str(next(self._numbers)), source=self._source)
            for event in events
        ]

    def reaches_all(self, bus: str) -> bool:
        """Whether all hear what comes by this bus, each by itself."""
        return bus in self._heard_by_all

    def send_triggers(self, events: Sequence[CloudQueueWorkDetected]) -> int:
        """Tell the others of these triggers, and return how many of them are on their way: the first ones."""
        if self._broker is None:
            return 0
        for place, event in enumerate(events):
            topic = (self._prefix, "trigger", event.storage_account, event.queue_name)
            told = Bridged(**msgspec.structs.asdict(event), via=self._bridge.boot)
            if not self._broker.publish(topic, _encode(told)):
                return place
        return len(events)

    async def hand_over_queues(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Tell the others what this bridge leaves behind: triggers like any other (C7).

        Returns when the broker has answered that it has them, on a later connection if this one breaks; cancel it to
        wait no longer.
        """
        for begin in range(0, max(1, len(events)), SLICE):
            left, last = self.with_ids(events[begin : begin + SLICE], ""), begin + SLICE >= len(events)
            while self._forbidden is None and (left or (last and self.unproven())):
                broker, count = self._broker, self.send_triggers(left)
                if broker is not None and count:
                    # What is not known to be there is told again, by the same names.
                    with contextlib.suppress(BusUnavailable):
                        await broker.barrier()
                        left = left[count:]
                        continue
                await asyncio.sleep(AGAIN_S)

    def _hear(self, incoming: Incoming) -> None:
        try:
            word = decode_cluster_message(incoming.payload)
        except BadInput as error:
            self._bridge.emit(ClusterMessageRefused("", str(error)))
            passed = self._complaints.passes(self._bridge.now())
            if passed is not None:
                log.warning(
                    "invalid message on the cluster's subjects: %s; nothing is lost", error,
                    extra={"topic": ".".join(incoming.topic), "left_out": passed},
                )  # fmt: skip
            return
        if word is not None:
            self._member.on_message(word)
