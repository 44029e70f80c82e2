"""The body of a request: its kind, and reading it within its limits."""

from __future__ import annotations

import asyncio
import functools
import math
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
from aiohttp import hdrs

from queuebell.bridge.contract.decode_errors import in_plain_words
from queuebell.bridge.contract.errors import Overloaded
from queuebell.bridge.http.server.answer import Refusal
from queuebell.bridge.http.server.call import Call
from queuebell.bridge.http.server.memory_bounds import SMALL_BYTES

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from queuebell.bridge.access.put_gate import PutGate, Ticket
    from queuebell.bridge.http.server.call import Caller
    from queuebell.bridge.http.server.connection import Connection

T = TypeVar("T", bound=msgspec.Struct)

READING_PAUSE_S = 1.0
"""How long the connection of a refused put is not read: less than the shortest `Retry-After`, which is 1 s."""
# The rest of a refused body up to this is read and thrown away; above it the connection costs less than the bytes.
_UNREAD_MAX = 64 * 1024

_JSON_EXACT = frozenset({"application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"})


def is_json(request: Caller) -> bool:
    """Return whether the Content-Type is ``application/json``; parameters are ignored, JSON is always UTF-8."""
    media = request.headers.get(hdrs.CONTENT_TYPE)
    if media is None:
        return False
    return media in _JSON_EXACT or media_type(request) == "application/json"


def media_type(request: Caller) -> str:
    """Return the Content-Type in lower case without parameters; empty if there is none."""
    return request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip(" \t").lower()


def require_json(request: Caller) -> None:
    """Refuse a body whose Content-Type is not JSON (S8)."""
    if not is_json(request):
        # Not read before it is refused, so the connection cannot be used again.
        raise Refusal("unsupported_media_type", "the body must be application/json", close=request.body_exists)


def unread(request: Caller) -> bool:
    """Return whether some of the body has not arrived: a refusal must close the connection then."""
    return request.body_exists and not request.content.is_eof()


def announced(request: Caller, limit: int) -> int:
    """Return the announced size of the body, ``limit`` if it is larger or unknown."""
    length = request.headers.get(hdrs.CONTENT_LENGTH)
    return 0 if not request.body_exists else limit if length is None else min(int(length), limit)


async def admitted_body(request: Caller, limit: int, gate: PutGate) -> tuple[bytes, Ticket]:
    """Read the body of a put as `read_body` does, once the gate has admitted it; the caller ends the ticket.

    Refuses with ``too_many_requests`` before the body is read. The connection stays open if that costs little.
    """
    payload, headers = request.content, request.headers
    length = headers.get(hdrs.CONTENT_LENGTH)
    whole = payload.is_eof()
    size = announced(request, limit)
    connection = cast("Connection", request.protocol)
    try:
        ticket = gate.admit(size, arriving=not whole)
    except Overloaded as error:
        unread = not whole and (length is None or size > _UNREAD_MAX or hdrs.EXPECT in headers)
        wait = math.ceil(error.retry_after or 1)
        if not isinstance(request, Call):
            # A client that repeats the put at once costs nothing until then.
            connection.stop_reading_for(READING_PAUSE_S)
        raise Refusal("too_many_requests", str(error), retry_after=wait, close=unread) from None
    try:
        raw = await read_body(request, limit, ticket)
    except BaseException:
        gate.drop(ticket)
        raise
    gate.begin(ticket, len(raw), connection.waiting_since if whole else None)
    return raw, ticket


async def read_body(request: Caller, limit: int, ticket: Ticket | None = None) -> bytes:
    """Read the whole body, at most ``limit`` bytes.

    Refuses with ``too_large``, if possible before reading, and with 408 after the connection's body time-out. A body of
    more than 64 KiB without a ``ticket`` waits in order of arrival for room among those of all connections, and is
    refused with 503 if there is none within that time. One with a ticket may have to give way to others, and is
    refused with ``too_many_requests`` then.
    """
    if not request.body_exists:
        return b""
    length = request.headers.get(hdrs.CONTENT_LENGTH)
    if length is not None and int(length) > limit:
        raise _too_large(limit)
    if request.content.is_eof():
        # The usual case: it arrived in the same segment as the headers.
        data = request.content.read_nowait()
        if len(data) > limit:
            raise _too_large(limit)
        return data
    request = cast("BaseRequest", request)
    payload = request.content
    connection = cast("Connection", request.protocol)
    outside = ticket is None
    if outside and length is not None and int(length) > SMALL_BYTES:
        await _room(connection, int(length))
        outside = False
    if hdrs.EXPECT in request.headers:
        send_continue(request, connection)
    # A large body arrives in few big steps; aiohttp stops reading the socket at twice this.
    payload.set_read_chunk_size(min(limit, 1 << 20))
    body = bytearray()
    try:
        async with asyncio.timeout(connection.settings.body_timeout) as reading:
            if ticket is not None:
                ticket.on_give_way = functools.partial(reading.reschedule, 0.0)
            while chunk := await payload.readany():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
                if ticket is not None:
                    ticket.received = len(body)
                elif outside and len(body) > SMALL_BYTES:
                    # Chunked: its size is unknown.
                    outside = False
                    ends = reading.when()
                    reading.reschedule(None)
                    waited = await _room(connection, limit)
                    reading.reschedule(None if ends is None else ends + waited)
    except TimeoutError:
        if ticket is None or not ticket.gave_way:
            raise Refusal("request_timeout", "the body did not arrive in time", close=True) from None
    finally:
        if ticket is not None:
            ticket.on_give_way = None
    if ticket is not None and ticket.gave_way:
        # Even if its end has just arrived: its memory has been given to another.
        raise Refusal(
            "too_many_requests",
            "the body arrived too slowly while others needed its memory; nothing was put, try again",
            retry_after=1,
            close=True,
        )
    return bytes(body)


def decode_json(raw: bytes, kind: type[T], malformed: str) -> T:
    """Decode a body into a struct; refuses an invalid one, and with ``malformed`` what is not JSON."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise Refusal("bad_parameter", in_plain_words(error, kind)) from None
    # UnicodeDecodeError is not a DecodeError.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refusal("bad_json", malformed) from None


async def _room(connection: Connection, size: int) -> float:
    """Wait for room for a large body and return for how long; refuses after the body time-out."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(connection.settings.body_timeout):
            await connection.take_room(size)
    except TimeoutError:
        raise Refusal(
            "too_many_requests",
            "too many large bodies are arriving; nothing was done, try again",
            status=503,
            retry_after=5,
            close=True,
        ) from None
    return loop.time() - began


def send_continue(request: BaseRequest, connection: Connection) -> None:
    """Answer ``Expect: 100-continue``; refuses any other expectation."""
    if request.headers[hdrs.EXPECT].lower() != "100-continue":
        raise Refusal("bad_parameter", "only Expect: 100-continue is supported", status=417, close=True)
    if connection.transport is not None:
        connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _too_large(limit: int) -> Refusal:
    return Refusal("too_large", f"the body may have at most {limit} bytes", close=True)
