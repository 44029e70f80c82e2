"""The messages between bridges of a cluster, and their codec (rules C1 to C4, C10 and C11).

JSON objects tagged by ``type``; unknown types and fields are ignored, so either side may be newer. Durations are
relative milliseconds, so that no clocks are compared. A lost, late or repeated message changes costs, never safety.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.event import TEXT_MAX, check_depth
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.contract.wire import MS_MAX, PLACE_CHARS_MAX

WORD_BYTES_MAX: Final = 512 * 1024
MEMBERS_MAX: Final = 32
NAMES_MAX: Final = 32
NAMES_BYTES_MAX: Final = 16 * 1024
"""Limit of the names of one `Covered`; names beyond it are left out."""
QUEUES_MAX: Final = 1000
"""Limit of queues in one message; more need several messages."""
ROUND_QUEUES_MAX: Final = 250
"""Limit of queues in one `Asked`: all are checked in one turn of the loop."""

PAST_QUEUES_MAX: Final = 50
PAST_TEXTS_MAX: Final = 8
"""Marks, workers, and classes of failures but for the rest, of one queue in one message."""
PAST_TEXT_MAX: Final = 256

Name = tuple[str, str]
"""Source and id of one publish after one visible put (P5)."""


class _Word(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", kw_only=True):
    boot: str
    """The sender."""


class Member(_Word, frozen=True, tag="member", kw_only=True):
    """The sender is alive; sent every second, after a change, and to a new member (C1)."""

    seq: int
    """Rises in one boot; lets others compare the order of events (C4)."""
    cluster: str = ""
    """The name of its cluster: bridges of other clusters on the same subjects are not members."""
    address: str | None = None
    version: str = ""
    store: str | None = None
    """Fingerprint of the shared store of its queue API, by its configured address (C8)."""
    engine: str | None = None
    """The identity of that store, whatever its address; absent if unknown (C8)."""
    webhooks: str | None = None
    """A hash of its webhooks (C10)."""
    full: tuple[str, ...] = ()
    """Queues with pending work and no worker with room (C3)."""
    leaving: bool = False
    told: bool = False
    """With ``leaving``: the handover to the others is complete (C7)."""


class Ability(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue of a bridge with sessions: whether one has room, and their longest visibility timeout (C3)."""

    room: bool
    visibility_ms: int
    store: str | None = None
    starts: bool = False
    """None has room, but a scaler could start a worker, or is starting one (Z5)."""


class Able(_Word, frozen=True, tag="able", kw_only=True):
    """The queues for which the sender can wake a worker now; None means no session (C3).

    ``seq`` is that of the newest `Member` before it. With ``whole`` it replaces everything: missing queues are None.
    With ``asks`` the sender has a new connection and may have missed messages: others then repeat theirs.
    """

    seq: int
    queues: dict[str, Ability | None] = {}
    whole: bool = False
    asks: bool = False


class Covered(_Word, frozen=True, tag="covered", kw_only=True):
    """An empty receive was reported to the sender; others may settle the pending work that it proves done (C4).

    The receive began ``begun_age_ms`` ago at the latest; absent if unknown. ``heard`` has, by boot, the newest sequence
    of each other member and for how long it has been known here, rounded down, while the age is rounded up. ``ids`` are
    names whose wakes were requested here before that receive began.
    """

    queue: str
    store: str | None = None
    begun_age_ms: int | None = None
    heard: dict[str, tuple[int, int]] = {}
    ids: tuple[Name, ...] = ()
    next_visible_in_ms: int | None = None


class Sent(_Word, frozen=True, tag="sent", kw_only=True):
    """The sender notified plain subscribers of this queue, most recently ``age_ms`` ago (C10).

    ``hook`` is the webhook; absent for the broker's wake subjects. ``heard`` is as in `Covered`.
    """

    queue: str
    hook: str | None = None
    age_ms: int = 0
    heard: dict[str, tuple[int, int]] = {}


class Asked(_Word, frozen=True, tag="asked", kw_only=True):
    """The sender asked a store about all of its queues; only ``queues`` had visible messages (B17, C11).

    It asked ``begun_age_ms`` ago, rounded up. ``heard`` is as in `Covered`.
    """

    store: str
    """Its `RoundStore.scope`."""
    place: Annotated[str, Meta(max_length=PLACE_CHARS_MAX)]
    """Which tables it read."""
    begun_age_ms: int
    heard: dict[str, tuple[int, int]] = {}
    queues: tuple[str, ...] = ()


_Count = Annotated[int, Meta(ge=0, le=MS_MAX)]
_Text = Annotated[str, Meta(max_length=PAST_TEXT_MAX)]


class PastRow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What happened on one queue in 5 seconds, and what was done to it; for the fields see `HistoryRow`."""

    put: _Count = 0
    receives: _Count = 0
    empty: _Count = 0
    done: _Count = 0
    failed: _Count = 0
    dead: _Count = 0
    started: _Count = 0
    waited_ms: _Count = 0
    handling_ms: _Count = 0
    longest_ms: Annotated[int, Meta(ge=-1, le=MS_MAX)] = 0
    failures: Annotated[dict[_Text, _Count], Meta(max_length=PAST_TEXTS_MAX + 1)] = {}
    """Failed attempts by class."""
    marks: Annotated[list[tuple[_Text, _Text]], Meta(max_length=PAST_TEXTS_MAX)] = []
    """An action, and the principal who did it."""
    workers: Annotated[list[_Text], Meta(max_length=PAST_TEXTS_MAX)] = []
    """Which workers came and went."""


class Past(_Word, frozen=True, tag="past", kw_only=True):
    """What happened at the sender since its last such message, so that each member can show the history of all.

    ``step`` is the number of the 5 seconds since 1970. A message that is lost is missing in the receivers' history.
    """

    step: Annotated[int, Meta(ge=0, le=MS_MAX)]
    queues: Annotated[dict[str, PastRow], Meta(max_length=PAST_QUEUES_MAX)]


Coordination = Member | Able | Covered | Sent | Asked
"""What the rules are about."""
ClusterMessage = Coordination | Past

_decoder = msgspec.json.Decoder(ClusterMessage)
_encoder = msgspec.json.Encoder()
_TYPES: Final = frozenset({"member", "able", "covered", "sent", "asked", "past"})
_boot = _hook = re.compile(r"[0-9a-f]{32}").fullmatch
_store = re.compile(r"[0-9A-Fa-f]{1,128}").fullmatch


class _Tag(msgspec.Struct):
    type: str


_tag = msgspec.json.Decoder(_Tag)


def encode_cluster_message(word: ClusterMessage) -> bytes:
    """Encode one message as JSON."""
    return _encoder.encode(word)


def decode_cluster_message(data: bytes) -> ClusterMessage | None:
    """Decode and check a message of another bridge; None for an unknown type.

    Raises `BadInput` (``bad_json``, ``bad_parameter``, ``too_large``) or `BadQueueReference`.
    """
    if len(data) > WORD_BYTES_MAX:
        raise BadInput("too_large", f"a message between bridges may have at most {WORD_BYTES_MAX} bytes")
    try:
        if not data.isascii():
            data.decode()
        check_depth(data)
        word: ClusterMessage = _decoder.decode(data)
    except msgspec.ValidationError as error:
        try:
            if _tag.decode(data).type not in _TYPES:
                return None
        except msgspec.DecodeError:
            pass
        raise BadInput("bad_parameter", str(error).replace("`", "'")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput("bad_json", "a message between bridges must be one JSON object in UTF-8") from None
    _check(word)
    return word


def _check(word: ClusterMessage) -> None:
    if not _boot(word.boot):
        raise BadInput("bad_parameter", "boot must be 32 hexadecimal digits")
    if isinstance(word, Covered):
        _check_covered(word)
        return
    if isinstance(word, Sent):
        parse_reference(word.queue)
        if word.hook is not None and not _hook(word.hook):
            raise BadInput("bad_parameter", "hook must be the name of a webhook, 32 hexadecimal digits")
        _check_number(word.age_ms, "age_ms")
        _check_heard(word.heard)
        return
    if isinstance(word, Asked):
        _check_store(word.store)
        _check_number(word.begun_age_ms, "begun_age_ms")
        _check_heard(word.heard)
        _check_count(len(word.queues), ROUND_QUEUES_MAX, "queues")
        for queue in word.queues:
            parse_reference(queue)
        return
    if isinstance(word, Past):
        for queue, row in word.queues.items():
            parse_reference(queue)
            texts = (*row.failures, *row.workers, *(text for mark in row.marks for text in mark))
            if not all(map(str.isprintable, texts)):
                raise BadInput("bad_parameter", "failures, marks and workers must be printable text")
        return
    _check_number(word.seq, "seq")
    if isinstance(word, Able):
        _check_count(len(word.queues), QUEUES_MAX, "queues")
        for queue, ability in word.queues.items():
            parse_reference(queue)
            if ability is not None:
                _check_number(ability.visibility_ms, "visibility_ms")
                _check_store(ability.store)
        return
    _check_count(len(word.full), QUEUES_MAX, "full")
    for queue in word.full:
        parse_reference(queue)
    for text in (word.cluster, word.address, word.version, word.webhooks):
        if text is not None and (len(text) > TEXT_MAX or not text.isprintable()):
            raise BadInput(
                "bad_parameter",
                f"cluster, address, version and webhooks must be printable text of at most {TEXT_MAX} characters",
            )
    _check_store(word.store)
    _check_store(word.engine)


def _check_covered(word: Covered) -> None:
    parse_reference(word.queue)
    _check_store(word.store)
    _check_heard(word.heard)
    _check_count(len(word.ids), NAMES_MAX, "ids")
    for source, id_ in word.ids:
        if not source or not id_ or len(source) > TEXT_MAX or len(id_) > TEXT_MAX:
            raise BadInput("bad_parameter", f"ids must be pairs of source and id, each of 1 to {TEXT_MAX} characters")
    for name, value in (("begun_age_ms", word.begun_age_ms), ("next_visible_in_ms", word.next_visible_in_ms)):
        if value is not None:
            _check_number(value, name)


def _check_heard(heard: dict[str, tuple[int, int]]) -> None:
    _check_count(len(heard), MEMBERS_MAX, "heard")
    for boot, (seq, since_ms) in heard.items():
        if not _boot(boot):
            raise BadInput("bad_parameter", "heard must contain boots of 32 hexadecimal digits")
        _check_number(seq, "heard")
        _check_number(since_ms, "heard")


def _check_number(value: int, name: str) -> None:
    if not 0 <= value <= MS_MAX:
        raise BadInput("bad_parameter", f"{name} must be from 0 to {MS_MAX}")


def _check_count(count: int, most: int, name: str) -> None:
    if count > most:
        raise BadInput("bad_parameter", f"{name} may have at most {most} entries")


def _check_store(store: str | None) -> None:
    if store is not None and not _store(store):
        raise BadInput("bad_parameter", "store must be a fingerprint of 1 to 128 hexadecimal digits")
