"""One virtual time for everything, and processes: event loops run by hand, that can be stopped, frozen and killed.

What happens is a callback at a time; what is due at the same time happens in the order in which it was asked for. All
chance comes from one seed, split by name, so that one more draw in one place moves nothing elsewhere. Within a process
callbacks run in asyncio's order. A turn of its loop takes no time or a little, as chance has it, so that what comes
from outside can come between any two turns; a process that is killed never gets its next turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import random
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

    # -- life ---------------------------------------------------------------------------------------------------------

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

    # -- turns --------------------------------------------------------------------------------------------------------

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

    # -- the end of the run -------------------------------------------------------------------------------------------

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
