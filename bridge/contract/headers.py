"""Headers of a message: names and values in addition to its body, with the same limits in every store.

Names are in lower case, because proxies and libraries change their case, and ``traceparent`` must still be found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import BadInput

HEADERS_BYTES_MAX: Final = 8192
"""Limit of all names and values of a message, in bytes of UTF-8."""
HEADERS_MAX: Final = 64
RESERVED: Final = ("nats-", "queuebell-")
"""Reserved prefixes of names: those of NATS servers and of Queuebell."""

_NAME_FORM: Final = (
    "the name of a header must be 1 to 128 of A-Z a-z 0-9 . _ -, starting with a letter or a digit, and "
    "must not begin with " + " or ".join(RESERVED)
)
_VALUE_FORM: Final = "the value of a header must be text without control characters (tabs are allowed)"
_name = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}", re.ASCII).fullmatch
_control = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]").search


def checked_headers(given: object) -> dict[str, str]:
    """Return checked headers with names in lower case and unchanged values, which may be empty.

    Raises `BadInput`: ``bad_parameter`` for an invalid name or value, or a duplicate name, and ``message_too_large``
    above `HEADERS_BYTES_MAX` or `HEADERS_MAX`, without repeating the input.
    """
    if not isinstance(given, Mapping):
        raise BadInput("bad_parameter", "headers must be names and values: {'name': 'value'}")
    if len(given) > HEADERS_MAX:
        raise BadInput("message_too_large", f"a message may have at most {HEADERS_MAX} headers")
    headers: dict[str, str] = {}
    size = 0
    for name, value in given.items():
        if (key := _key(name)) is None:
            raise BadInput("bad_parameter", _NAME_FORM)
        if (length := _length(value)) is None:
            raise BadInput("bad_parameter", _VALUE_FORM)
        if key in headers:
            raise BadInput("bad_parameter", "duplicate header name; upper and lower case are the same")
        size += len(key) + length
        headers[key] = value
    if size > HEADERS_BYTES_MAX:
        raise BadInput("message_too_large", f"the headers of a message may have at most {HEADERS_BYTES_MAX} bytes")
    return headers


def readable_headers(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the valid headers of another producer's message, the first of each name.

    A reader can put it again, also to another store. The rest is not shown.
    """
    headers: dict[str, str] = {}
    room = HEADERS_BYTES_MAX
    for name, value in found:
        key, length = _key(name), _length(value)
        if key is None or length is None or key in headers or len(headers) == HEADERS_MAX:
            continue
        if (size := len(key) + length) <= room:
            headers[key] = value
            room -= size
    return headers


def headers_in(raw: bytes | str) -> dict[str, str]:
    """Return the readable headers of a JSON object; of anything else none."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return readable_headers(found.items()) if isinstance(found, dict) else {}


def bytes_of(headers: Mapping[str, str]) -> int:
    """Return the bytes of UTF-8 of names and values together."""
    return sum(len(name) + len(value.encode()) for name, value in headers.items())


def _key(name: object) -> str | None:
    """Return a name as it is kept, None for what is none."""
    # ASCII first: there are other letters that become ASCII ones in lower case.
    if not isinstance(name, str) or not name.isascii():
        return None
    key = name.lower()
    return key if _name(key) is not None and not key.startswith(RESERVED) else None


def _length(value: object) -> int | None:
    """Return the bytes of a value, None for what is none."""
    if not isinstance(value, str) or _control(value) is not None:
        return None
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        return None
