"""The queue service's own JSON API, without the HTTP around it: bytes in, bytes out.

What a request may ask for the store checks (`bridge.queues.limits`) before it looks for the queue, so that a faulty
request to a queue that does not exist is told its fault, not the queue's absence (docs/http.md). Nothing of the input
is repeated in an error.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from bridge.access.grants import Reach
from bridge.access.quota_guard import Row, listed
from bridge.contract.errors import BadInput, StoreUnavailable
from bridge.contract.event import well_formed
from bridge.contract.times import rfc3339
from bridge.contract.unknown import in_plain_words
from bridge.http.server.overload.answer_room import AnswerRoom, Share
from bridge.queues.base import (
    BATCH_MAX,
    DELAY_MS_MAX,
    NEVER,
    TTL_S_MAX,
    Claim,
    Extend,
    NewMessage,
    Release,
    Settled,
    Settlement,
    StoredMessage,
)
from bridge.queues.http.shapes import (
    CreateRequest,
    ExtendItem,
    Message,
    Outcome,
    PauseRequest,
    PeekAnswer,
    PutAnswer,
    PutItem,
    PutRequest,
    ReceiveAnswer,
    ReceiveRequest,
    SettleAnswer,
    SettleRequest,
)
from bridge.queues.served import NoRoom, ServedStore
from bridge.service.state.answers import QueueNames

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

PAGE_MAX = 1000
PEEK_BYTES_MAX = 4 * 1024 * 1024
"""Of one answer to a peek; 32 of the largest bodies take less, unless nearly all of them has to be escaped."""
_list_prefix = re.compile(r"[A-Za-z0-9_/-]{0,161}").fullmatch
_number = re.compile(r"[0-9]{1,10}", re.ASCII).fullmatch


class Unread(StoreUnavailable):
    """An answer would be too large beside those that clients have not read yet; nothing was done, or it was undone."""


_put = msgspec.json.Decoder(PutRequest)
_put_item = msgspec.json.Decoder(PutItem)
_receive = msgspec.json.Decoder(ReceiveRequest)
_settle = msgspec.json.Decoder(SettleRequest)
_create = msgspec.json.Decoder(CreateRequest)
_pause = msgspec.json.Decoder(PauseRequest)
_encode = msgspec.json.Encoder().encode
_DEFAULT_RECEIVE = ReceiveRequest()
_NOTHING_SAID: Mapping[str, str] = {}
_OK = Outcome(True)


class NativeApi:
    """The calls of docs/http.md on one store; errors are those of the store and `BadInput`."""

    def __init__(self, store: ServedStore, room: AnswerRoom) -> None:
        self._store = store
        self._room = room
        self._fits = room.fits

    async def put(self, queue: str, messages: Sequence[NewMessage], query: Mapping[str, str] = _NOTHING_SAID) -> bytes:
        """Put messages, those that `messages_of` read or one whose body is the request's, whatever it is."""
        if creates(query):
            return _encode(PutAnswer(await self._store.put(queue, messages)))
        # Not by `create=False`, which looks for names that are near: whoever puts in vain may do so often.
        return _encode(PutAnswer((await self._store.put_existing(queue, messages)).answer))

    async def put_once(self, queue: str, key: str, query: Mapping[str, str], message: NewMessage) -> bytes | None:
        """Put one message under a key; None where this very one was put before."""
        receipt = await self._store.put_once_plainly(queue, key, message, creates(query))
        return None if receipt is None else _encode(PutAnswer([receipt]))

    async def receive(self, queue: str, raw: bytes) -> bytes:
        """Take messages; an empty request has the defaults."""
        request = _decode(_receive, raw) if raw else _DEFAULT_RECEIVE
        with self._room.share() as share:
            received = await _read(
                share,
                lambda: self._store.receive(
                    queue, request.max, request.visibility_timeout_s, source=request.wake_source, room=share
                ),
            )
            answer = _encode(
                ReceiveAnswer(
                    [_message(m) for m in received.messages],
                    received.depth,
                    received.next_visible_in_ms,
                    received.next_delayed_in_ms,
                    received.blocked or msgspec.UNSET,
                    received.depth_is_least or msgspec.UNSET,
                    received.counts or msgspec.UNSET,
                )
            )
            # Escaped it may be six times as long.
            if self._fits(len(answer)):
                return answer
        self._store.reclaim(queue, [Claim(m.id, m.pop_receipt) for m in received.messages])
        raise _unread()

    async def settle(self, queue: str, raw: bytes) -> bytes:
        """Delete, release and extend."""
        request = _decode(_settle, raw)
        settlement = Settlement(
            request.delete,
            [Release(item.id, item.pop_receipt, item.after_ms, item.uncounted) for item in request.release],
            [_extend(item) for item in request.extend],
        )
        settling = await self._store.settle(queue, settlement)
        return _encode(
            SettleAnswer(_outcomes(settling.delete), _outcomes(settling.release), _outcomes(settling.extend))
        )

    async def peek(self, queue: str, query: Mapping[str, str]) -> bytes:
        """Look without taking; fewer than asked for where their answer would be long, but one at least."""
        limit = number(query, "max", 1, BATCH_MAX, BATCH_MAX)
        with self._room.share() as share:
            found = await _read(share, lambda: self._store.peek(queue, limit, room=share))
            parts: list[msgspec.Raw] = []
            size = 0
            for message in found:
                part = _encode(_message(message, seen=True))
                if parts and size + len(part) > PEEK_BYTES_MAX:
                    break
                size += len(part)
                parts.append(msgspec.Raw(part))
            return _encode(PeekAnswer(parts))

    async def clear(self, queue: str) -> None:
        """Remove all messages."""
        await self._store.clear(queue)

    async def pause(self, queue: str, raw: bytes, paused: bool) -> None:
        """Give nothing out from now on, or give out again."""
        if raw:
            _decode(_pause, raw)
        await self._store.pause(queue, paused)

    async def create(self, queue: str, raw: bytes) -> bool:
        """Make a queue; say whether it is new."""
        metadata = _decode(_create, raw).metadata if raw else None
        return await self._store.create(queue, metadata)

    async def delete(self, queue: str) -> None:
        """Remove a queue, whether or not it exists."""
        await self._store.delete(queue)

    async def queues(self, query: Mapping[str, str], seen: Reach) -> bytes:
        """List references that are ``seen``, one page."""
        prefix, after = query.get("prefix", ""), query.get("after", "")
        if _list_prefix(prefix) is None or _list_prefix(after) is None:
            raise BadInput("bad_parameter", "prefix and after must be parts of a queue reference")
        limit = number(query, "limit", 1, PAGE_MAX, PAGE_MAX)

        async def read(prefix: str, after: str, limit: int) -> list[Row]:
            return [(name, {}) for name in await self._store.queues(prefix, after, limit)]

        found, following = await listed(read, seen, prefix, after, limit)
        return _encode(QueueNames([name for name, _ in found], following))


def messages_of(raw: bytes) -> list[NewMessage]:
    """Read the messages of a put in JSON."""
    return [_new_message(item) for item in _decode(_put, raw).messages]


def message_of(raw: bytes, query: Mapping[str, str], json: bool) -> NewMessage:
    """Return the one message of a put: a body as it is, or JSON as `messages_of` reads it; a query counts before it."""
    message = _new_message(_decode(_put_item, raw)) if json else NewMessage(raw)
    delay = number(query, "visible_after_ms", 0, DELAY_MS_MAX, message.visible_after_ms)
    never = query.get("ttl_s") == str(NEVER)
    ttl = NEVER if never else number(query, "ttl_s", 1, TTL_S_MAX, message.ttl_s)
    return NewMessage(message.body, delay, ttl, message.headers)


def creates(query: Mapping[str, str]) -> bool:
    """Read whether a put makes a missing queue; raises `BadInput` for anything but ``true`` and ``false``."""
    text = query.get("create", "true")
    if text not in ("true", "false"):
        raise BadInput("bad_parameter", "create must be true or false")
    return text == "true"


def number(query: Mapping[str, str], name: str, low: int, high: int, default: int) -> int:
    """Read a decimal number of a query string; raises `BadInput` for anything else."""
    text = query.get(name)
    if text is None:
        return default
    # int() alone takes signs, blanks, underscores and the digits of every script.
    if _number(text) is None:
        raise BadInput("bad_parameter", f"{name} must be a number from {low} to {high}")
    value = int(text)
    if not low <= value <= high:
        raise BadInput("bad_parameter", f"{name} must be from {low} to {high}")
    return value


async def _read(share: Share, ask: Callable[[], Awaitable[T]]) -> T:
    try:
        return await share.reading(ask)
    except NoRoom:
        raise _unread() from None


def _unread() -> Unread:
    return Unread("too many answers wait for slow clients; nothing was received, try again")


def _decode(decoder: msgspec.json.Decoder[R], raw: bytes) -> R:
    # No check of depth: no field nests, an unknown one is refused before its value is read, and bodies are full of
    # brackets.
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        if well_formed(raw):
            raise BadInput("bad_parameter", in_plain_words(error, decoder.type)) from None
        raise BadInput("bad_json", "the body is not one JSON document in UTF-8") from None
    # UnicodeDecodeError is not a DecodeError.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput("bad_json", "the body is not one JSON document in UTF-8") from None


def _message(message: StoredMessage, *, seen: bool = False) -> Message:
    text: str | msgspec.UnsetType = msgspec.UNSET
    binary: bytes | msgspec.UnsetType = msgspec.UNSET
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        binary = message.body
    return Message(
        id=message.id,
        pop_receipt=msgspec.UNSET if seen else message.pop_receipt,
        body=text,
        body_base64=binary,
        dequeue_count=message.dequeue_count,
        inserted_at=rfc3339(message.inserted_at),
        expires_at=None if message.expires_at is None else rfc3339(message.expires_at),
        key=message.key,
        headers=message.headers,
    )


def _new_message(item: PutItem) -> NewMessage:
    body = _body(item.body, item.body_base64)
    if body is None:
        raise BadInput("bad_parameter", "a message must have either body or body_base64")
    return NewMessage(body, item.visible_after_ms, item.ttl_s, item.headers)


def _extend(item: ExtendItem) -> Extend:
    return Extend(item.id, item.pop_receipt, item.visibility_timeout_s, _body(item.body, item.body_base64))


def _body(text: str | None, binary: bytes | None) -> bytes | None:
    if text is None:
        return binary
    if binary is not None:
        raise BadInput("bad_parameter", "a message must have either body or body_base64")
    return text.encode()


def _outcomes(settled: Sequence[Settled]) -> list[Outcome]:
    return [_OK if s.ok and s.pop_receipt is None else Outcome(s.ok, s.pop_receipt, s.code) for s in settled]
