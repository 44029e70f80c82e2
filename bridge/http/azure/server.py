"""The Azure endpoint over HTTP: a separate server with its own port."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import ssl
import uuid
from typing import TYPE_CHECKING, cast, overload

import msgspec
from aiohttp.web import RequestPayloadError

from queuebell.bridge.http.azure import xml
from queuebell.bridge.http.azure.errors import AzureError, busy
from queuebell.bridge.http.azure.exchange import KNOWN, NEWEST, Request, locate
from queuebell.bridge.http.azure.front import VERBS, AzureFront
from queuebell.bridge.http.server.answer import Answer, Refusal, reason
from queuebell.bridge.http.server.body import read_body
from queuebell.bridge.http.server.connection import Connection, ConnectionServer
from queuebell.bridge.http.server.guard import Guard, Hosts, is_coded
from queuebell.bridge.http.server.http_server import HttpServer
from queuebell.bridge.http.server.settings import WebSettings

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from queuebell.bridge.access.put_gate import Ticket

URI_BYTES = 4096
HEADER_BYTES = 16 * 1024
"""Metadata alone may be 8 KiB of headers."""
HEADERS = 128

_client_id = re.compile("[\x21-\x7e]{1,1024}").fullmatch

_CODES = {
    403: "AuthorizationFailure",
    408: "OperationTimedOut",
    413: "RequestBodyTooLarge",
    414: "InvalidUri",
    417: "UnsupportedHeader",
    429: "ServerBusy",
    431: "InvalidHeaderValue",
    500: "InternalError",
    503: "ServerBusy",
}


class XmlAnswer(Answer):
    """An answer in the form of the Queue service; ``lines`` are whole, checked header lines."""

    __slots__ = ()

    def __init__(self, status: int, body: bytes, lines: str, *, close: bool = False) -> None:
        self.status = status
        self._close = close
        self._body = body
        media = "Content-Type: application/xml\r\n" if body else ""
        self._head = f"HTTP/1.1 {status} {reason(status)}\r\n{media}{lines}".encode("latin-1")
        self._added = b""
        self._protocol = None


class AzureConnection(Connection):
    """A connection whose refusals are XML, also those of incomplete requests."""

    __slots__ = ()

    def refuse(self, refusal: Refusal) -> Answer:
        """Return the answer for a refusal."""
        return error_answer(azure_error(refusal), "")


class AzureServer(HttpServer):
    """Serves an `AzureFront`.

    ``settings`` are those of the bridge's own server with another host and port. As there, an address that other
    machines can reach is refused by default: the emulator's account has a public key.
    """

    name = "azure_queue"
    log = logging.getLogger("queuebell.azure")
    fault = "unexpected error in a request to the Azure Queue endpoint"
    connection = AzureConnection

    def __init__(
        self, front: AzureFront, settings: WebSettings, *, boot: str | None, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(settings, boot=boot, tls=tls)
        self._front = front
        self._hosts = Hosts(settings, accounts=True)
        self._ids = _RequestIds()

    def _prepare(self, server: ConnectionServer) -> None:
        self._guard = Guard(self.settings, asyncio.get_running_loop().time)
        self._front.limit_answers(server.unread)
        server.fixed_headers = b"Server: Queuebell-Azure-Queue\r\n" + server.fixed_headers

    async def _serve(self, request: BaseRequest) -> Answer:
        try:
            reply = await self._front.handle(self._checked(request))
        except AzureError as error:
            if error.held_s:
                await cast("Connection", request.protocol).delay_refusal(error.held_s)
            raise
        lines = self._lines(request)
        for name, value in reply.headers.items():
            lines += f"{name}: {value}\r\n"
        return XmlAnswer(reply.status, reply.body, lines, close=reply.close)

    def _refused(self, request: BaseRequest, error: Exception) -> Answer:
        return error_answer(azure_error(error) or azure_error(self._failed(error)), self._lines(request))

    def _lines(self, request: BaseRequest) -> str:
        """Return the header lines of every answer to this request, with a new request id."""
        headers = request.headers
        version = headers.get("x-ms-version", NEWEST)
        lines = f"{self._ids.line()}x-ms-version: {version if version in KNOWN else NEWEST}\r\n"
        client_id = headers.get("x-ms-client-request-id")
        if client_id is not None and _client_id(client_id) is not None:
            lines += f"x-ms-client-request-id: {client_id}\r\n"
        return lines

    def _checked(self, request: BaseRequest) -> Request:
        """Check what is cheap to check; raises `AzureError`."""
        target, headers = request.raw_path, request.headers
        if len(target) > self.settings.uri_bytes:
            raise AzureError("InvalidUri", "The address is too long.", status=414, close=True)
        if "content-encoding" in headers:
            # Never inflated (S7): connection.py configures the server's parser so too.
            raise AzureError("UnsupportedHeader", details={"HeaderName": "Content-Encoding"}, close=True)
        if "transfer-encoding" in headers and is_coded(headers):
            raise AzureError("UnsupportedHeader", details={"HeaderName": "Transfer-Encoding"}, close=True)
        authority = headers.get("host", "")
        host = known_host(self._hosts, authority)
        if not target.startswith("/") and target.partition("://")[2].partition("/")[0] != authority:
            raise AzureError("InvalidUri", "The request's target and its Host disagree.", close=True)
        if self._guard.limits_rates and (wait := self._guard.seconds_to_wait(request)):
            raise busy("Slow down.", wait)

        async def read(limit: int, ticket: Ticket | None) -> bytes:
            try:
                return await read_body(request, limit, ticket)
            except Refusal as refusal:
                raise azure_error(refusal) from None

        if request.method not in VERBS:
            raise AzureError("InvalidHttpVerb")
        at = locate(target, host)
        return Request(
            request.method,
            at.path,
            at.query,
            headers,
            at.account,
            at.secondary,
            at.path_style,
            at.queue,
            self._tls is not None,
            request.remote or "",
            at.resource,
            at.message,
            authority,
            read,
            request.content.is_eof(),
        )


def known_host(hosts: Hosts, authority: str) -> str:
    """Return the name of a known Host header; raises `AzureError`."""
    try:
        return hosts.check(authority)
    except Refusal as refusal:
        raise AzureError(
            "InvalidHeaderValue",
            "Unknown Host; allowed_hosts adds names of this server.",
            status=refusal.status,
            details={"HeaderName": "Host"},
            close=True,
        ) from None


def front_settings(settings: WebSettings, host: str, port: int) -> WebSettings:
    """Return the settings of this server: those of the bridge's own, another address, and room for its headers."""
    return msgspec.structs.replace(
        settings, host=host, port=port, uri_bytes=URI_BYTES, header_bytes=HEADER_BYTES, headers=HEADERS
    )


class _RequestIds:
    """Header lines with request ids: random for each start, then counted."""

    __slots__ = ("_count", "_prefix")

    def __init__(self) -> None:
        text = str(uuid.uuid4())
        self._prefix = f"x-ms-request-id: {text[:24]}"
        self._count = itertools.count(int(text[24:], 16))

    def line(self) -> str:
        return f"{self._prefix}{next(self._count) & 0xFFFFFFFFFFFF:012x}\r\n"


def error_answer(error: AzureError, lines: str) -> XmlAnswer:
    """Return the answer for an error; ``lines`` are further header lines."""
    lines += f"x-ms-error-code: {error.code}\r\n"
    for name, value in error.headers.items():
        lines += f"{name}: {value}\r\n"
    return XmlAnswer(error.status, xml.error(error.code, error.message, error.details), lines, close=error.close)


@overload
def azure_error(error: Refusal) -> AzureError: ...
@overload
def azure_error(error: Exception) -> AzureError | None: ...
def azure_error(error: Exception) -> AzureError | None:
    """Return the Azure error for an error, None for an internal one."""
    if isinstance(error, RequestPayloadError):
        return AzureError("InvalidInput", "The body is malformed.", close=True)
    if not isinstance(error, Refusal):
        return error if isinstance(error, AzureError) else None
    code = _CODES.get(error.status, "InvalidInput")
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    # The service's own answer to too many requests.
    status = 503 if error.status == 429 else error.status
    return AzureError(code, status=status, headers=headers, close=error.close)
