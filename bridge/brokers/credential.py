"""What a client proves to a bridge who it is by: an API key, from the program, the environment or a file.

Or a certificate, which it shows over TLS; where a broker is between them, only a key.
"""

from __future__ import annotations

import logging
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from bridge.brokers.base import Broker
from bridge.brokers.client_certificate import ClientCertificate, open_to_all
from bridge.contract.address import HttpAddress, is_http, is_loopback
from bridge.contract.errors import ConfigurationError, KeyUnavailable

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("queuebell.access")

KEY_VARIABLE: Final = "QUEUEBELL_API_KEY"
FILE_VARIABLE: Final = "QUEUEBELL_API_KEY_FILE"

ApiKey = str | Callable[[], str] | None
"""A key; what returns one, for those that expire, called for each request and never long; None: see `Credential`."""

# RFC 6750 2.1: b64token. Anything else could end the header and begin another.
_token = re.compile("[A-Za-z0-9._~+/-]+=*").fullmatch
_BYTES_MAX = 16 * 1024


class Credential:
    """The key that goes with each request to one bridge, and with each hello over a broker, if there is any.

    Without a key of its own it is that of the environment (``QUEUEBELL_API_KEY``), or of the file that
    ``QUEUEBELL_API_KEY_FILE`` names, read anew when it has changed. Raises `ConfigurationError` for a key that cannot
    be one, and for an address where it would go over a network in the clear.
    """

    def __init__(
        self, where: HttpAddress | Broker, given: ApiKey = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        # A broker is told who connects by its own address, and tells the bridge nothing of it.
        self._certificate = ClientCertificate.of(where, environment) if isinstance(where, HttpAddress) else None
        self._ask: Callable[[], str] | None = None
        self._fixed: dict[str, str] = {}
        self._file: pathlib.Path | None = None
        self._stamp: tuple[int, int, int] | None = None
        if given is None and (text := environment.get(KEY_VARIABLE, "")):
            given = text
        if callable(given):
            self._ask = given
        elif given is not None:
            self._fixed = _header(given, "api_key")
        elif path := environment.get(FILE_VARIABLE, ""):
            self._file = pathlib.Path(path)
            self._read(self._file)
        if self and (readable := _in_the_clear(where)):
            raise ConfigurationError(f"api_key: {readable}")

    @classmethod
    def of(cls, addresses: Sequence[HttpAddress], given: ApiKey = None) -> Self:
        """Return that of equal bridges, which all may be shown it: of one in the clear it is refused for all."""
        return cls(min(addresses, key=lambda each: is_loopback(each.host)), given)

    def __bool__(self) -> bool:
        return bool(self._ask is not None or self._fixed or self._file is not None)

    def __repr__(self) -> str:
        return f"Credential({'some' if self else 'none'})"

    def tls(self) -> ssl.SSLContext | None:
        """Return the client's side of TLS where a certificate is to be shown; None is the default one."""
        return None if self._certificate is None else self._certificate.context()

    def headers(self) -> Mapping[str, str]:
        """Return what a request has to carry. Raises `KeyUnavailable` where the given callable has no key now."""
        if self._ask is not None:
            try:
                return _header(self._ask(), "api_key")
            except Exception as error:
                # Its text may hold the key. The cause goes with it, for whoever calls from a program.
                why = str(error) if isinstance(error, ConfigurationError) else f"it raised {type(error).__name__}"
                raise KeyUnavailable(f"api_key: no key is available: {why}") from error
        if self._file is not None:
            self._read(self._file)
        return self._fixed

    def secret(self) -> str | None:
        """Return the key itself, for what has no headers; raises as `headers` does."""
        return self.headers().get("Authorization", "").removeprefix("Bearer ") or None

    def _read(self, path: pathlib.Path) -> None:
        try:
            found = path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp != self._stamp:
                with path.open("r", encoding="utf-8") as file:
                    self._fixed = _header(file.read(_BYTES_MAX).strip(), FILE_VARIABLE)
                self._stamp = stamp
                if exposed := open_to_all(str(path)):
                    log.warning("%s: %s", FILE_VARIABLE, exposed)
        except (OSError, UnicodeDecodeError, ConfigurationError) as error:
            if self._stamp is None:
                reason = getattr(error, "strerror", None) or error
                raise ConfigurationError(f"{FILE_VARIABLE}: cannot read a key from {path}: {reason}") from None
            # It is being replaced, or was mounted away: the key that worked is the best there is.


def _in_the_clear(where: HttpAddress | Broker) -> str:
    """Say why others could read the key on its way and what to use instead; "" where they cannot."""
    if isinstance(where, HttpAddress):
        if where.scheme != "http" or is_loopback(where.host):
            return ""
        return f"http://{where.host} would send the key unencrypted over a network; use https://"
    if where.private:
        return ""
    return f"{where.address} would send the key unencrypted over a network; use tls:// (NATS) or mqtts://"


def key_option(address: object, api_key: ApiKey) -> dict[str, ApiKey]:
    """Return a given key as an option of what is opened at ``address``; raises `ConfigurationError` where none goes."""
    if api_key is None:
        return {}
    if not is_http(address):
        raise ConfigurationError(
            "api_key: is only for http:// and https://, where bridges require it; a broker has users"
        )
    return {"api_key": api_key}


def _header(key: object, name: str) -> dict[str, str]:
    if not isinstance(key, str) or _token(key) is None:
        # What it is instead may be a secret with a line break, and is not shown.
        raise ConfigurationError(
            f"{name}: a key may contain only letters, digits and ._~+/-, on one line, as `key create` prints it"
        )
    return {"Authorization": f"Bearer {key}"}
