"""Authentication and authorization: signatures of accounts and queues, and the permissions of each account's principal.

A `SignatureAuthorizer` checks Shared Key, Shared Key Lite and shared access signatures. A well-made request costs one
HMAC over one string. The documents leave open how header names with hyphens sort and how blanks within a value count,
and clients differ; so a few readings are tried in turn. Each of them covers all that a signature covers, and nothing
is remembered between requests. `AccountPrincipals` applies the access file, if there is one.
"""

from __future__ import annotations

import base64
import datetime
import hmac
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.grants import Principal, Reach, Verb
from queuebell.bridge.access.put_gate import Ticket
from queuebell.bridge.access.quota_guard import PastLimit
from queuebell.bridge.contract.address import sender_of
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.http.azure.accounts import SECONDARY, Accounts
from queuebell.bridge.http.azure.errors import AzureError, busy
from queuebell.bridge.http.azure.exchange import Operation, Request
from queuebell.bridge.http.azure.xml import read_http_date, read_iso
from queuebell.bridge.observe.facts import AccessRefused, Administered, Fact

if TYPE_CHECKING:
    from queuebell.bridge.http.azure.records import Policy

SKEW = datetime.timedelta(minutes=15)
"""How far the date of a request may differ from this clock."""
_LONG_FORM_SINCE = "2009-09-19"
_EMPTY_FOR_ZERO_SINCE = "2015-02-21"
_SELDOM = frozenset(
    {
        "content-encoding",
        "content-language",
        "content-md5",
        "if-modified-since",
        "if-match",
        "if-none-match",
        "if-unmodified-since",
        "range",
    }
)
_name = itemgetter(0)
_blanks = re.compile("[ \t]{2,}|\t")
# Sorting by words instead of bytes: hyphens count last, and every other sign comes before the digits.
_AS_WORDS = str.maketrans({sign: chr(1 + order) for order, sign in enumerate("!#$%&*.^_`|~+")} | {"-": None, "'": None})


class SignatureAuthorizer:
    """Checks signatures against the keys of ``accounts``; ``policies`` returns the stored policies of a queue."""

    def __init__(self, accounts: Accounts, policies: Callable[[str], Sequence[Policy]]) -> None:
        self._accounts = accounts
        self._policies = policies

    def authorize(self, signed: Request, now: datetime.datetime) -> Grant | FullGrant:
        """Check the signature of a request.

        Raises `AzureError`: ``AuthenticationFailed``, ``NoAuthenticationInformation``, ``InvalidAuthenticationInfo``,
        or what a shared access signature does not grant (``Authorization...Mismatch``).
        """
        header = signed.headers.get("authorization")
        if header is None:
            if "sig" in signed.query:
                keys = self._accounts.keys(signed.account)
                return _authorize_shared(signed, keys, self._policies, now)
            raise AzureError("NoAuthenticationInformation", headers={"WWW-Authenticate": "SharedKey"})
        scheme, _, credential = header.partition(" ")
        if scheme == "Bearer":
            raise failed("Bearer tokens are not supported; sign with an account key, or use a signature (SAS).")
        account, colon, signature = credential.strip().partition(":")
        if scheme not in ("SharedKey", "SharedKeyLite") or not colon or not account or not signature:
            raise AzureError("InvalidAuthenticationInfo")
        if account != signed.account:
            raise failed("The account of the Authorization header is not the account of the address.")
        _check_date(signed.headers, now)
        strings = strings_to_sign(signed, lite=scheme == "SharedKeyLite")
        keys = self._accounts.keys(account)
        first = ""
        for string in strings:
            first = first or string
            if matches(keys, string, signature):
                return FULL
        raise failed(f"The signature does not match any key of the account over this text: '{shown(first)}'")


class FullGrant:
    """The permissions of an account's key: everything."""

    def allows(self, operation: Operation, queue: str) -> bool:
        """Return True."""
        return True


FULL = FullGrant()


def strings_to_sign(signed: Request, *, lite: bool) -> Iterator[str]:
    """Yield the texts that a Shared Key signature of this request may cover, the likeliest first."""
    # One pass: a case-insensitive mapping folds the name at every access.
    headers: dict[str, str] = {}
    ms_headers = []
    for name, value in signed.headers.items():
        low = name.lower()
        if low[:5] == "x-ms-":
            ms_headers.append((low, value))
        headers.setdefault(low, value)
    # By name only: values of one name keep their order.
    ms_headers.sort(key=_name)
    get = headers.get
    version = get("x-ms-version", "")
    date = "" if "x-ms-date" in headers else get("date", "")
    start = f"{signed.method}\n"
    if lite or version < _LONG_FORM_SINCE:
        start += f"{get('content-md5', '')}\n{get('content-type', '')}\n{date}\n"
        comp = signed.query.get("comp")
        end = "" if comp is None else f"?comp={comp}"
    else:
        length = get("content-length", "")
        if length == "0" and version >= _EMPTY_FOR_ZERO_SINCE:
            length = ""
        if _SELDOM.isdisjoint(headers):
            start += f"\n\n{length}\n\n{get('content-type', '')}\n{date}\n\n\n\n\n\n"
        else:
            start += (
                f"{get('content-encoding', '')}\n{get('content-language', '')}\n{length}\n{get('content-md5', '')}\n"
                f"{get('content-type', '')}\n{date}\n{get('if-modified-since', '')}\n{get('if-match', '')}\n"
                f"{get('if-none-match', '')}\n{get('if-unmodified-since', '')}\n{get('range', '')}\n"
            )
        query = signed.query
        end = "".join([f"\n{name}:{query[name]}" for name in sorted(query)])
    paths = [signed.path]
    if signed.secondary and signed.path_style:
        # Some clients sign the second endpoint with the plain name of the account.
        paths.append(signed.path.replace(SECONDARY, "", 1))
    seen: set[str] = set()
    for middle in _orders(ms_headers):
        for path in paths:
            text = f"{start}{middle}/{signed.account}{path}{end}"
            if text not in seen:
                seen.add(text)
                yield text


def _check_date(headers: Mapping[str, str], now: datetime.datetime) -> None:
    text = headers.get("x-ms-date") or headers.get("date")
    if not text:
        raise failed("The request has no x-ms-date header.")
    moment = read_http_date(text)
    if moment is None:
        raise failed("The date of the request is not in the form of RFC 1123.")
    if abs(now - moment) > SKEW:
        raise failed(
            f"The date of the request differs by more than 15 minutes from this server's clock, which is {now:%c}."
        )


def _orders(found: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the canonical headers: sorted by bytes, then by words; then both with runs of blanks reduced to one."""
    if len(dict(found)) < len(found):
        merged: dict[str, list[str]] = {}
        for name, value in found:
            merged.setdefault(name, []).append(value)
        found = [(name, ",".join(values)) for name, values in merged.items()]
    yield "".join([f"{name}:{value}\n" for name, value in found])
    words = sorted(found, key=_word_order)
    yield "".join([f"{name}:{value}\n" for name, value in words])
    for order in (found, words):
        yield "".join([f"{name}:{_blanks.sub(' ', value)}\n" for name, value in order])


def _word_order(header: tuple[str, str]) -> tuple[str, tuple[float, ...]]:
    name = header[0]
    # If only hyphens differ, the name with the later hyphen (or none) comes first.
    hyphens = [-float(index) for index, char in enumerate(name) if char in "-'"]
    return name.translate(_AS_WORDS), (*hyphens, float("-inf"))


Policies = Callable[[str], Sequence["Policy"]]

T = TypeVar("T")

_QUEUE_SINCE = "2012-02-12"
_SERVICE_IN_RESOURCE_SINCE = "2015-02-21"
_ADDRESS_SINCE = "2015-04-05"
_ACCOUNT_SINCE = "2015-04-05"
_SCOPE_SINCE = "2020-12-06"
_DELEGATED = ("skoid", "sktid", "sduoid")


class AccountGrant(msgspec.Struct, frozen=True, gc=False):
    """The permissions of an account's SAS: letters of resource types (``sco``) and of permissions."""

    resource_types: str
    permissions: str

    def allows(self, operation: Operation, queue: str) -> bool:
        """Return whether the letters allow it; raises `AzureError` (``AuthorizationResourceTypeMismatch``)."""
        if not operation.account_letters:
            return False
        if operation.level not in self.resource_types:
            raise AzureError("AuthorizationResourceTypeMismatch")
        return any(letter in self.permissions for letter in operation.account_letters)


class QueueGrant(msgspec.Struct, frozen=True, gc=False):
    """The permissions of a queue's SAS: letters (``raup``)."""

    queue: str
    permissions: str

    def allows(self, operation: Operation, queue: str) -> bool:
        """Return whether it is this queue and the letters allow it."""
        return queue == self.queue and any(letter in self.permissions for letter in operation.service_letters)


Grant = AccountGrant | QueueGrant


def _authorize_shared(signed: Request, keys: Sequence[bytes], policies: Policies, now: datetime.datetime) -> Grant:
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
    """Return the text that an account's SAS covers; raises `AzureError` for a version (``sv``) without one."""
    version = query.get("sv", "")
    if version < _ACCOUNT_SINCE:
        raise failed("A signature of an account needs a version (sv) of 2015-04-05 or later.")
    names = ["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"]
    if version >= _SCOPE_SINCE:
        names.append("ses")
    return "\n".join([account, *(query.get(name, "") for name in names)]) + "\n"


def queue_string(account: str, queue: str, query: Mapping[str, str]) -> str:
    """Return the text that a queue's SAS covers; raises `AzureError` for a version (``sv``) without one."""
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
    """Return the value of the signature or of its policy; raises `AzureError` if both have one."""
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


_SHOWN_MAX = 4096


def matches(keys: Sequence[bytes], text: str, signature: str) -> bool:
    """Return whether ``signature`` (base64) is that of ``text`` by one of the keys, in constant time."""
    raw = text.encode("utf-8", "surrogateescape")
    given = signature.encode("utf-8", "surrogateescape")
    found = False
    for key in keys:
        found |= hmac.compare_digest(base64.b64encode(hmac.digest(key, raw, "sha256")), given)
    return found


def failed(detail: str) -> AzureError:
    """Return the refusal of an unauthenticated request."""
    return AzureError("AuthenticationFailed", details={"AuthenticationErrorDetail": detail})


def shown(text: str) -> str:
    """Return a text for an answer: characters that XML cannot hold are replaced, and its length is bounded.

    A text to sign consists of parts of the request, so its sender learns nothing new.
    """
    return "".join(char if char == "\n" or char.isprintable() else "?" for char in text[:_SHOWN_MAX])


_AUDITED: Final = (Verb.MANAGE, Verb.OPERATE)
_PAST_RATE: Final = "Slow down: this account's principal exceeds its request rate; nothing was done. Try again."


class AccountPrincipals:
    """The principals of accounts by the access file; ``names`` has the name of each account's.

    They are looked up for each request: a change of the file takes effect within a second. Permissions and limits are
    the same as at the bridge's own port, and use counts together. Raises `ConfigurationError` for a principal that is
    not in the file: such an account could do nothing.
    """

    def __init__(self, access: AccessWatch, names: Mapping[str, str], emit: Callable[[Fact], None]) -> None:
        self.access: Final = access
        self._names = dict(names)
        self._emit = emit
        for account, name in names.items():
            if access.principal(name) is None:
                raise ConfigurationError(
                    f"azure_account: with auth, {account} has the permissions of its principal, but the "
                    f'access file has no principal named {name!r}: set principal = "NAME" in its table, '
                    f"or create it: queuebell key create {name} --access {access.path} --allow "
                    f"put={account}/*"
                )

    def authorize(self, call: Request, operation: Operation) -> None:
        """Raise `AzureError` unless the account's principal may do this, within its rates.

        It is ``AuthorizationFailure`` or ``ServerBusy``. If the body has not arrived, the permission is checked again
        when it has.
        """
        verb, queue = operation.verb, call.reference if call.queue else ""
        known, now = self.principal(call.account), self.access.clock()
        allowance = None if known is None else self.access.allowance(known)
        wait = 0 if allowance is None else allowance.request(now)
        principal = self._require(call, operation)
        if allowance is not None and not wait and verb is Verb.PUT:
            wait = allowance.put(now)
        if wait:
            # Reading its body would cost more than another connection.
            raise self.refused("limit", busy(_PAST_RATE, wait, close=not call.whole), call, operation)
        if verb in _AUDITED:
            self._emit(Administered(principal.name, verb.value, queue, call.address, operation.title))
        if not call.whole:
            read = call.read

            async def read_and_ask_again(limit: int, ticket: Ticket | None) -> bytes:
                raw = await read(limit, ticket)
                self._require(call, operation)
                return raw

            call.read = read_and_ask_again

    def visible(self, account: str) -> Reach:
        """Return the queues that an account may see."""
        principal = self.principal(account)
        return Reach() if principal is None else principal.reach(Verb.LOOK)

    def past_limit(self, limit: PastLimit, call: Request, operation: Operation) -> AzureError:
        """Return the refusal (``ServerBusy``) at a limit of an account's principal."""
        error = busy(f"{str(limit).capitalize()}.", limit.retry_after_s, close=not call.whole)
        return self.refused("limit", error, call, operation)

    def refused(self, reason: str, error: AzureError, call: Request, operation: Operation | None) -> AzureError:
        """Emit a refusal, also of a signature; return the error, delayed if there were too many."""
        # A wrong signature proves no account.
        name = "" if reason == "unauthenticated" else self._names.get(call.account, "")
        verb = "" if operation is None else operation.verb.value
        self._emit(AccessRefused(reason, name, verb, call.reference if call.queue else "", call.address))
        # No principal's name has a slash.
        error.held_s = self.access.refusals.hold_s(name or "/" + sender_of(call.address), self.access.clock())
        return error

    def _require(self, call: Request, operation: Operation) -> Principal:
        verb, queue = operation.verb, call.reference if call.queue else ""
        principal = self.principal(call.account)
        if principal is None or not principal.may(verb, queue):
            error = AzureError("AuthorizationFailure", f"'{verb.value}' is not granted on {queue or 'any queue'}.")
            raise self.refused("forbidden", error, call, operation)
        return principal

    def principal(self, account: str) -> Principal | None:
        """Return the principal of an account, None if it is no longer in the access file."""
        name = self._names.get(account)
        return None if name is None else self.access.principal(name)
