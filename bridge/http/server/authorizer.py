"""Authentication, permissions and rates of a request (RFC 6750, ``Authorization: Bearer KEY``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, cast

from aiohttp import hdrs
from aiohttp.web import RequestKey, RequestPayloadError

from queuebell.bridge.access.access_watch import AccessWatch, End, Permit
from queuebell.bridge.access.grants import EVERYTHING, Principal, Reach, Verb
from queuebell.bridge.access.issuer import Mistimed
from queuebell.bridge.access.keys import PREFIX, Identity
from queuebell.bridge.access.quota_guard import PastLimit
from queuebell.bridge.contract.address import sender_of
from queuebell.bridge.http.server.answer import Refusal
from queuebell.bridge.http.server.body import unread
from queuebell.bridge.http.server.call import Call
from queuebell.bridge.observe.facts import AccessRefused, Administered, Fact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aiohttp.web import BaseRequest

    from queuebell.bridge.http.server.call import Caller
    from queuebell.bridge.http.server.connection import Connection

T = TypeVar("T")

CHALLENGE: Final = 'Bearer realm="queuebell"'

_IDENTITY: Final = RequestKey("identity", Identity)
_WAIT: Final = RequestKey("wait", int)
_NOT_GIVEN: Final = (
    "this bridge requires a key: Authorization: Bearer qb_...; Queuebell's commands and clients read it from "
    "QUEUEBELL_API_KEY, or from the file that QUEUEBELL_API_KEY_FILE names"
)
_NOT_KNOWN: Final = "the key is unknown, was revoked, or has expired"
_PAST_RATE: Final = "slow down: this principal exceeds its request rate"
TRIGGERED_ANYWAY: Final = "slow down; the known queues were triggered anyway, unknown ones were not"
_UNKNOWN_CERTIFICATE: Final = "no principal matches this certificate, and no key was given"
_AUDITED: Final = (Verb.MANAGE, Verb.OPERATE)


class Authorizer:
    """Admits requests by the access file; without one everything is permitted."""

    def __init__(self, access: AccessWatch | None, emit: Callable[[Fact], None]) -> None:
        self.requires_key: Final = access is not None
        """Whether requests need a key."""
        self.access: Final = access
        self._emit = emit

    def authorize(self, request: Caller, verb: Verb | None, queue: str) -> Awaitable[None] | None:
        """Raise `Refusal` unless the sender may ``verb`` the queue (for "" any queue) within its limits.

        For the verb None any known sender is admitted. If the decision takes time, an awaitable is returned that does
        the same. A trigger past its sender's rate is admitted, and `past_rate` returns True for it.
        """
        access = self.access
        if access is None:
            return None
        if isinstance(request, Call):
            return self._refuse(request, self._check(access, request, request.identity, verb, queue))
        given = request.headers.getall(hdrs.AUTHORIZATION, None)
        if given is None:
            certificate = cast("Connection", request.protocol).certificate
            identity = None if certificate is None else access.identify_certificate(certificate)
            return self._refuse(request, self._check(access, request, identity, verb, queue))
        scheme, _, secret = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        secret = secret.strip(" ")
        if scheme.lower() == "bearer" and not secret.startswith(PREFIX):
            return self._admit_token(access, request, secret, verb, queue)
        identity = access.identify(secret) if scheme.lower() == "bearer" else None
        return self._refuse(request, self._check(access, request, identity, verb, queue))

    async def _admit_token(
        self, access: AccessWatch, request: Caller, token: str, verb: Verb | None, queue: str
    ) -> None:
        identity, why = None, ""
        try:
            identity = await access.identify_token(token)
        except Mistimed as error:
            why = str(error)
        waits = self._refuse(request, self._check(access, request, identity, verb, queue, why))
        if waits is not None:
            await waits

    def _check(
        self,
        access: AccessWatch,
        request: Caller,
        identity: Identity | None,
        verb: Verb | None,
        queue: str,
        why: str = "",
    ) -> Refusal | None:
        address = request.remote or ""
        if identity is None:
            wanted = "connect" if verb is None else verb.value
            self._emit(AccessRefused("unauthenticated", "", wanted, queue, address, why))
            return _unauthenticated(request, why, close=unread(request))
        request[_IDENTITY] = identity
        principal = identity.principal
        now = access.clock()
        allowance = access.allowance(principal)
        # Settlements never wait: their leases would lapse.
        wait = 0 if isinstance(request, Call) and request.settles else allowance.request(now)
        if verb is None:
            if wait:
                self._emit_limit(request, Verb.TAKE, queue)
                return Refusal("too_many_requests", _PAST_RATE, retry_after=wait, close=unread(request))
            return None
        if not principal.may(verb, queue):
            return self._forbidden(request, verb, queue)
        if not wait and verb is Verb.PUT:
            wait = allowance.put(now)
        if wait:
            self._emit_limit(request, verb, queue)
            if verb is not Verb.RING:
                return Refusal("too_many_requests", _PAST_RATE, retry_after=wait, close=unread(request))
            request[_WAIT] = wait
        elif verb in _AUDITED:
            self._emit(Administered(principal.name, verb.value, queue, address, request.method))
        return None

    def _refuse(self, request: Caller, refusal: Refusal | None) -> Awaitable[None] | None:
        """Raise a refusal, or return an awaitable that raises it later if there were too many."""
        if refusal is None:
            return None
        assert self.access is not None
        identity = request.get(_IDENTITY)
        # No principal's name has a slash.
        who = "/" + sender_of(request.remote or "") if identity is None else identity.principal.name
        held = self.access.refusals.hold_s(who, self.access.clock())
        if held:
            return _refuse_later(request, refusal, held)
        raise refusal

    def principal(self, request: Caller) -> Principal | None:
        """Return the admitted sender; None without an access file."""
        return None if self.access is None else request[_IDENTITY].principal

    def count_messages(self, request: Caller, messages: int) -> None:
        """Count the further messages of an admitted put."""
        if messages > 1 and self.access is not None:
            self.access.allowance(request[_IDENTITY].principal).put_more(self.access.clock(), messages - 1)

    def connect(self, request: BaseRequest) -> None:
        """Count the admitted sender's connection as a session or stream until it ends.

        Raises `PastLimit` if its principal has as many as it may.
        """
        connection = cast("Connection", request.protocol)
        if self.access is not None and connection.counted is None:
            connection.counted = self.access.connect(request[_IDENTITY].principal)

    def past_rate(self, request: Caller) -> bool:
        """Return whether an admitted trigger is past the rate of its sender."""
        return _WAIT in request

    async def carry_out(self, request: Caller, verb: Verb, queue: str, route: Awaitable[T]) -> T:
        """Run the route of an admitted request.

        Refuses it if its key is revoked while its body arrives, or if its sender is at a limit; and a trigger past the
        rate of its sender, after it has taken effect.
        """
        try:
            answer = await (self._watched(request, verb, queue, route) if unread(request) else route)
        except PastLimit as past:
            self._emit_limit(request, past.verb, queue)
            refusal = Refusal("too_many_requests", str(past), retry_after=past.retry_after_s, close=unread(request))
        except Refusal as refused:
            # A refusal by `require` counts as one by `admit`: the queue was only named in the body or query.
            if refused.code != "forbidden":
                raise
            refusal = refused
        else:
            wait = request.get(_WAIT, 0)
            if not wait:
                return answer
            refusal = Refusal("too_many_requests", TRIGGERED_ANYWAY, retry_after=wait)
        waits = self._refuse(request, refusal)
        if waits is not None:
            await waits
        raise refusal

    async def _watched(self, request: Caller, verb: Verb, queue: str, route: Awaitable[T]) -> T:
        assert self.access is not None
        over = ""

        def end(code: str) -> None:
            nonlocal over
            over = code
            cast("BaseRequest", request).content.set_exception(
                RequestPayloadError("the sender no longer has this permission")
            )

        permit = self.access.permit(request[_IDENTITY], verb, end)
        permit.queues = frozenset({queue} - {""})
        try:
            return await route
        except RequestPayloadError:
            # Not delayed: it happens once per connection, which ends with it.
            if over == "forbidden":
                raise self._forbidden(request, verb, queue) from None
            if over:
                self._emit(AccessRefused("unauthenticated", "", verb.value, queue, request.remote or ""))
                raise _unauthenticated(request, close=True) from None
            raise
        finally:
            permit.close()

    def require(self, request: Caller, verb: Verb, queues: Iterable[str]) -> None:
        """Raise `Refusal` unless the admitted sender may ``verb`` each of these queues."""
        if self.access is not None:
            identity = request[_IDENTITY]
            for queue in queues:
                if not identity.principal.may(verb, queue):
                    raise self._forbidden(request, verb, queue)

    def can_see(self, request: Caller, queue: str) -> bool:
        """Return whether the admitted sender may know that a queue exists."""
        if self.access is None:
            return True
        identity = request[_IDENTITY]
        return identity.principal.may(Verb.LOOK, queue)

    def visible(self, request: Caller) -> Reach:
        """Return the queues that the admitted sender may see."""
        return EVERYTHING if self.access is None else request[_IDENTITY].principal.reach(Verb.LOOK)

    def permit(self, request: BaseRequest, verb: Verb | None, end: End) -> Permit | None:
        """Return a permit that ends with the sender's permission; None without an access file."""
        return None if self.access is None else self.access.permit(request[_IDENTITY], verb, end)

    def _emit_limit(self, request: Caller, verb: Verb, queue: str) -> None:
        name = request[_IDENTITY].principal.name
        self._emit(AccessRefused("limit", name, verb.value, queue, request.remote or ""))

    def _forbidden(self, request: Caller, verb: Verb, queue: str) -> Refusal:
        identity = request[_IDENTITY]
        self._emit(AccessRefused("forbidden", identity.principal.name, verb.value, queue, request.remote or ""))
        # The queue's name was validated, and its sender knows it.
        return Refusal("forbidden", f"'{verb.value}' is not granted on {queue or 'any queue'}", close=unread(request))


def _unauthenticated(request: Caller, why: str = "", *, close: bool) -> Refusal:
    detail, challenge = _NOT_GIVEN, CHALLENGE
    if why:
        # A client of a WebSocket sees no body, but the challenge (RFC 6750 3).
        detail, challenge = why, CHALLENGE + f', error="invalid_token", error_description="{why}"'
    elif isinstance(request, Call) or request.headers.get(hdrs.AUTHORIZATION, "").lower().startswith("bearer "):
        # Unknown, revoked and expired keys get the same answer: strangers learn neither forms nor dates.
        detail, challenge = _NOT_KNOWN, CHALLENGE + ', error="invalid_token"'
    elif cast("Connection", request.protocol).certificate is not None:
        detail = _UNKNOWN_CERTIFICATE
    return Refusal("unauthenticated", detail, challenge=challenge, close=close)


async def _refuse_later(request: Caller, refusal: Refusal, held: float) -> None:
    await cast("Connection", request.protocol).delay_refusal(held)
    raise refusal
