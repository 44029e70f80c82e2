"""From a message as NATS brings it to one that is heard; nothing is raised into the library."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from bridge.brokers.base import Hear, Incoming
from bridge.brokers.complaints import Complaints
from bridge.brokers.topics import Topics

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from bridge.brokers.nats.jetstream import Durable

CONTENT_TYPE: Final = "content-type"
_NO_HEADERS: Final[Mapping[str, str]] = {}


def hearing(
    hear: Hear, topics: Topics, complaints: Complaints, consumer: Durable | None = None
) -> Callable[[Msg], Awaitable[None]]:
    """Return the callback of one subscription, for messages from ``consumer`` with their acknowledgements."""
    split, complain = topics.split, complaints.tell

    async def heard(msg: Msg) -> None:
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
            complain("unexpected error in a message", type(error).__name__, error)

    return heard
