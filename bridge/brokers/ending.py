"""How a connection ends: once, with one reason, and with nobody left waiting for an answer."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Generic, TypeVar

from bridge.contract.errors import BusUnavailable

Answer = TypeVar("Answer")
REASON_MAX = 300
# By name: who asks with the standard library has no need to load aiohttp.
_HUNG_UP = frozenset({"ServerDisconnectedError", "RemoteDisconnected"})


class Ending:
    """The end of one connection, which has not come while ``reason`` is None."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._event = asyncio.Event()
        self._rooms: list[Waiting[str]] = []

    def room(self) -> Waiting[str]:
        """Return a place to wait for answers, which fails everybody in it when the end comes."""
        room: Waiting[str] = Waiting()
        self._rooms.append(room)
        return room

    def tell(self, reason: str) -> None:
        """Say that it has come; the first to say so is believed. The reason is kept to one line."""
        if self.reason is None:
            self.reason = " ".join(reason.split())[:REASON_MAX] or "ended"
            self._event.set()
            for room in self._rooms:
                room.fail(self.reason)

    def check(self) -> None:
        """Raise `BusUnavailable` if it has come."""
        if self.reason is not None:
            raise BusUnavailable(self.reason)

    async def wait(self) -> str:
        """Wait for it and return why."""
        await self._event.wait()
        return self.reason or "ended"


class Waiting(Generic[Answer]):
    """Those who wait for an answer, by the key that the answer will carry."""

    def __init__(self) -> None:
        self._open: dict[object, asyncio.Future[Answer]] = {}

    async def answer(self, key: object, within_s: float, what: str) -> Answer:
        """Wait for the answer to ``key``. Raises `BusUnavailable` with ``what`` after ``within_s`` seconds."""
        future = self._open[key] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(within_s):
                answer: Answer = await future
                return answer
        except TimeoutError:
            raise BusUnavailable(f"{what} within {within_s:g} s") from None
        finally:
            self._open.pop(key, None)

    def settle(self, key: object, answer: Answer) -> None:
        """Hand the answer to who waits for it; late ones are forgotten."""
        future = self._open.get(key)
        if future is not None and not future.done():
            future.set_result(answer)

    def fail(self, reason: str) -> None:
        """Tell all who wait that no answer will come."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(BusUnavailable(reason))


def why_unreachable(error: Exception) -> str:
    """Say why an HTTP connection failed, in the system's words; aiohttp's own hold the address with all that is in it.

    A failure of TLS is told by itself. Its number is 1, which the system would read as "Operation not permitted".
    """
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is rejected: {cause.verify_message.rstrip('.')} (set SSL_CERT_FILE to a "
            "certificate to trust)"
        )
    if isinstance(cause, ssl.SSLError):
        return f"TLS fails ({cause.reason}): does it use http://?"
    if isinstance(cause, TimeoutError):
        return "time-out"
    if type(cause).__name__ in _HUNG_UP:
        return (
            "it closed the connection without an answer: did it just stop, or does it need https:// or a "
            "client certificate (QUEUEBELL_CLIENT_CERT)?"
        )
    number = getattr(cause, "errno", None) or 0
    # A name that nobody knows has a number below 0, of another table.
    return os.strerror(number) if number > 0 else getattr(cause, "strerror", None) or type(error).__name__
