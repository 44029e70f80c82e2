"""Writing the XML of answers, by hand: there are six forms, and an element tree costs ten times the text."""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Iterable, Mapping, Sequence

from bridge.queues.base import StoredMessage

DECLARATION = '<?xml version="1.0" encoding="utf-8"?>'

# Everything that XML 1.0 cannot hold, and what would not come back as it went in: a carriage return is written as a
# reference below, so that it does.
_UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_unfit = _UNFIT.search
_special = re.compile("[&<>\r]").search
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NEVER = "Fri, 31 Dec 9999 23:59:59 GMT"

_dates: dict[int, str] = {}
_DATES_MAX = 1024


def escape(text: str) -> str:
    """Return text as it stands between two tags."""
    if _special(text) is None:
        return text
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#xD;")


def escape_attribute(text: str) -> str:
    """Return text as it stands between two quotation marks."""
    return escape(text).replace('"', "&quot;").replace("\n", "&#xA;").replace("\t", "&#x9;")


def http_date(ms: int) -> str:
    """Write milliseconds since the epoch as RFC 1123 has it; fractions of a second are cut off."""
    second = ms // 1000
    text = _dates.get(second)
    if text is None:
        moment = _EPOCH + datetime.timedelta(seconds=second)
        text = (
            f"{_DAYS[moment.weekday()]}, {moment.day:02d} {_MONTHS[moment.month - 1]} {moment.year:04d} "
            f"{moment:%H:%M:%S} GMT"
        )
        if len(_dates) >= _DATES_MAX:
            _dates.clear()
        _dates[second] = text
    return text


def moment_date(moment: datetime.datetime | None) -> str:
    """Write a moment likewise; None is never, which the service tells as the last second that a date can have."""
    if moment is None:
        return _NEVER
    return http_date((moment - _EPOCH) // datetime.timedelta(milliseconds=1))


def body_text(body: bytes) -> str:
    """Return a message's body as the text of an element, not yet escaped: itself where XML can hold it, else base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode("ascii")
    return text if _unfit(text) is None else base64.b64encode(body).decode("ascii")


def put(id_: str, receipt: str, inserted_ms: int, expires_ms: int | None, visible_ms: int) -> bytes:
    """Write the answer to a put."""
    expires = _NEVER if expires_ms is None else http_date(expires_ms)
    return (
        f"{DECLARATION}<QueueMessagesList><QueueMessage><MessageId>{id_}</MessageId>"
        f"<InsertionTime>{http_date(inserted_ms)}</InsertionTime><ExpirationTime>{expires}</ExpirationTime>"
        f"<PopReceipt>{receipt}</PopReceipt><TimeNextVisible>{http_date(visible_ms)}</TimeNextVisible>"
        "</QueueMessage></QueueMessagesList>"
    ).encode()


EMPTY = f"{DECLARATION}<QueueMessagesList />".encode()


def received(messages: Sequence[StoredMessage], ids: Iterable[str], receipts: Iterable[str], visible_ms: int) -> bytes:
    """Write the answer to a receive, all visible again at ``visible_ms``."""
    if not messages:
        return EMPTY
    visible = http_date(visible_ms)
    parts = [DECLARATION, "<QueueMessagesList>"]
    for message, id_, receipt in zip(messages, ids, receipts, strict=True):
        parts.append(
            f"<QueueMessage><MessageId>{id_}</MessageId>"
            f"<InsertionTime>{moment_date(message.inserted_at)}</InsertionTime>"
            f"<ExpirationTime>{moment_date(message.expires_at)}</ExpirationTime>"
            f"<PopReceipt>{receipt}</PopReceipt><TimeNextVisible>{visible}</TimeNextVisible>"
            f"<DequeueCount>{message.dequeue_count}</DequeueCount>"
            f"<MessageText>{escape(body_text(message.body))}</MessageText></QueueMessage>"
        )
    parts.append("</QueueMessagesList>")
    return "".join(parts).encode()


def peeked(messages: Sequence[StoredMessage], ids: Iterable[str], chars_max: int) -> bytes:
    """Write the answer to a peek: no receipt, and not when it will be visible.

    It ends before it is longer than ``chars_max``, but never before its first message.
    """
    if not messages:
        return EMPTY
    parts = [DECLARATION, "<QueueMessagesList>"]
    size = 0
    for message, id_ in zip(messages, ids, strict=True):
        part = (
            f"<QueueMessage><MessageId>{id_}</MessageId>"
            f"<InsertionTime>{moment_date(message.inserted_at)}</InsertionTime>"
            f"<ExpirationTime>{moment_date(message.expires_at)}</ExpirationTime>"
            f"<DequeueCount>{message.dequeue_count}</DequeueCount>"
            f"<MessageText>{escape(body_text(message.body))}</MessageText></QueueMessage>"
        )
        if size and size + len(part) > chars_max:
            break
        size += len(part)
        parts.append(part)
    parts.append("</QueueMessagesList>")
    return "".join(parts).encode()


def queues(
    endpoint: str,
    given: Sequence[tuple[str, str]],
    found: Sequence[tuple[str, Mapping[str, str] | None]],
    next_marker: str,
) -> bytes:
    """Write one page of queues; ``given`` are prefix, marker and page size as far as they were asked for."""
    parts = [DECLARATION, f'<EnumerationResults ServiceEndpoint="{escape_attribute(endpoint)}">']
    parts += [f"<{name}>{escape(value)}</{name}>" for name, value in given]
    parts.append("<Queues>")
    for name, metadata in found:
        parts.append(f"<Queue><Name>{name}</Name>")
        if metadata is not None:
            parts.append("<Metadata>")
            parts += [f"<{key}>{escape(value)}</{key}>" for key, value in metadata.items()]
            parts.append("</Metadata>")
        parts.append("</Queue>")
    parts.append("</Queues>")
    parts.append(f"<NextMarker>{escape(next_marker)}</NextMarker>" if next_marker else "<NextMarker />")
    parts.append("</EnumerationResults>")
    return "".join(parts).encode()


def stats(last_sync_ms: int) -> bytes:
    """Write the service's statistics: one place, so that the secondary endpoint is never behind."""
    return (
        f"{DECLARATION}<StorageServiceStats><GeoReplication><Status>live</Status>"
        f"<LastSyncTime>{http_date(last_sync_ms)}</LastSyncTime></GeoReplication></StorageServiceStats>"
    ).encode()


def error(code: str, message: str, details: Mapping[str, str]) -> bytes:
    """Write a refusal; of details from the request, what XML cannot hold is written as a question mark."""
    rest = "".join(f"<{name}>{escape(_UNFIT.sub('?', value))}</{name}>" for name, value in details.items())
    return f"{DECLARATION}<Error><Code>{code}</Code><Message>{escape(message)}</Message>{rest}</Error>".encode()
