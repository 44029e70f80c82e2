"""A relay to an Azure Queue endpoint elsewhere, which triggers the bridge after each put.

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

from bridge.access.grants import Verb
from bridge.contract.address import is_loopback, sender_of
from bridge.contract.errors import BadInput, Closed, ConfigurationError
from bridge.contract.event import NOT_BEFORE_MS_MAX, CloudQueueWorkDetected
from bridge.contract.names import is_token
from bridge.http.azure.errors import AzureError, busy
from bridge.http.azure.exchange import Resource, locate
from bridge.http.azure.server import AzureConnection, azure_error, error_answer, known_host
from bridge.http.server.answer import Answer
from bridge.http.server.body import _continue, has_body, unread
from bridge.http.server.guard import Hosts, check_origin, from_foreign_page, is_coded, origin_form
from bridge.http.server.http_server import HttpServer
from bridge.http.server.settings import WebSettings
from bridge.observe.facts import AccessRefused, Fact
from bridge.queues.http.session import open_session

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

    from bridge.access.access_watch import AccessWatch
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
        self._client = open_session(
            KEEPALIVE_S,
            timeout=aiohttp.ClientTimeout(total=WHOLE_S, sock_connect=CONNECT_S, sock_read=self._silence_s),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def stop(self) -> None:
        """End the server, and the connections to the endpoint after it."""
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
        put = put_of(method, target, host)
        if put is not None and self._bridge.draining:
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
            self._trigger(put if upload.whole else None, None, None)
            raise self._down(error, sent=upload.whole) from None
        except asyncio.CancelledError:
            self._trigger(put if upload.whole else None, None, None)
            raise
        if used is not None and answer.status < 400:
            used()
        # The mark goes before the acknowledgement (B1).
        self._trigger(put, answer.status, answer.headers.get("x-ms-error-code"))
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


_PAST_RATE = "Slow down: this account's principal exceeds its request rate; nothing was relayed. Try again."


class AccountLimits:
    """The limits of accounts: ``names`` has those whose principal is called otherwise; one of nobody has none."""

    def __init__(self, access: AccessWatch, names: Mapping[str, str], emit: Callable[[Fact], None]) -> None:
        self._access = access
        self._names = dict(names)
        self._emit = emit

    async def admit(self, request: BaseRequest, target: str, host: str) -> Callable[[], None] | None:
        """Return what counts a request once it was carried out, None where nothing does.

        Raises `AzureError` (``ServerBusy``) where its account's principal may not come now, after a while where there
        were too many of these.
        """
        try:
            at = locate(target, host)
        except AzureError:
            # Whatever it is, the endpoint will say.
            return None
        if request.method == "OPTIONS":
            # A page asks first, unsigned, and is answered.
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
            # Who it is was not proven: the line is that of its address.
            held = access.refusals.hold_s("/" + sender_of(address), now)
            if held:
                await cast("Connection", request.protocol).hold(held)
            raise busy(_PAST_RATE, wait, close=unread(request))

        def used() -> None:
            allowance.request_more(access.clock())
            allowance.put_more(access.clock(), int(is_put))

        return used


RESOLUTION_S = 1
"""How exactly the service keeps the time at which a message becomes visible (B2)."""
SERVER_TIMEOUT_S = 30
"""How long after a request the service may still carry it out (P2)."""


class RelayedPut(msgspec.Struct, frozen=True, gc=False):
    """A request that puts one message where it can be received, ``delay_s`` after it is carried out."""

    account: str
    queue: str
    delay_s: int = 0
    timeout_s: int = SERVER_TIMEOUT_S
    """How long the service may take over it."""


def put_of(method: str, target: str, host: str) -> RelayedPut | None:
    """Return what a request rings once it is carried out, or None.

    A put does, and so does an update that makes a message visible at once, for that is how a message is given back.
    ``target`` is as it came, ``host`` an endpoint's (`Endpoint.host`).
    """
    if method not in ("POST", "PUT"):
        return None
    try:
        at = locate(target, host)
    except AzureError:
        # The endpoint refuses it as well.
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
    """Return for how many milliseconds from now each trigger has to wait, none where nothing was put.

    ``status`` is None where no answer came to a request that was sent whole; ``code`` is ``x-ms-error-code``. Where
    the outcome is unknown, one looks now and one when the put can no longer land (P2).
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
    """An address that speaks the Azure Queue REST API; ``account`` is None where the path names it."""

    scheme: str
    authority: str
    """Host and, where it is not the scheme's own, port: what a Host header says."""
    account: str | None

    @property
    def url(self) -> str:
        """The address without a trailing slash."""
        return f"{self.scheme}://{self.authority}"

    @property
    def host(self) -> str:
        """A host name that says as much of the account as this endpoint does, for `address.locate`."""
        return host_of(self.account)


def read_endpoint(url: str) -> Endpoint:
    """Take the address of an endpoint; raises `ConfigurationError` for what is none.

    The account stands in the host name where that has a label ``queue`` after the first, as in
    ``account.queue.core.windows.net``; else in the path, as emulators have it. A path is refused: clients sign the
    path that they see, and it has to be the one that the endpoint sees.
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
    """Return a host name that names this account, or none."""
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
# A relay that has said "100 Continue" itself asks nobody for another one.
_ANSWERED_HERE = frozenset({b"expect"})


def passed_on(headers: Iterable[Raw], *, without: Iterable[bytes] = ()) -> list[Raw]:
    """Return the headers of a message that travel on, as they came and in their order.

    Those that ``Connection`` names stay here too, except ``Content-Length``, without which the next would read a body
    where none is; ``without`` (lower case) are left out as well.
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
