"""Ways to bring triggers to a bridge, by the scheme of their address. Each is imported when it is first used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from queuebell.bridge.brokers.address import class_for
from queuebell.bridge.brokers.credential import ApiKey, key_option
from queuebell.bridge.contract.event import CloudQueueWorkDetected

SCHEMES: Final[dict[str, tuple[str, str]]] = {
    "http": ("queuebell.bridge.producer.buses.http", "HttpBus"),
    "https": ("queuebell.bridge.producer.buses.http", "HttpBus"),
    "nats": ("queuebell.bridge.producer.buses.brokered", "BrokerBus"),
    "tls": ("queuebell.bridge.producer.buses.brokered", "BrokerBus"),
    "mqtt": ("queuebell.bridge.producer.buses.brokered", "BrokerBus"),
    "mqtts": ("queuebell.bridge.producer.buses.brokered", "BrokerBus"),
    "postgres": ("queuebell.bridge.producer.buses.postgres", "PostgresBus"),
    "postgresql": ("queuebell.bridge.producer.buses.postgres", "PostgresBus"),
}


class Bus(Protocol):
    """Sends triggers to a bridge, at most once, without retries.

    A success means that a bridge has requested the wakes, or on MQTT that the broker accepted the triggers.
    """

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Send 1 to 1000 triggers and return once they are acknowledged.

        Raises `BusUnavailable` if a retry may help and `BadInput` if not. After a cancellation the outcome is unknown;
        a duplicate only adds receives (I7).
        """

    async def close(self) -> None:
        """Close the connections; may be called twice."""


def open_bus(url: str, api_key: ApiKey = None) -> Bus:
    """Return the bus for ``url``; it connects when it is first used.

    ``api_key`` is for a bridge's own address: a broker has its own users. Raises `ConfigurationError` for an unknown
    scheme, a malformed address, and a key for a broker.
    """
    bus: Bus = class_for(url, SCHEMES, "bridge")(url, **key_option(url, api_key))
    return bus
