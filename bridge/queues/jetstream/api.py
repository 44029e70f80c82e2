"""JetStream's own requests, as far as a queue needs them: streams, consumers, and what their errors mean."""

from __future__ import annotations

import datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from bridge.contract.errors import (
    ConfigurationError,
    QueueNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.contract.names import parse_reference, split_reference
from bridge.queues.base import BATCH_MAX
from bridge.queues.jetstream.wire import NoResponder, Wire

API: Final = "$JS.API"
NANO: Final = 10**9
NO_LIMIT: Final = -1
WAIT_S: Final = 0.05
"""How long the server waits with an answer where leases are limited: only then would it say nothing at the limit."""
LENGTHENINGS: Final = 3
"""How often leases are lengthened that somebody else shortens at the same time."""
_NO_CONSUMER = frozenset({10014, 10149})
"""When it is asked about, and when it is changed."""
_NO_STREAM = 10059
_IN_USE = 10058
_OTHERS: Final = {
    10065: "another stream hears the subject of this queue. Take that subject from it, and the next put makes a stream",
    10099: "another consumer of this stream takes the messages. Remove it, or give this queue a stream of its own",
    10100: "another consumer of this stream takes the messages. Remove it, or give this queue a stream of its own",
}
"""Subjects overlap; not the only consumer of a work queue, without a filter and with one."""
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
    paused: bool = False
    """Whether it gives out nothing until the time in its configuration."""
    delivered: Delivered = msgspec.field(default_factory=Delivered)

    @property
    def ack_wait_s(self) -> float:
        """How long a lease lasts."""
        return float(self.config.get("ack_wait", 0)) / NANO

    def check_running(self, names: Names) -> None:
        """Raise `StoreUnavailable` for a consumer that was paused: an empty answer of it proves nothing."""
        if self.paused:
            raise StoreUnavailable(
                f"jetstream: the consumer {names.consumer} of the stream {names.stream} is paused until "
                f"{self.config.get('pause_until')}. Nothing was received, and the messages are safe. To go on before: "
                f"nats consumer resume {names.stream} {names.consumer}"
            )

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
    config: dict[str, Any]


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
            await self.stream(names)  # somebody else made it at this moment, or with other replicas or limits

    async def stream(self, names: Names) -> StreamState:
        """Return what a stream holds, all that was acknowledged before counted.

        Raises `QueueNotFound`, and `UnfitQueue` for a stream that was made by hand and would lose or repeat messages.
        """
        found = decoded(await self._ask(f"STREAM.INFO.{names.stream}"), _Stream)
        check_stream(names, found.config)
        return found.state

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
        """Return the consumer of a stream, None where it has none.

        Raises `QueueNotFound` without the stream, and `UnfitQueue` for a consumer that was made by hand and would lose
        or strand messages.
        """
        try:
            found = decoded(await self._ask(f"CONSUMER.INFO.{names.stream}.{names.consumer}"), ConsumerState)
        except ConsumerGone:
            return None
        check_consumer(names, found.config)
        return found

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
        if refusal is None:
            return raw
        if refusal.err_code in _OTHERS:
            raise UnfitQueue(f"jetstream: {operation} was refused ({refusal.err_code}): {_OTHERS[refusal.err_code]}")
        raise meaning(refusal)


class UnfitQueue(ConfigurationError):
    """A stream or consumer that was made by hand would lose, strand or repeat messages; the store refuses it."""

    code = "unsupported"


def check_stream(names: Names, config: dict[str, Any]) -> None:
    """Raise `UnfitQueue` for a stream that takes no messages, drops them, or never says that it has them."""
    retention, subjects = config.get("retention"), config.get("subjects") or []
    old, each = config.get("discard") != "new", config.get("max_msgs_per_subject", NO_LIMIT)
    limits = [name for name in ("max_msgs", "max_bytes") if config.get(name, NO_LIMIT) > 0]
    remake = "Make the stream with retention workqueue, or remove it and let the first put make it"
    for found, setting, harm, remedy in (
        (retention == "interest", "retention interest", "it drops what is put while it has no consumer", remake),
        (
            retention != "workqueue",
            f"retention {retention}",
            "it keeps what was handled, and hands all of it out again to a new consumer",
            remake,
        ),
        (
            not any(covers(pattern, names.subject) for pattern in subjects),
            f"the subjects {subjects}",
            "nothing can be put on it",
            f"Give it the subject {names.subject}; a mirror cannot have one, so remove it",
        ),
        (config.get("sealed"), "sealed", "nothing can be put on it", "Copy what it holds, and remove it"),
        (
            config.get("no_ack"),
            "no_ack",
            "the server never says whether a put was stored",
            "Change it with: nats stream edit --ack",
        ),
        (config.get("max_age"), "max_age", "messages that nobody has handled yet are removed", "Set it to 0"),
        (
            old and limits,
            f"discard old and {' and '.join(limits)}",
            "a full stream drops its oldest messages",
            "Set discard to new: a full stream then refuses puts",
        ),
        (
            each > 0 and (old or not config.get("discard_new_per_subject")),
            "max_msgs_per_subject",
            "a full stream drops its oldest messages",
            "Set it to -1, or discard to new and discard_new_per_subject too: a full stream then refuses puts",
        ),
        (
            config.get("subject_transform"),
            "a subject_transform",
            "puts are stored under another subject, which a consumer's filter leaves out",
            "Remove the transform",
        ),
        (
            config.get("consumer_limits", {}).get("inactive_threshold"),
            "consumer_limits with an inactive_threshold",
            "consumers are removed when it is quiet, and with them the counts of attempts",
            "Set it to 0, and remove the consumer, which has it too",
        ),
    ):
        if found:
            raise UnfitQueue(
                f"jetstream: the stream {names.stream} has {setting}: {harm}. Nothing was put or received. {remedy}"
            )


def check_consumer(names: Names, config: dict[str, Any]) -> None:
    """Raise `UnfitQueue` for a consumer that loses messages, leaves them in the stream, or gives out none."""
    filters = config.get("filter_subjects") or [config.get("filter_subject") or names.subject]
    for found, setting, harm in (
        (config.get("ack_policy") != "explicit", f"ack_policy {config.get('ack_policy')}", "a retry would be lost"),
        (config.get("headers_only"), "headers_only", "bodies would be lost"),
        (config.get("backoff"), "backoff", "it overrides the leases that workers ask for"),
        (config.get("deliver_subject"), "a deliver_subject", "workers pull, and would receive nothing"),
        (
            not any(covers(pattern, names.subject) for pattern in filters),
            f"the filter {filters}",
            f"it leaves {names.subject} out",
        ),
        (
            config.get("max_deliver", NO_LIMIT) > 0,
            "max_deliver",
            "a message whose last delivery fails stays in the stream, and nobody receives it again",
        ),
        (config.get("replay_policy") == "original", "replay_policy original", "it holds messages back"),
        (
            config.get("inactive_threshold"),
            "an inactive_threshold",
            "the server removes it when it is quiet, and with it the counts of attempts",
        ),
        (config.get("priority_groups"), "priority_groups", "workers name no group, and would receive nothing"),
        (0 < config.get("max_batch", 0) < BATCH_MAX, "max_batch", f"workers ask for up to {BATCH_MAX} messages"),
        (
            0 < config.get("max_expires", 0) < WAIT_S * NANO,
            "max_expires",
            f"workers wait {WAIT_S:g} s where leases are limited",
        ),
    ):
        if found:
            raise UnfitQueue(
                f"jetstream: the consumer {names.consumer} of the stream {names.stream} has {setting}: {harm}. Nothing "
                "was received, and the messages are safe. Remove this consumer, and the next receive makes one; or "
                "make it as a pull consumer with ack_policy explicit and without that"
            )


def covers(pattern: str, subject: str) -> bool:
    """Say whether NATS takes ``subject`` for one of ``pattern``, in which ``*`` is one token and ``>`` the rest."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        given = given[: len(wanted)] if len(given) > len(wanted) else []
    return len(wanted) == len(given) and all(one in ("*", token) for one, token in zip(wanted, given, strict=True))


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


class Names(NamedTuple):
    """What a queue is called there. Tokens of a reference hold neither a dot nor an equals sign."""

    stream: str
    subject: str
    consumer: str

    @classmethod
    def of(cls, prefix: str, reference: str) -> Names:
        """Return the names of a reference; raises `BadQueueReference`."""
        account, queue = split_reference(parse_reference(reference))
        return cls(f"{prefix}={account}={queue}", f"{prefix}.queue.{account}.{queue}", prefix)


def reference_of(prefix: str, stream: str) -> str | None:
    """Return the reference of a stream; None where it is none of ours."""
    parts = stream.split("=")
    if len(parts) != 3 or parts[0] != prefix:
        return None
    try:
        return parse_reference(f"{parts[1]}/{parts[2]}")
    except ValueError:
        return None


class Delivery(NamedTuple):
    """One delivery of a message, as the subject of its acknowledgement has it."""

    stream: str
    consumer: str
    delivered: int
    sequence: int
    stored_at: datetime.datetime

    @classmethod
    def of(cls, subject: str) -> Delivery | None:
        """Read ``$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.NUMBER.TIME.PENDING``; None for anything else.

        Newer servers put a domain and an account before the stream, and more behind.
        """
        parts = subject.split(".")
        if parts[:2] != ["$JS", "ACK"] or len(parts) < 9 or not subject.isascii() or subject.split() != [subject]:
            return None
        stream, consumer, delivered, sequence, _, time = parts[2:8] if len(parts) == 9 else parts[4:10]
        if not (delivered.isdigit() and sequence.isdigit() and time.isdigit()) or len(time) > 19:
            return None
        stored_at = datetime.datetime.fromtimestamp(int(time) // 1000 / 1e6, datetime.UTC)
        return cls(stream, consumer, int(delivered), int(sequence), stored_at)
