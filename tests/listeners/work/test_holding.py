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

from bridge import Bridge
from bridge.contract.burial import opened
from bridge.contract.errors import StoreUnavailable
from bridge.contract.jobs import NO_JOBS, Jobs, plus
from bridge.observe import instruments
from bridge.queues import open_store
from bridge.queues.base import (
    NewMessage,
    PutReceipt,
    Release,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
)
from listeners import Listener, Message
from listeners.core import settle
from listeners.core.jobs import JobCounts
from listeners.core.retry_policy import RetryPolicy
from listeners.core.settle import Outcome, Succeeded
from listeners.handler import Bury, batch
from listeners.work.held import Act, Held
from listeners.work.holding import Holding, Rules
from listeners.work.invoke import Invoker
from listeners.work.retry_until import NoLongerWanted
from tests.listeners.rig import POISON, QUEUE, Store, hanging, listening
from tests.listeners.work.test_settlements import NOON, Scripted, now
from tests.support.sim_loop import pass_time, simulate, simulated

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


# The end -------------------------------------------------------------------------------------------------------------
def test_where_no_message_is_left_none_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """The lease has ended that a store would not settle, and only the pause before the next call is cut short."""

    async def story() -> None:
        site = Site(done, visibility=8.0)
        site.store.script = [StoreUnavailable("away")] * 1000
        site.holding.allow(0.1)
        site.work(message())
        while len(site.holding) or not site.counts["lost"]:
            await pass_time(0.01)
        began = now()
        await site.holding.finish(asyncio.Event())
        assert now() - began == pytest.approx(0.1, abs=0.001)

    simulate(story())
    assert [record for record in caplog.records if record.levelno == logging.ERROR] == []


@simulated
async def test_a_handler_cancelled_before_its_first_step_gives_back() -> None:
    """It never ran, so that nothing of its own could say what becomes of its message."""
    ran: list[Message] = []

    async def handle(message: Message) -> None:
        ran.append(message)

    site = Site(handle)
    site.work(message())
    await site.end()
    assert ran == []
    ((_, settlement),) = site.store.calls
    assert settlement == Settlement([], [Release("m1", "r1", uncounted=True)], [])


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


@simulated
async def test_a_lease_lost_before_the_ledger_let_it_begin_is_told_in_a_later_burial(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As the failure of that attempt; nothing of it is settled here, and it is no fault of this listener."""
    keys = Keys(NoLongerWanted(), [settle.Bury("no such customer", "bad_message")] * 2)
    site = Site(never, once=keys)
    site.work(*several(2))
    await pass_time(2)
    site.store.script = [refusing("extend")]
    site.holding.renew(1300.0)
    await pass_time(4)
    assert (site.holding.running, site.counts) == (0, {"lost": 2})
    site.work(message(1, attempt=2), message(2, attempt=2))
    await pass_time(6)
    for _, put in site.store.puts:
        facts, _ = opened(put.body)
        assert facts.history[0].reason == "its lease was lost"
    assert len(site.store.puts) == 2
    assert not [record for record in caplog.records if record.exc_info]


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


@simulated
async def test_one_of_a_batch_that_was_lost_holds_up_none_that_cannot_be_concluded() -> None:
    """What is left of the batch comes back with its lease, though one before it is held no longer."""

    @batch
    async def work(_: list[Message]) -> list[Any]:
        return [Bury("no such customer")] * 2

    site = Site(work)
    site.store.breaks = 5, ZeroDivisionError()
    lost, left = site.work(*several(2))
    await pass_time(2)
    site.store.script = [refusing("extend")]
    site.holding._settlements.add(Act.EXTEND, lost, LEASE_S)
    await pass_time(4)
    assert site.told("back") == [(2.0, 0.0), (5.0, 595.0)]
    assert (len(site.holding), site.holding.running, site.holding.deadline()) == (0, 0, None)
    assert left.task.exception() is None


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


def summed(bridge: Bridge, *queues: str) -> Jobs:
    """All that a bridge was told, of all handlers of these queues."""
    total = NO_JOBS
    for queue in queues:
        state = bridge.describe(queue)
        for jobs in () if state is None else state.jobs.values():
            total = plus(total, jobs)
    return total


def own(listener: Listener) -> Jobs:
    """The same as the worker shows it at its own port."""
    total = NO_JOBS
    for _, _, jobs in listener.jobs():
        total = plus(total, jobs)
    return total


@simulated
async def test_what_a_stop_leaves_to_its_lease_is_lost() -> None:
    """A store that answers no settlement any more cannot be told, and nobody counts the attempt as done."""
    store = Store()

    async def handle(message: Message) -> None:
        store.settling += [hanging()] * 20

    async with Bridge() as bridge:
        await store.fill(b"one")
        async with listening(store, handle, bridge=bridge) as listener:
            while not sum(own(listener).handling.counts):
                await pass_time(0.1)
        assert own(listener).outcomes == summed(bridge, QUEUE).outcomes == {"lost": 1}
