"""The queue service's routes: HTTP around `bridge.http.api.native`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import msgspec

from bridge.access.grants import Verb
from bridge.access.quota_guard import QuotaGuard
from bridge.contract.calls import ABLE_HEADER, STORE_HEADER
from bridge.contract.errors import StoreError, Unsupported
from bridge.http.api.ingress import refuse_while_draining
from bridge.http.api.native import NativeApi, creates, message_of, messages_of
from bridge.http.api.routes import Route, Routes, key_of, only_query_of, query_of
from bridge.http.server.answer import Answer
from bridge.http.server.authorizer import Authorizer
from bridge.http.server.body import admitted_body, announced, has_body, is_json, media_type, read_body, require_json
from bridge.http.server.guard import Guard
from bridge.http.server.overload.answer_room import AnswerRoom
from bridge.http.server.problem import Refusal
from bridge.queues.base import BODY_BYTES_MAX, NewMessage
from bridge.queues.http.store import MESSAGE_TYPE, differences
from bridge.service.state.answers import QueueState
from bridge.service.state.content import now_counted

if TYPE_CHECKING:
    from aiohttp.web import StreamResponse

    from bridge.http.server.call import Caller
    from bridge.service.bridge import Bridge

BULK_BYTES_MAX = 3 * 1024 * 1024
SMALL_BYTES_MAX = 64 * 1024

_encode = msgspec.json.Encoder().encode


class QueueRoutes:
    """docs/http.md, call by call."""

    def __init__(self, bridge: Bridge, guard: Guard, authorizer: Authorizer, room: AnswerRoom) -> None:
        self._bridge = bridge
        self._guard = guard
        self._authorizer = authorizer
        self._api = NativeApi(bridge.store, room)
        self._within = QuotaGuard(bridge.store, authorizer.access)
        self._gate = bridge.gate

    def add_to(self, routes: Routes) -> None:
        """Put the routes into the table."""
        queue = "/v1/queues/{queue}"
        for method, path, verb, route in (
            ("GET", "/v1/queues", Verb.LOOK, self.list),
            ("GET", queue, Verb.LOOK, self.describe),
            ("PUT", queue, Verb.MANAGE, self.create),
            ("DELETE", queue, Verb.MANAGE, self.delete),
            ("POST", queue + "/messages", Verb.PUT, self.put),
            ("PUT", queue + "/messages/{id}", Verb.PUT, self.put_once),
            ("DELETE", queue + "/messages", Verb.MANAGE, self.clear),
            ("POST", queue + "/receive", Verb.TAKE, self.receive),
            ("POST", queue + "/settle", Verb.TAKE, self.settle),
            ("GET", queue + "/peek", Verb.LOOK, self.peek),
            ("POST", queue + "/pause", Verb.MANAGE, self.pause),
            ("POST", queue + "/resume", Verb.MANAGE, self.resume),
        ):
            routes.add(method, path, verb, self._limited(route), call=True)

    def _limited(self, route: Route) -> Route:
        async def within_rate(request: Caller, queue: str) -> Answer | StreamResponse:
            if not getattr(request, "settles", False) and (wait := self._guard.seconds_to_wait(request)):
                if route in (self.put, self.put_once):
                    self._gate.count("rate")
                raise Refusal("too_many_requests", "slow down", retry_after=wait, close=has_body(request))
            return await route(request, queue)

        limited = within_rate if self._guard.limits_rates else route
        if self._bridge.own is not None:
            return limited

        differs = differences(self._bridge.store.capabilities)

        async def named(request: Caller, queue: str) -> Answer | StreamResponse:
            answer = await limited(request, queue)
            if queue and isinstance(answer, Answer):
                answer.add_header(STORE_HEADER, self._bridge.store.fingerprint(queue))
                if differs:
                    answer.add_header(ABLE_HEADER, differs)
            return answer

        return named

    def _waiting(self, request: Caller, most: int) -> AbstractContextManager[None]:
        principal = self._authorizer.principal(request)
        return self._within.waiting(principal, 0 if principal is None else announced(request, most))

    async def put(self, request: Caller, queue: str) -> Answer:
        """Put messages; that is its own trigger."""
        refuse_while_draining(self._bridge)
        query = only_query_of(request, "create")
        json = is_json(request)
        with self._waiting(request, BULK_BYTES_MAX):
            raw, ticket = await admitted_body(request, BULK_BYTES_MAX, self._gate)
            try:
                messages = messages_of(raw) if json else (NewMessage(raw),)
                self._authorizer.put(request, len(messages))
                async with self._within.making(self._authorizer.principal(request), queue, creates(query)):
                    made = await self._api.put(queue, messages, query)
            except BaseException:
                self._gate.drop(ticket)
                raise
            self._gate.end(ticket)
            return Answer(201, made)

    async def put_once(self, request: Caller, queue: str) -> Answer:
        """Put the one message that the path names, unless it was put before."""
        refuse_while_draining(self._bridge)
        key = key_of(request)
        json = media_type(request) == MESSAGE_TYPE
        query = only_query_of(request, "create", "visible_after_ms", "ttl_s")
        most = BULK_BYTES_MAX if json else BODY_BYTES_MAX
        with self._waiting(request, most):
            try:
                raw, ticket = await admitted_body(request, most, self._gate)
            except Refusal as refusal:
                if refusal.code != "too_large":
                    raise
                raise Refusal("message_too_large", refusal.detail, close=True) from None
            try:
                message = message_of(raw, query, json)
                async with self._within.making(self._authorizer.principal(request), queue, creates(query)):
                    made = await self._api.put_once(queue, key, query, message)
            except BaseException:
                self._gate.drop(ticket)
                raise
            self._gate.end(ticket)
        if made is None:
            return Answer(204)
        answer = Answer(201, made)
        answer.add_header("Location", f"/v1/queues/{queue}/messages/{key}")
        return answer

    async def receive(self, request: Caller, queue: str) -> Answer:
        """Take messages."""
        return Answer(200, await self._api.receive(queue, await _optional_json(request)))

    async def settle(self, request: Caller, queue: str) -> Answer:
        """Delete, release and extend."""
        require_json(request)
        return Answer(200, await self._api.settle(queue, await read_body(request, BULK_BYTES_MAX)))

    async def peek(self, request: Caller, queue: str) -> Answer:
        """Look without taking."""
        return Answer(200, await self._api.peek(queue, query_of(request)))

    async def clear(self, request: Caller, queue: str) -> Answer:
        """Remove all messages."""
        await self._api.clear(queue)
        return Answer(204)

    async def pause(self, request: Caller, queue: str) -> Answer:
        """Give nothing out from now on."""
        await self._api.pause(queue, await _optional_json(request), True)
        return Answer(204)

    async def resume(self, request: Caller, queue: str) -> Answer:
        """Give out again, and wake whoever waits."""
        await self._api.pause(queue, await _optional_json(request), False)
        return Answer(204)

    async def create(self, request: Caller, queue: str) -> Answer:
        """Make a queue."""
        raw = await _optional_json(request)
        async with self._within.making(self._authorizer.principal(request), queue):
            return Answer(201 if await self._api.create(queue, raw) else 204, media="")

    async def delete(self, request: Caller, queue: str) -> Answer:
        """Remove a queue."""
        await self._api.delete(queue)
        return Answer(204)

    async def list(self, request: Caller, _: str) -> Answer:
        """List queues, one page: of those that the sender may see."""
        return Answer(200, await self._api.queues(query_of(request), self._authorizer.seen(request)))

    async def describe(self, request: Caller, queue: str) -> Answer:
        """Say how a queue stands."""
        store = self._bridge.store
        described = self._bridge.describe(queue, lambda name: self._authorizer.sees(request, name))
        if described is None and self._bridge.own is None and await store.exists(queue):
            described = QueueState(queue=queue)
        if described is None:
            raise Refusal("queue_not_found", "there is no such queue")
        try:
            depth = await store.depth(queue)
            counts = None if depth is None else await store.counts(queue)
            if self._bridge.own is None and depth is not None and store.capabilities.pause:
                # Whichever bridge was told of the pause: the engine alone knows.
                described = msgspec.structs.replace(described, paused=await store.paused(queue))
        except (StoreError, Unsupported):
            # While the file is broken, what the bridge knew last is better than nothing; and without a store it is all.
            return Answer(200, _encode(described))
        if depth is not None and (described.depth_age_ms is None or self._bridge.own is None):
            # What listeners counted elsewhere stands. The bridge's own picture is as of the last commit; a lease may
            # have lapsed since.
            described = now_counted(described, depth, counts, self._bridge.scheduler.engine_kind)
        elif self._bridge.own is None:
            described = msgspec.structs.replace(described, exists=False, depth=None, depth_age_ms=None)
        return Answer(200, _encode(described))


async def _optional_json(request: Caller) -> bytes:
    # `curl -X POST` without a body means the defaults, whatever Content-Type it says.
    if not has_body(request):
        return b""
    require_json(request)
    return await read_body(request, SMALL_BYTES_MAX)
