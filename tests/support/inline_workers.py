"""Workers of a scaler that are listeners in this process: what is between the two is the library's own, but no fork."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from queuebell.listeners import Listener
from queuebell.listeners.scaling.actuators.base import ProcessEvents
from queuebell.listeners.work.starter import BUSY, READY, ScalerLink, WorkerStatus
from tests.support.processes import PATIENCE_S

# Private: `_starts`: runs a worker in this process instead of another.

_numbers = itertools.count(1)


class InlineLink(ScalerLink):
    """Words go straight to whoever events them."""

    def __init__(self, events: Callable[[bytes], None]) -> None:
        super().__init__()
        self._events = events

    def join(self, member: WorkerStatus) -> bool:
        """Take a listener."""
        self._members.append(member)
        return True

    def send(self, word: bytes) -> None:
        """Tell."""
        self._events(word)


class Inline:
    """An actuator whose workers are what ``make`` makes; ``most`` is how many ran at once.

    ``ends`` counts those that ended, ``busy_ends`` those of them that were told to while their handlers ran.
    """

    outlives = False
    unseen: str | None = None

    def __init__(self, make: Callable[[], Listener]) -> None:
        self.most = self.started = self.ends = self.busy_ends = 0
        self._make = make
        self._events: ProcessEvents
        self._workers: dict[str, tuple[Listener, asyncio.Task[None]]] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()

    async def open(self, events: ProcessEvents) -> None:
        """Take who is told."""
        self._events = events

    async def start(self, count: int) -> list[str]:
        """Run so many."""
        return [self._start() for _ in range(count)]

    def _start(self) -> str:
        number, worker = f"inline-{next(_numbers)}", self._make()
        link = InlineLink(lambda word: self._heard(number, word))
        worker._starts = lambda: WorkerStatus(lambda: sum(each.held for each in worker.state().queues.values()), link)  # type: ignore[method-assign]
        running = asyncio.create_task(worker.run(), name=number)
        self._workers[number] = worker, running
        running.add_done_callback(lambda _: self._ended(number))
        self.started += 1
        self.most = max(self.most, len(self._workers))
        self._news.set()
        return number

    def _heard(self, number: str, word: bytes) -> None:
        if word == READY:
            self._events.ready(number)
        else:
            self._events.busy_changed(number, busy=word == BUSY)

    def _ended(self, number: str) -> None:
        _, running = self._workers.pop(number)
        self.ends += 1
        self._news.set()
        self._events.ended(number, int(running.exception() is not None), repr(running.exception()))

    async def stop(self, ids: Sequence[str]) -> None:
        """Stop them as SIGTERM would."""
        for number in set(ids) & set(self._workers):
            worker, _ = self._workers[number]
            self.busy_ends += any(queue.active_handlers for queue in worker.state().queues.values())
            stops = asyncio.create_task(worker.stop(), name=f"stop {number}")
            self._stops.add(stops)
            stops.add_done_callback(self._stops.discard)

    async def look(self) -> None:
        """Do nothing: workers tell by themselves."""

    def running(self) -> list[str]:
        """Return those that run."""
        return list(self._workers)

    async def close(self) -> None:
        """Stop all."""
        await self.stop(self.running())
        await self.until(lambda: not self._workers)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of those that run."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._news.clear()
                await self._news.wait()
