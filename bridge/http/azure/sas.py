"""Shared access signatures: of an account, and of a queue with or without a stored access policy."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from bridge.http.azure.errors import AzureError
from bridge.http.azure.exchange import Request
from bridge.http.azure.moments import read_iso
from bridge.http.azure.operation import Operation
from bridge.http.azure.signature import failed, matches, shown

if TYPE_CHECKING:
    from bridge.http.azure.policies import Policy

Policies = Callable[[str], Sequence["Policy"]]

T = TypeVar("T")

_QUEUE_SINCE = "2012-02-12"
_SERVICE_IN_RESOURCE_SINCE = "2015-02-21"
_ADDRESS_SINCE = "2015-04-05"
_ACCOUNT_SINCE = "2015-04-05"
_SCOPE_SINCE = "2020-12-06"
_DELEGATED = ("skoid", "sktid", "sduoid")


class AccountGrant(msgspec.Struct, frozen=True, gc=False):
    """What a signature of an account grants: letters of resource types (``sco``) and of permissions."""

    resource_types: str
    permissions: str

    def allows(self, operation: Operation, queue: str) -> bool:
        """Say whether the letters allow it; raises `AzureError` (``AuthorizationResourceTypeMismatch``)."""
        if not operation.account_letters:
            return False
        if operation.level not in self.resource_types:
            raise AzureError("AuthorizationResourceTypeMismatch")
        return any(letter in self.permissions for letter in operation.account_letters)


class QueueGrant(msgspec.Struct, frozen=True, gc=False):
    """What a signature of one queue grants: letters of permissions (``raup``)."""

    queue: str
    permissions: str

    def allows(self, operation: Operation, queue: str) -> bool:
        """Say whether it is this queue and the letters allow it."""
        return queue == self.queue and any(letter in self.permissions for letter in operation.service_letters)


Grant = AccountGrant | QueueGrant


def authorize(signed: Request, keys: Sequence[bytes], policies: Policies, now: datetime.datetime) -> Grant:
    """Check a shared access signature: the signature itself first, then time, address and protocol.

    Raises `AzureError`: ``AuthenticationFailed``, ``AuthorizationServiceMismatch``,
    ``AuthorizationSourceIPMismatch`` or ``AuthorizationProtocolMismatch``.
    """
    query = signed.query
    if any(name in query for name in _DELEGATED):
        raise failed("User delegation signatures are not supported; use one signed with an account key.")
    if "ss" in query or "srt" in query:
        _check_signature(account_string(signed.account, query), query, keys)
        grant: Grant = AccountGrant(_required(query, "srt"), _required(query, "sp"))
        start, expiry = _moment(query, "st"), _moment(query, "se")
    else:
        _check_signature(queue_string(signed.account, signed.queue, query), query, keys)
        policy = _policy(signed, policies)
        start = _either("st", _moment(query, "st"), None if policy is None else policy.start)
        expiry = _either("se", _moment(query, "se"), None if policy is None else policy.expiry)
        permissions = _either("sp", query.get("sp") or None, None if policy is None else policy.permissions)
        if permissions is None:
            raise failed("Neither the signature nor its stored access policy grants a permission (sp).")
        grant = QueueGrant(signed.queue, permissions)
    if expiry is None:
        raise failed("Neither the signature nor a stored access policy has an expiry time (se).")
    if start is not None and now < start:
        raise failed("The signature is not valid yet (st).")
    if now >= expiry:
        raise failed("The signature has expired (se).")
    if "q" not in query.get("ss", "q"):
        raise AzureError("AuthorizationServiceMismatch")
    _check_address(query.get("sip", ""), signed.address)
    _check_protocol(query.get("spr", ""), signed.secure)
    return grant


def account_string(account: str, query: Mapping[str, str]) -> str:
    """Return the text that a signature of an account covers; raises `AzureError` where ``sv`` has none."""
    version = query.get("sv", "")
    if version < _ACCOUNT_SINCE:
        raise failed("A signature of an account needs a version (sv) of 2015-04-05 or later.")
    names = ["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"]
    if version >= _SCOPE_SINCE:
        names.append("ses")
    return "\n".join([account, *(query.get(name, "") for name in names)]) + "\n"


def queue_string(account: str, queue: str, query: Mapping[str, str]) -> str:
    """Return the text that a signature of a queue covers; raises `AzureError` where ``sv`` has none."""
    version = query.get("sv", "")
    if version < _QUEUE_SINCE:
        raise failed("A signature of a queue needs a version (sv) of 2012-02-12 or later.")
    service = "/queue" if version >= _SERVICE_IN_RESOURCE_SINCE else ""
    parts = [query.get("sp", ""), query.get("st", ""), query.get("se", ""), f"{service}/{account}/{queue}"]
    parts.append(query.get("si", ""))
    if version >= _ADDRESS_SINCE:
        parts += [query.get("sip", ""), query.get("spr", "")]
    return "\n".join([*parts, version])


def _check_signature(text: str, query: Mapping[str, str], keys: Sequence[bytes]) -> None:
    if not matches(keys, text, query["sig"]):
        raise failed(f"The signature does not match any key of the account over this text: '{shown(text)}'")


def _policy(signed: Request, policies: Policies) -> Policy | None:
    name = signed.query.get("si")
    if not name:
        return None
    for policy in policies(f"{signed.account}/{signed.queue}"):
        if policy.id == name:
            return policy
    raise failed("The queue has no stored access policy of that name (si); it may have been removed.")


def _either(name: str, own: T | None, stored: T | None) -> T | None:
    """Return what the signature says or what its policy says; both may not speak of the same."""
    if own is not None and stored is not None:
        raise failed(f"The signature and its stored access policy both set {name}; only one may.")
    return stored if own is None else own


def _required(query: Mapping[str, str], name: str) -> str:
    value = query.get(name)
    if not value:
        raise failed(f"The signature lacks {name}.")
    return value


def _moment(query: Mapping[str, str], name: str) -> datetime.datetime | None:
    text = query.get(name)
    if not text:
        return None
    moment = read_iso(text)
    if moment is None:
        raise failed(f"The time in {name} is not in a supported form of ISO 8601.")
    return moment


def _check_address(allowed: str, address: str) -> None:
    if not allowed:
        return
    low, dash, high = allowed.partition("-")
    try:
        first = ipaddress.ip_address(low)
        last = ipaddress.ip_address(high) if dash else first
        came = ipaddress.ip_address(address)
    except ValueError:
        raise AzureError("AuthorizationSourceIPMismatch") from None
    mapped = came.ipv4_mapped if isinstance(came, ipaddress.IPv6Address) else None
    number = int(mapped or came)
    if (
        (mapped or came).version != first.version
        or first.version != last.version
        or not int(first) <= number <= int(last)
    ):
        raise AzureError("AuthorizationSourceIPMismatch")


def _check_protocol(allowed: str, secure: bool) -> None:
    if allowed not in ("", "https", "https,http"):
        raise failed("The protocol of a signature (spr) must be https or https,http.")
    if allowed == "https" and not secure:
        raise AzureError("AuthorizationProtocolMismatch")
