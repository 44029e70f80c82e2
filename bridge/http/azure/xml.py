"""The XML and the dates of the service, read and written.

Requests are small, flat documents. Document types, entities, processing instructions and comments are refused at their
first byte, because they have no use here and attack parsers. Answers are written as text: there are six forms, and an
element tree costs ten times as much.
"""

from __future__ import annotations

import base64
import datetime
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from email.utils import formatdate
from xml.parsers import expat

from queuebell.bridge.http.azure.errors import AzureError
from queuebell.bridge.queues.base import StoredMessage

DEPTH_MAX = 8
NODES_MAX = 500

# A message as every SDK writes it, its text in ASCII and without a reference: the parser's result at a tenth of its
# cost. Everything else goes to the parser. Neighbouring parts match no common character.
_plain = re.compile(
    rb"""(?:<\?xml[ ]version=(?:"1\.0"|'1\.0')
        (?:[ ]encoding=(?:"(?:utf|UTF)-8"|'(?:utf|UTF)-8'))?(?:[ ]standalone=(?:"yes"|'yes'))?[ ]?\?>)?
    [ \t\r\n]*<QueueMessage>[ \t\r\n]*<MessageText>
    ([\t\n\x20-\x25\x27-\x3b\x3d-\x7f]*)
    </MessageText>[ \t\r\n]*</QueueMessage>[ \t\r\n]*""",
    re.VERBOSE,
).fullmatch


class Element:
    """An element: its name, the text directly in it, and its children."""

    __slots__ = ("children", "name", "text")

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.children: list[Element] = []

    def child(self, name: str) -> Element | None:
        """Return the first child of a name, or None."""
        for each in self.children:
            if each.name == name:
                return each
        return None

    def required(self, name: str) -> Element:
        """Return that child; raises `AzureError` (``MissingRequiredXmlNode``) without one."""
        found = self.child(name)
        if found is None:
            raise AzureError("MissingRequiredXmlNode", details={"XmlNodeName": name})
        return found


class _Reader:
    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._nodes = 0
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = _refuse
        parser.EntityDeclHandler = _refuse
        parser.ProcessingInstructionHandler = _refuse
        parser.CommentHandler = _refuse

    def read(self, raw: bytes) -> Element:
        try:
            self._parser.Parse(raw, True)
        except (expat.ExpatError, LookupError, ValueError):
            raise AzureError("InvalidXmlDocument") from None
        assert self.root is not None
        return self.root

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        element = Element(name)
        self._nodes += 1
        if self._nodes > NODES_MAX or len(self._open) >= DEPTH_MAX:
            raise AzureError("InvalidXmlDocument")
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        self._open[-1].text += text


def wrong(name: str) -> AzureError:
    """Return the refusal of an element with an invalid text."""
    return AzureError("InvalidXmlNodeValue", details={"XmlNodeName": name})


def parse(raw: bytes) -> Element:
    """Return the root of a document; raises `AzureError` (``InvalidXmlDocument``) for an invalid or forbidden one.

    Attributes are ignored: they have no meaning in this service.
    """
    return _Reader().read(raw)


def message_text(raw: bytes) -> str:
    """Return the exact text of ``<QueueMessage><MessageText>...</MessageText></QueueMessage>``.

    Raises `AzureError`: ``InvalidXmlDocument``, ``MissingRequiredXmlNode`` or ``InvalidXmlNodeValue``.
    """
    plain = _plain(raw)
    if plain is not None and b"]]>" not in raw:
        return plain[1].decode("ascii")
    return parsed_text(raw)


def parsed_text(raw: bytes) -> str:
    """Return the same by the parser alone."""
    root = parse(raw)
    if root.name != "QueueMessage":
        raise AzureError("InvalidXmlDocument")
    text = root.child("MessageText")
    if text is None:
        raise AzureError("MissingRequiredXmlNode", details={"XmlNodeName": "MessageText"})
    if text.children:
        raise AzureError("InvalidXmlNodeValue", details={"XmlNodeName": "MessageText"})
    return text.text


def _refuse(*_: object) -> None:
    raise AzureError("InvalidXmlDocument")


DECLARATION = '<?xml version="1.0" encoding="utf-8"?>'

# Everything that XML 1.0 cannot hold. A carriage return is written as a reference below, or it would be lost.
_UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_unfit = _UNFIT.search
_special = re.compile("[&<>\r]").search
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NEVER = "Fri, 31 Dec 9999 23:59:59 GMT"


def escape(text: str) -> str:
    """Escape text between two tags."""
    if _special(text) is None:
        return text
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#xD;")


def escape_attribute(text: str) -> str:
    """Escape text between two quotation marks."""
    return escape(text).replace('"', "&quot;").replace("\n", "&#xA;").replace("\t", "&#x9;")


def http_date(ms: int) -> str:
    """Return milliseconds since the epoch in the form of RFC 1123; fractions of a second are cut off."""
    return _date_of(ms // 1000)


@functools.lru_cache(maxsize=1024)
def _date_of(second: int) -> str:
    return formatdate(second, usegmt=True)


def moment_date(moment: datetime.datetime | None) -> str:
    """Return a moment in the same form; None is never, which the service writes as the last possible second."""
    if moment is None:
        return _NEVER
    return http_date((moment - _EPOCH) // datetime.timedelta(milliseconds=1))


def body_text(body: bytes) -> str:
    """Return a message's body as text, not escaped; in base64 if XML cannot hold it."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode("ascii")
    return text if _unfit(text) is None else base64.b64encode(body).decode("ascii")


def put(id_: str, receipt: str, inserted_ms: int, expires_ms: int | None, visible_ms: int) -> bytes:
    """Return the answer to a put."""
    expires = _NEVER if expires_ms is None else http_date(expires_ms)
    return (
        f"{DECLARATION}<QueueMessagesList><QueueMessage><MessageId>{id_}</MessageId>"
        f"<InsertionTime>{http_date(inserted_ms)}</InsertionTime><ExpirationTime>{expires}</ExpirationTime>"
        f"<PopReceipt>{receipt}</PopReceipt><TimeNextVisible>{http_date(visible_ms)}</TimeNextVisible>"
        "</QueueMessage></QueueMessagesList>"
    ).encode()


EMPTY = f"{DECLARATION}<QueueMessagesList />".encode()


def received(messages: Sequence[StoredMessage], ids: Iterable[str], receipts: Iterable[str], visible_ms: int) -> bytes:
    """Return the answer to a receive; all messages are visible again at ``visible_ms``."""
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
    """Return the answer to a peek, without receipts and times of visibility.

    It has at most ``chars_max`` characters, but at least one message.
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
    """Return one page of queues; ``given`` are the prefix, marker and page size of the request."""
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
    """Return the service's statistics; the secondary endpoint is the same store, so it is never behind."""
    return (
        f"{DECLARATION}<StorageServiceStats><GeoReplication><Status>live</Status>"
        f"<LastSyncTime>{http_date(last_sync_ms)}</LastSyncTime></GeoReplication></StorageServiceStats>"
    ).encode()


def error(code: str, message: str, details: Mapping[str, str]) -> bytes:
    """Return a refusal; characters of its details that XML cannot hold become question marks."""
    rest = "".join(f"<{name}>{escape(_UNFIT.sub('?', value))}</{name}>" for name, value in details.items())
    return f"{DECLARATION}<Error><Code>{code}</Code><Message>{escape(message)}</Message>{rest}</Error>".encode()


_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_http = re.compile(
    r"[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT"
).fullmatch
_iso = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:T([0-9]{2}:[0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,7}))?)?(Z|[+-][0-9]{2}:[0-9]{2}))?"
).fullmatch


# Requests of one second have the same text.
@functools.lru_cache(maxsize=256)
def read_http_date(text: str) -> datetime.datetime | None:
    """Parse ``Sun, 06 Nov 1994 08:49:37 GMT``; None for anything else."""
    match = _http(text)
    if match is None or match[2] not in _MONTHS:
        return None
    try:
        return datetime.datetime(
            int(match[3]),
            _MONTHS[match[2]],
            int(match[1]),
            int(match[4]),
            int(match[5]),
            int(match[6]),
            tzinfo=datetime.UTC,
        )
    except ValueError:
        return None


def read_iso(text: str) -> datetime.datetime | None:
    """Parse a day, or a day with a time and a zone, in the forms of a shared access signature; None for anything else.

    A day alone is its first moment in UTC. Digits past the microsecond are cut off.
    """
    match = _iso(text)
    if match is None:
        return None
    day, minutes, seconds, fraction, zone = match.groups()
    whole = f"{day}T{minutes or '00:00'}:{seconds or '00'}.{(fraction or '').ljust(6, '0')[:6]}"
    try:
        moment = datetime.datetime.fromisoformat(whole + ("+00:00" if zone in (None, "Z") else zone))
        return moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None


def write_iso(moment: datetime.datetime) -> str:
    """Return a moment in the service's form, with seven digits of a second's fraction."""
    return f"{moment.astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}0Z"
