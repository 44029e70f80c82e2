"""The trigger event: a producer has put messages on a queue."""

from __future__ import annotations

import math
import re

import msgspec

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.names import reference
from queuebell.bridge.contract.trace_context import Traces

EVENT_TYPE = "CloudQueueWorkDetected"
EVENT_BYTES_MAX = 64 * 1024
REQUEST_BYTES_MAX = 1024 * 1024
EVENTS_MAX = 1000
PAYLOAD_SIZE_MAX = 1_000_000
NOT_BEFORE_MS_MAX = 604_800_000
TEXT_MAX = 1024
DEPTH_MAX = 64


class CloudQueueWorkDetected(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages became visible on a queue: a hint, never the messages themselves.

    ``payload_size`` counts messages (1 to 1,000,000), not bytes. ``not_before_ms`` (0 to 604,800,000) counts from
    receipt. ``id`` with ``source`` identifies one publish after one visible put (P5): only a resend of that publish may
    repeat them.
    """

    storage_account: str
    queue_name: str
    payload_size: int = 1
    id: str | None = None
    source: str | None = None
    time: str | None = None
    not_before_ms: int = 0
    traceparent: str | None = None
    traces: Traces | None = None
    """The trace contexts of several publishes merged into this one."""

    @property
    def queue(self) -> str:
        """The queue reference."""
        return f"{self.storage_account}/{self.queue_name}"


_decoder_one = msgspec.json.Decoder(CloudQueueWorkDetected)
_decoder_many = msgspec.json.Decoder(list[CloudQueueWorkDetected])
_encoder = msgspec.json.Encoder()


def check_event(event: CloudQueueWorkDetected) -> CloudQueueWorkDetected:
    """Return ``event`` if all its fields are within their limits.

    Raises `BadQueueReference` or `BadInput` (``bad_trigger``) otherwise.
    """
    reference(event.storage_account, event.queue_name)
    # `type` instead of `isinstance`: a Struct made in Python was never decoded and may contain a bool.
    if type(event.payload_size) is not int or not 1 <= event.payload_size <= PAYLOAD_SIZE_MAX:
        raise BadInput("bad_trigger", f"payload_size must be a number of messages from 1 to {PAYLOAD_SIZE_MAX}")
    if type(event.not_before_ms) is not int or not 0 <= event.not_before_ms <= NOT_BEFORE_MS_MAX:
        raise BadInput("bad_trigger", f"not_before_ms must be from 0 to {NOT_BEFORE_MS_MAX}")
    for name in ("id", "source", "time", "traceparent"):
        text = getattr(event, name)
        if text is None:
            continue
        if not isinstance(text, str) or len(text) > TEXT_MAX:
            raise BadInput("bad_trigger", f"{name} must be text of at most {TEXT_MAX} characters")
        # They get into logs, headers and event streams, where control characters could forge lines.
        if not text.isprintable():
            raise BadInput("bad_trigger", f"{name} contains a control character")
    return event


def decode_events(data: bytes) -> list[CloudQueueWorkDetected]:
    """Decode a trigger request: one JSON object, or an array of at most 1000.

    All or nothing: the first error rejects the whole. Raises `BadInput` with the code ``bad_json``, ``bad_trigger``,
    ``too_many_items`` or ``too_large``, or `BadQueueReference`.
    """
    try:
        if not data.isascii():
            # msgspec does not check the text of unknown fields.
            data.decode()
        if data.lstrip(b" \t\r\n")[:1] == b"[":
            if len(data) > REQUEST_BYTES_MAX:
                raise BadInput("too_large", f"a trigger request may have at most {REQUEST_BYTES_MAX} bytes")
            if len(items := _raw_list.decode(data)) > EVENTS_MAX:
                raise BadInput("too_many_items", f"at most {EVENTS_MAX} triggers per request")
            for item in items:
                if len(item) > EVENT_BYTES_MAX:
                    raise BadInput("too_large", f"one trigger may have at most {EVENT_BYTES_MAX} bytes")
                # One by one: a thousand triggers together have too many brackets for the fast check.
                check_depth(bytes(item))
            events = _decoder_many.decode(data)
        else:
            if len(data) > EVENT_BYTES_MAX:
                raise BadInput("too_large", f"one trigger may have at most {EVENT_BYTES_MAX} bytes")
            check_depth(data)
            events = [_decoder_one.decode(data)]
    except msgspec.ValidationError as error:
        if well_formed(data):
            raise BadInput("bad_trigger", _without_input(error)) from None
        raise BadInput("bad_json", "the body is not one JSON document in UTF-8") from None
    # UnicodeDecodeError is not a DecodeError; RecursionError covers depths that check_depth missed.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput("bad_json", "the body is not one JSON document in UTF-8") from None
    for event in events:
        check_event(event)
    return events


_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


def encode_event(event: CloudQueueWorkDetected) -> bytes:
    """Encode one event as JSON."""
    return _encoder.encode(event)


def encode_events(events: list[CloudQueueWorkDetected]) -> bytes:
    """Encode events as a JSON array."""
    return _encoder.encode(events)


def check_depth(data: bytes, limit: int = DEPTH_MAX) -> None:
    """Check that JSON is nested at most ``limit`` levels, with a tolerance of three; raises `BadInput` (``bad_json``).

    msgspec skips unknown fields of any depth up to the interpreter's, so depth has to be limited before.
    """
    if data.count(b"[") + data.count(b"{") <= limit:
        return
    # Remove strings and everything but brackets, and then empty pairs, which long flat documents consist of. The rest
    # is short, or so deep that the loop ends soon.
    brackets = _string.sub(b"", data).translate(None, _NOT_BRACKETS)
    for _ in range(3):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    # At least three levels were removed (six if objects and arrays alternate).
    limit -= 3
    depth = 0
    for byte in brackets:
        if byte in (0x5B, 0x7B):
            depth += 1
            if depth > limit:
                raise BadInput("bad_json", f"JSON may be nested at most {limit + 3} levels deep")
        else:
            depth -= 1


def well_formed(data: bytes) -> bool:
    """Return whether ``data`` is one JSON document in UTF-8, to distinguish syntax errors from invalid content."""
    try:
        data.decode()
        _raw.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


_raw = msgspec.json.Decoder(msgspec.Raw)
# An unterminated string matches to the end, so that no quote is tried twice: otherwise 64 KiB of escaped quotes would
# take quadratic time, and block the bridge for most of a minute.
_string = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _without_input(error: msgspec.ValidationError) -> str:
    """Return the place of an error without repeating the input (S8)."""
    return str(error).replace("`", "'")


def rounded_up(delay_ms: int, resolution_ms: int) -> int:
    """Round a delay up by the store's resolution and 1e-4 of itself, as a receive too early loses the wake (B2)."""
    if delay_ms <= 0:
        return 0
    return min(NOT_BEFORE_MS_MAX, delay_ms + math.ceil(delay_ms * 1e-4) + resolution_ms)
