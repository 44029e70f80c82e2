"""Messages as SQS takes them: bodies are text of few control characters, and never empty.

A message has ten attributes at most, and names of headers are not all names of attributes: so all headers go in one, as
JSON. What other producers say in attributes of text is read as headers too.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bridge.contract.headers import headers_in, readable_headers
from bridge.queues.base import NewMessage, StoredMessage

BATCH_MAX: Final = 10
BATCH_BYTES_MAX: Final = 256 * 1024
"""Of all bodies of a request; Amazon takes more by now, other servers do not."""
ENCODING: Final = "queuebell-encoding"
HEADERS: Final = "queuebell-headers"
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
        attributes = entry.get("MessageAttributes", {})
        beside = sum(_ATTRIBUTE_BYTES + len(each["StringValue"]) for each in attributes.values())
        weight = len(entry["MessageBody"].encode()) + beside
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
    attributes = message.get("MessageAttributes", {})
    headers = _headers(attributes) if attributes else {}
    return StoredMessage(message["MessageId"], message["ReceiptHandle"], _body(message), count, sent, headers=headers)


def _entry(number: int, message: NewMessage) -> dict[str, Any]:
    text, encoding = _text(message.body)
    entry: dict[str, Any] = {"Id": str(number), "MessageBody": text}
    attributes = {} if encoding is None else {ENCODING: encoding}
    if message.headers:
        attributes[HEADERS] = json.dumps(message.headers)
    if attributes:
        entry["MessageAttributes"] = {
            name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
        }
    if message.visible_after_ms:
        entry["DelaySeconds"] = -(-message.visible_after_ms // 1000)
    return entry


def _headers(attributes: Mapping[str, Any]) -> dict[str, str]:
    said = {name: each["StringValue"] for name, each in attributes.items() if "StringValue" in each}
    return readable_headers([*headers_in(said.pop(HEADERS, "")).items(), *said.items()])


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
