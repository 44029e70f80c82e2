"""JetStream's own requests, as far as a queue needs them: streams, consumers, and what their errors mean."""

from __future__ import annotations

import datetime
from typing import Any, Final, TypeVar

import msgspec

from bridge.contract.errors import QueueNotFound, StoreError, StoreFull, StoreUnavailable, UnknownOutcome
from bridge.queues.jetstream.names import Names
from bridge.queues.jetstream.wire import NoResponder, Wire

API: Final = "$JS.API"
NANO: Final = 10**9
NO_LIMIT: Final = -1
LENGTHENINGS: Final = 3
"""How often leases are lengthened that somebody else shortens at the same time."""
_NO_CONSUMER = frozenset({10014, 10149})
"""When it is asked about, and when it is changed."""
_NO_STREAM = 10059
_IN_USE = 10058
_FULL = frozenset({10023, 10047, 10049, 10077, 10122})
"""Insufficient resources, storage limits of the account or server, the stream's limits."""


class Refusal(msgspec.Struct):
    """An error as the server words it."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Delivered(msgspec.Struct):
    """The number of the newest message of the stream that a consumer gave out."""

    stream_seq: int = 0


class ConsumerState(msgspec.Struct):
    """A consumer: its configuration as the server has it, what waits and what is leased, and how far it has come."""

    config: dict[str, Any]
    num_pending: int = 0
    num_ack_pending: int = 0
    ts: datetime.datetime | None = None
    """When the server said so."""
    delivered: Delivered = msgspec.field(default_factory=Delivered)

    @property
    def ack_wait_s(self) -> float:
        """How long a lease lasts."""
        return float(self.config.get("ack_wait", 0)) / NANO

    @property
    def deliveries_max(self) -> int:
        """After how many deliveries a message is given out no more; -1 for never."""
        return int(self.config.get("max_deliver", NO_LIMIT))

    @property
    def leases_max(self) -> int:
        """How many messages can be leased at once; -1 for any number."""
        return int(self.config.get("max_ack_pending", NO_LIMIT))


class _Dated(msgspec.Struct):
    time: datetime.datetime


class _Found(msgspec.Struct):
    message: _Dated


class Stored(msgspec.Struct):
    """The server's word that a message is stored."""

    stream: str
    seq: int


class _Answer(msgspec.Struct):
    error: Refusal | None = None


class _Streams(msgspec.Struct):
    total: int
    streams: list[str] | None = None


class StreamState(msgspec.Struct):
    """How many messages a stream holds, and the number of the newest that it ever held."""

    messages: int
    last_seq: int = 0


class _Stream(msgspec.Struct):
    state: StreamState


T = TypeVar("T")


class JetStreamApi:
    """The requests over one connection; each raises what `Wire.ask` raises, and what the server's refusal means."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def make_stream(self, names: Names, replicas: int) -> None:
        """Make a work queue: a message leaves its stream when it is acknowledged. One that is there stays as it is."""
        config = {
            "name": names.stream,
            "subjects": [names.subject],
            "retention": "workqueue",
            "storage": "file",
            "discard": "new",
            "num_replicas": replicas,
        }
        try:
            await self._ask(f"STREAM.CREATE.{names.stream}", config)
        except Taken:
            return  # by somebody else at this moment, or with other replicas or limits

    async def stream(self, names: Names) -> StreamState:
        """Return what a stream holds, all that was acknowledged before counted. Raises `QueueNotFound`."""
        return decoded(await self._ask(f"STREAM.INFO.{names.stream}"), _Stream).state

    async def remove_stream(self, names: Names) -> None:
        """Remove a stream with its messages. Raises `QueueNotFound`."""
        await self._ask(f"STREAM.DELETE.{names.stream}")

    async def purge_stream(self, names: Names) -> None:
        """Remove all messages of a stream. Raises `QueueNotFound`."""
        await self._ask(f"STREAM.PURGE.{names.stream}")

    async def stream_names(self, subjects: str) -> list[str]:
        """Return the names of all streams that hear ``subjects``."""
        found: list[str] = []
        while True:
            page = decoded(await self._ask("STREAM.NAMES", {"offset": len(found), "subject": subjects}), _Streams)
            if not page.streams:
                return found
            found += page.streams
            if len(found) >= page.total:
                return found

    async def consumer(self, names: Names) -> ConsumerState | None:
        """Return the consumer of a stream, None where it has none. Raises `QueueNotFound` without the stream."""
        try:
            return decoded(await self._ask(f"CONSUMER.INFO.{names.stream}.{names.consumer}"), ConsumerState)
        except ConsumerGone:
            return None

    async def stored_at(self, names: Names, seq: int) -> datetime.datetime | None:
        """Return when the first message of a stream from this number on was stored; None where there is none."""
        try:
            asked = {"seq": seq, "next_by_subj": ">"}
            return decoded(await self._ask(f"STREAM.MSG.GET.{names.stream}", asked), _Found).message.time
        except StoreError as error:
            if isinstance(error, StoreUnavailable | UnknownOutcome | QueueNotFound):
                raise
            return None  # there is no such message, or this user may not look at one

    async def make_consumer(self, names: Names, ack_wait_s: float) -> ConsumerState:
        """Make the consumer, with no limit to the leases: an empty answer is then an empty queue."""
        config = {
            "name": names.consumer,
            "durable_name": names.consumer,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": round(ack_wait_s * NANO),
            "max_ack_pending": NO_LIMIT,
        }
        return await self._put_consumer(names, config, "create")

    async def lengthen(self, names: Names, ack_wait_s: float) -> ConsumerState:
        """Have the leases of a consumer last at least so long, those that it has given out too.

        Its configuration is read first, for others change it too: nothing is shortened, and nothing but ``ack_wait``
        is changed. It is read back afterwards. Raises `ConsumerGone` and `QueueNotFound`.
        """
        for _ in range(LENGTHENINGS):
            state = await self._there(names)
            if state.ack_wait_s >= ack_wait_s:
                return state
            await self._put_consumer(names, {**state.config, "ack_wait": round(ack_wait_s * NANO)}, "update")
        state = await self._there(names)
        if state.ack_wait_s < ack_wait_s:
            raise StoreUnavailable(f"jetstream: somebody else shortens the leases of {names.stream} all the time")
        return state

    async def _there(self, names: Names) -> ConsumerState:
        state = await self.consumer(names)
        if state is None:
            raise ConsumerGone(f"jetstream: the consumer of {names.stream} was removed at this moment")
        return state

    async def _put_consumer(self, names: Names, config: dict[str, Any], action: str) -> ConsumerState:
        asked = {"stream_name": names.stream, "config": config, "action": action}
        raw = await self._ask(f"CONSUMER.CREATE.{names.stream}.{names.consumer}", asked)
        return decoded(raw, ConsumerState)

    async def _ask(self, operation: str, asked: dict[str, Any] | None = None) -> bytes:
        payload = b"" if asked is None else msgspec.json.encode(asked)
        try:
            raw = (await self._wire.ask(f"{API}.{operation}", payload)).payload
        except NoResponder as error:
            raise StoreUnavailable("jetstream: the server has no JetStream, or it is not up yet") from error
        refusal = decoded(raw, _Answer).error
        if refusal is not None:
            raise meaning(refusal)
        return raw


class ConsumerGone(StoreUnavailable):
    """The stream is there and its consumer is not."""


class Taken(StoreError):
    """A stream of this name is there already, with another configuration."""


def decoded(raw: bytes, kind: type[T]) -> T:
    """Return an answer of the server; raises `UnknownOutcome` where it is none."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise UnknownOutcome("jetstream: the answer is not one of JetStream") from error


def meaning(refusal: Refusal) -> StoreError:
    """Return what to raise for a refusal."""
    said = f"{refusal.description} ({refusal.err_code or refusal.code})"
    if refusal.err_code == _NO_STREAM:
        return QueueNotFound("jetstream: there is no such stream")
    if refusal.err_code in _NO_CONSUMER:
        return ConsumerGone("jetstream: there is no such consumer")
    if refusal.err_code == _IN_USE:
        return Taken(f"jetstream: refused: {said}; nothing was changed")
    if refusal.err_code in _FULL:
        return StoreFull(f"jetstream: no room: {said}; what was acknowledged is safe")
    if refusal.code in (408, 503):
        return StoreUnavailable(f"jetstream: not now: {said}")
    return StoreError(f"jetstream: refused: {said}; nothing was changed")
