"""The server's side of TLS, with certificates that can be replaced while it runs."""

from __future__ import annotations

import logging
import ssl

from bridge.contract.errors import ConfigurationError
from bridge.service.looking import Looking, stamp_of

log = logging.getLogger("queuebell.web")


class Certificates(Looking):
    """A certificate chain (own one first) and its private key, two PEM files, and the context that serves them.

    When the files have changed, new connections get the new ones; those that are open stay as they are. Files that do
    not fit each other, as between the copying of one and of the other, change nothing, and the log says so. Raises
    `ConfigurationError` that names ``name`` when made of files that cannot be used.
    """

    def __init__(self, cert: str | None, key: str | None, name: str) -> None:
        for which, value in (("cert", cert), ("key", key)):
            if not value:
                raise ConfigurationError(
                    f"{name}_{which}: HTTPS needs both a certificate ({name}_cert) and a key ({name}_key)"
                )
        self._cert, self._key, self._name = str(cert), str(key), name
        self._seen = self._stamps()
        try:
            self.context = self._load()
        except (OSError, ValueError) as error:  # `ssl.SSLError` is the former; the latter is for what cannot be a path
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"{name}_cert: cannot use {cert!r} with {key!r}: {reason}") from None

    def look(self) -> None:
        """Serve the files anew where they have changed."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            # Tried apart: a chain that is refused half-way would leave the one that serves without a key.
            self._load()
            self.context.load_cert_chain(self._cert, self._key)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            log.error("%s_cert: the files cannot be used, and what was served goes on: %s", self._name, reason)
        else:
            log.info("certificates read again", extra={"file": self._cert})

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Without a password to ask for: the default asks whoever sits at a terminal.
        context.load_cert_chain(self._cert, self._key, password="")
        return context

    def _stamps(self) -> tuple[object, object]:
        return stamp_of(self._cert), stamp_of(self._key)
