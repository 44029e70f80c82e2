"""The binary frames of a wire: calls to the bridge, and their answers (docs/reference/clients.md).

A call is ``n METHOD path``, optional header lines, of which only the content type counts, an empty line, and the body
as in HTTP. Its answer is ``n status``, the headers that matter to a client, an empty line, and the body. ``n`` rises
with every call of a connection; an answer has the number of its call, and answers come in any order.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

WINDOW: Final = 32
"""Maximum of unanswered calls of a connection; settlements do not count."""
CALL_BYTES_MAX: Final = 64 * 1024
"""The largest body of a call; larger ones use HTTP."""
HEAD_BYTES_MAX: Final = 4096
"""The largest head of a call."""
TARGET_MAX: Final = 2048
"""The longest path and query of a call."""
JSON: Final = "application/json"
BOOT_HEADER: Final = "Queuebell-Boot"
"""The boot of a bridge with embedded queues."""
STORE_HEADER: Final = "Queuebell-Store"
"""The fingerprint of the queue in a shared store (B11)."""
ABLE_HEADER: Final = "Queuebell-Store-Able"
"""The differences of a shared store's `Capabilities` from an embedded store's, as JSON; absent without any."""
SERVICE_ABLE_HEADER: Final = "Queuebell-Able"
"""Features that older bridges do not have: names separated by commas."""
CARRIES: Final = "headers"
"""The feature of keeping message headers; older bridges drop them and report success."""
_N_MAX: Final = 2**53

_call = re.compile(
    rb"([0-9]{1,16}) ([A-Z]{1,10}) (/[!-~]{0,2047})\n((?:[!-9;-~]{1,100}: [ -~]{0,500}\n){0,16})\n"
).match
_media = re.compile(rb"(?:^|\n)content-type: ([ -~]+)\n", re.IGNORECASE).search
_settle = re.compile(r"/v1/queues/[^/?]+/[^/?]+/settle").fullmatch
_answer = re.compile(rb"([0-9]{1,16}) ([1-5][0-9]{2})\n((?:[!-9;-~]+: [ -~]*\n)*)\n", re.ASCII).match
_NO_HEADERS: Final[dict[str, str]] = {}


class CallFrame(NamedTuple):
    """One call; ``media`` is the type of its body."""

    n: int
    method: str
    target: str
    media: str
    body: bytes


class AnswerFrame(NamedTuple):
    """The answer to call ``n``; header names are in lower case."""

    n: int
    status: int
    headers: dict[str, str]
    body: bytes


def settles(method: str, target: str) -> bool:
    """Return whether a call is a settlement, which has no rate limit and needs no place in the window."""
    return method == "POST" and target.endswith("/settle") and _settle(target) is not None


def encode_call(n: int, method: str, target: str, body: bytes, media: str = JSON) -> bytes:
    """Encode one call; ``target`` is a path and a query, percent-encoded."""
    kind = "" if media == JSON or not body else f"\ncontent-type: {media}"
    return f"{n} {method} {target}{kind}\n\n".encode("ascii") + body


def decode_call(data: bytes) -> CallFrame | None:
    """Decode one call; None if its head is invalid, so that there is no number to answer."""
    found = _call(data)
    if found is None or (n := int(found[1])) > _N_MAX:
        return None
    media = _media(found[4]) if found[4] else None
    kind = JSON if media is None else media[1].decode("ascii")
    return CallFrame(n, found[2].decode("ascii"), found[3].decode("ascii"), kind, data[found.end() :])


def encode_answer(n: int, status: int, headers: bytes, body: bytes) -> bytes:
    """Encode one answer; ``headers`` are complete lines, each with its line feed."""
    return b"%d %d\n%b\n%b" % (n, status, headers, body)


def decode_answer(data: bytes) -> AnswerFrame | None:
    """Decode one answer; None if invalid."""
    found = _answer(data)
    if found is None:
        return None
    headers = _NO_HEADERS
    if found[3]:
        lines = [line.partition(": ") for line in found[3].decode("ascii").splitlines()]
        headers = {name.lower(): value for name, _, value in lines}
    return AnswerFrame(int(found[1]), int(found[2]), headers, data[found.end() :])
