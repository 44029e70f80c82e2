"""Which URLs a webhook may have, and which addresses the bridge connects to (S24 to S27).

The lists are explicit: ``is_private`` and ``is_global`` change between versions of Python, and allow multicast, NAT64
of loopback, and the servers of clouds.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

IP = ipaddress.IPv4Address | ipaddress.IPv6Address

PORTS = frozenset({443, 8443})
PLAIN_PORTS = frozenset({80, 8080})

_DENIED = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local: 169.254.169.254 is a cloud's metadata
        "168.63.129.16/32",  # Azure's wire server
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",
        "::/96",  # unspecified, loopback, and IPv4-compatible
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",
        "64:ff9b:1::/48",  # NAT64 of a site's own
        "100::/64",
        "2001::/23",  # Teredo among others
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",  # unique local: fd00:ec2::254 is a cloud's metadata
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",  # multicast
    )
)
# Never allowed: they are not endpoints, or give out the machine's own credentials.
_FORBIDDEN = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "100.100.100.200/32",  # Alibaba Cloud
        "168.63.129.16/32",  # Azure
        "169.254.0.0/16",  # 169.254.169.254 of most clouds, 169.254.170.2 and .23 of AWS's containers, and more
        "192.0.0.192/32",  # Oracle Cloud
        "224.0.0.0/4",
        "255.255.255.255/32",
        "::/128",
        "fd00:ec2::/32",  # AWS: ::254, and ::23 of its pods
        "fd20:ce::254/128",  # Google Cloud
        "ff00::/8",
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")
_TRANSLATED = ipaddress.IPv6Network("::ffff:0:0:0/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_TEREDO = ipaddress.IPv6Network("2001::/32")
_SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")


class Target(NamedTuple):
    """A parsed URL of the configuration; ``host`` is ASCII."""

    url: str
    host: str
    port: int
    literal: bool


def check_url(url: str, *, allow_private: bool = False, allow_http: bool = False) -> Target:
    """Parse a URL, and check what is known before its name is resolved (S24).

    ``https`` to port 443 or 8443 and a name; ``allow_http`` adds ``http`` with 80 and 8080, ``allow_private`` any port
    and literal addresses. Raises `ValueError`.
    """
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        # Other letters must be written in IDNA: parsers disagree about the conversion.
        raise ValueError("a URL must be printable ASCII; other letters are written as xn--...")
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http"):
        raise ValueError("a URL must begin with https://")
    if parts.scheme == "http" and not allow_http:
        raise ValueError("http is not encrypted; allow_http = true allows it")
    if "@" in parts.netloc:
        raise ValueError("a URL must not contain a user or password")
    if parts.fragment or url.endswith("#"):
        raise ValueError("a URL must not contain a fragment")
    host = (parts.hostname or "").rstrip(".")
    if "," in parts.netloc:
        raise ValueError("a URL must be one address; each endpoint has its own [[webhook]]")
    if not host or "%" in host:
        raise ValueError("a URL must name a host")
    port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
    if not allow_private and port not in (PORTS | PLAIN_PORTS if allow_http else PORTS):
        raise ValueError("the port must be 443 or 8443; allow_private = true allows others")
    address = _literal(host)
    if address is None and _numeric(host):
        # For a resolver 127.1 and 0x7f000001 are addresses, for parsers they are names.
        raise ValueError("an address must be written in full")
    if address is not None and not allow_private:
        raise ValueError("a URL must name its host, not an address; allow_private = true allows addresses")
    return Target(url, host, port, address is not None)


def refusal(address: str, *, allow_private: bool = False) -> str | None:
    """Return why the bridge does not connect to an address (S26), None if it does."""
    found = _literal(address)
    if found is None:
        return "it is not an address"
    for each in unwrap(found):
        if any(each in network for network in _FORBIDDEN if network.version == each.version):
            return "it is never allowed as an endpoint"
        if not allow_private and any(each in network for network in _DENIED if network.version == each.version):
            return "it is not public; allow_private = true allows it"
    return None


def refuse_any(addresses: Iterable[str], *, allow_private: bool = False) -> str | None:
    """Return why the bridge does not connect to a name: one refused address is enough."""
    reasons = [refusal(address, allow_private=allow_private) for address in addresses]
    if not reasons:
        return "its name has no address"
    return next((reason for reason in reasons if reason is not None), None)


def unwrap(address: IP) -> list[IP]:
    """Return an address and the IPv4 addresses that it carries: mapped, NAT64, translated, 6to4, Teredo."""
    found: list[IP] = [address]
    if isinstance(address, ipaddress.IPv4Address):
        return found
    number = int(address)
    if address.ipv4_mapped is not None:
        # A dual-stack socket connects to the IPv4 address.
        return [address.ipv4_mapped]
    if address in _NAT64 or address in _TRANSLATED:
        found.append(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    elif address in _NAT64_LOCAL:
        found += _local(number)
    elif address in _COMPATIBLE and number > 1:
        found.append(ipaddress.IPv4Address(number))
    elif address in _SIX_TO_FOUR:
        found.append(ipaddress.IPv4Address(number >> 80 & 0xFFFFFFFF))
    elif address in _TEREDO:
        found += [
            ipaddress.IPv4Address(number >> 64 & 0xFFFFFFFF),
            ipaddress.IPv4Address(~number & 0xFFFFFFFF),
        ]
    return found


def _local(number: int) -> list[ipaddress.IPv4Address]:
    """Return the possible IPv4 addresses in a local NAT64 prefix, for each prefix length (RFC 6052 2.2, 8215).

    Bits 64 to 71 are skipped. Zeros are the padding before or behind the address.
    """
    high, low = number >> 64 & 0xFFFFFFFFFFFFFFFF, number & 0xFFFFFFFFFFFFFFFF
    packed = (high << 56) | (low & 0xFFFFFFFFFFFFFF)  # 120 bits, without the eight
    found = [number & 0xFFFFFFFF, *(packed >> (120 - length - 32) & 0xFFFFFFFF for length in (48, 56, 64))]
    return [ipaddress.IPv4Address(each) for each in found if each >> 24]


def _literal(host: str) -> IP | None:
    try:
        # A percent sign separates the interface of a link-local address.
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _numeric(host: str) -> bool:
    """Return whether an old resolver would read ``host`` as a number or a short IPv4 address."""
    last = host.rpartition(".")[2].lower()
    if last.isdigit():
        return True
    return last.startswith("0x") and all(digit in "0123456789abcdef" for digit in last[2:])
