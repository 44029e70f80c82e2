"""Brokers by the scheme of their address. Client libraries are loaded when a broker connects, never before."""

from __future__ import annotations

import importlib
from typing import Final, cast
from urllib.parse import urlsplit

from bridge.broker import Broker
from bridge.contract.errors import ConfigurationError

SCHEMES: Final[dict[str, tuple[str, str]]] = {
    "nats": ("bridge.brokers.nats", "NatsBroker"),
    "tls": ("bridge.brokers.nats", "NatsBroker"),
    "mqtt": ("bridge.brokers.mqtt", "MqttBroker"),
    "mqtts": ("bridge.brokers.mqtt", "MqttBroker"),
}


def open_broker(url: str, *, name: str = "queuebell", prefix: str = "queuebell") -> Broker:
    """Return the broker that ``url`` names, not connected.

    ``name`` is what the broker shows of this connection; ``prefix`` is the first token of all topics. Raises
    `ConfigurationError` for an address that is malformed, without repeating what may hold a password.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in SCHEMES:
        known = ", ".join(f"{known}://" for known in SCHEMES)
        raise ConfigurationError(f"broker: an address starts with one of {known}")
    module, kind = SCHEMES[scheme]
    return cast(Broker, getattr(importlib.import_module(module), kind)(url, name=name, prefix=prefix))
