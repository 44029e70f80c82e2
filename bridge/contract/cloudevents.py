"""CloudEvents 1.0: decoding the HTTP, NATS and MQTT bindings into triggers, and encoding wakes.

Structured, binary and batch; tolerant in form (case, quoting, missing content types), strict in every limit of
``event.py``. The attributes ``id`` and ``source`` become those of the trigger, so that one event on three buses is one
wake request (B13); the extension ``traceparent`` is kept.

The queue is named by the subject, or else by the event's topic; then the data may be anything. Data that names a queue
is a trigger object, which is checked and must agree with both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.event import (
    EVENT_BYTES_MAX,
    EVENT_TYPE,
    EVENTS_MAX,
    NOT_BEFORE_MS_MAX,
    PAYLOAD_SIZE_MAX,
    REQUEST_BYTES_MAX,
    CloudQueueWorkDetected,
    check_depth,
    check_event,
    decode_events,
    well_formed,
)
from queuebell.bridge.contract.names import parse_reference, reference, split_reference
from queuebell.bridge.contract.wire import Wake

SPEC_VERSION = "1.0"
STRUCTURED_TYPE = "application/cloudevents+json"
BATCH_TYPE = "application/cloudevents-batch+json"
JSON_TYPE = "application/json"
VERSION_HEADER = "ce-specversion"
"""The header that marks a binary event over HTTP and NATS."""

_ANY_FORMAT = "application/cloudevents"
_PREFIX = "ce-"
_NO_DATA = msgspec.Raw(b"")
_NULL = b"null"
_json_media = re.compile(r"(application|text)/(json|[a-z0-9!#$&^_.-]+\+json)").fullmatch
_escape = re.compile(rb"%([0-9A-Fa-f]{2})")


class _Envelope(msgspec.Struct):
    """One event in the JSON format; other attributes are ignored."""

    specversion: str
    type: str
    id: str
    source: str
    subject: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    traceparent: str | None = None
    data: msgspec.Raw = _NO_DATA
    data_base64: bytes | None = None


class _Data(msgspec.Struct):
    """The trigger object; the subject may name the queue instead."""

    storage_account: str | None = None
    queue_name: str | None = None
    payload_size: int = 1
    time: str | None = None
    not_before_ms: int = 0
    traceparent: str | None = None


class _Meant(msgspec.Struct):
    """The fields that make data a trigger object, valid or not."""

    storage_account: msgspec.Raw = _NO_DATA
    queue_name: msgspec.Raw = _NO_DATA


_envelope = msgspec.json.Decoder(_Envelope)
_data = msgspec.json.Decoder(_Data)
_meant = msgspec.json.Decoder(_Meant)
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


def media_type(content_type: str | None) -> str:
    """Return a content type in lower case without its parameters; empty for None."""
    return "" if content_type is None else content_type.partition(";")[0].strip(" \t").lower()


def is_cloudevents(content_type: str | None) -> bool:
    """Return whether a content type is that of a structured event or a batch, in any format."""
    return media_type(content_type).startswith(_ANY_FORMAT)


def decode_http(headers: Mapping[str, str], body: bytes) -> list[CloudQueueWorkDetected]:
    """Decode a request: CloudEvents structured, batch or binary, else plain trigger JSON; all or nothing.

    Raises `BadInput` with the code ``bad_json``, ``bad_trigger``, ``too_large``, ``too_many_items`` or
    ``unsupported_media_type``, or `BadQueueReference`.
    """
    named = _lower(headers.items())
    media = media_type(named.get("content-type"))
    if media.startswith(_ANY_FORMAT):
        return _decode_format(media, body)
    if VERSION_HEADER in named:
        return [_binary(_attributes(named), media, body)]
    return _plain(body)


def decode_nats(
    headers: Mapping[str, str] | None, payload: bytes, queue: str | None = None
) -> list[CloudQueueWorkDetected]:
    """Decode a NATS message like `decode_http`; a payload without headers may be a structured event.

    ``queue`` is the reference in the NATS subject.
    """
    if not headers:
        return _plain(payload, queue)
    named = _lower(headers.items())
    # A widespread SDK sends `content-type` without prefix; the binding also has `ce-datacontenttype`.
    media = media_type(named.get("content-type"))
    if media.startswith(_ANY_FORMAT):
        return _decode_format(media, payload, queue)
    if VERSION_HEADER in named:
        attributes = _attributes(named)
        return [_binary(attributes, media_type(attributes.get("datacontenttype")) or media, payload, queue)]
    return _plain(payload, queue)


def decode_mqtt(
    content_type: str | None, user_properties: Mapping[str, str] | None, payload: bytes, queue: str | None = None
) -> list[CloudQueueWorkDetected]:
    """Decode an MQTT message like `decode_http`; ``queue`` is the reference in the topic.

    MQTT 5 has attributes without prefix and percent-encoding; MQTT 3.1.1 has neither content type nor properties, so
    every event is structured.
    """
    media = media_type(content_type)
    if media.startswith(_ANY_FORMAT):
        return _decode_format(media, payload, queue)
    if user_properties:
        attributes = _lower(user_properties.items())
        if "specversion" in attributes:
            return [_binary(attributes, media, payload, queue)]
    return _plain(payload, queue)


def _plain(payload: bytes, queue: str | None = None) -> list[CloudQueueWorkDetected]:
    """Decode trigger JSON, or structured events without a content type."""
    if b'"specversion"' not in payload:
        return decode_events(payload)
    if payload.lstrip(b" \t\r\n")[:1] == b"[":
        return _batch(payload, queue)
    return [_structured(payload, queue)]


def _decode_format(media: str, payload: bytes, queue: str | None = None) -> list[CloudQueueWorkDetected]:
    # Tried first, because its name begins with the other's.
    if media == BATCH_TYPE:
        return _batch(payload, queue)
    if media in (STRUCTURED_TYPE, _ANY_FORMAT):
        return [_structured(payload, queue)]
    raise BadInput("unsupported_media_type", "only the JSON format of CloudEvents is supported")


def _batch(payload: bytes, queue: str | None) -> list[CloudQueueWorkDetected]:
    if len(payload) > REQUEST_BYTES_MAX:
        raise BadInput("too_large", f"a batch of events may have at most {REQUEST_BYTES_MAX} bytes")
    try:
        items = _raw_list.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _misread(payload, "a batch must be an array of events") from None
    if len(items) > EVENTS_MAX:
        raise BadInput("too_many_items", f"at most {EVENTS_MAX} triggers per request")
    return [_structured(bytes(item), queue) for item in items]


def _structured(payload: bytes, queue: str | None) -> CloudQueueWorkDetected:
    if len(payload) > EVENT_BYTES_MAX:
        raise BadInput("too_large", f"one event may have at most {EVENT_BYTES_MAX} bytes")
    check_depth(payload)
    try:
        envelope = _envelope.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _misread(payload, "an event needs specversion, type, id and source, all of them text") from None
    data = bytes(envelope.data)
    if envelope.data_base64 is not None:
        if data and data != _NULL:
            raise BadInput("bad_trigger", "an event may have either data or data_base64, not both")
        data = envelope.data_base64
    elif data == _NULL:
        data = b""
    attributes = {
        "specversion": envelope.specversion,
        "type": envelope.type,
        "id": envelope.id,
        "source": envelope.source,
    }
    for name in ("subject", "time", "traceparent"):
        value = getattr(envelope, name)
        if value is not None:
            attributes[name] = value
    return _trigger(attributes, media_type(envelope.datacontenttype), data, queue)


def _binary(attributes: Mapping[str, str], media: str, body: bytes, queue: str | None = None) -> CloudQueueWorkDetected:
    size = len(body) + sum(len(name) + len(value) for name, value in attributes.items())
    if size > EVENT_BYTES_MAX:
        raise BadInput("too_large", f"one event may have at most {EVENT_BYTES_MAX} bytes")
    for name in ("type", "id", "source"):
        if name not in attributes:
            raise BadInput("bad_trigger", "an event needs specversion, type, id and source, all of them text")
    return _trigger(attributes, media, body, queue)


def _trigger(attributes: Mapping[str, str], media: str, body: bytes, topic: str | None) -> CloudQueueWorkDetected:
    """Return the trigger of an event's attributes and data; ``media`` is empty if not given (then JSON).

    ``topic`` is the reference in the topic, if there is one.
    """
    version = attributes["specversion"]
    if version != SPEC_VERSION and not version.startswith(SPEC_VERSION + "."):
        raise BadInput("bad_trigger", f"only specversion {SPEC_VERSION} is supported")
    if attributes["type"] != EVENT_TYPE:
        raise BadInput("bad_trigger", f"only events of type {EVENT_TYPE} are triggers")
    if not attributes["id"] or not attributes["source"]:
        raise BadInput("bad_trigger", "id and source of an event must not be empty")
    subject = attributes.get("subject")
    if topic is not None and (subject is None or not _names_queue(subject)):
        # The topic names the queue, so the subject may be anything.
        subject = topic
    data = _read_data(media, body, named=subject is not None)
    account, queue = _queue_of(subject, data)
    return check_event(
        CloudQueueWorkDetected(
            storage_account=account,
            queue_name=queue,
            payload_size=data.payload_size,
            id=attributes["id"],
            source=attributes["source"],
            time=attributes.get("time", data.time),
            not_before_ms=data.not_before_ms,
            traceparent=attributes.get("traceparent", data.traceparent),
        )
    )


def _names_queue(subject: str) -> bool:
    try:
        parse_reference(subject)
    except BadInput:
        return False
    return True


def _read_data(media: str, body: bytes, *, named: bool) -> _Data:
    """Decode the trigger object; ignore other data if the queue is ``named`` already."""
    if not body:
        # The subject names the queue.
        return _Data()
    try:
        if media and _json_media(media) is None:
            raise BadInput("bad_trigger", "the data of a trigger must be JSON")
        check_depth(body)
        data = _data.decode(body)
    except (BadInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if named and not _is_trigger_object(media, body):
            return _Data()
        if isinstance(error, BadInput):
            raise
        raise _misread(body, "the data of an event must be a trigger object") from None
    if named and data.storage_account is None and data.queue_name is None:
        return _hints_of(data)
    return data


def _is_trigger_object(media: str, body: bytes) -> bool:
    """Return whether data names a queue, and so is a trigger object, even if invalid."""
    if media and _json_media(media) is None:
        return False
    try:
        check_depth(body)
        meant = _meant.decode(body)
    except (BadInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return bool(meant.storage_account or meant.queue_name)


def _hints_of(data: _Data) -> _Data:
    """Return the valid hints in data that names no queue; it belongs to the sender and is not checked."""
    size, due = data.payload_size, data.not_before_ms
    return _Data(
        payload_size=size if 1 <= size <= PAYLOAD_SIZE_MAX else 1,
        not_before_ms=due if 0 <= due <= NOT_BEFORE_MS_MAX else 0,
    )


def _queue_of(subject: str | None, data: _Data) -> tuple[str, str]:
    """Return account and queue of the subject and the data, which must agree if both name one."""
    if data.storage_account is None and data.queue_name is None:
        if subject is None:
            raise BadInput("bad_trigger", "neither the subject nor the data names a queue")
        return split_reference(parse_reference(subject))
    named = reference(data.storage_account, data.queue_name)
    if subject is not None and subject != named:
        raise BadInput("bad_trigger", "subject and data name two different queues")
    return split_reference(named)


def _lower(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case names; a duplicate attribute is an error."""
    named: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        if key in named and (key.startswith(_PREFIX) or key == "content-type"):
            raise BadInput("bad_trigger", "duplicate attribute of the event")
        named[key] = value
    return named


def _attributes(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(_PREFIX): percent_decode(value)
        for name, value in headers.items()
        if name.startswith(_PREFIX) and len(name) > len(_PREFIX)
    }


def percent_decode(value: str) -> str:
    """Decode one level of percent-encoding and quotes of a header's value.

    Raises `BadInput` (``bad_trigger``) if the result is not UTF-8, such as ``%C0%A0``.
    """
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    if "%" not in value and value.isascii():
        return value
    try:
        return _escape.sub(lambda match: bytes.fromhex(match[1].decode()), value.encode()).decode()
    except UnicodeError:
        # Overlong forms bypass filters; parsers turn invalid UTF-8 into surrogates.
        raise BadInput("bad_trigger", "an attribute of the event is not UTF-8") from None


def _misread(payload: bytes, wanted: str) -> BadInput:
    """Return the error for invalid syntax or invalid content, without repeating the input."""
    if well_formed(payload):
        return BadInput("bad_trigger", wanted)
    return BadInput("bad_json", "the body is not one JSON document in UTF-8")


WAKE_TYPE = "CloudQueueWake"
"""The type of a wake, which differs from that of a trigger, so that a bridge ignores its own wakes (B13)."""
DEFAULT_SOURCE = "urn:queuebell"


class Encoded(msgspec.Struct, frozen=True):
    """One message: its content type, further headers (MQTT: user properties), and its body."""

    content_type: str
    headers: dict[str, str]
    body: bytes


def wake_id(wake: Wake) -> str:
    """Return the id of a wake: generations of one boot are unique."""
    return f"{wake.boot}:{wake.gen}"


def encode_wake(wake: Wake, *, source: str = DEFAULT_SOURCE, time: str | None = None) -> Encoded:
    """Encode a wake as a structured event: subject ``account/queue``, the wake frame as data."""
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
