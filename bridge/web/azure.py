"""The Azure Queue front door over HTTP: a server of its own beside the bridge's, on its own port."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import ssl
import uuid
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from aiohttp import hdrs
from aiohttp.web_protocol import RequestPayloadError
from multidict import MultiMapping

from bridge.queue_service.azure import xml_out
from bridge.queue_service.azure.address import host_account
from bridge.queue_service.azure.errors import AzureError
from bridge.queue_service.azure.exchange import Request
from bridge.queue_service.azure.front import AzureFront
from bridge.queue_service.azure.versions import KNOWN, NEWEST
from bridge.web.answer import CLOSE, Answer
from bridge.web.body import read_body
from bridge.web.connection import Connection, ConnectionServer
from bridge.web.fast_path import AnswerPlain, FastConnection, PlainRequest
from bridge.web.guard import Guard, is_coded
from bridge.web.problem import Refusal, reason
from bridge.web.quiet import QuietLog
from bridge.web.settings import WebSettings, check_settings, is_loopback
from bridge.web.sockets import default_connections, listen, local_url

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

Headers = MultiMapping[str]

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

    async def _answer_plain(self, request: PlainRequest, address: str) -> XmlAnswer:
        body = request.body

        async def read(limit: int) -> bytes:
            if len(body) > limit:
                raise AzureError("RequestBodyTooLarge", status=413, close=True)
            return body

        return await self._answer(request.method, request.target, request.headers, read, address, whole=True)

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        message, peer = request._message, request._transport_peername

        async def read(limit: int) -> bytes:
            try:
                return await read_body(request, limit)
            except Refusal as refusal:
                raise _azure_error(refusal) from None

        address = peer[0] if isinstance(peer, tuple) else ""
        whole = request._payload.is_eof()
        answer = await self._answer(message.method, message.path, message.headers, read, address, whole=whole)
        return cast("StreamResponse", answer)

    async def _answer(
        self,
        method: str,
        target: str,
        headers: Headers,
        read: Callable[[int], Awaitable[bytes]],
        address: str,
        *,
        whole: bool,
    ) -> XmlAnswer:
        version = headers.get("x-ms-version", NEWEST)
        lines = f"{self._ids.line()}x-ms-version: {version if version in KNOWN else NEWEST}\r\n"
        client_id = headers.get("x-ms-client-request-id")
        if client_id is not None and _client_id(client_id) is not None:
            lines += f"x-ms-client-request-id: {client_id}\r\n"
        try:
            host, authority = self._checked(target, headers, address)
            reply = await self._front.handle(
                Request(method, target, host, authority, headers, read, self._tls is not None, address, whole)
            )
        except AzureError as error:
            return _told(error, lines)
        except RequestPayloadError:
            return _told(AzureError("InvalidInput", "The body is malformed.", close=True), lines)
        except ConnectionError:
            # The peer went away; the connection knows what to do.
            raise
        except Exception as error:  # noqa: BLE001 - told as 500 and logged; a connection must not die silently
            if self._quiet is not None:
                self._quiet.fault("a request at the Azure front door failed", error)
            return _told(AzureError("InternalError", close=True), lines)
        for name, value in reply.headers.items():
            lines += f"{name}: {value}\r\n"
        return XmlAnswer(reply.status, reply.body, lines, close=reply.close)

    def _checked(self, target: str, headers: Headers, address: str) -> tuple[str, str]:
        """Check what costs nothing to check, and return host and authority; raises `AzureError`."""
        if len(target) > self.settings.uri_bytes:
            raise AzureError("InvalidUri", "The address is too long.", status=414, close=True)
        if hdrs.CONTENT_ENCODING in headers:
            # Never inflated (S7): the server's parser is told so too, see connection.py.
            raise AzureError("UnsupportedHeader", details={"HeaderName": "Content-Encoding"}, close=True)
        if hdrs.TRANSFER_ENCODING in headers and is_coded(headers):
            raise AzureError("UnsupportedHeader", details={"HeaderName": "Transfer-Encoding"}, close=True)
        authority = headers.get(hdrs.HOST, "")
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


def _told(error: AzureError, lines: str) -> XmlAnswer:
    lines += f"x-ms-error-code: {error.code}\r\n"
    for name, value in error.headers.items():
        lines += f"{name}: {value}\r\n"
    return XmlAnswer(error.status, xml_out.error(error.code, error.message, error.details), lines, close=error.close)


def _azure_error(refusal: Refusal) -> AzureError:
    code = _CODES.get(refusal.status, "InvalidInput")
    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    return AzureError(code, status=refusal.status, headers=headers, close=refusal.close)
