"""What happened, as frozen facts; log, metric, state and tests read the same stream.

Rules emit facts and know no metric names. An observer is called in the tick in which the fact became true, must not
block, and must not call back.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from bridge.contract.jobs import Jobs


class Fact(msgspec.Struct, frozen=True, tag_field="fact", tag=str.lower):
    """The root of all facts."""


class Triggered(Fact, frozen=True):
    """A trigger came in and was merged into the queue's debt.

    ``bus`` is ``store`` for a put of the own queue; ``count`` is above 1 where several came at once.
    """

    queue: str
    bus: str
    size: int
    count: int = 1


class DuplicateDropped(Fact, frozen=True):
    """A copy of a trigger that was marked before came by another bus (B13)."""

    queue: str
    bus: str


class Woken(Fact, frozen=True):
    """A wake left for a session, ``waited_s`` after the mark it answers."""

    queue: str
    session: int
    reason: str
    waited_s: float
    carried: int


class HandlerStarted(Fact, frozen=True):
    """A listener said that it took up carried messages, ``waited_s`` after their trigger."""

    queue: str
    waited_s: float


class Covered(Fact, frozen=True):
    """A listener's empty receive was reported."""

    queue: str
    settled: bool


class StartMissed(Fact, frozen=True):
    """No `started` came within A; others are asked too (B4)."""

    queue: str
    round: int
    asked: int


class OwnerStuck(Fact, frozen=True):
    """A session said `started` and then showed no progress; the debt went to another (B5)."""

    queue: str
    session: int


class HandedBack(Fact, frozen=True):
    """Carried messages were not taken up, or their session was lost; they were released (O7)."""

    queue: str
    count: int


class AuditFound(Fact, frozen=True):
    """Visible work that nobody was working on although somebody had room: a bug of ours, repaired (O4)."""

    queue: str
    visible: int


class SessionOpened(Fact, frozen=True):
    """A listener said hello."""

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
    """A listener is not heard; ``code`` as in docs/http.md. Told each time it tries."""

    listener: str
    code: str
    reason: str


class QueueMoved(Fact, frozen=True):
    """The level of an own queue after a commit, and what the commit did."""

    queue: str
    visible: int
    invisible: int
    put: int
    receives: int
    empty: int
    sources: dict[str, tuple[int, int]] = {}
    """(found, empty) by wake source, of the receives that said one."""


class ReceivesTold(Fact, frozen=True):
    """A listener told of receives that the queue service did not see: ``found`` work, ``empty`` not."""

    queue: str
    source: str
    found: int
    empty: int


class Unannounced(Fact, frozen=True):
    """A listener told of ``count`` looks that nobody had asked for and that found new work: a publish was lost."""

    queue: str
    count: int


class BusUp(Fact, frozen=True):
    """A bus is connected and subscribed, ``after_s`` after it went down or was first wanted."""

    bus: str
    address: str
    after_s: float


class BusDown(Fact, frozen=True):
    """A bus is lost, or could not be had at the first try; told once for each time."""

    bus: str
    address: str
    reason: str


class TriggerRefused(Fact, frozen=True):
    """A message that should have been a trigger was refused; ``code`` as in docs/http.md."""

    bus: str
    code: str


class PutRefused(Fact, frozen=True):
    """A put was refused with 429; ``reason`` is ``bytes``, ``wait`` or ``rate``."""

    reason: str


class KedaDropped(Fact, frozen=True):
    """A stream of KEDA's was ended or not begun; ``reason`` is ``slow`` (it is not read), or ``limit``."""

    reason: str


class AccessRefused(Fact, frozen=True):
    """Somebody was not let do something; ``reason`` is ``unauthenticated``, ``forbidden`` or ``limit``.

    ``principal`` is "" for whom nobody knows, ``queue`` "" where it is about none. ``why`` is there where a good token
    came at a wrong time, or a frame without its ticket.
    """

    reason: str
    principal: str
    verb: str
    queue: str
    address: str
    why: str = ""


class Administered(Fact, frozen=True):
    """Somebody was let do what changes queues (``manage``) or shows and changes the bridge (``operate``)."""

    principal: str
    verb: str
    queue: str
    address: str
    action: str
    """A request's method, PUT say."""


class Suspended(Fact, frozen=True):
    """The machine slept for ``slept_s``, and the bridge's clock with it; ``queues`` are looked at for it (B15)."""

    slept_s: float
    queues: int


class MemberCame(Fact, frozen=True):
    """A bridge of the cluster was heard for the first time in its boot (C1)."""

    boot: str
    address: str
    version: str


class MemberGone(Fact, frozen=True):
    """A bridge of the cluster fell silent; ``leaving`` where it had said so."""

    boot: str
    address: str
    leaving: bool


class MemberRefused(Fact, frozen=True):
    """A bridge on the cluster's subjects is none of its members; told once while it is heard (C1, C8)."""

    boot: str
    address: str
    why: str


class SettledByPeer(Fact, frozen=True):
    """What was owed here was paid by a session of the bridge ``peer``; ``by`` is ``name`` or ``time`` (C4)."""

    queue: str
    by: str
    peer: str


class ActedLate(Fact, frozen=True):
    """Another bridge came first, and nothing was heard of a look of its: this one looks now (C2)."""

    queue: str


class StoreDiffers(Fact, frozen=True):
    """What the bridge ``peer`` told of a queue is about another store than the sessions here use (B11)."""

    queue: str
    peer: str


class ClusterMessageRefused(Fact, frozen=True):
    """A word on the cluster's subjects was not taken."""

    boot: str
    why: str


class WorkersTallied(Fact, frozen=True):
    """A scaler told of ``count`` more of its workers that started, failed or ended; ``what`` is one of `TALLIED`."""

    queue: str
    what: str
    count: int


class JobsTold(Fact, frozen=True):
    """A listener told of more attempts of a handler: ``more`` is what is new in its counters."""

    queue: str
    handler: str
    more: Jobs


class OwedDropped(Fact, frozen=True):
    """The other bridges will not be told of a trigger of this queue: too many were owed to them (B16)."""

    queue: str


class LoopLagged(Fact, frozen=True):
    """The event loop came ``lag_s`` late to what was due; told once a second, mostly with next to nothing."""

    lag_s: float


class Observer(Protocol):
    """Hears facts."""

    def __call__(self, fact: Fact) -> None:
        """Take note of one fact."""
        ...
