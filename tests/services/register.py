"""What was attempted, acknowledged and handled, and whether the sum is right: lost = 0, unexpected = 0."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tests.chaos.worker import Options
from tests.support.processes import PATIENCE_S, Processes, Program, Service


class Numbers(NamedTuple):
    """The five numbers of a run."""

    attempted: int
    acknowledged: int
    lost: int
    unexpected: int
    duplicated: int


class Worker(Program):
    """A worker process; each of its lines is news for the register."""

    register: Register | None = None

    def __init__(self, *args: Any) -> None:
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        super().__init__(*args)

    def heard(self, line: str) -> None:
        """File the event."""
        event = json.loads(line)
        self.events[event["event"]].append(event)
        if self.register is not None and "body" in event:
            self.register.heard(event)

    def bodies(self, kind: str) -> list[str]:
        """Return the bodies of its events of one kind, in order."""
        return [event["body"] for event in self.events[kind]]

    async def figures(self) -> list[dict[str, Any]]:
        """Ask it how its listeners stand."""
        since = len(self.lines)
        self.tell("state")
        found: list[dict[str, Any]] = json.loads(await self.line('"event": "state"', since=since))["listeners"]
        return found


class Register:
    """Puts messages, starts workers, and knows at any time what is owed."""

    def __init__(self, processes: Processes, queue: str = "billing/orders") -> None:
        self.processes = processes
        self.queue = queue
        self.workers: list[Worker] = []
        self.attempted: list[str] = []
        self.acknowledged: list[str] = []
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        """How often each message was started, done and cancelled."""
        self._news = asyncio.Event()

    async def worker(self, bridge: Service, *, store: Service | None = None, **options: Any) -> Worker:
        """Start a worker; it is up, and subscribes in a moment."""
        settings = {"queue": self.queue, "name": f"worker-{len(self.workers)}", **options}
        wanted = Options(store=(store or bridge).url, bridge=bridge.url, **settings)
        worker: Worker = await self.processes.start(*wanted.arguments(), name=wanted.name, kind=Worker)
        worker.register = self
        self.workers.append(worker)
        await worker.line('"up"')
        return worker

    async def put(self, service: Service, count: int, *, batch: int = 1, **more: Any) -> list[str]:
        """Put so many new messages, ``batch`` with each call, one call after the other."""
        bodies: list[str] = []
        while len(bodies) < count:
            part = self.names(min(batch, count - len(bodies)))
            status = await service.put(self.queue, *part, **more)
            assert status == 201, (status, service.answer)
            self.acknowledged += part
            bodies += part
        return bodies

    def names(self, count: int) -> list[str]:
        """Return new bodies, which now count as attempted."""
        names = [f"m{len(self.attempted) + i}" for i in range(count)]
        self.attempted += names
        return names

    def heard(self, event: dict[str, Any]) -> None:
        """Count what a worker says."""
        self.counts[event["event"]][event["body"]] += 1
        self._news.set()

    async def all_have(
        self, kind: str, bodies: Iterable[str] | None = None, *, within_s: float = PATIENCE_S
    ) -> Counter[str]:
        """Wait until each of these (or of those acknowledged) has been started, done or cancelled at least once."""
        wanted = set(self.acknowledged if bodies is None else bodies)
        counts = self.counts[kind]
        await self._when(
            lambda: len(counts) >= len(wanted) and wanted <= counts.keys(),
            lambda: f"{kind}, all {len(wanted)}; missing: {sorted(wanted - counts.keys())[:20]}",
            within_s,
        )
        return counts

    async def some_have(self, kind: str, count: int) -> None:
        """Wait until workers have said so many events of a kind."""
        counts = self.counts[kind]
        await self._when(lambda: counts.total() >= count, lambda: f"{kind} {count} times", PATIENCE_S)

    def numbers(self) -> Numbers:
        """Sum up, and insist on nothing lost and nothing unexpected."""
        done = self.counts["done"]
        numbers = Numbers(
            len(self.attempted),
            len(self.acknowledged),
            len(set(self.acknowledged) - done.keys()),
            len(done.keys() - set(self.attempted)),
            sum(count - 1 for count in done.values()),
        )
        sys.stdout.write(" ".join(f"{name}={value}" for name, value in numbers._asdict().items()) + "\n")
        assert (numbers.lost, numbers.unexpected) == (0, 0), numbers
        return numbers

    async def _when(self, holds: Callable[[], bool], what: Callable[[], str], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not holds():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not within {within_s:g} s: {what()}") from None
