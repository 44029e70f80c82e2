"""The bridge's half of a sign-in for the page: it asks the issuer, and keeps nothing of anybody's sign-in.

Addresses come from the configuration and from what the issuer publishes of itself; a token names none that is asked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import jwt
import msgspec

from bridge.brokers.client_certificate import open_to_all
from bridge.contract.address import sender_of
from bridge.contract.errors import ConfigurationError
from bridge.core import login
from bridge.core.issuer import IssuerSettings
from bridge.core.jwks import KeySet, Mistimed
from bridge.service.access.asked import asked
from bridge.service.access.tokens import FETCH_BYTES_MAX, FETCH_S, Tokens, Verified

log = logging.getLogger("queuebell.access")

AT_ONCE: Final = 64
"""Exchanges at a time: whoever floods the bridge with codes has it flood nobody."""
PER_SENDER: Final = 4
"""Exchanges at a time of one address: whoever sends junk takes the places of nobody else."""
_AGAIN: Final = "sign in again"
_error = re.compile("[a-z_]{1,40}").fullmatch


class NotSignedIn(Exception):
    """A sign-in came to nothing; ``code`` is that of the answer."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class _Told(msgspec.Struct):
    id_token: str | None = None
    error: str | None = None


class Login:
    """Signing in at one issuer. Raises `ConfigurationError` where its table cannot be meant."""

    def __init__(self, settings: IssuerSettings, tokens: Tokens, wall: Callable[[], float]) -> None:
        self._settings = settings
        self._tokens = tokens
        self._wall = wall
        self._secret = _secret(settings, os.environ)
        self._known: KeySet[login.Provider] = KeySet()
        self._asking: asyncio.Task[None] | None = None
        self._exchanges: Counter[str] = Counter()

    @property
    def origin(self) -> str:
        """The origin of the page as browsers know it."""
        return self._settings.redirect_uri.removesuffix("/")

    async def begin(self) -> login.Begun:
        """Begin a sign-in; raises `NotSignedIn` where the issuer cannot be asked who it is."""
        return login.begin(self._settings, await self._provider(), secrets.token_bytes(login.CHANCE_BYTES))

    async def finish(self, code: str, verifier: str, sender: str | None, address: str) -> tuple[str, Verified]:
        """Exchange a code for the token that it stands for, and return whom that names; raises `NotSignedIn`.

        ``sender`` is the issuer that the browser was sent back by, None where it did not say; ``address`` is the
        browser's.
        """
        provider = await self._provider()
        if login.wrong_sender(self._settings, provider, sender):
            raise NotSignedIn(
                "forbidden", f"another issuer sent the browser back than the one of this sign-in: {_AGAIN}"
            )
        who = sender_of(address)
        if self._exchanges.total() >= AT_ONCE or self._exchanges[who] >= PER_SENDER:
            raise NotSignedIn("too_many_requests", "too many sign in at once: try again in a moment")
        self._exchanges[who] += 1
        try:
            token = await self._exchange(provider, code, verifier)
        finally:
            self._exchanges[who] -= 1
            if not self._exchanges[who]:
                del self._exchanges[who]
        try:
            verified = await self._tokens.verify(token)
        except Mistimed as error:
            raise NotSignedIn("forbidden", str(error)) from None
        # It has been verified, and is only read here.
        claim = "" if verified is None else login.wrong(_claims(token), self._settings, verifier)
        if verified is None or claim:
            log.error(
                "a sign-in: the issuer's ID token proves nothing: %s",
                f"its {claim} is another's" if claim else "its signature, algorithm or a claim that it has to have",
                extra={"issuer": self._settings.issuer},
            )
            raise NotSignedIn("forbidden", f"the issuer's token is not one for this sign-in: {_AGAIN}")
        return token, verified

    async def stop(self) -> None:
        """Let go of a request under way; may be called twice."""
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def _provider(self) -> login.Provider:
        if self._known.wants(None, self._wall()):
            # One for all who wait for it; whoever is cancelled leaves it to the others.
            self._asking = asyncio.create_task(self._discover(), name=f"description of {self._settings.issuer}")
        if self._asking is not None and not self._asking.done():
            await asyncio.wait([self._asking])
        found = self._known.find(None)
        if found is None:
            raise NotSignedIn(
                "issuer_unavailable",
                "the issuer does not say now how to sign in there: try again in half a minute, or come with a key;"
                " the log of this bridge says what is wrong",
            )
        return found

    async def _discover(self) -> None:
        url = self._settings.issuer.removesuffix("/") + login.DISCOVERY
        try:
            async with asyncio.timeout(FETCH_S):
                status, raw = await asked(url, FETCH_BYTES_MAX)
            if status != 200:
                raise ConfigurationError(f"it answers {status}")
            self._known.got({None: login.provider_of(raw, self._settings)}, self._wall())
        except Exception as error:  # noqa: BLE001 - whatever it is, what was known before holds
            log.error(
                "nobody can sign in at the page until the issuer's description is had, unless it was before: %s: %s",
                url,
                str(error) or type(error).__name__,
                extra={"issuer": self._settings.issuer},
            )

    async def _exchange(self, provider: login.Provider, code: str, verifier: str) -> str:
        form, headers = login.exchange(self._settings, provider, self._secret, code, verifier)
        try:
            async with asyncio.timeout(FETCH_S):
                status, raw = await asked(provider.token_endpoint, FETCH_BYTES_MAX, form, headers)
            told = msgspec.json.decode(raw, type=_Told)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody is signed in by it
            raise self._unavailable(str(error) or type(error).__name__) from None
        if status == 200 and told.id_token:
            return told.id_token
        if told.error == "invalid_grant":
            raise NotSignedIn(
                "forbidden", f"the issuer does not take this sign-in: it was used before, or is too old: {_AGAIN}"
            )
        why = told.error if told.error and _error(told.error) else "no id_token"
        raise self._unavailable(f"it answers {status}, {why}")

    def _unavailable(self, why: str) -> NotSignedIn:
        log.error(
            "a sign-in: the issuer exchanges no code: %s (invalid_client: see client_id and the secret)",
            why,
            extra={"issuer": self._settings.issuer},
        )
        return NotSignedIn(
            "issuer_unavailable",
            "the issuer gave no token for this sign-in: sign in again, or come with a key; the log of this bridge says"
            " what is wrong",
        )


def _claims(token: str) -> Mapping[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


def _secret(settings: IssuerSettings, environment: Mapping[str, str]) -> str | None:
    where, file, variable = f"issuer: {settings.issuer}", settings.client_secret_file, settings.client_secret_env
    if variable is not None:
        if not environment.get(variable):
            raise ConfigurationError(f"{where}: client_secret_env: {variable} is not set in the environment")
        return environment[variable]
    if file is None:
        return None
    try:
        text = pathlib.Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:  # the latter for what is no text, or cannot be a path
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigurationError(f"{where}: client_secret_file: cannot read {file!r}: {reason}") from None
    if not text:
        raise ConfigurationError(f"{where}: client_secret_file: {file} is empty")
    if exposed := open_to_all(file):
        log.warning("%s: client_secret_file: %s", where, exposed)
    return text
