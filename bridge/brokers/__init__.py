"""Connections to what carries triggers, frames and calls: message brokers, and a bridge itself.

`open_broker` returns the `Broker` (`base.py`) for an address, one folder each: `NatsBroker`, `MqttBroker`, and
`PostgresBroker` for triggers alone. In each, `broker.py` is the connection, `access.py` where and as which user it
connects, and `wire.py`, where there is one, what drives the client library. `EmbeddedNats` runs a NATS server. A
`WireUser` (`wire.py` of this folder) makes calls to a bridge with a `Credential`. Client libraries are imported when a
connection is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from queuebell.bridge.brokers.address import class_for
from queuebell.bridge.brokers.base import Broker

SCHEMES: Final[dict[str, tuple[str, str]]] = {
    "nats": ("queuebell.bridge.brokers.nats.broker", "NatsBroker"),
    "tls": ("queuebell.bridge.brokers.nats.broker", "NatsBroker"),
    "mqtt": ("queuebell.bridge.brokers.mqtt.broker", "MqttBroker"),
    "mqtts": ("queuebell.bridge.brokers.mqtt.broker", "MqttBroker"),
}


def open_broker(url: str, *, name: str = "queuebell", prefix: str = "queuebell") -> Broker:
    """Return the broker at ``url``, not connected.

    ``name`` is the connection's name at the broker; ``prefix`` is the first token of all topics. Raises
    `ConfigurationError` for a malformed address, without repeating it: it may hold a password.
    """
    broker: Broker = class_for(url, SCHEMES, "broker")(url, name=name, prefix=prefix)
    return broker


def broker_maker(url: str, *, name: str = "queuebell", prefix: str = "queuebell") -> Callable[[], Broker]:
    """Return a function that opens one connection after another to the broker at ``url``, for reconnecting.

    They share what they learn about the servers of a cluster, and each begins with another one. Raises as
    `open_broker`.
    """
    servers = getattr(open_broker(url, name=name, prefix=prefix), "servers", None)
    known = {} if servers is None else {"servers": servers}
    return partial(class_for(url, SCHEMES, "broker"), url, name=name, prefix=prefix, **known)
