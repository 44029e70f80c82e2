"""Reading a request's body within its limits, and what kind of body it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from aiohttp import hdrs
from aiohttp.streams import EmptyStreamReader

from bridge.web.problem import Refusal

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from bridge.web.connection import Connection

_JSON_EXACT = frozenset({"application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"})


def is_json(request: BaseRequest) -> bool:
    """Say whether the body claims to be ``application/json``; parameters do not matter, JSON is always UTF-8."""
    media = request._message.headers.get(hdrs.CONTENT_TYPE)
    if media is None:
        return False
    return media in _JSON_EXACT or media.partition(";")[0].strip(" \t").lower() == "application/json"


def require_json(request: BaseRequest) -> None:
    """Refuse a body that does not claim to be JSON (S8)."""
    if not is_json(request):
        # Not read before it is refused, so the connection cannot be used again.
        raise Refusal("unsupported_media_type", "the body has to be application/json", close=has_body(request))


def has_body(request: BaseRequest) -> bool:
    """Say whether a body was announced; a chunked one may still turn out empty."""
    return type(request._payload) is not EmptyStreamReader


async def read_body(request: BaseRequest, limit: int) -> bytes:
    """Read the whole body, at most ``limit`` bytes.

    Refuses with ``too_large`` before reading what is announced to be more, and with 408 what does not come within the
    connection's body time-out.
    """
    payload = request._payload
    if type(payload) is EmptyStreamReader:
        return b""
    length = request._message.headers.get(hdrs.CONTENT_LENGTH)
    if length is not None and int(length) > limit:
        raise _too_large(limit)
    if payload.is_eof():
        # The usual case: it came in the same segment as the headers.
        data = payload.read_nowait()
        if len(data) > limit:
            raise _too_large(limit)
        return data
    connection = cast("Connection", request._protocol)
    if hdrs.EXPECT in request._message.headers:
        _continue(request, connection)
    # Lets a large body come in few big steps; aiohttp stops reading the socket at twice this.
    payload.set_read_chunk_size(min(limit, 1 << 20))
    body = bytearray()
    try:
        async with asyncio.timeout(connection.settings.body_timeout):
            while chunk := await payload.readany():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise Refusal("request_timeout", "the body did not come in time", close=True) from None
    return bytes(body)


def _continue(request: BaseRequest, connection: Connection) -> None:
    if request._message.headers[hdrs.EXPECT].lower() != "100-continue":
        raise Refusal("bad_parameter", "only 100-continue can be expected", status=417, close=True)
    if connection.transport is not None:
        connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _too_large(limit: int) -> Refusal:
    return Refusal("too_large", f"the body is at most {limit} bytes", close=True)
