"""Bodies as SQS takes them: text of few control characters, and never empty."""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bridge.queues.base import NewMessage, StoredMessage

BATCH_MAX: Final = 10
BATCH_BYTES_MAX: Final = 256 * 1024
"""Of all bodies of a request; Amazon takes more by now, other servers do not."""
ENCODING: Final = "queuebell-encoding"
BASE64: Final = "base64"
EMPTY: Final = "empty"
_ATTRIBUTE_BYTES = 64
_strange = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]").search


def requests(messages: Sequence[NewMessage]) -> list[list[dict[str, Any]]]:
    """Return the entries of messages, as many a request as SQS takes; delays are rounded up to seconds."""
    made: list[list[dict[str, Any]]] = []
    size = 0
    for number, message in enumerate(messages):
        entry = _entry(number, message)
        weight = len(entry["MessageBody"].encode()) + _ATTRIBUTE_BYTES
        if not made or len(made[-1]) == BATCH_MAX or size + weight > BATCH_BYTES_MAX:
            made.append([])
            size = 0
        made[-1].append(entry)
        size += weight
    return made


def stored(message: Mapping[str, Any]) -> StoredMessage:
    """Return a message as it was received."""
    told = message["Attributes"]
    sent = datetime.datetime.fromtimestamp(int(told["SentTimestamp"]) / 1000, datetime.UTC)
    count = int(told["ApproximateReceiveCount"])
    return StoredMessage(message["MessageId"], message["ReceiptHandle"], _body(message), count, sent)


def _entry(number: int, message: NewMessage) -> dict[str, Any]:
    text, encoding = _text(message.body)
    entry: dict[str, Any] = {"Id": str(number), "MessageBody": text}
    if encoding is not None:
        entry["MessageAttributes"] = {ENCODING: {"DataType": "String", "StringValue": encoding}}
    if message.visible_after_ms:
        entry["DelaySeconds"] = -(-message.visible_after_ms // 1000)
    return entry


def _text(body: bytes) -> tuple[str, str | None]:
    """Return a body as it is where it can be, so that any consumer can read it."""
    if not body:
        return "-", EMPTY
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    return (text, None) if _strange(text) is None else (base64.b64encode(body).decode("ascii"), BASE64)


def _body(message: Mapping[str, Any]) -> bytes:
    text: str = message["Body"]
    encoding = message.get("MessageAttributes", {}).get(ENCODING, {}).get("StringValue")
    if encoding == EMPTY:
        return b""
    if encoding == BASE64:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return text.encode()  # somebody else's word: the handler sees what is there
    return text.encode()
