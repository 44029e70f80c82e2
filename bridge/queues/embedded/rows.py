"""What stands in a row of the table `messages`, as callers know it: its message, its id and its receipt."""

from __future__ import annotations

import datetime
import re
from typing import Final

import msgspec

from bridge.queues.base import StoredMessage

INTEGER_MAX: Final = 2**63 - 1
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PAIRS: Final = [f"{number:02x}" for number in range(256)]
_headers = msgspec.json.Decoder(dict[str, str]).decode
_is_hex16 = re.compile("[0-9a-f]{16}").fullmatch


def message_of(
    seq: int, receipt: str, body: bytes, n: int, ins: int, exp: int | None, headers: bytes | None
) -> StoredMessage:
    """Return the message that a row holds."""
    expires = None if exp is None else _date(exp)
    if headers is None:
        return StoredMessage(hex16(seq), receipt, body, n, _date(ins), expires)
    return StoredMessage(hex16(seq), receipt, body, n, _date(ins), expires, None, _headers(headers))


def hex16(number: int) -> str:
    """Write an id or a receipt."""
    return f"{number:016x}"


def hexes(first: int, count: int) -> list[str]:
    """Return ``count`` numbers in a row as `hex16` writes them; most batches differ in their last two digits only."""
    low = first & 0xFF
    if low + count > len(_PAIRS):
        return [hex16(first + step) for step in range(count)]
    high = f"{first >> 8:014x}"
    return [high + pair for pair in _PAIRS[low : low + count]]


def number_of(text: object) -> int | None:
    """Return the number of an id or a receipt, or None for what this store cannot have given out."""
    if not isinstance(text, str) or _is_hex16(text) is None:
        return None
    number = int(text, 16)
    return number if number <= INTEGER_MAX else None


def _date(ms: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=ms)
