"""Where a relay passes requests on to, and whose account that is."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from bridge.contract.errors import ConfigurationError

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
