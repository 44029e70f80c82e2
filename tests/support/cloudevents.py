"""Triggers as CloudEvents 1.0, written by the letter: structured, binary and batched, for whoever reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from queuebell.bridge.contract.cloudevents import DEFAULT_SOURCE, JSON_TYPE, SPEC_VERSION
from queuebell.bridge.contract.event import EVENT_TYPE, CloudQueueWorkDetected

_SAFE = frozenset(range(0x21, 0x7F)) - frozenset(b'"%')
_encoder = msgspec.json.Encoder()


def encode_structured(event: CloudQueueWorkDetected) -> bytes:
    """Write one event in the JSON format, content type ``application/cloudevents+json``; the same on every bus.

    Raises `ValueError` for an event without an id: an id names one publish (P5) and cannot be made up here.
    """
    return _encoder.encode(_whole(event))


def encode_batch(events: Sequence[CloudQueueWorkDetected]) -> bytes:
    """Write events as a batch, content type ``application/cloudevents-batch+json``. Raises `ValueError`."""
    return _encoder.encode([_whole(event) for event in events])


def percent_encode(value: str) -> str:
    """Encode an attribute for a header: space, quote, percent and all but printable ASCII, in upper-case hex."""
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in value.encode())


def _attributes(event: CloudQueueWorkDetected) -> dict[str, str]:
    if not event.id:
        raise ValueError("a trigger needs an id to be a CloudEvent")
    attributes = {
        "specversion": SPEC_VERSION,
        "type": EVENT_TYPE,
        "source": event.source or DEFAULT_SOURCE,
        "id": event.id,
        "subject": event.queue,
    }
    if event.time is not None:
        attributes["time"] = event.time
    if event.traceparent is not None:
        attributes["traceparent"] = event.traceparent
    return attributes


def _data(event: CloudQueueWorkDetected) -> dict[str, str | int]:
    data: dict[str, str | int] = {
        "storage_account": event.storage_account,
        "queue_name": event.queue_name,
        "payload_size": event.payload_size,
    }
    if event.not_before_ms:
        data["not_before_ms"] = event.not_before_ms
    return data


def _whole(event: CloudQueueWorkDetected) -> dict[str, Any]:
    return {**_attributes(event), "datacontenttype": JSON_TYPE, "data": _data(event)}
