"""Accept connections on KEDA's port: terminate TLS, limit connections per sender, and forward bytes to grpcio.

grpcio limits only the total of connections, so one client could lock KEDA out, and it truncates certificate names at a
NUL. The standard library reads them here, as on every other port.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, cast

from queuebell.bridge.access.access_watch import certificate_of
from queuebell.bridge.access.certificates import Certificate
from queuebell.bridge.contract.address import sender_of

CONNECTIONS_MAX: Final = 256
"""Each uses three file descriptors."""
PER_SENDER_MAX: Final = 64
"""KEDA needs one per address and credential."""
SILENT_S: Final = 10.0
"""Time within which a connection must make its first call."""
STALL_S: Final = 30.0
"""Time after which a peer that does not read is disconnected.

Meanwhile nothing is read from the other half, so that its end would go unnoticed.
"""
INNER_HOST: Final = "127.0.0.1"


class Listening(Protocol):
    """A listening socket."""

    def close(self) -> None:
        """Stop accepting."""
        ...


Listen = Callable[..., Awaitable[tuple[Sequence[Listening], int]]]
"""Listens with a protocol factory; returns the listening sockets and the port."""


class Gateway:
    """Forwards connections to grpcio's port on this machine; belongs to its event loop."""

    def __init__(self) -> None:
        self._listening: Sequence[Listening] = ()
        self.inner = 0
        """grpcio's port on this machine."""
        self._open: dict[_Outer, None] = {}  # the oldest first
        self._by_port: dict[int, _Outer] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._open)

    async def start(self, listen: Listen, inner: int) -> int:
        """Listen and return the port; raises `OSError` if it is not available. ``inner`` is grpcio's port."""
        self.inner = inner
        self._listening, port = await listen(lambda: _Outer(self))
        return port

    def found(self, port: int) -> tuple[str, Certificate | None] | None:
        """Return the client's address and certificate for the port that grpcio sees; None if it bypassed the gateway.

        This also marks the connection as having made a call.
        """
        outer = self._by_port.get(port)
        if outer is None:
            return None
        outer.silent.cancel()
        return outer.address, outer.certificate

    def trust(self, port: int) -> None:
        """Protect the connection behind a port from eviction, as an authenticated client made a call."""
        if (outer := self._by_port.get(port)) is not None:
            outer.trusted = True

    def close(self) -> None:
        """Stop accepting connections."""
        for each in self._listening:
            each.close()
        self._listening = ()

    async def stop(self) -> None:
        """End all connections."""
        self.close()
        for outer in list(self._open):
            outer.abort()
        if self._connecting:
            await asyncio.wait(self._connecting)

    def admit(self, outer: _Outer) -> bool:
        """Accept and connect a connection, unless its sender has too many, or none can be evicted for it."""
        if sum(each.sender == outer.sender for each in self._open) >= PER_SENDER_MAX:
            return False
        if len(self._open) >= CONNECTIONS_MAX and not self._evict():
            return False
        self._open[outer] = None
        outer.silent = asyncio.get_running_loop().call_later(SILENT_S, outer.abort)
        task = asyncio.create_task(self._connect(outer), name="a connection of KEDA's")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return True

    def lost(self, outer: _Outer) -> None:
        """Remove a lost connection."""
        if outer in self._open:
            del self._open[outer]
            outer.silent.cancel()

    def _evict(self) -> bool:
        """End the oldest untrusted connection of the sender with most of them; return False if all are trusted.

        Without keys none is trusted, as any client could otherwise protect its connections by a call.
        """
        untrusted = [each for each in self._open if not each.trusted]
        if not untrusted:
            return False
        ((sender, _),) = Counter(each.sender for each in untrusted).most_common(1)
        oldest = next(each for each in untrusted if each.sender == sender)
        self.lost(oldest)
        oldest.abort()
        return True

    async def _connect(self, outer: _Outer) -> None:
        inner = _Side(outer)
        # The client's half stays paused until its port is known, so that `found` knows the first call.
        try:
            wire, _ = await asyncio.get_running_loop().create_connection(lambda: inner, INNER_HOST, self.inner)
        except OSError:
            outer.abort()
            return
        port = wire.get_extra_info("sockname")[1]
        self._by_port[port] = outer
        inner.gone = lambda: self._by_port.pop(port, None)
        outer.other = inner
        if outer.wire.is_closing():
            inner.abort()
        else:
            outer.wire.resume_reading()


class _Side(asyncio.Protocol):
    """One half of a connection; the other half writes the data that it reads."""

    wire: asyncio.Transport

    def __init__(self, other: _Side | None = None) -> None:
        self.other = other
        self.gone: Callable[[], object] = _nothing
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.wire.write(data)

    def pause_writing(self) -> None:
        self._start_stall_timer()
        if self.other is not None:
            self.other.wire.pause_reading()

    def resume_writing(self) -> None:
        if self._stall is not None and not self.wire.is_closing():
            self._stall.cancel()
            self._stall = None
        if self.other is not None:
            self.other.wire.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stall is not None:
            self._stall.cancel()
        self.gone()
        if self.other is not None:
            self.other.close()

    def close(self) -> None:
        """Close this half once its peer has read everything, or after `STALL_S`."""
        if not self.wire.is_closing():
            self._start_stall_timer()
            self.wire.close()

    def abort(self) -> None:
        """Close this half immediately."""
        self.wire.abort()

    def _start_stall_timer(self) -> None:
        if self._stall is None:
            self._stall = asyncio.get_running_loop().call_later(STALL_S, self.abort)


class _Outer(_Side):
    """The client's half."""

    address: str
    sender: str
    certificate: Certificate | None
    silent: asyncio.TimerHandle

    def __init__(self, gate: Gateway) -> None:
        super().__init__()
        self.trusted = False
        self._gate = gate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        wire = cast(asyncio.Transport, transport)
        peer = wire.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.sender = sender_of(self.address)
        self.certificate = certificate_of(wire.get_extra_info("peercert"))
        self.gone = lambda: self._gate.lost(self)
        wire.pause_reading()
        if not self._gate.admit(self):
            wire.abort()


def _nothing() -> None:
    """No-op."""
