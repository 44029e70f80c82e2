"""The Azure endpoint: each check that a request has to pass, in order, and the operation behind them.

Address, cross-origin rules, authentication, permission, version, conditions, verb: an unknown sender learns of a fault
in the address and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from queuebell.bridge.access.grants import Principal
from queuebell.bridge.access.put_gate import PutGate, Ticket
from queuebell.bridge.access.quota_guard import PastLimit, QuotaGuard
from queuebell.bridge.contract.errors import QueuebellError
from queuebell.bridge.http.azure import cors
from queuebell.bridge.http.azure.accounts import EMULATOR_ACCOUNT
from queuebell.bridge.http.azure.auth import AccountPrincipals, SignatureAuthorizer
from queuebell.bridge.http.azure.errors import AzureError, busy, translated
from queuebell.bridge.http.azure.exchange import Operation, Reply, Request, Resource, version_of
from queuebell.bridge.http.azure.messages import DOCUMENT_BYTES_MAX, MessageOperations
from queuebell.bridge.http.azure.queues import QueueOperations
from queuebell.bridge.http.azure.records import JsonRecords
from queuebell.bridge.http.server.guard import from_foreign_page
from queuebell.bridge.http.server.memory_bounds import AnswerMemory
from queuebell.bridge.observe.history import History
from queuebell.bridge.queues.served import ServedStore

TIMEOUT_S_MAX = 30

_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
VERBS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "MERGE", "TRACE", "CONNECT"})
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
CarryOut = Callable[[Request], Coroutine[Any, Any, Reply]]
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


_MARKS: Final = {Operation.CLEAR_MESSAGES: "emptied", Operation.DELETE_QUEUE: "deleted"}


class AzureFront:
    """The Azure endpoint on one store.

    ``wall`` gives seconds since the epoch, for the skew of signatures; ``draining`` returns whether puts are refused,
    ``gate`` admits puts, ``principals`` has the permissions of accounts; None permits everything.
    """

    def __init__(
        self,
        store: ServedStore,
        authorizer: SignatureAuthorizer,
        records: JsonRecords,
        *,
        wall: Callable[[], float],
        draining: Callable[[], bool] = lambda: False,
        gate: PutGate | None = None,
        principals: AccountPrincipals | None = None,
        history: History | None = None,
    ) -> None:
        self._authorizer = authorizer
        self._history = history
        self._records = records
        self._wall = wall
        self._draining = draining
        self._gate = gate
        self._principals = principals
        self._within = QuotaGuard(store, None if principals is None else principals.access)
        self._admitted = AdmittedPuts(self._within)
        messages, queues = MessageOperations(store), QueueOperations(store, records, principals)
        self._messages = messages
        self._carry_out: dict[Operation, CarryOut] = {
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

    def limit_answers(self, room: AnswerMemory) -> None:
        """Bound large answers by ``room``; a receive without room is undone."""
        self._messages.room = room

    async def handle(self, request: Request) -> Reply:
        """Carry out one request; raises `AzureError` for a refused one."""
        origin = request.headers.get("origin")
        if origin is not None:
            return await self._from_page(request, origin)
        if request.method == "OPTIONS":
            raise _no_cors_header("Origin")
        if request.account == EMULATOR_ACCOUNT and from_foreign_page(request.headers, _own_origin(request)):
            raise _foreign()
        varying = cors.varying(self._records.properties(request.account).cors, request.method)
        return await self._answer(request, varying)

    async def _from_page(self, request: Request, origin: str) -> Reply:
        rules = self._records.properties(request.account).cors
        if request.method == "OPTIONS":
            method = request.headers.get("access-control-request-method")
            if method is None:
                raise _no_cors_header("Access-Control-Request-Method")
            asked = request.headers.get("access-control-request-headers", "")
            return Reply(200, b"", cors.preflight(rules, origin, method, asked))
        allowed = cors.actual(rules, origin, request.method)
        if allowed is None:
            allowed = cors.varying(rules, request.method)
            if request.account == EMULATOR_ACCOUNT and origin.lower() != _own_origin(request):
                # That account's key is public: a foreign page could sign with it, and put work on this bridge.
                raise _foreign(allowed)
        return await self._answer(request, allowed)

    async def _answer(self, request: Request, headers: dict[str, str]) -> Reply:
        try:
            try:
                reply = await self._authorized(request)
            except QueuebellError as error:
                raise translated(error) from error
        except AzureError as error:
            # Without them the page's script would see a failed connection instead.
            error.headers = {**error.headers, **headers}
            raise
        reply.headers = {**reply.headers, **headers}
        return reply

    async def _authorized(self, request: Request) -> Reply:
        query = request.query
        now = self._wall()
        operation = self._permitted(request, datetime.datetime.fromtimestamp(now, datetime.UTC))
        version = version_of(request.headers, query)
        for name in _CONDITIONS:
            if request.headers.get(name):
                raise AzureError("ConditionHeadersNotSupported", details={"HeaderName": name})
        if request.secondary and operation not in _SECONDARY:
            raise AzureError("InsufficientAccountPermissions", "Write operations are not allowed.")
        if operation is Operation.PUT_MESSAGE and self._draining():
            raise busy("The server is stopping; nothing was put. Try again.")
        request.version, request.now_ms = version, int(now * 1000)
        seconds = None
        if "timeout" in query:
            # The service itself caps it at 30 s.
            seconds = min(request.number("timeout", 0, 2**31 - 1, None), TIMEOUT_S_MAX) or TIMEOUT_S_MAX
        try:
            return await self._carried_out(operation, request, seconds)
        except PastLimit as past:
            assert self._principals is not None
            raise self._principals.past_limit(past, request, operation) from None

    async def _carried_out(self, operation: Operation, request: Request, seconds: int | None) -> Reply:
        carry_out = self._carry_out[operation]
        principal = None if self._principals is None else self._principals.principal(request.account)
        if operation is Operation.PUT_MESSAGE and self._gate is not None:
            return await self._admitted.carry_out(request, carry_out, self._gate, seconds, principal)
        try:
            async with (
                asyncio.timeout(seconds),
                self._within.making(principal, request.reference, operation is Operation.CREATE_QUEUE),
            ):
                reply = await carry_out(request)
        except TimeoutError:
            raise AzureError("OperationTimedOut") from None
        if operation in _MARKS and self._history is not None and request.reference in self._history:
            self._history.mark(_MARKS[operation], "" if principal is None else principal.name, request.reference)
        return reply

    def _permitted(self, request: Request, now: datetime.datetime) -> Operation:
        """Return the operation if both its signature and the account's principal allow it."""
        principals, operation = self._principals, None
        known = False
        try:
            grant = self._authorizer.authorize(request, now)
            known = True
            operation = _operation(request)
            if not grant.allows(operation, request.queue):
                raise AzureError("AuthorizationPermissionMismatch")
        except AzureError as error:
            if principals is not None and error.status in (401, 403):
                principals.refused("forbidden" if known else "unauthenticated", error, request, operation)
            raise
        if principals is not None:
            principals.authorize(request, operation)
        return operation


def _own_origin(request: Request) -> str:
    return f"{'https' if request.secure else 'http'}://{request.authority}".lower()


def _no_cors_header(name: str) -> AzureError:
    return AzureError("InvalidHeaderValue", "A required CORS header is not present.", details={"HeaderName": name})


def _foreign(headers: dict[str, str] | None = None) -> AzureError:
    return AzureError(
        "AuthorizationFailure",
        "Requests from web pages of another origin need a CORS rule of this account.",
        headers=headers,
    )


def _operation(request: Request) -> Operation:
    query = request.query
    methods = _OPERATIONS.get((request.resource, query.get("comp", "").lower(), query.get("restype", "").lower()))
    if methods is None:
        for name in ("comp", "restype"):
            if name in query:
                raise AzureError(
                    "InvalidQueryParameterValue",
                    details={"QueryParameterName": name, "QueryParameterValue": query[name][:64]},
                )
        if request.resource is Resource.ACCOUNT:
            raise AzureError("MissingRequiredQueryParameter", details={"QueryParameterName": "comp"})
        raise AzureError("InvalidUri")
    operation = methods.get(request.method)
    if operation is None:
        raise AzureError("UnsupportedHttpVerb", headers={"Allow": ", ".join(sorted(methods))})
    if operation is Operation.GET_MESSAGES and query.get("peekonly", "").lower() == "true":
        return Operation.PEEK_MESSAGES
    return operation


class AdmittedPuts:
    """Carries out puts, and keeps those whose callers have stopped waiting."""

    def __init__(self, within: QuotaGuard) -> None:
        self._within = within
        self._under_way: set[asyncio.Task[Reply]] = set()

    async def carry_out(
        self, call: Request, put: CarryOut, gate: PutGate, seconds: int | None, principal: Principal | None
    ) -> Reply:
        """Admit a put before its body is read, and wait for it at most ``seconds``.

        Raises `Overloaded`, `PastLimit` of its ``principal``, and `AzureError` (``OperationTimedOut``); a put that has
        reached the store continues.
        """
        admitted = _Admitted(call, gate, self._within, principal)
        if seconds is None:
            try:
                reply = await put(call)
            except BaseException:
                admitted.drop()
                raise
            admitted.end()
            return reply
        # After a time-out its bytes still count until the store is done with it.
        task = asyncio.create_task(put(call), name="queuebell-azure-put")
        self._under_way.add(task)

        def ended(task: asyncio.Task[Reply]) -> None:
            self._under_way.discard(task)
            if task.cancelled() or task.exception() is not None:
                admitted.drop()
            else:
                admitted.end()

        task.add_done_callback(ended)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except TimeoutError:
            raise AzureError("OperationTimedOut") from None
        finally:
            if not admitted.begun:
                task.cancel()


class _Admitted:
    """One admitted put; its request reports to the gate when its body has been read."""

    __slots__ = ("_gate", "_held", "_read", "_ticket", "begun")

    def __init__(self, request: Request, gate: PutGate, within: QuotaGuard, principal: Principal | None) -> None:
        self.begun = False
        self._gate = gate
        self._read = request.read
        size = _announced(request)
        with contextlib.ExitStack() as stack:
            stack.enter_context(within.waiting(principal, size))
            self._ticket = gate.admit(size, arriving=not request.whole)
            self._held = stack.pop_all()
        request.read = self._counted

    def end(self) -> None:
        self._held.close()
        self._gate.end(self._ticket)

    def drop(self) -> None:
        self._held.close()
        self._gate.drop(self._ticket)

    async def _counted(self, limit: int, _: Ticket | None) -> bytes:
        raw = await self._read(limit, self._ticket)
        self._gate.begin(self._ticket, len(raw))
        self.begun = True
        return raw


def _announced(request: Request) -> int:
    # A chunked body, which no SDK sends for a message, counts as the largest possible.
    text = request.headers.get("content-length", "")
    return min(int(text), DOCUMENT_BYTES_MAX) if text.isascii() and text.isdigit() else DOCUMENT_BYTES_MAX
