"""A request and its answer, without the HTTP around them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any

import msgspec

from bridge.contract.errors import QueuebellError
from bridge.core.admission import Ticket
from bridge.queue_service.azure.address import Address
from bridge.queue_service.azure.errors import AzureError, translated

_NO_HEADERS: dict[str, str] = {}
ReadBody = Callable[[int, Ticket | None], Awaitable[bytes]]


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request; ``host`` is in lower case and has no port, and was found to be one of ours."""

    method: str
    target: str
    host: str
    authority: str
    """The Host header as it came, port and all."""
    headers: Mapping[str, str]
    """As `Signed` has them."""
    fields: Iterable[tuple[str, str]]
    """All headers as they came."""
    read: ReadBody
    """Reads the whole body, at most so many bytes; raises `AzureError` (``RequestBodyTooLarge``). The ticket is that of
    a put that the gate let in, which may have to give way (``ServerBusy``)."""
    secure: bool = False
    address: str = ""
    whole: bool = False
    """The body has come already, and `read` does not wait."""

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


class Call(msgspec.Struct, frozen=True, gc=False):
    """A request that may be carried out."""

    request: Request
    at: Address
    version: str
    now_ms: int
    """Milliseconds since the epoch by the wall clock."""

    @property
    def queue(self) -> str:
        """The queue reference: the account and the queue of the address."""
        return f"{self.at.account}/{self.at.queue}"

    def number(self, name: str, low: int, high: int, default: int | None) -> int:
        """Return a whole number of the query; ``default`` None means that it is required.

        Raises `AzureError`: ``InvalidQueryParameterValue``, ``OutOfRangeQueryParameterValue`` or
        ``MissingRequiredQueryParameter``.
        """
        text = self.at.query.get(name)
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


class Asked:
    """A request that waits for one answer of the store and nothing else; ``make`` makes its own answer of that.

    It can be awaited. Who has a better way to wait asks for `reply` once ``future`` is done.
    """

    __slots__ = ("_make", "future")

    def __init__(self, future: asyncio.Future[Any], make: Callable[[Any], Reply]) -> None:
        self.future = future
        self._make = make

    def reply(self) -> Reply:
        """Return the answer; raises `AzureError`."""
        try:
            return self._make(self.future.result())
        except QueuebellError as error:
            raise translated(error) from error

    def __await__(self) -> Generator[Any, Any, Reply]:
        """Wait, and return the answer."""
        with contextlib.suppress(QueuebellError):  # `reply` raises it again
            yield from self.future
        return self.reply()
