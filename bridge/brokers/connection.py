"""A connection to a broker, as all brokers share it: its one end, and the replies that wait for it.

`BrokerConnection` proves the path by a message to itself. `Ending` and `PendingReplies` end a connection once, with one
reason and no caller left waiting. `ThrottledWarnings` bounds its log lines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections import defaultdict
from pathlib import Path
from typing import Final, Generic, TypeVar

from queuebell.bridge.brokers.address import Address
from queuebell.bridge.brokers.base import Broker, Topics
from queuebell.bridge.contract.address import is_loopback
from queuebell.bridge.contract.errors import BusUnavailable
from queuebell.bridge.contract.throttle import Throttle

CONNECT_S: Final = 5.0
REQUEST_S: Final = 5.0
PROBE_S: Final = 2.0
LAST_WORDS_S: Final = 1.0
"""How long `close` waits until the broker has received what was published."""
UNSENT_MAX: Final = 4 * 1024 * 1024
UNSENT_LITTLE: Final = 64 * 1024
REASON_MAX: Final = 300
WARN_EVERY_S: Final = 10.0
Reply = TypeVar("Reply")
# By name: a caller that uses the standard library must not load aiohttp.
_OTHER_NAME: Final = frozenset({62, 64})
"""OpenSSL's codes of a host name and an address that are not in the certificate."""
_HUNG_UP: Final = frozenset({"ServerDisconnectedError", "RemoteDisconnected"})
_log = logging.getLogger("queuebell.broker")


class BrokerConnection(Broker):
    """One connection to the broker at ``where``; a broker adds how it sends to itself, and how it closes."""

    def __init__(self, where: Address, topics: Topics) -> None:
        self._where = where
        self._topics = topics
        self._warnings = ThrottledWarnings(where.text)
        self._ending = Ending()
        self._replies = self._ending.pending_replies()
        self._dropped = 0
        self._closing: asyncio.Task[None] | None = None

    async def barrier(self) -> None:
        """Wait, 5 s at most, until the broker has processed everything before."""
        await self._echo(REQUEST_S)

    async def probe(self) -> float:
        """Send a message to this connection and return its round trip in seconds."""
        return await self._echo(PROBE_S)

    async def broken(self) -> str:
        """Wait for the end of this connection and return the reason."""
        return await self._ending.wait()

    async def close(self) -> None:
        """Wait until the broker has received what was published, 1 s at most, and end."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close {self.address}")
        await asyncio.shield(self._closing)

    @property
    def address(self) -> str:
        """Where it connects, without anything secret."""
        return self._where.text

    @property
    def private(self) -> bool:
        """Whether it is encrypted, or does not leave this machine."""
        return self._where.encrypted or all(is_loopback(host.name) for host in self._where.hosts)

    @property
    def dropped(self) -> int:
        """Messages that could not be held, or found the client library's buffer full."""
        return self._dropped

    async def _echo(self, within_s: float) -> float:
        """Return the round trip of a message to this connection; everything sent before it is processed then."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        token = self._send_to_self()
        if token is None:
            raise self._unsendable()
        await self._replies.wait_for(token, within_s, f"{self.address}: no echo")
        return loop.time() - started

    async def _last_echo(self) -> bool:
        """Return whether everything published is with the broker; otherwise the path was half-open."""
        if self._ending.reason is not None:
            return False
        try:
            await self._echo(LAST_WORDS_S)
        except BusUnavailable:
            return False
        return True

    def _unsendable(self) -> BusUnavailable:
        return BusUnavailable(self._ending.reason or f"{self.address}: too much unsent data")

    def _send_to_self(self) -> object | None:
        """Send a new token and return it; None where it cannot be sent. Raises `BusUnavailable`."""
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError


class Ending:
    """The end of one connection; ``reason`` is None until then."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._event = asyncio.Event()
        self._pending: list[PendingReplies[str]] = []

    def end(self, reason: str) -> None:
        """End the connection and fail its pending replies. Only the first reason counts; it is cut to one line."""
        if self.reason is None:
            self.reason = " ".join(reason.split())[:REASON_MAX] or "ended"
            self._event.set()
            for pending in self._pending:
                pending.fail(self.reason)

    def check(self) -> None:
        """Raise `BusUnavailable` after the end."""
        if self.reason is not None:
            raise BusUnavailable(self.reason)

    async def wait(self) -> str:
        """Wait for the end and return the reason."""
        await self._event.wait()
        return self.reason or "ended"

    def pending_replies(self) -> PendingReplies[str]:
        """Return a set of pending replies that fails at the end."""
        pending: PendingReplies[str] = PendingReplies()
        self._pending.append(pending)
        return pending


class PendingReplies(Generic[Reply]):
    """Callers that wait for a reply, by the key that the reply will carry."""

    def __init__(self) -> None:
        self._open: dict[object, asyncio.Future[Reply]] = {}

    async def wait_for(self, key: object, within_s: float, what: str) -> Reply:
        """Wait for the reply to ``key``. Raises `BusUnavailable` with ``what`` after ``within_s`` seconds."""
        future = self._open[key] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(within_s):
                reply: Reply = await future
                return reply
        except TimeoutError:
            raise BusUnavailable(f"{what} within {within_s:g} s") from None
        finally:
            self._open.pop(key, None)

    def resolve(self, key: object, reply: Reply) -> None:
        """Pass the reply to its caller; a late one is dropped."""
        future = self._open.get(key)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail(self, reason: str) -> None:
        """Raise `BusUnavailable` in all callers that wait."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(BusUnavailable(reason))


class ThrottledWarnings:
    """Logs each kind of warning at most once in 10 s, with a count of those left out.

    nats-py's own error callback wrote 630,000 lines in seconds where a consumer was slow.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._kinds: defaultdict[str, Throttle] = defaultdict(lambda: Throttle(WARN_EVERY_S))

    def warn(self, kind: str, detail: object, error: BaseException | None = None) -> None:
        """Log a warning, with the traceback of ``error``. ``detail`` must hold nothing secret."""
        held = self._kinds[kind].passes(time.monotonic())
        if held is not None:
            more = f" ({held} more since the last such line)" if held else ""
            _log.warning("%s: %s: %s%s", self._address, kind, detail, more, exc_info=error)


def _certificate_hint(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _OTHER_NAME:
        return "use a name that is in the certificate"
    file = os.environ.get("SSL_CERT_FILE")
    if file is None:
        return "set SSL_CERT_FILE to a certificate to trust"
    missing = "does not exist" if not Path(file).exists() else "has neither this certificate nor its authority"
    return f"SSL_CERT_FILE names {file}, which {missing}"


def why_unreachable(error: Exception) -> str:
    """Return why an HTTP connection failed, in the system's words: aiohttp's contain the whole address.

    TLS failures are separate: their number is 1, which the system would read as "Operation not permitted".
    """
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is rejected: {cause.verify_message.rstrip('.')} ({_certificate_hint(cause)})"
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
    # The number for an unknown host name is below 0, from another table.
    return os.strerror(number) if number > 0 else getattr(cause, "strerror", None) or type(error).__name__
