"""What a request addresses: an account, a queue, its messages or one of them."""

from __future__ import annotations

import enum
from urllib.parse import parse_qsl, unquote

import msgspec

from bridge.http.azure.accounts import SECONDARY
from bridge.http.azure.errors import AzureError
from bridge.http.azure.naming import check_queue_name
from bridge.http.server.guard import origin_form

QUERY_FIELDS_MAX = 64


class Resource(enum.Enum):
    """The kinds of things that have an address."""

    ACCOUNT = "account"
    QUEUE = "queue"
    MESSAGES = "messages"
    MESSAGE = "message"

    # As of `Operation`.
    __hash__ = object.__hash__


class Address(msgspec.Struct, frozen=True, gc=False):
    """An address taken apart; ``path`` is as it came, ``query`` as `Request` has it."""

    account: str
    secondary: bool
    path_style: bool
    resource: Resource
    queue: str
    message: str
    path: str
    query: dict[str, str]


def host_account(host: str) -> str | None:
    """Return the account of a host name like ``account.queue.localhost``, or None where the path has to name it."""
    account, _, rest = host.partition(".")
    return account if account and rest.startswith("queue.") and len(rest) > len("queue.") else None


def locate(target: str, host: str) -> Address:
    """Take the target of a request and its host name (lower case, no port) apart.

    Raises `AzureError`: ``InvalidUri``, ``InvalidResourceName``, ``OutOfRangeInput`` or ``RequestUrlFailedToParse``.
    """
    path, mark, text = origin_form(target).partition("?")
    query = _query(text) if mark else {}
    # Split first: an encoded slash must not make another segment.
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
        # SDKs that know a second host only in front of the path of the first: /account-secondary/account/queue.
        del parts[1]
    if len(parts) > 1 and not parts[-1]:
        # One slash at the end changes nothing; SDKs put one behind the account.
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
        # Nothing is to be decoded.
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
