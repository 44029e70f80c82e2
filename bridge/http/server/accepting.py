"""Taking connections from a listening socket, also where the process has no file left for one more.

asyncio's own servers try a thousand times in that case, each time with a traceback and a timer of its own, and again a
second later: a loop that does nothing else. Here it waits a moment, once, and what came before goes on meanwhile; who
connects waits with the kernel.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from bridge.contract.address import is_loopback, sender_of
from bridge.http.server.quiet import QuietLog

PAUSE_S: Final = 0.5
"""How long nobody new is taken where there was no file for one."""
HANDSHAKE_S: Final = 8.0
"""How long a TLS handshake may take, as long as the headers of a request (S11)."""
Tls = ssl.SSLContext | Callable[[], ssl.SSLContext] | None
"""The context of each connection, or what returns it; None is no TLS."""
_EACH_TURN: Final = 128
_SAID_EVERY_S: Final = 10.0

logger = logging.getLogger("queuebell.web")


class Acceptor:
    """Takes the connections of one socket, from when it is made until `close`; ``make`` makes a connection's protocol.

    The socket listens and does not block. At most ``handshakes`` are under way at once, and so many of one address that
    is not loopback (0: no limit): before its end nobody counts as connected, and has a file all the same (S12).
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
        """How often it had to wait for a file."""
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
        """Take nobody any more, and let go of who has not got through the handshake; may be called twice."""
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
                # EMFILE, ENFILE, ENOBUFS, ENOMEM; whatever else it may be is no better for being asked again at once.
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
