"""The Azure Queue front door over HTTP: a server of its own beside the bridge's, on its own port."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import ssl
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from aiohttp.web_protocol import RequestPayloadError

from bridge.queue_service.azure import xml_out
from bridge.queue_service.azure.address import host_account
from bridge.queue_service.azure.errors import AzureError
from bridge.queue_service.azure.exchange import Asked, ReadBody, Reply, Request
from bridge.queue_service.azure.front import AzureFront
from bridge.queue_service.azure.versions import KNOWN, NEWEST
from bridge.web.answer import CLOSE, Answer
from bridge.web.body import read_body
from bridge.web.connection import Connection, ConnectionServer
from bridge.web.fast_path import AnswerPlain, FastConnection, Pending, PlainRequest
from bridge.web.guard import Guard, is_coded
from bridge.web.problem import Refusal, reason
from bridge.web.quiet import QuietLog
from bridge.web.settings import WebSettings, check_settings, is_loopback
from bridge.web.sockets import default_connections, listen, local_url

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse
    from multidict import MultiMapping

    from bridge.core.admission import Ticket

HOSTS_REMEMBERED = 64
URI_BYTES = 4096
HEADER_BYTES = 16 * 1024
"""Metadata alone may be 8 KiB of headers."""
HEADERS = 128

_authority = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?").fullmatch
_client_id = re.compile("[\x21-\x7e]{1,1024}").fullmatch

_CODES = {
    408: "OperationTimedOut",
    413: "RequestBodyTooLarge",
    414: "InvalidUri",
    417: "UnsupportedHeader",
    429: "ServerBusy",
    431: "InvalidHeaderValue",
    500: "InternalError",
    503: "ServerBusy",
}

logger = logging.getLogger("queuebell.azure")


class XmlAnswer(Answer):
    """An answer as the Queue service gives it; ``lines`` are whole header lines, ours or checked."""

    __slots__ = ()

    def __init__(self, status: int, body: bytes, lines: str, *, close: bool = False) -> None:
        self.status = status
        self.keep_alive = not close
        self._close = close
        self._body = body
        media = "Content-Type: application/xml\r\n" if body else ""
        self._head = f"HTTP/1.1 {status} {reason(status)}\r\n{media}{lines}".encode("latin-1")
        self._protocol = None


class _PendingXml(Pending):
    """An answer that waits for the store alone."""

    __slots__ = ("_asked", "_lines", "_refused")

    def __init__(self, asked: Asked, lines: str, refused: Callable[[Exception, str], XmlAnswer]) -> None:
        super().__init__(asked.future)
        self._asked = asked
        self._lines = lines
        self._refused = refused

    def answer(self) -> XmlAnswer:
        """Make the answer."""
        try:
            return _rendered(self._asked.reply(), self._lines)
        except Exception as error:  # noqa: BLE001 - told, as all are
            return self._refused(error, self._lines)


class AzureConnection(FastConnection):
    """A connection whose refusals are XML, also those of requests that were never whole."""

    __slots__ = ()

    def refuse(self, refusal: Refusal) -> Answer:
        """Make the answer that tells a refusal."""
        return _told(_azure_error(refusal), "")

    def refuse_bare(self, refusal: Refusal) -> bytes:
        """Render it for a peer whose request was never read to its end."""
        answer = _told(_azure_error(refusal), "")
        return answer.whole(self.fixed_headers + CLOSE)


class AzureConnectionServer(ConnectionServer):
    """Makes these connections; ``answer_plain`` answers what need not go through aiohttp, where there is one."""

    def __init__(
        self,
        handler: Callable[[BaseRequest], Any],
        *,
        answer_plain: AnswerPlain | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(handler, **rest)
        self._answer_plain = answer_plain

    def __call__(self) -> Connection:
        """Make the protocol of one connection."""
        return AzureConnection(self, self._answer_plain, loop=self._loop)


class AzureServer:
    """Serves an `AzureFront`; an async context manager.

    ``settings`` are those of the bridge's own server with another host and port; ``tls`` makes it HTTPS. Raises
    `ConfigurationError` when made with settings that are not acceptable, above all an address that others can reach
    without ``insecure_public``: the emulator's account has a key that everybody knows.
    """

    name = "azure_queue"

    def __init__(
        self, front: AzureFront, settings: WebSettings, *, boot: str, tls: ssl.SSLContext | None = None
    ) -> None:
        check_settings(settings)
        self.settings = settings
        self._front = front
        self._tls = tls
        self._boot = boot
        self._names = {name.lower().strip("[]") for name in (settings.host, *settings.allowed_hosts)}
        self._hosts_passed: dict[str, str] = {}
        self._ids = _RequestIds()
        self._guard: Guard | None = None
        self._quiet: QuietLog | None = None
        self._server: ConnectionServer | None = None
        self._listening: list[asyncio.Server] = []
        self._port = 0

    @property
    def address(self) -> str:
        """Where it is to listen."""
        return f"{self.settings.host}:{self.settings.port}"

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        return self._port

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the service, without an account and a trailing slash."""
        return local_url("http" if self._tls is None else "https", self.settings.host, self._port)

    async def start(self) -> None:
        """Listen; raises `OSError` where the address or port cannot be had."""
        if self._server is not None:
            raise RuntimeError("the Azure front door was started already")
        loop = asyncio.get_running_loop()
        self._quiet = QuietLog(logger, loop.time)
        self._guard = Guard(self.settings, loop.time)
        server = AzureConnectionServer(
            self._handle,
            answer_plain=self._answer_plain,
            settings=self.settings,
            connections=self.settings.connections or default_connections(),
            boot=self._boot,
            quiet=self._quiet,
            loop=loop,
        )
        self._front.limit_answers(server.unread.fits)
        server.fixed_headers = b"Server: Queuebell-Azure-Queue\r\n" + server.fixed_headers
        self._listening, self._port = await listen(server, self.settings.host, self.settings.port, self._tls)
        self._server = server

    async def stop(self) -> None:
        """Stop listening, let requests under way end, and close all connections; may be called twice."""
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(self.settings.shutdown_timeout)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _answer_plain(
        self, request: PlainRequest, address: str
    ) -> XmlAnswer | Pending | Coroutine[Any, Any, XmlAnswer]:
        headers, body = request.headers, request.body

        async def read(limit: int, _: Ticket | None) -> bytes:
            if len(body) > limit:
                raise AzureError("RequestBodyTooLarge", status=413, close=True)
            return body

        lines = self._first_lines(headers)
        try:
            begun = self._begin(request.method, request.target, headers, request.fields, read, address, whole=True)
        except Exception as error:  # noqa: BLE001 - told, as all are
            return self._refused(error, lines)
        if isinstance(begun, Asked):
            return _PendingXml(begun, lines, self._refused)
        return self._awaited(begun, lines)

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        message, peer = request._message, request._transport_peername

        async def read(limit: int, ticket: Ticket | None) -> bytes:
            try:
                return await read_body(request, limit, ticket)
            except Refusal as refusal:
                raise _azure_error(refusal) from None

        address = peer[0] if isinstance(peer, tuple) else ""
        whole, headers = request._payload.is_eof(), message.headers
        lines = self._first_lines(headers)
        try:
            begun = self._begin(message.method, message.path, headers, headers.items(), read, address, whole=whole)
        except Exception as error:  # noqa: BLE001 - told, as all are
            return cast("StreamResponse", self._refused(error, lines))
        return cast("StreamResponse", await self._awaited(begun, lines))

    def _first_lines(self, headers: Mapping[str, str]) -> str:
        version = headers.get("x-ms-version", NEWEST)
        lines = f"{self._ids.line()}x-ms-version: {version if version in KNOWN else NEWEST}\r\n"
        client_id = headers.get("x-ms-client-request-id")
        if client_id is not None and _client_id(client_id) is not None:
            lines += f"x-ms-client-request-id: {client_id}\r\n"
        return lines

    def _begin(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        fields: Iterable[tuple[str, str]],
        read: ReadBody,
        address: str,
        *,
        whole: bool,
    ) -> Asked | Coroutine[Any, Any, Reply]:
        host, authority = self._checked(target, headers, address)
        secure = self._tls is not None
        return self._front.begin(
            Request(method, target, host, authority, headers, fields, read, secure, address, whole)
        )

    async def _awaited(self, begun: Awaitable[Reply], lines: str) -> XmlAnswer:
        try:
            return _rendered(await begun, lines)
        except Exception as error:  # noqa: BLE001 - told, as all are
            return self._refused(error, lines)

    def _refused(self, error: Exception, lines: str) -> XmlAnswer:
        """Tell what went wrong; a connection must not die silently. Raises `ConnectionError` where there is no peer."""
        if isinstance(error, AzureError):
            return _told(error, lines)
        if isinstance(error, RequestPayloadError):
            return _told(AzureError("InvalidInput", "The body is malformed.", close=True), lines)
        if isinstance(error, ConnectionError):
            # The peer went away; the connection knows what to do.
            raise error
        if self._quiet is not None:
            self._quiet.fault("a request at the Azure front door failed", error)
        return _told(AzureError("InternalError", close=True), lines)

    def _checked(self, target: str, headers: Mapping[str, str], address: str) -> tuple[str, str]:
        """Check what costs nothing to check, and return host and authority; raises `AzureError`."""
        if len(target) > self.settings.uri_bytes:
            raise AzureError("InvalidUri", "The address is too long.", status=414, close=True)
        if "content-encoding" in headers:
            # Never inflated (S7): the server's parser is told so too, see connection.py.
            raise AzureError("UnsupportedHeader", details={"HeaderName": "Content-Encoding"}, close=True)
        if "transfer-encoding" in headers and is_coded(cast("MultiMapping[str]", headers)):
            raise AzureError("UnsupportedHeader", details={"HeaderName": "Transfer-Encoding"}, close=True)
        authority = headers.get("host", "")
        host = self._hosts_passed.get(authority)
        if host is None:
            host = self._check_host(authority)
        if not target.startswith("/") and target.partition("://")[2].partition("/")[0] != authority:
            raise AzureError("InvalidUri", "The request's target and its Host disagree.", close=True)
        guard = self._guard
        if guard is not None and guard.limits_rates and (wait := guard.seconds_for(address)):
            raise AzureError("ServerBusy", "Slow down.", headers={"Retry-After": str(wait)})
        return host, authority

    def _check_host(self, authority: str) -> str:
        """Return the name of a Host header that is one of ours.

        Without this a web page whose name is made to resolve to 127.0.0.1 (DNS rebinding) could talk to the bridge.
        """
        match = _authority(authority)
        host = match[1].lower().rstrip(".") if match else ""
        name = host.strip("[]")
        known = self._is_ours(name) or (host_account(name) is not None and self._is_ours(name.split(".", 2)[2]))
        if not name or not known:
            raise AzureError(
                "InvalidHeaderValue",
                "This server is not known by that Host; allowed_hosts names further ones.",
                status=421,
                details={"HeaderName": "Host"},
                close=True,
            )
        if len(self._hosts_passed) < HOSTS_REMEMBERED:
            self._hosts_passed[authority] = host
        return host

    def _is_ours(self, name: str) -> bool:
        return name in self._names or is_loopback(name) or name.endswith(".localhost")


def load_tls(cert: str, key: str) -> ssl.SSLContext:
    """Make the server's side of TLS from two PEM files; raises `OSError` or `ssl.SSLError`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context


def front_settings(settings: WebSettings, host: str, port: int) -> WebSettings:
    """Return the settings of this door: those of the bridge's server, its own address, and room for its headers."""
    changed: dict[str, Any] = {name: getattr(settings, name) for name in settings.__struct_fields__}
    changed.update(host=host, port=port, uri_bytes=URI_BYTES, header_bytes=HEADER_BYTES, headers=HEADERS)
    return WebSettings(**changed)


class _RequestIds:
    """Header lines with request ids: random for each start, then counted."""

    __slots__ = ("_count", "_prefix")

    def __init__(self) -> None:
        text = str(uuid.uuid4())
        self._prefix = f"x-ms-request-id: {text[:24]}"
        self._count = itertools.count(int(text[24:], 16))

    def line(self) -> str:
        return f"{self._prefix}{next(self._count) & 0xFFFFFFFFFFFF:012x}\r\n"


def _rendered(reply: Reply, lines: str) -> XmlAnswer:
    for name, value in reply.headers.items():
        lines += f"{name}: {value}\r\n"
    return XmlAnswer(reply.status, reply.body, lines, close=reply.close)


def _told(error: AzureError, lines: str) -> XmlAnswer:
    lines += f"x-ms-error-code: {error.code}\r\n"
    for name, value in error.headers.items():
        lines += f"{name}: {value}\r\n"
    return XmlAnswer(error.status, xml_out.error(error.code, error.message, error.details), lines, close=error.close)


def _azure_error(refusal: Refusal) -> AzureError:
    code = _CODES.get(refusal.status, "InvalidInput")
    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    # What a client of the service knows as the answer to too many requests.
    status = 503 if refusal.status == 429 else refusal.status
    return AzureError(code, status=status, headers=headers, close=refusal.close)
