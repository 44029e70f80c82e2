"""A burial: the facts that travel with a message to the poison queue, and stay with it when it is replayed.

``queuebell-burial:1 {"queue": ..., "reason": ..., ...}``, a line feed, and the body. A queue carries a body and nothing
else, so the facts stand before it. They are one line of printable text, which passes through every store. A body that
is UTF-8 follows as it is, any other as base64 where that fits.
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

from bridge.contract.errors import BadInput, BadQueueReference
from bridge.contract.names import POISON_SUFFIX, parse_reference, split_reference

MAGIC: Final = b"queuebell-burial:"
"""What every burial begins with, whatever its version."""
POISONED: Final = "poisoned"
"""The handler said so."""
PERMANENT: Final = "permanent"
"""What the handler raised is of the class that no attempt can change."""
EXHAUSTED: Final = "exhausted"
"""Every attempt that was allowed failed."""
UNDECODABLE: Final = "undecodable"
"""The body is not of the listener's payload type."""
BODY_LOST: Final = "body-lost"
"""The body was put aside, and is gone or damaged."""
NO_OUTCOME: Final = "no-outcome"
"""It was handed out too often, and no handler lived to say anything."""

REASON_MAX: Final = 1000
TRACE_MAX: Final = 4096
HISTORY_MAX: Final = 16
EARLIER_MAX: Final = 8
UNPACKED_MAX: Final = 1024 * 1024
"""No longer body is compressed here, nor unpacked whatever a burial says: a listener holds many at once.

Stores of ours take 64 KiB, services elsewhere let others put as much as this.
"""
IDENTITY: Final = "identity"
BASE64: Final = "base64"
ZLIB: Final = "zlib"
"""Compressed, then base64."""

_VERSION_1: Final = MAGIC + b"1 "
_SHORT: Final = 120

Moment = Annotated[datetime.datetime, Meta(tz=True)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
"""What JSON holds exactly everywhere; a stranger's may be of any length, and could not be written again."""


class Attempt(msgspec.Struct, frozen=True):
    """One failed attempt, as the listener saw it that buried the message."""

    attempt: Count
    at: Moment
    reason: str


class Earlier(msgspec.Struct, frozen=True, omit_defaults=True):
    """A burial before the last one: the message was replayed, and failed again."""

    queue: str
    id: str
    inserted_at: Moment
    buried_at: Moment
    reason: str
    attempts: Count
    failure: str = EXHAUSTED


class Burial(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of a buried message.

    ``queue``, ``id`` and ``inserted_at`` are those of the message where it failed, by that store's clock; ``buried_at``
    and the times in ``history`` are by the worker's. ``attempts`` counts how often it was handed out there, ``burials``
    how often it was buried in all. ``failure`` is ``poisoned permanent exhausted undecodable body-lost no-outcome``, or
    a word of a later version. ``error`` is the type of what the handler raised, ``trace`` the newest frames of its
    traceback; ``traceparent`` the message's own trace context, else that of the wake that brought it, which may stand
    for several triggers. ``history`` holds the failed attempts that this listener saw, ``earlier`` the burials before
    this one, oldest first and the newest kept.
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


class BadBurial(BadInput):
    """A body begins as a burial does and is none: damaged, of another version, or made by a stranger."""

    def __init__(self, detail: str) -> None:
        super().__init__("bad_parameter", detail)


class _Body(msgspec.Struct, frozen=True):
    """How the body follows; ``size`` is that of the body as it was."""

    size: Count
    encoding: str


class _Head(msgspec.Struct, frozen=True):
    burial: Burial
    body: _Body


_read_head = msgspec.json.Decoder(_Head).decode


def is_burial(body: bytes) -> bool:
    """Say whether a body is, or pretends to be, a burial."""
    return body.startswith(MAGIC)


def write_burial(burial: Burial, body: bytes, limit: int, *, shorten: bool = True) -> bytes | None:
    """Return the body that travels, of ``limit`` bytes at most; None where the facts and the body do not fit.

    What is too long loses its history first, then its trace, then most of its reason; then the body is compressed. With
    ``shorten`` False nothing of this is tried. `read_burial` gives the very bytes of ``body`` back. In the facts, what
    is not printable becomes an escape, for an exception's text may hold whatever a stranger has sent.
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
            # Facts that could not be read again (a time without its offset) would leave the handler with a body that
            # is not the one that was put.
            if opened(travels) == (less, body):
                return travels
    return None


def read_burial(body: bytes) -> tuple[Burial, bytes]:
    """Return the facts and the body that was buried. Raises `BadBurial` for what is not a whole burial."""
    head, payload = _split(body)
    original = _unpacked(payload, head.body, head.body.size)
    if len(original) != head.body.size:
        raise BadBurial("the length of a dead letter's body differs from its header")
    return head.burial, original


def opened(body: bytes) -> tuple[Burial | None, bytes]:
    """Return the facts and the body that was buried; any other body as it is.

    What begins as a burial and cannot be read is such another body: it is a message like any, for whoever handles it.
    """
    if is_burial(body):
        try:
            return read_burial(body)
        except BadBurial:
            pass
    return None, body


def facts(body: bytes) -> Burial | None:
    """Return the facts that stand before a body, without inflating it; None where there are none.

    Facts before a damaged body are returned too: only `opened` reads the whole of it.
    """
    try:
        return _split(body)[0].burial if is_burial(body) else None
    except BadBurial:
        return None


def glimpse(body: bytes, most: int) -> tuple[Burial | None, bytes, int]:
    """Return the facts, the first ``most`` bytes of the body that was buried, and its size.

    Inflates no more than that. A body of up to ``most`` bytes is checked as `opened` checks it; damage further on in a
    longer one goes unnoticed.
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
    """Return a burial that knows of the one ``before`` it and all before that, of a message that was replayed."""
    if before is None:
        return burial
    last = Earlier(
        before.queue, before.id, before.inserted_at, before.buried_at, before.reason, before.attempts, before.failure
    )
    earlier = (*before.earlier, last, *burial.earlier)[-EARLIER_MAX:]
    return msgspec.structs.replace(burial, burials=min(before.burials + burial.burials, 2**53), earlier=earlier)


def replay_target(here: str, burial: Burial | None, wanted: str | None = None) -> str:
    """Return where a message on queue ``here`` is replayed to: ``wanted``, or the queue it came from.

    Without facts that is the name without ``-poison``. It never leaves the account of ``here``, whatever the facts say:
    they come from whoever may put there. Raises `BadInput` where no queue is right, and says which would be.
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
    """Return the last lines of a traceback, ``most`` characters at most."""
    if len(text) <= most:
        return text
    kept = text[len(text) - most + 4 :]
    cut = kept.find("\n") + 1
    return "...\n" + (kept[cut:] or kept)


def shortened(text: str, most: int) -> str:
    """Return the first ``most`` characters, and show where some are missing."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _ever_less(burial: Burial) -> Iterator[Burial]:
    """Yield the facts as they are (bounded), and then with ever less in them."""
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
    """Return facts that every store takes and no terminal obeys."""
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
    """Yield the ways to write a body, the most readable first."""
    text = _is_text(body)
    yield (body, IDENTITY) if text else (binascii.b2a_base64(body, newline=False), BASE64)
    if len(body) <= UNPACKED_MAX:
        yield binascii.b2a_base64(zlib.compress(body), newline=False), ZLIB
    if not text:
        yield body, IDENTITY  # a store that gave out such bytes takes them too


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _split(body: bytes) -> tuple[_Head, bytes]:
    """Return the head and what follows it. Raises `BadBurial` where it cannot be read."""
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
    """Return the first ``most`` bytes of a body; one more where it holds more than it says."""
    if body.encoding == IDENTITY:
        if len(payload) != body.size:
            raise BadBurial("the length of a dead letter's body differs from its header")
        return payload[:most]
    if body.encoding not in (BASE64, ZLIB) or body.size > max(UNPACKED_MAX, len(payload)):
        raise BadBurial("a dead letter of an unknown encoding or size; is this worker too old?")
    if most < body.size:
        payload = payload[: 4 * (most // 3 + 64)]  # zlib adds a few bytes where it cannot compress
    try:
        data = binascii.a2b_base64(payload, strict_mode=True)
        if body.encoding == BASE64:
            return data[: most + 1]
        return zlib.decompressobj().decompress(data, most + 1)  # a bomb stops at its first byte too many
    except (binascii.Error, zlib.error) as error:
        raise BadBurial(f"a dead letter whose body is damaged: {error}") from error
