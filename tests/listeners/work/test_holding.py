"""Holding as such: slots, leases, what handlers leave behind, and that the end of it comes in its time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bridge.contract.errors import StoreUnavailable
from bridge.contract.jobs import NO_JOBS, Jobs, plus
from bridge.observe import instruments
from bridge.queues import open_store
from bridge.queues.base import (
    NewMessage,
    PutReceipt,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
)
from listeners import Listener, Message
from listeners.core.jobs import JobCounts
from listeners.core.retry_policy import RetryPolicy
from listeners.core.settle import Outcome, Succeeded
from listeners.handler import Bury, batch
from listeners.work.held import Held
from listeners.work.holding import Holding, Rules
from listeners.work.invoke import Invoker
from tests.listeners.rig import POISON, QUEUE, listening
from tests.listeners.work.test_settlements import NOON, Scripted, now
from tests.support.sim_loop import pass_time, simulated

LEASE_S = 600.0
NOT_FOUND = "message_not_found"


class HoldingStore(Scripted):
    """A scripted store that takes what is buried or replayed, too, or breaks it after some seconds."""

    def __init__(self, **capabilities: Any) -> None:
        super().__init__(**capabilities)
        self.puts: list[tuple[str, NewMessage]] = []
        self.breaks: tuple[float, Exception] | None = None

    async def put(self, queue: str, messages: list[NewMessage]) -> list[PutReceipt]:
        if self.breaks is not None:
            seconds, error = self.breaks
            await pass_time(seconds)
            raise error
        self.puts += [(queue, message) for message in messages]
        return [PutReceipt("p1", "", 0)]


class Site:
    """A holding over a scripted store, and all that its listener hears of it."""

    def __init__(
        self,
        handler: Callable[[Any], object],
        *,
        concurrency: int = 2,
        visibility: float = LEASE_S,
        max_attempts: int = 5,
        poison: str | None = POISON,
        decode: Callable[[bytes], object] | None = None,
        timeout: float | None = None,
        once: Any = None,
        **capabilities: Any,
    ) -> None:
        self.store = HoldingStore(**capabilities)
        self.heard: list[tuple[Any, ...]] = []
        self.elsewhere = False
        self.counts: Counter[str] = Counter()
        rules = Rules(
            concurrency=concurrency,
            visibility=visibility,
            retry=RetryPolicy(attempts=max_attempts),
            poison=poison,
            decode=decode,
            listener="worker",
            now=lambda: datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC),
            handler="m:f",
            once=once,
        )
        store: Any = self.store
        self.invoker = Invoker(handler, threads=concurrency, timeout=timeout)
        self.jobs = JobCounts("m:f")
        self.holding = Holding(QUEUE, store, self.invoker, rules, self, self.counts, self.jobs, lambda: 0.5)

    # What a holding tells (`HoldingEvents`).

    def room_changed(self) -> None:
        self.heard.append(("room", now()))

    def came_back(self, after: float) -> None:
        self.heard.append(("back", now(), after))

    def acknowledged(self, *, gone: bool) -> None:
        self.heard.append(("acknowledged", now()))

    def moved(self, queue: str, after_ms: int) -> None:
        self.heard.append(("moved", now(), queue, after_ms))

    def renewals_changed(self) -> None:
        self.heard.append(("renewals", now()))

    def hung(self, slots: int) -> None:
        self.heard.append(("hung", slots))

    def others(self) -> bool:
        return self.elsewhere

    # What a listener does.

    def take(self, *messages: StoredMessage, source: str = "trigger") -> list[Held]:
        """Hold what a receive brought just now, for the rules' visibility."""
        at = asyncio.get_running_loop().time()
        return self.holding.take(list(messages), at, self.holding.visibility.seconds, source)

    def work(self, *messages: StoredMessage) -> list[Held]:
        taken = self.take(*messages)
        self.holding.start(taken)
        return taken

    async def end(self) -> None:
        await self.holding.drain(0)
        await self.holding.abort()
        await self.holding.finish(asyncio.Event())

    def told(self, kind: str) -> list[tuple[Any, ...]]:
        return [each[1:] for each in self.heard if each[0] == kind]


def message(number: int = 1, attempt: int = 1, body: bytes = b"x") -> StoredMessage:
    return StoredMessage(f"m{number}", f"r{number}", body, attempt, NOON)


def several(count: int) -> list[StoredMessage]:
    return [message(number) for number in range(1, count + 1)]


async def done(_: Message) -> None:
    """Succeed at once."""


def refusing(kind: str, code: str = NOT_FOUND) -> Callable[[Settlement], Settling]:
    """Return an answer that refuses each item of a kind."""

    def answer(settlement: Settlement) -> Settling:
        settled = {
            each: [Settled(each != kind, code=code if each == kind else None)] * len(getattr(settlement, each))
            for each in ("delete", "release", "extend")
        }
        return Settling(**settled)

    return answer


class Threads:
    """Threads of which only one call is known, which ends when the test says so."""

    def __init__(self, thread: concurrent.futures.Future[Any]) -> None:
        self.thread = thread

    def submit(self, _: Callable[[], object]) -> concurrent.futures.Future[Any]:
        return self.thread


# Slots ---------------------------------------------------------------------------------------------------------------
class Keys:
    """A ledger as a holding sees it: each call is answered, or broken, as ``script`` says, five seconds after it."""

    def __init__(self, *script: list[Outcome | None] | Exception) -> None:
        self.script = list(script)
        self.asked: list[list[str]] = []

    async def run(self, messages: list[Message], call: object, wanted: Callable[[], bool]) -> list[Outcome | None]:
        self.asked.append([each.id for each in messages])
        await pass_time(5)
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@batch
async def never(_: list[Message]) -> None:
    raise AssertionError("the ledger of the test calls no handler")


@simulated
async def test_what_waits_for_its_key_keeps_its_slot() -> None:
    """Of a batch, those that are done free theirs at once, and room is told; the rest goes to the ledger again."""
    keys = Keys([Succeeded(), None, None], [None, Succeeded()], [Succeeded()])
    site = Site(never, concurrency=4, once=keys)
    site.work(*several(3))
    seen = []
    for _ in range(4):
        seen.append((site.holding.running, site.holding.free()))
        await pass_time(5.1 if not now() else 5)
    assert seen == [(3, 1), (2, 2), (1, 3), (0, 4)]
    assert keys.asked == [["m1", "m2", "m3"], ["m2", "m3"], ["m2"]]
    assert [at for (at,) in site.told("room")] == [5.0, 10.0, 15.0]
    assert (site.counts["handled"], len(site.holding)) == (3, 0)


# Leases --------------------------------------------------------------------------------------------------------------
@simulated
async def test_what_is_lost_before_its_burial_is_not_deleted() -> None:
    """The poison queue was away so long that the lease was lost: without its burial the message stays where it is."""

    @batch
    async def work(_: list[Message]) -> list[Any]:
        return [Bury("no such customer")]

    site = Site(work)
    site.store.breaks = 0, StoreUnavailable("away")
    site.work(message())
    await pass_time(2)
    site.store.script = [refusing("extend")]
    site.holding.renew(1300.0)
    await pass_time(20)
    assert site.store.named() == [([], [], ["m1"])]
    assert (site.counts, site.holding.running) == ({"lost": 1}, 0)


@simulated
async def test_what_is_not_held_any_more_cannot_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A renewal that is refused after its message was given up: nothing is counted twice, and nothing breaks."""
    site = Site(bury)
    site.store.breaks = 2, ZeroDivisionError()
    site.store.seconds, site.store.script = 3.0, [refusing("extend")]
    site.work(message())
    site.holding.renew(1300.0)
    await pass_time(4)
    assert (site.counts["lost"], len(site.holding)) == (0, 0)
    assert site.told("back") == [(2.0, 598.0)]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


# What handlers decide ------------------------------------------------------------------------------------------------
async def bury(_: Message) -> None:
    raise Bury("no such customer")


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the process as it was."""
    monkeypatch.setattr(instruments, "on", None)
    yield
    instruments.on = None


@pytest.mark.usefixtures("wanted")
async def test_a_handler_that_is_cut_off_is_measured_as_cancelled() -> None:
    """A worker that stops leaves no call out, and says that this one came to nothing."""
    began, recorded = asyncio.Event(), list[tuple[str, str | None]]()

    async def handle(message: Message) -> None:
        began.set()
        await asyncio.Event().wait()

    class Seen(instruments.Instruments):
        def ended(self, queue: str, seconds: float, failure: str | None) -> None:
            recorded.append((queue, failure))

    instruments.on = Seen()
    async with open_store("memory://instruments-cut") as store:
        await store.put(QUEUE, [NewMessage(b"slow")])
        async with listening(store, handle, grace=0):
            await began.wait()
    assert recorded == [(QUEUE, "cancelled")]


def own(listener: Listener) -> Jobs:
    """The same as the worker shows it at its own port."""
    total = NO_JOBS
    for _, _, jobs in listener.jobs():
        total = plus(total, jobs)
    return total
