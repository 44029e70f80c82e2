"""The way in to KEDA's port: it ends TLS, counts connections per sender, and passes bytes on to grpcio.

grpcio bounds connections only in all, so that one stranger could keep KEDA out; and it cuts the names of a
certificate at a NUL. Here the standard library reads them, as at every other port.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, cast

from bridge.access.access_watch import certificate_of
from bridge.access.certificates import Certificate
from bridge.contract.address import sender_of

CONNECTIONS_MAX: Final = 256
"""Each takes three files of this process."""
PER_SENDER_MAX: Final = 64
"""KEDA needs one for each address and credential."""
SILENT_S: Final = 10.0
"""A connection that has made no call by then ends, whatever else it has sent."""
STALL_S: Final = 30.0
"""How long a peer may leave unread what waits for it, or its last bytes, before it is cut off.

Nothing is read from the other half meanwhile, so that its end would not be noticed.
"""
INNER_HOST: Final = "127.0.0.1"


class Listening(Protocol):
    """A socket that connections are taken from."""

    def close(self) -> None:
        """Take no more."""
        ...


Listen = Callable[..., Awaitable[tuple[Sequence[Listening], int]]]
"""Takes connections for protocols that it has made; returns what listens, and the port."""


class Gateway:
    """Connects those who come with the port of grpcio on this machine; belongs to its event loop."""

    def __init__(self) -> None:
        self._listening: Sequence[Listening] = ()
        self.inner = 0
        """The port on this machine that all are connected with."""
        self._open: dict[_Outer, None] = {}  # the oldest first
        self._by_port: dict[int, _Outer] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    async def start(self, listen: Listen, inner: int) -> int:
        """Listen, and return the port; raises `OSError` where that is not to be had. ``inner`` is grpcio's port."""
        self.inner = inner
        self._listening, port = await listen(lambda: _Outer(self))
        return port

    def found(self, port: int) -> tuple[str, Certificate | None] | None:
        """Return the address and the certificate of a call by the port that grpcio sees.

        None is a call that passed the gate by. A connection with a call is not silent.
        """
        outer = self._by_port.get(port)
        if outer is None:
            return None
        outer.silent.cancel()
        return outer.address, outer.certificate

    def trust(self, port: int) -> None:
        """Keep the connection behind a port when there are too many: somebody called by it whom the bridge knows."""
        if (outer := self._by_port.get(port)) is not None:
            outer.trusted = True

    def close(self) -> None:
        """Take no more connections."""
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
        """Count a connection and have it connected, unless its sender has too many, or no other can make room."""
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
        """Count a connection less."""
        if outer in self._open:
            del self._open[outer]
            outer.silent.cancel()

    def _evict(self) -> bool:
        """End the oldest untrusted connection of the sender that has most of them; False where all are trusted.

        Without keys none is trusted: else strangers' calls, which are admitted too, would keep every place.
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
        # Bound before it connects: grpcio may see the first call before this task goes on.
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
    """One half of a connection; what it reads, the other half writes."""

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
        self._within_stall()
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
        """End this half once its peer has read what was written, or after a while."""
        if not self.wire.is_closing():
            self._within_stall()
            self.wire.close()

    def abort(self) -> None:
        """End this half now."""
        self.wire.abort()

    def _within_stall(self) -> None:
        if self._stall is None:
            self._stall = asyncio.get_running_loop().call_later(STALL_S, self.abort)


class _Outer(_Side):
    """The half of a client."""

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
