"""A request and its answer, without the HTTP around them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from bridge.access.put_gate import Ticket
from bridge.http.azure.address import Resource
from bridge.http.azure.errors import AzureError

_NO_HEADERS: dict[str, str] = {}


async def _nothing(limit: int, ticket: Ticket | None) -> bytes:
    return b""


class Request(msgspec.Struct, gc=False):
    """One request, its address taken apart; nothing else of it is checked but that its host is one of ours."""

    method: str
    path: str
    """As it came, percent-encoding and all, without the query: ``/devstoreaccount1/orders/messages``."""
    query: Mapping[str, str]
    """Decoded, names in lower case; the values of equal names are sorted and joined by commas."""
    headers: Mapping[str, str]
    """Names in any case: a mapping that does not tell them apart."""
    account: str
    """The account addressed, without the ``-secondary`` of its second endpoint."""
    secondary: bool = False
    path_style: bool = True
    """Whether the account stands in the path, as the emulator has it, or in the host name."""
    queue: str = ""
    """The queue addressed, or empty where it is the account."""
    secure: bool = False
    """Whether the request came by HTTPS."""
    address: str = ""
    """The address it came from, without a port."""
    resource: Resource = Resource.ACCOUNT
    message: str = ""
    authority: str = ""
    """The Host header as it came, port and all."""
    read: Callable[[int, Ticket | None], Awaitable[bytes]] = _nothing
    """Reads the whole body, at most so many bytes; raises `AzureError` (``RequestBodyTooLarge``). The ticket is that of
    a put that the gate let in, which may have to give way (``ServerBusy``)."""
    whole: bool = False
    """The body has come already, and `read` does not wait."""
    version: str = ""
    """Of the protocol; set once it may be carried out, as `now_ms`."""
    now_ms: int = 0
    """Milliseconds since the epoch by the wall clock."""

    @property
    def reference(self) -> str:
        """The queue reference: the account and the queue of the address."""
        return f"{self.account}/{self.queue}"

    async def body(self, limit: int) -> bytes:
        """Return the body after comparing it with the digest that came along, if one did."""
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
