"""Who sends a request, and whether they may: RFC 6750, ``Authorization: Bearer KEY``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from aiohttp import hdrs
from aiohttp.web import RequestKey, RequestPayloadError

from bridge.core.grants import Verb
from bridge.core.keys import PREFIX, Identity
from bridge.http.server.body import has_body
from bridge.http.server.problem import Refusal
from bridge.observe.facts import AccessRefused, Administered, Fact
from bridge.service.access.watch import AccessWatch, Leave

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aiohttp.web import BaseRequest

T = TypeVar("T")

CHALLENGE: Final = 'Bearer realm="queuebell"'
_IDENTITY: Final = RequestKey("identity", Identity)
_NOT_GIVEN: Final = "this bridge asks for a key: Authorization: Bearer qb_..."
_NOT_KNOWN: Final = "the key is not known here, was revoked, or has expired"
_AUDITED: Final = (Verb.MANAGE, Verb.OPERATE)


class Doorkeeper:
    """Lets in who may, where an access list is kept; without one everybody may do everything."""

    def __init__(self, access: AccessWatch | None, tell: Callable[[Fact], None]) -> None:
        self._access = access
        self._tell = tell

    @property
    def knows(self) -> Callable[[str], bool] | None:
        """What says whether a key is somebody's; None where nobody is asked for one."""
        access = self._access
        return None if access is None else lambda key: access.identify(key) is not None

    def admit(self, request: BaseRequest, verb: Verb, queue: str) -> Awaitable[None] | None:
        """Raise `Refusal` unless the sender may ``verb`` the queue; for "", any queue at all.

        Returns what has to be waited for, and does the same, where that has to be asked elsewhere.
        """
        if self._access is None:
            return None
        given = request.headers.getall(hdrs.AUTHORIZATION, [])
        scheme, _, secret = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        secret = secret.strip(" ")
        if scheme.lower() == "bearer" and not secret.startswith(PREFIX):
            return self._admit_token(self._access, request, secret, verb, queue)
        identity = self._access.identify(secret) if scheme.lower() == "bearer" else None
        self._let_in(request, identity, verb, queue)
        return None

    async def _admit_token(self, access: AccessWatch, request: BaseRequest, token: str, verb: Verb, queue: str) -> None:
        self._let_in(request, await access.identify_token(token), verb, queue)

    def _let_in(self, request: BaseRequest, identity: Identity | None, verb: Verb, queue: str) -> None:
        address = request.remote or ""
        if identity is None:
            self._tell(AccessRefused("unauthenticated", "", verb.value, queue, address))
            if hdrs.AUTHORIZATION in request.headers:
                # Which of the reasons it is, is not told: neither a form nor a date is for strangers to learn.
                detail, challenge = _NOT_KNOWN, CHALLENGE + ', error="invalid_token"'
            else:
                detail, challenge = _NOT_GIVEN, CHALLENGE
            raise Refusal("unauthenticated", detail, challenge=challenge, close=has_body(request))
        request[_IDENTITY] = identity
        if not identity.principal.may(verb, queue):
            raise self._forbidden(request, verb, queue)
        if verb in _AUDITED:
            self._tell(Administered(identity.principal.name, verb.value, queue, address, request.method))

    async def attend(self, request: BaseRequest, verb: Verb, queue: str, route: Awaitable[T]) -> T:
        """Carry out what was admitted; refuses it where its key is revoked while its body is still on the way."""
        if self._access is None or not has_body(request) or request.content.is_eof():
            return await route
        over = False

        def end() -> None:
            nonlocal over
            over = True
            request.content.set_exception(RequestPayloadError("its sender may not do this any more"))

        leave = self._access.leave(request[_IDENTITY], verb, end)
        leave.queues = frozenset({queue} - {""})
        try:
            return await route
        except RequestPayloadError:
            if over:
                self._tell(AccessRefused("unauthenticated", "", verb.value, queue, request.remote or ""))
                challenge = CHALLENGE + ', error="invalid_token"'
                raise Refusal("unauthenticated", _NOT_KNOWN, challenge=challenge, close=True) from None
            raise
        finally:
            leave.close()

    def require(self, request: BaseRequest, verb: Verb, queues: Iterable[str]) -> None:
        """Raise `Refusal` unless the sender, who was admitted, may ``verb`` each of these queues."""
        if self._access is not None:
            identity = request[_IDENTITY]
            for queue in queues:
                if not identity.principal.may(verb, queue):
                    raise self._forbidden(request, verb, queue)

    def sees(self, request: BaseRequest, queue: str) -> bool:
        """Say whether the sender, who was admitted, may know that a queue is there."""
        if self._access is None:
            return True
        identity = request[_IDENTITY]
        return identity.principal.may(Verb.LOOK, queue)

    def leave(self, request: BaseRequest, verb: Verb, end: Callable[[], None]) -> Leave | None:
        """Return what ends with the sender's grants; None where nothing does."""
        return None if self._access is None else self._access.leave(request[_IDENTITY], verb, end)

    def _forbidden(self, request: BaseRequest, verb: Verb, queue: str) -> Refusal:
        identity = request[_IDENTITY]
        self._tell(AccessRefused("forbidden", identity.principal.name, verb.value, queue, request.remote or ""))
        # The queue's name was checked before, and its sender knows it.
        return Refusal("forbidden", f"'{verb.value}' is not granted on {queue or 'any queue'}", close=has_body(request))
