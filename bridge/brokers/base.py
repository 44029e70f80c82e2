"""The promise of a broker: one connection that carries triggers, frames and wakes.

A broker of `bridge/brokers/` connects once and ends when the connection is doubtful. Reconnecting, probing, back-off
and readiness are decided in `bridge/triggers/supervisor.py`, once for all brokers. The client library's own state is
not used: only a message that went out and came back through the broker proves the path.

Topics are tuples of tokens, so that no name can contain a wildcard or a separator: NATS joins them with dots, MQTT with
slashes. A pattern may hold ``ANY`` for one token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from queuebell.bridge.contract.errors import BadInput, BusUnavailable

ANY = "*"
Topic = tuple[str, ...]


class Incoming(msgspec.Struct, frozen=True):
    """One message from the broker.

    ``redelivered`` is set by the broker on a copy. Call ``acknowledge`` (None where the broker expects none) after the
    message was processed (a trigger: after the wake request, B1); without it the broker delivers again. ``reply_to`` is
    where the sender waits for an answer.
    """

    topic: Topic
    payload: bytes
    content_type: str | None = None
    headers: Mapping[str, str] = {}
    """NATS headers, or MQTT 5 user properties, names in lower case."""
    redelivered: bool = False
    acknowledge: Callable[[], None] | None = None
    reply_to: Topic | None = None


OnMessage = Callable[[Incoming], None]
"""Called on the event loop's thread, in order. Must not block and must not raise."""


class SubscriptionRefused(BusUnavailable):
    """The broker does not allow this user to subscribe."""


class Broker(Protocol):
    """One connection, made once."""

    @property
    def kind(self) -> str:
        """The kind of broker, as in its scheme; selects the decoder in `queuebell.bridge.triggers.intake`."""
        ...

    @property
    def address(self) -> str:
        """Where it connects, without user, password or token: for logs and `/readyz`."""
        ...

    @property
    def private(self) -> bool:
        """Whether it is encrypted, or does not leave this machine."""
        ...

    async def connect(self, *, will: tuple[Topic, bytes] | None = None) -> None:
        """Connect within 5 s, or raise `BusUnavailable` (worth another try) or `ConfigurationError` (not).

        The broker publishes ``will`` when this connection ends without `close`, where it can (MQTT).
        """
        ...

    async def subscribe(self, pattern: Topic, on_message: OnMessage, *, at_least_once: bool = False) -> None:
        """Receive messages published under ``pattern`` from now on.

        Returns once the broker has the subscription: messages published afterwards arrive while the connection lives.
        Raises `BusUnavailable`, and `SubscriptionRefused` where the broker reports that this user may not.
        """
        ...

    def publish(
        self, topic: Topic, payload: bytes, *, content_type: str | None = None, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Send one message at most once, in order; never blocks.

        Returns False, with nothing sent and nothing kept for later, when the connection is broken or its buffer is
        full. A message that is sent after an outage would be worthless or wrong (S3).
        """
        ...

    def writable(self) -> bool:
        """Return whether so little is unsent that a frame sent now would leave immediately."""
        ...

    async def request(self, topic: Topic, payload: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Send one message to a subscriber, and wait up to 5 s for its acknowledgement.

        NATS: the subscriber's answer (without one: `BusUnavailable` immediately). MQTT: the broker's (QoS 1).
        Raises `BusUnavailable`.
        """
        ...

    async def barrier(self) -> None:
        """Wait until the broker has processed everything published and subscribed before. Raises `BusUnavailable`."""
        ...

    async def probe(self) -> float:
        """Send a message to this connection through the broker and return its round trip in seconds.

        Raises `BusUnavailable` after 2 s, whatever the client library reports about the connection.
        """
        ...

    async def broken(self) -> str:
        """Wait until this connection is known to be broken, and return the reason in one line."""
        ...

    @property
    def dropped(self) -> int:
        """Incoming messages that the client library dropped (slow consumer), since connect."""
        ...

    async def close(self) -> None:
        """End the connection, within 2 s even if the peer is half-open; `broken` returns. May be called twice."""
        ...


# Refused on both brokers, so that a topic means the same on both: NATS's MQTT listener turns a dot into "//".
_token = re.compile(r"[^\s\x00-\x1f\x7f./*+#>]+").fullmatch
_KNOWN_MAX = 10_000


class Topics:
    """Converts topics to a broker's text and back, with a cache of bounded size."""

    def __init__(self, separator: str, wildcard: str) -> None:
        self._separator = separator
        self._wildcard = wildcard
        self._joined: dict[Topic, str] = {}
        self._split: dict[str, Topic] = {}

    def join(self, topic: Topic) -> str:
        """Return the text of a topic. Raises `BadInput` for tokens that contain separators or wildcards."""
        text = self._joined.get(topic)
        if text is None:
            _check(topic)
            text = self._separator.join(topic)
            if len(self._joined) >= _KNOWN_MAX:
                self._joined.clear()
            self._joined[topic] = text
        return text

    def pattern(self, pattern: Topic) -> str:
        """Return the text of a pattern. Raises `BadInput` as `join` does, and for ``$share`` and its like (B16)."""
        _check(tuple("any" if token == ANY else token for token in pattern))
        if pattern[0].startswith("$"):
            # NATS's MQTT listener grants `$share/...` and then delivers nothing; triggers are never shared anyway.
            raise BadInput("bad_parameter", "a pattern must not start with '$'")
        return self._separator.join(self._wildcard if token == ANY else token for token in pattern)

    def split(self, text: str) -> Topic:
        """Return the tokens of a topic from the broker; they may be anything, empty ones included."""
        topic = self._split.get(text)
        if topic is None:
            topic = tuple(text.split(self._separator))
            if len(self._split) >= _KNOWN_MAX:
                self._split.clear()
            self._split[text] = topic
        return topic


def matches(pattern: Topic, topic: Topic) -> bool:
    """Return whether ``topic`` matches ``pattern``."""
    return len(pattern) == len(topic) and all(a in {ANY, b} for a, b in zip(pattern, topic, strict=True))


def _check(topic: Topic) -> None:
    if not topic or not all(_token(token) for token in topic):
        raise BadInput("bad_parameter", "a topic must consist of tokens without space, '.', '/', '*', '>', '+' and '#'")
