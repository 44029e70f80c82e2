"""Connections between processes, with TCP's manners: ordered, delayed, cut, half-open, but never lossy in silence.

A connection carries objects that nobody changes. What a partition holds back goes on when it ends, unless the
connection broke in the meantime.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.simulation.process import Host, Kernel, Process

GRID_S: Final = 0.0005
"""Latencies are multiples of it, so that things come in together, and together with timers."""
LINGER_S: Final = 15.0
"""How long what a process sent before it closed may still arrive."""
BUFFER: Final = 16
"""Messages on their way that a connection takes before it is called full."""


class Lost(Exception):
    """The connection is over; ``refused`` where it never was one."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


class _End:
    """What goes over a connection last."""


_FIN: Final = _End()


class Way:
    """From one host to another: whether anything passes, and how much longer it takes."""

    __slots__ = ("blocks", "extra", "pipes")

    def __init__(self) -> None:
        self.blocks = 0
        self.extra = 0.0
        self.pipes: dict[Pipe, None] = {}
        """Pipes that hold something back."""


class Pipe:
    __slots__ = ("_last", "_network", "_way", "flying", "held", "to")

    def __init__(self, network: Network, way: Way) -> None:
        self._network = network
        self._way = way
        self.to: End
        self.held: deque[object] = deque()
        self.flying = 0
        self._last = 0.0

    def push(self, message: object) -> None:
        if self._way.blocks or self.held:
            self.held.append(message)
            self._way.pipes[self] = None
        else:
            self._fly(message)

    def release(self) -> None:
        held, self.held = self.held, deque()
        for message in held:
            self._fly(message)

    def _fly(self, message: object) -> None:
        network = self._network
        when = network.kernel.now + network.latency() + self._way.extra
        when = max(when, self._last)
        self._last = when
        self.flying += 1
        network.kernel.at(when, self._land, message)

    def _land(self, message: object) -> None:
        self.flying -= 1
        self.to.land(message)


class End:
    __slots__ = ("_inbox", "_open", "_waiter", "hear", "host", "lost", "on_lost", "peer", "pipe", "port", "process")

    def __init__(self, host: Host, process: Process | None) -> None:
        self.host = host
        self.process = process
        self.peer: End
        self.pipe: Pipe
        self.port: str | None = None
        """Set at the server's end until somebody accepted."""
        self.hear: Callable[[Any], None] | None = None
        self.on_lost: Callable[[Lost], None] | None = None
        self.lost: Lost | None = None
        self._open = True
        self._inbox: deque[object] = deque()
        self._waiter: asyncio.Future[None] | None = None

    # -- for the process ----------------------------------------------------------------------------------------------

    def send(self, message: object) -> None:
        """Put a message on its way; nothing happens on a connection that is over."""
        if self._open and self.lost is None:
            self.pipe.push(message)

    def writable(self) -> bool:
        return self.unread() < BUFFER

    def unread(self) -> int:
        return len(self.pipe.held) + self.pipe.flying

    async def receive(self) -> Any:
        while not self._inbox:
            if self.lost is not None:
                raise self.lost
            if not self._open:
                raise Lost("closed")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._inbox.popleft()

    def close(self) -> None:
        """Let what was sent arrive, and then the end; hear nothing more."""
        if not self._open:
            return
        if self.lost is None:
            self.pipe.push(_FIN)
            if self.pipe.held:
                # The kernel goes on for a while, though nobody waits any more.
                kernel = self.pipe._network.kernel
                kernel.after(LINGER_S, self._give_up)
        self._shut()

    # -- for the network ----------------------------------------------------------------------------------------------

    def land(self, message: object) -> None:
        if self.port is not None:
            self._knock()
        elif self.process is not None and not self.process.up:
            if self.host.process is not None and self.lost is None:
                # The host is back, and knows nothing of this connection.
                self.lost = Lost("connection reset")
                self.pipe.push(self.lost)
        elif not self._open or self.lost is not None or self.process is None:
            return
        elif message is _FIN:
            self.break_(Lost("closed by the peer"))
        elif isinstance(message, Lost):
            self.break_(message)
        else:
            self.process.post(self._take, message)

    def break_(self, lost: Lost) -> None:
        if self.lost is None and self._open:
            self.lost = lost
            if self.process is not None and self.process.up:
                self.process.connections.pop(self, None)
                self.process.post(self._told)

    def died(self, *, silent: bool) -> None:
        """The process of this end is gone; unless ``silent``, its host says so."""
        if self._open and self.lost is None:
            if not silent:
                self.pipe.push(Lost("connection reset"))
            self._open = False

    def _knock(self) -> None:
        process = self.host.process
        hear = None if process is None or not process.up else process.ports.get(self.port or "")
        self.port = None
        if process is None or hear is None:
            self._open = False
            self.pipe.push(Lost("connection refused", refused=True))
            return
        self.process = process
        process.connections[self] = None
        process.post(hear, self)

    def _take(self, message: object) -> None:
        if not self._open:
            return
        if self.hear is not None:
            self.hear(message)
            return
        self._inbox.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _told(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.on_lost is not None and self._open and self.lost is not None:
            self.on_lost(self.lost)

    def _shut(self) -> None:
        self._open = False
        if self.process is not None:
            self.process.connections.pop(self, None)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_up(self) -> None:
        if self.pipe.held:
            self.pipe.held.clear()
            self.peer.break_(Lost("connection timed out"))


class Network:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.hosts: dict[str, Host] = {}
        self._ways: dict[tuple[str, str], Way] = {}
        self._chance = kernel.chance("network").random
        self._spread = int(1 + 6 * self._chance())

    def latency(self) -> float:
        """Draw what one message takes: up to some milliseconds, seldom ten times as much."""
        drawn = self._chance()
        ticks = 1 + int(drawn * drawn * self._spread)
        if drawn > 0.98:
            ticks *= 10
        return ticks * GRID_S

    def way(self, near: str, far: str) -> Way:
        way = self._ways.get((near, far))
        if way is None:
            way = self._ways[near, far] = Way()
        return way

    def open(self, process: Process, host: str, port: str) -> End:
        """Connect, and be able to send at once; if nobody is there, the end breaks with `Lost` (``refused``)."""
        near, far = End(process.host, process), End(self.hosts[host], None)
        near.pipe = Pipe(self, self.way(process.host.name, host))
        far.pipe = Pipe(self, self.way(host, process.host.name))
        near.peer, far.peer = far, near
        near.pipe.to, far.pipe.to = far, near
        far.port = port
        process.connections[near] = None
        near.pipe.push(None)
        return near

    def block(self, near: str, far: str) -> None:
        """Let nothing pass; may be done several times over."""
        self.way(near, far).blocks += 1

    def unblock(self, near: str, far: str) -> None:
        """Take one `block` back; with the last one, what waited goes on."""
        way = self.way(near, far)
        way.blocks -= 1
        if not way.blocks:
            pipes, way.pipes = way.pipes, {}
            for pipe in pipes:
                pipe.release()

    def reset(self, near: str, far: str) -> None:
        for name, other in ((near, far), (far, near)):
            process = self.hosts[name].process
            if process is None:
                continue
            for end in list(process.connections):
                peer = end.peer.process
                if peer is not None and peer.host.name == other:
                    end.break_(Lost("connection reset"))

    def died(self, process: Process, *, silent: bool) -> None:
        for end in list(process.connections):
            end.died(silent=silent)
        process.connections.clear()
