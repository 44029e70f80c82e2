"""MQTT 5 and 3.1.1, for mosquitto, NATS's own MQTT listener (3.1.1 only) and others.

MQTT 3.1.1 carries neither content types nor headers; they are left out. Patterns of one connection should not overlap:
brokers differ in how often they then deliver.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import secrets
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from queuebell.bridge.brokers.address import Address
from queuebell.bridge.brokers.base import Incoming, OnMessage, Topic, Topics, matches
from queuebell.bridge.brokers.connection import CONNECT_S, REQUEST_S, UNSENT_LITTLE, UNSENT_MAX, BrokerConnection
from queuebell.bridge.brokers.mqtt.access import OPTIONS, UNSUPPORTED_VERSION, MqttAccess, check_installed
from queuebell.bridge.contract.errors import BadInput, BusUnavailable, Closed, ConfigurationError

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage
    from paho.mqtt.properties import Properties

    from queuebell.bridge.brokers.mqtt.wire import MqttWire

LEAVE_S: Final = 0.5
EARLY_MAX: Final = 1000
PACKET_OVERHEAD: Final = 16
NO_MATCHING_SUBSCRIBERS: Final = 16
REFUSED: Final = 128
_ROUTES_MAX: Final = 10_000
_NO_HEADERS: Final[Mapping[str, str]] = {}

_Route = tuple[Topic, tuple[tuple[OnMessage, bool], ...]]


class MqttBroker(BrokerConnection):
    """One connection to an MQTT broker at ``mqtt://`` or ``mqtts://``.

    Options of the address: ``version`` is "5" or "3.1.1"; without it 5, and 3.1.1 where the broker refuses 5. Without
    ``client_id`` the client's identifier is name, host and a random part: two clients with the same one evict each
    other for ever. With ``client_id`` and ``session`` the broker keeps the session for that many seconds, and
    redelivers unacknowledged messages in it. ``tls_ca``, ``tls_cert`` and ``tls_key`` are files.
    """

    kind = "mqtt"

    def __init__(self, url: str, *, name: str = "queuebell", prefix: str = "queuebell") -> None:
        where = Address(url, schemes=("mqtt", "mqtts"), options=OPTIONS)
        super().__init__(where, Topics("/", "+"))
        self._access = MqttAccess(where, name)
        made = secrets.token_hex(8)
        self._tokens = (f"{made}-{number}" for number in itertools.count(1))
        # Fixed for a persistent session: otherwise each connection would leave a subscription in it.
        echo = hashlib.sha256(self._access.client_id.encode()).hexdigest()[:16] if self._access.session_s else made
        self.echo_topic: Topic = (prefix, "echo", echo)
        self._wire: MqttWire | None = None
        self._thread = 0
        self._patterns: list[tuple[Topic, OnMessage, bool]] = []
        self._routes: dict[str, _Route] = {}
        self._early: list[MQTTMessage] = []
        self._subscribed = not self._access.session_s
        self._left: set[str] = set()

    async def connect(self, *, will: tuple[Topic, bytes] | None = None) -> None:
        """Connect within 5 s, with ``will`` as last will (QoS 0). Raises as `Broker.connect` does."""
        if self._wire is not None or self._ending.reason is not None:
            raise Closed("connect may be called only once")
        last = None if will is None else (self._topics.join(will[0]), will[1])
        self._thread = threading.get_ident()
        try:
            async with asyncio.timeout(CONNECT_S):
                self._wire = await self._dial(last)
                await self.subscribe(self.echo_topic, self._on_echo)
        except TimeoutError:
            self._give_up("no connection in time")
            raise BusUnavailable(f"{self.address}: no connection within {CONNECT_S:g} s") from None
        except ssl.SSLCertVerificationError as error:
            self._give_up(error.verify_message)
            raise ConfigurationError(f"broker: {self.address}: {error.verify_message}") from None
        except (OSError, ValueError) as error:
            self._give_up(_text(error))
            raise BusUnavailable(f"{self.address}: {_text(error)}") from None
        except BaseException:
            self._give_up("connecting failed")
            raise

    async def subscribe(self, pattern: Topic, on_message: OnMessage, *, at_least_once: bool = False) -> None:
        """Receive ``pattern``, with QoS 1 if ``at_least_once``. Raises `BusUnavailable`, also for a refusal."""
        wire = self._alive()
        text = self._topics.pattern(pattern)
        entry = (pattern, on_message, at_least_once)
        self._patterns.append(entry)  # before the broker has it: its first message may come with its consent
        self._routes.clear()
        try:
            code = await wire.subscribe(text, 1 if at_least_once else 0, REQUEST_S)
            if code >= REFUSED:
                raise BusUnavailable(f"{self.address}: subscription to {text} rejected with reason {code}")
        except BaseException:
            self._patterns.remove(entry)
            self._routes.clear()
            raise
        early, self._early = self._early, []
        for message in early:
            self._on_message(message)

    def publish(
        self, topic: Topic, payload: bytes, *, content_type: str | None = None, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Send one message with QoS 0. Also False for one above the broker's limit, which is logged."""
        wire = self._wire
        text = self._topics.join(topic)
        if wire is None or self._ending.reason is not None or wire.unsent() > UNSENT_MAX:
            return False
        if len(payload) + len(text) + PACKET_OVERHEAD > wire.packet_max:
            self._warnings.warn("not published", f"{len(payload)} bytes, the broker accepts {wire.packet_max}")
            return False
        return wire.publish(text, payload, self._properties(content_type, headers))

    def writable(self) -> bool:
        """Return whether less than 64 KiB is unsent."""
        return self._wire is not None and self._ending.reason is None and self._wire.unsent() < UNSENT_LITTLE

    async def request(self, topic: Topic, payload: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Publish with QoS 1 and wait for the broker; MQTT 5 also reports that there is no subscriber."""
        wire = self._alive()
        text = self._topics.join(topic)
        if len(payload) + len(text) + PACKET_OVERHEAD > wire.packet_max:
            raise BadInput("too_large", f"the broker accepts at most {wire.packet_max} bytes per message")
        code = await wire.deliver(text, payload, self._properties(None, headers), REQUEST_S)
        if code == NO_MATCHING_SUBSCRIBERS:
            raise BusUnavailable(f"{self.address}: no subscriber at {text}")
        if code >= REFUSED:
            raise BusUnavailable(f"{self.address}: rejected with reason {code}")

    async def probe(self) -> float:
        """Send a message to this connection and return its round trip in seconds.

        The first probe comes after all subscriptions, so messages of a persistent session without one are dropped.
        """
        self._drop_early()
        return await super().probe()

    # --- connecting -------------------------------------------------------------------------------------------------

    async def _dial(self, will: tuple[str, bytes] | None) -> MqttWire:
        check_installed()
        from queuebell.bridge.brokers.mqtt.wire import MqttWire

        code = UNSUPPORTED_VERSION
        for version in self._access.versions:
            wire = MqttWire(self._access, version, will, self._on_message, self._ending.end)
            try:
                code = await wire.dial()
            except BaseException:
                wire.abort()
                raise
            if code == 0:
                return wire
            wire.abort()
            if code != UNSUPPORTED_VERSION:
                break
        raise self._access.refusal(code)

    def _give_up(self, reason: str) -> None:
        self._ending.end(reason)
        if self._wire is not None:
            self._wire.abort()

    def _alive(self) -> MqttWire:
        self._ending.check()
        if self._wire is None:
            raise BusUnavailable(f"{self.address}: not connected")
        return self._wire

    # --- messages ---------------------------------------------------------------------------------------------------

    def _on_message(self, message: MQTTMessage) -> None:
        """Pass one message from paho to its subscribers; must not raise."""
        try:
            text = message.topic
            topic, subscribers = self._routes.get(text) or self._route(text)
            if message.retain:  # an old one (3.1.1 cannot switch these off)
                self._acknowledge(message)
                return
            if not subscribers:
                self._hold_or_drop(message)
                return
            payload = bytes(message.payload)
            kind, headers, reply = None, _NO_HEADERS, None
            if message.properties is not None:
                kind, headers, reply = self._read_properties(message.properties)
            acknowledge = self._acknowledgement(message) if message.qos else None
            if acknowledge is not None and not any(confirming for _, confirming in subscribers):
                acknowledge()
        except Exception as error:  # noqa: BLE001
            self._warnings.warn("invalid message", type(error).__name__, error)
            return
        for on_message, confirming in subscribers:
            try:
                on_message(
                    Incoming(topic, payload, kind, headers, message.dup, acknowledge if confirming else None, reply)
                )
            except Exception as error:  # noqa: BLE001
                self._warnings.warn("unexpected error in a message", type(error).__name__, error)

    def _route(self, text: str) -> _Route:
        topic = tuple(text.split("/"))
        route = (topic, tuple((call, sure) for pattern, call, sure in self._patterns if matches(pattern, topic)))
        if len(self._routes) >= _ROUTES_MAX:
            self._routes.clear()
        self._routes[text] = route
        return route

    def _hold_or_drop(self, message: MQTTMessage) -> None:
        """Hold a message of a persistent session until its pattern is subscribed again; the broker keeps it too."""
        if self._subscribed or message.qos == 0:
            # Those that come after the first probe may have been triggers, too. They end with their subscription; the
            # ones of a stranger's may not, and are no reason to check every queue again and again.
            if self._drop(message) and message.qos:
                self._dropped += 1
        elif len(self._early) < EARLY_MAX:
            self._early.append(message)
        else:
            self._dropped += 1

    def _drop_early(self) -> None:
        """Acknowledge messages without a subscriber: they would fill the broker's window for ever."""
        if self._subscribed:
            return
        self._subscribed = True
        early, self._early = self._early, []
        # They may have been triggers: after a drop the supervisor has every queue checked once.
        self._dropped += len(early)
        for message in early:
            self._drop(message)

    def _drop(self, message: MQTTMessage) -> bool:
        """Acknowledge a message without a subscriber, and end its subscription in the persistent session.

        Only patterns that differ in nothing but the prefix are unsubscribed; others stay, with a warning. Returns
        whether this is one of the former.
        """
        self._acknowledge(message)
        if not self._access.session_s or self._wire is None or self._ending.reason is not None:
            return False
        topic = tuple(message.topic.split("/"))
        like = {(topic[0], *pattern[1:]) for pattern, _, _ in self._patterns}
        ours = [each for each in like if matches(each, topic)]
        for pattern in ours:
            with contextlib.suppress(BadInput):  # not a prefix of a bridge
                old = self._topics.pattern(pattern)
                if old not in self._left and len(self._left) < EARLY_MAX:
                    self._left.add(old)
                    self._wire.client.unsubscribe(old)
        self._warnings.warn(
            "acknowledged without a subscriber",
            f"the persistent session of {self._access.client_id!r} has an old subscription to {message.topic!r}; "
            "one with another prefix of a bridge is unsubscribed now, any other must be removed by its "
            "owner",
        )
        return bool(ours)

    def _acknowledge(self, message: MQTTMessage) -> None:
        if message.qos and self._wire is not None and self._ending.reason is None:
            self._wire.client.ack(message.mid, message.qos)

    def _acknowledgement(self, message: MQTTMessage) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def acknowledge() -> None:
            if threading.get_ident() == self._thread:
                self._acknowledge(message)
            else:
                loop.call_soon_threadsafe(self._acknowledge, message)

        return acknowledge

    def _read_properties(self, properties: Properties) -> tuple[str | None, Mapping[str, str], Topic | None]:
        kind: str | None = getattr(properties, "ContentType", None)
        pairs: list[tuple[str, str]] = getattr(properties, "UserProperty", [])
        reply: str | None = getattr(properties, "ResponseTopic", None)
        return kind, {key.lower(): value for key, value in pairs}, self._topics.split(reply) if reply else None

    def _properties(self, content_type: str | None, headers: Mapping[str, str] | None) -> Properties | None:
        if (content_type is None and not headers) or self._wire is None or self._wire.version != 5:
            return None
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if content_type is not None:
            properties.ContentType = content_type
        if headers:
            properties.UserProperty = list(headers.items())
        return properties  # type: ignore[no-any-return]

    def _on_echo(self, incoming: Incoming) -> None:
        self._replies.resolve(incoming.payload, "")

    def _send_to_self(self) -> bytes | None:
        self._alive()
        token = next(self._tokens).encode()
        return token if self.publish(self.echo_topic, token) else None

    # --- ending -----------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        wire = self._wire
        # In order, so that the broker publishes no will.
        orderly = wire is not None and await self._last_echo()
        self._ending.end("closed")
        if wire is not None:
            self._patterns.clear()
            self._routes.clear()
            try:
                if orderly:
                    async with asyncio.timeout(LEAVE_S):
                        await wire.leave()
            except TimeoutError:
                pass  # the broker received the end and does not hang up
            finally:
                wire.abort()


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
