"""A message's headers as NATS carries them: by their own names where the client library keeps them as they are.

It cuts spaces off both ends of a value, and what becomes of other letters depends on which parser it found. What it
would change goes as JSON in one header of ours; what begins as our own or the server's headers do is none of a message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from bridge.brokers.base import Incoming
from bridge.contract.headers import headers_in, readable_headers

REST: Final = "queuebell-headers"
_LINE_BYTES: Final = len(": \r\n")
_FRAME_BYTES: Final = len("NATS/1.0\r\n\r\n")


def written(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the headers to send, None for none."""
    if not headers:
        return None
    plain = {name: value for name, value in headers.items() if _passes(value)}
    rest = {name: value for name, value in headers.items() if name not in plain}
    return {**plain, REST: json.dumps(rest)} if rest else plain


def size_of(headers: Mapping[str, str] | None) -> int:
    """Return how many bytes they take beside the payload."""
    if headers is None:
        return 0
    return _FRAME_BYTES + sum(len(name) + len(value) + _LINE_BYTES for name, value in headers.items())


def read(message: Incoming) -> dict[str, str]:
    """Return the headers of a message, of other producers' those that a message of ours may have."""
    if not message.headers and message.content_type is None:
        return {}
    found = dict(message.headers)
    rest = found.pop(REST, "")
    if message.content_type is not None:
        found["content-type"] = message.content_type
    return readable_headers([*headers_in(rest).items(), *found.items()])


def _passes(value: str) -> bool:
    return bool(value) and value.isascii() and value.isprintable() and value.strip() == value
