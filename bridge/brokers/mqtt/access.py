"""Where an MQTT broker is and as which client to connect: user, identifier, session, TLS and version."""

from __future__ import annotations

import re
import secrets
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

from queuebell.bridge.brokers.address import Address, TlsOptions
from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import BusUnavailable, ConfigurationError

if TYPE_CHECKING:
    from paho.mqtt.client import Client

OPTIONS: Final = ("version", "client_id", "session", "name")
DIAL_S: Final = 4.0
KEEPALIVE_S: Final = 15
RECEIVE_MAXIMUM: Final = 1000
"""Messages of QoS 1 that the broker may leave unacknowledged on their way here (MQTT 5)."""
QUEUED_MAX: Final = 10_000
UNSUPPORTED_VERSION: Final = 132
# Reasons that another try cannot change: bad identifier, user, method; not authorised; banned.
_WRONG: Final = frozenset({133, 134, 135, 138, 140})


class MqttAccess:
    """Makes the clients for the broker at ``where``; ``name`` begins their identifiers unless the address has one."""

    def __init__(self, where: Address, name: str) -> None:
        self.where = where
        self._tls = TlsOptions.of(where)
        if self._tls.hostname:
            raise ConfigurationError(
                "broker: tls_hostname is for nats; for mqtts, connect to the name in the certificate"
            )
        version = where.options.get("version")
        if version not in {None, "5", "3.1.1"}:
            raise ConfigurationError("broker: version must be 5 or 3.1.1")
        self.versions = (5, 4) if version is None else (5,) if version == "5" else (4,)
        """paho's numbers, in the order in which they are tried."""
        self.session_s = where.number("session", 0, most=2**32 - 1)
        given = where.options.get("client_id")
        if self.session_s and not given:
            raise ConfigurationError("broker: a persistent session needs a client_id")
        self.client_id = given or _client_id(where.options.get("name", name))

    def client(self, version: int, will: tuple[str, bytes] | None) -> Client:
        """Return a new paho client, not connected."""
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        five = version == 5
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            clean_session=None if five else self.session_s == 0,
            protocol=MQTTProtocolVersion.MQTTv5 if five else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,  # decided by the supervisor, once for all brokers
            manual_ack=True,  # B1: acknowledged after the wake request
        )
        client.connect_timeout = DIAL_S
        client.max_queued_messages_set(QUEUED_MAX)  # otherwise unbounded
        if self.where.user is not None:
            client.username_pw_set(self.where.user, self.where.password)
        if will is not None:
            client.will_set(will[0], will[1], qos=0, retain=False)
        return client

    def dial(self, client: Client, version: int) -> None:
        """Connect ``client``; blocks for up to 4 s. Raises what paho raises."""
        options: dict[str, Any] = {}
        if version == 5:
            from paho.mqtt.packettypes import PacketTypes
            from paho.mqtt.properties import Properties

            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.ReceiveMaximum = RECEIVE_MAXIMUM
            if self.session_s:
                properties.SessionExpiryInterval = self.session_s
            options = {"clean_start": self.session_s == 0, "properties": properties}
        client.connect(self.where.host, self.where.port, KEEPALIVE_S, **options)

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, None for a plain connection. Raises `ConfigurationError`."""
        return self._tls.context() if self.where.encrypted else None

    def refusal(self, code: int) -> Exception:
        """Return the error for the broker's reason code."""
        text = f"{self.where.text}: rejected with reason {code}"
        if code in _WRONG:
            return ConfigurationError(f"broker: {text} (identifier, user or password)")
        return BusUnavailable(text)


def check_installed() -> None:
    """Raise `ConfigurationError` that names the extra where the client library is missing."""
    try:
        import paho.mqtt.client  # noqa: F401
    except ImportError:
        raise ConfigurationError(f"broker: mqtt:// needs the extra: {install('mqtt')}") from None


def _client_id(role: str) -> str:
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:20]
    return f"{re.sub(r'[^A-Za-z0-9-]', '-', role)[:20]}-{host}-{secrets.token_hex(4)}"
