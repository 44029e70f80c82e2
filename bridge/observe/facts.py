"""Facts: what happened in the bridge; logs, metrics, state and tests all read this stream.

Rules emit facts and know no metrics. An observer is called in the same tick, must not block, and must not call back.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from queuebell.bridge.contract.jobs import Jobs


class Fact(msgspec.Struct, frozen=True, tag_field="fact", tag=str.lower):
    """The root of all facts."""


class Triggered(Fact, frozen=True):
    """A trigger was accepted and merged into the queue's pending work.

    ``bus`` is ``store`` for a put on an embedded queue; ``count`` is above 1 if several came at once.
    """

    queue: str
    bus: str
    size: int
    count: int = 1


class DuplicateDropped(Fact, frozen=True):
    """A copy of an accepted trigger came over another bus (B13)."""

    queue: str
    bus: str


class Woken(Fact, frozen=True):
    """A wake was sent to a session, ``waited_s`` after it was requested."""

    queue: str
    session: int
    reason: str
    waited_s: float
    carried: int


class HandlerStarted(Fact, frozen=True):
    """A listener reported that handlers of carried messages started, ``waited_s`` after their trigger."""

    queue: str
    waited_s: float


class Covered(Fact, frozen=True):
    """A listener reported an empty receive."""

    queue: str
    settled: bool


class StartMissed(Fact, frozen=True):
    """No `started` came within A; more sessions are woken (B4)."""

    queue: str
    round: int
    asked: int


class OwnerStuck(Fact, frozen=True):
    """A session sent `started` and then made no progress; its work went to another (B5)."""

    queue: str
    session: int


class HandedBack(Fact, frozen=True):
    """Carried messages were not accepted, or their session was lost; they were released (O7)."""

    queue: str
    count: int


class AuditFound(Fact, frozen=True):
    """Visible messages were not handled although a worker had room: a bug, repaired (O4)."""

    queue: str
    visible: int


class SessionOpened(Fact, frozen=True):
    """A session was opened."""

    session: int
    listener: str
    kind: str
    queues: int


class SessionClosed(Fact, frozen=True):
    """A session ended."""

    session: int
    listener: str
    reason: str


class SessionRefused(Fact, frozen=True):
    """A listener was rejected; ``code`` as in docs/reference/http.md. Emitted for each attempt."""

    listener: str
    code: str
    reason: str


class QueueMoved(Fact, frozen=True):
    """The backlog of an embedded queue after a commit, and the commit's operations."""

    queue: str
    visible: int
    invisible: int
    put: int
    receives: int
    empty: int
    sources: dict[str, tuple[int, int]] = {}
    """(found, empty) by wake source of receives."""


class ReceivesTold(Fact, frozen=True):
    """A listener reported receives from an external store: ``found`` returned messages, ``empty`` did not."""

    queue: str
    source: str
    found: int
    empty: int


class Unannounced(Fact, frozen=True):
    """A listener reported ``count`` receives without a trigger that found new messages: a publish was lost."""

    queue: str
    count: int


class BusUp(Fact, frozen=True):
    """A bus is connected and subscribed, ``after_s`` after it went down or was first used."""

    bus: str
    address: str
    after_s: float


class BusDown(Fact, frozen=True):
    """A bus is lost, or the first attempt failed; emitted once each time."""

    bus: str
    address: str
    reason: str


class TriggerRefused(Fact, frozen=True):
    """An invalid trigger was rejected; ``code`` as in docs/reference/http.md."""

    bus: str
    code: str


class PutRefused(Fact, frozen=True):
    """A put was rejected with 429; ``reason`` is ``bytes``, ``wait`` or ``rate``."""

    reason: str


class RoundMade(Fact, frozen=True):
    """All queues of a store of this ``kind`` were asked about at once (B17), ``answered`` or not."""

    kind: str
    answered: bool


class KedaDropped(Fact, frozen=True):
    """A stream of KEDA was ended or rejected; ``reason`` is ``slow`` (it is not read) or ``limit``."""

    reason: str


class AccessRefused(Fact, frozen=True):
    """An access was rejected; ``reason`` is ``unauthenticated``, ``forbidden`` or ``limit``.

    ``principal`` is "" if unknown, ``queue`` "" if none is concerned. ``why`` is set for a valid token at a wrong time,
    and for a frame without its ticket.
    """

    reason: str
    principal: str
    verb: str
    queue: str
    address: str
    why: str = ""


class Administered(Fact, frozen=True):
    """A permitted action changed queues (``manage``), or read or changed the bridge (``operate``)."""

    principal: str
    verb: str
    queue: str
    address: str
    action: str
    """A request's method, such as PUT."""


class Suspended(Fact, frozen=True):
    """The machine was suspended for ``slept_s``, and the bridge's clock with it; ``queues`` are checked now (B15)."""

    slept_s: float
    queues: int


class MemberCame(Fact, frozen=True):
    """The first message of a cluster member's boot arrived (C1)."""

    boot: str
    address: str
    version: str


class MemberGone(Fact, frozen=True):
    """A cluster member fell silent; ``leaving`` if it had announced that."""

    boot: str
    address: str
    leaving: bool


class MemberRefused(Fact, frozen=True):
    """A bridge on the cluster's subjects is not a member; emitted once while its messages arrive (C1, C8)."""

    boot: str
    address: str
    why: str


class SettledByPeer(Fact, frozen=True):
    """Pending work was settled by a session of the bridge ``peer``; ``by`` is ``name`` or ``time`` (C4)."""

    queue: str
    by: str
    peer: str


class ActedLate(Fact, frozen=True):
    """Another bridge was due first but did not report a check: this one checks now (C2)."""

    queue: str


class StoreDiffers(Fact, frozen=True):
    """The bridge ``peer`` reported a queue of another store than the sessions here use (B11)."""

    queue: str
    peer: str


class ClusterMessageRefused(Fact, frozen=True):
    """An invalid message on the cluster's subjects was rejected."""

    boot: str
    why: str


class WorkersTallied(Fact, frozen=True):
    """A scaler reported ``count`` more workers that started, failed or ended; ``what`` is one of `TALLIED`."""

    queue: str
    what: str
    count: int


class JobsTold(Fact, frozen=True):
    """A listener reported attempts of a handler: ``more`` is the increase of its counters."""

    queue: str
    handler: str
    more: Jobs


class OwedDropped(Fact, frozen=True):
    """A trigger of this queue will not reach the other bridges: too many were waiting for them (B16)."""

    queue: str


class LoopLagged(Fact, frozen=True):
    """The event loop was ``lag_s`` late; measured once a second."""

    lag_s: float


class Observer(Protocol):
    """A callback for facts."""

    def __call__(self, fact: Fact) -> None:
        """Process one fact."""
        ...
