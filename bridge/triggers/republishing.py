"""Sends triggers that one bridge received, by HTTP or in process, to the other bridges on its broker.

A republished event has an ``id`` and ``source``, so that a bridge that receives it from two brokers marks it once
(B13), and the republishing bridge (``via``), which ignores its own echo (B16). The echo is also the only proof that the
broker had it: a dead connection that is not yet known to be dead accepts everything and delivers nothing.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from queuebell.bridge.brokers.base import Broker
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.throttle import Throttle
from queuebell.bridge.observe.facts import Fact, OwedDropped
from queuebell.bridge.triggers.intake import Bridged

log = logging.getLogger("queuebell.bridge")

WAITING_MAX: Final = 10_000
LOG_EVERY_S: Final = 1.0
PROVEN_S: Final = 60.0
"""Sent this long before a connection ended, a trigger has arrived: a dead connection is found in seconds, and a broker
without echoes (one consumer for several bridges) must not get everything again."""
_encoder = msgspec.json.Encoder()

_Key = tuple[str, str | None, str | None]
"""Queue, source and id; without the last two: all triggers of a queue that are for now."""


class Republisher:
    """Sends one broker the triggers of buses other than ``brokers``, and again those without an echo.

    If more than `WAITING_MAX` wait for a connection, the oldest are dropped and reported to ``emit``. Workers at other
    bridges find that work by their sweep.
    """

    def __init__(
        self,
        boot: str,
        prefix: str,
        brokers: Collection[str],
        now: Callable[[], float],
        emit: Callable[[Fact], None],
    ) -> None:
        self._boot = boot
        self._prefix = prefix
        self._brokers = frozenset(brokers)
        self._now = now
        self._emit = emit
        self._complaints = Throttle(LOG_EVERY_S)
        self._broker: Broker | None = None
        self._numbers = itertools.count(1)
        self._source = f"queuebell:bridge:{boot}"
        # Each with its due time, None for now.
        self._waiting: OrderedDict[_Key, tuple[Bridged, float | None]] = OrderedDict()
        # Sent and without an echo so far, oldest first, each with the time of sending.
        self._sent: OrderedDict[_Key, tuple[Bridged, float | None, float]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many triggers wait for the broker; those of one queue that are for now count as one."""
        return len(self._waiting) if self._broker is not None else len(self._waiting) + len(self._sent)

    @property
    def unconfirmed(self) -> int:
        """How many triggers the others may not have, including those in flight."""
        return len(self._waiting) + len(self._sent)

    def attach(self, broker: Broker | None) -> None:
        """Use another connection, or none; send what waited, and what had no echo on the connection before."""
        self._broker = broker
        if broker is not None:
            self._forget_old()
            sent, self._sent = self._sent, OrderedDict()
            for event, due_at, _ in sent.values():
                self._keep(event, due_at)
            waiting, self._waiting = self._waiting, OrderedDict()
            for event, due_at in waiting.values():
                self._send(event, due_at)

    def republish(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> None:
        """Send triggers that were marked here."""
        if bus not in self._brokers:
            for event in events:
                if isinstance(event, Bridged) and event.via is not None:
                    # Another bridge republished it; again would be endless.
                    continue
                due_at = self._now() + event.not_before_ms / 1000 if event.not_before_ms else None
                self._send(self._named(event), due_at)

    def confirm(self, event: Bridged) -> None:
        """Note an echo: the broker had the trigger and has delivered it."""
        self._sent.pop((event.queue, event.source, event.id), None)

    def _send(self, event: Bridged, due_at: float | None) -> None:
        if due_at is not None:
            # Relative to the time of sending. Rounded up, because early would be a loss (B2).
            later_ms = max(0, math.ceil((due_at - self._now()) * 1000))
            event = msgspec.structs.replace(event, not_before_ms=later_ms)
        topic = (self._prefix, "trigger", event.storage_account, event.queue_name)
        if self._broker is None or not self._broker.publish(topic, _encoder.encode(event)):
            self._keep(event, due_at)
        else:
            key = (event.queue, event.source, event.id)
            self._sent[key] = (event, due_at, self._now())
            self._sent.move_to_end(key)
            self._forget_old()

    def _forget_old(self) -> None:
        old = self._now() - PROVEN_S
        while self._sent and (len(self._sent) > WAITING_MAX or next(iter(self._sent.values()))[2] < old):
            self._sent.popitem(last=False)

    def _keep(self, event: Bridged, due_at: float | None) -> None:
        # Of those for now one for each queue: the others only need to check it. Later ones all count (B2).
        key = (event.queue, None, None) if due_at is None else (event.queue, event.source, event.id)
        self._waiting[key] = (event, due_at)
        if len(self._waiting) > WAITING_MAX:
            (queue, _, _), _ = self._waiting.popitem(last=False)
            self._emit(OwedDropped(queue))
            passed = self._complaints.passes(self._now())
            if passed is not None:
                log.warning(
                    "the broker is disconnected, and more than %d triggers are queued for the other bridges: "
                    "the oldest is dropped. This bridge checks its queue; workers at other bridges find its "
                    "messages in the next sweep", WAITING_MAX,
                    extra={"queue": queue, "left_out": passed},
                )  # fmt: skip

    def _named(self, event: CloudQueueWorkDetected) -> Bridged:
        fields = {**msgspec.structs.asdict(event), "via": self._boot}
        if not (event.id and event.source):
            fields |= {"id": str(next(self._numbers)), "source": self._source}
        return Bridged(**fields)
