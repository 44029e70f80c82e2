"""The promise of a broker: one connection to a NATS or MQTT server, for triggers, frames and wakes alike.

An adapter is small and dumb: it connects once, and when the connection is doubtful it breaks and says so. Reconnecting,
probing, back-off, gaps and readiness are decided once above it (`bridge/triggers/supervisor.py`). Nothing that the
client library says of itself is trusted: only a message that went out and came back through the broker proves the path.

Topics are tuples of tokens, so that no name can smuggle a wildcard or a separator: NATS joins them with dots, MQTT
with slashes. A pattern may hold ``ANY`` for one token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from bridge.contract.errors import BusUnavailable

ANY = "*"
Topic = tuple[str, ...]


class Incoming(msgspec.Struct, frozen=True):
    """One message from the broker.

    ``redelivered`` is the broker's own word that this is a copy. ``acknowledge`` (None where the broker expects none)
    is called after what the message asks for has been done (a trigger: after the mark, B1); never calling it lets the
    broker deliver again. ``reply_to`` is where its sender waits for an answer, if it does.
    """

    topic: Topic
    payload: bytes
    content_type: str | None = None
    headers: Mapping[str, str] = {}
    """NATS headers, or MQTT 5 user properties, names in lower case."""
    redelivered: bool = False
    acknowledge: Callable[[], None] | None = None
    reply_to: Topic | None = None


Hear = Callable[[Incoming], None]
"""Called on the event loop's thread, in order, must not block, and must not raise."""


class SubscriptionRefused(BusUnavailable):
    """The broker lives, and does not let this user hear what it asked for."""


class Broker(Protocol):
    """One connection, made once."""

    @property
    def kind(self) -> str:
        """``nats`` or ``mqtt``."""
        ...

    @property
    def address(self) -> str:
        """Where it connects, without user, password or token: for logs and `/readyz`."""
        ...

    @property
    def private(self) -> bool:
        """Whether nobody on the way can read: it is encrypted, or does not leave this machine."""
        ...

    async def connect(self, *, will: tuple[Topic, bytes] | None = None) -> None:
        """Connect within 5 s, or raise `BusUnavailable` (worth another try) or `ConfigurationError` (not).

        ``will`` is what the broker publishes when this connection ends without `close`, where it can (MQTT).
        """
        ...

    async def subscribe(self, pattern: Topic, hear: Hear, *, at_least_once: bool = False) -> None:
        """Hear what is published from now on under ``pattern``.

        When it returns, the broker has the subscription: a message published afterwards by anybody is heard
        (as long as the connection lives). Raises `BusUnavailable`, and `SubscriptionRefused` where the broker says
        that this user may not.
        """
        ...

    def publish(
        self, topic: Topic, payload: bytes, *, content_type: str | None = None, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Put one message on its way, at most once, in order; never blocks.

        Returns False, with nothing sent and nothing kept for later, when the connection is broken or its buffer is
        full. A message kept back and sent after an outage would be worthless or wrong (S3).
        """
        ...

    def writable(self) -> bool:
        """Whether little enough is unsent that a frame sent now would leave at once."""
        ...

    async def request(self, topic: Topic, payload: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Bring one message to whoever listens, and wait up to 5 s for a word that it arrived.

        NATS: the listener's own answer (none there: `BusUnavailable` at once). MQTT: the broker's (QoS 1).
        Raises `BusUnavailable`.
        """
        ...

    async def barrier(self) -> None:
        """Return once the broker has taken everything published and subscribed before. Raises `BusUnavailable`."""
        ...

    async def probe(self) -> float:
        """Send a message to oneself through the broker and return the seconds it took.

        Raises `BusUnavailable` after 2 s, whatever the client library believes about the connection.
        """
        ...

    async def broken(self) -> str:
        """Wait until this connection is known to be broken, and return why in one line."""
        ...

    @property
    def dropped(self) -> int:
        """Messages that the client library dropped on their way in (slow consumer), since connect."""
        ...

    async def close(self) -> None:
        """End the connection, within 2 s even if the peer is half-open; `broken` returns. May be called twice."""
        ...
