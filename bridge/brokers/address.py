"""Addresses of brokers: where, as whom, and with which options; what is secret never leaves the object."""

from __future__ import annotations

import pathlib
import ssl
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from bridge.contract.address import each_of, is_host, port_number, split_port
from bridge.contract.errors import ConfigurationError

PORTS: Final[dict[str, int]] = {"nats": 4222, "tls": 4222, "mqtt": 1883, "mqtts": 8883, "redis": 6379, "rediss": 6379}
ENCRYPTED: Final = frozenset({"tls", "mqtts", "rediss"})
TLS_OPTIONS: Final = ("tls_ca", "tls_cert", "tls_key", "tls_hostname")


class Host(NamedTuple):
    """One server of an address; of IPv6 without its brackets."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class Address:
    """``scheme://[user[:password]@]host[:port][?option=value&...]``, checked.

    With ``several`` also ``scheme://[user[:password]@]a[:port],b[:port]`` and ``scheme://a,scheme://b``: ``hosts`` are
    servers of one cluster, with one user, one password and one set of options, which stand behind the last.
    ``text`` is the address without user, password and options, for logs. Options that are files must exist.
    Raises `ConfigurationError`; its message never repeats the address.
    """

    def __init__(self, url: str, *, schemes: Collection[str], options: Collection[str], several: bool = False) -> None:
        given, _, query = url.partition("?")
        if "#" in query or len(each_of(query)) > 1:
            raise ConfigurationError(
                "broker: options may appear only once, after the last server, with nothing after them"
            )
        each = [_Part(one, schemes) for one in each_of(given)]
        first = each[0]
        self.hosts = tuple(dict.fromkeys(host for part in each for host in part.hosts))
        if len(self.hosts) > 1 and not several:
            raise ConfigurationError(f"broker: {first.scheme}:// takes one server; only nats:// takes a list")
        if any(part.scheme != first.scheme for part in each):
            raise ConfigurationError("broker: all addresses of a list must have the same scheme")
        if any(part.userinfo != first.userinfo for part in each):
            raise ConfigurationError(
                f"broker: all servers of a list share one user and password: {first.scheme}://USER:PASSWORD@A,B"
            )
        pairs = parse_qsl(query, keep_blank_values=True)
        allowed = {*options, *TLS_OPTIONS}
        for key, _ in pairs:
            if key not in allowed:
                raise ConfigurationError(f"broker: options of {first.scheme}:// are {', '.join(sorted(allowed))}")
        self.encrypted = first.scheme in ENCRYPTED
        self.host, self.port = self.hosts[0]
        user, colon, password = first.userinfo.partition(":")
        self.user = unquote(user) or None
        self.password = unquote(password) if colon else None
        self.options: Mapping[str, str] = dict(pairs)
        self.text = f"{first.scheme}://{','.join(map(str, self.hosts))}"
        self.place = f"{first.scheme}://{','.join(sorted(map(str, self.hosts)))}"
        """The same text for every order of the servers."""

    def __repr__(self) -> str:
        return f"<Address {self.text}>"

    def number(self, option: str, default: int, *, most: int) -> int:
        """Return an option that is a whole number from 0 to ``most``."""
        text = self.options.get(option)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and int(text) <= most):
            raise ConfigurationError(f"broker: {option} must be a whole number from 0 to {most}")
        return int(text)


class _Part:
    """What stands between one scheme and the next."""

    def __init__(self, text: str, schemes: Collection[str]) -> None:
        scheme, mark, rest = text.partition("://")
        self.scheme = scheme.lower()
        self.userinfo, at, hosts = rest.removesuffix("/").rpartition("@")
        strange = set(self.userinfo) & set("/#")
        if not mark or self.scheme not in schemes or not hosts or strange or (at and not self.userinfo):
            raise self._wrong(schemes)
        if "," in self.userinfo:
            raise ConfigurationError(
                "broker: user and password may appear only once, before the first server of a list; "
                "write a comma in them as %2C"
            )
        self.hosts = [self._host(one, schemes) for one in hosts.split(",")]

    def _host(self, text: str, schemes: Collection[str]) -> Host:
        name, port = split_port(text)
        if not text:
            raise ConfigurationError("broker: a list of servers has an empty entry")
        if not is_host(name):
            raise self._wrong(schemes)
        if port is None:
            return Host(name.lower(), PORTS[self.scheme])
        number = port_number(port)
        if number is None:
            raise ConfigurationError("broker: a port must be a number from 1 to 65535")
        return Host(name.lower(), number)

    @staticmethod
    def _wrong(schemes: Collection[str]) -> ConfigurationError:
        known = " or ".join(f"{scheme}://" for scheme in schemes)
        return ConfigurationError(f"broker: an address must be {known} [USER:PASSWORD@]HOST[:PORT][?OPTION=VALUE]")


class TlsOptions:
    """Files for TLS: ``ca`` of who signed the broker, ``cert`` and ``key`` of ourselves, ``hostname`` if it differs.

    There is no way to switch verification off.
    """

    def __init__(
        self, ca: str | None = None, cert: str | None = None, key: str | None = None, hostname: str | None = None
    ) -> None:
        self.ca = ca
        self.cert = cert
        self.key = key
        self.hostname = hostname

    @classmethod
    def of(cls, address: Address) -> TlsOptions:
        """Read them from the options of an address."""
        return cls(*(address.options.get(option) for option in TLS_OPTIONS))

    def given(self) -> bool:
        """Say whether there is anything to tell the client library."""
        return any((self.ca, self.cert, self.key))

    def context(self) -> ssl.SSLContext:
        """Make the context. Raises `ConfigurationError` for files that are missing or no PEM."""
        if self.key and not self.cert:
            raise ConfigurationError("broker: tls_key needs tls_cert")
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigurationError(f"broker: tls_ca, tls_cert or tls_key cannot be used: {error}") from None
        return context


def readable(option: str, path: str, *marks: bytes) -> str:
    """Return ``path`` if it names a file that can be read and has all ``marks``; its content is never told."""
    try:
        content = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"broker: {option} cannot be read: {error.strerror}") from None
    if not all(mark in content for mark in marks):
        raise ConfigurationError(f"broker: {option} names a file of the wrong kind")
    return path
