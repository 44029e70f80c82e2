"""Holding as such: slots, leases, what handlers leave behind, and that the end of it comes in its time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import datetime
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from queuebell.bridge.contract.errors import StoreUnavailable
from queuebell.bridge.queues.base import (
    NewMessage,
    PutReceipt,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
)
from queuebell.listeners import Message
from queuebell.listeners.handler import Bury, batch
from queuebell.listeners.work.counts import JobCounts
from queuebell.listeners.work.holding import Holding, Rules
from queuebell.listeners.work.invoke import Invoker
from queuebell.listeners.work.lease import Held
from queuebell.listeners.work.retry import Outcome, RetryPolicy, Succeeded
from tests.listeners.rig import POISON, QUEUE
from tests.listeners.work.test_settlements import NOON, Scripted, now
from tests.support.sim_loop import pass_time, simulated

# Private: `_overdue`: a thread that outlives its message, without a real stuck thread.
# Private: `_lease_lost`: a loss in the turn of a start.


async def hang(_: Message) -> None:
    """Do not end."""
    await pass_time(1e6)


class Stubborn:
    """A handler that swallows every cancellation until it is let go."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, _: Message) -> None:
        while not self.release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.release.wait()


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
        batch: int = 32,
        **capabilities: Any,
    ) -> None:
        self.store = HoldingStore(**capabilities)
        self.heard: list[tuple[Any, ...]] = []
        self.elsewhere = self.cancels = False
        self.counts: Counter[str] = Counter()
        rules = Rules(
            batch=batch,
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

    def can_be_received(self) -> bool:
        if self.cancels:
            asyncio.get_running_loop().call_soon(cancel_others)
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
async def test_a_batch_handler_never_gets_more_than_its_batch() -> None:
    """A wake carries as many messages as there are slots; a call of the handler gets what `Listener(batch=)` says."""
    calls: list[list[str]] = []

    @batch
    async def note(messages: list[Message]) -> None:
        calls.append([each.id for each in messages])

    site = Site(note, concurrency=8, batch=3)
    site.work(*several(8))
    await pass_time(1)
    assert calls == [["m1", "m2", "m3"], ["m4", "m5", "m6"], ["m7", "m8"]]
    assert (site.counts["handled"], len(site.holding), site.holding.running) == (8, 0, 0)


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


# What handlers decide ------------------------------------------------------------------------------------------------
async def bury(_: Message) -> None:
    raise Bury("no such customer")


@simulated
async def test_what_was_given_back_may_still_be_handled(caplog: pytest.LogCaptureFixture) -> None:
    """A handler left behind that ends while its release is under way: its delete follows, and nothing breaks."""
    stubborn = Stubborn()
    site = Site(stubborn)
    site.store.seconds = 3.0
    site.work(message())
    await pass_time(5)
    await site.holding.abort()
    await pass_time(1)
    stubborn.release.set()
    await site.holding.finish(asyncio.Event())
    assert site.store.named() == [([], ["m1"], []), (["m1"], [], [])]
    assert (len(site.holding), len(site.told("acknowledged"))) == (0, 2)
    told = "a handler ignores its cancellation and is abandoned; another worker may handle its message meanwhile"
    assert [record.getMessage() for record in caplog.records] == [f"{QUEUE}: {told} (handle[{QUEUE}]#1)"]


@simulated
async def test_calls_left_in_their_threads_are_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """They take their slots until they end, and an abort says how many there are and whose they are."""
    site = Site(done)
    threads: list[concurrent.futures.Future[Any]] = [concurrent.futures.Future() for _ in range(2)]
    for thread in threads:
        site.holding._overdue.add(thread, [])
    assert (site.holding.busy, site.holding.free()) == (2, 0)
    await site.holding.drain(7)
    assert now() == 7.0, "the grace is theirs as well"
    await site.holding.abort()
    threads[0].set_result(None)
    await pass_time(0)
    assert (site.holding.busy, site.holding.free()) == (1, 1)
    asyncio.get_running_loop().call_later(3, threads[1].set_result, None)
    await site.holding.drain(60)
    assert (now(), site.holding.busy) == (10.0, 0)
    await pass_time(0)
    assert [at for (at,) in site.told("room")] == [0.0, 7.0, 10.0]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{QUEUE}: {__name__}:done is still running: 2 calls are abandoned. ")


@pytest.mark.parametrize(("lease_s", "after_ms"), [(6.5, 500), (7.5, 1500)])
@simulated
async def test_what_is_left_to_its_handler_comes_when_its_lease_ends(lease_s: float, after_ms: int) -> None:
    """No sooner and no later than it would have come by itself."""
    stubborn = Stubborn()
    site = Site(stubborn, visibility=lease_s)
    (held,) = site.work(message())
    await pass_time(5)
    await site.holding.abort()
    assert site.holding.runs(held.task), "whoever waits for handlers goes on waiting for this one"
    await site.holding.finish(asyncio.Event())
    stubborn.release.set()
    assert [item.after_ms for _, call in site.store.calls for item in call.release] == [after_ms]


@pytest.mark.parametrize("batches", [False, True])
@simulated
async def test_a_lost_lease_ends_its_handler_and_lengthens_the_next(
    batches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, told with what was said and for how long others are leased from now, and looked for at once."""
    ended: list[str] = []

    async def work(given: Message) -> None:
        try:
            await pass_time(100)
        finally:
            ended.append(given.id)

    @batch
    async def work_all(messages: list[Message]) -> None:
        await pass_time(100)
        ended.extend(each.id for each in messages)

    site = Site(work_all if batches else work, visibility=60.0)
    site.work(*several(2))
    await pass_time(30)
    site.store.script = [refusing("extend", "pop_receipt_mismatch")]
    site.holding.renew(1030.0)
    await pass_time(1)
    assert (len(site.holding), site.counts["lost"], site.holding.renewals.deadline()) == (0, 2, None)
    assert site.holding.visibility.seconds == 90.0
    assert site.told("back") == [(30.0, 0.0), (30.0, 0.0)]
    assert sorted(ended) == ([] if batches else ["m1", "m2"]), "the rest of a batch is not lost with it"
    assert site.holding.running == (2 if batches else 0)
    await pass_time(100)
    assert [call for _, call in site.store.calls if not call.extend] == []
    assert site.counts == {"lost": 2}
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == (
        f"{QUEUE}: the lease of message m1 is lost (pop_receipt_mismatch), another worker may handle it again; "
        "new leases last 90 s"
    )
    assert len(lines) == 2


@pytest.mark.parametrize(("lease_s", "after"), [(LEASE_S, 500.0), (100.5, 0.5), (99.0, 0.0)])
@simulated
async def test_a_message_that_cannot_be_concluded_comes_back_with_its_lease(
    lease_s: float, after: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A poison queue that breaks: it is held no longer, looked for when its lease ends, and its slot is free."""
    site = Site(bury, visibility=lease_s)
    site.store.breaks = 100, ZeroDivisionError()
    site.holding.set_store_call_timeout(1000)
    site.work(message())
    await pass_time(101)
    assert (len(site.holding), site.holding.running, site.holding.renewals.deadline()) == (0, 0, None)
    assert site.told("back") == [(100.0, after)]
    assert site.told("room") == [(100.0,)]
    assert (site.store.calls, site.counts) == ([], {})
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.getMessage().startswith(f"{QUEUE}: unexpected error after handling")
    assert line.exc_info


@pytest.mark.parametrize("away", ["silent", "refuses"])
@pytest.mark.parametrize(
    ("allowed", "hurried_at", "ends"), [(None, None, 10.0), (3.0, None, 3.0), (None, 0.0, 3.0), (None, 4.0, 7.0)]
)
@simulated
async def test_a_store_that_is_away_holds_up_no_stop(
    away: str, allowed: float | None, hurried_at: float | None, ends: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The last settlements get one store call's time, 3 s once told to hurry; not the ten minutes of a lease."""
    site, hurry = Site(done), asyncio.Event()
    if away == "silent":
        site.store.seconds = 1e6
    else:
        site.store.script = [StoreUnavailable("away")] * 10_000
    if allowed is not None:
        site.holding.set_store_call_timeout(allowed)
    site.work(*several(3))
    await site.holding.drain(60)
    began = now()
    if hurried_at is not None:
        asyncio.get_running_loop().call_later(hurried_at, hurry.set)
    await site.holding.finish(hurry)
    assert now() - began == pytest.approx(ends, abs=0.001)
    calls = len(site.store.calls)
    left = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
    assert left == set()
    await pass_time(LEASE_S)
    assert (len(site.store.calls), site.store.busy) == (calls, 0), "nothing goes on behind it"
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert lines == [f"{QUEUE}: 3 messages could not be settled in time; they come again when their leases end"]


@simulated
async def test_a_message_that_came_with_a_wake_is_accepted_soon() -> None:
    """After 0.1 s it is leased for as long as others are, and its own lease counts as it was told until then (O7)."""
    site = Site(hang, visibility=60.0)
    site.holding.traceparent = "00-1-2-01"
    held = site.holding.take_carried(message(), 1002.0, "trigger")
    other = site.holding.take_carried(message(2), 1002.0, "sweep")
    assert (held.traceparent, other.traceparent, held.source) == ("00-1-2-01", None, "trigger")
    assert site.holding.lease_ends() == [1002.0, 1002.0]
    assert site.holding.renewals.deadline() == pytest.approx(1000.1)
    await pass_time(0.1)
    site.holding.renew(1000.1)
    await pass_time(0)
    await pass_time(0)
    assert [item.visibility_s for _, call in site.store.calls for item in call.extend] == [60.0, 60.0]
    site.holding.give_back([held, other])
    await site.end()


def cancel_others() -> None:
    """Cancel every task but the one that runs."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if task.get_name().startswith(("handle[", "still-running[")):
            task.cancel()


@pytest.mark.parametrize("batches", [False, True])
@simulated
async def test_a_handler_that_somebody_cancels_before_its_first_step_is_given_back(batches: bool) -> None:
    """When its lease would be renewed: nobody handles it. Its slot is free again, and a stop waits for nothing."""
    site = Site(batch(done) if batches else done)
    site.holding.start(site.take(*several(2)))
    cancel_others()
    await site.holding.drain(LEASE_S)
    assert now() < 1.0 and site.holding.free() == 0
    await pass_time(LEASE_S / 2 + 1)
    site.holding.renew(asyncio.get_running_loop().time())
    await pass_time(1)
    assert (site.holding.free(), site.counts["given_back"], len(site.holding)) == (2, 2, 0)
    await site.end()


@pytest.mark.parametrize("somebody", [True, False])
@simulated
async def test_a_lease_that_is_lost_before_the_first_step_frees_the_slot(somebody: bool) -> None:
    """Whoever cancelled the handler: somebody else, or the loss in the turn of its start."""
    site = Site(done)
    (held,) = site.take(message())
    site.store.seconds, site.store.script = 1.0, [refusing("extend")]
    await pass_time(LEASE_S / 2 + 1)
    site.holding.renew(asyncio.get_running_loop().time())
    await pass_time(0.5)
    site.holding.start([held])
    if somebody:
        cancel_others()
    else:
        site.holding._lease_lost(held, NOT_FOUND)
    await pass_time(LEASE_S)
    assert (site.holding.running, site.holding.free(), len(site.holding)) == (0, 2, 0)
    await site.end()


@simulated
async def test_the_count_of_an_attempt_takes_no_slot_and_frees_none() -> None:
    """Its call runs on and has the slot; somebody cancels the task before its first step."""
    stubborn = Stubborn()
    site = Site(stubborn, timeout=1.0)
    site.cancels = True
    site.work(message())
    await pass_time(LEASE_S / 2 + 1)
    assert (len(site.holding), site.holding.free(), site.store.named()) == (1, 1, [])
    site.holding.renew(asyncio.get_running_loop().time())
    await pass_time(1)
    assert (site.holding.free(), site.counts["given_back"], len(site.holding)) == (1, 1, 0)
    stubborn.release.set()
    await site.end()
    assert site.holding.free() == 2


@pytest.mark.parametrize(("waiting", "free"), [(8, 2), (9, 1), (10, 0), (11, 0)])
@simulated
async def test_a_long_tail_of_settlements_takes_slots(waiting: int, free: int) -> None:
    """What waits beyond four times the slots counts against them, and room is told when it is settled."""
    site = Site(done)
    site.store.seconds = 1.0
    helds = site.take(*several(4 * 32 + waiting))
    site.holding.give_back(helds)
    await pass_time(0.5)
    assert (site.holding.free(), site.holding.count_free()) == (free, free)
    await pass_time(2)
    assert bool(site.told("room")) is (waiting > 8)
    assert (site.holding.free(), site.counts["given_back"]) == (2, 4 * 32 + waiting)
