"""Ways to bring triggers to a bridge, by the scheme of their address. Each is loaded when it is first asked for."""

from __future__ import annotations

from typing import Final

from bridge.brokers.address import class_for
from bridge.brokers.credential import ApiKey, key_option
from bridge.producer.bus import Bus

SCHEMES: Final[dict[str, tuple[str, str]]] = {
    "http": ("bridge.producer.buses.http", "HttpBus"),
    "https": ("bridge.producer.buses.http", "HttpBus"),
    "nats": ("bridge.producer.buses.nats", "NatsBus"),
    "tls": ("bridge.producer.buses.nats", "NatsBus"),
    "mqtt": ("bridge.producer.buses.mqtt", "MqttBus"),
    "mqtts": ("bridge.producer.buses.mqtt", "MqttBus"),
    "postgres": ("bridge.producer.buses.postgres", "PostgresBus"),
    "postgresql": ("bridge.producer.buses.postgres", "PostgresBus"),
}


def open_bus(url: str, api_key: ApiKey = None) -> Bus:
    """Return the bus that ``url`` names; it connects when it is first used.

    ``api_key`` is for a bridge's own address: a broker has its own users. Raises `ConfigurationError` for a scheme that
    is not known, an address that is malformed, and a key where none is asked for.
    """
    bus: Bus = class_for(url, SCHEMES, "bridge")(url, **key_option(url, api_key))
    return bus
