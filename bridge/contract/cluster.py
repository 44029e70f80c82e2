"""The words that the bridges of a cluster say to each other, and their codec (rules C1 to C4, C10).

JSON objects tagged by ``type``; unknown types and fields are ignored, so that either side may be newer. Durations are
relative milliseconds: no two clocks are ever compared. A word that is lost, late or repeated changes what things cost
and never whether they are safe.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from bridge.contract.errors import BadInput
from bridge.contract.event import TEXT_MAX, check_depth
from bridge.contract.names import parse_reference
from bridge.contract.wire import MS_MAX

WORD_BYTES_MAX: Final = 512 * 1024
MEMBERS_MAX: Final = 32
NAMES_MAX: Final = 32
NAMES_BYTES_MAX: Final = 16 * 1024
"""What the names of one `Covered` may take; those that do not fit count as marks without a name."""
QUEUES_MAX: Final = 1000
"""Queues in one word; a bridge that has more to say says it in several."""

Name = tuple[str, str]
"""Source and id of one publish after one visible put (P5)."""


class _Word(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", kw_only=True):
    boot: str
    """Who says it."""


class Member(_Word, frozen=True, tag="member", kw_only=True):
    """I am here; once a second, at once when it changes, and when a newcomer is heard of (C1)."""

    seq: int
    """Counts up in one boot; from what was heard of it, others tell when something else happened (C4)."""
    cluster: str = ""
    """The name of its cluster: bridges of another one on the same subjects are none of ours."""
    address: str | None = None
    version: str = ""
    store: str | None = None
    """Fingerprint of the engine that its own queue API works on, by the address that it was given (C8)."""
    engine: str | None = None
    """What that engine says it is, whatever its address; absent where it does not say, or was not asked yet (C8)."""
    webhooks: str | None = None
    """A hash of the webhooks it sends (C10)."""
    full: tuple[str, ...] = ()
    """Queues with work left and nobody with room, a level (C3)."""
    leaving: bool = False
    told: bool = False
    """With ``leaving``: the others have been told all that I leave behind (C7)."""


class Ability(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue of a bridge with sessions: whether one has room, and the longest visibility timeout of them (C3)."""

    room: bool
    visibility_ms: int
    store: str | None = None
    starts: bool = False
    """None has room, and a scaler could start one that has, or is about to (Z5)."""


class Able(_Word, frozen=True, tag="able", kw_only=True):
    """For which queues I could wake somebody now; None: I have no session there (C3).

    ``seq`` is that of the newest `Member` before it. With ``whole`` it begins anew: what is not in it is None. Who
    ``asks`` has a fresh connection and may have missed what others said: they say it anew.
    """

    seq: int
    queues: dict[str, Ability | None] = {}
    whole: bool = False
    asks: bool = False


class Covered(_Word, frozen=True, tag="covered", kw_only=True):
    """An empty receive was reported to me: what it proves may be forgiven by whoever can show it (C4).

    The receive began ``begun_age_ms`` ago at the latest; absent where nothing is known of that. ``heard`` names by boot
    the newest word of each other member, and for how long it has been known here: rounded down, while the age is
    rounded up. ``ids`` are names whose marks here were made before that receive began.
    """

    queue: str
    store: str | None = None
    begun_age_ms: int | None = None
    heard: dict[str, tuple[int, int]] = {}
    ids: tuple[Name, ...] = ()
    next_visible_in_ms: int | None = None


class Sent(_Word, frozen=True, tag="sent", kw_only=True):
    """I told plain subscribers of this queue, the newest time ``age_ms`` ago (C10).

    ``hook`` names the webhook that I see to; absent it is the broker's wake subjects. ``heard`` as in `Covered`.
    """

    queue: str
    hook: str | None = None
    age_ms: int = 0
    heard: dict[str, tuple[int, int]] = {}


ClusterMessage = Member | Able | Covered | Sent

_decoder = msgspec.json.Decoder(ClusterMessage)
_encoder = msgspec.json.Encoder()
_TYPES: Final = frozenset({"member", "able", "covered", "sent"})
_boot = _hook = re.compile(r"[0-9a-f]{32}").fullmatch
_store = re.compile(r"[0-9A-Fa-f]{1,128}").fullmatch


class _Tag(msgspec.Struct):
    type: str


_tag = msgspec.json.Decoder(_Tag)


def encode_cluster_message(word: ClusterMessage) -> bytes:
    """Encode one word as JSON."""
    return _encoder.encode(word)


def decode_cluster_message(data: bytes) -> ClusterMessage | None:
    """Decode and check a word of another bridge; None for a type that this version does not know.

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
