"""Requests of JetStream's API for queues: streams, consumers, names and errors."""

from __future__ import annotations

import datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from queuebell.bridge.contract.errors import (
    ConfigurationError,
    QueueNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.contract.names import parse_reference, split_reference
from queuebell.bridge.queues.base import BATCH_MAX
from queuebell.bridge.queues.jetstream.wire import NoResponder, Wire

API: Final = "$JS.API"
NANO: Final = 10**9
NO_LIMIT: Final = -1
WAIT_S: Final = 0.05
"""Wait of the server before an empty answer if leases are limited: without it, it would not answer at the limit."""
EXTENSIONS_MAX: Final = 3
"""Attempts to extend leases while another program shortens them."""
_NO_CONSUMER = frozenset({10014, 10149})
"""Codes of a read and of a change."""
_NO_STREAM = 10059
_IN_USE = 10058
_OTHERS: Final = {
    10065: "another stream has the subject of this queue. Remove it there, and the next put creates a stream",
    10099: "another consumer of this stream receives its messages. Remove it, or give this queue its own stream",
    10100: "another consumer of this stream receives its messages. Remove it, or give this queue its own stream",
}
"""Overlapping subjects; a second consumer of a work queue, without and with a filter."""
_FULL = frozenset({10023, 10047, 10049, 10077, 10122})
"""Insufficient resources, limits of the account or server, limits of the stream."""


class Refusal(msgspec.Struct):
    """An error of the server."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Delivered(msgspec.Struct):
    """The number of the newest message that a consumer has delivered."""

    stream_seq: int = 0


class ConsumerState(msgspec.Struct):
    """A consumer: its configuration, its waiting and leased messages, and its position."""

    config: dict[str, Any]
    num_pending: int = 0
    num_ack_pending: int = 0
    ts: datetime.datetime | None = None
    """Time of the server's answer."""
    paused: bool = False
    """Whether it delivers nothing until the time in its configuration."""
    delivered: Delivered = msgspec.field(default_factory=Delivered)

    @property
    def ack_wait_s(self) -> float:
        """Duration of a lease."""
        return float(self.config.get("ack_wait", 0)) / NANO

    def check_running(self, names: Names) -> None:
        """Raise `StoreUnavailable` for a paused consumer, whose empty answers prove nothing."""
        if self.paused:
            raise StoreUnavailable(
                f"jetstream: the consumer {names.consumer} of the stream {names.stream} is paused until "
                f"{self.config.get('pause_until')}. Nothing was received, and the messages are safe. To resume "
                f"earlier: nats consumer resume {names.stream} {names.consumer}"
            )

    @property
    def leases_max(self) -> int:
        """Maximum of leased messages; -1 for no limit."""
        return int(self.config.get("max_ack_pending", NO_LIMIT))


class _Dated(msgspec.Struct):
    time: datetime.datetime


class _Found(msgspec.Struct):
    message: _Dated


class Stored(msgspec.Struct):
    """The server's confirmation that a message is stored."""

    stream: str
    seq: int


class _Answer(msgspec.Struct):
    error: Refusal | None = None


class _Streams(msgspec.Struct):
    total: int
    streams: list[str] | None = None


class StreamState(msgspec.Struct):
    """The number of messages in a stream, and the number of its newest message."""

    messages: int
    last_seq: int = 0


class _Stream(msgspec.Struct):
    state: StreamState
    config: dict[str, Any]


T = TypeVar("T")


class JetStreamApi:
    """Requests over one connection; each raises errors of `Wire.ask`, and the error for a rejection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def create_stream(self, names: Names, replicas: int) -> None:
        """Create a stream as a work queue, which removes acknowledged messages; an existing one stays as it is."""
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
            await self.stream(names)  # Created concurrently, or with other replicas or limits.

    async def stream(self, names: Names) -> StreamState:
        """Return the state of a stream, including all puts confirmed before.

        Raises `QueueNotFound`, and `UnfitQueue` for a stream whose configuration would lose or repeat messages.
        """
        found = decoded(await self._ask(f"STREAM.INFO.{names.stream}"), _Stream)
        check_stream(names, found.config)
        return found.state

    async def delete_stream(self, names: Names) -> None:
        """Delete a stream with its messages. Raises `QueueNotFound`."""
        await self._ask(f"STREAM.DELETE.{names.stream}")

    async def purge_stream(self, names: Names) -> None:
        """Remove all messages of a stream. Raises `QueueNotFound`."""
        await self._ask(f"STREAM.PURGE.{names.stream}")

    async def stream_names(self, subjects: str) -> list[str]:
        """Return the names of all streams with ``subjects``."""
        found: list[str] = []
        while True:
            page = decoded(await self._ask("STREAM.NAMES", {"offset": len(found), "subject": subjects}), _Streams)
            if not page.streams:
                return found
            found += page.streams
            if len(found) >= page.total:
                return found

    async def consumer(self, names: Names) -> ConsumerState | None:
        """Return the consumer of a stream, None if it has none.

        Raises `QueueNotFound` without the stream, and `UnfitQueue` for a consumer whose configuration would lose or
        strand messages.
        """
        try:
            found = decoded(await self._ask(f"CONSUMER.INFO.{names.stream}.{names.consumer}"), ConsumerState)
        except ConsumerGone:
            return None
        check_consumer(names, found.config)
        return found

    async def stored_at(self, names: Names, seq: int) -> datetime.datetime | None:
        """Return when the first message from this number on was stored; None if there is none."""
        try:
            asked = {"seq": seq, "next_by_subj": ">"}
            return decoded(await self._ask(f"STREAM.MSG.GET.{names.stream}", asked), _Found).message.time
        except StoreError as error:
            if isinstance(error, StoreUnavailable | UnknownOutcome | QueueNotFound):
                raise
            return None  # No such message, or no permission to read one.

    async def create_consumer(self, names: Names, ack_wait_s: float) -> ConsumerState:
        """Create the consumer without a limit of leases, so that an empty answer means an empty queue."""
        config = {
            "name": names.consumer,
            "durable_name": names.consumer,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": round(ack_wait_s * NANO),
            "max_ack_pending": NO_LIMIT,
        }
        return await self._put_consumer(names, config, "create")

    async def extend_leases(self, names: Names, ack_wait_s: float) -> ConsumerState:
        """Extend a consumer's leases, including existing ones, to at least ``ack_wait_s``.

        Its configuration is read before and after, as other programs change it too: leases are never shortened, and
        nothing but ``ack_wait`` is changed. Raises `ConsumerGone` and `QueueNotFound`.
        """
        for _ in range(EXTENSIONS_MAX):
            state = await self._there(names)
            if state.ack_wait_s >= ack_wait_s:
                return state
            await self._put_consumer(names, {**state.config, "ack_wait": round(ack_wait_s * NANO)}, "update")
        state = await self._there(names)
        if state.ack_wait_s < ack_wait_s:
            raise StoreUnavailable(f"jetstream: another program keeps shortening the leases of {names.stream}")
        return state

    async def _there(self, names: Names) -> ConsumerState:
        state = await self.consumer(names)
        if state is None:
            raise ConsumerGone(f"jetstream: the consumer of {names.stream} was just removed")
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
            raise UnfitQueue(f"jetstream: {operation} was rejected ({refusal.err_code}): {_OTHERS[refusal.err_code]}")
        raise meaning(refusal)


class UnfitQueue(ConfigurationError):
    """The configuration of a stream or consumer would lose, strand or repeat messages; the store rejects it."""

    code = "unsupported"


def check_stream(names: Names, config: dict[str, Any]) -> None:
    """Raise `UnfitQueue` for a stream that accepts no messages, drops them, or never confirms them."""
    retention, subjects = config.get("retention"), config.get("subjects") or []
    old, each = config.get("discard") != "new", config.get("max_msgs_per_subject", NO_LIMIT)
    limits = [name for name in ("max_msgs", "max_bytes") if config.get(name, NO_LIMIT) > 0]
    remake = "Create the stream with retention workqueue, or remove it and let the first put create it"
    for found, setting, harm, remedy in (
        (retention == "interest", "retention interest", "it drops messages put while it has no consumer", remake),
        (
            retention != "workqueue",
            f"retention {retention}",
            "it keeps handled messages, and delivers all of them again to a new consumer",
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
            "the server never confirms a put",
            "Change it with: nats stream edit --ack",
        ),
        (config.get("max_age"), "max_age", "messages are removed before they are handled", "Set it to 0"),
        (
            old and limits,
            f"discard old and {' and '.join(limits)}",
            "a full stream drops its oldest messages",
            "Set discard to new: a full stream then rejects puts",
        ),
        (
            each > 0 and (old or not config.get("discard_new_per_subject")),
            "max_msgs_per_subject",
            "a full stream drops its oldest messages",
            "Set it to -1, or set discard to new and discard_new_per_subject: a full stream then rejects puts",
        ),
        (
            config.get("subject_transform"),
            "a subject_transform",
            "puts are stored under another subject, which a consumer's filter excludes",
            "Remove the transform",
        ),
        (
            config.get("consumer_limits", {}).get("inactive_threshold"),
            "consumer_limits with an inactive_threshold",
            "idle consumers are removed, and with them the counts of attempts",
            "Set it to 0, and remove the consumer, which has the same setting",
        ),
    ):
        if found:
            raise UnfitQueue(
                f"jetstream: the stream {names.stream} has {setting}: {harm}. Nothing was put or received. {remedy}"
            )


def check_consumer(names: Names, config: dict[str, Any]) -> None:
    """Raise `UnfitQueue` for a consumer that loses messages, strands them, or delivers none."""
    filters = config.get("filter_subjects") or [config.get("filter_subject") or names.subject]
    for found, setting, harm in (
        (config.get("ack_policy") != "explicit", f"ack_policy {config.get('ack_policy')}", "a retry would be lost"),
        (config.get("headers_only"), "headers_only", "bodies would be lost"),
        (config.get("backoff"), "backoff", "it overrides the leases that workers request"),
        (config.get("deliver_subject"), "a deliver_subject", "workers pull, and would receive nothing"),
        (
            not any(covers(pattern, names.subject) for pattern in filters),
            f"the filter {filters}",
            f"it excludes {names.subject}",
        ),
        (
            config.get("max_deliver", NO_LIMIT) > 0,
            "max_deliver",
            "a message whose last delivery fails stays in the stream, but is never delivered again",
        ),
        (config.get("replay_policy") == "original", "replay_policy original", "it delays messages"),
        (
            config.get("inactive_threshold"),
            "an inactive_threshold",
            "the server removes it when it is idle, and with it the counts of attempts",
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
                "was received, and the messages are safe. Remove this consumer, and the next receive creates one; or "
                "create it as a pull consumer with ack_policy explicit and without this setting"
            )


def covers(pattern: str, subject: str) -> bool:
    """Return whether a subject matches a pattern, in which ``*`` is one token and ``>`` the rest."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        given = given[: len(wanted)] if len(given) > len(wanted) else []
    return len(wanted) == len(given) and all(one in ("*", token) for one, token in zip(wanted, given, strict=True))


class ConsumerGone(StoreUnavailable):
    """The stream exists, but not its consumer."""


class Taken(StoreError):
    """A stream with this name exists, with another configuration."""


def decoded(raw: bytes, kind: type[T]) -> T:
    """Return a decoded answer; raise `UnknownOutcome` if it did not come from JetStream."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise UnknownOutcome("jetstream: the answer did not come from JetStream") from error


def meaning(refusal: Refusal) -> StoreError:
    """Return the store error for a rejection."""
    said = f"{refusal.description} ({refusal.err_code or refusal.code})"
    if refusal.err_code == _NO_STREAM:
        return QueueNotFound("jetstream: there is no such stream")
    if refusal.err_code in _NO_CONSUMER:
        return ConsumerGone("jetstream: there is no such consumer")
    if refusal.err_code == _IN_USE:
        return Taken(f"jetstream: rejected: {said}; nothing was changed")
    if refusal.err_code in _FULL:
        return StoreFull(f"jetstream: no space: {said}; acknowledged messages are safe")
    if refusal.code in (408, 503):
        return StoreUnavailable(f"jetstream: temporarily unavailable: {said}")
    return StoreError(f"jetstream: rejected: {said}; nothing was changed")


class Names(NamedTuple):
    """The names of a queue at the server. Tokens of a reference contain neither dots nor equals signs."""

    stream: str
    subject: str
    consumer: str

    @classmethod
    def of(cls, prefix: str, reference: str) -> Names:
        """Return the names of a reference; raise `BadQueueReference` if it is invalid."""
        account, queue = split_reference(parse_reference(reference))
        return cls(f"{prefix}={account}={queue}", f"{prefix}.queue.{account}.{queue}", prefix)


def reference_of(prefix: str, stream: str) -> str | None:
    """Return the reference of a stream; None if it belongs to no queue."""
    parts = stream.split("=")
    if len(parts) != 3 or parts[0] != prefix:
        return None
    try:
        return parse_reference(f"{parts[1]}/{parts[2]}")
    except ValueError:
        return None


class Delivery(NamedTuple):
    """One delivery of a message, encoded in the subject of its acknowledgement."""

    stream: str
    consumer: str
    delivered: int
    sequence: int
    stored_at: datetime.datetime

    @classmethod
    def of(cls, subject: str) -> Delivery | None:
        """Read ``$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.NUMBER.TIME.PENDING``; None for anything else.

        Newer servers add a domain and an account before the stream, and more after it.
        """
        parts = subject.split(".")
        if parts[:2] != ["$JS", "ACK"] or len(parts) < 9 or not subject.isascii() or subject.split() != [subject]:
            return None
        stream, consumer, delivered, sequence, _, time = parts[2:8] if len(parts) == 9 else parts[4:10]
        if not (delivered.isdigit() and sequence.isdigit() and time.isdigit()) or len(time) > 19:
            return None
        stored_at = datetime.datetime.fromtimestamp(int(time) // 1000 / 1e6, datetime.UTC)
        return cls(stream, consumer, int(delivered), int(sequence), stored_at)
