"""A relay to another Azure Queue endpoint, which triggers the bridge after each put.

Requests and answers are streamed as they come, and nothing is tried twice. The relay reads neither signatures nor
bodies: the endpoint alone decides who may do what. Only the outcome of a put is used.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import HttpVersion10, HttpVersion11, hdrs
from aiohttp.web import RequestPayloadError
from multidict import CIMultiDict, MultiMapping
from yarl import URL

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.contract.address import is_loopback, sender_of
from queuebell.bridge.contract.errors import BadInput, Closed, ConfigurationError
from queuebell.bridge.contract.event import NOT_BEFORE_MS_MAX, CloudQueueWorkDetected
from queuebell.bridge.contract.names import is_token
from queuebell.bridge.http.azure.errors import AzureError, busy
from queuebell.bridge.http.azure.exchange import Resource, locate
from queuebell.bridge.http.azure.server import AzureConnection, azure_error, error_answer, known_host
from queuebell.bridge.http.server.answer import Answer
from queuebell.bridge.http.server.body import send_continue, unread
from queuebell.bridge.http.server.guard import Hosts, check_origin, from_foreign_page, is_coded, origin_form
from queuebell.bridge.http.server.http_server import HttpServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.observe.facts import AccessRefused, Fact
from queuebell.bridge.queues.http.session import open_session

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

    from queuebell.bridge.access.access_watch import AccessWatch
    from queuebell.bridge.http.server.connection import Connection
    from queuebell.bridge.service.bridge import Bridge

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
    """Relays requests to one endpoint, connecting at the first of them.

    ``keep_host`` forwards the Host header, for an endpoint that distinguishes accounts by it. ``limits`` are those of
    the accounts' principals.
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
        """Listen; raises `OSError` if the address or port is not available."""
        await super().start()
        self._client = open_session(
            KEEPALIVE_S,
            timeout=aiohttp.ClientTimeout(total=WHOLE_S, sock_connect=CONNECT_S, sock_read=self._silence_s),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def stop(self) -> None:
        """Stop the server, then the connections to the endpoint."""
        await super().stop()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _refused(self, request: BaseRequest, error: Exception) -> Answer:
        return error_answer(azure_error(error) or azure_error(self._failed(error)), "")

    async def _serve(self, request: BaseRequest) -> StreamResponse:
        method, target = request.method, request.raw_path
        self._check_page(request.headers)
        if len(target) > self.settings.uri_bytes:
            raise AzureError("InvalidUri", "The address is too long.", status=414, close=True)
        if not target.startswith("/"):
            # Absolute form (RFC 9112 3.2.2); its authority is ignored.
            scheme, separator, _ = target.partition("://")
            if not separator or scheme.lower() not in ("http", "https"):
                raise AzureError("InvalidUri", close=True)
        if "#" in target:
            # With a fragment the relayed address would differ from the signed one.
            raise AzureError("InvalidUri", close=True)
        target = origin_form(target)
        headers = request.headers
        if hdrs.TRANSFER_ENCODING in headers and is_coded(headers):
            # The body would arrive encoded without its header.
            raise AzureError("UnsupportedHeader", details={"HeaderName": "Transfer-Encoding"}, close=True)
        host = self._host(request)
        put = put_of(method, target, host)
        if put is not None and self._bridge.draining:
            raise _stopping()
        used = None if self._limits is None else await self._limits.check_rate(request, target, host)
        upload = _Upload(request)
        try:
            answer = await self._ask(request, method, target, upload)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise self._down(error, sent=False) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if upload.failed is not None:
                raise upload.failed from None
            self._trigger(put if upload.whole else None, None, None)
            raise self._down(error, sent=upload.whole) from None
        except asyncio.CancelledError:
            self._trigger(put if upload.whole else None, None, None)
            raise
        if used is not None and answer.status < 400:
            used()
        # The trigger comes before the acknowledgement (B1).
        self._trigger(put, answer.status, answer.headers.get("x-ms-error-code"))
        return cast("StreamResponse", Relayed(request, answer))

    def _check_page(self, headers: MultiMapping[str]) -> None:
        """Refuse requests of foreign web pages: an emulator's key is public, so they could sign."""
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
            data=upload.chunks() if request.body_exists else None,
            allow_redirects=False,
        )

    def _host(self, request: BaseRequest) -> str:
        """Return a host name for `locate` that names the account, or none if the path does."""
        if not self._keep_host:
            return self.endpoint.host
        authority = request.headers.get(hdrs.HOST, "").lower()
        return host_of(account_in(authority.partition(":")[0]))

    def _headers(self, raw: tuple[Raw, ...]) -> CIMultiDict[str]:
        pairs = passed_on(raw, without=() if self._keep_host else (b"host",))
        # A repeated name in another case would replace the first one.
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

    def _trigger(self, put: RelayedPut | None, status: int | None, code: str | None) -> None:
        if put is None:
            return
        events = [
            CloudQueueWorkDetected(put.account, put.queue, not_before_ms=delay)
            for delay in trigger_delays_ms(put, status, code)
        ]
        if not events:
            return
        try:
            self._bridge.trigger(events, bus=BUS)
        except (BadInput, Closed) as error:
            # A trigger never fails a put (P4); the next sweep, or the next start, finds the message.
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
    """Return the settings of a relay: those of the bridge's server with another address and larger limits.

    The endpoint has limits of its own for addresses and heads.
    """
    return msgspec.structs.replace(
        settings, host=host, port=port, uri_bytes=URI_BYTES, header_bytes=HEADER_BYTES, headers=HEADERS
    )


class _Upload:
    """A request's body being relayed; ``whole`` at its end, ``failed`` is the error that ended it early."""

    def __init__(self, request: BaseRequest) -> None:
        self._request = request
        self.whole = not request.body_exists
        self.failed: AzureError | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield its pieces; the connection's body time-out bounds the whole."""
        request, connection = self._request, cast("Connection", self._request.protocol)
        if hdrs.EXPECT in request.headers:
            send_continue(request, connection)
        deadline = asyncio.get_running_loop().time() + connection.settings.body_timeout
        try:
            # Not around the yield: it would cancel the sending of the piece.
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
    """The endpoint's answer being relayed; has the surface of `queuebell.bridge.http.server.answer.Answer`."""

    def __init__(self, request: BaseRequest, answer: aiohttp.ClientResponse) -> None:
        self.status = answer.status
        self._answer = answer
        self._protocol = cast("Connection", request.protocol)
        self._empty = request.method == "HEAD" or answer.status in (204, 304)
        self._chunked = False

    async def prepare(self, request: BaseRequest) -> None:
        """Write the head; raises `ConnectionResetError` if the peer is gone."""
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
        # If the request was refused before its body was read, the rest of it precedes the next request.
        unread = not request.content.is_eof()
        self.keep_alive = request.keep_alive and (sized or self._chunked) and not (protocol.ending or unread)
        if not self.keep_alive:
            lines.append(b"Connection: close")
        elif request.version == HttpVersion10:
            lines.append(b"Connection: keep-alive")
        transport.write(b"\r\n".join(lines) + b"\r\n\r\n")

    async def write_eof(self) -> None:
        """Relay the body; if it breaks off, so does the connection, which is how the reader notices."""
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


_PAST_RATE = "Slow down: this account's principal exceeds its request rate; nothing was relayed. Try again."


class AccountLimits:
    """Rates of the accounts' principals; ``names`` has the principals with another name than their account.

    Only the endpoint can check a signature. So a request counts after it succeeded: nobody can use up the rate of
    others, and concurrent requests may exceed it.
    """

    def __init__(self, access: AccessWatch, names: Mapping[str, str], emit: Callable[[Fact], None]) -> None:
        self._access = access
        self._names = dict(names)
        self._emit = emit

    async def check_rate(self, request: BaseRequest, target: str, host: str) -> Callable[[], None] | None:
        """Return a function that counts the request after its success, None if it does not count.

        Raises `AzureError` (``ServerBusy``) past the rate of its account's principal, with a delay if there were too
        many refusals.
        """
        try:
            at = locate(target, host)
        except AzureError:
            # The endpoint refuses it.
            return None
        if request.method == "OPTIONS":
            # A preflight, which is not signed.
            return None
        access = self._access
        principal = access.principal(self._names.get(at.account, at.account))
        if principal is None:
            return None
        allowance, now = access.allowance(principal), access.clock()
        is_put = request.method == "POST" and at.resource is Resource.MESSAGES
        wait = allowance.wait(now, put=is_put)
        if wait:
            queue = f"{at.account}/{at.queue}" if at.queue else ""
            address = request.remote or ""
            self._emit(AccessRefused("limit", principal.name, Verb.PUT.value if is_put else "", queue, address))
            # The account is not proven: refusals count by address.
            held = access.refusals.hold_s("/" + sender_of(address), now)
            if held:
                await cast("Connection", request.protocol).delay_refusal(held)
            raise busy(_PAST_RATE, wait, close=unread(request))

        def used() -> None:
            allowance.request_more(access.clock())
            allowance.put_more(access.clock(), int(is_put))

        return used


RESOLUTION_S = 1
"""The resolution of the service's visibility times (B2)."""
SERVER_TIMEOUT_S = 30
"""How long the service may take to carry out a request (P2)."""


class RelayedPut(msgspec.Struct, frozen=True, gc=False):
    """A request that makes one message visible, ``delay_s`` after it is carried out."""

    account: str
    queue: str
    delay_s: int = 0
    timeout_s: int = SERVER_TIMEOUT_S
    """How long the service may take."""


def put_of(method: str, target: str, host: str) -> RelayedPut | None:
    """Return the put of a request, None if it makes no message visible.

    An update without a delay counts too: that is how clients return a message. ``host`` is `Endpoint.host`.
    """
    if method not in ("POST", "PUT"):
        return None
    try:
        at = locate(target, host)
    except AzureError:
        # The endpoint refuses it too.
        return None
    if not (is_token(at.account) and is_token(at.queue)):
        return None
    delay = _whole(at.query.get("visibilitytimeout"))
    timeout = min(_whole(at.query.get("timeout")) or SERVER_TIMEOUT_S, SERVER_TIMEOUT_S)
    if method == "POST" and at.resource is Resource.MESSAGES:
        return RelayedPut(at.account, at.queue, delay or 0, timeout)
    if method == "PUT" and at.resource is Resource.MESSAGE and delay == 0:
        return RelayedPut(at.account, at.queue, 0, timeout)
    return None


def trigger_delays_ms(put: RelayedPut, status: int | None, code: str | None) -> tuple[int, ...]:
    """Return the delay of each trigger in milliseconds, none if nothing was put.

    ``status`` is None without an answer to a completely sent request; ``code`` is ``x-ms-error-code``. If the outcome
    is unknown, one trigger comes now and one when the put can no longer take effect (P2).
    """
    if status is not None and 200 <= status < 300:
        return (_ms(put.delay_s),)
    if status is not None and ((status < 500 and status != 408) or (status == 503 and code == "ServerBusy")):
        return ()
    return (_ms(put.delay_s), _ms(put.delay_s + put.timeout_s))


def _ms(delay_s: int) -> int:
    return min((delay_s + RESOLUTION_S) * 1000, NOT_BEFORE_MS_MAX) if delay_s else 0


def _whole(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 9):
        return None
    return min(int(text), math.ceil(NOT_BEFORE_MS_MAX / 1000))


_name = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]").fullmatch
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Endpoint(msgspec.Struct, frozen=True):
    """The address of an Azure Queue REST API; ``account`` is None if the path names it."""

    scheme: str
    authority: str
    """The Host header: host, and port if it is not the scheme's default."""
    account: str | None

    @property
    def url(self) -> str:
        """The address without a trailing slash."""
        return f"{self.scheme}://{self.authority}"

    @property
    def host(self) -> str:
        """A host name with the same account, for `locate`."""
        return host_of(self.account)


def read_endpoint(url: str) -> Endpoint:
    """Parse the address of an endpoint; raises `ConfigurationError` for an invalid one.

    The account is in the host name if that has a label ``queue`` after the first, as in
    ``account.queue.core.windows.net``; otherwise in the path, as in emulators. A path in the address is refused:
    clients sign the path that they send, and the endpoint must see the same.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    if ":" in host:
        host = f"[{host}]"
    if (
        parts.scheme not in _DEFAULT_PORTS
        or _name(host) is None
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
        or parts.username is not None
    ):
        raise ConfigurationError(
            "azure_relay: an endpoint must be http://HOST[:PORT] or https://HOST[:PORT], without a path: "
            "an account in the emulator's style stays in the path of each request"
        )
    authority = host if port in (None, _DEFAULT_PORTS[parts.scheme]) else f"{host}:{port}"
    return Endpoint(parts.scheme, authority, account_in(host))


def host_of(account: str | None) -> str:
    """Return a host name that names this account, if any."""
    return "localhost" if account is None else f"{account}.queue.localhost"


def account_in(host: str) -> str | None:
    """Return the account that a host name (lower case, no port) names, or None."""
    first, *rest = host.split(".")
    return first.removesuffix("-secondary") if first and "queue" in rest else None


Raw = tuple[bytes, bytes]

_OF_ONE_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The relay sends "100 Continue" itself.
_ANSWERED_HERE = frozenset({b"expect"})


def passed_on(headers: Iterable[Raw], *, without: Iterable[bytes] = ()) -> list[Raw]:
    """Return the headers to relay, unchanged and in their order, without those of one hop (RFC 9110 7.6.1).

    Those that ``Connection`` names are left out too, except ``Content-Length``, without which the framing would be
    lost; and ``without`` (lower case).
    """
    pairs = list(headers)
    named = {
        name.strip().lower()
        for key, value in pairs
        if key.lower() == b"connection"
        for name in value.split(b",")
        if name.strip()
    } - {b"content-length", b"authorization", b"host"}
    left_out = _OF_ONE_HOP | _ANSWERED_HERE | named | set(without)
    return [(key, value) for key, value in pairs if key.lower() not in left_out]
