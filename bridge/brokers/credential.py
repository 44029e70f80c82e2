"""How a client proves its identity to a bridge: an API key (`Credential`), a certificate over TLS, or both.

`open_to_all` and `doubt_of` check files of secrets, a client's or a bridge's: who can read them, and their times.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import pathlib
import re
import ssl
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

from queuebell.bridge.brokers.base import Broker
from queuebell.bridge.contract.address import HttpAddress, is_http, is_loopback
from queuebell.bridge.contract.errors import ConfigurationError, KeyUnavailable

log = logging.getLogger("queuebell.access")

KEY_VARIABLE: Final = "QUEUEBELL_API_KEY"
FILE_VARIABLE: Final = "QUEUEBELL_API_KEY_FILE"
CERT_VARIABLE: Final = "QUEUEBELL_CLIENT_CERT"
CERT_KEY_VARIABLE: Final = "QUEUEBELL_CLIENT_KEY"
TRUSTED_VARIABLE: Final = "SSL_CERT_FILE"

JUDGED_EVERY_S: Final = 6 * 3600.0
SOON_S: Final = 14 * 86_400.0
"""A warning begins so long before a certificate's end, or after two thirds of its life if that is later."""
_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID, verify(1) of OpenSSL
_NOT_YET: Final = 9

ApiKey = str | Callable[[], str] | None
"""A key; a function that returns one (for keys that expire; called for each request, must be quick); or None."""

# RFC 6750 2.1: b64token. Anything else could end the header and begin another.
_token = re.compile("[A-Za-z0-9._~+/-]+=*").fullmatch
_BYTES_MAX: Final = 16 * 1024


class Credential:
    """The key for each request to one bridge, and for each hello over a broker, if there is one.

    It is ``given``, or that of the environment (``QUEUEBELL_API_KEY``), or of the file that ``QUEUEBELL_API_KEY_FILE``
    names, which is read again after a change. Raises `ConfigurationError` for an invalid key, and for an address where
    it would go over a network unencrypted.
    """

    def __init__(
        self, where: HttpAddress | Broker, given: ApiKey = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        # A broker's address names its own certificate, and the bridge does not see it.
        self._certificate = ClientCertificate.of(where, environment) if isinstance(where, HttpAddress) else None
        encrypted = isinstance(where, HttpAddress) and where.scheme == "https"
        trusted = environment.get(TRUSTED_VARIABLE, "") if encrypted else ""
        self._trusted = _trusted(trusted) if trusted else None
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
        if self and (readable := _unencrypted(where)):
            raise ConfigurationError(f"api_key: {readable}")

    @classmethod
    def of(cls, addresses: Sequence[HttpAddress], given: ApiKey = None) -> Self:
        """Return the credential for bridges of one cluster: one unencrypted address makes it invalid for all."""
        return cls(min(addresses, key=lambda each: is_loopback(each.host)), given)

    def __bool__(self) -> bool:
        return bool(self._ask is not None or self._fixed or self._file is not None)

    def __repr__(self) -> str:
        return f"Credential({'some' if self else 'none'})"

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context with the client's certificate, or that of ``SSL_CERT_FILE``; None for the default."""
        source = self._certificate or self._trusted
        return None if source is None else source.context()

    def headers(self) -> Mapping[str, str]:
        """Return the headers with the key. Raises `KeyUnavailable` where the given function has no key now."""
        if self._ask is not None:
            try:
                return _header(self._ask(), "api_key")
            except Exception as error:
                # Its text may hold the key; a calling program gets it as the cause.
                why = str(error) if isinstance(error, ConfigurationError) else f"it raised {type(error).__name__}"
                raise KeyUnavailable(f"api_key: no key is available: {why}") from error
        if self._file is not None:
            self._read(self._file)
        return self._fixed

    def secret(self) -> str | None:
        """Return the key itself, for frames; raises as `headers` does."""
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
            # It is being replaced, or its mount is away: keep the last good key.


def _unencrypted(where: HttpAddress | Broker) -> str:
    """Return why others could read the key on its way and what to use instead; "" where they cannot."""
    if isinstance(where, HttpAddress):
        if where.scheme != "http" or is_loopback(where.host):
            return ""
        return f"http://{where.host} would send the key unencrypted over a network; use https://"
    if where.private:
        return ""
    return f"{where.address} would send the key unencrypted over a network; use tls:// (NATS) or mqtts://"


def key_option(address: object, api_key: ApiKey) -> dict[str, ApiKey]:
    """Return the option ``api_key`` for ``address``. Raises `ConfigurationError` where keys are not used."""
    if api_key is None:
        return {}
    if not is_http(address):
        raise ConfigurationError(
            "api_key: is only for http:// and https://, where bridges require it; a broker has users"
        )
    return {"api_key": api_key}


def _header(key: object, name: str) -> dict[str, str]:
    if not isinstance(key, str) or _token(key) is None:
        # It may be a secret with a line break, so it is not shown.
        raise ConfigurationError(
            f"{name}: a key may contain only letters, digits and ._~+/-, on one line, as `key create` prints it"
        )
    return {"Authorization": f"Bearer {key}"}


class ClientCertificate:
    """A certificate chain (own one first) and its private key, two PEM files, read again after a change.

    Files that do not fit each other, as between the copying of one and of the other, change nothing. An expired
    certificate is used all the same, with a warning in the log: a bridge that refuses it only ends the connection.
    Raises `ConfigurationError` for files that cannot be used.
    """

    def __init__(self, cert: str, key: str, wall: Callable[[], float] = time.time) -> None:
        self._files = (cert, key)
        self._wall = wall
        self._seen = self._stamps()
        try:
            self._context = self._load()
        except (OSError, ValueError) as error:  # `ssl.SSLError` is an OSError; ValueError: not a path
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"{CERT_VARIABLE}: cannot use {cert!r} with {key!r}: {reason}") from None
        self._judge()

    @classmethod
    def of(cls, where: HttpAddress, environment: Mapping[str, str]) -> Self | None:
        """Return the environment's certificate for an address; None if it names none, or the address has no TLS."""
        cert, key = environment.get(CERT_VARIABLE, ""), environment.get(CERT_KEY_VARIABLE, "")
        if where.scheme != "https" or not (cert or key):
            return None
        if not cert:
            raise ConfigurationError(f"{CERT_KEY_VARIABLE}: has no effect without {CERT_VARIABLE}")
        return cls(cert, key or cert)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context: the same one until the files have changed."""
        stamps = self._stamps()
        if stamps != self._seen:
            try:
                self._context = self._load()
                self._seen = stamps
                self._judge()
            except (OSError, ValueError):
                # They are being replaced: keep the last good certificate.
                pass
        elif self._wall() >= self._judge_at:
            self._judge()
        return self._context

    def _judge(self) -> None:
        cert, key = self._files
        now = self._wall()
        self._judge_at = now + JUDGED_EVERY_S
        doubt = doubt_of(cert, key, now, client=True)
        if doubt is not None:
            log.warning("%s: %s %s", CERT_VARIABLE, cert, doubt)
        if exposed := open_to_all(key):
            log.warning("%s: %s", CERT_KEY_VARIABLE, exposed)

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(*self._files, password="")
        return context

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(each) for each in (*self._files, os.environ.get(TRUSTED_VARIABLE, "")) if each]


class TrustedCertificates:
    """The certificates that ``SSL_CERT_FILE`` names, read again after a change: the bridge's may be among them.

    A file that is missing or has none changes nothing, once it had some.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = _stamp(path)
        self._context = ssl.create_default_context()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context: the same one until the file has changed."""
        stamp = _stamp(self._path)
        if stamp is not None and stamp != self._seen:
            try:
                # The default context ignores a file that cannot be read.
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self._path)
                self._context, self._seen = ssl.create_default_context(), stamp
            except (OSError, ValueError):
                # It is being replaced: keep the last good certificates.
                pass
        return self._context


@functools.lru_cache(1)
def _trusted(path: str) -> TrustedCertificates:
    # One for all clients of the process, so that they can share connections.
    return TrustedCertificates(path)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = pathlib.Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def open_to_all(path: str) -> str:
    """Return a warning that every user of the machine can read a file, with the remedy; "" where they cannot.

    A group may be able to: that is how secrets are mounted.
    """
    if os.name != "posix":  # all modes are set there
        return ""
    try:
        mode = pathlib.Path(path).stat().st_mode
    except (OSError, ValueError):
        return ""
    return f"every user of this machine can read it: chmod 600 {path}" if mode & stat.S_IROTH else ""


def doubt_of(chain: str, key: str, now: float, *, client: bool) -> str | None:
    """Return what is wrong with the times of a chain of PEM certificates; None if nothing is.

    Makes a TLS handshake in memory with a peer that trusts the chain itself, because the standard library cannot read
    a certificate otherwise. ``client`` is whether the certificate is a client's.
    """
    server, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    judge = server if client else asking
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server.load_cert_chain(chain, key, password="")
        if client:
            asking.load_cert_chain(chain, key, password="")
        judge.verify_mode = ssl.CERT_REQUIRED
        judge.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        judge.load_verify_locations(chain)
        ours, theirs = server.wrap_bio(up, down, server_side=True), asking.wrap_bio(down, up)
        for side in (theirs, ours, theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
        shown = (ours if client else theirs).getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        refuse = "bridges reject it" if client else "clients reject it"
        return {
            _EXPIRED: f"has expired: {refuse}; replace it, the new one is used immediately",
            _NOT_YET: f"is not valid yet: {refuse}, unless this machine's clock is slow",
        }.get(error.verify_code)
    except (ssl.SSLError, OSError, ValueError):
        # Its real peers may be able to read it.
        return None
    begins, ends = (ssl.cert_time_to_seconds(str(shown.get(name))) for name in ("notBefore", "notAfter"))
    left = ends - now
    if left >= min(SOON_S, (ends - begins) / 3):
        return None
    return f"expires in {math.ceil(left / 3600)} hours: replace it, the new one is used immediately"
