"""Define the bridge's HTTP answers, one struct each, which the commands read; pure.

Fields that older bridges do not send have a default. Fields that a kind of listener never has are unset.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from queuebell.bridge.contract.jobs import Jobs
from queuebell.bridge.contract.wire import Depth, Processes
from queuebell.bridge.core.settings import Numbers


class Check(msgspec.Struct, frozen=True):
    """One check of ``/readyz``."""

    ok: bool
    detail: str


class Readiness(msgspec.Struct, frozen=True):
    """The answer of ``/readyz``."""

    ready: bool
    checks: dict[str, Check] = {}


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The known counts and ages of a queue's messages.

    For a queue in an external store these are the counts a listener last reported, ``depth_age_ms`` ago; None before
    the first report. For an embedded queue they are current and have no age, unless the listeners of that name read
    and counted an external store.
    """

    exists: bool | None = None
    depth: Depth | None = None
    depth_age_ms: int | None = None
    depth_at_least: bool = False
    oldest_ms: int | None = None
    """Time for which the oldest visible message has waited; it grows between counts."""
    leased: int | None = None
    """Invisible messages that are leased."""
    delayed: int | None = None
    """Invisible messages that were put or returned with a delay."""
    buried: int | None = None
    """Dead letters in its poison queue; None for a poison queue."""
    buried_age_ms: int | None = None
    """Age of that count; None if it is current."""
    buried_in: str | None = None
    """The poison queue, if it is not called ``QUEUE-poison``."""
    untold: dict[str, str] = {}
    """By field, of ``depth visible oldest_ms leased delayed buried``: why it is None or inexact."""


class Receives(msgspec.Struct, frozen=True):
    """Successful receives since the bridge started."""

    total: int = 0
    empty: int = 0


class QueueState(Content, frozen=True, kw_only=True):
    """The answer of ``/v1/queues/ACCOUNT/QUEUE``; counters since the bridge started."""

    queue: str
    paused: bool = False
    gen: int = 0
    dirty: bool = False
    sessions: int = 0
    unattended: str | None = None
    wakes: dict[str, int] = {}
    receives: Receives = Receives()
    wake_sources: dict[str, int] = {}
    triggers: int = 0
    jobs: dict[str, Jobs] = {}
    """By handler: the outcomes that listeners reported, and the calls in flight."""
    unannounced: int = 0
    """Receives without a trigger that found new work: its publish was lost."""


class QueueNames(msgspec.Struct, frozen=True):
    """The answer of ``/v1/queues``, a page of references; pass ``next`` as ``after`` to get the following page."""

    queues: list[str] = []
    next: str | None = None
    metadata: list[dict[str, str]] | UnsetType = UNSET
    """That of each queue, if it was asked for."""


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of a listener; only sessions have the other fields."""

    queue: str
    capacity: int | UnsetType = UNSET
    free: int | UnsetType = UNSET
    has_room: bool | UnsetType = UNSET
    owns: bool | UnsetType = UNSET
    failing_s: float | UnsetType | None = UNSET
    """Time for which its receives have failed; None if the last succeeded."""
    hung: int | UnsetType = UNSET
    """Slots taken by handlers that exceeded their timeout."""
    processes: Processes | UnsetType | None = UNSET
    """Of a scaler: its workers by its newest heartbeat; None before the first."""


class ListenerState(msgspec.Struct, frozen=True, kw_only=True):
    """One session, event stream or webhook."""

    listener: str = ""
    channel: str = ""
    queues: list[Subscribed] = []
    kind: str | UnsetType = UNSET
    """Of a session: ``listener`` or ``scaler``."""
    instance: str | UnsetType = UNSET
    connected_s: float | UnsetType = UNSET
    silent_s: float | UnsetType = UNSET
    state: str | UnsetType = UNSET
    """Of a webhook: ``ok failing disabled``."""
    detail: str | UnsetType = UNSET
    delivered: int | UnsetType = UNSET
    failures: int | UnsetType = UNSET
    dropped: int | UnsetType = UNSET
    pending: bool | UnsetType = UNSET


class Listeners(msgspec.Struct, frozen=True):
    """The answer of ``/v1/listeners``: sessions first, plain subscribers after them."""

    listeners: list[ListenerState] = []


class Unattended(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that has work and no worker."""

    queue: str
    detail: str
    exists: bool | None = None
    """Whether the bridge's queue service holds it; older bridges send None."""
    visible: int = 0
    invisible: int = 0
    dirty: bool = False
    stranded: bool = False
    """Its listeners use another store."""
    after_gap: bool = False
    """Triggers may have been lost, and there is no listener; no work is known. This is not a fault."""

    @property
    def here(self) -> bool:
        """Whether the bridge's queue service holds its messages, so that ``visible`` counts them."""
        return self.visible > 0 if self.exists is None else self.exists


class Troubled(msgspec.Struct, frozen=True, kw_only=True):
    """A listener in trouble; ``queue`` is None if all of its queues are affected."""

    state: str
    """``silent failing hung starved stuck deaf behind`` of a session, ``workers`` of a scaler whose newest worker
    failed, ``unreached disabled`` of a webhook."""
    detail: str
    listener: str | None = None
    instance: str | None = None
    channel: str | None = None
    queue: str | None = None


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that the bridge rejected within the last 90 s; it polls and retries."""

    queue: str
    """"" if the bridge could not read the worker's queues."""
    listener: str
    code: str
    """``store_mismatch``, ``forbidden``, or the code of a frame that cannot be read."""
    detail: str
    count: int
    first_ms: int
    """Age of the first of these rejections; ``last_ms`` is that of the newest."""
    last_ms: int


class ClusterMember(msgspec.Struct, frozen=True, kw_only=True):
    """One bridge of a cluster."""

    boot: str
    address: str | None
    version: str
    me: bool
    """Whether it is the bridge that answers."""
    leaving: bool
    silent_ms: int
    """Time since its last message."""
    queues: int
    """Queues with sessions."""
    able: int
    """Queues with a session that has room."""


class RefusedMember(msgspec.Struct, frozen=True):
    """A bridge on the cluster's subjects that was rejected as a member, and why."""

    boot: str
    address: str
    why: str


class Deferred(msgspec.Struct, frozen=True):
    """A queue deferred to another bridge, and the time after which this one acts if that does not."""

    queue: str
    acts_in_ms: int


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/cluster``: the cluster as this bridge sees it; ``name`` is None without a cluster."""

    name: str | None = None
    alone: bool = True
    """Whether it acts alone: it receives no messages from others, or not even its own."""
    members: list[ClusterMember] = []
    refused: list[RefusedMember] = []
    went: dict[str, int] = {}
    """By address or boot: departures of a member within the last five minutes."""
    deferred: list[Deferred] = []
    left_out: int = 0
    """Deferred queues beyond 1000."""


class RuleNumbers(Numbers, frozen=True, kw_only=True):
    """The settings of the bridge for the queues that match ``match``."""

    match: str


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/findings``: conditions that need an operator's attention."""

    unattended: list[Unattended] = []
    buried: list[Unattended] = []
    """Poison queues that have messages and no listener."""
    sessions: list[Troubled] = []
    rejected: list[Rejected] = []
    """Recently rejected workers."""
    audit_found: int = 0
    """How often the audit found unannounced work, since the start."""
    notices_suspend: bool = False
    """Whether the bridge can detect a suspend of its machine."""
    crowded: str | None = None
    """Set if there were more queue names than the bridge keeps."""
    left_out: int = 0
    """Rows beyond 1000 of a kind."""
    numbers: list[RuleNumbers] | None = None
    """One row per rule of the configuration."""


class ExplainedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that a trigger may reach."""

    listener: str
    instance: str | None
    channel: str
    gets: bool
    """Whether a wake would be sent to it."""
    why: str
    """``woken owner capacity_0 failing full stuck deaf owned later told nothing draining``, and ``hears`` for a scaler
    that is starting workers and gets further wakes."""
    detail: str
    """Describes ``why``."""
    free: int
    capacity: int
    owns: bool
    delayed: bool
    """Whether its connection is not writable now, so that its wakes merge."""
    failing_s: float | None
    processes: Processes | UnsetType | None = UNSET
    """Of a scaler, as `Subscribed.processes`."""


class ExplainedSubscriber(msgspec.Struct, frozen=True, kw_only=True):
    """A plain subscriber that a trigger may reach, or a subject on which the wake is published."""

    listener: str
    channel: str
    hears: bool
    detail: str
    topic: str | UnsetType = UNSET


class Explained(Content, frozen=True, kw_only=True):
    """The answer of ``/v1/queues/ACCOUNT/QUEUE/explain``: which sessions a trigger would wake now, and why."""

    queue: str
    asked: str
    """``trigger``, or ``put`` if all listeners use the bridge's own queue service, where every put triggers the queue
    and a bare trigger adds nothing."""
    outcome: str
    """``wakes``, ``joins`` (it has an owner), ``waits`` (no session has room), ``no_session``, ``told``, ``paused`` or
    ``draining``."""
    summary: str
    """Describes the outcome."""
    paused: bool
    dirty: bool
    gen: int
    unattended: str | None
    """Set if work waits and no worker will receive it (B14)."""
    trigger_adds: bool
    """Whether a bare trigger has an effect."""
    sessions: list[ExplainedSession]
    """In the order in which they would be woken."""
    subscribers: list[ExplainedSubscriber] = []
    waits_for_a_person: str | None = None
    """Set if dead letters need an operator's attention."""
    rejected: list[Rejected] = []
    """Recently rejected workers of this queue."""


class Subject(msgspec.Struct, frozen=True):
    """The subjects on which wakes are published on one bus, with or without subscribers."""

    listener: str
    channel: str
    prefix: str
    connected: bool
