"""The relay: an Azure Queue endpoint elsewhere behind an address of ours, so that puts to it ring the bell.

What comes is passed on as it came, streamed both ways, and nothing is tried twice: neither signatures nor bodies are
looked at, and the endpoint alone decides who may do what. Only the outcome of a put is noticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

import aiohttp
import msgspec
from aiohttp import HttpVersion10, HttpVersion11, hdrs
from aiohttp.web import RequestPayloadError
from multidict import CIMultiDict, MultiMapping
from yarl import URL

from bridge.contract.address import is_loopback
from bridge.contract.errors import BadInput, Closed, ConfigurationError
from bridge.contract.event import CloudQueueWorkDetected
from bridge.http.azure.cors import from_foreign_page
from bridge.http.azure.errors import AzureError
from bridge.http.azure.relay.endpoint import Endpoint, account_in, host_of
from bridge.http.azure.relay.headers import Raw, passed_on
from bridge.http.azure.relay.ring import Ring, delays_ms, ring_of
from bridge.http.azure.server import AzureConnection, azure_error, known_host, told
from bridge.http.server.answer import Answer
from bridge.http.server.body import _continue, has_body
from bridge.http.server.guard import Hosts, check_origin, is_coded, origin_form
from bridge.http.server.http_server import HttpServer
from bridge.http.server.settings import WebSettings
from bridge.queues.aiohttp_private.client import try_once

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

    from bridge.http.azure.relay.limits import AccountLimits
    from bridge.http.server.connection import Connection
    from bridge.service.bridge import Bridge

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


class RelayServer(HttpServer):
    """Passes requests on to one endpoint, which is not asked for before the first of them.

    ``keep_host`` sends the Host header on as it came, for an endpoint that knows accounts by it. ``limits`` are those
    of the accounts' principals, where the bridge asks for keys.
    """

    name = "azure_relay"
    log = logging.getLogger("queuebell.relay")
    fault = "unexpected error while relaying a request"
    connection = AzureConnection

    def __init__(
        self,
        bridge: Bridge,
        endpoint: Endpoint,
        settings: WebSettings,
        *,
        keep_host: bool = False,
        silence_s: float = SILENCE_S,
        limits: AccountLimits | None = None,
    ) -> None:
        if not settings.insecure_public and not is_loopback(settings.host):
            raise ConfigurationError(
                "azure_relay: only a loopback address is safe, because the traffic is not encrypted; "
                "--insecure-public (insecure_public = true) listens there anyway"
            )
        super().__init__(settings, boot=bridge.boot)
        self.endpoint = endpoint
        self._hosts = Hosts(settings, accounts=True)
        self._bridge = bridge
        self._keep_host = keep_host
        self._silence_s = silence_s
        self._limits = limits
        self._client: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Listen; raises `OSError` where the address or port cannot be had."""
        await super().start()
        self._client = self._open()

    async def stop(self) -> None:
        """End the server, and the connections to the endpoint after it."""
        await super().stop()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _open(self) -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=WHOLE_S, sock_connect=CONNECT_S, sock_read=self._silence_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        try_once(session)
        return session

    def _refused(self, request: BaseRequest, error: Exception) -> Answer:
        return told(azure_error(error) or azure_error(self._failed(error)), "")

    async def _serve(self, request: BaseRequest) -> StreamResponse:
        method, target = request.method, request.raw_path
        self._check_page(request.headers)
        if len(target) > self.settings.uri_bytes:
            raise AzureError("InvalidUri", "The address is too long.", status=414, close=True)
        if not target.startswith("/"):
            # Absolute form (RFC 9112 3.2.2); where to is not for the request to say.
            scheme, separator, _ = target.partition("://")
            if not separator or scheme.lower() not in ("http", "https"):
                raise AzureError("InvalidUri", close=True)
        if "#" in target:
            # A fragment has no place in a request; passed on, its address would be another than the one signed.
            raise AzureError("InvalidUri", close=True)
        target = origin_form(target)
        headers = request.headers
        if hdrs.TRANSFER_ENCODING in headers and is_coded(headers):
            # Nothing of it can be passed on: what remained after the chunks would arrive without its coding.
            raise AzureError("UnsupportedHeader", details={"HeaderName": "Transfer-Encoding"}, close=True)
        host = self._host(request)
        ring = ring_of(method, target, host)
        if ring is not None and self._bridge.draining:
            raise _stopping()
        used = None if self._limits is None else await self._limits.admit(request, target, host)
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
        if used is not None and answer.status < 400:
            used()
        # The mark goes before the acknowledgement (B1).
        self._ring(ring, answer.status, answer.headers.get("x-ms-error-code"))
        return cast("StreamResponse", Relayed(request, answer))

    def _check_page(self, headers: MultiMapping[str]) -> None:
        """Refuse what a web page from elsewhere asks: everybody knows an emulator's key, and could sign with it."""
        authority = headers.get(hdrs.HOST, "")
        known_host(self._hosts, authority)
        own = f"http://{authority}".lower()
        if hdrs.ORIGIN in headers:
            check_origin(headers.getall(hdrs.ORIGIN), own)
        elif from_foreign_page(headers, own):
            check_origin([], own)

    async def _ask(self, request: BaseRequest, method: str, target: str, upload: _Upload) -> aiohttp.ClientResponse:
        client = self._client
        if client is None:
            raise _stopping()
        return await client.request(
            method,
            URL(self.endpoint.url + target, encoded=True),
            headers=self._headers(request.raw_headers),
            data=upload.chunks() if has_body(request) else None,
            allow_redirects=False,
        )

    def _host(self, request: BaseRequest) -> str:
        """Return a host name that names the account addressed, or none where the path does."""
        if not self._keep_host:
            return self.endpoint.host
        authority = request.headers.get(hdrs.HOST, "").lower()
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
            self.quiet.warn(
                f"a put was relayed but its trigger was not accepted; a sweep will find the message: {error}"
            )

    def _down(self, error: Exception, *, sent: bool) -> AzureError:
        late = isinstance(error, TimeoutError)
        did = "it may have been carried out" if sent else "nothing was carried out"
        why = "did not answer in time" if late else ("closed the connection" if sent else "cannot be reached")
        self.quiet.warn(f"the endpoint {self.endpoint.url} {why}; {did}")
        return AzureError(
            "OperationTimedOut" if late else "InternalError",
            f"The endpoint behind this relay {why}; {did}.",
            status=504 if late else 502,
            close=True,
        )


def relay_settings(settings: WebSettings, host: str, port: int) -> WebSettings:
    """Return the settings of a relay: those of the bridge's server, its own address, and room for any request.

    How large an address and a head may be is for the endpoint to say; these are only ours to bear.
    """
    return msgspec.structs.replace(
        settings, host=host, port=port, uri_bytes=URI_BYTES, header_bytes=HEADER_BYTES, headers=HEADERS
    )


class _Upload:
    """A request's body on its way; ``whole`` once there is no more of it, ``failed`` is what ended it before."""

    def __init__(self, request: BaseRequest) -> None:
        self._request = request
        self.whole = not has_body(request)
        self.failed: AzureError | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read it piece by piece; the connection's body time-out bounds the whole."""
        request, connection = self._request, cast("Connection", self._request.protocol)
        if hdrs.EXPECT in request.headers:
            _continue(request, connection)
        deadline = asyncio.get_running_loop().time() + connection.settings.body_timeout
        try:
            # Not around the yield: it would cancel whoever sends the piece on.
            while chunk := await self._piece(deadline):
                yield chunk
        except TimeoutError:
            self.failed = AzureError("OperationTimedOut", "The body did not arrive in time.", status=408, close=True)
            raise
        except RequestPayloadError:
            self.failed = AzureError("InvalidInput", "The body is malformed.", close=True)
            raise
        self.whole = True

    async def _piece(self, deadline: float) -> bytes:
        async with asyncio.timeout_at(deadline):
            return await self._request.content.readany()


class Relayed:
    """The endpoint's answer on its way; has the surface of `bridge.http.server.answer.Answer`."""

    def __init__(self, request: BaseRequest, answer: aiohttp.ClientResponse) -> None:
        self.status = answer.status
        self._answer = answer
        self._protocol = cast("Connection", request.protocol)
        self._empty = request.method == "HEAD" or answer.status in (204, 304)
        self._chunked = False

    async def prepare(self, request: BaseRequest) -> None:
        """Write the head; raises `ConnectionResetError` where the peer is gone."""
        answer, protocol = self._answer, self._protocol
        transport = protocol.transport
        if transport is None or transport.is_closing():
            answer.close()
            raise aiohttp.ClientConnectionResetError("the peer is gone")
        lines = [b"HTTP/1.1 %d %b" % (answer.status, (answer.reason or "").encode("latin-1", "replace"))]
        lines += [b"%b: %b" % pair for pair in passed_on(answer.raw_headers)]
        sized = self._empty or hdrs.CONTENT_LENGTH in answer.headers
        self._chunked = not sized and request.version >= HttpVersion11
        if self._chunked:
            lines.append(b"Transfer-Encoding: chunked")
        # Where the request was refused before its body was read, the rest of it stands before the next request.
        unread = not request.content.is_eof()
        self.keep_alive = request.keep_alive and (sized or self._chunked) and not (protocol.ending or unread)
        if not self.keep_alive:
            lines.append(b"Connection: close")
        elif request.version == HttpVersion10:
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
            if protocol.writing_paused:
                await protocol.drained()
        if self._chunked and protocol.transport is not None:
            protocol.transport.write(b"0\r\n\r\n")


def _stopping() -> AzureError:
    message = "The relay is stopping; nothing was relayed. Try again."
    return AzureError("ServerBusy", message, headers={"Retry-After": "1"}, close=True)
