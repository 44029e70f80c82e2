"""Who a NATS connection is, how the client library is told, and what a refusal means."""

from __future__ import annotations

import functools
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final

from bridge.brokers.address import Address, TlsOptions, readable
from bridge.brokers.client_certificate import open_to_all
from bridge.brokers.extras import install
from bridge.brokers.nats.servers import Node
from bridge.contract.errors import BusUnavailable, ConfigurationError

log = logging.getLogger("queuebell.access")

CREDENTIALS_MARKS: Final = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")
"""Without the first, nats-py reads the file for ever."""


class Access:
    """User and password, a token (a user alone), a credentials file or an nkey's file; and TLS."""

    def __init__(
        self,
        where: Address,
        *,
        name: str,
        user: str | None,
        password: str | None,
        credentials: str | None,
        nkey: str | None,
        tls: TlsOptions,
    ) -> None:
        if sum(map(bool, (credentials, nkey, user))) > 1:
            raise ConfigurationError("broker: give only one of credentials, nkey, or user and password")
        self._where = where
        self._name = name
        self._user = user
        self._password = password
        self._credentials = credentials
        self._nkey = nkey
        self._tls = tls

    @property
    def by_file(self) -> bool:
        """Whether the client library reads a file to connect."""
        return bool(self._credentials or self._nkey)

    def text(self, server: Node) -> str:
        """Return the address of one server, for whoever reads of it."""
        return f"{'tls' if self._where.encrypted else 'nats'}://{server.host}"

    def options(self, transport: Callable[[], Any], server: Node) -> dict[str, Any]:
        """Return the library's options; ``transport`` tells what it is connected by when it asks for a secret."""
        options: dict[str, Any] = {
            "servers": f"nats://{server.host}",
            "name": self._name,
            "allow_reconnect": False,  # whether and when is decided above, once for all brokers
            "max_reconnect_attempts": 1,  # 0 would mean for ever
            "reconnect_time_wait": 0,
            "connect_timeout": 4,
            "ping_interval": 10,
            "max_outstanding_pings": 2,
            "pending_size": 0,  # with a buffer, what was published during an outage is sent when nobody listens yet
            "inbox_prefix": self._where.options.get("inbox", "_INBOX"),
            "skip_subject_validation": True,  # done by `Topics`, once for each
        }
        if self._where.encrypted or self._tls.given():
            options["tls"] = self._tls.context()
            options["tls_hostname"] = self._tls.hostname or server.name

        def secret(text: str) -> Callable[[], str]:
            def told() -> str:
                self.check_encrypted(transport())
                return text

            return told

        if self._credentials:
            options["user_credentials"] = readable("credentials", self._credentials, *CREDENTIALS_MARKS)
            _warn_if_open("credentials", self._credentials)
        elif self._nkey:
            options["nkeys_seed"] = readable("nkey", self._nkey)
            _warn_if_open("nkey", self._nkey)
        elif self._user is not None and self._password is not None:
            options["user"], options["password"] = secret(self._user), secret(self._password)
        elif self._user is not None:
            options["token"] = secret(self._user)
        return options

    def check_encrypted(self, transport: Any) -> None:
        """Raise `ConfigurationError` where the address asked for TLS and there is none.

        nats-py speaks TLS only if the server asks for it: to one without TLS it would tell the password openly.
        """
        if self._where.encrypted and transport.get_extra_info("ssl_object") is None:
            raise ConfigurationError(f"broker: {self._where.text} does not offer TLS; use nats:// if that is intended")

    def refusal(self, error: Exception, last: str, server: Node) -> Exception:
        """Return what a failed attempt means; ``last`` is what the library said of it."""
        if isinstance(error, BusUnavailable):
            return error
        words = last or said(error)
        lower = words.lower()
        wrong = (
            "authorization violation" in lower
            or ("authentication" in lower and "expired" not in lower)
            or isinstance(error, ssl.SSLCertVerificationError)
            or "certificate verify failed" in lower
        )
        if wrong:
            return ConfigurationError(f"broker: {self.text(server)}: {words}")
        return (
            self.unusable(server) if isinstance(error, ValueError) else BusUnavailable(f"{self.text(server)}: {words}")
        )

    def unusable(self, server: Node) -> ConfigurationError:
        """Return what to raise for files that the library stumbles over; its own words may hold what is in them."""
        return ConfigurationError(f"broker: {self.text(server)}: the credentials cannot be used")


@functools.lru_cache(maxsize=64)
def _warn_if_open(option: str, path: str) -> None:
    """Say it once for each file, which is read for every connection."""
    if exposed := open_to_all(path):
        log.warning("broker: %s: %s", option, exposed)


def check_installed() -> None:
    """Raise `ConfigurationError` that names the extra where the client library is missing."""
    try:
        import nats.aio.client  # noqa: F401
    except ImportError:
        raise ConfigurationError(f"broker: nats:// needs the extra: {install('nats')}") from None


def said(error: BaseException) -> str:
    """Return the library's words for an error."""
    return (str(error) or type(error).__name__).removeprefix("nats: ")
