"""MQTT 5 and 3.1.1, against mosquitto, NATS's own MQTT listener (3.1.1 only) and others.

MQTT 3.1.1 carries neither content types nor headers: there, both are left out. Patterns of one connection should not
overlap, for brokers differ in how often they then deliver.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import re
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bridge.brokers.address import Address, TlsOptions
from bridge.brokers.base import Hear, Incoming, Topic
from bridge.brokers.complaints import Complaints
from bridge.brokers.connection import CONNECT_S, REQUEST_S, UNSENT_LITTLE, UNSENT_MAX, BrokerConnection
from bridge.brokers.extras import install
from bridge.brokers.topics import Topics, matches
from bridge.contract.errors import BadInput, BusUnavailable, Closed, ConfigurationError

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage
    from paho.mqtt.properties import Properties

    from bridge.brokers.mqtt.wire import MqttWire

LEAVE_S: Final = 0.5
EARLY_MAX: Final = 1000
PACKET_OVERHEAD: Final = 16
UNSUPPORTED_VERSION: Final = 132
NO_MATCHING_SUBSCRIBERS: Final = 16
REFUSED: Final = 128
# What another try cannot mend: bad identifier, user, method; not authorised; banned.
_WRONG: Final = frozenset({133, 134, 135, 138, 140})
OPTIONS: Final = ("version", "client_id", "session", "name")
_ROUTES_MAX: Final = 10_000
_NO_HEADERS: Final[Mapping[str, str]] = {}

_Route = tuple[Topic, tuple[tuple[Hear, bool], ...]]


class MqttBroker(BrokerConnection):
    """One connection to an MQTT broker at ``mqtt://`` or ``mqtts://``.

    ``version`` is 5 (falls back to 3.1.1 where the broker refuses it), or "5" or "3.1.1" and no other. The client's id
    is name, host and a random part: two clients of one id evict each other for ever. With ``client_id`` and
    ``session_s`` the broker keeps the session for so long, and redelivers in it what was not acknowledged. All are
    options of the address too, ``session_s`` as ``session``; so are ``tls_ca``, ``tls_cert`` and ``tls_key``.
    """

    kind = "mqtt"

    def __init__(
        self,
        url: str,
        *,
        name: str = "queuebell",
        prefix: str = "queuebell",
        version: str | None = None,
        client_id: str | None = None,
        session_s: int = 0,
        user: str | None = None,
        password: str | None = None,
        tls: TlsOptions | None = None,
    ) -> None:
        where = Address(url, schemes=("mqtt", "mqtts"), options=OPTIONS)
        super().__init__(where)
        self._user = user if user is not None else where.user
        self._password = password if password is not None else where.password
        self._tls = tls or TlsOptions.of(where)
        if self._tls.hostname:
            raise ConfigurationError(
                "broker: tls_hostname is for nats; for mqtts, connect to the name in the certificate"
            )
        version = version or where.options.get("version")
        if version not in {None, "5", "3.1.1"}:
            raise ConfigurationError("broker: version must be 5 or 3.1.1")
        self._versions = (5, 4) if version is None else (5,) if version == "5" else (4,)
        self._session_s = session_s or where.number("session", 0, most=2**32 - 1)
        given = client_id or where.options.get("client_id")
        if self._session_s and not given:
            raise ConfigurationError("broker: a persistent session needs a client_id")
        self.client_id = given or _client_id(where.options.get("name", name))
        self._topics = Topics("/", "+")
        self._complaints = Complaints(where.text)
        made = secrets.token_hex(8)
        self._tokens = (f"{made}-{number}" for number in itertools.count(1))
        # The same for ever in a session that is kept, or each connection would leave a subscription in it.
        echo = hashlib.sha256(self.client_id.encode()).hexdigest()[:16] if self._session_s else made
        self._echo_topic: Topic = (prefix, "echo", echo)
        self._wire: MqttWire | None = None
        self._thread = 0
        self._patterns: list[tuple[Topic, Hear, bool]] = []
        self._routes: dict[str, _Route] = {}
        self._early: list[MQTTMessage] = []
        self._settled = not self._session_s
        self._left: set[str] = set()
        self._received = 0

    @property
    def received(self) -> int:
        """Messages that came in; a probe that fails while this grows met a queue, not a dead path."""
        return self._received

    @property
    def version(self) -> str:
        """The version spoken: ``5`` or ``3.1.1``."""
        return "3.1.1" if self._wire is not None and self._wire.version == 4 else "5"

    @property
    def payload_max(self) -> int:
        """The most bytes of payload that the broker takes in one message, for short topics and few headers."""
        return (self._wire.packet_max if self._wire is not None else 268_435_455) - 1024

    async def connect(self, *, will: tuple[Topic, bytes] | None = None) -> None:
        """Connect within 5 s, with ``will`` as last will (QoS 0). Raises as `Broker.connect` does."""
        if self._wire is not None or self._ending.reason is not None:
            raise Closed("connect may be called only once")
        last = None if will is None else (self._topics.join(will[0]), will[1])
        self._thread = threading.get_ident()
        try:
            async with asyncio.timeout(CONNECT_S):
                self._wire = await self._dial(last)
                await self._listen(self._echo_topic, self._echoed, at_least_once=False)
        except TimeoutError:
            self._give_up("no connection in time")
            raise BusUnavailable(f"{self.address}: no connection within {CONNECT_S:g} s") from None
        except ssl.SSLCertVerificationError as error:
            self._give_up(error.verify_message)
            raise ConfigurationError(f"broker: {self.address}: {error.verify_message}") from None
        except (OSError, ValueError) as error:
            self._give_up(_said(error))
            raise BusUnavailable(f"{self.address}: {_said(error)}") from None
        except BaseException:
            self._give_up("connecting failed")
            raise

    async def subscribe(self, pattern: Topic, hear: Hear, *, at_least_once: bool = False) -> None:
        """Hear ``pattern``, with QoS 1 if ``at_least_once``. Raises `BusUnavailable`, also where it is refused."""
        await self._listen(pattern, hear, at_least_once=at_least_once)

    def publish(
        self, topic: Topic, payload: bytes, *, content_type: str | None = None, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Put one message of QoS 0 on its way. Also False for one above the broker's limit, which is logged."""
        wire = self._wire
        text = self._topics.join(topic)
        if wire is None or self._ending.reason is not None or wire.unsent() > UNSENT_MAX:
            return False
        if len(payload) + len(text) + PACKET_OVERHEAD > wire.packet_max:
            self._complaints.tell("not published", f"{len(payload)} bytes, the broker accepts {wire.packet_max}")
            return False
        return wire.publish(text, payload, self._properties(content_type, headers))

    def writable(self) -> bool:
        """Whether less than 64 KiB is unsent."""
        return self._wire is not None and self._ending.reason is None and self._wire.unsent() < UNSENT_LITTLE

    async def request(self, topic: Topic, payload: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Publish with QoS 1 and wait for the broker's word; MQTT 5 also tells when nobody has subscribed."""
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
        """Send a message to our own topic and return the seconds it took.

        Whoever probes has subscribed to all that it wants to hear: what a kept session brought for nobody is let go.
        """
        self._settle()
        return await super().probe()

    # --- connecting -------------------------------------------------------------------------------------------------

    async def _dial(self, will: tuple[str, bytes] | None) -> MqttWire:
        try:
            from paho.mqtt.client import Client as _  # noqa: F401

            from bridge.brokers.mqtt.wire import MqttWire
        except ImportError:
            raise ConfigurationError(f"broker: mqtt:// needs the extra: {install('mqtt')}") from None
        code = UNSUPPORTED_VERSION
        for version in self._versions:
            wire = MqttWire(
                self._where,
                self._tls,
                version=version,
                client_id=self.client_id,
                session_s=self._session_s,
                user=self._user,
                password=self._password,
                will=will,
                hear=self._heard,
                ended=self._ending.tell,
            )
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
        said = f"{self.address}: rejected with reason {code}"
        if code in _WRONG:
            raise ConfigurationError(f"broker: {said} (identifier, user or password)")
        raise BusUnavailable(said)

    def _give_up(self, reason: str) -> None:
        self._ending.tell(reason)
        if self._wire is not None:
            self._wire.abort()

    def _alive(self) -> MqttWire:
        self._ending.check()
        if self._wire is None:
            raise BusUnavailable(f"{self.address}: not connected")
        return self._wire

    # --- hearing ----------------------------------------------------------------------------------------------------

    async def _listen(self, pattern: Topic, hear: Hear, *, at_least_once: bool) -> None:
        wire = self._alive()
        text = self._topics.pattern(pattern)
        entry = (pattern, hear, at_least_once)
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
            self._heard(message)

    def _heard(self, message: MQTTMessage) -> None:
        """Take one message from paho; nothing may be raised into it."""
        self._received += 1
        try:
            text = message.topic
            topic, hearers = self._routes.get(text) or self._route(text)
            if message.retain:  # kept by the broker from long ago (3.1.1 cannot ask it not to send these)
                self._acknowledge(message)
                return
            if not hearers:
                self._unheard(message)
                return
            payload = bytes(message.payload)
            kind, headers, reply = None, _NO_HEADERS, None
            if message.properties is not None:
                kind, headers, reply = self._described(message.properties)
            acknowledge = self._acknowledgement(message) if message.qos else None
            if acknowledge is not None and not any(confirming for _, confirming in hearers):
                acknowledge()
        except Exception as error:  # noqa: BLE001
            self._complaints.tell("invalid message", type(error).__name__, error)
            return
        for hear, confirming in hearers:
            try:
                hear(Incoming(topic, payload, kind, headers, message.dup, acknowledge if confirming else None, reply))
            except Exception as error:  # noqa: BLE001
                self._complaints.tell("unexpected error in a message", type(error).__name__, error)

    def _route(self, text: str) -> _Route:
        topic = tuple(text.split("/"))
        route = (topic, tuple((hear, sure) for pattern, hear, sure in self._patterns if matches(pattern, topic)))
        if len(self._routes) >= _ROUTES_MAX:
            self._routes.clear()
        self._routes[text] = route
        return route

    def _unheard(self, message: MQTTMessage) -> None:
        """Hold what a kept session brings before its pattern is subscribed anew; the broker keeps it meanwhile."""
        if self._settled or message.qos == 0:
            self._let_go(message)
        elif len(self._early) < EARLY_MAX:
            self._early.append(message)
        else:
            self._dropped += 1

    def _settle(self) -> None:
        """No pattern is subscribed any more: what is still held would fill the broker's window for ever."""
        if self._settled:
            return
        self._settled = True
        early, self._early = self._early, []
        # They may have told of work: the supervisor looks at every queue once where something was dropped.
        self._dropped += len(early)
        for message in early:
            self._let_go(message)

    def _let_go(self, message: MQTTMessage) -> None:
        """Acknowledge what nobody hears, and end the subscription that a kept session has of it, under another prefix.

        Only patterns like our own are known well enough to be unsubscribed; others go on, and are told of.
        """
        self._acknowledge(message)
        if not self._session_s or self._wire is None or self._ending.reason is not None:
            return
        topic = tuple(message.topic.split("/"))
        like = {(topic[0], *pattern[1:]) for pattern, _, _ in self._patterns}
        for pattern in [each for each in like if matches(each, topic)]:
            with contextlib.suppress(BadInput):  # a first token that no prefix of ours ever had
                old = self._topics.pattern(pattern)
                if old not in self._left and len(self._left) < EARLY_MAX:
                    self._left.add(old)
                    self._wire.client.unsubscribe(old)
        self._complaints.tell(
            "acknowledged without a subscriber",
            f"the persistent session of {self.client_id!r} has an old subscription to {message.topic!r}; "
            "one with another prefix of a bridge is unsubscribed now, any other must be removed by its "
            "owner",
        )

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

    def _described(self, properties: Properties) -> tuple[str | None, Mapping[str, str], Topic | None]:
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

    def _echoed(self, incoming: Incoming) -> None:
        self._answers.settle(incoming.payload, "")

    def _send_to_ourselves(self) -> bytes | None:
        self._alive()
        token = next(self._tokens).encode()
        return token if self.publish(self._echo_topic, token) else None

    # --- ending -----------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        wire = self._wire
        # In order, so that the broker publishes no will.
        orderly = wire is not None and await self._last_echo()
        self._ending.tell("closed")
        if wire is not None:
            self._patterns.clear()
            self._routes.clear()
            try:
                if orderly:
                    async with asyncio.timeout(LEAVE_S):
                        await wire.leave()
            except TimeoutError:
                pass  # the broker does not hang up; it has been told
            finally:
                wire.abort()


def _client_id(role: str) -> str:
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:20]
    return f"{re.sub(r'[^A-Za-z0-9-]', '-', role)[:20]}-{host}-{secrets.token_hex(4)}"


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
