"""The limits of calls to any store, checked before a request is sent or reaches the embedded store's writer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.contract.sources import WAKE_SOURCES
from queuebell.bridge.queues.base import (
    BATCH_MAX,
    BODY_BYTES_MAX,
    DELAY_MS_MAX,
    NEVER,
    TTL_S_MAX,
    VISIBILITY_S_MAX,
    NewMessage,
    Settlement,
    is_key,
)

QUEUES_MAX = 100_000
LIST_MAX = 10_000
METADATA_BYTES_MAX = 8 * 1024
KEY_FORM = "an id is 1 to 128 of A-Z a-z 0-9 . _ ~ : @ = + -, a letter or a digit first"


def check_put(queue: str, messages: Sequence[NewMessage], most: int = BATCH_MAX) -> None:
    """Check a put of up to ``most`` messages.

    Raises `BadInput` (``bad_parameter``, ``too_many_items``, ``message_too_large``) or `BadQueueReference`.
    """
    parse_reference(queue)
    if not 1 <= len(messages) <= most:
        if not messages:
            raise BadInput("bad_parameter", f"a put takes 1 to {most} messages")
        raise BadInput("too_many_items", f"a put takes at most {most} messages")
    for message in messages:
        body, delay = message.body, message.visible_after_ms
        # Inline for speed: tens of thousands of messages a second pass here.
        if type(body) is not bytes or len(body) > BODY_BYTES_MAX:
            check_body(body)
        if type(delay) is not int or not 0 <= delay <= DELAY_MS_MAX:
            _check_whole(delay, 0, DELAY_MS_MAX, "visible_after_ms")
        if message.ttl_s != NEVER:
            _check_whole(message.ttl_s, 1, TTL_S_MAX, "ttl_s (or -1, never)")


def check_key(key: object) -> None:
    """Check the key of a put; raises `BadInput`."""
    if not is_key(key):
        raise BadInput("bad_parameter", KEY_FORM)


def check_body(body: object) -> None:
    """Check that a body is bytes and not too long; raises `BadInput`."""
    if not isinstance(body, bytes):
        raise BadInput("bad_parameter", "a body is bytes, or text in a put: encode other values first (json.dumps)")
    if len(body) > BODY_BYTES_MAX:
        raise BadInput("message_too_large", f"a message body is at most {BODY_BYTES_MAX} bytes")


def check_receive(queue: str, limit: int, visibility_s: float, source: str | None = None, most: int = BATCH_MAX) -> int:
    """Check a receive and return the lease in milliseconds, rounded up; raises `BadInput` or `BadQueueReference`."""
    parse_reference(queue)
    _check_whole(limit, 1, most, "max")
    check_source(source)
    return lease_ms(visibility_s)


def check_source(source: str | None) -> None:
    """Check a wake source; raises `BadInput` if unknown."""
    if source is not None and source not in WAKE_SOURCES:
        raise BadInput("bad_parameter", f"wake_source is one of {', '.join(WAKE_SOURCES)}")


def check_settlement(queue: str, settlement: Settlement, most: int = BATCH_MAX) -> None:
    """Check a settlement of up to ``most`` items a list; raises `BadInput` or `BadQueueReference`."""
    parse_reference(queue)
    for items in (settlement.delete, settlement.release, settlement.extend):
        if len(items) > most:
            raise BadInput("too_many_items", f"a settlement takes at most {most} items a list")
    for release in settlement.release:
        _check_whole(release.after_ms, 0, DELAY_MS_MAX, "after_ms")
    for extend in settlement.extend:
        lease_ms(extend.visibility_s)
        if extend.body is not None:
            check_body(extend.body)


def check_update(queue: str, visibility_s: float, body: object) -> None:
    """Check a new visibility (0 is now) and a new body (None keeps it); raises as `check_settlement`."""
    parse_reference(queue)
    if visibility_s:
        lease_ms(visibility_s)
    if body is not None:
        check_body(body)


def lease_ms(seconds: object) -> int:
    """Return a lease in whole milliseconds, rounded up (B2: never early); raises `BadInput` outside (0, 604800]."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= VISIBILITY_S_MAX:
        raise BadInput("bad_parameter", f"a visibility timeout is above 0 and at most {VISIBILITY_S_MAX} seconds")
    # Without the tolerance, 0.003 s would become 4 ms.
    return max(1, math.ceil(seconds * 1000 - 1e-6))


def check_metadata(metadata: object) -> None:
    """Check that metadata maps text to text and is not too long; raises `BadInput`."""
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise BadInput("bad_parameter", "metadata maps text to text")
    try:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    except UnicodeEncodeError:
        raise BadInput("bad_parameter", "metadata must be valid UTF-8") from None
    if size > METADATA_BYTES_MAX:
        raise BadInput("bad_parameter", f"metadata is at most {METADATA_BYTES_MAX} bytes")


def check_list(prefix: object, after: object, limit: object) -> None:
    """Check a listing; raises `BadInput`."""
    if not isinstance(prefix, str) or not isinstance(after, str) or not (prefix + after).isascii():
        raise BadInput("bad_parameter", "prefix and after take the characters of a queue reference")
    _check_whole(limit, 1, LIST_MAX, "limit")


def check_peek(queue: str, limit: int) -> None:
    """Check a peek; raises `BadInput` or `BadQueueReference`."""
    parse_reference(queue)
    _check_whole(limit, 1, BATCH_MAX, "max")


def _check_whole(value: object, low: int, high: int, name: str) -> None:
    # bool is an int in Python, but a limit of True is a mistake.
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInput("bad_parameter", f"{name} is a whole number from {low} to {high}")
