"""The frames of a session, both ways, and their codec.

Frames are JSON objects tagged by ``type``; unknown types and fields are ignored, so that either side may be newer
(docs/channels.md). Durations are relative milliseconds. Over brokers every frame also carries ``instance`` and
``seq`` (S1).
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from bridge.contract.errors import BadInput
from bridge.contract.event import check_depth
from bridge.contract.jobs import Jobs, check_jobs
from bridge.contract.names import parse_reference
from bridge.contract.trace_context import Traces

FRAME_BYTES_MAX = 64 * 1024
SUBPROTOCOL = "queuebell.v2"
SUBSCRIPTIONS_MAX = 1000
LEASES_MAX = 10_000
CAPACITY_MAX = 1_000_000
MS_MAX = 10 * 365 * 86_400_000
FAILURE_CHARS_MAX = 1000
HELD_CHARS_MAX = 40
RUNNING_MS = 5000
RUNNING_MAX = 20
RUNNING_CHARS_MAX = 256
STARVED_BY_MAX = 3
LISTENER = "listener"
SCALER = "scaler"

Ms = Annotated[int, Meta(ge=0, le=MS_MAX)]
"""A duration, an age, a generation or a count, as a listener may tell it."""
Slots = Annotated[int, Meta(ge=0, le=CAPACITY_MAX)]
Word = Annotated[str, Meta(max_length=HELD_CHARS_MAX)]

Reason = Literal["trigger", "due", "sweep", "resync", "lease", "more"]


class Seen(msgspec.Struct, frozen=True):
    """The newest generation a listener heard of in one boot."""

    boot: str
    gen: Ms


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue of a hello: ``capacity`` is handler slots (0 = take nothing), ``free`` those free now, or all."""

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
    """Listener → bridge, first: who I am, what I listen to. A later one replaces the subscriptions."""

    instance: str
    listener: str
    queues: list[Subscription]
    accept: list[str] = []
    seq: int | None = None
    kind: str = LISTENER
    """``scaler`` for one that starts workers instead of handling messages: it is asked where no worker has room (Z5).

    Any other is a listener.
    """
    store: str = ""
    """What kind of store these queues are in, of lower case letters (`bridge.contract.untold`); empty: not said."""


class Started(_Frame, frozen=True, tag="started"):
    """Listener → bridge: a receive began after I learned of ``gen`` (L4), or carried messages were taken up (O7)."""

    queue: str
    boot: str
    gen: Ms
    instance: str | None = None
    seq: int | None = None


class EmptyReceive(_Frame, frozen=True, tag="cover"):
    """Listener → bridge: a receive that began ``age_ms`` ago, after I learned of ``gen``, came back empty.

    It began ``after_ms`` after that, rounded down: with when the bridge first told of ``gen``, other bridges learn of
    a moment that it surely began after, however long this frame was under way (C4).
    """

    queue: str
    boot: str
    gen: Ms
    age_ms: Ms
    next_visible_in_ms: Ms | None = None
    store: str | None = None
    own: bool = False
    after_ms: Ms = 0
    instance: str | None = None
    seq: int | None = None


class More(_Frame, frozen=True, tag="more"):
    """Listener → bridge: I stopped receiving although there may be more (L5)."""

    queue: str
    depth: Ms | None = None
    unannounced: bool | None = None
    """Whether there is a reason to look that no wake told of (L6, L7); None: not said, and taken to be so."""
    starting: Slots = 0
    """How many workers a scaler starts for it, whose hellos are still to come (Z5)."""
    instance: str | None = None
    seq: int | None = None


class Room(_Frame, frozen=True, tag="room"):
    """Listener → bridge: I have ``free`` slots again; wakes up to ``gen`` are already counted in it."""

    queue: str
    free: Slots
    gen: Ms | None = None
    instance: str | None = None
    seq: int | None = None


class Depth(msgspec.Struct, frozen=True):
    """Messages that a receive could take now, and those that are leased or delayed."""

    visible: int
    invisible: int


class Counts(Depth, frozen=True, omit_defaults=True):
    """What a store tells of a queue at one moment; with ``at_least`` there may be more. None is: not told.

    A paused queue's messages are all invisible; ``leased`` and ``delayed`` are then those that were so before.
    """

    at_least: bool = False
    leased: int | None = None
    """How many were handed out and are held."""
    delayed: int | None = None
    """How many were put, or given back, for later."""
    oldest_ms: int | None = None
    """For how long the message that has been visible longest has waited; None where none is, or it was not told."""


class StoreDepth(Depth, frozen=True, omit_defaults=True):
    """What a listener's store told ``age_ms`` ago, the rest as in `Counts`."""

    visible: Ms
    invisible: Ms
    age_ms: Ms
    at_least: bool = False
    leased: Ms | None = None
    delayed: Ms | None = None
    oldest_ms: Ms | None = None


class BuriedCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many messages lay in a queue's poison queue, counted ``age_ms`` ago."""

    messages: Ms
    age_ms: Ms
    queue: str = ""
    """The poison queue; empty where it is named like the queue, with ``-poison``."""


TALLIED = ("started", "failed", "idle", "stopping", "late", "left", "broke")
"""What a scaler counts of its workers: starts, failures, and ends by reason: idle, with the scaler, not ready in time,
by themselves in order, and by themselves otherwise. What is not ready or has broken has failed as well."""


class Processes(msgspec.Struct, frozen=True):
    """The workers of a scaler for one queue, those of its own machine; ``failure`` is why the last one failed."""

    wanted: Slots = 0
    ready: Slots = 0
    starting: Slots = 0
    failure: Annotated[str, Meta(max_length=FAILURE_CHARS_MAX)] | None = None
    running: Slots = 0
    """All that live, those that start and end among them."""
    held: Word | None = None
    """Why no more are started now: ``starting maximum backoff uncounted elsewhere stopping``, None where none is
    missing. One that this version does not know is shown as it is."""
    pause_ms: Ms = 0
    """How much of a back-off is left."""
    counts: Word = "exact"
    """Whether a count of 0 proves the queue empty: ``exact``, ``rough``, or ``trusted`` where somebody says so (Z7)."""
    idle_ms: Ms = 0
    """For how long a worker is idle before it ends."""
    tally: dict[str, Ms] = {}
    """Counts of `TALLIED`, since the scaler met this boot."""


UNSEEN: Final = "it cannot be seen which workers run"
"""How a failure begins that is none of a worker."""


class Starved(msgspec.Struct, frozen=True):
    """Why a queue gets no handler slot of its pool: so many slots are held by calls of other queues that timed out."""

    slots: Annotated[int, Meta(ge=1, le=CAPACITY_MAX)]
    by: Annotated[list[str], Meta(min_length=1, max_length=STARVED_BY_MAX)]
    """The queues that hold most of them, the most first."""

    def describe(self) -> str:
        """Say it in words."""
        of = f"queue{'s' if len(self.by) > 1 else ''} {', '.join(self.by)}"
        return f"no free slot: {self.slots} of {self.slots} held by timed-out handlers of {of}"


class QueueBeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue of a listener's heartbeat; every field may be absent.

    ``receives`` is (found, empty) by wake source for receives that the bridge cannot count itself: levels since this
    listener met this boot. Sources that this version does not know are ignored. ``failing_ms`` is how long ago the
    first of its receives failed since one was last answered; absent where the last one was. ``depth`` comes with
    ``receives``, where the store counts, and so does ``unannounced``: how many of them no trigger, timer or lease had
    asked for, and yet brought a message that nobody had had before; and so does ``buried``.
    """

    gen: Ms | None = None
    covered: Ms | None = None
    receiving_ms: Ms | None = None
    free: Ms | None = None
    receives: dict[str, tuple[Ms, Ms]] | None = None
    failing_ms: Ms | None = None
    depth: StoreDepth | None = None
    processes: Processes | None = None
    """Of a scaler alone."""
    jobs: dict[str, Jobs] | None = None
    """By handler: levels since this listener met this boot, of those that have changed since it heard of them."""
    unannounced: Ms | None = None
    buried: BuriedCount | None = None
    hung: Slots = 0
    """How many of its handler slots are held by calls that ran out of time and have not returned."""
    starved: Starved | None = None


class Running(msgspec.Struct, frozen=True, omit_defaults=True):
    """The message of a queue whose handler has run longest in this listener, for so long."""

    id: Annotated[str, Meta(min_length=1, max_length=RUNNING_CHARS_MAX)]
    ms: Ms
    attempt: Ms = 1


class ListenerHeartbeat(_Frame, frozen=True, tag="heartbeat"):
    """Listener → bridge: levels, repeated, so that every lost frame heals (S2)."""

    stamp: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    queues: dict[str, QueueBeat] = {}
    leases: dict[str, list[Ms]] = {}
    running: Annotated[dict[str, Running], Meta(max_length=RUNNING_MAX)] = {}
    """By queue, where a handler has run for `RUNNING_MS` at least; of `RUNNING_MAX` queues, those with the longest."""
    instance: str | None = None
    seq: int | None = None


class Bye(_Frame, frozen=True, tag="bye"):
    """Either way: the session ends; from a listener with the leases it leaves behind."""

    leases: dict[str, list[Ms]] = {}
    instance: str | None = None
    seq: int | None = None


class WelcomedQueue(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue of a welcome, with those of its periods that differ from the session's.

    An absent ``sweep_ms`` is the welcome's own; absent others are the protocol's defaults.
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
    """Bridge → listener, always first: which boot, which periods, how the queues stand."""

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
    """What it was put under (`PUT .../messages/{id}`), None for any other."""
    headers: dict[str, str] = {}


class Wake(_Frame, frozen=True, tag="wake"):
    """Bridge → listener: go and look at this queue.

    ``size`` is a hint of how many messages wait. A wake that carries ``messages`` was cut from the own queue in the
    writer's order; there ``size`` is exact and counts the carried ones too, so ``size == len(messages)`` means that
    nothing else was visible.
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
    """To a scaler: how many workers of this queue have sessions or are being started by other scalers (Z5)."""
    traces: Traces | None = None
    """Where several triggers were merged into this wake: the trace contexts of all of them, each told once."""


class LastEmptyReceive(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue of a bridge's heartbeat."""

    gen: int
    covered_age_ms: int | None
    workers: int | None = None
    """To a scaler: as in a wake (Z5)."""
    due_ms: int | None = None
    """To a scaler: when the bridge knows that the next message becomes visible, or a lease ends (Z2)."""


class BridgeHeartbeat(_Frame, frozen=True, tag="heartbeat", omit_defaults=False):
    """Bridge → listener: the echo that proves the path alive, and how long ago each queue was covered."""

    boot: str
    echo: int | None
    since_ms: int
    sessions: int
    queues: dict[str, LastEmptyReceive]


class Drain(_Frame, frozen=True, tag="drain"):
    """Bridge → listener: this bridge is stopping; reconnect when the session ends."""


class ErrorFrame(_Frame, frozen=True, tag="error"):
    """Bridge → listener: what was wrong with a frame, and for how many seconds not to say it again."""

    code: str
    message: str
    retry_after_s: int | None = None


class Ready(_Frame, frozen=True, tag="ready", omit_defaults=False):
    """Bridge → client, first on every wire: calls and one session may come now.

    ``window`` is how many calls may be unanswered, ``able`` what this bridge can do that others cannot, by name, and
    ``boot`` that of a bridge with queues of its own.
    """

    window: int
    boot: str | None = None
    able: list[str] = []


class Ended(_Frame, frozen=True, tag="ended", omit_defaults=False):
    """Bridge → listener: the session has ended, as a WebSocket is closed; the wire goes on, and so do its calls."""

    code: int
    reason: str


class Goaway(_Frame, frozen=True, tag="goaway", omit_defaults=False):
    """Bridge → client: calls up to ``last`` are answered, later ones were not carried out; then the wire is closed."""

    last: int


Report = Started | EmptyReceive | More | Room
UpFrame = Hello | Report | ListenerHeartbeat | Bye
DownFrame = Welcome | Wake | BridgeHeartbeat | Drain | Bye | ErrorFrame
WireFrame = Ready | Ended | Goaway
"""What a bridge says about a wire itself."""

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
        # An unknown type is ignored; anything else wrong with a frame is a fault of its sender.
        try:
            if _tag.decode(raw).type not in types:
                return None
        except msgspec.DecodeError:
            pass
        raise BadInput("bad_parameter", str(error).replace("`", "'")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput("bad_json", "a frame must be one JSON object in UTF-8") from None


def _check_up(frame: UpFrame) -> None:
    """Refuse what the types do not: names, hex digits, sums and what one field says of another."""
    # Heartbeats first: of ten thousand idle sessions nothing else comes.
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
