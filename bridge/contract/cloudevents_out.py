"""Wakes as structured events of CloudEvents 1.0."""

from __future__ import annotations

from typing import Any

import msgspec

from bridge.contract.cloudevents import JSON_TYPE, SPEC_VERSION, STRUCTURED_TYPE
from bridge.contract.wire import Wake

WAKE_TYPE = "CloudQueueWake"
"""The type of a wake; not that of a trigger, or a bridge told of its own wakes would mark them (B13: no echo)."""
DEFAULT_SOURCE = "urn:queuebell"


class Encoded(msgspec.Struct, frozen=True):
    """One message: its content type, further headers (MQTT: user properties), and its body."""

    content_type: str
    headers: dict[str, str]
    body: bytes


def wake_id(wake: Wake) -> str:
    """Name a wake: no two marks share a generation of one boot."""
    return f"{wake.boot}:{wake.gen}"


def encode_wake(wake: Wake, *, source: str = DEFAULT_SOURCE, time: str | None = None) -> Encoded:
    """Write a wake as a structured event: subject ``account/queue``, the wake frame as data."""
    event: dict[str, Any] = {
        "specversion": SPEC_VERSION,
        "type": WAKE_TYPE,
        "source": source,
        "id": wake_id(wake),
        "subject": wake.queue,
        "datacontenttype": JSON_TYPE,
    }
    if time is not None:
        event["time"] = time
    if wake.traceparent is not None:
        event["traceparent"] = wake.traceparent
    return Encoded(STRUCTURED_TYPE, {}, msgspec.json.encode({**event, "data": wake}))
