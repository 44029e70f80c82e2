"""The Azure Queue front door: every gate that a request passes, in order, and the operation behind them.

Address, cross-origin rules, authentication, permission, version, conditions, verb: whoever is not known learns of a
fault in the address and nothing else.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from bridge.contract.errors import QueuebellError
from bridge.put_gate import PutGate
from bridge.queue_service.azure import cors
from bridge.queue_service.azure.address import Address, Resource, locate
from bridge.queue_service.azure.admitted import AdmittedPuts
from bridge.queue_service.azure.authorization import Authorizer, Signed
from bridge.queue_service.azure.errors import AzureError, busy, translated
from bridge.queue_service.azure.exchange import Asked, Call, Reply, Request
from bridge.queue_service.azure.messages import MessageOperations
from bridge.queue_service.azure.operation import Operation
from bridge.queue_service.azure.queues import QueueOperations
from bridge.queue_service.azure.record import Records
from bridge.queue_service.azure.versions import version_of
from bridge.queues.own import OwnStore

EMULATOR_ACCOUNT = "devstoreaccount1"
TIMEOUT_S_MAX = 30

_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
_OWN_SITES = frozenset({"same-origin", "none"})
"""What a browser says of its own pages, and of an address that its user typed."""
_VERBS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "MERGE", "TRACE", "CONNECT"})
_SECONDARY = frozenset(
    {
        Operation.LIST_QUEUES,
        Operation.GET_SERVICE_PROPERTIES,
        Operation.GET_SERVICE_STATS,
        Operation.GET_QUEUE_METADATA,
        Operation.GET_QUEUE_ACL,
        Operation.PEEK_MESSAGES,
    }
)

Key = tuple[Resource, str, str]
_OPERATIONS: Mapping[Key, Mapping[str, Operation]] = {
    (Resource.ACCOUNT, "list", ""): {"GET": Operation.LIST_QUEUES},
    (Resource.ACCOUNT, "properties", "service"): {
        "GET": Operation.GET_SERVICE_PROPERTIES,
        "PUT": Operation.SET_SERVICE_PROPERTIES,
    },
    (Resource.ACCOUNT, "stats", "service"): {"GET": Operation.GET_SERVICE_STATS},
    (Resource.QUEUE, "", ""): {"PUT": Operation.CREATE_QUEUE, "DELETE": Operation.DELETE_QUEUE},
    (Resource.QUEUE, "metadata", ""): {
        "GET": Operation.GET_QUEUE_METADATA,
        "HEAD": Operation.GET_QUEUE_METADATA,
        "PUT": Operation.SET_QUEUE_METADATA,
    },
    (Resource.QUEUE, "acl", ""): {
        "GET": Operation.GET_QUEUE_ACL,
        "HEAD": Operation.GET_QUEUE_ACL,
        "PUT": Operation.SET_QUEUE_ACL,
    },
    (Resource.MESSAGES, "", ""): {
        "GET": Operation.GET_MESSAGES,
        "POST": Operation.PUT_MESSAGE,
        "DELETE": Operation.CLEAR_MESSAGES,
    },
    (Resource.MESSAGE, "", ""): {"PUT": Operation.UPDATE_MESSAGE, "DELETE": Operation.DELETE_MESSAGE},
}


class AzureFront:
    """The front door on one store.

    ``wall`` gives seconds since the epoch, for the skew of signatures; ``draining`` says whether puts are refused,
    ``gate`` whether there is room for one more.
    """

    def __init__(
        self,
        store: OwnStore,
        authorizer: Authorizer,
        records: Records,
        *,
        wall: Callable[[], float],
        draining: Callable[[], bool] = lambda: False,
        gate: PutGate | None = None,
    ) -> None:
        self._authorizer = authorizer
        self._records = records
        self._wall = wall
        self._draining = draining
        self._gate = gate
        self._admitted = AdmittedPuts()
        messages, queues = MessageOperations(store), QueueOperations(store, records)
        self._messages = messages
        self._carry_out: dict[Operation, Callable[[Call], Asked | Coroutine[Any, Any, Reply]]] = {
            Operation.LIST_QUEUES: queues.list_queues,
            Operation.GET_SERVICE_PROPERTIES: queues.get_properties,
            Operation.SET_SERVICE_PROPERTIES: queues.set_properties,
            Operation.GET_SERVICE_STATS: queues.get_stats,
            Operation.CREATE_QUEUE: queues.create,
            Operation.DELETE_QUEUE: queues.delete,
            Operation.GET_QUEUE_METADATA: queues.get_metadata,
            Operation.SET_QUEUE_METADATA: queues.set_metadata,
            Operation.GET_QUEUE_ACL: queues.get_acl,
            Operation.SET_QUEUE_ACL: queues.set_acl,
            Operation.PUT_MESSAGE: messages.put,
            Operation.GET_MESSAGES: messages.get,
            Operation.PEEK_MESSAGES: messages.peek,
            Operation.DELETE_MESSAGE: messages.delete,
            Operation.UPDATE_MESSAGE: messages.update,
            Operation.CLEAR_MESSAGES: messages.clear,
        }

    def limit_answers(self, fits: Callable[[int], bool]) -> None:
        """Give large answers only where ``fits`` lets in so many bytes; a receive that it does not is undone."""
        self._messages.fits = fits

    def begin(self, request: Request) -> Asked | Coroutine[Any, Any, Reply]:
        """Let one request in, and return what is to be awaited for its answer.

        Raises `AzureError` for whatever is refused, here or there. The coroutine is for the caller to run; what is
        `Asked` is under way.
        """
        if request.method not in _VERBS:
            raise AzureError("InvalidHttpVerb")
        at = locate(request.target, request.host)
        origin = request.headers.get("origin")
        if origin is not None:
            return self._from_page(request, at, origin)
        if request.method == "OPTIONS":
            raise AzureError("MissingRequiredHeader", details={"HeaderName": "Origin"})
        if at.account == EMULATOR_ACCOUNT:
            _check_site(request)
        try:
            begun = self._authorized(request, at)
        except QueuebellError as error:
            raise translated(error) from error
        return begun if isinstance(begun, Asked) else _translating(begun)

    async def _from_page(self, request: Request, at: Address, origin: str) -> Reply:
        rules = self._records.properties(at.account).cors
        if request.method == "OPTIONS":
            method = request.headers.get("access-control-request-method")
            if method is None:
                raise AzureError("MissingRequiredHeader", details={"HeaderName": "Access-Control-Request-Method"})
            asked = request.headers.get("access-control-request-headers", "")
            return Reply(200, b"", cors.preflight(rules, origin, method, asked))
        allowed = cors.actual(rules, origin, request.method)
        if allowed is None:
            self._check_origin(request, at, origin)
            allowed = {}
        try:
            try:
                reply = await self._authorized(request, at)
            except QueuebellError as error:
                raise translated(error) from error
        except AzureError as error:
            # Without them the page's script would be told of a failed connection instead.
            error.headers = {**error.headers, **allowed}
            raise
        reply.headers = {**reply.headers, **allowed}
        return reply

    def _authorized(self, request: Request, at: Address) -> Asked | Coroutine[Any, Any, Reply]:
        query = at.query
        now = self._wall()
        grant = self._authorizer.authorize(
            Signed(
                request.method,
                at.path,
                query,
                request.headers,
                at.account,
                at.secondary,
                at.path_style,
                at.queue,
                request.secure,
                request.address,
            ),
            datetime.datetime.fromtimestamp(now, datetime.UTC),
        )
        operation = _operation(request.method, at)
        if not grant.allows(operation, at.queue):
            raise AzureError("AuthorizationPermissionMismatch")
        version = version_of(request.headers, query)
        for name in _CONDITIONS:
            if request.headers.get(name):
                raise AzureError("ConditionHeadersNotSupported", details={"HeaderName": name})
        if at.secondary and operation not in _SECONDARY:
            raise AzureError("InsufficientAccountPermissions", "Write operations are not allowed at this endpoint.")
        if operation is Operation.PUT_MESSAGE and self._draining():
            raise busy("The server is stopping; nothing was put. Try again.")
        call = Call(request, at, version, int(now * 1000))
        seconds = None
        if "timeout" in query:
            # Past 30 s the service itself takes it for 30.
            seconds = min(call.number("timeout", 0, 2**31 - 1, None), TIMEOUT_S_MAX) or TIMEOUT_S_MAX
        carry_out = self._carry_out[operation]
        if operation is Operation.PUT_MESSAGE and self._gate is not None:
            return self._admitted.carry_out(call, carry_out, self._gate, seconds)
        return carry_out(call) if seconds is None else _timed(carry_out, call, seconds)

    def _check_origin(self, request: Request, at: Address, origin: str) -> None:
        """Refuse a foreign web page that no rule lets in, where everybody knows the key of the account.

        It could sign requests with the emulator's key, and so put work on a loopback bridge.
        """
        if at.account == EMULATOR_ACCOUNT and origin.lower() != _own_origin(request):
            raise _foreign()


def _check_site(request: Request) -> None:
    """Refuse what a foreign page's image or link asks for: a GET by which a browser names no origin.

    It says where such a request comes from all the same; one that is older says it by the page's address.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site not in _OWN_SITES:
            raise _foreign()
        return
    referer = request.headers.get("referer")
    if referer is not None and "/".join(referer.split("/", 3)[:3]).lower() != _own_origin(request):
        raise _foreign()


def _own_origin(request: Request) -> str:
    return f"{'https' if request.secure else 'http'}://{request.authority}".lower()


def _foreign() -> AzureError:
    return AzureError(
        "AuthorizationFailure", "Requests from web pages of another origin need a CORS rule of this account."
    )


async def _timed(carry_out: Callable[[Call], Awaitable[Reply]], call: Call, seconds: int) -> Reply:
    try:
        async with asyncio.timeout(seconds):
            return await carry_out(call)
    except TimeoutError:
        raise AzureError("OperationTimedOut") from None


async def _translating(begun: Awaitable[Reply]) -> Reply:
    try:
        return await begun
    except QueuebellError as error:
        raise translated(error) from error


def _operation(method: str, at: Address) -> Operation:
    query = at.query
    methods = _OPERATIONS.get((at.resource, query.get("comp", "").lower(), query.get("restype", "").lower()))
    if methods is None:
        for name in ("comp", "restype"):
            if name in query:
                raise AzureError(
                    "InvalidQueryParameterValue",
                    details={"QueryParameterName": name, "QueryParameterValue": query[name][:64]},
                )
        if at.resource is Resource.ACCOUNT:
            raise AzureError("MissingRequiredQueryParameter", details={"QueryParameterName": "comp"})
        raise AzureError("InvalidUri")
    operation = methods.get(method)
    if operation is None:
        raise AzureError("UnsupportedHttpVerb", headers={"Allow": ", ".join(sorted(methods))})
    if operation is Operation.GET_MESSAGES and query.get("peekonly", "").lower() == "true":
        return Operation.PEEK_MESSAGES
    return operation
