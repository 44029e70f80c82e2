"""Who sends a request: Shared Key and Shared Key Lite, and shared access signatures by `sas`.

One HMAC over one string is all that a well-made request costs. The documents leave open how header names that hold
hyphens sort and how blanks within a value count, and clients differ; so up to a few readings are tried in turn. Each
of them covers all that a signature covers, and nothing is remembered between requests.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from bridge.http.azure import sas
from bridge.http.azure.accounts import SECONDARY, Accounts
from bridge.http.azure.errors import AzureError
from bridge.http.azure.exchange import Request
from bridge.http.azure.moments import read_http_date
from bridge.http.azure.operation import Operation
from bridge.http.azure.signature import failed, matches, shown

if TYPE_CHECKING:
    from bridge.http.azure.policies import Policy

SKEW = datetime.timedelta(minutes=15)
"""How far the date of a request may be from ours, either way."""
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
# Among the characters of a header name, what sorts differently where words are sorted instead of bytes: hyphens count
# last of all, and every other sign stands before the digits.
_AS_WORDS = str.maketrans({sign: chr(1 + order) for order, sign in enumerate("!#$%&*.^_`|~+")} | {"-": None, "'": None})


class SignatureAuthorizer:
    """Checks signatures against the keys of ``accounts``; ``policies`` gives the stored ones of a queue reference."""

    def __init__(self, accounts: Accounts, policies: Callable[[str], Sequence[Policy]]) -> None:
        self._accounts = accounts
        self._policies = policies

    def knows(self, account: str) -> bool:
        """Say whether there is such an account."""
        return account in self._accounts

    def authorize(self, signed: Request, now: datetime.datetime) -> sas.Grant | FullGrant:
        """Check the signature of a request.

        Raises `AzureError`: ``AuthenticationFailed``, ``NoAuthenticationInformation``, ``InvalidAuthenticationInfo``,
        or what a shared access signature does not grant (``Authorization...Mismatch``).
        """
        header = signed.headers.get("authorization")
        if header is None:
            if "sig" in signed.query:
                keys = self._accounts.keys(signed.account)
                return sas.authorize(signed, keys, self._policies, now)
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
    """What an account's key may do: everything."""

    def allows(self, operation: Operation, queue: str) -> bool:
        """Say yes."""
        return True


FULL = FullGrant()


def strings_to_sign(signed: Request, *, lite: bool) -> Iterator[str]:
    """Yield the texts that a Shared Key signature of this request may cover, the likeliest first; at least one."""
    # One pass, for a mapping that folds names does so at every look.
    headers: dict[str, str] = {}
    ours = []
    for name, value in signed.headers.items():
        low = name.lower()
        if low[:5] == "x-ms-":
            ours.append((low, value))
        headers.setdefault(low, value)
    # By name alone: values of one name keep their order.
    ours.sort(key=_name)
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
        # Some sign the second endpoint by the name of the account alone.
        paths.append(signed.path.replace(SECONDARY, "", 1))
    seen: set[str] = set()
    for middle in _orders(ours):
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
    """Yield the canonical headers: sorted by bytes, then by words; then both with runs of blanks made one."""
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
    # Where only hyphens differ, the name whose hyphen stands later (or nowhere) comes first.
    hyphens = [-float(index) for index, char in enumerate(name) if char in "-'"]
    return name.translate(_AS_WORDS), (*hyphens, float("-inf"))
