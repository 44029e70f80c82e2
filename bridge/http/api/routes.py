"""The table of routes: from a request's method and path to the function that serves it.

aiohttp's router matches by regular expressions and wraps each call in middlewares; its refusals are not JSON and repeat
the input. A route here is a function of request and queue.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote

from aiohttp.web import HTTPException, RequestPayloadError

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.contract.errors import (
    STATUS_BY_CODE,
    BadInput,
    Closed,
    Overloaded,
    QueueNotFound,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from queuebell.bridge.contract.names import reference
from queuebell.bridge.http.server.answer import UNREAD_RETRY_S, Answer, Refusal, code_for_status
from queuebell.bridge.http.server.authorizer import Authorizer
from queuebell.bridge.http.server.guard import Guard, origin_form
from queuebell.bridge.queues.base import is_key
from queuebell.bridge.queues.limits import KEY_FORM

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

    from queuebell.bridge.http.server.call import Call, Caller

Route = Callable[[Any, str], Awaitable["Answer | StreamResponse"]]
Methods = dict[str, tuple[Route, Verb | None, bool]]

TRIGGERS = "/v1/triggers"
_KNOWN_MAX = 4096
_number = re.compile(r"[0-9]{1,10}", re.ASCII).fullmatch

# Text whose percent signs all begin two hexadecimal digits; `unquote` would leave others as they are.
_encoded = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*").fullmatch


class Unread(StoreUnavailable):
    """An answer is too large while clients leave others unread; nothing was done, or it was undone."""


class Routes:
    """The table: fixed paths, and paths made of a prefix, a queue reference and a verb."""

    def __init__(self, guard: Guard, authorizer: Authorizer) -> None:
        self._guard = guard
        self._authorizer = authorizer
        self._ask_all = authorizer.requires_key
        self._fixed: dict[str, Methods] = {}
        # (what stands before the reference, what stands after it) -> methods
        self._of_queues: dict[tuple[str, str], Methods] = {}
        self._known: dict[str, tuple[Methods, str]] = {}
        """By target, without a query or an id: nearly all are repeated."""

    def add(self, method: str, path: str, verb: Verb | None, route: Route, *, call: bool = False) -> None:
        """Serve ``method`` at ``path`` to senders with ``verb``; None is for everybody. ``call``: over WebSockets too.

        ``{queue}`` is the two tokens of a reference, ``{id}`` at the end what `key_of` reads.
        """
        if "{queue}" in path:
            head, _, tail = path.partition("{queue}")
            methods = self._of_queues.setdefault((head.split("/")[2], tail.strip("/")), {})
        else:
            methods = self._fixed.setdefault(path, {})
        methods[method] = (route, verb, call)
        if method == "GET" and path != "/v1/sessions":
            methods["HEAD"] = (route, verb, False)

    async def serve(self, request: BaseRequest) -> Answer | StreamResponse:
        """Serve one request; raises what `refusal_of` translates."""
        self._guard.check(request)
        return await self._serve(request)

    async def serve_call(self, call: Call) -> Answer:
        """Serve one call of a WebSocket, whose handshake has passed the guard; raises as `serve` does."""
        return cast("Answer", await self._serve(call, called=True))

    async def _serve(self, request: Caller, *, called: bool = False) -> Answer | StreamResponse:
        methods, queue = self._known.get(request.raw_path) or self._find(request.raw_path)
        found = methods.get(request.method)
        if called and not any(call for _, _, call in methods.values()):
            raise Refusal("not_found", "this call is not available on a WebSocket; send it over HTTP")
        if found is None or (called and not found[2]):
            allowed = sorted(method for method, (_, _, call) in methods.items() if call or not called)
            raise Refusal("method_not_allowed", "the method is not allowed here", allow=", ".join(allowed))
        if queue is None:
            queue = self._name(request.raw_path, methods)
        route, verb, _ = found
        if verb is None or not self._ask_all:
            return await route(request, queue)
        waits = self._authorizer.authorize(request, verb, queue)
        if waits is not None:
            await waits
        return await self._authorizer.carry_out(request, verb, queue, route(request, queue))

    def _name(self, target: str, methods: Methods) -> str:
        queue = _reference(target)
        if target.count("/") <= 5 and "?" not in target and target.startswith("/"):
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[target] = methods, queue
        return queue

    def _find(self, target: str) -> tuple[Methods, str | None]:
        """Return the methods of a path, and for a fixed path the empty reference."""
        path = _path_of(target)
        methods = self._fixed.get(path)
        if methods is not None:
            return methods, ""
        parts = path.split("/")
        # "", "v1", "queues", account, queue, verb, id
        if 5 <= len(parts) <= 7 and parts[1] == "v1":
            verb = "" if len(parts) == 5 else parts[5] or "?"
            methods = self._of_queues.get((parts[2], verb + "/{id}" if len(parts) == 7 else verb))
            if methods is not None:
                return methods, None
        raise Refusal("not_found", "there is nothing at this address")


def refusal_of(error: Exception) -> Refusal | None:
    """Return the refusal for an error, None for an internal one."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, BadInput):
        status = STATUS_BY_CODE.get(error.code, 400)
        return Refusal(error.code, str(error), status=status, retry_after=1 if status == 429 else None)
    if isinstance(error, QueueNotFound):
        return Refusal("queue_not_found", "there is no such queue")
    if isinstance(error, StoreFull):
        return Refusal("storage_full", "the storage is full; acknowledged messages are safe", retry_after=5)
    if isinstance(error, UnknownOutcome):
        # Not 503, which clients repeat: it may have been carried out.
        return Refusal("internal", "the outcome is unknown: it may have been carried out", status=500)
    if isinstance(error, Unsupported):
        return Refusal("unsupported", str(error))
    if isinstance(error, Closed):
        return Refusal("draining", "the bridge is stopping")
    if isinstance(error, Overloaded):
        return Refusal("too_many_requests", str(error), retry_after=math.ceil(error.retry_after or 1))
    if isinstance(error, Unread):
        return Refusal("too_many_requests", str(error), status=503, retry_after=UNREAD_RETRY_S)
    if isinstance(error, StoreUnavailable):
        return Refusal("storage_unavailable", "the store cannot do that now")
    if isinstance(error, RequestPayloadError):
        return Refusal("bad_parameter", "the body is malformed", close=True)
    if isinstance(error, HTTPException):
        # Only the WebSocket handshake of aiohttp raises these.
        return Refusal(code_for_status(error.status), "invalid handshake", status=error.status)
    return None


def number(query: Mapping[str, str], name: str, low: int, high: int, default: int) -> int:
    """Read a decimal number of a query string; raises `BadInput` for anything else."""
    text = query.get(name)
    if text is None:
        return default
    # int() alone takes signs, blanks, underscores and the digits of every script.
    if _number(text) is None:
        raise BadInput("bad_parameter", f"{name} must be a number from {low} to {high}")
    value = int(text)
    if not low <= value <= high:
        raise BadInput("bad_parameter", f"{name} must be from {low} to {high}")
    return value


def query_of(request: Caller) -> dict[str, str]:
    """Decode the query string; of equal names the last counts."""
    return dict(query_pairs(request, 64))


def only_query_of(request: Caller, *known: str) -> dict[str, str]:
    """Decode the query string, refusing unknown names: a misspelt one would change the effect."""
    query = query_of(request)
    if not query.keys() <= set(known):
        # Input is not repeated.
        names = f"only {' and '.join(known)}" if known else "none"
        raise Refusal("bad_parameter", f"unknown query parameter: this call takes {names}")
    return query


def key_of(request: Caller) -> str:
    """Return the decoded key at the end of a path; refuses an invalid one."""
    text = path_of(request).rpartition("/")[2]
    if "%" in text and _encoded(text) is not None:
        # An encoded slash, or bytes that are not UTF-8, make an invalid key.
        text = unquote(text, errors="replace")
    if not is_key(text):
        raise Refusal("bad_parameter", KEY_FORM)
    return text


def query_pairs(request: Caller, limit: int) -> list[tuple[str, str]]:
    """Decode the query string into at most ``limit`` pairs, in its order."""
    text = origin_form(request.raw_path).partition("?")[2]
    if not text:
        return []
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=limit)
    except ValueError:
        raise Refusal("bad_parameter", "the query string cannot be read") from None


def path_of(request: Caller) -> str:
    """Return the path of a request, not decoded."""
    return _path_of(request.raw_path)


def _path_of(target: str) -> str:
    return origin_form(target).partition("?")[0]


def _reference(target: str) -> str:
    parts = _path_of(target).split("/")
    account, queue = parts[3], parts[4]
    if "%" in account or "%" in queue:
        # Split first: an encoded slash is not a separator.
        account, queue = unquote(account), unquote(queue)
    return reference(account, queue)
