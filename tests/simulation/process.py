"""One virtual time for everything, and processes: event loops run by hand, that can be stopped, frozen and killed.

What happens is a callback at a time; what is due at the same time happens in the order in which it was asked for. All
chance comes from one seed, split by name, so that one more draw in one place moves nothing elsewhere. Within a process
callbacks run in asyncio's order. A turn of its loop takes no time or a little, as chance has it, so that what comes
from outside can come between any two turns; a process that is killed never gets its next turn.

Connections between processes, with TCP's manners: ordered, delayed, cut, half-open, but never lossy in silence.

A connection carries objects that nobody changes. What a partition holds back goes on when it ends, unless the
connection broke in the meantime.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import random
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from typing import Any, Final


class Kernel:
    """The clock of a run: ``now`` is true time in seconds since its beginning."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.steps = 0
        self.over = False
        """Set when the run was judged: what happens after that is tidying up, and is heard by nobody."""
        self.defects: list[str] = []
        """Failures of callbacks and tasks that nobody answers for: each is a defect of the code under test."""
        self._seed = seed
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def chance(self, name: str) -> random.Random:
        """Return the source of chance of this name; the same name always begins anew."""
        return random.Random(f"{self._seed}/{name}")

    def at(self, when: float, callback: Callable[..., None], *arguments: Any) -> None:
        self._asked += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._asked, callback, arguments))

    def after(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, callback, *arguments)

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Let time pass to ``until``, or until ``done`` says so, which it is asked whenever time moves."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            when, _, callback, arguments = pop(heap)
            if when > self.now:
                if done is not None and done():
                    heapq.heappush(heap, (when, 0, callback, arguments))
                    return True
                self.now = when
            self.steps += 1
            callback(*arguments)
        self.now = max(self.now, until)
        return done is not None and done()

    def forget(self) -> None:
        self._heap.clear()


# Private: `_run`, `_when`: asyncio's handles, which this loop runs in virtual time.

TURN_S: Final = 0.002
PROMPT: Final = 0.8
_ROUNDING_S: Final = 1e-9
"""Timers get their turn by so much later: one that came a rounding error early would be asked for again, for ever."""
_LEFT: Final = logging.getLogger("tests.simulation")


class Host:
    """Where processes of one name run, one after the other: it keeps the clock and what outlives a process.

    ``lag`` is how long its clock has stood still; ``boots`` counts the processes that ran here; ``rate`` is how many
    seconds its clock counts in one.
    """

    def __init__(self, name: str, role: str, skew: float) -> None:
        self.name = name
        self.role = role
        self.lag = -skew
        self.rate = 1.0
        self.boots = 0
        self.process: Process | None = None

    def true(self, clock: float) -> float:
        """Return the true time at which the clock says this, if it does not stand still before."""
        return clock / self.rate + self.lag


class ProcessLoop(asyncio.BaseEventLoop):
    """An event loop without sockets and threads whose turns are taken from outside."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def time(self) -> float:
        process = self._process
        return (process.kernel.now - process.host.lag) * process.host.rate

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        process = self._process
        if not process.kernel.over and process.up:
            error = context.get("exception")
            process.kernel.defects.append(f"{process.host.name}: {context.get('message')}: {error!r}")

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        raise RuntimeError("there are no threads in a simulation")

    def _write_to_self(self) -> None:
        """Nothing waits in a selector."""

    def turn(self) -> None:
        scheduled, ready = self._scheduled, self._ready  # type: ignore[attr-defined]
        end = self.time()
        while scheduled:
            handle = scheduled[0]
            if handle._cancelled:
                heapq.heappop(scheduled)._scheduled = False
            elif handle._when <= end:
                heapq.heappop(scheduled)._scheduled = False
                ready.append(handle)
            else:
                break
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def pending(self) -> bool:
        return bool(self._ready)  # type: ignore[attr-defined]

    def next_timer(self) -> float | None:
        scheduled = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        return scheduled[0]._when if scheduled else None


class Process:
    """One process. ``after_turn`` is called after each of its turns, outside of its loop.

    ``begin`` runs its main coroutine; when that ends, ``ended`` is called with the error it ended with, or None.
    """

    def __init__(self, kernel: Kernel, host: Host) -> None:
        self.kernel = kernel
        self.host = host
        host.boots += 1
        host.process = self
        self.name = f"{host.name}#{host.boots}"
        self.up = True
        self.paused = False
        self.frozen_at: float | None = None
        self.after_turn: Callable[[], None] | None = None
        self.ports: dict[str, Callable[[Any], None]] = {}
        """What listens here: called on the loop with the server's end of each new connection."""
        self.connections: dict[Any, None] = {}
        """Ends of connections that are open here, oldest first."""
        self.chance: random.Random = kernel.chance(self.name)
        self.loop = ProcessLoop(self)
        self.kept: list[asyncio.Task[Any]] = []
        self._turns = kernel.chance(f"{self.name}/turns").random
        self._token = 0
        self._next = -1.0
        self._running = False
        self._dies_after = -1
        self._dies: Callable[[], None] | None = None
        self._moment: Callable[[], bool] | None = None

    def begin(self, main: Coroutine[Any, Any, None], ended: Callable[[Exception | None], None]) -> None:
        task = self.loop.create_task(main, name=f"main[{self.name}]")

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                error = task.exception()
                ended(error if isinstance(error, Exception) else None)

        task.add_done_callback(done)
        self.kept.append(task)
        self._wake(self.kernel.now)

    def post(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Have ``callback`` run on the loop, as what a socket brings: before timers of the same turn."""
        self.loop.call_soon(callback, *arguments)
        if not self._running:
            self._wake(self.kernel.now)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.kept.append(self.loop.create_task(work, name=name))
        if not self._running:
            self._wake(self.kernel.now)

    def die(self) -> None:
        """Do nothing any more, without a word: what is on the loop stays there, and never runs again."""
        self.up = False
        self._token += 1
        self.kept.extend(sorted(asyncio.all_tasks(self.loop), key=lambda task: task.get_name()))
        if self.host.process is self:
            self.host.process = None

    def die_at(self, moment: Callable[[], bool], turns: int, dies: Callable[[], None]) -> None:
        """Have ``dies`` called ``turns`` turns after the first turn that ends with ``moment`` true."""
        self._moment, self._dies_after, self._dies = moment, turns, dies

    def pause(self, *, suspended: bool) -> None:
        """Do nothing until `resume`; what comes in waits. Suspended, the clock stands still as well."""
        self.paused = True
        if suspended:
            self.frozen_at = self.kernel.now
        self._token += 1

    def resume(self) -> None:
        if self.frozen_at is not None:
            self.host.lag += self.kernel.now - self.frozen_at
            self.frozen_at = None
        self.paused = False
        self._next = -1.0
        self._wake(self.kernel.now)

    def _wake(self, when: float) -> None:
        """See that the loop gets a turn at ``when``, if it would not get one before; a turn may be one too many."""
        if not self.up or self.paused:
            return
        if self._next >= 0.0 and self._next <= when:
            return
        self._token += 1
        self._next = when
        self.kernel.at(when, self._go, self._token)

    def _go(self, token: int) -> None:
        if token != self._token or not self.up or self.paused:
            return
        loop, kernel = self.loop, self.kernel
        self._next = -1.0
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(loop)
        self._running = True
        try:
            while True:
                kernel.steps += 1
                loop.turn()
                if self._dies is not None and self._dying():
                    break
                if not loop.pending() or self._turns() >= PROMPT:
                    break
        finally:
            self._running = False
            asyncio._set_running_loop(before)
        if self.after_turn is not None:
            self.after_turn()
        if self._dies is not None and self._moment is None and self._dies_after < 0:
            dies, self._dies = self._dies, None
            dies()
            return
        if loop.pending():
            # The turn took its time: nothing here runs before it is over.
            self._next = kernel.now + self._turns() * TURN_S
            self._token += 1
            kernel.at(self._next, self._go, self._token)
            return
        timer = loop.next_timer()
        if timer is not None:
            self._wake(max(kernel.now, self.host.true(timer) + _ROUNDING_S))

    def _dying(self) -> bool:
        if self._moment is not None:
            if not self._moment():
                return False
            self._moment = None
        self._dies_after -= 1
        return self._dies_after < 0

    def bury(self) -> None:
        """Let go of everything quietly; nobody hears what happens here any more."""
        loop = self.loop
        self.after_turn = None
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(loop)
        try:
            for _ in range(4):
                tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                for _ in range(50):
                    if not loop.pending():
                        break
                    loop.turn()
            for task in asyncio.all_tasks(loop):
                _LEFT.debug("left behind: %s", task.get_name())
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(RuntimeError):  # one that would go on even now
                    task.get_coro().close()
        finally:
            asyncio._set_running_loop(before)
        self.kept.clear()
        self.connections.clear()
        self.ports.clear()
        loop.close()


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

    def __init__(self) -> None:
        self.blocks = 0
        self.extra = 0.0
        self.pipes: dict[Pipe, None] = {}
        """Pipes that hold something back."""


class Pipe:
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
        self._ways: dict[tuple[str, str], Way] = defaultdict(Way)
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
        return self._ways[near, far]

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
