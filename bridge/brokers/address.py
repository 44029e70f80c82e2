"""Addresses of brokers and stores: where to connect, as which user and with which options.

`class_for` picks the class that serves a scheme. `Address` is a broker's address, with `TlsOptions` among its options.
Every address may name the ``prefix`` of its topics: ``nats://host:4222?prefix=site7``.
"""

from __future__ import annotations

import importlib
import pathlib
import ssl
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from queuebell.bridge.contract.address import each_of, is_host, port_number, split_port
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.names import DEFAULT_PREFIX, is_token

PORTS: Final[dict[str, int]] = {"nats": 4222, "tls": 4222, "mqtt": 1883, "mqtts": 8883, "redis": 6379, "rediss": 6379}
ENCRYPTED: Final = frozenset({"tls", "mqtts", "rediss"})
TLS_OPTIONS: Final = ("tls_ca", "tls_cert", "tls_key", "tls_hostname")
PREFIX: Final = "prefix"


def class_for(url: str, table: Mapping[str, tuple[str, str]], key: str) -> Any:
    """Import and return the class that ``table`` (scheme to module and name) has for ``url``.

    Raises `ConfigurationError`, which begins with ``key`` and does not repeat the URL: it may hold a secret.
    """
    scheme, colon, _ = url.partition(":")
    found = table.get(scheme.lower()) if colon else None
    if found is None:
        known = ", ".join(f"{scheme}:" for scheme in table)
        raise ConfigurationError(f"{key}: an address must start with one of {known}")
    module, name = found
    return getattr(importlib.import_module(module), name)


def argument_of(url: str, key: str, file_scheme: str, example: str) -> str:
    """Return a class's argument: the name of ``memory:``, the path of ``file_scheme``, otherwise the whole URL.

    Raises `ConfigurationError` as `class_for` does; ``example`` is a path for its text.
    """
    scheme, _, rest = url.partition(":")
    if scheme.lower() == "memory":
        return rest.strip("/") or "default"
    if scheme.lower() != file_scheme:
        return url
    if "?" in rest or "#" in rest:
        raise ConfigurationError(
            f"{key}: {file_scheme} takes no options, for example {file_scheme}://{example}; in a path, "
            "write ? as %3F and # as %23"
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(f"{key}: the address is malformed") from None
    if parts.netloc or not parts.path.strip("/"):
        raise ConfigurationError(
            f"{key}: {file_scheme} takes a path and no host, for example {file_scheme}://{example}"
        )
    path = unquote(parts.path)
    if "\0" in path:
        raise ConfigurationError(f"{key}: the path of its file contains a NUL character")
    return path


class Host(NamedTuple):
    """One server of an address; IPv6 without brackets."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class Address:
    """``scheme://[user[:password]@]host[:port][?option=value&...]``, checked.

    With ``several`` also ``scheme://[user[:password]@]a[:port],b[:port]`` and ``scheme://a,scheme://b``: ``hosts`` are
    servers of one cluster, with one user, one password and one set of options behind the last server. ``text`` is the
    address without user, password and options, for logs. Raises `ConfigurationError`, which never repeats the address.
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
        """The same for every order of the servers."""

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
    """The user and the hosts between one scheme and the next."""

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
    """Files for TLS: the broker's ``ca``, the client's ``cert`` and ``key``; and the ``hostname``, if it differs.

    Verification cannot be switched off.
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
        """Return the TLS options of an address."""
        return cls(*(address.options.get(option) for option in TLS_OPTIONS))

    def given(self) -> bool:
        """Return whether the address names any file."""
        return any((self.ca, self.cert, self.key))

    def context(self) -> ssl.SSLContext:
        """Return a new context. Raises `ConfigurationError` for files that are missing or not PEM."""
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
    """Return ``path`` if its file can be read and contains all ``marks``.

    Raises `ConfigurationError`, which does not show the content.
    """
    try:
        content = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"broker: {option} cannot be read: {error.strerror}") from None
    if not all(mark in content for mark in marks):
        raise ConfigurationError(f"broker: {option} names a file of the wrong kind")
    return path


def take_prefix(url: str) -> tuple[str, str]:
    """Return the address without its option ``prefix``, and the prefix; `DEFAULT_PREFIX` if there is none.

    Raises `ConfigurationError` for an invalid prefix; a malformed address passes.
    """
    before, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    given = [value for key, value in pairs if key == PREFIX]
    if not given:
        return url, DEFAULT_PREFIX
    rest = urlencode([pair for pair in pairs if pair[0] != PREFIX])
    return f"{before}?{rest}" if rest else before, check_prefix(given[-1])


def with_prefix(url: str, prefix: str) -> str:
    """Return a broker's address with the option ``prefix``, unless it names one; any other address unchanged.

    Raises `ConfigurationError` for an invalid prefix.
    """
    before, _, query = url.partition("?")
    scheme, mark, _ = before.partition("://")
    named = any(key == PREFIX for key, _ in parse_qsl(query, keep_blank_values=True))
    if prefix == DEFAULT_PREFIX or named or not mark or scheme.lower() in {"http", "https"}:
        return url
    if before.count("[") != before.count("]"):
        return url
    option = urlencode({PREFIX: check_prefix(prefix)})
    return f"{before}?{query}&{option}" if query else f"{before}?{option}"


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if it can begin topics. Raises `ConfigurationError`."""
    if not is_token(prefix):
        raise ConfigurationError(
            "prefix: must be letters, digits, '_' and '-', 80 at most, starting with a letter or digit"
        )
    return prefix
