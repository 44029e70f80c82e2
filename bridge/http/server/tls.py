"""The server's side of TLS, with certificates that can be replaced while it runs."""

from __future__ import annotations

import logging
import pathlib
import ssl
import time
from collections.abc import Callable, Sequence

from queuebell.bridge.access.access_file import FileWatch, stamp_of
from queuebell.bridge.brokers.credential import JUDGED_EVERY_S, doubt_of, open_to_all
from queuebell.bridge.contract.errors import ConfigurationError

log = logging.getLogger("queuebell.web")


class Certificates(FileWatch):
    """A certificate chain (leaf first) and its private key, two PEM files, and the context that serves them.

    New connections use changed files; open ones stay as they are. Files that do not match, for example while only one
    has been copied, change nothing, and an error is logged. A chain that has expired or will soon is served with a
    warning. Raises `ConfigurationError` naming ``name`` for files that cannot be used. ``wall`` gives seconds since
    1970.

    With ``client_ca``, a PEM file of the authorities for clients, a client may present a certificate, and must if it is
    ``required``. A handshake with an expired one, or one of another authority, fails. ``alpn`` names the protocols.
    """

    def __init__(
        self,
        cert: str | None,
        key: str | None,
        name: str,
        client_ca: str | None = None,
        *,
        required: bool = False,
        alpn: Sequence[str] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        for which, value in (("cert", cert), ("key", key)):
            if not value:
                raise ConfigurationError(
                    f"{name}_{which}: HTTPS needs both a certificate ({name}_cert) and a key ({name}_key)"
                )
        self._cert, self._key, self._name = str(cert), str(key), name
        self._client_ca, self._required = client_ca, required
        self._alpn = list(alpn)
        self._wall = wall
        self._seen = self._stamps()
        try:
            self.context = self._load()
        except (OSError, ValueError) as error:  # `ssl.SSLError` is the former; the latter is for what cannot be a path
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"{name}_cert: cannot use {cert!r} with {key!r}: {reason}") from None
        try:
            self._trust(self.context)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"{name}_client_ca: cannot use {client_ca!r}: {reason}") from None
        self._judge()

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection; with client certificates each reload makes another one."""
        return self.context

    def check(self) -> None:
        """Reload changed files."""
        stamps = self._stamps()
        if stamps == self._seen:
            if self._wall() >= self._judge_at:
                self._judge()
            return
        self._seen = stamps
        try:
            # Tried separately: a chain that fails half-way would leave the current context without a key.
            fresh = self._load()
            self._trust(fresh)
            self.context.load_cert_chain(self._cert, self._key)
            if self._client_ca is not None:
                # A context keeps old authorities and resumable sessions.
                self.context = fresh
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            log.error(
                "%s_cert: the new files cannot be used; the previous certificate stays in use: %s", self._name, reason
            )
        else:
            log.info("certificates reloaded", extra={"file": self._cert})
            self._judge()

    def _judge(self) -> None:
        """Warn of a certificate that expires, and of a key that others can read."""
        self._judge_at = self._wall() + JUDGED_EVERY_S
        doubt = doubt_of(self._cert, self._key, self._wall(), client=False)
        if doubt is not None:
            log.warning("%s_cert: %s %s", self._name, self._cert, doubt)
        if exposed := open_to_all(self._key):
            log.warning("%s_key: %s", self._name, exposed)

    def _load(self) -> ssl.SSLContext:
        _check_regular(self._cert, self._key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._alpn:
            context.set_alpn_protocols(self._alpn)
        # The default asks for a password at the terminal.
        context.load_cert_chain(self._cert, self._key, password="")
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        if self._client_ca is not None:
            _check_regular(self._client_ca)
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if self._required else ssl.CERT_OPTIONAL

    def _stamps(self) -> tuple[object, ...]:
        return tuple(stamp_of(each) for each in (self._cert, self._key, self._client_ca) if each is not None)


def _check_regular(*files: str) -> None:
    """Raise `OSError` for a pipe: opening it would block the loop until something writes."""
    for file in files:
        if pathlib.Path(file).exists() and not pathlib.Path(file).is_file():
            raise OSError(f"{file} is not a regular file")
