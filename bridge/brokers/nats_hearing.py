"""From a message as NATS brings it to one that is heard; nothing is raised into the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from bridge.broker import Hear, Incoming
from bridge.brokers.complaints import Complaints
from bridge.brokers.topics import Topics

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from bridge.brokers.jetstream import Durable

CONTENT_TYPE: Final = "content-type"
_NO_HEADERS: Final[Mapping[str, str]] = {}


def taking(
    hear: Hear, topics: Topics, complaints: Complaints, consumer: Durable | None = None
) -> Callable[[Msg], None]:
    """Return what takes the library's messages, from ``consumer`` with its acknowledgements."""
    split, complain = topics.split, complaints.tell

    def take(msg: Msg) -> None:
        try:
            kind, headers = None, _NO_HEADERS
            if msg.headers:
                lower = {key.lower(): value for key, value in msg.headers.items()}
                kind, headers = lower.pop(CONTENT_TYPE, None), lower
            reply = msg.reply
            if consumer is None:
                to = tuple(reply.split(".")) if reply else None
                hear(Incoming(split(msg.subject), msg.data, kind, headers, False, None, to))
            else:
                again, acknowledge = consumer.delivery(reply)
                hear(Incoming(split(msg.subject), msg.data, kind, headers, again, acknowledge))
        except Exception as error:  # noqa: BLE001
            complain("a message was not taken", type(error).__name__, error)

    return take


def straight(hear: Hear, topics: Topics, complaints: Complaints) -> Callable[[bytes, bytes, bytes], None]:
    """Return what takes subject, reply and payload of a message without headers (`nats_reading`)."""
    split, complain = topics.split_bytes, complaints.tell

    def take(subject: bytes, reply: bytes, payload: bytes) -> None:
        try:
            to = tuple(reply.decode().split(".")) if reply else None
            hear(Incoming(split(subject), payload, None, _NO_HEADERS, False, None, to))
        except Exception as error:  # noqa: BLE001
            complain("a message was not taken", type(error).__name__, error)

    return take
