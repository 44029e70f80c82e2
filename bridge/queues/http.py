"""The store behind ``http://host:port``: the queue service of a bridge, in any other process.

Calls go over the wire of the process, large ones and those to whom no wire can be opened over HTTP. No retry of any
kind at one address (L6): a repeated ``DELETE .../messages`` removes what was put in between. Of several equal bridges
the next is asked where the one before did nothing for certain, or where asking twice is as good as once.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import re
from collections.abc import Sequence
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from bridge.brokers.credential import ApiKey, Credential
from bridge.brokers.wire import NotSent, Unanswered
from bridge.contract.address import HttpAddress, http_addresses, in_one_text
from bridge.contract.backoff import Draw
from bridge.contract.calls import ABLE_HEADER, CARRIES, JSON, STORE_HEADER
from bridge.contract.errors import (
    STATUS_BY_CODE,
    BadInput,
    Closed,
    ConfigurationError,
    NoQueueService,
    NotAllowed,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from bridge.contract.failover import TRY_S, Failover, Outcome, retry_after_s
from bridge.contract.names import parse_reference
from bridge.queues.base import (
    NEVER,
    AsyncConnection,
    Body,
    Capabilities,
    Claim,
    Counts,
    Depth,
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
from bridge.queues.http_answers import (
    DESCRIBE,
    LIST,
    PEEK,
    PUT,
    RECEIVE,
    SETTLE,
    body_fields,
    decode,
    encode,
    extend_item,
    outcome_of,
    problem_in,
    put_item,
    refusal,
    stored,
    weightier,
    whole,
    whole_seconds,
)
from bridge.queues.http_requests import Limits, Requests
from bridge.queues.http_shapes import PutItem, PutRequest, ReceiveRequest, ReleaseItem, SettleRequest
from bridge.queues.limits import check_key, check_put
from bridge.queues.missing import missing_from
from bridge.queues.sending import sent

log = logging.getLogger("queuebell.store")

REQUEST_TIMEOUT_S = 10.0
_OURS = (b"{", b"")
"""How the body of every answer begins that is no refusal."""
_BETWEEN = (408, 429, 500, 502, 503, 504)
"""What a proxy says for a service that is away or busy."""
MESSAGE_TYPE: Final = "application/vnd.queuebell.message+json"
"""Of a put under a key whose body is no message as it is, but one in JSON as a put of several has it."""
_BYTES: Final = "application/octet-stream"
_EXISTING = "create=false"
_of_queue = re.compile(r"/v1/queues/([A-Za-z0-9_-]+/[A-Za-z0-9_-]+)", re.ASCII).match
_PAGE = 1000

T = TypeVar("T")


SERVICE: Final = Capabilities(put_once=True, uncounted_release=True, oldest_age=True, counts_leased=True, headers=True)


class _Older(Unsupported):
    """A bridge is of a version that drops headers; raised before anything is put."""


class HttpStore(PutOnceStore):
    """The queues of the bridge at ``url``; connects at the first call.

    ``http://A:PORT,B:PORT`` are bridges that share a store: the first that answers is kept, and the next asked when it
    is gone. What only one of them may carry out (a put without a key, a receive, a settlement) is asked of the next
    only if nothing was done; a look and `put_once` also after an answer that did not come.
    Calls end after ``timeout`` seconds (R, 10). A call that was sent and not answered raises `UnknownOutcome`; one
    that could not be sent `StoreUnavailable`. ``api_key`` is for a bridge that asks for one; without it that of the
    environment is used (`Credential`).
    """

    capabilities: Capabilities = SERVICE
    """What a queue service can do; of one on an engine that can do less that is known after its first answer."""

    def __init__(
        self, url: str, *, timeout: float = REQUEST_TIMEOUT_S, api_key: ApiKey = None, draw: Draw = random.random
    ) -> None:
        self._base = normalised(url)
        # As they were given: "localhost" may be listened on at ::1 alone.
        addresses = http_addresses(url, "store")
        self._url = in_one_text(addresses)
        self.api_key = api_key
        """What was given as such, for the session with the same bridge."""
        self._credential = Credential.of(addresses, api_key)
        self._failover = Failover(addresses, draw)
        self._timeout = timeout
        self._requests = Requests(self._credential)
        self._closed = False
        self._known: set[HttpAddress] = set()
        """Who has answered as a queue service does."""
        self._carrying: set[HttpAddress] = set()
        """The addresses whose newest answer names `CARRIES`."""
        self._alone: dict[HttpAddress, str] = {}
        """Of several: the boots of those who hold messages of their own."""
        self._engines: dict[str, str] = {}
        self.boot: str | None = None
        """The boot that the newest answer came from; None before the first, and always of several: the queues of equal
        bridges are none's own."""

    @property
    def url(self) -> str:
        """The address without a trailing slash, written the one way that equal addresses share."""
        return self._base

    @property
    def bridge_url(self) -> str:
        """The address of the bridge whose queues these are, as it was given."""
        return self._url

    def __str__(self) -> str:
        return self._base

    def fingerprint(self, queue: str) -> str:
        """Return 32 hex digits that name this queue at this address, or in the engine behind it once known (B11)."""
        return self._engines.get(queue) or digest_of(self._base, queue)

    def engine(self, queue: str) -> str | None:
        """Return what the newest answer about a queue named as its fingerprint in an engine; None where none did."""
        return self._engines.get(queue)

    def unnamed(self, queue: str) -> bool:
        """Say whether none of several bridges has told yet what holds this queue: until then no name of it is true."""
        return self._failover.several and queue not in self._engines and not self._alone

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None, create: bool = True
    ) -> list[PutReceipt]:
        """Put 1 to 32 messages, all or none.

        Raises `Unsupported` for messages with headers where the bridge is of a version that would drop them; before its
        first answer it is asked for that, in a request of its own.
        """
        refuse_connection(connection)
        messages = new_messages(bodies)
        check_put(queue, messages)
        path = self._path(queue, "/messages" if create else f"/messages?{_EXISTING}")

        async def put(messages: list[NewMessage]) -> list[PutReceipt]:
            raw = encode(PutRequest([put_item(message) for message in messages]))
            carries = any(message.headers for message in messages)
            return decode(PUT, (await self._put(queue, "POST", path, raw, JSON, carries))[1]).messages

        return await sent(self, queue, messages, put)

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Put a message under a key unless this very one was before; for headers see `put`."""
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
                # A request has less room for headers of its own than a message has.
                raw, kind = encode(PutItem(*body_fields(raw), headers=message.headers)), MESSAGE_TYPE
            carries = bool(message.headers)
            status, answer = await self._put(queue, "PUT", path, raw, kind, carries, repeatable=True)
            return None if status == 204 else decode(PUT, answer).messages[0]

        return await sent(self, queue, messages, put)

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Take up to ``limit`` messages; ``visibility_s`` is rounded up to whole seconds."""
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
        """Look without taking."""
        answer = decode(PEEK, await self._call("GET", queue, f"/peek?max={whole(limit, 'max')}"))
        return [stored(message) for message in answer.messages]

    async def depth(self, queue: str) -> Depth | None:
        """Count; None for a queue that does not exist."""
        try:
            return decode(DESCRIBE, await self._call("GET", queue, "")).depth
        except QueueNotFound:
            return None

    async def counts(self, queue: str) -> Counts | None:
        """Ask how it stands, for all that the service tells of it."""
        try:
            told = decode(DESCRIBE, await self._call("GET", queue, ""))
        except QueueNotFound:
            return None
        if told.depth is None:
            return None
        oldest_ms = None if told.oldest_ms is msgspec.UNSET else told.oldest_ms
        depth = told.depth
        return Counts(depth.visible, depth.invisible, told.depth_at_least, told.leased, told.delayed, oldest_ms)

    async def oldest_ms(self, queue: str) -> int | None:
        """Ask how it stands. Raises `Unsupported` where the service is of a version that does not say."""
        try:
            oldest = decode(DESCRIBE, await self._call("GET", queue, "")).oldest_ms
        except QueueNotFound:
            oldest = None
        if oldest is msgspec.UNSET:
            raise Unsupported("this queue service is of a version that does not say how long messages have waited")
        if not self.capabilities.oldest_age:
            raise Unsupported("the engine behind this queue service cannot tell how long its oldest message has waited")
        return oldest

    async def clear(self, queue: str) -> None:
        """Remove every message."""
        await self._call("DELETE", queue, "/messages")

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Give nothing out from now on, or give out again."""
        await self._call("POST", queue, "/pause" if paused else "/resume")

    async def paused(self, queue: str) -> bool:
        """Ask how it stands."""
        try:
            return decode(DESCRIBE, await self._call("GET", queue, "")).paused
        except QueueNotFound:
            return False

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Make a queue; say whether it is new."""
        raw = b"" if metadata is None else encode({"metadata": metadata})
        status, _ = await self._request("PUT", self._path(queue, ""), raw)
        return status == 201

    async def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        await self._call("DELETE", queue, "")

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """List references, page by page as far as ``limit`` needs."""
        found: list[str] = []
        if whole(limit, "limit") < 1:
            raise BadInput("bad_parameter", "limit is a whole number, 1 or more")
        while len(found) < limit:
            page = min(_PAGE, limit - len(found))
            path = f"/v1/queues?prefix={quote(prefix, safe='')}&after={quote(after, safe='')}&limit={page}"
            answer = decode(LIST, (await self._request("GET", path))[1])
            found += answer.queues
            if answer.next is None:
                break
            after = answer.next
        return found

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
        except QueueNotFound:  # only of a put that makes no queue
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
        """Ask one address after the other, as `Failover` says, until one has answered or the time is up.

        ``carries`` names the queue of a put with headers, which passes over bridges that would drop them.
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
            # Who hangs leaves time for another one, where that may be asked the same.
            limit = (deadline - asked) / (2 if repeatable and left else 1)
            if limit <= 0:
                break
            try:
                answer = await self._ask(where, method, path, raw, media, Limits(limit, TRY_S), carries)
            except _Older as error:
                told = weightier(told, error)  # It answers, and is as good as before for all else.
            except (StoreError, ConfigurationError) as error:
                outcome = outcome_of(error)
                if outcome is Outcome.ANSWERED:
                    self._answered(where, loop.time())
                    raise
                told = weightier(told, error)
                pause = getattr(error, "retry_after", None)
                if not self._failover.tell(where, outcome, loop.time(), repeatable=repeatable, retry_after=pause):
                    break
            except BadInput:
                self._answered(where, loop.time())
                raise
            except asyncio.CancelledError:
                if loop.time() - asked >= TRY_S:
                    self._failover.tell(where, Outcome.UNKNOWN, loop.time())
                raise
            else:
                self._answered(where, loop.time())
                return answer
        assert told is not None
        raise told

    def _answered(self, where: HttpAddress, now: float) -> None:
        self._failover.tell(where, Outcome.ANSWERED, now)
        if (changed := self._failover.changed()) is not None:
            before, after = changed
            log.warning("the queue service at %s is asked from now on; the one at %s is gone", after.url, before.url)
            if len(set(self._alone.values())) > 1:
                log.error(
                    "the bridges at %s each hold messages of their own: what was put at one is not at the others, and"
                    " waits there until somebody listens to it alone. Name one of them, or have them share a store",
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
        base = self._shown(where)
        try:
            answer = await self._requests.ask(where, method, path, raw, limits, media)
        except NotSent as error:
            raise StoreUnavailable(f"{base}: the queue service cannot be reached: {error}") from error
        except Unanswered as error:
            raise UnknownOutcome(f"{base}: the queue service did not answer: {error}") from error
        status, body = answer.status, answer.body
        engine, differs = answer.headers.get(STORE_HEADER.lower()), answer.headers.get(ABLE_HEADER.lower(), "{}")
        boot, carrying = answer.boot, CARRIES in answer.able
        retry_after = retry_after_s(answer.headers.get("retry-after"))
        problem = None if status < 300 else problem_in(body)
        known = where in self._known
        if (problem is None and (known or body[:1] in _OURS)) or (problem and problem.code in STATUS_BY_CODE):
            self._known.add(where)
            self._name(where, path, boot, engine)
            # A refusal may be a proxy's, which does not know.
            carrying = carrying or (problem is not None and where in self._carrying)
            (self._carrying.add if carrying else self._carrying.discard)(where)
            if engine is not None or boot is not None:
                self.capabilities = SERVICE if engine is None else able(differs)
            if not carrying:
                self.capabilities = msgspec.structs.replace(self.capabilities, headers=False)
            if carries and not carrying and problem is None:
                log.error(
                    "%s: a message was just put without its headers: the bridge at %s was replaced by an older "
                    "version, which drops them. Upgrade it",
                    carries,
                    base,
                )
        elif status not in _BETWEEN:
            # Of an address that has worked, something in between may answer for a while.
            wrong = StoreError if known else NoQueueService
            raise wrong(f"{base}: this is not a Queuebell queue service: it answers {status}, and not as one does")
        if problem is None:
            return status, body
        raise refusal(status, problem, retry_after)

    def _shown(self, where: HttpAddress) -> str:
        return where.url if self._failover.several else self._base

    async def _require_headers(self, where: HttpAddress, queue: str, limits: Limits) -> None:
        """Ask an address that has not said that it keeps headers, by a short list; raise `_Older` where it does not."""
        try:
            await self._ask(where, "GET", f"/v1/queues?prefix={queue}&limit=1", b"", JSON, limits)
        except UnknownOutcome as error:
            raise StoreUnavailable(f"{error}; nothing was put") from error
        except NotAllowed as error:
            if error.code != "forbidden":  # A key that may put alone has its answer all the same.
                raise
        if where not in self._carrying:
            raise _Older(
                f"{queue}: nothing was put: the bridge at {where.url} is of an older version, which drops the headers "
                "of messages. Upgrade it, or put without headers"
            )

    def _name(self, where: HttpAddress, path: str, boot: str | None, engine: str | None) -> None:
        """Remember who answered: a bridge on its own store names its boot, one on an engine what holds the queue."""
        if boot is not None:
            self.boot = None if self._failover.several else boot
            self._alone[where] = boot
            self._engines.clear()
        elif engine is not None and (found := _of_queue(path)) is not None:
            self.boot = None
            self._alone.pop(where, None)
            if self._failover.several and self._engines.get(found[1], engine) != engine:
                log.error(
                    "the bridge at %s keeps %s in another store than the one that was asked before: what was put there"
                    " is not here. Start all bridges of a list with one --store",
                    where.url,
                    found[1],
                )
            self._engines[found[1]] = engine


def differences(engine: Capabilities) -> str:
    """Return in what an engine differs from a queue service of its own, for `ABLE_HEADER`; empty for nothing."""
    said, usual = msgspec.structs.asdict(engine), msgspec.structs.asdict(SERVICE)
    told = {name: value for name, value in said.items() if value != usual[name]}
    return msgspec.json.encode(told).decode() if told else ""


@functools.lru_cache
def able(differs: str) -> Capabilities:
    """Read what `differences` wrote; what is not understood is as usual."""
    try:
        told = msgspec.json.decode(differs, type=dict[str, object])
        found: Capabilities = msgspec.convert({**msgspec.structs.asdict(SERVICE), **told}, Capabilities)
    except msgspec.DecodeError:
        return SERVICE
    return found


def normalised(url: str) -> str:
    """Write the address of a queue service, or those of several, the one way that equal ones share.

    Loopback names are one, and the order of several is none. Raises `ConfigurationError` for what is no such address.
    """
    places = {}
    for where in http_addresses(url, "store"):
        host = "127.0.0.1" if where.host == "localhost" else where.host
        places[f"{f'[{host}]' if ':' in host else host}:{where.port}"] = where.scheme
    return f"{next(iter(places.values()))}://{','.join(sorted(places))}"
