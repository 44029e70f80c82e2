"""Who sends a request, whether they may, and whether it is too much: RFC 6750, ``Authorization: Bearer KEY``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, cast

from aiohttp import hdrs
from aiohttp.web import RequestKey, RequestPayloadError

from bridge.core.grants import Verb
from bridge.core.jwks import Mistimed
from bridge.core.keys import PREFIX, Identity
from bridge.core.rate import TokenBuckets
from bridge.http.server.body import unread
from bridge.http.server.problem import Refusal
from bridge.observe.facts import AccessRefused, Administered, Fact
from bridge.service.access.watch import AccessWatch, End, Leave

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aiohttp.web import BaseRequest

    from bridge.core.limits import Allowance
    from bridge.http.server.connection import Connection

T = TypeVar("T")

CHALLENGE: Final = 'Bearer realm="queuebell"'
REFUSALS_PER_SECOND: Final = 50.0
"""So many refusals of one principal, or of one address where nobody knows who it is, are answered at once."""
REFUSALS_AT_ONCE: Final = 100
HELD_S: Final = 1.0
"""So long the answer to any further one is held, and its connection not read: a flood waits, and costs nothing."""

_IDENTITY: Final = RequestKey("identity", Identity)
_WAIT: Final = RequestKey("wait", int)
_NOT_GIVEN: Final = "this bridge asks for a key: Authorization: Bearer qb_..."
_NOT_KNOWN: Final = "the key is not known here, was revoked, or has expired"
_PAST_RATE: Final = "slow down: this principal may not come so often"
MARKED: Final = "slow down; the queue was marked all the same"
_STRANGE: Final = "no principal here is named by this certificate, and no key was given"
_CONNECTION_RETRY_S: Final = 5
_AUDITED: Final = (Verb.MANAGE, Verb.OPERATE)


class Doorkeeper:
    """Lets in who may, where an access list is kept; without one everybody may do everything."""

    def __init__(self, access: AccessWatch | None, tell: Callable[[Fact], None]) -> None:
        self.asks: Final = access is not None
        """Whether anybody is asked for a key; where not, nothing here is needed for a request."""
        self._access = access
        self._tell = tell
        self._refusals = TokenBuckets(REFUSALS_PER_SECOND, REFUSALS_AT_ONCE)

    @property
    def knows(self) -> Callable[[str], bool] | None:
        """What says whether a key is somebody's who may put now; None where nobody is asked for one.

        It counts nothing: `admit` does. Whoever is past its rate takes the place of others no more than a stranger.
        """
        access = self._access
        if access is None:
            return None

        def known(key: str) -> bool:
            identity = access.identify(key)
            return identity is not None and access.allowance(identity.principal).may_put(access.clock())

        return known

    def admit(self, request: BaseRequest, verb: Verb, queue: str) -> Awaitable[None] | None:
        """Raise `Refusal` unless the sender may ``verb`` the queue, within its limits; for "", any queue at all.

        Returns what has to be waited for, and does the same, where that has to be asked elsewhere. A trigger past its
        sender's rate is let in, and `triggered` tells.
        """
        access = self._access
        if access is None:
            return None
        given = request.headers.getall(hdrs.AUTHORIZATION, None)
        if given is None:
            certificate = cast("Connection", request.protocol).certificate
            identity = None if certificate is None else access.identify_certificate(certificate)
            return self._told(request, self._judge(access, request, identity, verb, queue))
        scheme, _, secret = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        secret = secret.strip(" ")
        if scheme.lower() == "bearer" and not secret.startswith(PREFIX):
            return self._admit_token(access, request, secret, verb, queue)
        identity = access.identify(secret) if scheme.lower() == "bearer" else None
        return self._told(request, self._judge(access, request, identity, verb, queue))

    async def _admit_token(self, access: AccessWatch, request: BaseRequest, token: str, verb: Verb, queue: str) -> None:
        identity, why = None, ""
        try:
            identity = await access.identify_token(token)
        except Mistimed as error:
            why = str(error)
        waits = self._told(request, self._judge(access, request, identity, verb, queue, why))
        if waits is not None:
            await waits

    def _judge(
        self,
        access: AccessWatch,
        request: BaseRequest,
        identity: Identity | None,
        verb: Verb,
        queue: str,
        why: str = "",
    ) -> Refusal | None:
        address = request.remote or ""
        if identity is None:
            self._tell(AccessRefused("unauthenticated", "", verb.value, queue, address, why))
            return _unknown(request, why, close=unread(request))
        request[_IDENTITY] = identity
        principal = identity.principal
        now = access.clock()
        allowance = access.allowance(principal)
        wait = allowance.request(now)
        if not principal.may(verb, queue):
            return self._forbidden(request, verb, queue)
        if not wait and verb is Verb.PUT:
            wait = allowance.put(now)
        if wait:
            self._tell(AccessRefused("limit", principal.name, verb.value, queue, address))
            if verb is not Verb.RING:
                return Refusal("too_many_requests", _PAST_RATE, retry_after=wait, close=unread(request))
            request[_WAIT] = wait
        elif verb in _AUDITED:
            self._tell(Administered(principal.name, verb.value, queue, address, request.method))
        return None

    def _told(self, request: BaseRequest, refusal: Refusal | None) -> Awaitable[None] | None:
        """Raise a refusal, or return what does so later where there were too many."""
        if refusal is None:
            return None
        assert self._access is not None
        identity = request.get(_IDENTITY)
        # No principal's name has a slash.
        who = f"/{request.remote}" if identity is None else identity.principal.name
        if self._refusals.take(who, self._access.clock()):
            return _later(request, refusal)
        raise refusal

    def allowance(self, request: BaseRequest) -> Allowance | None:
        """Return what the sender, who was admitted, uses of its limits; None where there are none to keep."""
        return None if self._access is None else self._access.allowance(request[_IDENTITY].principal)

    def put(self, request: BaseRequest, messages: int) -> None:
        """Count the messages of a put that was admitted as one."""
        if messages > 1 and self._access is not None:
            self._access.allowance(request[_IDENTITY].principal).put_more(self._access.clock(), messages - 1)

    def connect(self, request: BaseRequest) -> None:
        """Count the connection of the sender, who was admitted, as a session or stream until it ends.

        Raises `Refusal` where its principal has as many as it may.
        """
        allowance = self.allowance(request)
        connection = cast("Connection", request.protocol)
        if allowance is None or connection.counted is not None:
            return
        if not allowance.connect():
            raise self.over(
                request,
                Verb.TAKE,
                "",
                f"at most {allowance.limits.connections} sessions and streams of one principal",
                _CONNECTION_RETRY_S,
            )
        connection.counted = allowance.disconnect

    def over(self, request: BaseRequest, verb: Verb, queue: str, detail: str, retry_after: int) -> Refusal:
        """Return the refusal of a request past a limit of the sender, who was admitted, and tell of it."""
        principal = request[_IDENTITY].principal
        self._tell(AccessRefused("limit", principal.name, verb.value, queue, request.remote or ""))
        return Refusal("too_many_requests", detail, retry_after=retry_after, close=unread(request))

    def makes(self, request: BaseRequest, queue: str) -> bool:
        """Say whether a queue is one of those that the sender, who was admitted, may make."""
        if self._access is None:
            return True
        principal = request[_IDENTITY].principal
        return principal.reach(Verb.PUT).covers(queue) or principal.reach(Verb.MANAGE).covers(queue)

    async def attend(self, request: BaseRequest, verb: Verb, queue: str, route: Awaitable[T]) -> T:
        """Carry out what was admitted.

        Refuses it where its key is revoked while its body is still on the way, and a trigger past the rate of its
        sender once it is marked.
        """
        answer = await (self._watched(request, verb, queue, route) if unread(request) else route)
        wait = request.get(_WAIT, 0)
        if wait:
            waits = self._told(request, Refusal("too_many_requests", MARKED, retry_after=wait))
            if waits is not None:
                await waits
        return answer

    async def _watched(self, request: BaseRequest, verb: Verb, queue: str, route: Awaitable[T]) -> T:
        assert self._access is not None
        over = ""

        def end(code: str) -> None:
            nonlocal over
            over = code
            request.content.set_exception(RequestPayloadError("its sender may not do this any more"))

        leave = self._access.leave(request[_IDENTITY], verb, end)
        leave.queues = frozenset({queue} - {""})
        try:
            return await route
        except RequestPayloadError:
            # Never held: it comes once for each connection, which ends with it.
            if over == "forbidden":
                raise self._forbidden(request, verb, queue) from None
            if over:
                self._tell(AccessRefused("unauthenticated", "", verb.value, queue, request.remote or ""))
                raise _unknown(request, close=True) from None
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

    def leave(self, request: BaseRequest, verb: Verb, end: End) -> Leave | None:
        """Return what ends with the sender's grants; None where nothing does."""
        return None if self._access is None else self._access.leave(request[_IDENTITY], verb, end)

    def _forbidden(self, request: BaseRequest, verb: Verb, queue: str) -> Refusal:
        identity = request[_IDENTITY]
        self._tell(AccessRefused("forbidden", identity.principal.name, verb.value, queue, request.remote or ""))
        # The queue's name was checked before, and its sender knows it.
        return Refusal("forbidden", f"'{verb.value}' is not granted on {queue or 'any queue'}", close=unread(request))


def _unknown(request: BaseRequest, why: str = "", *, close: bool) -> Refusal:
    detail, challenge = _NOT_GIVEN, CHALLENGE
    if why:
        # Where a client sees no body, as of a WebSocket's handshake, it has the challenge (RFC 6750 3).
        detail, challenge = why, CHALLENGE + f', error="invalid_token", error_description="{why}"'
    elif hdrs.AUTHORIZATION in request.headers:
        # Which of the reasons it is, is not told: neither a form nor a date is for strangers to learn.
        detail, challenge = _NOT_KNOWN, CHALLENGE + ', error="invalid_token"'
    elif cast("Connection", request.protocol).certificate is not None:
        detail = _STRANGE
    return Refusal("unauthenticated", detail, challenge=challenge, close=close)


async def _later(request: BaseRequest, refusal: Refusal) -> None:
    await cast("Connection", request.protocol).hold(HELD_S)
    raise refusal
