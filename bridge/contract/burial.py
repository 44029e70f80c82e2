"""The header of a dead letter, which stays with the message when it is replayed.

``queuebell-burial:1 {"queue": ..., "reason": ..., ...}``, a line feed, and the body. Not every store has headers, so it
is part of the body: one line of printable text, which passes through every store. A UTF-8 body follows as it is, any
other in base64 if that fits.
"""

from __future__ import annotations

import binascii
import datetime
import itertools
import zlib
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from queuebell.bridge.contract.errors import BadInput, BadQueueReference
from queuebell.bridge.contract.names import POISON_SUFFIX, parse_reference, split_reference

MAGIC: Final = b"queuebell-burial:"
"""The begin of every dead letter of any version."""
POISONED: Final = "poisoned"
"""The handler dead-lettered the message."""
PERMANENT: Final = "permanent"
"""The handler raised an error that no retry can fix."""
EXHAUSTED: Final = "exhausted"
"""All allowed attempts failed."""
UNDECODABLE: Final = "undecodable"
"""The body is not of the listener's payload type."""
BODY_LOST: Final = "body-lost"
"""The body's blob is missing or damaged."""
NO_OUTCOME: Final = "no-outcome"
"""It was delivered too often, and no handler reported an outcome."""

REASON_MAX: Final = 1000
TRACE_MAX: Final = 4096
HISTORY_MAX: Final = 16
EARLIER_MAX: Final = 8
UNPACKED_MAX: Final = 1024 * 1024
"""Limit of bodies that are compressed or unpacked, as a listener holds many at once.

Our stores take 64 KiB; other producers of external services may put bodies of this size.
"""
IDENTITY: Final = "identity"
BASE64: Final = "base64"
ZLIB: Final = "zlib"
"""Compressed, then base64."""

_VERSION_1: Final = MAGIC + b"1 "
_SHORT: Final = 120

Moment = Annotated[datetime.datetime, Meta(tz=True)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
"""Exact in every JSON implementation; numbers of other programs may be larger."""


class Attempt(msgspec.Struct, frozen=True):
    """One failed attempt, seen by the listener that dead-lettered the message."""

    attempt: Count
    at: Moment
    reason: str


class Earlier(msgspec.Struct, frozen=True, omit_defaults=True):
    """An earlier dead-lettering: the message was replayed, and failed again."""

    queue: str
    id: str
    inserted_at: Moment
    buried_at: Moment
    reason: str
    attempts: Count
    failure: str = EXHAUSTED


class Burial(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header of a dead letter.

    ``queue``, ``id`` and ``inserted_at`` are those of the failed message, by its store's clock; ``buried_at`` and the
    times of ``history`` are by the worker's. ``attempts`` counts its deliveries there, ``burials`` how often it was
    dead-lettered. ``failure`` is ``poisoned permanent exhausted undecodable body-lost no-outcome``, or a value of a
    later version. ``error`` is the type of the handler's exception, ``trace`` the newest frames of its traceback;
    ``traceparent`` the message's trace context, else that of its wake, which may have several triggers. ``history`` has
    the failed attempts of this listener, ``earlier`` the earlier dead-letterings, oldest first, limited to the newest.
    """

    queue: str
    id: str
    inserted_at: Moment
    buried_at: Moment
    reason: str
    attempts: Count
    failure: str = EXHAUSTED
    error: str | None = None
    trace: str | None = None
    traceparent: str | None = None
    listener: str | None = None
    burials: Count = 1
    history: tuple[Attempt, ...] = ()
    earlier: tuple[Earlier, ...] = ()
    key: str | None = None
    """The key of the failed message's put."""


class BadBurial(BadInput):
    """A body begins like a dead letter but is not valid: damaged, of another version, or invented."""

    def __init__(self, detail: str) -> None:
        super().__init__("bad_parameter", detail)


class _Body(msgspec.Struct, frozen=True):
    """The encoding of the body; ``size`` is its original size."""

    size: Count
    encoding: str


class _Head(msgspec.Struct, frozen=True):
    burial: Burial
    body: _Body


_read_head = msgspec.json.Decoder(_Head).decode


def is_burial(body: bytes) -> bool:
    """Return whether a body has the begin of a dead letter."""
    return body.startswith(MAGIC)


def write_burial(burial: Burial, body: bytes, limit: int, *, shorten: bool = True) -> bytes | None:
    """Return the body of a dead letter, at most ``limit`` bytes; None if header and body do not fit.

    If it is too long, the header loses its history, then its trace, then most of its reason; then the body is
    compressed. With ``shorten`` False nothing is shortened. `read_burial` returns exactly ``body``. Characters of the
    header that are not printable are escaped, as texts of exceptions may contain anything.
    """
    facts = [_printable(less) for less in itertools.islice(_ever_less(burial), None if shorten else 1)]
    for payload, encoding in itertools.islice(_payloads(body), None if shorten else 1):
        if len(payload) >= limit:
            continue
        for less in facts:
            head = msgspec.json.encode(_Head(less, _Body(len(body), encoding)))
            if len(_VERSION_1) + len(head) + 1 + len(payload) > limit:
                continue
            travels = b"".join((_VERSION_1, head, b"\n", payload))
            # An unreadable header (a time without its offset) would change the body that the handler gets.
            if opened(travels) == (less, body):
                return travels
    return None


def read_burial(body: bytes) -> tuple[Burial, bytes]:
    """Return header and original body. Raises `BadBurial` if the dead letter is invalid."""
    head, payload = _split(body)
    original = _unpacked(payload, head.body, head.body.size)
    if len(original) != head.body.size:
        raise BadBurial("the length of a dead letter's body differs from its header")
    return head.burial, original


def opened(body: bytes) -> tuple[Burial | None, bytes]:
    """Return the header and the original body of a dead letter; any other body as it is, with None.

    An invalid dead letter is treated as a normal body.
    """
    if is_burial(body):
        try:
            return read_burial(body)
        except BadBurial:
            pass
    return None, body


def facts(body: bytes) -> Burial | None:
    """Return the header without decompressing the body; None if there is none.

    The header of a damaged body is returned too: only `opened` reads the whole body.
    """
    try:
        return _split(body)[0].burial if is_burial(body) else None
    except BadBurial:
        return None


def glimpse(body: bytes, most: int) -> tuple[Burial | None, bytes, int]:
    """Return the header, the first ``most`` bytes of the original body, and its size.

    Decompresses no more than that. A body of up to ``most`` bytes is checked as by `opened`; later damage in a longer
    one is not detected.
    """
    if is_burial(body):
        try:
            head, payload = _split(body)
            size = head.body.size
            beginning = _unpacked(payload, head.body, min(size, most))
            if size > most or len(beginning) == size:
                return head.burial, beginning[:most], size
        except BadBurial:
            pass
    return None, body[:most], len(body)


def after(burial: Burial, before: Burial | None) -> Burial:
    """Return a header that includes the earlier one of a replayed message."""
    if before is None:
        return burial
    last = Earlier(
        before.queue, before.id, before.inserted_at, before.buried_at, before.reason, before.attempts, before.failure
    )
    earlier = (*before.earlier, last, *burial.earlier)[-EARLIER_MAX:]
    return msgspec.structs.replace(burial, burials=min(before.burials + burial.burials, 2**53), earlier=earlier)


def replay_target(here: str, burial: Burial | None, wanted: str | None = None) -> str:
    """Return the queue to which a message of queue ``here`` is replayed: ``wanted``, or the queue it came from.

    Without a header that is the name without ``-poison``. The account is always that of ``here``, as anyone who may put
    there can invent a header. Raises `BadInput` if there is no valid queue, with advice.
    """
    account, _ = split_reference(here)
    if wanted is not None:
        target = parse_reference(wanted if "/" in wanted else f"{account}/{wanted}")
    elif burial is not None:
        target = burial.queue
    elif here.endswith(POISON_SUFFIX):
        target = parse_reference(here.removesuffix(POISON_SUFFIX))
    else:
        raise BadInput("bad_parameter", f"{here} names no queue to replay to, and neither does the message; name one")
    if split_reference(target)[0] != account:
        raise BadInput(
            "bad_parameter", f"a message of {here} cannot be replayed to another account; name a queue of this account"
        )
    if target == here:
        raise BadInput("bad_parameter", f"a message of {here} cannot be replayed to its own queue; name another queue")
    return target


def newest(text: str, most: int) -> str:
    """Return the last lines of a traceback, at most ``most`` characters."""
    if len(text) <= most:
        return text
    kept = text[len(text) - most + 4 :]
    cut = kept.find("\n") + 1
    return "...\n" + (kept[cut:] or kept)


def shortened(text: str, most: int) -> str:
    """Return at most ``most`` characters, with an ellipsis if text is cut."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _ever_less(burial: Burial) -> Iterator[Burial]:
    """Yield the header within its limits, and then with less and less content."""
    replace = msgspec.structs.replace
    burial = replace(
        burial,
        id=shortened(burial.id, REASON_MAX),
        reason=shortened(burial.reason, REASON_MAX),
        error=None if burial.error is None else shortened(burial.error, _SHORT),
        trace=None if burial.trace is None else newest(burial.trace, TRACE_MAX),
        traceparent=None if burial.traceparent is None else shortened(burial.traceparent, _SHORT),
        listener=None if burial.listener is None else shortened(burial.listener, 256),
        history=burial.history[-HISTORY_MAX:],
        earlier=burial.earlier[-EARLIER_MAX:],
    )
    yield burial
    burial = replace(burial, history=burial.history[-2:], earlier=burial.earlier[-1:])
    yield burial
    burial = replace(burial, history=(), earlier=())
    yield burial
    if burial.trace is not None:
        yield replace(burial, trace=newest(burial.trace, TRACE_MAX // 4))
        burial = replace(burial, trace=None)
        yield burial
    yield replace(burial, reason=shortened(burial.reason, _SHORT), listener=None, traceparent=None)


def _printable(burial: Burial) -> Burial:
    """Return a header with printable characters only."""
    return msgspec.structs.replace(
        burial,
        id=_clean(burial.id),
        reason=_clean(burial.reason),
        failure=_clean(burial.failure),
        error=None if burial.error is None else _clean(burial.error),
        trace=None if burial.trace is None else _clean(burial.trace),
        traceparent=None if burial.traceparent is None else _clean(burial.traceparent),
        listener=None if burial.listener is None else _clean(burial.listener),
        history=tuple(msgspec.structs.replace(one, reason=_clean(one.reason)) for one in burial.history),
        earlier=tuple(
            msgspec.structs.replace(one, id=_clean(one.id), reason=_clean(one.reason), failure=_clean(one.failure))
            for one in burial.earlier
        ),
    )


def _clean(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode("ascii") for one in text
    )


def _payloads(body: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield the encodings of a body, the most readable first."""
    text = _is_text(body)
    yield (body, IDENTITY) if text else (binascii.b2a_base64(body, newline=False), BASE64)
    if len(body) <= UNPACKED_MAX:
        yield binascii.b2a_base64(zlib.compress(body), newline=False), ZLIB
    if not text:
        yield body, IDENTITY  # A store that delivered such bytes accepts them too.


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _split(body: bytes) -> tuple[_Head, bytes]:
    """Return the header and the rest. Raises `BadBurial` if it is invalid."""
    head_end = body.find(b"\n")
    if not body.startswith(_VERSION_1) or head_end < 0:
        raise BadBurial("a dead letter that is truncated or of an unknown version")
    try:
        head = _read_head(body[len(_VERSION_1) : head_end])
        parse_reference(head.burial.queue)
        for one in head.burial.earlier:
            parse_reference(one.queue)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadQueueReference) as error:
        raise BadBurial(f"a dead letter that cannot be read: {error}") from error
    return head, body[head_end + 1 :]


def _unpacked(payload: bytes, body: _Body, most: int) -> bytes:
    """Return the first ``most`` bytes of a body; one more if it is larger than its header says."""
    if body.encoding == IDENTITY:
        if len(payload) != body.size:
            raise BadBurial("the length of a dead letter's body differs from its header")
        return payload[:most]
    if body.encoding not in (BASE64, ZLIB) or body.size > max(UNPACKED_MAX, len(payload)):
        raise BadBurial("a dead letter of an unknown encoding or size; is this worker too old?")
    if most < body.size:
        payload = payload[: 4 * (most // 3 + 64)]  # zlib adds a few bytes to incompressible data.
    try:
        data = binascii.a2b_base64(payload, strict_mode=True)
        if body.encoding == BASE64:
            return data[: most + 1]
        return zlib.decompressobj().decompress(data, most + 1)  # Stops a decompression bomb.
    except (binascii.Error, zlib.error) as error:
        raise BadBurial(f"a dead letter whose body is damaged: {error}") from error
