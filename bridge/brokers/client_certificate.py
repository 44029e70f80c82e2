"""The certificate that a client shows to a bridge over TLS, from files that the environment names.

And what is wrong with files of secrets, a client's or a bridge's: their times, and who can read them.
"""

from __future__ import annotations

import logging
import math
import os
import pathlib
import ssl
import stat
import time
from collections.abc import Callable, Mapping
from typing import Final, Self

from bridge.contract.address import HttpAddress
from bridge.contract.errors import ConfigurationError

CERT_VARIABLE: Final = "QUEUEBELL_CLIENT_CERT"
KEY_VARIABLE: Final = "QUEUEBELL_CLIENT_KEY"

JUDGED_EVERY_S: Final = 6 * 3600.0
SOON_S: Final = 14 * 86_400.0
"""So long before its end a certificate is warned of, or once two thirds of its life are over where that is later."""
_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID, verify(1) of OpenSSL
_NOT_YET: Final = 9

log = logging.getLogger("queuebell.access")


class ClientCertificate:
    """A certificate chain (own one first) and its private key, two PEM files, read anew when they have changed.

    Files that do not fit each other, as between the copying of one and of the other, change nothing. One that has
    expired, or will soon, is shown, and the log warns of it: a bridge that refuses it only ends the connection. Raises
    `ConfigurationError` when made of files that cannot be used.
    """

    def __init__(self, cert: str, key: str, wall: Callable[[], float] = time.time) -> None:
        self._files = (cert, key)
        self._wall = wall
        self._seen = self._stamps()
        try:
            self._context = self._load()
        except (OSError, ValueError) as error:  # `ssl.SSLError` is the former; the latter is for what cannot be a path
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"{CERT_VARIABLE}: cannot use {cert!r} with {key!r}: {reason}") from None
        self._judge()

    @classmethod
    def of(cls, where: HttpAddress, environment: Mapping[str, str]) -> Self | None:
        """Read what the environment names for an address; None where it names nothing, or TLS is not spoken there."""
        cert, key = environment.get(CERT_VARIABLE, ""), environment.get(KEY_VARIABLE, "")
        if where.scheme != "https" or not (cert or key):
            return None
        if not cert:
            raise ConfigurationError(f"{KEY_VARIABLE}: has no effect without {CERT_VARIABLE}")
        return cls(cert, key or cert)

    def context(self) -> ssl.SSLContext:
        """Return the client's side of TLS: the same one until the files have changed."""
        stamps = self._stamps()
        if stamps != self._seen:
            try:
                self._context = self._load()
                self._seen = stamps
                self._judge()
            except (OSError, ValueError):
                # They are being replaced: the certificate that worked is the best there is.
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
            log.warning("%s: %s", KEY_VARIABLE, exposed)

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


def open_to_all(path: str) -> str:
    """Say that every user of the machine can read a file of secrets, and the way out; "" where they cannot.

    A group may be meant to, as where secrets are mounted.
    """
    # Where there are no such modes, all of them are set.
    if os.name != "posix":
        return ""
    try:
        mode = pathlib.Path(path).stat().st_mode
    except (OSError, ValueError):
        return ""
    return f"every user of this machine can read it: chmod 600 {path}" if mode & stat.S_IROTH else ""


def doubt_of(chain: str, key: str, now: float, *, client: bool) -> str | None:
    """Say what is wrong with the times of a chain of PEM certificates; None where nothing is.

    Asks OpenSSL, as a peer that trusts the chain itself: the standard library reads no certificate otherwise. The peer
    is a bridge for the certificate of a ``client``, and a client for that of a bridge.
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
        # A chain that its peers know how to take, and this one does not.
        return None
    begins, ends = (ssl.cert_time_to_seconds(str(shown.get(name))) for name in ("notBefore", "notAfter"))
    left = ends - now
    if left >= min(SOON_S, (ends - begins) / 3):
        return None
    return f"expires in {math.ceil(left / 3600)} hours: replace it, the new one is used immediately"
