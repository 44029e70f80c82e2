"""Brokers by the scheme of their address. Client libraries are loaded when a broker connects, never before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from bridge.brokers.base import Broker
from bridge.brokers.schemes import class_for

SCHEMES: Final[dict[str, tuple[str, str]]] = {
    "nats": ("bridge.brokers.nats.broker", "NatsBroker"),
    "tls": ("bridge.brokers.nats.broker", "NatsBroker"),
    "mqtt": ("bridge.brokers.mqtt.broker", "MqttBroker"),
    "mqtts": ("bridge.brokers.mqtt.broker", "MqttBroker"),
}


def open_broker(url: str, *, name: str = "queuebell", prefix: str = "queuebell") -> Broker:
    """Return the broker that ``url`` names, not connected.

    ``name`` is what the broker shows of this connection; ``prefix`` is the first token of all topics. Raises
    `ConfigurationError` for an address that is malformed, without repeating what may hold a password.
    """
    broker: Broker = class_for(url, SCHEMES, "broker")(url, name=name, prefix=prefix)
    return broker


def broker_maker(url: str, *, name: str = "queuebell", prefix: str = "queuebell") -> Callable[[], Broker]:
    """Return what opens one broker after another at ``url``, for whoever connects anew when one is broken.

    What one has learned of its cluster the next one knows, and begins with another server. Raises as `open_broker`.
    """
    servers = getattr(open_broker(url, name=name, prefix=prefix), "servers", None)
    known = {} if servers is None else {"servers": servers}
    return partial(class_for(url, SCHEMES, "broker"), url, name=name, prefix=prefix, **known)
