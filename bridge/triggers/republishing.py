"""Several bridges on one broker: a trigger that only one of them was told of, by HTTP or in process, is told to all.

Republished events name their publish (``id`` and ``source``), so that a bridge that hears them on two brokers marks
once (B13), and who republished (``via``), so that nobody takes its own echo for news (B16). That echo is also the only
proof that the broker had it: a connection that is dead and not yet known to be takes everything, and brings nothing.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from bridge.brokers.base import Broker
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.throttle import Throttle
from bridge.observe.facts import Fact, OwedDropped
from bridge.triggers.intake import Bridged

log = logging.getLogger("queuebell.bridge")

OWED_MAX: Final = 10_000
COMPLAIN_EVERY_S: Final = 1.0
PROVEN_S: Final = 60.0
"""What was told so long before a connection ended arrived: a dead one is found in seconds, and a broker that brings no
echo (one consumer for several bridges) must not have all told again."""
_encoder = msgspec.json.Encoder()

_Key = tuple[str, str | None, str | None]
"""Queue, source and id; without the last two, all of a queue that are for now."""


class Republisher:
    """Tells one broker what came by other ways than ``brokers`` (names of buses), and again what did not come back.

    Of more than `OWED_MAX` that wait for a connection the oldest are given up: ``tell`` is told of each. The other
    bridges' workers then find that work by the sweep.
    """

    def __init__(
        self,
        boot: str,
        prefix: str,
        brokers: Collection[str],
        now: Callable[[], float],
        tell: Callable[[Fact], None],
    ) -> None:
        self._boot = boot
        self._prefix = prefix
        self._brokers = frozenset(brokers)
        self._now = now
        self._announce = tell
        self._complaints = Throttle(COMPLAIN_EVERY_S)
        self._broker: Broker | None = None
        self._numbers = itertools.count(1)
        self._source = f"queuebell:bridge:{boot}"
        # And when each is due, where it is for later.
        self._owed: OrderedDict[_Key, tuple[Bridged, float | None]] = OrderedDict()
        # Told, in this order, and not yet back.
        self._told: OrderedDict[_Key, tuple[Bridged, float | None, float]] = OrderedDict()

    @property
    def owed(self) -> int:
        """How many triggers the others have not been told of, as far as is known; of one queue all for now are one."""
        return len(self._owed) if self._broker is not None else len(self._owed) + len(self._told)

    @property
    def unproven(self) -> int:
        """How many triggers the others may not have, as far as is known: those that are under way among them."""
        return len(self._owed) + len(self._told)

    def attach(self, broker: Broker | None) -> None:
        """Use another connection, or none; what was owed, and what went into one that ended, is told now."""
        self._broker = broker
        if broker is not None:
            self._forget_old()
            told, self._told = self._told, OrderedDict()
            for event, due_at, _ in told.values():
                self._owe(event, due_at)
            owed, self._owed = self._owed, OrderedDict()
            for event, due_at in owed.values():
                self._tell(event, due_at)

    def hear(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> None:
        """Take triggers that were marked."""
        if bus not in self._brokers:
            for event in events:
                if isinstance(event, Bridged) and event.via is not None:
                    # Another bridge told it: to tell it on would be told on in turn.
                    continue
                due_at = self._now() + event.not_before_ms / 1000 if event.not_before_ms else None
                self._tell(self._bridged(event), due_at)

    def back(self, event: Bridged) -> None:
        """Take note of an own echo: the broker had it, and so had whoever hears it."""
        self._told.pop((event.queue, event.source, event.id), None)

    def _tell(self, event: Bridged, due_at: float | None) -> None:
        if due_at is not None:
            # Relative to when it is told: after an outage that is nearer. Rounded up, for early would be a loss (B2).
            later_ms = max(0, math.ceil((due_at - self._now()) * 1000))
            event = msgspec.structs.replace(event, not_before_ms=later_ms)
        topic = (self._prefix, "trigger", event.storage_account, event.queue_name)
        if self._broker is None or not self._broker.publish(topic, _encoder.encode(event)):
            self._owe(event, due_at)
        else:
            key = (event.queue, event.source, event.id)
            self._told[key] = (event, due_at, self._now())
            self._told.move_to_end(key)
            self._forget_old()

    def _forget_old(self) -> None:
        old = self._now() - PROVEN_S
        while self._told and (len(self._told) > OWED_MAX or next(iter(self._told.values()))[2] < old):
            self._told.popitem(last=False)

    def _owe(self, event: Bridged, due_at: float | None) -> None:
        # Of those for now one for each queue: after an outage the others need to look, not to hear how often. Each of
        # those for later is for itself (B2).
        key = (event.queue, None, None) if due_at is None else (event.queue, event.source, event.id)
        self._owed[key] = (event, due_at)
        if len(self._owed) > OWED_MAX:
            (queue, _, _), _ = self._owed.popitem(last=False)
            self._give_up(queue)

    def _give_up(self, queue: str) -> None:
        self._announce(OwedDropped(queue))
        passed = self._complaints.passes(self._now())
        if passed is not None:
            log.warning(
                "the broker is disconnected, and more than %d triggers are queued for the other bridges: "
                "the oldest is dropped. This bridge checks its queue; workers at other bridges find its "
                "messages in the next sweep", OWED_MAX,
                extra={"queue": queue, "left_out": passed},
            )  # fmt: skip

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
            traces=event.traces,
            via=self._boot,
        )
