"""The store ``http://host:port``: the queue service of a bridge, used from another process.

Calls use the process's connection to the bridge; large calls, and bridges without such connections, use HTTP. A call is
never repeated at one address (L6): a second ``DELETE .../messages`` would remove messages put in between. Of several
equal bridges the next one is tried if the one before certainly did nothing, or if the call may be repeated.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import re
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from queuebell.bridge.brokers.credential import ApiKey, Credential
from queuebell.bridge.brokers.wire import NotSent, Unanswered
from queuebell.bridge.contract.address import HttpAddress, http_addresses, in_one_text
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.calls import ABLE_HEADER, CARRIES, JSON, STORE_HEADER
from queuebell.bridge.contract.errors import (
    STATUS_BY_CODE,
    BadInput,
    BadQueueReference,
    Closed,
    ConfigurationError,
    NoQueueService,
    NotAllowed,
    Overloaded,
    QueueNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from queuebell.bridge.contract.failover import TRY_S, Failover, Outcome, retry_after_s
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.contract.times import from_rfc3339
from queuebell.bridge.queues.base import (
    NEVER,
    VISIBILITY_S_MAX,
    AsyncConnection,
    Body,
    Capabilities,
    Claim,
    Counts,
    Depth,
    Extend,
    MessageState,
    NewMessage,
    PutOnceStore,
    PutReceipt,
    Received,
    Settlement,
    Settling,
    StoredMessage,
    digest_of,
    new_messages,
    refuse_connection,
)
from queuebell.bridge.queues.checked import missing_from, put_traced
from queuebell.bridge.queues.http.requests import Limits, Requests
from queuebell.bridge.queues.http.shapes import (
    ExtendItem,
    Message,
    Messages,
    PutAnswer,
    PutItem,
    PutRequest,
    ReceiveAnswer,
    ReceiveRequest,
    ReleaseItem,
    SettleRequest,
)
from queuebell.bridge.queues.limits import check_key, check_put
from queuebell.bridge.queues.served import Browsed, Looked

log = logging.getLogger("queuebell.store")

REQUEST_TIMEOUT_S = 10.0
_OURS = (b"{", b"")
"""How the body of every successful answer begins."""
_BETWEEN = (408, 429, 500, 502, 503, 504)
"""Statuses of a proxy for a service that is unavailable or busy."""
MESSAGE_TYPE: Final = "application/vnd.queuebell.message+json"
"""Media type of a put under a key whose body is a JSON message, with headers."""
_BYTES: Final = "application/octet-stream"
_EXISTING = "create=false"
_STORE, _ABLE = STORE_HEADER.lower(), ABLE_HEADER.lower()
_of_queue = re.compile(r"/v1/queues/([A-Za-z0-9_-]+/[A-Za-z0-9_-]+)", re.ASCII).match
_PAGE = 1000

T = TypeVar("T")


SERVICE: Final = Capabilities(put_once=True, uncounted_release=True, oldest_age=True, counts_leased=True, headers=True)


class _Older(Unsupported):
    """The bridge's version drops headers; raised before anything is put."""


class HttpStore(PutOnceStore):
    """The queues of the bridge at ``url``; connects at the first call.

    ``http://A:PORT,B:PORT`` are bridges that share a store: the first one that answers is used until it fails. A put
    without a key, a receive or a settlement is sent to the next only if nothing was done; reads and `put_once` also
    after a missing answer. Calls end after ``timeout`` seconds (R, 10). A call without an answer raises
    `UnknownOutcome`, one that could not be sent `StoreUnavailable`. ``api_key`` defaults to the environment's
    (`Credential`).
    """

    capabilities: Capabilities = SERVICE
    """Capabilities of a queue service; those of a shared store behind it are known after its first answer."""

    def __init__(
        self, url: str, *, timeout: float = REQUEST_TIMEOUT_S, api_key: ApiKey = None, draw: Draw = random.random
    ) -> None:
        self._base = normalised(url)
        # As given: "localhost" may mean ::1 alone.
        addresses = http_addresses(url, "store")
        self._url = in_one_text(addresses)
        self.api_key = api_key
        """As given, for the session with the same bridge."""
        self._credential = Credential.of(addresses, api_key)
        self._failover = Failover(addresses, draw)
        self._timeout = timeout
        self._requests = Requests(self._credential)
        self._closed = False
        self._known: set[HttpAddress] = set()
        """Addresses that have answered as a queue service."""
        self._carrying: set[HttpAddress] = set()
        """Addresses whose newest answer has `CARRIES`: they keep headers."""
        self._alone: dict[HttpAddress, str] = {}
        """Of several addresses: the boots of bridges with embedded queues."""
        self._engines: dict[str, str] = {}
        self.boot: str | None = None
        """The boot of the newest answer; None before the first, and always with several addresses."""

    @property
    def url(self) -> str:
        """The normalised address, the same for equal addresses."""
        return self._base

    @property
    def bridge_url(self) -> str:
        """The address of the bridge, as given."""
        return self._url

    def __str__(self) -> str:
        return self._base

    def fingerprint(self, queue: str) -> str:
        """Return 32 hex digits that identify this queue at this address, or in the shared store behind it (B11)."""
        return self._engines.get(queue) or digest_of(self._base, queue)

    def engine(self, queue: str) -> str | None:
        """Return the queue's fingerprint in a shared store, from the newest answer about it; None without one."""
        return self._engines.get(queue)

    def unnamed(self, queue: str) -> bool:
        """Return whether the queue's fingerprint is still unknown: no bridge of several has reported its store."""
        return self._failover.several and queue not in self._engines and not self._alone

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None, create: bool = True
    ) -> list[PutReceipt]:
        """Put 1 to 32 messages, all or none.

        Raises `Unsupported` for messages with headers if the bridge's version would drop them; before its first
        answer a separate request finds that out.
        """
        refuse_connection(connection)
        messages = new_messages(bodies)
        check_put(queue, messages)
        path = self._path(queue, "/messages" if create else f"/messages?{_EXISTING}")

        async def put(messages: list[NewMessage]) -> list[PutReceipt]:
            raw = encode(PutRequest([put_item(message) for message in messages]))
            carries = any(message.headers for message in messages)
            return decode(PUT, (await self._put(queue, "POST", path, raw, JSON, carries))[1]).messages

        return await put_traced(self, queue, messages, put)

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Put a message under a key; for headers see `put`."""
        refuse_connection(connection)
        check_key(key)
        (message,) = messages = new_messages([body])
        check_put(queue, messages)
        query = [
            f"{name}={value}"
            for name, value, default in (
                ("visible_after_ms", message.visible_after_ms, 0),
                ("ttl_s", message.ttl_s, NEVER),
            )
            if value != default
        ]
        query += [] if create else [_EXISTING]
        path = self._path(queue, f"/messages/{key}{'?' if query else ''}{'&'.join(query)}")

        async def put(messages: list[NewMessage]) -> PutReceipt | None:
            (message,) = messages
            raw, kind = message.body, _BYTES
            if message.headers:
                # Message headers may be larger than request headers.
                raw, kind = encode(PutItem(*body_fields(raw), headers=message.headers)), MESSAGE_TYPE
            carries = bool(message.headers)
            status, answer = await self._put(queue, "PUT", path, raw, kind, carries, repeatable=True)
            return None if status == 204 else decode(PUT, answer).messages[0]

        return await put_traced(self, queue, messages, put)

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Receive up to ``limit`` messages; ``visibility_s`` is rounded up to whole seconds."""
        request = ReceiveRequest(limit, whole_seconds(visibility_s), source)
        answer = decode(RECEIVE, await self._call("POST", queue, "/receive", encode(request)))
        return Received(
            [stored(m) for m in answer.messages],
            answer.depth,
            answer.next_visible_in_ms,
            self.boot,
            bool(answer.blocked),
            bool(answer.depth_is_least),
            answer.next_delayed_in_ms,
            answer.counts or None,
        )

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Delete, release and extend; leases are rounded up to whole seconds."""
        raw = encode(
            SettleRequest(
                [Claim(item.id, item.pop_receipt) for item in settlement.delete],
                [ReleaseItem(item.id, item.pop_receipt, item.after_ms, item.uncounted) for item in settlement.release],
                [extend_item(item) for item in settlement.extend],
            )
        )
        return decode(SETTLE, await self._call("POST", queue, "/settle", raw))

    async def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        """Return messages without leasing them."""
        answer = decode(PEEK, await self._call("GET", queue, f"/peek?max={whole(limit, 'max')}"))
        return [stored(message) for message in answer.messages]

    async def browse(
        self, queue: str, state: MessageState, limit: int = 32, after: str = "", contains: str = ""
    ) -> Browsed:
        """Return up to 32 messages of one state, and where the next page begins.

        Those only with the text ``contains`` (at most 200 characters) in body, key, id or headers; then the page may be
        empty although others follow.

        Raises `Unsupported` where the bridge's version or store shows only those that wait.
        """
        query = f"max={whole(limit, 'max')}&state={state}" + (f"&after={quote(after)}" if after else "")
        query += f"&contains={quote(contains, safe='')}" if contains else ""
        try:
            answer = decode(PEEK, await self._call("GET", queue, f"/peek?{query}"))
        except BadInput as error:
            if contains and "unknown query parameter" in str(error):
                raise Unsupported("this bridge's version does not search: upgrade it") from None
            raise
        if any(message.state != state for message in answer.messages):
            raise Unsupported("this bridge's version shows only messages that wait: upgrade it")
        due = [message.visible_in_ms or None for message in answer.messages]
        return Browsed([stored(message) for message in answer.messages], answer.next or None, due_in_ms=due)

    async def look(self, queue: str, id_or_key: str) -> Looked | None:
        """Return the message with this id, or that was put under this key; None where there is none.

        Raises `Unsupported` where the bridge's version or store cannot find one message.
        """
        check_key(id_or_key)
        try:
            found = decode(MESSAGE, await self._call("GET", queue, f"/messages/{quote(id_or_key, safe='')}"))
        except MessageNotFound:
            return None
        return Looked(stored(found), found.state or "waiting", found.visible_in_ms or None)

    async def discard(self, queue: str, id_or_key: str) -> bool | None:
        """Delete the message with this id, or that was put under this key; False if a worker has it, None without one.

        Raises `BadInput` for the id of one message that is the key of another, and `Unsupported` where the bridge's
        version or store cannot find one message.
        """
        check_key(id_or_key)
        try:
            await self._call("DELETE", queue, f"/messages/{quote(id_or_key, safe='')}")
        except MessageNotFound:
            return None
        except InConflict:
            return False
        return True

    async def depth(self, queue: str) -> Depth | None:
        """Count the messages; None for a queue that does not exist."""
        try:
            return decode(DESCRIBE, await self._call("GET", queue, "")).depth
        except QueueNotFound:
            return None

    async def counts(self, queue: str) -> Counts | None:
        """Return all counts that the service provides."""
        try:
            state = decode(DESCRIBE, await self._call("GET", queue, ""))
        except QueueNotFound:
            return None
        if state.depth is None:
            return None
        oldest_ms = None if state.oldest_ms is msgspec.UNSET else state.oldest_ms
        depth = state.depth
        return Counts(depth.visible, depth.invisible, state.depth_at_least, state.leased, state.delayed, oldest_ms)

    async def oldest_ms(self, queue: str) -> int | None:
        """Return how long the oldest message has waited. Raises `Unsupported` if the service does not report it."""
        try:
            oldest = decode(DESCRIBE, await self._call("GET", queue, "")).oldest_ms
        except QueueNotFound:
            oldest = None
        if oldest is msgspec.UNSET:
            raise Unsupported("this queue service's version does not report how long messages have waited")
        if not self.capabilities.oldest_age:
            raise Unsupported(
                "the store behind this queue service does not report how long its oldest message has waited"
            )
        return oldest

    async def clear(self, queue: str) -> None:
        """Remove every message."""
        await self._call("DELETE", queue, "/messages")

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Pause or resume a queue."""
        await self._call("POST", queue, "/pause" if paused else "/resume")

    async def paused(self, queue: str) -> bool:
        """Return whether a queue is paused."""
        try:
            return decode(DESCRIBE, await self._call("GET", queue, "")).paused
        except QueueNotFound:
            return False

    async def sessions(self, queue: str) -> int:
        """Return how many listeners have a session of the bridge for a queue, also for one that does not exist."""
        try:
            return decode(DESCRIBE, await self._call("GET", queue, "")).sessions
        except QueueNotFound:
            return 0

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Create a queue; return whether it is new."""
        raw = b"" if metadata is None else encode({"metadata": metadata})
        status, _ = await self._request("PUT", self._path(queue, ""), raw)
        return status == 201

    async def delete(self, queue: str) -> None:
        """Delete a queue and its messages."""
        await self._call("DELETE", queue, "")

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Return references, read page by page."""
        found: list[str] = []
        if whole(limit, "limit") < 1:
            raise BadInput("bad_parameter", "limit is a whole number, 1 or more")
        async for page in self._pages(prefix, after, limit):
            found += page.queues
        return found

    async def listing(self, prefix: str = "", *, limit: int = sys.maxsize) -> list[tuple[str, dict[str, str]]]:
        """Return the references of all queues that begin so, with their metadata; at most ``limit``, in their order.

        Raises `Unsupported` where the bridge's version or store does not list metadata.
        """
        found: list[tuple[str, dict[str, str]]] = []
        async for page in self._pages(prefix, "", limit, "&metadata=true"):
            if page.metadata is None:
                raise Unsupported("this bridge's version does not list metadata: upgrade it")
            found += zip(page.queues, page.metadata, strict=True)
        return found

    async def _pages(self, prefix: str, after: str, limit: int, more: str = "") -> AsyncIterator[Listing]:
        while limit > 0:
            count = min(_PAGE, limit)
            path = f"/v1/queues?prefix={quote(prefix, safe='')}&after={quote(after, safe='')}&limit={count}{more}"
            page = decode(LIST, (await self._request("GET", path))[1])
            yield page
            if page.next is None:
                break
            limit, after = limit - len(page.queues), page.next

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        self._closed = True
        await self._requests.close()

    # The request itself

    def _path(self, queue: str, rest: str) -> str:
        return f"/v1/queues/{parse_reference(queue)}{rest}"

    async def _call(self, method: str, queue: str, rest: str, raw: bytes = b"") -> bytes:
        return (await self._request(method, self._path(queue, rest), raw))[1]

    async def _put(
        self,
        queue: str,
        method: str,
        path: str,
        raw: bytes,
        media: str,
        carries: bool,
        *,
        repeatable: bool = False,
    ) -> tuple[int, bytes]:
        try:
            return await self._request(
                method, path, raw, media, repeatable=repeatable, carries=queue if carries else ""
            )
        except QueueNotFound:  # A put with create=False.
            raise await missing_from(self, queue) from None

    async def _request(
        self,
        method: str,
        path: str,
        raw: bytes = b"",
        media: str = JSON,
        *,
        repeatable: bool = False,
        carries: str = "",
    ) -> tuple[int, bytes]:
        """Send a request to one address after the other, as `Failover` decides, until one answers or time is up.

        ``carries`` is the queue of a put with headers, which skips bridges that would drop them.
        """
        if not self._failover.several:
            (where,) = self._failover.round(0.0)
            return await self._ask(where, method, path, raw, media, Limits(self._timeout), carries)
        repeatable = repeatable or method == "GET"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        told: Exception | None = None
        left = self._failover.round(loop.time())
        while left:
            where, asked = left.pop(0), loop.time()
            # If the call may be repeated, leave time for the next address.
            limit = (deadline - asked) / (2 if repeatable and left else 1)
            if limit <= 0:
                break
            try:
                answer = await self._ask(where, method, path, raw, media, Limits(limit, TRY_S), carries)
            except _Older as error:
                told = more_severe(told, error)  # It answers, and is still good for other calls.
            except (StoreError, ConfigurationError) as error:
                outcome = outcome_of(error)
                if outcome is Outcome.ANSWERED:
                    self._answered(where, loop.time())
                    raise
                told = more_severe(told, error)
                pause = getattr(error, "retry_after", None)
                if not self._failover.record(where, outcome, loop.time(), repeatable=repeatable, retry_after=pause):
                    break
            except BadInput:
                self._answered(where, loop.time())
                raise
            except asyncio.CancelledError:
                if loop.time() - asked >= TRY_S:
                    self._failover.record(where, Outcome.UNKNOWN, loop.time())
                raise
            else:
                self._answered(where, loop.time())
                return answer
        assert told is not None
        raise told

    def _answered(self, where: HttpAddress, now: float) -> None:
        self._failover.record(where, Outcome.ANSWERED, now)
        if (changed := self._failover.changed()) is not None:
            before, after = changed
            log.warning(
                "using the queue service at %s from now on; the one at %s is unavailable", after.url, before.url
            )
            if len(set(self._alone.values())) > 1:
                log.error(
                    "the bridges at %s have embedded queues of their own: a message put at one of them waits there for"
                    " workers of that bridge. Name one bridge only, or start them with a shared --store",
                    " and ".join(each.url for each in self._alone),
                )

    async def _ask(
        self,
        where: HttpAddress,
        method: str,
        path: str,
        raw: bytes,
        media: str,
        limits: Limits,
        carries: str = "",
    ) -> tuple[int, bytes]:
        if self._closed:
            raise Closed("the store is closed")
        if carries and where not in self._carrying:
            await self._require_headers(where, carries, limits)
        try:
            answer = await self._requests.ask(where, method, path, raw, limits, media)
        except NotSent as error:
            raise StoreUnavailable(f"no bridge answers at {self._shown(where)}: {error}") from error
        except Unanswered as error:
            raise UnknownOutcome(f"{self._shown(where)}: the queue service did not answer: {error}") from error
        status, body = answer.status, answer.body
        engine, differs = answer.headers.get(_STORE), answer.headers.get(_ABLE, "{}")
        boot, carrying = answer.boot, CARRIES in answer.able
        problem = None if status < 300 else problem_in(body)
        known = where in self._known
        if (problem is None and (known or body[:1] in _OURS)) or (problem and problem.code in STATUS_BY_CODE):
            self._known.add(where)
            self._name(where, path, boot, engine)
            # The rejection may come from a proxy, which does not know.
            carrying = carrying or (problem is not None and where in self._carrying)
            (self._carrying.add if carrying else self._carrying.discard)(where)
            if engine is not None or boot is not None:
                self.capabilities = SERVICE if engine is None else capabilities_of(differs)
            if not carrying:
                self.capabilities = msgspec.structs.replace(self.capabilities, headers=False)
            if carries and not carrying and problem is None:
                log.error(
                    "%s: a message was put without its headers: the bridge at %s was replaced by an older version, "
                    "which drops them. Upgrade it",
                    carries,
                    self._shown(where),
                )
        elif status not in _BETWEEN:
            # At an address that has worked, a proxy may answer for a while.
            wrong = StoreError if known else NoQueueService
            raise wrong(
                f"{self._shown(where)}: this is not a Queuebell queue service: it answered with status {status} in "
                "another format"
            )
        if problem is None:
            return status, body
        raise refusal(status, problem, retry_after_s(answer.headers.get("retry-after")))

    def _shown(self, where: HttpAddress) -> str:
        return where.url if self._failover.several else self._base

    async def _require_headers(self, where: HttpAddress, queue: str, limits: Limits) -> None:
        """Check by a short request whether an address keeps headers; raise `_Older` if not."""
        try:
            await self._ask(where, "GET", f"/v1/queues?prefix={queue}&limit=1", b"", JSON, limits)
        except UnknownOutcome as error:
            raise StoreUnavailable(f"{error}; nothing was put") from error
        except NotAllowed as error:
            if error.code != "forbidden":  # Keys without this permission get the answer's headers too.
                raise
        if where not in self._carrying:
            raise _Older(
                f"{queue}: nothing was put: the bridge at {where.url} has an older version, which drops the headers of "
                "messages. Upgrade it, or put without headers"
            )

    def _name(self, where: HttpAddress, path: str, boot: str | None, engine: str | None) -> None:
        """Remember the store behind an answer: embedded queues have a boot, a shared store has a fingerprint."""
        if boot is not None:
            self.boot = None if self._failover.several else boot
            self._alone[where] = boot
            self._engines.clear()
        elif engine is not None and (found := _of_queue(path)) is not None:
            self.boot = None
            self._alone.pop(where, None)
            if self._failover.several and self._engines.get(found[1], engine) != engine:
                log.error(
                    "the bridge at %s has %s in another store than the bridge used before, so messages put there are"
                    " not here. Start all bridges of a list with the same --store",
                    where.url,
                    found[1],
                )
            self._engines[found[1]] = engine


def differences(engine: Capabilities) -> str:
    """Return how a shared store differs from an embedded one, for `ABLE_HEADER`; empty if it does not."""
    given, usual = msgspec.structs.asdict(engine), msgspec.structs.asdict(SERVICE)
    changed = {name: value for name, value in given.items() if value != usual[name]}
    return msgspec.json.encode(changed).decode() if changed else ""


@functools.lru_cache
def capabilities_of(differs: str) -> Capabilities:
    """Return the capabilities described by `differences`; invalid text means none."""
    try:
        changed = msgspec.json.decode(differs, type=dict[str, object])
        found: Capabilities = msgspec.convert({**msgspec.structs.asdict(SERVICE), **changed}, Capabilities)
    except msgspec.DecodeError:
        return SERVICE
    return found


def normalised(url: str) -> str:
    """Return the normalised address of one or several bridges, the same for equal addresses.

    Loopback names are equal, and the order of several does not matter. Raises `ConfigurationError` for an invalid
    address.
    """
    places = {}
    for where in http_addresses(url, "store"):
        host = "127.0.0.1" if where.host == "localhost" else where.host
        places[f"{f'[{host}]' if ':' in host else host}:{where.port}"] = where.scheme
    return f"{next(iter(places.values()))}://{','.join(sorted(places))}"


class Describe(msgspec.Struct):
    """The state of a queue; older services send less."""

    depth: Depth | None = None
    depth_at_least: bool = False
    leased: int | None = None
    delayed: int | None = None
    oldest_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    paused: bool = False
    sessions: int = 0


class Listing(msgspec.Struct):
    """One page of names, and where the next begins."""

    queues: list[str]
    next: str | None = None
    metadata: list[dict[str, str]] | None = None


class Problem(msgspec.Struct):
    """A rejection; empty if it did not come from a queue service."""

    code: str = ""
    detail: str = ""


PUT: Final = msgspec.json.Decoder(PutAnswer)
RECEIVE: Final = msgspec.json.Decoder(ReceiveAnswer)
PEEK: Final = msgspec.json.Decoder(Messages)
MESSAGE: Final = msgspec.json.Decoder(Message)
SETTLE: Final = msgspec.json.Decoder(Settling)
DESCRIBE: Final = msgspec.json.Decoder(Describe)
LIST: Final = msgspec.json.Decoder(Listing)
_problem = msgspec.json.Decoder(Problem)
encode = msgspec.json.Encoder().encode


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode an answer. Raises `UnknownOutcome` if it did not come from a queue service."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownOutcome("the answer did not come from a queue service") from error


def problem_in(body: bytes) -> Problem:
    """Decode a rejection."""
    try:
        return _problem.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Problem()


class MessageNotFound(StoreError):
    """There is no such message."""


class InConflict(StoreError):
    """A worker has the message."""


def refusal(status: int, problem: Problem, retry_after: float | None) -> Exception:
    """Return the error for a rejection; ``retry_after`` in seconds, if given."""
    code, detail = problem.code, problem.detail or f"the queue service answered {status}"
    if code == "queue_not_found":
        return QueueNotFound(detail)
    if code == "message_not_found":
        return MessageNotFound(detail)
    if code == "conflict":
        return InConflict(detail)
    if code == "bad_queue_reference":
        return BadQueueReference(detail)
    if code in STATUS_BY_CODE and (status in (400, 413) or code == "message_conflict"):
        return BadInput(code, detail)
    if code == "unsupported":
        return Unsupported(detail)
    if code == "method_not_allowed":
        return Unsupported("this bridge's version cannot do this: upgrade it")
    if status == 507:
        return StoreFull(detail)
    if status in (500, 502, 504):
        return UnknownOutcome(detail)
    if status == 429:
        return Overloaded(detail, retry_after)
    if status in (408, 503):
        return StoreUnavailable(detail, retry_after)
    if code in ("unauthenticated", "forbidden"):
        return NotAllowed(code, detail)
    # 403, 421: the queue service rejects this client.
    return StoreError(f"{detail} (status {status})")


def outcome_of(error: Exception) -> Outcome:
    """Return what an error means for the choice of the next bridge."""
    if isinstance(error, UnknownOutcome):
        return Outcome.UNKNOWN
    if isinstance(error, StoreUnavailable | NoQueueService):
        return Outcome.NOT_DONE
    if isinstance(error, NotAllowed) or type(error) is StoreError:
        return Outcome.REFUSED
    return Outcome.ANSWERED


def more_severe(told: Exception | None, error: Exception) -> Exception:
    """Return the error of several bridges that the caller gets.

    Most severe is an unknown outcome, then a rejection, as an equal bridge would reject the call too, then "try again".
    """
    order = (StoreUnavailable, NotAllowed, UnknownOutcome)
    weights = [sum(isinstance(each, kind) << place for place, kind in enumerate(order)) for each in (told, error)]
    return error if told is None or weights[1] > weights[0] else told


def stored(message: Message) -> StoredMessage:
    """Return a received message. Raises `UnknownOutcome` if its times are invalid."""
    try:
        inserted = from_rfc3339(message.inserted_at)
        expires = None if message.expires_at is None else from_rfc3339(message.expires_at)
    except ValueError as error:
        raise UnknownOutcome("the answer did not come from a queue service") from error
    body = message.body.encode() if message.body else message.body_base64 or b""
    return StoredMessage(
        message.id,
        message.pop_receipt or "",
        body,
        message.dequeue_count,
        inserted,
        expires,
        message.key,
        message.headers,
    )


def put_item(message: NewMessage) -> PutItem:
    """Return a message of a put. Raises `BadInput` for values that JSON would change."""
    delay, ttl = whole(message.visible_after_ms, "visible_after_ms"), whole(message.ttl_s, "ttl_s")
    return PutItem(*body_fields(message.body), delay, ttl, message.headers)


def body_fields(body: object) -> tuple[str | None, bytes | None]:
    """Return a body as text, or else as bytes, which are sent as base64. Raises `BadInput` if it is not bytes."""
    if not isinstance(body, bytes):
        raise BadInput("bad_parameter", "a body is bytes")
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, body


def extend_item(item: Extend) -> ExtendItem:
    """Return an extension of a settlement. Raises `BadInput` as `whole_seconds` does."""
    seconds = whole_seconds(item.visibility_s)
    return ExtendItem(
        item.id, item.pop_receipt, seconds, *((None, None) if item.body is None else body_fields(item.body))
    )


def whole(value: object, name: str) -> int:
    """Return a whole number. Raises `BadInput` for any other value."""
    # JSON would accept True and 1.5; both are mistakes of the caller.
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadInput("bad_parameter", f"{name} is a whole number")
    return value


def whole_seconds(seconds: float) -> int:
    """Return a lease rounded up to whole seconds, at least 1 (B2). Raises `BadInput`."""
    if type(seconds) not in (int, float) or not 0 < seconds <= VISIBILITY_S_MAX:
        raise BadInput("bad_parameter", f"a visibility timeout is above 0 and at most {VISIBILITY_S_MAX} seconds")
    return max(1, math.ceil(seconds - 1e-9))
