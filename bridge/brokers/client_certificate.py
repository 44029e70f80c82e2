"""The certificate that a client shows to a bridge over TLS, from files that the environment names."""

from __future__ import annotations

import pathlib
import ssl
from collections.abc import Mapping
from typing import Final, Self

from bridge.contract.address import HttpAddress
from bridge.contract.errors import ConfigurationError

CERT_VARIABLE: Final = "QUEUEBELL_CLIENT_CERT"
KEY_VARIABLE: Final = "QUEUEBELL_CLIENT_KEY"


class ClientCertificate:
    """A certificate chain (own one first) and its private key, two PEM files, read anew when they have changed.

    Files that do not fit each other, as between the copying of one and of the other, change nothing. Raises
    `ConfigurationError` when made of files that cannot be used.
    """

    def __init__(self, cert: str, key: str) -> None:
        self._files = (cert, key)
        self._seen = self._stamps()
        try:
            self._context = self._load()
        except (OSError, ValueError) as error:  # `ssl.SSLError` is the former; the latter is for what cannot be a path
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"{CERT_VARIABLE}: cannot use {cert!r} with {key!r}: {reason}") from None

    @classmethod
    def of(cls, where: HttpAddress, environment: Mapping[str, str]) -> Self | None:
        """Read what the environment names for an address; None where it names nothing, or TLS is not spoken there."""
        cert, key = environment.get(CERT_VARIABLE, ""), environment.get(KEY_VARIABLE, "")
        if where.scheme != "https" or not (cert or key):
            return None
        if not cert:
            raise ConfigurationError(f"{KEY_VARIABLE}: is of no use without {CERT_VARIABLE}")
        return cls(cert, key or cert)

    def context(self) -> ssl.SSLContext:
        """Return the client's side of TLS: the same one until the files have changed."""
        stamps = self._stamps()
        if stamps != self._seen:
            try:
                self._context = self._load()
                self._seen = stamps
            except (OSError, ValueError):
                # They are being replaced: the certificate that worked is the best there is.
                pass
        return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        # Without a password to ask for: the default asks whoever sits at a terminal.
        context.load_cert_chain(*self._files, password="")
        return context

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(each) for each in self._files]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = pathlib.Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
