"""The queue service as JSON (docs/reference/http.md): each route decodes, calls the store and encodes.

The store checks the values of a request (`bridge.queues.limits`) before it looks for the queue: a faulty request to a
missing queue reports its fault first. Errors never repeat the input.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, TypeVar, get_args

import msgspec

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.quota_guard import QuotaGuard, Row, listed
from queuebell.bridge.contract.calls import ABLE_HEADER, STORE_HEADER
from queuebell.bridge.contract.decode_errors import in_plain_words
from queuebell.bridge.contract.errors import BadInput, StoreError, Unsupported
from queuebell.bridge.contract.event import well_formed
from queuebell.bridge.contract.headers import HEADERS_BYTES_MAX
from queuebell.bridge.contract.times import rfc3339
from queuebell.bridge.http.api.routes import Route, Routes, Unread, key_of, number, only_query_of, query_of
from queuebell.bridge.http.api.triggers import refuse_while_draining
from queuebell.bridge.http.server.answer import Answer, Refusal
from queuebell.bridge.http.server.authorizer import Authorizer
from queuebell.bridge.http.server.body import admitted_body, announced, is_json, media_type, read_body, require_json
from queuebell.bridge.http.server.guard import Guard
from queuebell.bridge.http.server.memory_bounds import AnswerMemory, AnswerReservation
from queuebell.bridge.queues.base import (
    BATCH_MAX,
    BODY_BYTES_MAX,
    DELAY_MS_MAX,
    NEVER,
    TTL_S_MAX,
    Claim,
    Extend,
    MessageState,
    NewMessage,
    Release,
    Settled,
    Settlement,
    StoredMessage,
)
from queuebell.bridge.queues.http.shapes import (
    CreateRequest,
    ExtendItem,
    Message,
    Outcome,
    PauseRequest,
    PeekAnswer,
    PutAnswer,
    PutItem,
    PutRequest,
    ReceiveAnswer,
    ReceiveRequest,
    SettleAnswer,
    SettleRequest,
)
from queuebell.bridge.queues.http.store import MESSAGE_TYPE, differences
from queuebell.bridge.queues.limits import check_put
from queuebell.bridge.queues.served import Browsed, NoRoom
from queuebell.bridge.service.state.answers import QueueNames, QueueState
from queuebell.bridge.service.state.content import now_counted

if TYPE_CHECKING:
    from aiohttp.web import StreamResponse

    from queuebell.bridge.http.server.call import Caller
    from queuebell.bridge.service.bridge import Bridge

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

BULK_BYTES_MAX = 3 * 1024 * 1024
SMALL_BYTES_MAX = 64 * 1024
PAGE_MAX = 1000
PEEK_BYTES_MAX = 4 * 1024 * 1024
"""Of one answer to a peek; 32 of the largest bodies take less unless nearly everything is escaped."""
SEARCHED_MAX: Final = 512
"""Messages that one call with ``contains`` looks at, 32 at a time."""
CONTAINS_MAX: Final = 200
STATES: Final[tuple[MessageState, ...]] = get_args(MessageState)
_list_prefix = re.compile(r"[A-Za-z0-9_/-]{0,161}").fullmatch


_put = msgspec.json.Decoder(PutRequest)
_put_item = msgspec.json.Decoder(PutItem)
_receive = msgspec.json.Decoder(ReceiveRequest)
_settle = msgspec.json.Decoder(SettleRequest)
_create = msgspec.json.Decoder(CreateRequest)
_pause = msgspec.json.Decoder(PauseRequest)
_encode = msgspec.json.Encoder().encode
_DEFAULT_RECEIVE = ReceiveRequest()
_OK = Outcome(True)


class QueueRoutes:
    """The routes of docs/reference/http.md."""

    def __init__(self, bridge: Bridge, guard: Guard, authorizer: Authorizer, room: AnswerMemory) -> None:
        self._bridge = bridge
        self._guard = guard
        self._authorizer = authorizer
        self._store = bridge.store
        self._room = room
        self._within = QuotaGuard(bridge.store, authorizer.access)
        self._gate = bridge.gate

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
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
            ("GET", queue + "/messages/{id}", Verb.LOOK, self.look),
            ("DELETE", queue + "/messages/{id}", Verb.TAKE, self.discard),
            ("POST", queue + "/pause", Verb.MANAGE, self.pause),
            ("POST", queue + "/resume", Verb.MANAGE, self.resume),
        ):
            routes.add(method, path, verb, self._limited(route), call=True)

    def _limited(self, route: Route) -> Route:
        async def within_rate(request: Caller, queue: str) -> Answer | StreamResponse:
            if not getattr(request, "settles", False) and (wait := self._guard.seconds_to_wait(request)):
                if route in (self.put, self.put_once):
                    self._gate.count("rate")
                raise Refusal("too_many_requests", "slow down", retry_after=wait, close=request.body_exists)
            return await route(request, queue)

        limited = within_rate if self._guard.limits_rates else route
        if self._bridge.own is not None:
            return limited

        differs = differences(self._store.capabilities)

        async def named(request: Caller, queue: str) -> Answer | StreamResponse:
            answer = await limited(request, queue)
            if queue and isinstance(answer, Answer):
                answer.add_header(STORE_HEADER, self._store.fingerprint(queue))
                if differs:
                    answer.add_header(ABLE_HEADER, differs)
            return answer

        return named

    def _waiting(self, request: Caller, most: int) -> AbstractContextManager[None]:
        principal = self._authorizer.principal(request)
        return self._within.waiting(principal, 0 if principal is None else announced(request, most))

    async def put(self, request: Caller, queue: str) -> Answer:
        """Put messages on a queue.

        As JSON 1 to 32 messages, all or none; with any other Content-Type, or none, the body is one message. Creates
        the queue if it does not exist, and wakes its workers. At most 3145728 bytes. Unknown parameters of the address
        are refused.
        """
        refuse_while_draining(self._bridge)
        query = only_query_of(request, "create")
        json = is_json(request)
        with self._waiting(request, BULK_BYTES_MAX):
            raw, ticket = await admitted_body(request, BULK_BYTES_MAX, self._gate)
            try:
                messages = messages_of(raw) if json else (NewMessage(raw),)
                self._authorizer.count_messages(request, len(messages))
                async with self._within.making(self._authorizer.principal(request), queue, creates(query)):
                    if creates(query):
                        receipts = await self._store.put(queue, messages)
                    else:
                        # `create=False` would also look for similar names, which is expensive if it is repeated.
                        receipts = (await self._store.put_existing(queue, messages)).answer
            except BaseException:
                self._gate.drop(ticket)
                raise
            self._gate.end(ticket)
            return Answer(201, _encode(PutAnswer(receipts)))

    async def put_once(self, request: Caller, queue: str) -> Answer:
        """Put one message under your own id, once.

        Safe to repeat: the same body under the same id is put once, as long as the message exists and for a while after
        it. The body is the message itself, whatever its Content-Type, except for
        application/vnd.queuebell.message+json: that is one message in JSON, as in a put of several, with headers.
        Unknown parameters of the address are refused.
        """
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
                message = message_of(queue, raw, query, json)
                async with self._within.making(self._authorizer.principal(request), queue, creates(query)):
                    receipt = await self._store.put_once_plainly(queue, key, message, creates(query))
            except BaseException:
                self._gate.drop(ticket)
                raise
            self._gate.end(ticket)
        if receipt is None:
            return Answer(204)
        answer = Answer(201, _encode(PutAnswer([receipt])))
        answer.add_header("Location", f"/v1/queues/{queue}/messages/{key}")
        return answer

    async def receive(self, request: Caller, queue: str) -> Answer:
        """Receive messages from a queue.

        Returns immediately with the available messages. Each message is yours until its visibility timeout ends: delete
        it when it is done. Without a body, one message is received for 30 seconds.
        """
        raw = await _optional_json(request)
        asked = _decode(_receive, raw) if raw else _DEFAULT_RECEIVE
        with self._room.share() as share:
            received = await _read(
                share,
                lambda: self._store.receive(
                    queue, asked.max, asked.visibility_timeout_s, source=asked.wake_source, room=share
                ),
            )
            answer = _encode(
                ReceiveAnswer(
                    [_message(m) for m in received.messages],
                    received.depth,
                    received.next_visible_in_ms,
                    received.next_delayed_in_ms,
                    received.blocked or msgspec.UNSET,
                    received.depth_is_least or msgspec.UNSET,
                    received.counts or msgspec.UNSET,
                )
            )
            # Escaped text may be six times as long.
            if self._room.fits(len(answer)):
                return Answer(200, answer)
        self._store.reclaim(queue, [Claim(m.id, m.pop_receipt) for m in received.messages])
        raise _unread()

    async def settle(self, request: Caller, queue: str) -> Answer:
        """Delete messages, return them, or extend their timeouts.

        At most 32 in each list, and 3145728 bytes. Each item has its own outcome.
        """
        require_json(request)
        asked = _decode(_settle, await read_body(request, BULK_BYTES_MAX))
        settlement = Settlement(
            asked.delete,
            [Release(item.id, item.pop_receipt, item.after_ms, item.uncounted) for item in asked.release],
            [_extend(item) for item in asked.extend],
        )
        settled = await self._store.settle(queue, settlement)
        answer = SettleAnswer(_outcomes(settled.delete), _outcomes(settled.release), _outcomes(settled.extend))
        return Answer(200, _encode(answer))

    async def peek(self, request: Caller, queue: str) -> Answer:
        """Show messages without receiving them.

        Those that wait, unless `state` says otherwise. With `state`, `after`, `newest` or `contains` the answer has
        `next` where more may follow, and with `contains` it may be short or empty all the same: one call searches 512
        messages. Of a queue in a shared store only the first that wait are shown.
        """
        query = only_query_of(request, "max", "state", "after", "newest", "contains")
        limit = number(query, "max", 1, BATCH_MAX, BATCH_MAX)
        if query.keys() & {"state", "after", "newest", "contains"}:
            return await self._browse(query, queue, limit)
        with self._room.share() as share:
            found = await _read(share, lambda: self._store.peek(queue, limit, room=share))
            parts: list[msgspec.Raw] = []
            size = 0
            for message in found:
                part = _encode(_message(message, seen=True))
                if parts and size + len(part) > PEEK_BYTES_MAX:
                    break
                size += len(part)
                parts.append(msgspec.Raw(part))
            return Answer(200, _encode(PeekAnswer(parts)))

    async def _browse(self, query: dict[str, str], queue: str, limit: int) -> Answer:
        """Return a page of one state; its bodies have their room before they are read."""
        if (state := query.get("state", "waiting")) not in STATES:
            raise BadInput("bad_parameter", f"state is one of {', '.join(STATES)}")
        newest = _truth(query, "newest", "false")
        if len(text := query.get("contains", "")) > CONTAINS_MAX:
            raise BadInput("bad_parameter", f"contains has at most {CONTAINS_MAX} characters")
        size_max = (BATCH_MAX if text else limit) * (BODY_BYTES_MAX + HEADERS_BYTES_MAX)
        with self._room.share() as share:

            def ask() -> Awaitable[Browsed]:
                # Also for each further page: what was found of those before is less than PEEK_BYTES_MAX.
                if not share.take(size_max + (PEEK_BYTES_MAX if text else 0)):
                    raise NoRoom(size_max)
                wanted = BATCH_MAX if text else limit
                return self._store.browse(queue, wanted, after=after, newest=newest, state=state)

            parts: list[msgspec.Raw] = []
            after, size, looked = query.get("after", ""), 0, 0
            while True:
                page = await _read(share, ask)
                # A page may be empty although many were looked at for it.
                looked += max(len(page.messages), BATCH_MAX)
                following, place = page.following, after
                for at, message in enumerate(page.messages):
                    if text:
                        await asyncio.sleep(0)  # a search of one long body may take a millisecond
                    if not text or _contains(message, text):
                        part = _encode(_seen(message, state, page.due_in_ms[at] if page.due_in_ms else None))
                        if len(parts) == limit or (parts and page.places and size + len(part) > PEEK_BYTES_MAX):
                            return Answer(200, _encode(PeekAnswer(parts, place or msgspec.UNSET)))
                        size += len(part)
                        parts.append(msgspec.Raw(part))
                    place = page.places[at] if page.places else ""
                if not text or following is None or looked >= SEARCHED_MAX:
                    return Answer(200, _encode(PeekAnswer(parts, following or msgspec.UNSET)))
                after = following

    async def look(self, request: Caller, queue: str) -> Answer:
        """Show one message, and where it is.

        By its id, or else by the id under which it was put.
        """
        only_query_of(request)
        found = await self._store.look(queue, key_of(request))
        if found is None:
            raise _gone()
        return Answer(200, _encode(_seen(*found)))

    async def discard(self, request: Caller, queue: str) -> Answer:
        """Delete one message.

        By its id, or by the id under which it was put; what is both, of two messages, is refused without `by=id`. A
        message that a worker has stays (`conflict`).
        """
        if (by := only_query_of(request, "by").get("by", "any")) not in ("any", "id"):
            raise BadInput("bad_parameter", "by is any or id")
        done = await self._store.discard(queue, key_of(request), by_id=by == "id")
        if done.outcome == "missing":
            raise _gone()
        if done.outcome == "ambiguous":
            raise BadInput("bad_parameter", "this is the id of one message and the put id of another: add by=id")
        if done.outcome == "leased":
            raise Refusal("conflict", "a worker has this message, and decides about it: nothing was deleted")
        self._bridge.events.discarded(queue, done.id)
        return Answer(204)

    async def clear(self, request: Caller, queue: str) -> Answer:
        """Remove all messages of a queue."""
        await self._store.clear(queue)
        self._mark(request, queue, "emptied")
        return Answer(204)

    async def pause(self, request: Caller, queue: str) -> Answer:
        """Deliver no messages; puts are still accepted.

        Repeating it changes nothing; it persists across restarts.
        """
        return await self._pause(request, queue, True)

    async def resume(self, request: Caller, queue: str) -> Answer:
        """Deliver messages again, and wake workers.

        Repeating it changes nothing; it persists across restarts.
        """
        return await self._pause(request, queue, False)

    async def _pause(self, request: Caller, queue: str, paused: bool) -> Answer:
        if raw := await _optional_json(request):
            _decode(_pause, raw)
        store = self._store
        # Bridges may share this store: only it knows what another one did.
        before = store.capabilities.pause and await store.paused(queue)
        await store.pause(queue, paused)
        if before is not paused:
            self._mark(request, queue, "paused" if paused else "resumed")
        return Answer(204)

    def _mark(self, request: Caller, queue: str, what: str) -> None:
        principal = self._authorizer.principal(request)
        self._bridge.history.mark(what, "" if principal is None else principal.name, queue)

    async def create(self, request: Caller, queue: str) -> Answer:
        """Create a queue, or replace its metadata.

        Optional: the first put creates the queue.
        """
        raw = await _optional_json(request)
        async with self._within.making(self._authorizer.principal(request), queue):
            metadata = _decode(_create, raw).metadata if raw else None
            return Answer(201 if await self._store.create(queue, metadata) else 204, media="")

    async def delete(self, request: Caller, queue: str) -> Answer:
        """Remove a queue and its messages."""
        await self._store.delete(queue)
        if queue in self._bridge.history:
            self._mark(request, queue, "deleted")
        return Answer(204)

    async def list(self, request: Caller, _: str) -> Answer:
        """List the queues of this bridge's queue service."""
        query = query_of(request)
        prefix, after = query.get("prefix", ""), query.get("after", "")
        if _list_prefix(prefix) is None or _list_prefix(after) is None:
            raise BadInput("bad_parameter", "prefix and after must be parts of a queue reference")
        limit = number(query, "limit", 1, PAGE_MAX, PAGE_MAX)
        described = _truth(query, "metadata", "false")

        async def read(prefix: str, after: str, limit: int) -> list[Row]:
            if described:
                return await self._store.listing(prefix, after, limit)
            return [(name, {}) for name in await self._store.queues(prefix, after, limit)]

        found, following = await listed(read, self._authorizer.visible(request), prefix, after, limit)
        metadata = [row for _, row in found] if described else msgspec.UNSET
        return Answer(200, _encode(QueueNames([name for name, _ in found], following, metadata)))

    async def describe(self, request: Caller, queue: str) -> Answer:
        """Show the state of a queue.

        Also for a known queue in an external store.
        """
        store = self._store
        described = self._bridge.describe(queue, lambda name: self._authorizer.can_see(request, name))
        if described is None and self._bridge.own is None and await store.exists(queue):
            described = QueueState(queue=queue)
        if described is None:
            raise Refusal("queue_not_found", "there is no such queue")
        try:
            depth = await store.depth(queue)
            counts = None if depth is None else await store.counts(queue)
            if self._bridge.own is None and depth is not None and store.capabilities.pause:
                # Another bridge may have paused it: only the store knows.
                described = msgspec.structs.replace(described, paused=await store.paused(queue))
        except (StoreError, Unsupported):
            # The last known state is better than none while the file is broken, and all there is without a store.
            return Answer(200, _encode(described))
        if depth is not None and (described.depth_age_ms is None or self._bridge.own is None):
            # Counts from workers of an external store stay. The bridge's own are as of the last commit; leases may
            # have lapsed since.
            described = now_counted(described, depth, counts, self._bridge.scheduler.engine_kind)
        elif self._bridge.own is None:
            described = msgspec.structs.replace(described, exists=False, depth=None, depth_age_ms=None)
        return Answer(200, _encode(described))


async def _optional_json(request: Caller) -> bytes:
    # `curl -X POST` without a body means the defaults, whatever its Content-Type.
    if not request.body_exists:
        return b""
    require_json(request)
    return await read_body(request, SMALL_BYTES_MAX)


def messages_of(raw: bytes) -> list[NewMessage]:
    """Decode the messages of a put in JSON."""
    return [_new_message(item) for item in _decode(_put, raw).messages]


def message_of(queue: str, raw: bytes, query: Mapping[str, str], json: bool) -> NewMessage:
    """Return the one message of a put, from the raw body or from JSON; the query has priority."""
    message = _new_message(_decode(_put_item, raw)) if json else NewMessage(raw)
    if json and query:
        # The store sees only what the query leaves.
        check_put(queue, [message])
    delay = number(query, "visible_after_ms", 0, DELAY_MS_MAX, message.visible_after_ms)
    never = query.get("ttl_s") == str(NEVER)
    ttl = NEVER if never else number(query, "ttl_s", 1, TTL_S_MAX, message.ttl_s)
    return NewMessage(message.body, delay, ttl, message.headers)


def creates(query: Mapping[str, str]) -> bool:
    """Return whether a put creates a missing queue; raises `BadInput` for anything but ``true`` and ``false``."""
    # Not by `_truth`: each put asks it.
    text = query.get("create", "true")
    if text not in ("true", "false"):
        raise BadInput("bad_parameter", "create must be true or false")
    return text == "true"


def _truth(query: Mapping[str, str], name: str, default: str) -> bool:
    text = query.get(name, default)
    if text not in ("true", "false"):
        raise BadInput("bad_parameter", f"{name} must be true or false")
    return text == "true"


async def _read(share: AnswerReservation, ask: Callable[[], Awaitable[T]]) -> T:
    try:
        return await share.reading(ask)
    except NoRoom:
        raise _unread() from None


def _unread() -> Unread:
    return Unread("too many answers wait for slow clients; nothing was received, try again")


def _decode(decoder: msgspec.json.Decoder[R], raw: bytes) -> R:
    # No check of depth: no field nests, and an unknown one is refused before its value is read.
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        if well_formed(raw):
            raise BadInput("bad_parameter", in_plain_words(error, decoder.type)) from None
        raise BadInput("bad_json", "the body is not one JSON document in UTF-8") from None
    # UnicodeDecodeError is not a DecodeError.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput("bad_json", "the body is not one JSON document in UTF-8") from None


def _message(message: StoredMessage, *, seen: bool = False) -> Message:
    text: str | msgspec.UnsetType = msgspec.UNSET
    binary: bytes | msgspec.UnsetType = msgspec.UNSET
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        binary = message.body
    return Message(
        id=message.id,
        pop_receipt=msgspec.UNSET if seen else message.pop_receipt,
        body=text,
        body_base64=binary,
        dequeue_count=message.dequeue_count,
        inserted_at=rfc3339(message.inserted_at),
        expires_at=None if message.expires_at is None else rfc3339(message.expires_at),
        key=message.key,
        headers=message.headers,
    )


def _contains(message: StoredMessage, text: str) -> bool:
    return (
        text in message.id
        or text in (message.key or "")
        or text.encode() in message.body
        or any(text in part for header in message.headers.items() for part in header)
    )


def _gone() -> Refusal:
    return Refusal("message_not_found", "there is no such message: it was handled, deleted or moved, or it expired")


def _seen(message: StoredMessage, state: MessageState, due_in_ms: int | None) -> Message:
    due = msgspec.UNSET if due_in_ms is None else due_in_ms
    return msgspec.structs.replace(_message(message, seen=True), state=state, visible_in_ms=due)


def _new_message(item: PutItem) -> NewMessage:
    body = _body(item.body, item.body_base64)
    if body is None:
        raise BadInput("bad_parameter", "a message must have either body or body_base64")
    return NewMessage(body, item.visible_after_ms, item.ttl_s, item.headers)


def _extend(item: ExtendItem) -> Extend:
    return Extend(item.id, item.pop_receipt, item.visibility_timeout_s, _body(item.body, item.body_base64))


def _body(text: str | None, binary: bytes | None) -> bytes | None:
    if text is None:
        return binary
    if binary is not None:
        raise BadInput("bad_parameter", "a message must have either body or body_base64")
    return text.encode()


def _outcomes(settled: Sequence[Settled]) -> list[Outcome]:
    return [_OK if s.ok and s.pop_receipt is None else Outcome(s.ok, s.pop_receipt, s.code) for s in settled]
