"""What every request has to pass, whatever its route: Host, Origin, sizes, encodings, rates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from aiohttp import HttpVersion10, HttpVersion11, hdrs
from multidict import MultiMapping, istr

from bridge.access.limits import TokenBuckets
from bridge.contract.address import is_loopback, sender_of
from bridge.http.server.answer import Refusal
from bridge.http.server.settings import WebSettings

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from bridge.http.server.call import Caller
# A reg-name or an address, or an IPv6 address in brackets, and perhaps a port (RFC 9110 7.2).
_authority = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?").fullmatch

_of_account = re.compile(r"[^.]+\.queue\.(.+)").fullmatch

_HOP = istr("Queuebell-Hop")

_HOSTS_REMEMBERED = 64
_OWN_SITES = frozenset({"same-origin", "none"})
"""What a browser says of its own pages, and of an address that its user typed."""
_VERSIONS = (HttpVersion11, HttpVersion10)


def is_coded(headers: MultiMapping[str]) -> bool:
    """Say whether a request with a Transfer-Encoding has any but ``chunked`` (RFC 9112 6.1)."""
    return [coding.strip(" \t").lower() for coding in headers.getall(hdrs.TRANSFER_ENCODING)] != ["chunked"]


class Hosts:
    """The names by which a server may be asked for: loopback names, its own, and those that were allowed.

    Without it a web page whose name is made to resolve to 127.0.0.1 (DNS rebinding) talks to the server. ``accounts``
    lets each name have an Azure account before it, as in ``account.queue.NAME``.
    """

    def __init__(self, settings: WebSettings, *, accounts: bool = False) -> None:
        self._names = {name.lower().strip("[]") for name in (settings.host, *settings.allowed_hosts)}
        self._accounts = accounts
        self._passed: dict[str, str] = {}

    def check(self, authority: str) -> str:
        """Return the name in a Host header, in lower case; raises `Refusal` where it is none of ours."""
        host = self._passed.get(authority)
        if host is None:
            match = _authority(authority)
            host = match[1].lower().rstrip(".") if match else ""
            if not self._known(host.strip("[]")):
                raise Refusal(
                    "unknown_host",
                    "unknown Host; allowed_hosts adds names of this server",
                    close=True,
                )
            if len(self._passed) < _HOSTS_REMEMBERED:
                self._passed[authority] = host
        return host

    def _known(self, name: str) -> bool:
        if self._accounts and (match := _of_account(name)):
            name = match[1]
        return bool(name) and (name in self._names or is_loopback(name) or name.endswith(".localhost"))


def check_origin(origins: list[str], *own: str) -> None:
    """Raise `Refusal` for a request of a web page that comes from elsewhere than ``own``, each scheme and authority.

    A page elsewhere could otherwise put work on a loopback bridge (S15, S16).
    """
    if len(origins) != 1 or origins[0].lower() not in [each.lower() for each in own]:
        raise Refusal("forbidden_origin", "requests from web pages of another origin are refused", close=True)


def from_foreign_page(headers: Mapping[str, str], own_origin: str) -> bool:
    """Say whether a foreign page's image or link asks: a GET by which a browser names no origin.

    It says where such a request comes from all the same; one that is older says it by the page's address.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OWN_SITES
    referer = headers.get("referer")
    return referer is not None and "/".join(referer.split("/", 3)[:3]).lower() != own_origin


def origin_form(target: str) -> str:
    """Return a request's target as path and query, whichever form it came in; "" for what is no address of ours.

    The absolute form's authority is for the guard to judge (RFC 9112 3.2.2). A fragment is left out.
    """
    target = target.partition("#")[0]
    if target.startswith("/"):
        return target
    _, separator, rest = target.partition("://")
    if not separator:
        # OPTIONS * and CONNECT host:port.
        return ""
    place = re.search("[/?]", rest)
    found = "" if place is None else rest[place.start() :]
    return found if found.startswith("/") else "/" + found


class Guard:
    """Raises `Refusal` for a request that no route should see."""

    def __init__(self, settings: WebSettings, clock: Callable[[], float], scheme: str = "http") -> None:
        self._settings = settings
        self._scheme = scheme
        self._clock = clock
        self._hosts = Hosts(settings)
        self._buckets = (
            None
            if settings.requests_per_second is None
            else TokenBuckets(settings.requests_per_second, settings.request_burst)
        )

    def check(self, request: BaseRequest) -> None:
        """Check the parts that cost nothing to check, in the order of how little an answer gives away."""
        target = request.raw_path
        if request.version not in _VERSIONS:
            raise Refusal("bad_parameter", "only HTTP/1.0 and HTTP/1.1 are supported", close=True)
        # What an issuer sends a browser back with may be longer; the page alone reads it.
        if len(target) > self._settings.uri_bytes and not target.startswith("/?"):
            raise Refusal("uri_too_long", "the address of the request is too long", close=True)
        if len(request.raw_headers) > self._settings.headers:
            raise Refusal("headers_too_large", "the request has too many headers", close=True)
        headers = request.headers
        host = headers.get(hdrs.HOST, "")
        self._hosts.check(host)
        if not target.startswith("/"):
            self._check_target(target, host)
        if hdrs.ORIGIN in headers:
            # No CORS header is ever sent.
            check_origin(headers.getall(hdrs.ORIGIN), f"{self._scheme}://{host}", *self._settings.origins)
        if _HOP in headers:
            # A bridge's webhook that puts on a queue, whose webhook puts on a queue ...: no loop begins (S32).
            raise Refusal("forbidden_origin", "a bridge is not a target for webhooks", close=True)
        if hdrs.CONTENT_ENCODING in headers:
            # Never inflated (S7): the server's parser is told so too, see connection.py.
            raise Refusal("unsupported_media_type", "an encoded body is not accepted", close=True)
        if hdrs.TRANSFER_ENCODING in headers and is_coded(headers):
            # What remained after the chunks would be stored as it is, for a receiver that knows of no coding.
            raise Refusal(
                "unsupported_media_type", "chunked is the only supported transfer coding", status=501, close=True
            )

    @property
    def limits_rates(self) -> bool:
        """Whether there is any rate to keep."""
        return self._buckets is not None

    def seconds_to_wait(self, request: Caller) -> int:
        """Count the request towards its address's rate: 0, or the seconds after which it may come again (S13)."""
        if self._buckets is None:
            return 0
        return self._buckets.take(sender_of(request.remote or ""), self._clock())

    def _check_target(self, target: str, host: str) -> None:
        # Absolute form (RFC 9112 3.2.2): what it names has to pass the same check as Host, and agree with it.
        scheme, separator, rest = target.partition("://")
        authority = re.split("[/?#]", rest, maxsplit=1)[0]
        if separator and scheme.lower() == self._scheme and authority.lower() == host.lower():
            return
        if target == "*" or not separator:
            # OPTIONS * and CONNECT host:port: no route knows them, and the dispatch says so.
            return
        raise Refusal("unknown_host", "the request's target and its Host disagree", close=True)
