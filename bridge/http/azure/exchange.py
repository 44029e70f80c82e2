"""A request to the service, its address, operation and version, and its reply, without the HTTP around them."""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import parse_qsl, unquote

import msgspec

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.put_gate import Ticket
from queuebell.bridge.http.azure.accounts import SECONDARY
from queuebell.bridge.http.azure.errors import AzureError
from queuebell.bridge.http.server.guard import origin_form

_NO_HEADERS: dict[str, str] = {}


async def _nothing(limit: int, ticket: Ticket | None) -> bytes:
    return b""


class Resource(enum.Enum):
    """The kinds of things that have an address."""

    ACCOUNT = "account"
    QUEUE = "queue"
    MESSAGES = "messages"
    MESSAGE = "message"

    # As of `Operation`.
    __hash__ = object.__hash__


class Request(msgspec.Struct, gc=False):
    """One request with its parsed address; only its host has been checked."""

    method: str
    path: str
    """Still encoded, without the query: ``/devstoreaccount1/orders/messages``."""
    query: Mapping[str, str]
    """Decoded, names in lower case; the values of equal names are sorted and joined by commas."""
    headers: Mapping[str, str]
    """Names are not case-sensitive."""
    account: str
    """Without the ``-secondary`` of its second endpoint."""
    secondary: bool = False
    path_style: bool = True
    """Whether the account is in the path, as in the emulator, or in the host name."""
    queue: str = ""
    """Empty if the account is addressed."""
    secure: bool = False
    """Whether it arrived by HTTPS."""
    address: str = ""
    """The client's address, without a port."""
    resource: Resource = Resource.ACCOUNT
    message: str = ""
    authority: str = ""
    """The Host header, with its port."""
    read: Callable[[int, Ticket | None], Awaitable[bytes]] = _nothing
    """Reads the whole body, at most so many bytes; raises `AzureError` (``RequestBodyTooLarge``). A put with a ticket
    may have to give way to others (``ServerBusy``)."""
    whole: bool = False
    """Whether the body has arrived, so that `read` does not wait."""
    version: str = ""
    """Of the protocol; set after the checks, like `now_ms`."""
    now_ms: int = 0
    """Milliseconds since the epoch by the wall clock."""

    @property
    def reference(self) -> str:
        """The queue reference: the account and the queue of the address."""
        return f"{self.account}/{self.queue}"

    async def body(self, limit: int) -> bytes:
        """Return the body after checking its MD5, if the request has one."""
        raw = await self.read(limit, None)
        digest = self.headers.get("content-md5")
        if digest:
            try:
                given = base64.b64decode(digest, validate=True)
            except (binascii.Error, ValueError):
                given = b""
            if len(given) != 16:
                raise AzureError("InvalidMd5")
            if hashlib.md5(raw, usedforsecurity=False).digest() != given:
                raise AzureError("Md5Mismatch")
        return raw

    def number(self, name: str, low: int, high: int, default: int | None) -> int:
        """Return a whole number of the query; ``default`` None means that it is required.

        Raises `AzureError`: ``InvalidQueryParameterValue``, ``OutOfRangeQueryParameterValue`` or
        ``MissingRequiredQueryParameter``.
        """
        text = self.query.get(name)
        if text is None:
            if default is None:
                raise AzureError("MissingRequiredQueryParameter", details={"QueryParameterName": name})
            return default
        digits = text[1:] if text.startswith("-") else text
        # int() alone takes blanks, underscores and the digits of every script.
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
            raise AzureError(
                "InvalidQueryParameterValue",
                details={"QueryParameterName": name, "QueryParameterValue": text[:64]},
            )
        value = int(text)
        if not low <= value <= high:
            raise AzureError(
                "OutOfRangeQueryParameterValue",
                details={
                    "QueryParameterName": name,
                    "QueryParameterValue": text,
                    "MinimumAllowed": str(low),
                    "MaximumAllowed": str(high),
                },
            )
        return value


class Reply(msgspec.Struct, gc=False):
    """An answer: a status, further headers, and a body of XML or none."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = _NO_HEADERS
    close: bool = False


class Operation(enum.Enum):
    """One operation: its name in the documents, its level, and the letters, any of which allows it.

    ``level`` is ``s`` (service), ``c`` (queue) or ``o`` (message), the letters of an account signature's ``srt``.
    ``account_letters`` allow it in an account signature (``sp``), ``service_letters`` in one of a queue; without any no
    such signature allows it. ``verb`` is the permission that the account's principal needs.
    """

    LIST_QUEUES = ("ListQueues", "s", "l", "", Verb.LOOK)
    GET_SERVICE_PROPERTIES = ("GetServiceProperties", "s", "r", "", Verb.OPERATE)
    SET_SERVICE_PROPERTIES = ("SetServiceProperties", "s", "w", "", Verb.OPERATE)
    GET_SERVICE_STATS = ("GetServiceStats", "s", "r", "", Verb.OPERATE)
    CREATE_QUEUE = ("CreateQueue", "c", "cw", "", Verb.MANAGE)
    DELETE_QUEUE = ("DeleteQueue", "c", "d", "", Verb.MANAGE)
    GET_QUEUE_METADATA = ("GetQueueMetadata", "c", "r", "r", Verb.LOOK)
    SET_QUEUE_METADATA = ("SetQueueMetadata", "c", "w", "", Verb.MANAGE)
    GET_QUEUE_ACL = ("GetQueueACL", "c", "", "", Verb.MANAGE)
    SET_QUEUE_ACL = ("SetQueueACL", "c", "", "", Verb.MANAGE)
    PUT_MESSAGE = ("PutMessage", "o", "a", "a", Verb.PUT)
    GET_MESSAGES = ("GetMessages", "o", "p", "p", Verb.TAKE)
    PEEK_MESSAGES = ("PeekMessages", "o", "r", "r", Verb.LOOK)
    DELETE_MESSAGE = ("DeleteMessage", "o", "p", "p", Verb.TAKE)
    UPDATE_MESSAGE = ("UpdateMessage", "o", "u", "u", Verb.TAKE)
    CLEAR_MESSAGES = ("ClearMessages", "o", "d", "", Verb.MANAGE)

    # Members are compared by identity; hashing their names would run Python code several times a request.
    __hash__ = object.__hash__

    def __init__(self, title: str, level: str, account_letters: str, service_letters: str, verb: Verb) -> None:
        self.title = title
        self.level = level
        self.account_letters = account_letters
        self.service_letters = service_letters
        self.verb = verb


NEWEST = "2026-10-06"
OLDEST = "2009-09-19"
"""The version of a request without one."""
KNOWN = frozenset({
    "2009-09-19", "2011-08-18", "2012-02-12", "2013-08-15", "2014-02-14", "2015-02-21", "2015-04-05", "2015-07-08",
    "2015-12-11", "2016-05-31", "2017-04-17", "2017-07-29", "2017-11-09", "2018-03-28", "2018-11-09", "2019-02-02",
    "2019-07-07", "2019-10-10", "2019-12-12", "2020-02-10", "2020-04-08", "2020-06-12", "2020-08-04", "2020-10-02",
    "2020-12-06", "2021-02-12", "2021-04-10", "2021-06-08", "2021-08-06", "2021-10-04", "2021-12-02", "2022-11-02",
    "2023-01-03", "2023-05-03", "2023-08-03", "2023-11-03", "2024-02-04", "2024-05-04", "2024-08-04", "2024-11-04",
    "2025-01-05", "2025-05-05", "2025-07-05", "2025-11-05", "2026-02-06", "2026-04-06", "2026-06-06", "2026-10-06",
})  # fmt: skip
PUT_ANSWERS = "2016-05-31"
"""From here on the answer to a put has a body."""
LONG_LIVES = "2017-07-29"
"""From here on a message may live longer than seven days."""


def version_of(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """Return the version of a request: of its header, else of its signature's ``api-version`` or ``sv``, else `OLDEST`.

    Raises `AzureError`: ``InvalidHeaderValue`` or ``InvalidQueryParameterValue`` for an unknown version.
    """
    version = headers.get("x-ms-version")
    if version is not None:
        if version not in KNOWN:
            raise AzureError("InvalidHeaderValue", details={"HeaderName": "x-ms-version", "HeaderValue": version[:64]})
        return version
    for name in ("api-version", "sv"):
        version = query.get(name)
        if version is not None:
            if version not in KNOWN:
                raise AzureError(
                    "InvalidQueryParameterValue",
                    details={"QueryParameterName": name, "QueryParameterValue": version[:64]},
                )
            return version
    return OLDEST


QUERY_FIELDS_MAX = 64


class Address(msgspec.Struct, frozen=True, gc=False):
    """A parsed address; ``path`` and ``query`` are as in `Request`."""

    account: str
    secondary: bool
    path_style: bool
    resource: Resource
    queue: str
    message: str
    path: str
    query: dict[str, str]


def host_account(host: str) -> str | None:
    """Return the account of a host name like ``account.queue.localhost``, None if the path names it."""
    account, _, rest = host.partition(".")
    return account if account and rest.startswith("queue.") and len(rest) > len("queue.") else None


def locate(target: str, host: str) -> Address:
    """Parse the target of a request and its host name (lower case, no port).

    Raises `AzureError`: ``InvalidUri``, ``InvalidResourceName``, ``OutOfRangeInput`` or ``RequestUrlFailedToParse``.
    """
    path, mark, text = origin_form(target).partition("?")
    query = _query(text) if mark else {}
    # Split first: an encoded slash is not a separator.
    parts = path.split("/")
    account = host_account(host) if "." in host else None
    path_style = account is None
    if path_style:
        account = _decoded(parts[1])
        del parts[1]
    assert account is not None
    secondary = account.endswith(SECONDARY)
    if secondary:
        account = account[: -len(SECONDARY)]
    if not account:
        raise AzureError("InvalidUri")
    if secondary and path_style and len(parts) > 1 and parts[1] == account:
        # Some SDKs put the second host in front of the path of the first: /account-secondary/account/queue.
        del parts[1]
    if len(parts) > 1 and not parts[-1]:
        # A slash at the end is ignored; SDKs put one behind the account.
        parts.pop()
    queue = message = ""
    resource = Resource.ACCOUNT
    if len(parts) > 1:
        queue = _decoded(parts[1])
        check_queue_name(queue)
        resource = Resource.QUEUE
    if len(parts) > 2:
        if parts[2].lower() != "messages" or len(parts) > 4:
            raise AzureError("InvalidUri")
        resource = Resource.MESSAGES
        if len(parts) == 4:
            message = _decoded(parts[3])
            resource = Resource.MESSAGE
    return Address(account, secondary, path_style, resource, queue, message, path, query)


def _decoded(segment: str) -> str:
    if "%" not in segment:
        return segment
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise AzureError("RequestUrlFailedToParse") from None


def _query(text: str) -> dict[str, str]:
    if "%" not in text and "+" not in text and text.count("&") < QUERY_FIELDS_MAX:
        # Nothing to decode.
        fields = [field.partition("=") for field in text.split("&") if field]
        query = {name.lower(): value for name, _, value in fields}
        if len(query) == len(fields):
            return query
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        raise AzureError("RequestUrlFailedToParse") from None
    query = {}
    again: dict[str, list[str]] = {}
    for name, value in pairs:
        name = name.lower()
        if name in query:
            again.setdefault(name, [query[name]]).append(value)
        query[name] = value
    for name, values in again.items():
        query[name] = ",".join(sorted(values))
    return query


METADATA_BYTES_MAX = 8192
METADATA_PREFIX = "x-ms-meta-"

_queue_name = re.compile("[a-z0-9](?:[a-z0-9]|-(?=[a-z0-9])){2,62}").fullmatch
_metadata_name = re.compile("[A-Za-z_][A-Za-z0-9_]*").fullmatch
_header_text = re.compile("[\x20-\x7e]*").fullmatch
_message_id = re.compile("00000000-0000-0000-([0-9a-f]{4})-([0-9a-f]{12})", re.IGNORECASE).fullmatch

# Names are repeated: valid ones are cached, and the cache is cleared when it is full.
_known: set[str] = set()
_KNOWN_MAX = 10_000


def is_queue_name(name: str) -> bool:
    """Return whether a name has 3 to 63 of ``a-z0-9-``, with no hyphen at an end or next to another."""
    return _queue_name(name) is not None


def check_queue_name(name: str) -> None:
    """Raise `AzureError` for an invalid name: ``OutOfRangeInput`` or ``InvalidResourceName``."""
    if name in _known:
        return
    if not is_queue_name(name):
        if 3 <= len(name) <= 63:
            raise AzureError("InvalidResourceName")
        raise AzureError("OutOfRangeInput", "The specified resource name length is not within the permissible limits.")
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known.add(name)


def message_id(stored: str) -> str:
    """Return a message's id (16 hex digits in the store) as a GUID, as clients expect."""
    return f"00000000-0000-0000-{stored[:4]}-{stored[4:]}"


def stored_id(given: str) -> str:
    """Return the store's id of a `message_id`; raises `AzureError` (``MessageNotFound``) for anything else."""
    match = _message_id(given)
    if match is None:
        raise AzureError("MessageNotFound")
    return (match[1] + match[2]).lower()


def metadata_of(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Collect the metadata of a request's headers.

    Values of equal names, whatever their case, are joined by commas. Raises `AzureError`: ``InvalidMetadata`` or
    ``MetadataTooLarge``.
    """
    found: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for header, value in headers:
        if header[: len(METADATA_PREFIX)].lower() != METADATA_PREFIX:
            continue
        name = header[len(METADATA_PREFIX) :]
        if _metadata_name(name) is None or _header_text(value) is None:
            raise AzureError("InvalidMetadata")
        name = spelled.setdefault(name.lower(), name)
        found[name] = f"{found[name]},{value}" if name in found else value
    if sum(len(name) + len(value) for name, value in found.items()) > METADATA_BYTES_MAX:
        raise AzureError("MetadataTooLarge")
    return found


def metadata_shown(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata that can be sent as headers; the native interface allows more."""
    return {
        name: value
        for name, value in metadata.items()
        if _metadata_name(name) is not None and _header_text(value) is not None
    }
