"""Ways to bring triggers to a bridge, by the scheme of their address. Each is loaded when it is first asked for."""

from __future__ import annotations

import importlib
from typing import Final, cast
from urllib.parse import urlsplit

from bridge.bus import Bus
from bridge.contract.errors import ConfigurationError

SCHEMES: Final[dict[str, tuple[str, str]]] = {
    "http": ("bridge.buses.http", "HttpBus"),
    "https": ("bridge.buses.http", "HttpBus"),
    "nats": ("bridge.buses.nats", "NatsBus"),
    "tls": ("bridge.buses.nats", "NatsBus"),
    "mqtt": ("bridge.buses.mqtt", "MqttBus"),
    "mqtts": ("bridge.buses.mqtt", "MqttBus"),
    "postgres": ("bridge.buses.postgres", "PostgresBus"),
    "postgresql": ("bridge.buses.postgres", "PostgresBus"),
}


def open_bus(url: str) -> Bus:
    """Return the bus that ``url`` names; it connects when it is first used.

    Raises `ConfigurationError` for a scheme that is not known or an address that is malformed.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise ConfigurationError(f"bridge: not an address: {error}") from None
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ConfigurationError(f"bridge: an address starts with one of {known}")
    module, name = SCHEMES[scheme]
    return cast(Bus, getattr(importlib.import_module(module), name)(url))
