"""Checks of every request before its route: Host, Origin, sizes, encodings, rates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from aiohttp import HttpVersion10, HttpVersion11, hdrs
from multidict import MultiMapping, istr

from queuebell.bridge.access.limits import TokenBuckets
from queuebell.bridge.contract.address import is_loopback, sender_of
from queuebell.bridge.http.server.answer import Refusal
from queuebell.bridge.http.server.settings import WebSettings

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from queuebell.bridge.http.server.call import Caller
# A reg-name or an address, or an IPv6 address in brackets, and perhaps a port (RFC 9110 7.2).
_authority = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?").fullmatch

_of_account = re.compile(r"[^.]+\.queue\.(.+)").fullmatch

_HOP = istr("Queuebell-Hop")

_HOSTS_REMEMBERED = 64
_OWN_SITES = frozenset({"same-origin", "none"})
"""``Sec-Fetch-Site`` of the server's own pages, and of an address that the user typed."""
_VERSIONS = (HttpVersion11, HttpVersion10)


def is_coded(headers: MultiMapping[str]) -> bool:
    """Return whether a Transfer-Encoding is anything but ``chunked`` (RFC 9112 6.1)."""
    return [coding.strip(" \t").lower() for coding in headers.getall(hdrs.TRANSFER_ENCODING)] != ["chunked"]


class Hosts:
    """The names that a Host header may contain: loopback names, the server's own, and the allowed ones.

    Without this check a web page whose name resolves to 127.0.0.1 (DNS rebinding) could use the server. ``accounts``
    also allows an Azure account in front of each name, as in ``account.queue.NAME``.
    """

    def __init__(self, settings: WebSettings, *, accounts: bool = False) -> None:
        self._names = {name.lower().strip("[]") for name in (settings.host, *settings.allowed_hosts)}
        self._accounts = accounts
        self._passed: dict[str, str] = {}

    def check(self, authority: str) -> str:
        """Return the name in a Host header, in lower case; raises `Refusal` for an unknown one."""
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
    """Raise `Refusal` for a request of a web page of another origin than ``own`` (scheme and authority each).

    Such a page could otherwise put work on a loopback bridge (S15, S16).
    """
    if len(origins) != 1 or origins[0].lower() not in [each.lower() for each in own]:
        raise Refusal("forbidden_origin", "requests from web pages of another origin are refused", close=True)


def from_foreign_page(headers: Mapping[str, str], own_origin: str) -> bool:
    """Return whether an image or link of a foreign page sent this: browsers name no Origin in such a GET.

    They send ``Sec-Fetch-Site`` instead, older ones only the Referer.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OWN_SITES
    referer = headers.get("referer")
    return referer is not None and "/".join(referer.split("/", 3)[:3]).lower() != own_origin


def origin_form(target: str) -> str:
    """Return a request's target as path and query, without a fragment; "" for ``*`` and ``host:port``.

    `Guard` checks the authority of the absolute form (RFC 9112 3.2.2).
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
        """Check what is cheap to check; the first checks reveal the least."""
        target = request.raw_path
        if request.version not in _VERSIONS:
            raise Refusal("bad_parameter", "only HTTP/1.0 and HTTP/1.1 are supported", close=True)
        # The redirect from an issuer may be longer; only the page reads it.
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
            # Otherwise webhooks that put on queues with webhooks could loop (S32).
            raise Refusal("forbidden_origin", "a bridge is not a target for webhooks", close=True)
        if hdrs.CONTENT_ENCODING in headers:
            # Never inflated (S7), not by the parser either: see connection.py.
            raise Refusal("unsupported_media_type", "an encoded body is not accepted", close=True)
        if hdrs.TRANSFER_ENCODING in headers and is_coded(headers):
            # The body would be stored still encoded, and receivers would not know.
            raise Refusal(
                "unsupported_media_type", "chunked is the only supported transfer coding", status=501, close=True
            )

    @property
    def limits_rates(self) -> bool:
        """Whether a rate is configured."""
        return self._buckets is not None

    def seconds_to_wait(self, request: Caller) -> int:
        """Count the request towards its address's rate; return 0, or the seconds to wait (S13)."""
        if self._buckets is None:
            return 0
        return self._buckets.take(sender_of(request.remote or ""), self._clock())

    def _check_target(self, target: str, host: str) -> None:
        # Absolute form (RFC 9112 3.2.2): its authority must equal Host.
        scheme, separator, rest = target.partition("://")
        authority = re.split("[/?#]", rest, maxsplit=1)[0]
        if separator and scheme.lower() == self._scheme and authority.lower() == host.lower():
            return
        if target == "*" or not separator:
            # OPTIONS * and CONNECT host:port: no route exists, so they get 404.
            return
        raise Refusal("unknown_host", "the request's target and its Host disagree", close=True)
