"""One leased message, when its lease is renewed, and how long the next leases should be.

`Held` is a message from its receipt to the end of its lease, `Renewals` returns which leases are due for renewal, and
`Visibility` lengthens the leases that follow one that proved too short.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import enum
import math
from collections import OrderedDict
from typing import Final

from queuebell.bridge.contract.burial import Burial
from queuebell.bridge.contract.times import from_rfc3339
from queuebell.bridge.contract.trace_context import TRACEPARENT, is_traceparent
from queuebell.bridge.contract.wire import CarriedMessage
from queuebell.bridge.observe.tracing import Cause, causes
from queuebell.bridge.queues.base import StoredMessage


class Act(enum.Enum):
    """What to do with a message held."""

    __hash__ = object.__hash__  # Enum's own costs a Python call per lookup

    DELETE = "delete"
    RELEASE = "release"
    EXTEND = "extend"


@dataclasses.dataclass(slots=True, eq=False)
class Held:
    """One leased message: its newest pop receipt, the end of its lease, and its handler's task."""

    number: int
    stored: StoredMessage
    lease_ends: float
    """A lower bound: counted from before the request left."""
    source: str
    began: float = 0.0
    """When it was taken for its handler, by the loop's clock."""
    receipt: str = dataclasses.field(init=False)
    """Always the newest: read when a settlement leaves, never when it was asked for."""
    task: asyncio.Task[None] | None = None
    begun: bool = False
    """The task has made its first step; one that is cancelled before makes none."""
    handler_ended: bool = False
    """Its handler has ended: if it is released now, because the listener stops, the attempt counts."""
    concluded: bool = False
    """Its delete or release is on its way."""
    fate: str = "handled"
    """Why it is deleted: ``handled``, ``buried`` or ``replayed``."""
    again: str = "failed"
    """Why it is released, if not ``given_back``: ``failed`` or ``retried``."""
    moving: bool = False
    """Its put on another queue is in flight, and may succeed even if its handler's task ends."""
    moved: bool = False
    """It is on another queue: only its delete is left to do here."""
    given_back: bool = False
    doubted: Act | None = None
    """The delete or release of it whose outcome is unknown: a refusal of the next try may show that it was done."""
    blob_moved: bool = False
    """It was dead-lettered with its own claim: the blob belongs to the dead letter now."""
    burial: Burial | None = None
    """The facts it came with, once it was opened."""
    traceparent: str | None = None
    """Its own trace context, else that of the wake that brought it, where that had one."""
    traces: tuple[str, ...] = ()
    """If it has no context of its own: those of the triggers behind the wake."""

    def __post_init__(self) -> None:
        self.receipt = self.stored.pop_receipt
        own = self.stored.headers.get(TRACEPARENT)
        if own is not None and is_traceparent(own):
            self.traceparent = own

    def causes(self) -> list[Cause]:
        """Return what a span about this message follows from."""
        return causes(self.stored.headers, self.traces, self.stored.id)

    def set_traces(self, traceparent: str | None, traces: tuple[str, ...]) -> None:
        """Set the trace contexts of the wake that brought it, unless it has its own."""
        if self.traceparent is None:
            self.traceparent, self.traces = traceparent, traces


ACCEPT_AFTER_S: Final = 0.1
"""A carried message whose handler still runs after this is accepted by its first renewal (O7)."""
LENGTHEN: Final = 1.5
LONGEST_S: Final = 604_800.0
BUCKETS_MAX: Final = 32


def shortest_visibility(store_call_s: float, receive_s: float = 0.0) -> float:
    """Return the visibility timeout (V) below which one call that hangs for its time-out (R) may cost a lease.

    A lease is renewed at half of its time, and the other half must hold the call that hangs and another one; what is
    received must not be due back before a receive that waits ``receive_s`` by design has answered.
    """
    return max(2 * store_call_s, store_call_s + receive_s)


class Visibility:
    """How long what is received stays leased: ``base`` seconds, longer once that has proved too short.

    It never shrinks: work that took too long once does so again, and a message handled twice costs more than one that
    waits a little longer after a crash. All leases that one pause of the process loses lengthen it once.
    """

    __slots__ = ("_proves_from", "base", "seconds", "too_short")

    def __init__(self, base: float) -> None:
        self.base = base
        self.seconds = base
        self.too_short = 0
        self._proves_from = 0.0

    def proved_short(self, now: float) -> None:
        """Count a message that came back while it was still being handled, and lease what follows for longer."""
        self.too_short += 1
        if now < self._proves_from:
            return
        self.seconds = min(LONGEST_S, self.base * 10, self.seconds * LENGTHEN)
        self._proves_from = now + self.seconds


class Renewals:
    """Which leases to renew when, by number of the message held.

    Two lanes, each kept in the order of time: no heap and no timer per message, and nothing is kept of a message that
    is done. Calls may answer in another order than they began, so a lease is inserted before those that are due later.
    """

    __slots__ = ("_accept", "_renew")

    def __init__(self) -> None:
        self._accept: OrderedDict[int, float] = OrderedDict()
        self._renew: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accept) + len(self._renew)

    def carried(self, number: int, now: float) -> None:
        """Note a message that came with a wake at ``now``."""
        self._accept[number] = now + ACCEPT_AFTER_S

    def leased(self, number: int, at: float, lease_s: float) -> None:
        """Note a lease of ``lease_s`` that began at ``at``: renew it at half of its time."""
        self._accept.pop(number, None)
        self._renew.pop(number, None)
        due = at + lease_s / 2
        later = []
        for other in reversed(self._renew):
            if self._renew[other] <= due:
                break
            later.append(other)
        self._renew[number] = due
        for other in reversed(later):
            self._renew.move_to_end(other)

    def forget(self, number: int) -> None:
        """Forget a message that is done, or whose lease is lost."""
        if self._accept.pop(number, None) is None:
            self._renew.pop(number, None)

    def deadline(self) -> float | None:
        """Return when the first renewal is due."""
        accept = next(iter(self._accept.values()), None) if self._accept else None
        renew = next(iter(self._renew.values())) if self._renew else None
        return accept if renew is None or (accept is not None and accept < renew) else renew

    def due(self, now: float) -> list[int]:
        """Remove and return the due ones; `leased` adds them again."""
        out: list[int] = []
        for lane in (self._accept, self._renew):
            while lane:
                number, at = next(iter(lane.items()))
                if at > now:
                    break
                del lane[number]
                out.append(number)
        return out


def visible_again(now: float, after: float, resolution_ms: int) -> float:
    """Return when to check for what becomes visible ``after`` seconds from now, in a store of this resolution.

    Rounded up, by the resolution and 1e-4 of the delay: a check one tick early finds nothing and is wasted (B2).
    """
    return now + after * 1.0001 + resolution_ms / 1000


def lease_report(ends: list[float], now: float, most: int = BUCKETS_MAX) -> list[int]:
    """Return lease ends as milliseconds from ``now`` for a heartbeat: rounded up to whole seconds, ``most`` of them.

    Where there are more, the longest is kept and the others thin out upwards: a lease reported late delays a wake, one
    not reported loses it.
    """
    whole = sorted({max(0, math.ceil(end - now)) * 1000 for end in ends})
    while len(whole) > most:
        whole = whole[::-2][::-1]
    return whole


def carried_message(carried: CarriedMessage) -> StoredMessage:
    """Read one carried message. Raises `ValueError` if its body or a date is malformed."""
    if carried.body is not None:
        body = carried.body.encode()
    else:
        body = base64.b64decode(carried.body_base64 or "", validate=True)
    return StoredMessage(
        carried.id,
        carried.pop_receipt,
        body,
        carried.dequeue_count,
        from_rfc3339(carried.inserted_at),
        None if carried.expires_at is None else from_rfc3339(carried.expires_at),
        carried.key,
        carried.headers,
    )
