"""Queues on a Redis server: a stream and a consumer group each, leases by the server's clock, one script a call."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from queuebell.bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
)
from queuebell.bridge.contract.headers import headers_in
from queuebell.bridge.contract.names import is_token, parse_reference
from queuebell.bridge.queues.base import (
    PUT_WINDOW_S,
    VISIBLE_QUEUES_MAX,
    AsyncConnection,
    Capabilities,
    Claim,
    Counts,
    Depth,
    Extend,
    NewMessage,
    PutReceipt,
    Received,
    Release,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
    VisibleQueues,
    digest_of,
    is_key,
)
from queuebell.bridge.queues.checked import CheckedOnceStore, missing
from queuebell.bridge.queues.limits import lease_ms
from queuebell.bridge.queues.redis import scripts
from queuebell.bridge.queues.redis.connections import RedisAddress, RedisConnections, Unscripted, client

ANSWER_S: Final = 5.0
"""Time-out of an answer; less than a listener's time-out R."""
SCANNED: Final = 1000
ASKED_AT_ONCE: Final = 50
"""How many queues one script of a round looks at: a millisecond or so, in which Redis does nothing else."""
KEY_SUFFIXES: Final = ("due", "receipts", "expires", "bodies", "queue", "once", "windows")
SEARCHED_MAX: Final = 20_000
"""Up to so many keys of a database are scanned for similar names."""

_id = re.compile("(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})").fullmatch
_SHA: Final = {
    text: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    for text in (
        scripts.PUT, scripts.RECEIVE, scripts.SETTLE, scripts.PEEK, scripts.DEPTH, scripts.CLEAR, scripts.PAUSE,
        scripts.CREATE, scripts.DELETE, scripts.PUT_EXISTING, scripts.PUT_ONCE, scripts.PUT_ONCE_EXISTING,
        scripts.EXISTS, scripts.OLDEST, scripts.COUNTS, scripts.VISIBLE,
    )
}  # fmt: skip
_KEYLESS: Final = frozenset(
    {scripts.RECEIVE, scripts.SETTLE, scripts.PEEK, scripts.DEPTH, scripts.COUNTS, scripts.PAUSE}
)
"""Scripts that do not use the keys of `put_once`."""
_CODES: Final = {"missing": "message_not_found", "mismatch": "pop_receipt_mismatch"}
_LAST_MS: Final = 253_402_300_799_000
"""The latest valid time: ids of other producers may have a later one."""


class RedisStore(CheckedOnceStore):
    """The queues in the database at ``redis://`` or ``rediss://``; connects at the first call.

    Options of the address: ``pool_size`` (1 to 100, default 8), the maximum of connections; ``prefix`` (default
    ``queuebell``) of all keys; ``tls_ca``, ``tls_cert`` and ``tls_key``. Answers may take ``timeout`` seconds.
    ``nonce`` returns unique texts. The key of a put is remembered for ``put_window_s`` at least. Needs Redis 6.2.
    """

    kind = "redis"
    capabilities = Capabilities(
        uncounted_release=True, put_once=True, oldest_age=True, counts_leased=True, headers=True
    )

    def __init__(
        self,
        url: str,
        *,
        timeout: float = ANSWER_S,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
        put_window_s: float = PUT_WINDOW_S,
    ) -> None:
        address = RedisAddress(url)
        self._prefix = address.where.options.get("prefix", "queuebell")
        if not is_token(self._prefix):
            raise ConfigurationError("redis: prefix is letters, digits, '_' and '-'")
        self._place, self._text = address.place, address.text
        self._timeout = timeout
        self._put_window_ms = round(put_window_s * 1000)
        self._nonce = nonce
        self._connections = RedisConnections(address, ("redis", url))

    def check_client(self) -> None:
        """Raise `ConfigurationError` if the client library is not installed; needs no network."""
        client()

    def __str__(self) -> str:
        return self._text

    def fingerprint(self, queue: str) -> str:
        """Return 32 hex digits that identify this queue in this database (B11)."""
        return digest_of(self._place, self._keys(queue)[0])

    @property
    def scope(self) -> str:
        """See `RoundStore.scope`."""
        return digest_of("round", self._place, self._prefix)

    async def identity(self) -> str | None:
        """Return a digest of a random text that the first bridge stores in this database; a copy has it too."""
        key = f"{self._prefix}:identity"
        try:
            left = await self._call("GET", key)
            if left is None:
                await self._call("SET", key, secrets.token_hex(16), "NX")
                left = await self._call("GET", key)
        except StoreUnavailable:
            raise
        except StoreError:  # No permission, or the key has another use.
            return None
        return None if left is None else digest_of("redis", left.decode("utf-8", "replace"))

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        nonce = self._nonce()
        receipts = [f"{nonce}{place:02x}" for place in range(len(messages))]
        given: list[str | bytes | int] = []
        for message, receipt in zip(messages, receipts, strict=True):
            given += (message.body, receipt, message.visible_after_ms, message.ttl_s, _headers(message))
        (ids,) = await self._run(scripts.PUT if create else scripts.PUT_EXISTING, queue, nonce, *given)
        return [
            PutReceipt(id_.decode(), receipt, message.visible_after_ms)
            for id_, receipt, message in zip(ids, receipts, messages, strict=True)
        ]

    async def _put_once(
        self,
        queue: str,
        key: str,
        message: NewMessage,
        digest: str,
        create: bool,
        connection: AsyncConnection | None,
    ) -> PutReceipt | bool:
        nonce = self._nonce()
        receipt, delay = f"{nonce}00", message.visible_after_ms
        script = scripts.PUT_ONCE if create else scripts.PUT_ONCE_EXISTING
        said = (key, digest, self._put_window_ms, _headers(message))
        given = (nonce, message.body, receipt, delay, message.ttl_s, *said)
        id_, same = await self._run(script, queue, *given)
        return PutReceipt(id_.decode(), receipt, delay) if id_ else bool(same)

    async def _receive(self, queue: str, limit: int, lease_ms: int) -> Received:
        answer = await self._run(scripts.RECEIVE, queue, self._nonce(), limit, lease_ms)
        found, visible, invisible, later, delayed, blocked, *more, server = answer
        return Received(
            [_message(each) for each in found],
            Depth(visible, invisible),
            None if later < 0 else max(1, later),
            blocked=bool(blocked),
            next_delayed_in_ms=msgspec.UNSET if delayed < 0 else delayed or None,
            counts=_counts(visible, invisible, *more),
            place=server.decode() or None,
        )

    async def _settle(self, queue: str, settlement: Settlement) -> Settling:
        given: list[str | bytes | int] = []
        counts: list[int] = []
        known: list[list[bool]] = []
        lists: tuple[Sequence[Claim | Release | Extend], ...] = (
            settlement.delete, settlement.release, settlement.extend
        )  # fmt: skip
        for items in lists:
            flags = [_known(item.id) for item in items]
            for item, ours in zip(items, flags, strict=True):
                if ours:
                    given += (item.id, _receipt(item.pop_receipt), *_extra_arguments(item))
            counts.append(sum(flags))
            known.append(flags)
        (told,) = await self._run(scripts.SETTLE, queue, self._nonce(), *counts, *given)
        outcomes = iter(told)
        delete, release, extend = (
            [_settled(next(outcomes).decode()) if ours else _settled("missing") for ours in flags] for flags in known
        )
        return Settling(delete, release, extend)

    async def _peek(self, queue: str, limit: int) -> list[StoredMessage]:
        (found,) = await self._run(scripts.PEEK, queue, limit)
        return [_message(each) for each in found]

    async def depth(self, queue: str) -> Depth | None:
        """Count all messages."""
        try:
            visible, invisible = await self._run(scripts.DEPTH, queue)
        except QueueNotFound:
            return None
        return Depth(visible, invisible)

    async def counts(self, queue: str) -> Counts | None:
        """Count all messages by one script, which reads a few entries."""
        try:
            return _counts(*await self._run(scripts.COUNTS, queue))
        except QueueNotFound:
            return None

    async def exists(self, queue: str) -> bool:
        """Return whether the stream exists."""
        (there,) = await self._run(scripts.EXISTS, queue)
        return bool(there)

    async def visible_queues(self) -> VisibleQueues | None:
        """Return the queues with visible messages: a scan of the database's keys, and a script for 50 queues.

        Names some that have none if delayed or expired entries come first, or entries that another program has read.
        """
        # Without a queue at least the script, which a replica refuses.
        names = await self._queues("", "", sys.maxsize) or ["queuebell/none"]
        found: list[str] = []
        servers: set[str] = set()
        for part in (names[start : start + ASKED_AT_ONCE] for start in range(0, len(names), ASKED_AT_ONCE)):
            keys = [key for name in part for key in self._round_keys(name)]
            _, server, *numbers = await self._eval(scripts.VISIBLE, len(keys), *keys)
            servers.add(server.decode())
            found += [part[number - 1] for number in numbers]
        # Connections of one address may lead to several servers.
        wrong = len(found) > VISIBLE_QUEUES_MAX or len(servers) > 1
        return None if wrong else VisibleQueues(found, servers.pop() or None)

    async def place(self) -> str | None:
        """Return which run of which server a receive reads now."""
        keys = self._round_keys("queuebell/none")
        _, server, *_ = await self._eval(scripts.VISIBLE, len(keys), *keys)
        return server.decode() or None

    async def oldest_ms(self, queue: str) -> int | None:
        """Return how long the oldest message has waited; skips up to 1000 delayed or released entries."""
        try:
            (waited,) = await self._run(scripts.OLDEST, queue)
        except QueueNotFound:
            return None
        return None if waited < 0 else int(waited)

    async def clear(self, queue: str) -> None:
        """Remove every message."""
        await self._run(scripts.CLEAR, queue)

    async def _pause(self, queue: str, paused: bool) -> None:
        await self._run(scripts.PAUSE, queue, int(paused))

    async def paused(self, queue: str) -> bool:
        """Return whether the queue is paused."""
        return bool(await self._call("HEXISTS", self._keys(queue)[1 + KEY_SUFFIXES.index("queue")], "paused"))

    async def _create(self, queue: str, metadata: dict[str, str] | None) -> bool:
        text = "" if metadata is None else json.dumps(metadata, ensure_ascii=False, sort_keys=True)
        (new,) = await self._run(scripts.CREATE, queue, int(metadata is not None), text)
        return bool(new)

    async def delete(self, queue: str) -> None:
        """Delete a queue and its messages."""
        await self._run(scripts.DELETE, queue)

    async def _queues(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return references; scans all keys of the database."""
        found: set[str] = set()
        head, cursor = f"{self._prefix}:{{", b"0"
        while True:
            cursor, keys = await self._call(
                "SCAN", cursor, "MATCH", f"{head}{prefix}*}}", "COUNT", SCANNED, "TYPE", "stream"
            )
            for key in keys:
                name = key.decode("utf-8", "replace").removeprefix(head).removesuffix("}")
                if name > after and name.startswith(prefix) and _reference(name):
                    found.add(name)
            if cursor == b"0":
                return sorted(found)[:limit]

    async def _missing(self, queue: str) -> QueueNotFound:
        """Suggest similar names only in a small database."""
        if await self._call("DBSIZE") > SEARCHED_MAX:
            return missing(queue, ())
        return await super()._missing(queue)

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        self._closed = True
        await self._connections.close()

    def _keys(self, queue: str) -> tuple[str, ...]:
        """Return the keys of a queue, which are in one slot of a cluster."""
        stream = f"{self._prefix}:{{{parse_reference(queue)}}}"
        return (stream, *(f"{stream}:{part}" for part in KEY_SUFFIXES))

    def _round_keys(self, queue: str) -> tuple[str, ...]:
        stream, due, _, expires, _, state, *_ = self._keys(queue)
        return stream, due, expires, state

    async def _run(self, script: str, queue: str, *given: str | bytes | int) -> list[Any]:
        """Run a script; return its answer without the first word. Raises `QueueNotFound` and as `_call` does."""
        keys = self._keys(queue)[: 6 if script in _KEYLESS else None]
        rest = (len(keys), *keys, *given)
        while True:
            answer = await self._eval(script, *rest)
            match answer[0]:
                case b"missing":
                    raise QueueNotFound(f"there is no queue {queue}")
                case b"ok":
                    return list(answer[1:])
            # Otherwise it only removed many expired messages.

    async def _eval(self, script: str, *rest: str | bytes | int) -> list[Any]:
        try:
            answer = await self._call("EVALSHA", _SHA[script], *rest)
        except Unscripted:  # The script did not run.
            answer = await self._call("EVAL", script, *rest)
        return list(answer)

    async def _call(self, *command: str | bytes | int) -> Any:
        self._check_open()
        return await self._connections.call(command, self._timeout)


def _known(id_: object) -> bool:
    """Return whether an id is a valid id of a stream; the caller may have invented it."""
    found = _id(id_) if isinstance(id_, str) else None
    return found is not None and int(found[1]) < 2**64 and int(found[2]) < 2**64


def _receipt(receipt: object) -> bytes:
    return receipt.encode("utf-8", "surrogatepass") if isinstance(receipt, str) else b""


def _extra_arguments(item: Claim | Release | Extend) -> tuple[str | bytes | int, ...]:
    match item:
        case Release():
            return (item.after_ms, int(item.uncounted))
        case Extend():
            return (lease_ms(item.visibility_s), int(item.body is not None), item.body or b"")
    return ()


def _settled(outcome: str) -> Settled:
    word, _, receipt = outcome.partition(":")
    return Settled(True, pop_receipt=receipt or None) if word == "ok" else Settled(False, code=_CODES[word])


def _message(told: Any) -> StoredMessage:
    id_, receipt, count, expires, replaced, fields = told
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    inserted = min(int(id_.partition(b"-")[0]), _LAST_MS) / 1000
    return StoredMessage(
        id_.decode(),
        receipt.decode(),
        _body(named) if replaced is None else replaced,
        count,
        datetime.datetime.fromtimestamp(inserted, datetime.UTC),
        None if expires is None else datetime.datetime.fromtimestamp(float(expires) / 1e6, datetime.UTC),
        _key(fields),
        headers_in(named[b"headers"]) if b"body" in named and b"headers" in named else {},
    )


def _headers(message: NewMessage) -> bytes:
    return msgspec.json.encode(message.headers) if message.headers else b""


def _key(fields: list[bytes]) -> str | None:
    """Return the key of a message: this store writes body, receipt, headers if any, and key, in this order."""
    if fields[::2] not in ([b"body", b"receipt", b"key"], [b"body", b"receipt", b"headers", b"key"]):
        return None
    key = fields[-1].decode("ascii", "replace")
    return key if is_key(key) else None


def _body(given: dict[bytes, bytes]) -> bytes:
    """Return the field ``body``, or all fields of an entry without one as a JSON object."""
    if b"body" in given:
        return given[b"body"]
    shown = ([part.decode("utf-8", "backslashreplace") for part in pair] for pair in given.items())
    return msgspec.json.encode(dict(shown))


def _reference(name: str) -> bool:
    try:
        parse_reference(name)
    except BadInput:
        return False
    return True


def _counts(visible: int, invisible: int, leased: int, delayed: int, oldest_ms: int) -> Counts:
    """Return the counts of a script; negative numbers mean unknown."""
    told = [None if number < 0 else number for number in (leased, delayed, oldest_ms)]
    return Counts(visible, invisible, leased=told[0], delayed=told[1], oldest_ms=told[2])
