"""Addresses of brokers: where, as whom, and with which options; what is secret never leaves the object."""

from __future__ import annotations

import pathlib
import ssl
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from bridge.contract.errors import ConfigurationError

PORTS: Final[dict[str, int]] = {"nats": 4222, "tls": 4222, "mqtt": 1883, "mqtts": 8883, "redis": 6379, "rediss": 6379}
ENCRYPTED: Final = frozenset({"tls", "mqtts", "rediss"})
TLS_OPTIONS: Final = ("tls_ca", "tls_cert", "tls_key", "tls_hostname")


class Address:
    """``scheme://[user[:password]@]host[:port][?option=value&...]``, checked.

    ``text`` is the address without user, password and options, for logs. Options that are files must exist.
    Raises `ConfigurationError`; its message never repeats the address.
    """

    def __init__(self, url: str, *, schemes: Collection[str], options: Collection[str]) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ConfigurationError("broker: the address is malformed") from None
        if parts.scheme not in schemes or not host or port == 0 or parts.path not in {"", "/"} or parts.fragment:
            known = " or ".join(f"{scheme}://" for scheme in schemes)
            raise ConfigurationError(f"broker: an address is {known} [USER:PASSWORD@]HOST[:PORT][?OPTION=VALUE]")
        given = parse_qsl(parts.query, keep_blank_values=True)
        allowed = {*options, *TLS_OPTIONS}
        for key, _ in given:
            if key not in allowed:
                raise ConfigurationError(f"broker: options of {parts.scheme}:// are {', '.join(sorted(allowed))}")
        self.encrypted = parts.scheme in ENCRYPTED
        self.host = host
        self.port = port or PORTS[parts.scheme]
        self.user = unquote(parts.username) if parts.username else None
        self.password = unquote(parts.password) if parts.password is not None else None
        self.options: Mapping[str, str] = dict(given)
        shown = f"[{host}]" if ":" in host else host
        self.text = f"{parts.scheme}://{shown}:{self.port}"

    def __repr__(self) -> str:
        return f"<Address {self.text}>"

    def number(self, option: str, default: int, *, most: int) -> int:
        """Return an option that is a whole number from 0 to ``most``."""
        text = self.options.get(option)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and int(text) <= most):
            raise ConfigurationError(f"broker: {option} is a whole number from 0 to {most}")
        return int(text)


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
        raise ConfigurationError(f"broker: {option} is not such a file")
    return path
