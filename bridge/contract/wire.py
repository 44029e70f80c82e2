"""The frames of a session in both directions, and their codec.

Frames are JSON objects tagged by ``type``; unknown types and fields are ignored, so either side may be newer
(docs/reference/clients.md). Durations are relative milliseconds. Over brokers every frame also has ``instance`` and
``seq`` (S1).
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.event import check_depth
from queuebell.bridge.contract.jobs import Jobs, check_jobs
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.contract.trace_context import Traces

FRAME_BYTES_MAX = 64 * 1024
SUBPROTOCOL = "queuebell.v2"
SUBSCRIPTIONS_MAX = 1000
LEASES_MAX = 10_000
CAPACITY_MAX = 1_000_000
MS_MAX = 10 * 365 * 86_400_000
FAILURE_CHARS_MAX = 1000
HELD_CHARS_MAX = 40
PLACE_CHARS_MAX = 64
RUNNING_MS = 5000
RUNNING_MAX = 20
RUNNING_CHARS_MAX = 256
STARVED_BY_MAX = 3
LISTENER = "listener"
SCALER = "scaler"

Ms = Annotated[int, Meta(ge=0, le=MS_MAX)]
"""A duration, an age, a generation or a count from a listener."""
Slots = Annotated[int, Meta(ge=0, le=CAPACITY_MAX)]
Word = Annotated[str, Meta(max_length=HELD_CHARS_MAX)]

Reason = Literal["trigger", "due", "sweep", "resync", "lease", "more"]


class Seen(msgspec.Struct, frozen=True):
    """The newest generation that a listener received in one boot."""

    boot: str
    gen: Ms


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue of a hello: ``capacity`` is handler slots (0 receives nothing), ``free`` those free (default all)."""

    queue: str
    capacity: Slots
    visibility_ms: Annotated[int, Meta(ge=1, le=MS_MAX)] = 30_000
    store: str | None = None
    own: bool = False
    seen: Seen | None = None
    free: Slots | None = None


class _Frame(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    pass


class Hello(_Frame, frozen=True, tag="hello"):
    """Listener → bridge, first: the listener and its queues. A later one replaces the subscriptions."""

    instance: str
    listener: str
    queues: list[Subscription]
    accept: list[str] = []
    seq: int | None = None
    kind: str = LISTENER
    """``scaler`` starts workers instead of handling messages, and is woken if no worker has room (Z5).

    Any other value is a listener.
    """
    store: str = ""
    """The kind of store of these queues, in lower case (`bridge.contract.missing_counts`); empty if unknown."""
    drains: bool = False
    """The listener stops at a `drain` with ``worker``; older ones would connect again."""


class Started(_Frame, frozen=True, tag="started"):
    """Listener → bridge: a receive began after ``gen`` arrived (L4), or carried messages were accepted (O7)."""

    queue: str
    boot: str
    gen: Ms
    instance: str | None = None
    seq: int | None = None


class EmptyReceive(_Frame, frozen=True, tag="cover"):
    """Listener → bridge: a receive that began ``age_ms`` ago, after ``gen`` arrived, was empty.

    It began ``after_ms`` after ``gen`` arrived, rounded down. With the time at which the bridge first sent ``gen``,
    other bridges know a moment after which the receive began, however long this frame was in transit (C4).
    """

    queue: str
    boot: str
    gen: Ms
    age_ms: Ms
    next_visible_in_ms: Ms | None = None
    store: str | None = None
    own: bool = False
    after_ms: Ms = 0
    place: Annotated[str, Meta(max_length=PLACE_CHARS_MAX)] | None = None
    """Which tables of which server it read, by 32 hex digits; None if the store does not say (B17)."""
    instance: str | None = None
    seq: int | None = None


class More(_Frame, frozen=True, tag="more"):
    """Listener → bridge: it stopped receiving although there may be more messages (L5)."""

    queue: str
    depth: Ms | None = None
    unannounced: bool | None = None
    """Whether there is a reason to receive without a wake (L6, L7); None counts as true."""
    starting: Slots = 0
    """Number of workers that a scaler is starting for it, before their hellos (Z5)."""
    instance: str | None = None
    seq: int | None = None


class Room(_Frame, frozen=True, tag="room"):
    """Listener → bridge: ``free`` slots are available again, after wakes up to ``gen``."""

    queue: str
    free: Slots
    gen: Ms | None = None
    instance: str | None = None
    seq: int | None = None


class Depth(msgspec.Struct, frozen=True):
    """Messages that a receive could return now, and those leased or delayed."""

    visible: int
    invisible: int


class Counts(Depth, frozen=True, omit_defaults=True):
    """The counts of a queue at one moment; with ``at_least`` there may be more. None is unknown.

    All messages of a paused queue are invisible; ``leased`` and ``delayed`` do not depend on the pause.
    """

    at_least: bool = False
    leased: int | None = None
    """Messages in flight."""
    delayed: int | None = None
    """Messages put or released with a delay."""
    oldest_ms: int | None = None
    """How long the message visible longest has waited; None if none is visible, or unknown."""


class StoreDepth(Depth, frozen=True, omit_defaults=True):
    """The counts of a listener's store ``age_ms`` ago, as in `Counts`."""

    visible: Ms
    invisible: Ms
    age_ms: Ms
    at_least: bool = False
    leased: Ms | None = None
    delayed: Ms | None = None
    oldest_ms: Ms | None = None


class BuriedCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number of messages in a queue's poison queue ``age_ms`` ago."""

    messages: Ms
    age_ms: Ms
    queue: str = ""
    """The poison queue; empty if its name is the queue's with ``-poison``."""


TALLIED = ("started", "failed", "idle", "stopping", "late", "left", "broke")
"""Counters of a scaler's workers: starts, failures, and ends: idle, with the scaler, not ready in time, by themselves
normally, and by themselves with an error. The third and the last are failures too."""


class Processes(msgspec.Struct, frozen=True):
    """The workers of a scaler for one queue on its machine; ``failure`` is why the last one failed."""

    wanted: Slots = 0
    ready: Slots = 0
    starting: Slots = 0
    failure: Annotated[str, Meta(max_length=FAILURE_CHARS_MAX)] | None = None
    running: Slots = 0
    """All running workers, including starting and stopping ones."""
    held: Word | None = None
    """Why no more are started now: ``starting maximum backoff uncounted elsewhere stopping``, None if none is missing.
    Unknown values are shown as they are."""
    pause_ms: Ms = 0
    """Remaining time of a back-off."""
    counts: Word = "exact"
    """Whether a count of 0 proves the queue empty: ``exact``, ``rough``, or ``trusted`` if so configured (Z7)."""
    tally: dict[str, Ms] = {}
    """Counts of `TALLIED`, since the scaler connected to this boot."""


UNSEEN: Final = "it cannot be seen which workers run"
"""Begin of a failure that does not concern a worker."""


class Starved(msgspec.Struct, frozen=True):
    """A queue gets no handler slot of its pool, because timed-out calls of other queues occupy ``slots``."""

    slots: Annotated[int, Meta(ge=1, le=CAPACITY_MAX)]
    by: Annotated[list[str], Meta(min_length=1, max_length=STARVED_BY_MAX)]
    """The queues that occupy most of them, the most first."""

    def describe(self) -> str:
        """Return a sentence for people."""
        of = f"queue{'s' if len(self.by) > 1 else ''} {', '.join(self.by)}"
        return f"no free slot: {self.slots} of {self.slots} held by timed-out handlers of {of}"


class QueueBeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue of a listener's heartbeat; every field may be absent.

    ``receives`` is (found, empty) by wake source for receives that the bridge cannot count itself: totals since this
    listener connected to this boot. Unknown sources are ignored. ``failing_ms`` is the age of the first failed receive
    since the last success; absent if the last one succeeded. ``depth`` comes with ``receives`` if the store counts;
    so does ``unannounced``, the number of receives without a trigger, timer or lease that returned a new message; and
    ``buried``.
    """

    gen: Ms | None = None
    covered: Ms | None = None
    receiving_ms: Ms | None = None
    free: Ms | None = None
    receives: dict[str, tuple[Ms, Ms]] | None = None
    failing_ms: Ms | None = None
    depth: StoreDepth | None = None
    processes: Processes | None = None
    """Only from a scaler."""
    jobs: dict[str, Jobs] | None = None
    """By handler: totals since this listener connected to this boot, of handlers that changed since the last report."""
    unannounced: Ms | None = None
    buried: BuriedCount | None = None
    hung: Slots = 0
    """Handler slots occupied by timed-out calls that have not returned."""
    starved: Starved | None = None


class Running(msgspec.Struct, frozen=True, omit_defaults=True):
    """The message of a queue whose handler has run longest in this listener."""

    id: Annotated[str, Meta(min_length=1, max_length=RUNNING_CHARS_MAX)]
    ms: Ms
    attempt: Ms = 1


class ListenerHeartbeat(_Frame, frozen=True, tag="heartbeat"):
    """Listener → bridge: its state, repeated, so that lost frames do no harm (S2)."""

    stamp: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    queues: dict[str, QueueBeat] = {}
    leases: dict[str, list[Ms]] = {}
    running: Annotated[dict[str, Running], Meta(max_length=RUNNING_MAX)] = {}
    """By queue, if a handler has run for at least `RUNNING_MS`; the `RUNNING_MAX` queues with the longest."""
    instance: str | None = None
    seq: int | None = None


class Bye(_Frame, frozen=True, tag="bye"):
    """Both directions: the session ends; from a listener with the ends of its remaining leases."""

    leases: dict[str, list[Ms]] = {}
    instance: str | None = None
    seq: int | None = None


class WelcomedQueue(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue of a welcome, with the periods that differ from the session's.

    An absent ``sweep_ms`` is the welcome's; other absent periods are the protocol's defaults.
    """

    queue: str
    gen: int
    clean: bool
    covered_age_ms: int | None
    sweep_ms: int | None = None
    slack_ms: int | None = None
    spread_ms: int | None = None
    store_call_ms: int | None = None


class Welcome(_Frame, frozen=True, tag="welcome", omit_defaults=False):
    """Bridge → listener, always first: the boot, the periods, the state of the queues."""

    boot: str
    heartbeat_ms: int
    sweep_ms: int
    sessions: int
    queues: list[WelcomedQueue]


class CarriedMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message inside a wake (O7), leased for ``visible_in_ms`` only."""

    id: str
    pop_receipt: str
    dequeue_count: int
    inserted_at: str
    expires_at: str | None = None
    body: str | None = None
    body_base64: str | None = None
    visible_in_ms: int = 2000
    key: str | None = None
    """The key of its put (`PUT .../messages/{id}`), None without one."""
    headers: dict[str, str] = {}


class Wake(_Frame, frozen=True, tag="wake"):
    """Bridge → listener: receive from this queue.

    ``size`` is a hint of how many messages wait. A wake with ``messages`` comes from an embedded queue in commit order;
    there ``size`` is exact and includes them, so ``size == len(messages)`` means that nothing else was visible.
    """

    queue: str
    boot: str
    gen: int
    reason: Reason
    size: int
    age_ms: int
    traceparent: str | None = None
    messages: list[CarriedMessage] | None = None
    workers: int | None = None
    """To a scaler: the workers of this queue with sessions, and those being started by other scalers (Z5)."""
    traces: Traces | None = None
    """The trace contexts of several triggers merged into this wake, each sent once."""


class LastEmptyReceive(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue of a bridge's heartbeat."""

    gen: int
    covered_age_ms: int | None
    workers: int | None = None
    """To a scaler: as in a wake (Z5)."""
    due_ms: int | None = None
    """To a scaler: when the next message becomes visible or a lease ends, if known (Z2)."""


class BridgeHeartbeat(_Frame, frozen=True, tag="heartbeat", omit_defaults=False):
    """Bridge → listener: the echo that proves the connection, and the age of each queue's last empty receive."""

    boot: str
    echo: int | None
    since_ms: int
    sessions: int
    queues: dict[str, LastEmptyReceive]


class Drain(_Frame, frozen=True, tag="drain"):
    """Bridge → listener: the bridge is stopping; reconnect when the session ends."""

    worker: bool = False
    """Instead, this listener is to stop: receive nothing more, finish what runs, and leave (L12)."""


class ErrorFrame(_Frame, frozen=True, tag="error"):
    """Bridge → listener: the error of a frame, and for how many seconds not to repeat it."""

    code: str
    message: str
    retry_after_s: int | None = None


class Ready(_Frame, frozen=True, tag="ready", omit_defaults=False):
    """Bridge → client, first on every wire: calls and one session may follow.

    ``window`` is the maximum of unanswered calls, ``able`` names optional features of this bridge, and ``boot`` is set
    for a bridge with embedded queues.
    """

    window: int
    boot: str | None = None
    able: list[str] = []


class Ended(_Frame, frozen=True, tag="ended", omit_defaults=False):
    """Bridge → listener: the session has ended, with the code of a WebSocket close; the wire and its calls go on."""

    code: int
    reason: str


class Goaway(_Frame, frozen=True, tag="goaway", omit_defaults=False):
    """Bridge → client: calls up to ``last`` are answered, later ones were not carried out; then the wire is closed."""

    last: int


Report = Started | EmptyReceive | More | Room
UpFrame = Hello | Report | ListenerHeartbeat | Bye
DownFrame = Welcome | Wake | BridgeHeartbeat | Drain | Bye | ErrorFrame
WireFrame = Ready | Ended | Goaway
"""Frames of a bridge about a wire itself."""

_up = msgspec.json.Decoder(UpFrame)
_down = msgspec.json.Decoder(DownFrame)
_wire = msgspec.json.Decoder(DownFrame | WireFrame)
_encoder = msgspec.json.Encoder()


class _Tag(msgspec.Struct):
    type: str


_tag = msgspec.json.Decoder(_Tag)
_store = re.compile(r"[0-9A-Fa-f]{1,128}").fullmatch
_hex = re.compile(r"[0-9a-f]{32}").fullmatch
_kind = re.compile(r"[a-z]{0,20}", re.ASCII).fullmatch
_UP_TYPES = frozenset({"hello", "started", "cover", "more", "room", "heartbeat", "bye"})
_DOWN_TYPES = frozenset({"welcome", "wake", "heartbeat", "drain", "bye", "error"})
_WIRE_TYPES = _DOWN_TYPES | {"ready", "ended", "goaway"}


def encode_frame(frame: UpFrame | DownFrame | WireFrame) -> bytes:
    """Encode one frame as JSON."""
    return _encoder.encode(frame)


def decode_up(data: bytes | str) -> UpFrame | None:
    """Decode and check a frame from a listener; None for a type this version does not know.

    Raises `BadInput` (``bad_json``, ``bad_parameter``, ``too_large``) or `BadQueueReference`.
    """
    frame = _decode(data, _up, _UP_TYPES)
    if frame is not None:
        _check_up(frame)  # type: ignore[arg-type]
    return frame  # type: ignore[return-value]


def decode_down(data: bytes | str) -> DownFrame | None:
    """Decode a frame from the bridge; None for a type this version does not know.

    Raises `BadInput` (``bad_json``, ``bad_parameter``, ``too_large``).
    """
    return _decode(data, _down, _DOWN_TYPES)  # type: ignore[return-value]


def decode_wire(data: bytes | str) -> DownFrame | WireFrame | None:
    """Decode a frame that came over a wire; as `decode_down`."""
    return _decode(data, _wire, _WIRE_TYPES)  # type: ignore[return-value]


def _decode(data: bytes | str, decoder: msgspec.json.Decoder[object], types: frozenset[str]) -> object | None:
    raw = data.encode() if isinstance(data, str) else data
    if len(raw) > FRAME_BYTES_MAX:
        raise BadInput("too_large", f"a frame may have at most {FRAME_BYTES_MAX} bytes")
    try:
        if not raw.isascii():
            raw.decode()
        check_depth(raw)
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        # Unknown types are ignored; any other error is the sender's.
        try:
            if _tag.decode(raw).type not in types:
                return None
        except msgspec.DecodeError:
            pass
        raise BadInput("bad_parameter", str(error).replace("`", "'")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput("bad_json", "a frame must be one JSON object in UTF-8") from None


def _check_up(frame: UpFrame) -> None:
    """Check what the types cannot: names, hex digits, sums and relations between fields."""
    # Heartbeats first: idle sessions send nothing else.
    if isinstance(frame, ListenerHeartbeat):
        for queue, beat in frame.queues.items():
            parse_reference(queue)
            if (depth := beat.depth) is not None and max(depth.leased or 0, depth.delayed or 0) > depth.invisible:
                detail = f"depth.leased and delayed must be from 0 to {depth.invisible}"
                raise BadInput("bad_parameter", detail)
            if beat.buried is not None and beat.buried.queue:
                parse_reference(beat.buried.queue)
            if beat.jobs is not None:
                check_jobs(beat.jobs)
            for holder in () if beat.starved is None else beat.starved.by:
                parse_reference(holder)
        for queue in frame.running:
            parse_reference(queue)
        _check_leases(frame.leases)
    elif isinstance(frame, Hello):
        _check_hex(frame.instance, "instance")
        _check_label(frame.listener)
        if not _kind(frame.store):
            raise BadInput("bad_parameter", "store must be the kind of a store, at most 20 lowercase letters")
        if len(frame.queues) > SUBSCRIPTIONS_MAX:
            raise BadInput("too_many_items", f"at most {SUBSCRIPTIONS_MAX} queues per session")
        for sub in frame.queues:
            parse_reference(sub.queue)
            _check_store(sub.store)
            if sub.seen is not None:
                _check_hex(sub.seen.boot, "seen.boot")
        if len({sub.queue for sub in frame.queues}) != len(frame.queues):
            raise BadInput("bad_parameter", "a hello must not name a queue twice")
    elif isinstance(frame, Bye):
        _check_leases(frame.leases)
    else:
        parse_reference(frame.queue)
        if isinstance(frame, Started | EmptyReceive):
            _check_hex(frame.boot, "boot")
        if isinstance(frame, EmptyReceive):
            _check_store(frame.store)


def _check_leases(leases: dict[str, list[int]]) -> None:
    if sum(len(ends) for ends in leases.values()) > LEASES_MAX:
        raise BadInput("too_many_items", f"at most {LEASES_MAX} leases per frame")
    for queue in leases:
        parse_reference(queue)


def _check_hex(text: str, name: str) -> None:
    if _hex(text) is None:
        raise BadInput("bad_parameter", f"{name} must be 32 hex digits")


def _check_store(text: str | None) -> None:
    if text is not None and _store(text) is None:
        raise BadInput("bad_parameter", "store must be a fingerprint of at most 128 hex digits")


def _check_label(text: str) -> None:
    if len(text) > 256 or not text.isprintable():
        raise BadInput("bad_parameter", "listener must be printable text of at most 256 characters")
