"""Addresses: parsing those of bridges' web servers, lists of addresses, and showing any without secrets; pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeGuard

from queuebell.bridge.contract.errors import ConfigurationError

EMBEDDED: Final = "embedded"
"""Instead of an address: the bridge's own NATS server."""
HTTP_PORTS: Final = {"http": 80, "https": 443}
ADDRESSES_MAX: Final = 32
"""The maximum of bridges of one service."""
_parts = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)([?#].*)?", re.DOTALL).fullmatch
_scheme = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://").match
_label = re.compile(r"[\w-]{1,63}").fullmatch
_next = re.compile(r",(?=[A-Za-z][A-Za-z0-9+.-]*://)").split


class HttpAddress(NamedTuple):
    """A parsed ``http://HOST[:PORT]`` or ``https://HOST[:PORT]``; ``port`` defaults to the scheme's."""

    scheme: str
    host: str
    port: int
    url: str
    """As given, without a trailing slash."""


def http_addresses(text: str, key: str) -> tuple[HttpAddress, ...]:
    """Parse the address of a bridge's web server, or of several equal ones, without duplicates.

    ``http://A:PORT,B:PORT`` and ``http://A:PORT,http://B:PORT`` are the same; ``key`` is the setting named in errors.
    Raises `ConfigurationError` for an invalid address, without secrets.
    """

    def wrong(why: str) -> ConfigurationError:
        # Text that is not an address may be a secret.
        given = f". Given: {shown(text)}" if _parts(text) else ""
        return ConfigurationError(
            f"{key}: {why}; an address is http://HOST:PORT or https://HOST:PORT and nothing else{given}"
        )

    each = [text]
    if "@" not in text:  # A comma before it may be part of a password.
        each = [f"{scheme}{mark}{one}" for scheme, mark, rest in map(_cut, each_of(text)) for one in rest.split(",")]
    if len(each) > 1 and any(one.endswith("://") for one in each):
        raise wrong("a list of addresses has an empty entry")
    found = [_http_address(one, wrong) for one in each]
    if len({one.scheme for one in found}) > 1:
        raise wrong("all addresses of a list must have the same scheme")
    once: dict[tuple[str, int], HttpAddress] = {}
    for one in found:
        once.setdefault((one.host, one.port), one)
    if len(once) > ADDRESSES_MAX:
        raise wrong(f"a list may have at most {ADDRESSES_MAX} addresses")
    return tuple(once.values())


def in_one_text(addresses: Sequence[HttpAddress]) -> str:
    """Return all addresses as one text, ``http://A:PORT,B:PORT``."""
    return ",".join([addresses[0].url, *(one.url.partition("://")[2] for one in addresses[1:])])


def _cut(text: str) -> tuple[str, str, str]:
    return text.partition("://") if "://" in text else ("", "", text)


def _http_address(url: str, wrong: Callable[[str], ConfigurationError]) -> HttpAddress:
    parts = _parts(url)
    scheme, netloc, path, rest = parts.groups() if parts else ("", "", "", None)
    scheme = scheme.lower()
    _, at, authority = netloc.rpartition("@")
    if scheme not in HTTP_PORTS or not authority:
        raise wrong("the address must begin with http:// or https:// and a host")
    if at:
        raise wrong("the address contains a user or a password, which bridges do not use")
    host, port = _host(authority, scheme, wrong)
    if path not in {"", "/"}:
        raise wrong("the address contains a path, which bridges do not have")
    if rest is not None:
        raise wrong("the address contains a query or a fragment")
    return HttpAddress(scheme, host.lower(), port, f"{scheme}://{authority}")


def is_http(given: object) -> TypeGuard[str]:
    """Return whether this has the scheme of a web server."""
    return isinstance(given, str) and given.partition(":")[0].lower() in HTTP_PORTS


def _host(authority: str, scheme: str, wrong: Callable[[str], ConfigurationError]) -> tuple[str, int]:
    name, port = split_port(authority)
    if not is_host(name):
        raise wrong("a list of addresses contains a space" if " " in name else "the address has no host")
    if port is None:
        return name, HTTP_PORTS[scheme]
    number = port_number(port)
    if number is None:
        raise wrong("a port must be a number from 1 to 65535")
    return name, number


def split_port(authority: str) -> tuple[str, str | None]:
    """Split ``HOST[:PORT]``, also ``[::1]:PORT``; the port is None without a colon."""
    if authority.startswith("["):
        host, bracket, rest = authority[1:].partition("]")
        if bracket and ":" in host and (not rest or rest.startswith(":")):
            return host, rest[1:] if rest else None
        return "", None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def port_number(text: str) -> int | None:
    """Return a port from 1 to 65535, None if invalid."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return number if 0 < number <= 65535 else None


def is_host(name: str) -> bool:
    """Return whether this is a valid host name or address; IPv6 without brackets."""
    if ":" in name:
        try:
            ipaddress.IPv6Address(name)
        except ValueError:
            return False
        return True
    labels = name.removesuffix(".").split(".")
    return len(name) <= 253 and all(map(_label, labels))


def sender_of(host: str) -> str:
    """Return the sender for limits per address: an IPv4 address, or an IPv6 network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        # A client can use all addresses of its network.
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return host


def is_loopback(host: str) -> bool:
    """Return whether ``host``, a name or an address without brackets, is reachable only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def one_text(given: object) -> object:
    """Return a list of addresses as one text, and anything else unchanged."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or not given:
        return given
    return ",".join(given) if all(isinstance(one, str) for one in given) else given


def each_of(text: str) -> list[str]:
    """Split ``scheme://A,scheme://B`` into its addresses; ``scheme://A,B`` is one."""
    return _next(text)


def shown(url: str) -> str:
    """Return an address that is safe to show: without user, password and options, on one line.

    Everything before the last ``@`` is removed, as it may be part of a password.
    """
    begun = _scheme(url)
    scheme = begun[0] if begun else ""
    place = url.removeprefix(scheme).rpartition("@")[2]
    text = scheme + re.split(r"[?#;]", place, maxsplit=1)[0].rstrip("/")
    return text if text.isprintable() else ascii(text)[1:-1]
