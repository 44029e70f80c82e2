"""Signing in for the page, over HTTP: ``GET /v1/login`` begins it, ``POST /v1/login`` ends it with a token.

The tab sends the token as it would send a pasted key. Without a cookie other pages cannot send authenticated requests.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.grants import NAME_FORM, Verb
from queuebell.bridge.access.limits import TokenBuckets
from queuebell.bridge.contract.address import sender_of
from queuebell.bridge.contract.names import is_token
from queuebell.bridge.http.api.routes import Routes, only_query_of
from queuebell.bridge.http.server.answer import Answer, Refusal
from queuebell.bridge.http.server.body import decode_json, read_body, require_json
from queuebell.bridge.observe.facts import AccessRefused, Fact

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.web import BaseRequest

    from queuebell.bridge.access.sign_in import Login
    from queuebell.bridge.access.tokens import Verified

log = logging.getLogger("queuebell.access")

_RATE, _BURST = 2.0, 20
_REQUEST_BYTES: Final = 16 * 1024
_SHORT: Final = Meta(min_length=1, max_length=256)


class SignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a browser came back with, and what its tab kept meanwhile."""

    code: Annotated[str, Meta(min_length=1, max_length=8192)]
    verifier: Annotated[str, _SHORT]
    iss: Annotated[str, Meta(max_length=2048)] | None = None


class SignedIn(msgspec.Struct, frozen=True):
    """Who signed in, and what proves it from now on."""

    token: str
    principal: str


class LoginRoutes:
    """The two calls; 404 without an issuer for sign-in."""

    def __init__(self, access: AccessWatch | None, emit: Callable[[Fact], None]) -> None:
        self._access = access
        self._emit = emit
        self._rates = TokenBuckets(_RATE, _BURST)

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
        routes.add("GET", "/v1/login", None, self.begin)
        routes.add("POST", "/v1/login", None, self.finish)

    async def begin(self, request: BaseRequest, _: str) -> Answer:
        """Start a sign-in at the issuer of this bridge's configuration.

        404 without such an issuer. The bridge stores nothing.
        """
        only_query_of(request)
        login = self._found()[1]
        from queuebell.bridge.access.sign_in import NotSignedIn  # needs the extra `jwt`, as an issuer does

        try:
            return Answer(200, msgspec.json.encode(await login.begin()))
        except NotSignedIn as error:
            raise Refusal(error.code, str(error)) from None

    async def finish(self, request: BaseRequest, _: str) -> Answer:
        """Exchange the issuer's code for a token."""
        only_query_of(request)
        access, login = self._found()
        from queuebell.bridge.access.sign_in import NotSignedIn

        wait = self._rates.take(sender_of(request.remote or ""), asyncio.get_running_loop().time())
        if wait:
            raise Refusal("too_many_requests", "slow down: too many sign-ins from this address", retry_after=wait)
        require_json(request)
        given = decode_json(await read_body(request, _REQUEST_BYTES), SignIn, "the body is not JSON in UTF-8")
        try:
            token, verified = await login.finish(given.code, given.verifier, given.iss, request.remote or "")
            self._greet(access, verified)
        except NotSignedIn as error:
            if error.code == "forbidden":
                address = request.remote or ""
                self._emit(AccessRefused(error.code, "", Verb.LOOK.value, "", address, f"sign-in: {error}"))
            raise Refusal(error.code, str(error)) from None
        log.info("signed in at the page", extra={"principal": verified.principal, "address": request.remote or ""})
        return Answer(200, msgspec.json.encode(SignedIn(token, verified.principal)))

    def _found(self) -> tuple[AccessWatch, Login]:
        if self._access is None or self._access.login is None:
            raise Refusal(
                "not_found", "sign-in is not available: no issuer in this bridge's configuration has a client_id"
            )
        return self._access, self._access.login

    def _greet(self, access: AccessWatch, verified: Verified) -> None:
        """Raise for a principal that is not in the access file."""
        from queuebell.bridge.access.sign_in import NotSignedIn

        if access.principal(verified.principal) is not None:
            return
        # Only a valid name is repeated, no other text of a token.
        if is_token(verified.principal):
            raise NotSignedIn(
                "forbidden",
                f"the issuer identifies you as {verified.principal}, but that name has no permissions "
                "here; an administrator of this bridge can grant some with: queuebell key create "
                f"{verified.principal} --allow 'look=*'",
            )
        raise NotSignedIn(
            "forbidden",
            f"the issuer identifies you by a name that is not valid here: {NAME_FORM}; an administrator "
            "of this bridge can choose another claim of the token (claim)",
        )
