"""The Azure Queue front door: every gate that a request passes, in order, and the operation behind them.

Address, cross-origin rules, authentication, permission, version, conditions, verb: whoever is not known learns of a
fault in the address and nothing else.
"""

from __future__ import annotations

import asyncio
import datetime
import math
from collections.abc import Awaitable, Callable, Mapping

from bridge.contract.errors import (
    BadInput,
    Closed,
    Overloaded,
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreFull,
    UnknownOutcome,
)
from bridge.put_gate import PutGate
from bridge.queue_service.azure import cors
from bridge.queue_service.azure.address import Address, Resource, locate
from bridge.queue_service.azure.admitted import AdmittedPuts
from bridge.queue_service.azure.authorization import Authorizer, Signed
from bridge.queue_service.azure.errors import AzureError
from bridge.queue_service.azure.exchange import Call, Reply, Request
from bridge.queue_service.azure.messages import MessageOperations
from bridge.queue_service.azure.operation import Operation
from bridge.queue_service.azure.queues import QueueOperations
from bridge.queue_service.azure.record import Records
from bridge.queue_service.azure.versions import version_of
from bridge.queues.own import OwnStore

EMULATOR_ACCOUNT = "devstoreaccount1"
TIMEOUT_S_MAX = 30

_CONDITIONS = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")
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
        self._carry_out: dict[Operation, Callable[[Call], Awaitable[Reply]]] = {
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

    async def handle(self, request: Request) -> Reply:
        """Carry out one request; raises `AzureError` for whatever is refused."""
        if request.method not in _VERBS:
            raise AzureError("InvalidHttpVerb")
        at = locate(request.target, request.host)
        origin = request.headers.get("Origin")
        if origin is None:
            if request.method == "OPTIONS":
                raise AzureError("MissingRequiredHeader", details={"HeaderName": "Origin"})
            return await self._serve(request, at)
        rules = self._records.properties(at.account).cors
        if request.method == "OPTIONS":
            method = request.headers.get("Access-Control-Request-Method")
            if method is None:
                raise AzureError("MissingRequiredHeader", details={"HeaderName": "Access-Control-Request-Method"})
            asked = request.headers.get("Access-Control-Request-Headers", "")
            return Reply(200, b"", cors.preflight(rules, origin, method, asked))
        allowed = cors.actual(rules, origin, request.method)
        if allowed is None:
            self._check_origin(request, at, origin)
            return await self._serve(request, at)
        try:
            reply = await self._serve(request, at)
        except AzureError as error:
            # Without them the page's script would be told of a failed connection instead.
            error.headers = {**error.headers, **allowed}
            raise
        reply.headers = {**reply.headers, **allowed}
        return reply

    async def _serve(self, request: Request, at: Address) -> Reply:
        try:
            return await self._authorized(request, at)
        except QueuebellError as error:
            raise _translated(error) from error

    async def _authorized(self, request: Request, at: Address) -> Reply:
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
            raise _busy("The server is stopping; nothing was put. Try again.")
        call = Call(request, at, version, int(now * 1000))
        seconds = None
        if "timeout" in query:
            # Past 30 s the service itself takes it for 30.
            seconds = min(call.number("timeout", 0, 2**31 - 1, None), TIMEOUT_S_MAX) or TIMEOUT_S_MAX
        carry_out = self._carry_out[operation]
        if operation is Operation.PUT_MESSAGE and self._gate is not None:
            return await self._admitted.carry_out(call, carry_out, self._gate, seconds)
        if seconds is None:
            return await carry_out(call)
        try:
            async with asyncio.timeout(seconds):
                return await carry_out(call)
        except TimeoutError:
            raise AzureError("OperationTimedOut") from None

    def _check_origin(self, request: Request, at: Address, origin: str) -> None:
        """Refuse a foreign web page that no rule lets in, where everybody knows the key of the account.

        It could sign requests with the emulator's key, and so put work on a loopback bridge.
        """
        scheme = "https" if request.secure else "http"
        if at.account == EMULATOR_ACCOUNT and origin.lower() != f"{scheme}://{request.authority}".lower():
            raise AzureError(
                "AuthorizationFailure", "Requests from web pages of another origin need a CORS rule of this account."
            )


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


def _busy(message: str) -> AzureError:
    return AzureError("ServerBusy", message, headers={"Retry-After": "1"})


def _translated(error: QueuebellError) -> AzureError:
    if isinstance(error, QueueNotFound):
        return AzureError("QueueNotFound")
    if isinstance(error, UnknownOutcome):
        return AzureError("OperationTimedOut", "The outcome is unknown: it may have been carried out.")
    if isinstance(error, Overloaded):
        seconds = max(1, math.ceil(error.retry_after or 0))
        message = "The server has more to do than it can; nothing was put. Try again."
        return AzureError("ServerBusy", message, headers={"Retry-After": str(seconds)})
    if isinstance(error, StoreFull):
        return _busy("There is no room for more; what was acknowledged is safe. Messages can be received and deleted.")
    if isinstance(error, Closed):
        return _busy("The server is stopping.")
    if isinstance(error, BadInput):
        return _busy("There are too many queues.") if error.status == 503 else AzureError("InvalidInput")
    if isinstance(error, StoreError):
        return _busy("The store cannot do that now.")
    return AzureError("InternalError")
