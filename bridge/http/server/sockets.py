"""Listening sockets and their new connections, also when the process has no free file left.

In that case asyncio's own servers try a thousand times, each with a traceback and a timer, and again a second later.
An `Acceptor` waits once; meanwhile open connections go on and new ones wait in the kernel. A `QuietLog` bounds what a
flood can write to the log.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import functools
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Final

from queuebell.bridge.contract.address import is_loopback, sender_of
from queuebell.bridge.contract.throttle import Throttle
from queuebell.bridge.http.server.settings import WILDCARDS

BACKLOG = 1024
# The data file and its log, the event loop, logs, brokers, and connections that are being refused.
_OTHER_FILES = 32


async def listen(
    make: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    tls: Tls = None,
    *,
    handshakes: int = 1024,
    handshakes_per_address: int = 0,
) -> tuple[list[Acceptor], int]:
    """Listen on every address of ``host``, all on one port, and return that; ``make`` makes a connection's protocol.

    The limits are `Acceptor`'s. Raises `OSError` if an address or the port is not available: nothing listens then.
    """
    sockets = await bind(host, port)
    try:
        for sock in sockets:
            sock.listen(BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    limits = {"handshakes": handshakes, "handshakes_per_address": handshakes_per_address}
    return [Acceptor(sock, make, tls, **limits) for sock in sockets], sockets[0].getsockname()[1]


def local_url(scheme: str, host: str, port: int) -> str:
    """Return the URL for clients on this machine, without a trailing slash."""
    if host in WILDCARDS:
        host = "::1" if host == "::" else "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def bind(host: str, port: int) -> list[socket.socket]:
    """Bind every address of ``host``, all to one port even if ``port`` is 0."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in dict.fromkeys(found):
            # A second address of the same name takes the port of the first.
            where = (address[0], sockets[0].getsockname()[1] if sockets else port, *address[2:])
            try:
                sock = socket.socket(family, kind, proto)
            except OSError:
                # The machine has an IPv6 address in its hosts file, but no IPv6.
                continue
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind(where)
            except OSError as error:
                if len(sockets) > 1 and error.errno != errno.EADDRINUSE:
                    sockets.pop().close()
                    continue
                raise
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise OSError("no address to listen on")
    return sockets


def default_connections() -> int:
    """Return the default limit of connections: 80 % of the file descriptors (S12)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Unlimited is -1 on some systems. A fifth stays for the data file, brokers and logs, but at least `_OTHER_FILES`.
    return 100_000 if soft <= 0 else max(16, min(soft * 4 // 5, soft - _OTHER_FILES))


PAUSE_S: Final = 0.5
"""How long accepting pauses if no file was free."""
HANDSHAKE_S: Final = 8.0
"""How long a TLS handshake may take, as long as the headers of a request (S11)."""
Tls = ssl.SSLContext | Callable[[], ssl.SSLContext] | None
"""The context of each connection, or what returns it; None is no TLS."""
_EACH_TURN: Final = 128
_SAID_EVERY_S: Final = 10.0

logger = logging.getLogger("queuebell.web")


class Acceptor:
    """Accepts the connections of one non-blocking listening socket until `close`; ``make`` makes their protocols.

    At most ``handshakes`` TLS handshakes are open at once, and ``handshakes_per_address`` of one address that is not
    loopback (0: no limit). They use a file each before they count as connections (S12).
    """

    def __init__(
        self,
        sock: socket.socket,
        make: Callable[[], asyncio.Protocol],
        tls: Tls = None,
        pause_s: float = PAUSE_S,
        handshakes: int = 1024,
        handshakes_per_address: int = 0,
    ) -> None:
        self.pauses = 0
        """How often accepting was paused."""
        self._most = handshakes
        self._most_per_address = handshakes_per_address
        self._under_way: collections.Counter[str] = collections.Counter()
        self._sock = sock
        self._make = make
        self._tls = tls
        self._pause_s = pause_s
        self._loop = asyncio.get_running_loop()
        self._quiet = QuietLog(logger, self._loop.time, _SAID_EVERY_S)
        self._beginning: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        """Stop accepting, and drop open handshakes; may be called twice."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
        for task in self._beginning:
            task.cancel()

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_EACH_TURN):
            try:
                connected, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # EMFILE, ENFILE, ENOBUFS, ENOMEM; another error would not be gone at once either.
                self._pause(error)
                return
            connected.setblocking(False)
            address = sender_of(str(peer[0])) if isinstance(peer, tuple) and peer else ""
            if self._tls is not None and self._crowded(address):
                connected.close()
                self._quiet.warn("connections were rejected: too many have not finished their TLS handshake")
                continue
            self._under_way[address] += 1
            task = self._loop.create_task(self._begin(connected), name="queuebell-accept")
            self._beginning.add(task)
            task.add_done_callback(functools.partial(self._begun, address))

    def _crowded(self, address: str) -> bool:
        if len(self._beginning) >= self._most:
            return True
        most = self._most_per_address
        return bool(most) and self._under_way[address] >= most and not is_loopback(address)

    def _begun(self, address: str, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        self._under_way[address] -= 1
        if not self._under_way[address]:
            del self._under_way[address]

    def _pause(self, error: OSError) -> None:
        self.pauses += 1
        self._loop.remove_reader(self._sock.fileno())
        self._resuming = self._loop.call_later(self._pause_s, self._resume)
        self._quiet.warn(
            f"no new connection can be accepted ({error.strerror}): open ones continue, new ones wait; "
            "raise the limit of open files (ulimit -n), or lower `connections`"
        )

    async def _begin(self, connected: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make,
                connected,
                ssl=self._tls() if callable(self._tls) else self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
            )
        except (OSError, TimeoutError) as error:  # `ssl.SSLError` is the former
            logger.debug("a connection failed in its handshake: %s", error)
        except asyncio.CancelledError:
            connected.close()
            raise


class QuietLog:
    """Logs at most one warning and one error in ``period`` seconds of ``clock``, with the number of those left out.

    No text contains input.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float], period: float = 1.0) -> None:
        self._logger = logger
        self._clock = clock
        self._warnings = Throttle(period)
        # Separate: a flood from outside must not hide internal errors.
        self._faults = Throttle(period)

    def warn(self, text: str) -> None:
        """Write ``text``, or count it."""
        self._write(self._warnings, logging.WARNING, text, None)

    def fault(self, text: str, error: BaseException) -> None:
        """Write ``text`` with the traceback of an internal error, or count it."""
        self._write(self._faults, logging.ERROR, text, error)

    def _write(self, throttle: Throttle, level: int, text: str, error: BaseException | None) -> None:
        more = throttle.passes(self._clock())
        if more is not None:
            self._logger.log(level, "%s%s", text, f" (and {more} more like it)" if more else "", exc_info=error)
