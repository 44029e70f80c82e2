"""For tests: a bridge, its queue and listeners in one process, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import datetime
import math
import random
import selectors
import time
import uuid
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from queuebell.bridge.contract.burial import Burial, opened
from queuebell.bridge.contract.errors import BadInput, QueueNotFound
from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.queues.base import Body, Depth, StoredMessage, new_messages
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.service.bridge import Bridge
from queuebell.listeners.handler import Kind, kind_of
from queuebell.listeners.listener import Listener
from queuebell.listeners.testing import run_once

__all__ = ["Rehearsal", "run_once"]

T = TypeVar("T")

SOON_S: Final = 0.05
"""What is due within this time counts as due now; no period of the bridge or a listener is as short."""
GLANCE_S: Final = 0.05
TICK_S: Final = 1e-6
"""More than the rounding error of a sum of floats, which could keep a loop just before its due time forever."""
ROUNDED_S: Final = 0.002
"""The queue rounds up to milliseconds: what is due in a second must be due after ``advance(1)``."""
ADVANCE_S_MAX: Final = 31_536_000


class Rehearsal:
    """A bridge, its queue and the listeners under test, on one clock that stands still between calls.

    For plain test functions; handlers may be coroutines or functions. Failures are retried and buried as usual, when
    `advance` reaches their time. ``seed`` fixes the random numbers. ``patience`` is how many real seconds to wait for a
    running handler. The clock counts for the bridge, the queue (leases, delays, retries, expiry, dates), its listeners,
    and `asyncio.sleep` and time-outs in handlers; not for `time.time`. A listener that breaks raises its error in the
    next call. In a running event loop, such as a test that is a coroutine, each call raises `RuntimeError`.
    """

    def __init__(self, *, seed: int = 0, patience: float = 30.0) -> None:
        self._clock = clock = _Clock()
        self._runner = asyncio.Runner(loop_factory=lambda: _Loop(clock))
        self._patience = patience
        self._chance = random.Random(seed)
        self._running: list[tuple[Listener[Any], asyncio.Task[None], bool]] = []
        self._ended = False
        boot = uuid.UUID(int=self._chance.getrandbits(128)).hex
        began = time.time() - clock.now
        self._wall: Callable[[], float] = lambda: began + clock.now
        self.store = MemoryStore(f"rehearsal-{uuid.uuid4().hex}", boot=boot, clock=lambda: clock.now, wall=self._wall)
        """The queue, for `run`: ``rehearsal.run(submit(rehearsal.store))``."""
        self.bridge = Bridge(boot=boot, store=self.store, draw=self._chance.random)
        """The bridge, which a `Publisher` takes."""
        self.run(self.bridge.start())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def listen(self, queue: Any, handler: Callable[[Any], object], *, store: Any = None, **options: Any) -> Listener:
        """Start a listener with the options of `Listener`, woken by this bridge and stopped by `close`.

        Another ``store`` has its own clock.
        """
        fixed: dict[str, Any] = {
            "handle_signals": False,
            "bridge": self.bridge,
        }

        class Rehearsed(Listener[Any]):
            _draw = staticmethod(self._chance.random)
            _now = staticmethod(self._date)

        listener = Rehearsed(self.store if store is None else store, queue, handler, **fixed | options)

        async def begin() -> None:
            task = asyncio.create_task(listener.run(), name=f"listener[{listener.name}]")
            self._running.append((listener, task, Kind.ASYNC not in kind_of(handler)))
            if not await listener.started():
                await asyncio.wait([task])

        self.run(begin())
        return listener

    def put(self, queue: str, *bodies: Body, visible_after: float = 0.0) -> None:
        """Put messages that become visible after ``visible_after`` seconds; listeners may start on them at once."""
        self.run(self.store.put(queue, new_messages(bodies, round(visible_after * 1000))))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the bridge's event loop and return its result; `TimeoutError` after ``patience``."""

        async def within() -> T:
            async with asyncio.timeout(self._patience):
                return await work

        try:
            return self._drive(within())
        finally:
            work.close()  # where it could not begin

    def run_until_idle(self) -> None:
        """Run everything that is due now, until no handler is running.

        Raises `TimeoutError` if one still runs after ``patience``: it may wait for time that only `advance` brings.
        """
        self._drive(self._pass(None))

    def advance(self, seconds: float) -> None:
        """Move the clock, and run everything that becomes due, in order and each at its time.

        Handlers that are functions are waited for at each step; coroutines see the time pass.
        """
        if not 0 <= seconds <= ADVANCE_S_MAX:
            raise BadInput("bad_parameter", f"advance: by 0 to {ADVANCE_S_MAX} seconds at once")
        self._drive(self._pass(self._clock.now + seconds + ROUNDED_S))

    def waiting(self, queue: str) -> list[StoredMessage]:
        """Return up to 32 visible messages: not yet handled, or due again."""
        try:
            return self.run(self.store.peek(queue))
        except QueueNotFound:
            return []

    def depth(self, queue: str) -> Depth:
        """Count the visible messages, and those that are leased, delayed or waiting for a retry."""
        return self.run(self.store.depth(queue)) or Depth(0, 0)

    def buried(self, queue: str) -> list[Burial]:
        """Return the burials of up to 32 messages of a queue, oldest first."""
        found = [opened(message.body)[0] for message in self.waiting(queue + POISON_SUFFIX)]
        return [burial for burial in found if burial is not None]

    def close(self) -> None:
        """Stop the listeners and the bridge; handlers get their grace on the rehearsal's clock."""
        if self._ended:
            return
        self._ended = True

        async def end() -> None:
            passing = asyncio.create_task(self._pass(math.inf), name="time passes")
            for listener, task, _ in self._running:
                await listener.stop()
                await asyncio.wait([task])
            await self.bridge.stop()
            passing.cancel()
            await asyncio.wait([passing])

        try:
            self._drive(end())
        finally:
            self._runner.close()

    def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        if _in_a_loop():
            work.close()
            raise RuntimeError(
                "a rehearsal has its own event loop: use it in a test function without `async`, and await coroutines"
                " with its run()"
            )
        result = self._runner.run(work)
        for each in [*self._running]:
            _, task, _ = each
            if task.done():
                self._running.remove(each)
                if not task.cancelled():
                    task.result()
        return result

    async def _pass(self, until: float | None) -> None:
        """Let time pass until then, or, with None, until nothing is going on; for ever it waits for no handler."""
        clock, waited = self._clock, 0.0
        done = asyncio.get_running_loop().create_future()

        def stalled(timeout: float | None) -> float | None:
            nonlocal waited
            at_work = [
                queue
                for listener, _, function in self._running
                if (until is None or function) and listener.unended()
                for queue in listener.queues
            ]
            if at_work and waited < self._patience:
                pause = GLANCE_S if timeout is None else min(GLANCE_S, timeout)
                waited += pause
                return pause
            last = clock.now + SOON_S if until is None else until
            if at_work and until != math.inf:
                done.set_exception(
                    TimeoutError(
                        f"a handler of {', '.join(at_work)} is still running after {self._patience:g} s; if it waits"
                        " for time to pass, call advance(seconds)"
                    )
                )
            elif timeout is not None and clock.now + timeout <= last:
                clock.now += timeout + TICK_S
            elif until == math.inf:
                return timeout
            else:
                clock.now = max(clock.now, until or 0.0)
                done.set_result(None)
            return None

        clock.stalled = stalled
        try:
            await done
        finally:
            clock.stalled = None

    def _date(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._wall(), datetime.UTC)


def _in_a_loop() -> bool:
    """Say whether an event loop runs, outside of any ``except``: an error raised in one shows the other as well."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Clock(selectors.DefaultSelector):  # type: ignore[misc, valid-type, unused-ignore]
    """The time of a loop, which passes only while the loop really waits, or by what ``stalled`` makes of its waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.stalled: Callable[[float | None], float | None] | None = None
        """Given how long the loop would wait; returns how long it is to wait, None where it need not any more."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.stalled is not None:
            timeout = self.stalled(timeout)
            if timeout is None:
                return []
        before = time.monotonic()
        ready = super().select(timeout)
        self.now += time.monotonic() - before
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        super().__init__(clock)

    def time(self) -> float:
        return self._clock.now
