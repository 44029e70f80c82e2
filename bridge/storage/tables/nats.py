"""Entities in a key-value bucket of a NATS server or cluster: an ETag is a revision, and writes name the last one."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import uuid
from typing import Any, Final, TypeVar

import msgspec

from bridge.brokers.address import Address
from bridge.contract.errors import (
    Closed,
    ConfigurationError,
    Conflict,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.contract.names import is_token
from bridge.queues.jetstream.api import API, NANO, Refusal, decoded, meaning
from bridge.queues.jetstream.names import Delivery
from bridge.queues.jetstream.wire import ANSWER_S, NoResponder, Wire
from bridge.queues.side_by_side import side_by_side
from bridge.storage.tables.base import CheckedTable, Entity, changed, exists

OPTIONS: Final = ("credentials", "nkey", "name", "inbox", "bucket", "replicas")
BUCKET: Final = "queuebell"
REPLICAS_MAX: Final = 5
TRIES: Final = 5
"""How often an insert is tried whose key is being deleted by somebody else at this very moment."""
PAGE: Final = 500
TOGETHER: Final = 32
IDLE_S: Final = 10.0
"""When the server forgets a listing whose reader is gone."""
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
OPERATION: Final = "KV-Operation"
MARKERS: Final = (OPERATION, "Nats-Marker-Reason")
_NO_STREAM: Final = 10059
_NO_MESSAGE: Final = 10037
_IN_USE: Final = 10058
_CHANGED: Final = frozenset({10071, 10164})

_revision = re.compile(r"[1-9][0-9]{0,18}").fullmatch


class _Answer(msgspec.Struct):
    error: Refusal | None = None


class _Written(_Answer):
    seq: int = 0


class _Told(_Answer):
    """A stream or consumer, and when the server said so."""

    ts: datetime.datetime | None = None
    num_pending: int = 0


class _Message(msgspec.Struct):
    seq: int
    time: datetime.datetime
    data: bytes = b""
    hdrs: bytes = b""

    @property
    def marker(self) -> bool:
        """Whether it says that its key was deleted."""
        return any(name.encode() in self.hdrs for name in MARKERS)


class _Got(_Answer):
    message: _Message | None = None


T = TypeVar("T", bound=_Answer)


class NatsTable(CheckedTable):
    """The entities of one bucket (`TableStore`), which is made at the first call if it is missing.

    Options of the address: those of the NATS bus, ``bucket`` (``queuebell``) and ``replicas`` of a bucket that is
    made here (1, or 3 where three servers or more are listed). All times are the server's. A bucket that is deleted
    later is an error, never an empty table.
    """

    def __init__(self, url: str, *, timeout: float = ANSWER_S) -> None:
        where = Address(url, schemes=("nats", "tls"), options=OPTIONS, several=True)
        self._bucket = where.options.get("bucket", BUCKET)
        self._replicas = where.number("replicas", 3 if len(where.hosts) >= 3 else 1, most=REPLICAS_MAX)
        if not is_token(self._bucket) or not self._replicas:
            raise ConfigurationError("ledger: bucket is letters, digits, '_' and '-'; replicas is 1 to 5")
        self._text = where.text
        self._stream = f"KV_{self._bucket}"
        self._wire = Wire(where, timeout)
        self._making = asyncio.Lock()
        self._made = False

    async def _insert(self, partition: str, row: str, data: bytes) -> str:
        last = 0
        for _ in range(TRIES):
            try:
                return await self._write(partition, row, data, {EXPECTED: str(last)})
            except Conflict:
                found = await self._message(partition, row)
                if found is not None and not found.marker:
                    raise exists(partition, row) from None
                last = 0 if found is None else found.seq  # what its delete left, which goes in a moment
        raise StoreUnavailable(f"{self._text}: entity {partition}/{row} is deleted and inserted all the time")

    async def _get(self, partition: str, row: str) -> Entity | None:
        """Read an entity; a second request beside it asks what time it is there."""
        await self._open()
        message = await self._message(partition, row)
        # Asked after it: nothing is older than it is.
        return None if message is None else _entity(partition, row, message, await self._now())

    async def _replace(self, partition: str, row: str, data: bytes, etag: str) -> str:
        return await self._write(partition, row, data, {EXPECTED: _expected(partition, row, etag)})

    async def _delete(self, partition: str, row: str, etag: str) -> None:
        """Remove an entity: a marker takes its place if it is still the one, and is then removed too."""
        marker = await self._write(partition, row, b"", {EXPECTED: _expected(partition, row, etag), OPERATION: "DEL"})
        asked = {"filter": self._subject(partition, row), "seq": int(marker) + 1}
        with contextlib.suppress(StoreError):  # what stays is a few bytes, read by all as a key that is not there
            await self._ask(f"STREAM.PURGE.{self._stream}", _Answer, asked)

    async def _entities(self, partition: str, older_than_s: float, after: str, limit: int) -> list[Entity]:
        """List entities; reads the keys of the partition, of old ones only those old enough, and then the entities."""
        await self._open()
        rows, now = await self._rows(partition, older_than_s, after)
        listed: list[Entity] = []
        while rows and len(listed) < limit:
            some, rows = rows[: min(TOGETHER, limit - len(listed))], rows[TOGETHER:]
            found = await side_by_side("table list", (self._message(partition, row) for row in some))
            for row, message in zip(some, found, strict=True):
                entity = _entity(partition, row, message, now)
                if entity is not None and entity.age_s >= older_than_s:  # else changed or deleted meanwhile
                    listed.append(entity)
        return listed

    async def close(self) -> None:
        """Close the connection; calls under way fail."""
        await self._wire.close()

    # Requests -------------------------------------------------------------------------------------------------------

    async def _rows(self, partition: str, older_than_s: float, after: str) -> tuple[list[str], datetime.datetime]:
        """Return the row keys of a partition that may be listed, in order, and the server's time.

        The server tells messages in the order they were written: those that are too young end it.
        """
        reader = uuid.uuid4().hex
        pattern = self._subject(partition, "*")
        config = {
            "name": reader,
            "filter_subject": pattern,
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "headers_only": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": round(IDLE_S * NANO),
        }
        asked = {"stream_name": self._stream, "config": config, "action": "create"}
        told = await self._ask(f"CONSUMER.CREATE.{self._stream}.{reader}.{pattern}", _Told, asked)
        now = self._time(told)
        rows: list[str] = []
        try:
            left = told.num_pending
            while left > 0:
                asked_for = min(PAGE, left)
                if not await self._page(reader, asked_for, now, older_than_s, rows):
                    break
                left -= asked_for
        finally:
            # Whoever is cancelled here leaves it to the server, which forgets it.
            with contextlib.suppress(StoreError, Closed):
                await self._ask(f"CONSUMER.DELETE.{self._stream}.{reader}", _Answer)
        return sorted({row for row in rows if row > after}), now

    async def _page(
        self, reader: str, count: int, now: datetime.datetime, older_than_s: float, rows: list[str]
    ) -> bool:
        """Read the next keys; say whether there may be more that are old enough."""
        asked = msgspec.json.encode({"batch": count, "no_wait": True})
        subject = f"{API}.CONSUMER.MSG.NEXT.{self._stream}.{reader}"
        async with self._wire.pulling(subject, asked) as answers:
            for _ in range(count):
                message = await answers.next()
                delivery = Delivery.of(".".join(message.reply_to or ()))
                if delivery is None:
                    return False  # the server's word that there is no more: some were deleted meanwhile
                if (now - delivery.stored_at).total_seconds() < older_than_s:
                    return False
                if not any(name.lower() in message.headers for name in MARKERS):
                    rows.append(message.topic[-1])
        return True

    async def _message(self, partition: str, row: str) -> _Message | None:
        """Return the last message of a key as the stream's leader has it; None where there is none."""
        try:
            asked = {"last_by_subj": self._subject(partition, row)}
            return (await self._ask(f"STREAM.MSG.GET.{self._stream}", _Got, asked)).message
        except _NoMessage:
            return None

    async def _now(self) -> datetime.datetime:
        return self._time(await self._ask(f"STREAM.INFO.{self._stream}", _Told))

    def _time(self, told: _Told) -> datetime.datetime:
        if told.ts is None:
            raise ConfigurationError(f"{self._text}: the server does not tell its time; it needs NATS 2.10 or newer")
        return told.ts

    async def _write(self, partition: str, row: str, data: bytes, headers: dict[str, str]) -> str:
        """Write a message and return its revision. Raises `Conflict` where another one is the last."""
        await self._open()
        self._wire.check_size(len(data) + 200)
        answer = decoded((await self._wire.ask(self._subject(partition, row), data, headers)).payload, _Written)
        if answer.error is not None:
            if answer.error.err_code in _CHANGED:
                raise changed(partition, row)
            raise meaning(answer.error)
        if not answer.seq:
            raise UnknownOutcome(f"{self._text}: the answer to a write is not one of JetStream")
        return str(answer.seq)

    async def _open(self) -> None:
        """See that there is a bucket, once: one that vanishes later is not made anew and taken for empty."""
        await self._wire.connect()
        if not self._made:
            async with self._making:
                await self._prepare()

    async def _prepare(self) -> None:
        if not self._made:
            try:
                await self._ask(f"STREAM.INFO.{self._stream}", _Told)
            except _NoStream:
                await self._make()
            self._made = True

    async def _make(self) -> None:
        config = {
            "name": self._stream,
            "subjects": [f"$KV.{self._bucket}.>"],
            "max_msgs_per_subject": 1,
            "discard": "new",
            "storage": "file",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "num_replicas": self._replicas,
        }
        with contextlib.suppress(_Taken):  # somebody else has made it at this moment
            await self._ask(f"STREAM.CREATE.{self._stream}", _Answer, config)

    async def _ask(self, operation: str, kind: type[T], asked: dict[str, Any] | None = None) -> T:
        payload = b"" if asked is None else msgspec.json.encode(asked)
        try:
            raw = (await self._wire.ask(f"{API}.{operation}", payload)).payload
        except NoResponder as error:
            raise StoreUnavailable(f"{self._text}: the server has no JetStream, or it is not up yet") from error
        answer = decoded(raw, kind)
        if answer.error is None:
            return answer
        special = _SPECIAL.get(answer.error.err_code)
        if special is not None:
            raise special(
                f"{self._text}: bucket {self._bucket}: {answer.error.description}. Where it was there before, restore "
                "it: nothing is taken for new until then. Workers that are started anew make an empty one"
            )
        raise meaning(answer.error)

    def _subject(self, partition: str, row: str) -> str:
        # Two dots in a row, or one at the end, would be an empty token; keys of ours have no equals sign.
        return f"$KV.{self._bucket}.{partition.replace('.', '=')}.{row}"


class _NoStream(StoreUnavailable):
    """There is no such bucket."""


class _NoMessage(StoreError):
    """The key was never written, or is forgotten."""


class _Taken(StoreError):
    """A stream of this name is there already."""


_SPECIAL: Final[dict[int, type[StoreError]]] = {_NO_STREAM: _NoStream, _NO_MESSAGE: _NoMessage, _IN_USE: _Taken}


def _expected(partition: str, row: str, etag: str) -> str:
    """Return the revision to name. Raises `Conflict` for what is none, above all for 0: that would be an insert."""
    if _revision(etag) is not None:
        return etag
    raise changed(partition, row)


def _entity(partition: str, row: str, message: _Message | None, now: datetime.datetime) -> Entity | None:
    if message is None or message.marker:
        return None
    age = max(0.0, (now - message.time).total_seconds())
    return Entity(partition, row, message.data, str(message.seq), message.time, age)
