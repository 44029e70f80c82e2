"""The relay: an Azure Queue endpoint elsewhere behind an address of ours, so that puts to it ring the bell.

What comes is passed on as it came, streamed both ways, and nothing is tried twice: neither signatures nor bodies are
looked at, and the endpoint alone decides who may do what. Only the outcome of a put is noticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import aiohttp
from aiohttp import HttpVersion10, HttpVersion11, hdrs
from aiohttp.web_protocol import RequestPayloadError
from multidict import CIMultiDict
from yarl import URL

from bridge.contract.errors import BadInput, Closed, ConfigurationError
from bridge.contract.event import CloudQueueWorkDetected
from bridge.queue_service.azure.errors import AzureError
from bridge.queue_service.relay.endpoint import Endpoint, account_in, host_of
from bridge.queue_service.relay.headers import Raw, passed_on
from bridge.queue_service.relay.ring import Ring, delays_ms, ring_of
from bridge.web.azure import AzureConnectionServer, _azure_error, _told
from bridge.web.body import _continue, has_body
from bridge.web.connection import ConnectionServer
from bridge.web.guard import is_coded
from bridge.web.problem import Refusal
from bridge.web.quiet import QuietLog
from bridge.web.served import ServedBridge
from bridge.web.settings import WebSettings, check_settings, is_loopback
from bridge.web.sockets import default_connections, listen, local_url

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

    from bridge.web.connection import Connection

BUS = "azure-relay"
CONNECT_S = 5.0
SILENCE_S = 40.0
"""Longer than the 30 s after which the service itself gives up."""
WHOLE_S = 120.0
# Below the 5 s after which Node's servers, and so Azurite, close a connection that nobody uses.
KEEPALIVE_S = 4.0
URI_BYTES = 8190
HEADER_BYTES = 32 * 1024
HEADERS = 128

logger = logging.getLogger("queuebell.relay")


class RelayServer:
    """Passes requests on to one endpoint; an async context manager.

    ``keep_host`` sends the Host header on as it came, for an endpoint that knows accounts by it. Raises
    `ConfigurationError` when made with settings that are not acceptable.
    """

    name = "azure_relay"

    def __init__(
        self,
        bridge: ServedBridge,
        endpoint: Endpoint,
        settings: WebSettings,
        *,
        keep_host: bool = False,
        silence_s: float = SILENCE_S,
    ) -> None:
        if not settings.insecure_public and not is_loopback(settings.host):
            raise ConfigurationError(
                "azure_relay: only a loopback address is safe, for what passes is not encrypted; --insecure-public "
                "(insecure_public = true) listens there all the same"
            )
        check_settings(settings)
        self.settings = settings
        self.endpoint = endpoint
        self._bridge = bridge
        self._keep_host = keep_host
        self._silence_s = silence_s
        self._client: aiohttp.ClientSession | None = None
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
        """Where a client on this machine reaches it, without a trailing slash."""
        return local_url("http", self.settings.host, self._port)

    async def start(self) -> None:
        """Listen; raises `OSError` where the address or port cannot be had. The endpoint is not asked for."""
        if self._server is not None:
            raise RuntimeError("the relay was started already")
        loop = asyncio.get_running_loop()
        self._quiet = QuietLog(logger, loop.time)
        server = AzureConnectionServer(
            self._handle,
            settings=self.settings,
            connections=self.settings.connections or default_connections(),
            boot=self._bridge.boot,
            quiet=self._quiet,
            loop=loop,
        )
        self._listening, self._port = await listen(server, self.settings.host, self.settings.port)
        self._server = server
        self._client = self._open()

    async def stop(self) -> None:
        """Stop listening, let requests under way end, and close all connections; may be called twice."""
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(self.settings.shutdown_timeout)
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _open(self) -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=WHOLE_S, sock_connect=CONNECT_S, sock_read=self._silence_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        # No retry of any kind (L6): without this GET, PUT and DELETE are sent a second time when a kept connection is
        # dropped before the answer.
        session._retry_connection = False
        return session

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        try:
            return cast("StreamResponse", await self._relay(request))
        except AzureError as error:
            return cast("StreamResponse", _told(error, ""))
        except Refusal as refusal:
            return cast("StreamResponse", _told(_azure_error(refusal), ""))
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - told as 500 and logged; a connection must not die silently
            self._log.fault("a request could not be relayed", error)
            return cast("StreamResponse", _told(AzureError("InternalError", close=True), ""))

    async def _relay(self, request: BaseRequest) -> Relayed:
        method, target = request._message.method, request._message.path
        if len(target) > self.settings.uri_bytes:
            raise AzureError("InvalidUri", "The address is too long.", status=414, close=True)
        if not target.startswith("/"):
            # Absolute form (RFC 9112 3.2.2); where to is not for the request to say.
            scheme, separator, rest = target.partition("://")
            if not separator or scheme.lower() not in ("http", "https"):
                raise AzureError("InvalidUri", close=True)
            target = "/" + rest.partition("/")[2]
        if "#" in target:
            # A fragment has no place in a request; passed on, its address would be another than the one signed.
            raise AzureError("InvalidUri", close=True)
        headers = request._message.headers
        if hdrs.TRANSFER_ENCODING in headers and is_coded(headers):
            # Nothing of it can be passed on: what remained after the chunks would arrive without its coding.
            raise AzureError("UnsupportedHeader", details={"HeaderName": "Transfer-Encoding"}, close=True)
        ring = ring_of(method, target, self._host(request))
        if ring is not None and self._bridge.draining:
            raise _stopping()
        upload = _Upload(request)
        try:
            answer = await self._ask(request, method, target, upload)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise self._down(error, sent=False) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if upload.failed is not None:
                raise upload.failed from None
            self._ring(ring if upload.whole else None, None, None)
            raise self._down(error, sent=upload.whole) from None
        except asyncio.CancelledError:
            self._ring(ring if upload.whole else None, None, None)
            raise
        # The mark goes before the acknowledgement (B1).
        self._ring(ring, answer.status, answer.headers.get("x-ms-error-code"))
        return Relayed(request, answer)

    async def _ask(self, request: BaseRequest, method: str, target: str, upload: _Upload) -> aiohttp.ClientResponse:
        client = self._client
        if client is None:
            raise _stopping()
        return await client.request(
            method,
            URL(self.endpoint.url + target, encoded=True),
            headers=self._headers(request._message.raw_headers),
            data=upload.chunks() if has_body(request) else None,
            allow_redirects=False,
        )

    def _host(self, request: BaseRequest) -> str:
        """Return a host name that names the account addressed, or none where the path does."""
        if not self._keep_host:
            return self.endpoint.host
        authority = request._message.headers.get(hdrs.HOST, "").lower()
        return host_of(account_in(authority.partition(":")[0]))

    def _headers(self, raw: tuple[Raw, ...]) -> CIMultiDict[str]:
        pairs = passed_on(raw, without=() if self._keep_host else (b"host",))
        # One that comes again in other letters would replace the first in the client's own headers.
        spelled: dict[bytes, str] = {}
        try:
            return CIMultiDict(
                [
                    (spelled.setdefault(name.lower(), name.decode("ascii")), value.decode("utf-8"))
                    for name, value in pairs
                ]
            )
        except UnicodeDecodeError:
            raise AzureError("InvalidHeaderValue", close=True) from None

    def _ring(self, ring: Ring | None, status: int | None, code: str | None) -> None:
        if ring is None:
            return
        events = [
            CloudQueueWorkDetected(ring.account, ring.queue, not_before_ms=delay)
            for delay in delays_ms(ring, status, code)
        ]
        if not events:
            return
        try:
            self._bridge.trigger(events, bus=BUS)
        except (BadInput, Closed) as error:
            # A bell never fails a put (P4); the next sweep, or the next start, finds the message.
            self._log.warn(f"a put was relayed and its bell not rung, a sweep will find the message: {error}")

    def _down(self, error: Exception, *, sent: bool) -> AzureError:
        late = isinstance(error, TimeoutError)
        did = "it may have been carried out" if sent else "nothing was carried out"
        why = "did not answer in time" if late else ("broke the connection off" if sent else "cannot be reached")
        self._log.warn(f"the endpoint {self.endpoint.url} {why}; {did}")
        return AzureError(
            "OperationTimedOut" if late else "InternalError",
            f"The endpoint behind this relay {why}; {did}.",
            status=504 if late else 502,
            close=True,
        )

    @property
    def _log(self) -> QuietLog:
        assert self._quiet is not None
        return self._quiet


def relay_settings(settings: WebSettings, host: str, port: int) -> WebSettings:
    """Return the settings of a relay: those of the bridge's server, its own address, and room for any request.

    How large an address and a head may be is for the endpoint to say; these are only ours to bear.
    """
    changed: dict[str, Any] = {name: getattr(settings, name) for name in settings.__struct_fields__}
    changed.update(host=host, port=port, uri_bytes=URI_BYTES, header_bytes=HEADER_BYTES, headers=HEADERS)
    return WebSettings(**changed)


class _Upload:
    """A request's body on its way; ``whole`` once there is no more of it, ``failed`` is what ended it before."""

    def __init__(self, request: BaseRequest) -> None:
        self._request = request
        self.whole = not has_body(request)
        self.failed: AzureError | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read it piece by piece; the connection's body time-out bounds the whole."""
        request, connection = self._request, cast("Connection", self._request._protocol)
        if hdrs.EXPECT in request._message.headers:
            _continue(request, connection)
        deadline = asyncio.get_running_loop().time() + connection.settings.body_timeout
        try:
            # Not around the yield: it would cancel whoever sends the piece on.
            while chunk := await self._piece(deadline):
                yield chunk
        except TimeoutError:
            self.failed = AzureError("OperationTimedOut", "The body did not come in time.", status=408, close=True)
            raise
        except RequestPayloadError:
            self.failed = AzureError("InvalidInput", "The body is malformed.", close=True)
            raise
        self.whole = True

    async def _piece(self, deadline: float) -> bytes:
        async with asyncio.timeout_at(deadline):
            return await self._request._payload.readany()


class Relayed:
    """The endpoint's answer on its way; has the surface of `bridge.web.answer.Answer`."""

    def __init__(self, request: BaseRequest, answer: aiohttp.ClientResponse) -> None:
        self.status = answer.status
        self.keep_alive = True
        self._answer = answer
        self._protocol = cast("Connection", request._protocol)
        self._empty = request._message.method == "HEAD" or answer.status in (204, 304)
        self._chunked = False

    async def prepare(self, request: BaseRequest) -> None:
        """Write the head; raises `ConnectionResetError` where the peer is gone."""
        answer, protocol, message = self._answer, self._protocol, request._message
        transport = protocol.transport
        if transport is None or transport.is_closing():
            answer.close()
            raise aiohttp.ClientConnectionResetError("the peer is gone")
        lines = [b"HTTP/1.1 %d %b" % (answer.status, (answer.reason or "").encode("latin-1", "replace"))]
        lines += [b"%b: %b" % pair for pair in passed_on(answer.raw_headers)]
        sized = self._empty or hdrs.CONTENT_LENGTH in answer.headers
        self._chunked = not sized and message.version >= HttpVersion11
        if self._chunked:
            lines.append(b"Transfer-Encoding: chunked")
        # Where the request was refused before its body was read, the rest of it stands before the next request.
        unread = not request._payload.is_eof()
        self.keep_alive = not (message.should_close or protocol.ending or unread or not (sized or self._chunked))
        if not self.keep_alive:
            lines.append(b"Connection: close")
        elif message.version == HttpVersion10:
            lines.append(b"Connection: keep-alive")
        transport.write(b"\r\n".join(lines) + b"\r\n\r\n")

    async def write_eof(self) -> None:
        """Pass the body on; where it breaks off, so does the connection, for that is how its reader learns of it."""
        try:
            if not self._empty:
                await self._pass_body()
        except (aiohttp.ClientError, TimeoutError, OSError):
            self._protocol.force_close()
        finally:
            self._answer.release() if self._empty or self._answer.content.is_eof() else self._answer.close()

    async def _pass_body(self) -> None:
        protocol = self._protocol
        async for chunk in self._answer.content.iter_any():
            transport = protocol.transport
            if transport is None:
                raise ConnectionResetError("the peer is gone")
            transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk)
            if protocol._paused:
                await protocol._drain_helper()
        if self._chunked and protocol.transport is not None:
            protocol.transport.write(b"0\r\n\r\n")


def _stopping() -> AzureError:
    message = "The relay is stopping; nothing was passed on. Try again."
    return AzureError("ServerBusy", message, headers={"Retry-After": "1"}, close=True)
