"""What a bridge says of itself over HTTP: one struct an answer, made by its rules and read by the commands; pure.

What a bridge of an older release does not say has a default, or is unset where another kind of listener never says it.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from bridge.contract.jobs import Jobs
from bridge.contract.wire import Depth, Processes
from bridge.core.settings import Numbers


class Check(msgspec.Struct, frozen=True):
    """One check of ``/readyz``."""

    ok: bool
    detail: str


class Readiness(msgspec.Struct, frozen=True):
    """The answer of ``/readyz``."""

    ready: bool
    checks: dict[str, Check] = {}


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a queue's messages.

    Of a queue elsewhere that is what its store told a listener last, ``depth_age_ms`` ago, and None (not known) before
    one was told anything. Of the queue service's own it is now, and without an age, unless the listeners of that name
    read elsewhere and counted there.
    """

    exists: bool | None = None
    depth: Depth | None = None
    depth_age_ms: int | None = None
    depth_at_least: bool = False
    oldest_ms: int | None = None
    """For how long the message that has been visible longest has waited; it grows between looks."""
    leased: int | None = None
    """How many of those invisible somebody holds."""
    delayed: int | None = None
    """How many of those invisible were put, or given back, for later."""
    buried: int | None = None
    """How many messages lie in its poison queue; None for a poison queue."""
    buried_age_ms: int | None = None
    """How long ago that was counted; None where it is of now."""
    untold: dict[str, str] = {}
    """Of ``depth visible oldest_ms leased delayed buried``, why one is None, or less than it seems, in words."""


class Receives(msgspec.Struct, frozen=True):
    """Receives answered since the bridge started."""

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
    """By handler, what became of its messages, as listeners told; ``in_flight`` of those with sessions."""
    unannounced: int = 0
    """Receives that found work whose publish was lost: a look that nobody asked for met a new message."""


class QueueNames(msgspec.Struct, frozen=True):
    """The answer of ``/v1/queues``, a page of references; ``next`` is what to pass as ``after`` for the following."""

    queues: list[str] = []
    next: str | None = None


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of a listener; all but its name is of sessions only."""

    queue: str
    capacity: int | UnsetType = UNSET
    free: int | UnsetType = UNSET
    has_room: bool | UnsetType = UNSET
    owns: bool | UnsetType = UNSET
    failing_s: float | UnsetType | None = UNSET
    """For how long its receives have failed, None where the last was answered."""
    hung: int | UnsetType = UNSET
    """How many of its slots are held by handlers that ran out of time."""
    processes: Processes | UnsetType | None = UNSET
    """Of a scaler: its workers as its newest heartbeat said, None before one."""


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
    """A queue with work and nobody to look."""

    queue: str
    detail: str
    exists: bool | None = None
    """Whether it stands in the bridge's queue service; None where an older bridge does not say."""
    visible: int = 0
    invisible: int = 0
    dirty: bool = False
    stranded: bool = False
    """Its listeners take from another store."""
    after_gap: bool = False
    """Nothing is known to wait: triggers may have been missed, and nobody listens. That is no fault."""

    @property
    def here(self) -> bool:
        """Whether its messages are in the bridge's queue service, so that ``visible`` counts them."""
        return self.visible > 0 if self.exists is None else self.exists


class Troubled(msgspec.Struct, frozen=True, kw_only=True):
    """A listener in trouble; ``queue`` None where all of it is."""

    state: str
    """``silent failing hung starved stuck deaf behind`` of a session, ``workers`` of a scaler whose newest worker
    failed, ``unreached disabled`` of a webhook."""
    detail: str
    listener: str | None = None
    instance: str | None = None
    channel: str | None = None
    queue: str | None = None


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that the bridge rejected within the last 90 s; it polls, and tries again by itself."""

    queue: str
    """"" where the bridge could not read which queues the worker asked for."""
    listener: str
    code: str
    """``store_mismatch``, ``forbidden``, or the code of a frame that cannot be read."""
    detail: str
    count: int
    first_ms: int
    """How long ago the first of these rejections was; ``last_ms`` the newest."""
    last_ms: int


class ClusterMember(msgspec.Struct, frozen=True, kw_only=True):
    """One bridge of a cluster."""

    boot: str
    address: str | None
    version: str
    me: bool
    """The one that answers."""
    leaving: bool
    silent_ms: int
    """Since when nothing was heard of it."""
    queues: int
    """For how many queues it has sessions."""
    able: int
    """For how many of them one has room."""


class RefusedMember(msgspec.Struct, frozen=True):
    """A bridge on the cluster's subjects that is none of its members, and why."""

    boot: str
    address: str
    why: str


class Deferred(msgspec.Struct, frozen=True):
    """A queue that waits for the look of another bridge, and in how long this one looks if it hears nothing."""

    queue: str
    acts_in_ms: int


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/cluster``: the cluster as this bridge sees it; ``name`` None for a bridge without one."""

    name: str | None = None
    alone: bool = True
    """Acts as if there were no other: it hears nobody, or not even itself."""
    members: list[ClusterMember] = []
    refused: list[RefusedMember] = []
    went: dict[str, int] = {}
    """By address, or boot, how often a member went within the last five minutes."""
    deferred: list[Deferred] = []
    left_out: int = 0
    """Waiting queues beyond 1000."""


class RuleNumbers(Numbers, frozen=True, kw_only=True):
    """The numbers that the bridge goes by for the queues that ``match``."""

    match: str


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/findings``: what a person should know of a bridge that runs."""

    unattended: list[Unattended] = []
    buried: list[Unattended] = []
    """Poison queues with messages, where no listener takes them."""
    sessions: list[Troubled] = []
    rejected: list[Rejected] = []
    """Workers that the bridge rejected lately."""
    audit_found: int = 0
    """Work that nobody had been told of, since the start."""
    notices_suspend: bool = False
    """Whether a suspend of that machine would be noticed."""
    crowded: str | None = None
    """There were more queue names than are kept."""
    left_out: int = 0
    """Rows beyond 1000 of a kind."""
    numbers: list[RuleNumbers] | None = None
    """One row a rule of the configuration."""


class ExplainedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that a trigger may reach."""

    listener: str
    instance: str | None
    channel: str
    gets: bool
    """Whether a wake would leave for it."""
    why: str
    """``woken owner capacity_0 failing full stuck deaf owned later told nothing draining``, and ``hears`` of a scaler
    that starts workers and is told of more."""
    detail: str
    """The same in words."""
    free: int
    capacity: int
    owns: bool
    delayed: bool
    """Its connection takes nothing just now, and its wakes merge until it does."""
    failing_s: float | None
    processes: Processes | UnsetType | None = UNSET
    """Of a scaler, as `Subscribed.processes`."""


class ExplainedSubscriber(msgspec.Struct, frozen=True, kw_only=True):
    """A plain subscriber that a trigger may reach, or a subject on which its wake is published."""

    listener: str
    channel: str
    hears: bool
    detail: str
    topic: str | UnsetType = UNSET


class Explained(Content, frozen=True, kw_only=True):
    """The answer of ``/v1/queues/ACCOUNT/QUEUE/explain``: who would get a trigger now, and why another would not."""

    queue: str
    asked: str
    """``trigger``, or ``put`` where all listeners take from the bridge's own queue service, which tells of every put by
    itself, so that a trigger adds nothing."""
    outcome: str
    """``wakes``, ``joins`` (an owner is there), ``waits`` (no room anywhere), ``no_session``, ``told``, ``paused`` or
    ``draining``."""
    summary: str
    """The same in words."""
    paused: bool
    dirty: bool
    gen: int
    unattended: str | None
    """In words, that work waits and nobody will look at it (B14)."""
    trigger_adds: bool
    """Whether a trigger that is no put changes anything."""
    sessions: list[ExplainedSession]
    """Those that would be woken first, and in that order."""
    subscribers: list[ExplainedSubscriber] = []
    waits_for_a_person: str | None = None
    """In words, that messages were buried here and wait for a person."""
    rejected: list[Rejected] = []
    """Workers of this queue that the bridge rejected lately."""


class Subject(msgspec.Struct, frozen=True):
    """Where wakes are published on one bus, whether anybody is there or not."""

    listener: str
    channel: str
    prefix: str
    connected: bool
