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

from bridge.contract.burial import opened
from bridge.contract.errors import BadInput, StoreUnavailable
from bridge.queues.base import (
    Claim,
    Extend,
    NewMessage,
    PutReceipt,
    Release,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
)
from listeners.core import settle
from listeners.core.jobs import JobCounts
from listeners.core.retry_policy import RetryPolicy
from listeners.core.settle import Outcome, Succeeded
from listeners.handler import Bury, Message, Replay, Retry, batch
from listeners.work.held import Act, Held
from listeners.work.holding import Holding, Rules
from listeners.work.invoke import Invoker
from listeners.work.retry_until import NoLongerWanted
from tests.listeners.rig import POISON, QUEUE
from tests.listeners.work.test_settlements import NOON, Scripted, now
from tests.support.sim_loop import pass_time, simulate, simulated

LEASE_S = 600.0
NOT_FOUND = "message_not_found"


class Store(Scripted):
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
        self.store = Store(**capabilities)
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
        site.holding.allow(allowed)
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
    assert lines == [f"{QUEUE}: 3 messages are left to their leases"]


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


@pytest.mark.parametrize(("seconds", "hurried"), [(0.0, False), (9.9, False), (2.9, True)])
@simulated
async def test_a_store_that_answers_is_waited_for(
    seconds: float, hurried: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as its answer takes and no longer, and nothing is said of messages that are left."""
    site, hurry = Site(done), asyncio.Event()
    site.store.seconds = seconds
    site.work(message())
    await site.holding.drain(60)
    if hurried:
        hurry.set()
    began = now()
    named: set[str] = set()

    def look() -> None:
        named.update(task.get_name() for task in asyncio.all_tasks())

    asyncio.get_running_loop().call_soon(look)
    await site.holding.finish(hurry)
    assert now() - began == pytest.approx(seconds, abs=0.001)
    assert {f"settle-last[{QUEUE}]", "hurry"} <= named
    assert (len(site.holding), site.counts["handled"]) == (0, 1)
    assert caplog.records == []


@simulated
async def test_a_stop_that_is_cancelled_leaves_nothing_running() -> None:
    """Whoever waits for the last settlements may be cancelled, too: their calls are cut off with it."""
    site = Site(done)
    site.store.seconds = 1e6
    site.work(message())
    await site.holding.drain(60)
    finishing = asyncio.create_task(site.holding.finish(asyncio.Event()), name="finish")
    await pass_time(1)
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert site.store.cut == 1
    assert {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}} == set()


@pytest.mark.parametrize(
    ("work_s", "grace", "waited"),
    [(3.0, 10.0, 3.0), (30.0, 10.0, 10.0), (30.0, 0.0, 0.0), (0.25, 0.5, 0.25), (30.0, 0.5, 0.5)],
)
@simulated
async def test_handlers_have_the_grace_and_no_more(work_s: float, grace: float, waited: float) -> None:
    """Whoever waits goes on as soon as the last one ended, or when the time is over."""

    async def work(_: Message) -> None:
        await pass_time(work_s)

    site = Site(work)
    site.work(*several(2))
    await site.holding.drain(grace)
    assert now() == waited
    await site.end()


@pytest.mark.parametrize("counts", [True, False])
@simulated
async def test_what_is_aborted_is_given_back(counts: bool, caplog: pytest.LogCaptureFixture) -> None:
    """At once where the handler ended or never began; where it goes on only when its lease ends, uncounted."""
    release = asyncio.Event()

    async def stubborn(given: Message) -> None:
        if given.id == "m1":
            await pass_time(1e6)
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    site = Site(stubborn, concurrency=3, uncounted_release=counts)
    site.work(message(1), message(2))
    await pass_time(5)
    site.work(message(3))  # has not made its first step when it is cancelled
    await site.holding.abort()
    assert now() == 6.0, "one that swallows its cancellation is left behind after a second"
    assert site.holding.deadline() == (None if counts else 1300.0)
    await site.holding.finish(asyncio.Event())
    sent = {item.id: (item.after_ms, item.uncounted) for _, call in site.store.calls for item in call.release}
    assert sent == {
        "m1": (0, counts),
        "m3": (0, counts),
        **({"m2": (594_000, True)} if counts else {}),
    }
    assert site.counts["given_back"] == len(sent)
    release.set()
    assert site.told("back") == [(5.0, 0.0), (6.0, 0.0), *([(6.0, 594.0)] if counts else [])]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert lines[0] == f"{QUEUE}: handle[{QUEUE}]#2 does not end"


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


@pytest.mark.parametrize("seconds", [0.0, 3.0])
@simulated
async def test_a_handler_that_ends_well_when_it_is_cancelled_has_done_its_work(seconds: float) -> None:
    """Its message is deleted, and not given back beside that, however long the delete takes."""

    async def tidy(_: Message) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await pass_time(1e6)

    site = Site(tidy)
    site.store.seconds = seconds
    (held,) = site.work(message())
    await pass_time(5)
    await site.holding.abort()
    await site.holding.finish(asyncio.Event())
    assert [call for _, call in site.store.calls] == [Settlement([Claim("m1", "r1")], [], [])]
    assert not site.holding.runs(held.task)


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
    assert [record.getMessage() for record in caplog.records] == [f"{QUEUE}: handle[{QUEUE}]#1 does not end"]


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


@simulated
async def test_calls_left_in_their_threads_are_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """They take their slots until they end, and an abort says how many there are and whose they are."""
    site = Site(done)
    threads: list[concurrent.futures.Future[Any]] = [concurrent.futures.Future() for _ in range(2)]
    for thread in threads:
        site.holding._lingering.add(thread, [])
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
    assert line.startswith(f"{QUEUE}: the handler {__name__}:done does not end; ")
    assert "left: 2." in line


def test_a_thread_that_outlives_its_loop_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Its listener has stopped and nobody counts its slot any more: that it ends is no fault."""
    thread: concurrent.futures.Future[Any] = concurrent.futures.Future()

    async def story() -> None:
        Site(done).holding._lingering.add(thread, [])

    simulate(story())
    thread.set_result(None)
    assert caplog.records == []


@pytest.mark.parametrize("batches", [False, True])
@simulated
async def test_a_thread_that_takes_too_long_keeps_its_slot(batches: bool) -> None:
    """Its attempt is over at the time-out; slot and message are free when the thread ends, for a batch as for one."""

    def work(_: Any) -> None:
        raise AssertionError("never called: the thread is ours")

    site = Site(batch(work) if batches else work, timeout=5.0)
    thread: concurrent.futures.Future[Any] = concurrent.futures.Future()
    thread.set_running_or_notify_cancel()
    threads: Any = Threads(thread)
    site.invoker._threads = threads
    site.work(message())
    await pass_time(5.2)
    assert (site.holding.running, site.holding.busy, site.holding.free()) == (0, 1, 1)
    assert (site.counts["retried"], len(site.holding)) == (1, 1)
    thread.set_result(None)
    await pass_time(0.1)
    assert len(site.holding) == 0
    assert (site.holding.busy, site.holding.free()) == (0, 2)


class Threads:
    """Threads of which only one call is known, which ends when the test says so."""

    def __init__(self, thread: concurrent.futures.Future[Any]) -> None:
        self.thread = thread

    def submit(self, _: Callable[[], object]) -> concurrent.futures.Future[Any]:
        return self.thread


# Slots ---------------------------------------------------------------------------------------------------------------


@simulated
async def test_a_handler_takes_a_slot_until_it_ends_and_settling_takes_none() -> None:
    """Room is told once for all that end in one turn; each task has a name."""

    async def work(given: Message) -> None:
        await pass_time(5 if given.id != "m3" else 8)

    site = Site(work, concurrency=4)
    site.store.seconds = 2.0
    site.holding.start([])
    assert (site.holding.running, site.holding.free()) == (0, 4)
    taken = site.work(*several(3))
    assert [held.number for held in taken] == [1, 2, 3]
    assert (site.holding.running, site.holding.busy, site.holding.free(), len(site.holding)) == (3, 3, 1, 3)
    names = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
    assert names == {f"handle[{QUEUE}]#{number}" for number in (1, 2, 3)}
    assert site.holding.runs(taken[0].task)
    assert not site.holding.runs(asyncio.current_task()) and not site.holding.runs(None)
    await pass_time(5.5)
    assert (site.holding.free(), site.holding.count_free(), len(site.holding)) == (3, 3, 3)
    assert not site.holding.runs(taken[0].task)
    await pass_time(10)
    assert [at for (at,) in site.told("room")] == [5.0, 8.0]
    assert [at for (at,) in site.told("acknowledged")] == [7.0, 7.0, 10.0]
    assert (site.counts["handled"], len(site.holding), site.holding.lease_ends()) == (3, 0, [])


@simulated
async def test_handlers_that_start_later_take_slots_beside_those_that_run() -> None:
    """All that run count, whenever they began; each that ends frees one."""

    async def work(given: Message) -> None:
        await pass_time(5 if given.id == "m4" else 9)

    site = Site(work, concurrency=5)
    site.work(*several(3))
    await pass_time(1)
    site.work(message(4))
    assert (site.holding.running, site.holding.free()) == (4, 1)
    await pass_time(6)
    assert (site.holding.running, site.holding.free()) == (3, 2)
    await pass_time(6)
    assert (site.holding.running, site.holding.free()) == (0, 5)


@simulated
async def test_no_room_is_told_of_where_none_was_short() -> None:
    """What is given back without a handler frees no slot; a listener that never saw a tail need not look."""
    site = Site(done)
    site.holding.give_back(site.take(*several(2)))
    await pass_time(1)
    assert (site.counts["given_back"], site.told("room")) == (2, [])


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


@simulated
async def test_a_batch_is_one_task_over_all_its_slots() -> None:
    """It is named after its first message, takes a slot for each, and frees those that are done."""
    seen: list[list[str]] = []

    @batch
    async def work(messages: list[Message]) -> list[Any]:
        seen.append([each.id for each in messages])
        await pass_time(5)
        return [None, Retry(7), Bury("no such customer")]

    site = Site(work, concurrency=4)
    taken = site.work(*several(3))
    assert len({held.task for held in taken}) == 1
    assert taken[0].task is not None
    assert taken[0].task.get_name() == f"handle[{QUEUE}]#1+"
    assert (site.holding.running, site.holding.free()) == (3, 1)
    await pass_time(6)
    assert (site.holding.running, seen) == (0, [["m1", "m2", "m3"]])
    assert site.store.calls == [
        (5.0, Settlement([Claim("m1", "r1")], [Release("m2", "r2", 7000)], [])),
        (5.0, Settlement([Claim("m3", "r3")], [], [])),
    ]
    assert site.told("back") == [(5.0, 7.0)]
    assert site.counts == {"handled": 1, "retried": 1, "buried": 1, "given_back": 0}
    assert site.told("moved") == [(5.0, POISON, 0)]
    assert site.holding.last_burial == "m3: no such customer"


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
async def test_what_is_lost_while_it_waits_for_its_key_is_not_asked_for_again() -> None:
    """It is somebody else's: its slot is free with the next answer, and the others of its batch go on waiting."""
    keys = Keys([Succeeded(), None, None], [Succeeded()])
    site = Site(never, concurrency=4, once=keys)
    _, lost, _ = site.work(*several(3))
    await pass_time(2)
    site.store.script = [refusing("extend")]
    site.holding._settlements.add(Act.EXTEND, lost, LEASE_S)
    await pass_time(4)
    assert (site.holding.running, site.counts["lost"]) == (1, 1)
    await pass_time(5)
    assert keys.asked == [["m1", "m2", "m3"], ["m3"]]
    assert (site.holding.running, site.counts["handled"], len(site.holding)) == (0, 2, 0)


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
async def test_leases_are_renewed_at_half_of_their_time() -> None:
    """Counted from before the receive left; a message that is concluded is renewed no more, a renewal is told."""
    site = Site(hang, visibility=60.0)
    await pass_time(4)
    (held,) = site.holding.take([message()], 1000.0, 60.0, "trigger")
    site.holding.start([held])
    assert (held.lease_ends, site.holding.lease_ends(), site.holding.deadline()) == (1060.0, [1060.0], 1030.0)
    site.holding.renew(1029.9)
    await pass_time(26)
    assert site.store.calls == []
    site.store.seconds = 1.0
    site.holding.renew(1030.0)
    await pass_time(2)
    assert site.store.calls == [(30.0, Settlement([], [], [Extend("m1", "r1", 60.0)]))]
    assert (held.receipt, held.lease_ends, site.holding.deadline()) == ("r1'", 1090.0, 1060.0)
    assert site.told("renewals") == [(31.0,)]
    await site.end()
    assert site.holding.deadline() is None


@simulated
async def test_a_message_that_came_with_a_wake_is_accepted_soon() -> None:
    """After 0.1 s it is leased for as long as others are, and its own lease counts as it was told until then (O7)."""
    site = Site(hang, visibility=60.0)
    site.holding.traceparent = "00-1-2-01"
    held = site.holding.take_carried(message(), 1002.0, "trigger")
    other = site.holding.take_carried(message(2), 1002.0, "sweep")
    assert (held.traceparent, other.traceparent, held.source) == ("00-1-2-01", None, "trigger")
    assert site.holding.lease_ends() == [1002.0, 1002.0]
    assert site.holding.deadline() == pytest.approx(1000.1)
    await pass_time(0.1)
    site.holding.renew(1000.1)
    await pass_time(0)
    await pass_time(0)
    assert [item.visibility_s for _, call in site.store.calls for item in call.extend] == [60.0, 60.0]
    site.holding.give_back([held, other])
    await site.end()


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
    assert (len(site.holding), site.counts["lost"], site.holding.deadline()) == (0, 2, None)
    assert site.holding.visibility.seconds == 90.0
    assert site.told("back") == [(30.0, 0.0), (30.0, 0.0)]
    assert sorted(ended) == ([] if batches else ["m1", "m2"]), "the rest of a batch is not lost with it"
    assert site.holding.running == (2 if batches else 0)
    await pass_time(100)
    assert [call for _, call in site.store.calls if not call.extend] == []
    assert site.counts == {"lost": 2}
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == (
        f"{QUEUE}: the lease of message m1 is lost (pop_receipt_mismatch); what follows is leased for 90 s"
    )
    assert len(lines) == 2


@simulated
async def test_a_renewal_that_comes_after_the_handler_is_the_last() -> None:
    """The message waits for its delete only: no more renewal of it is due, and nobody is told of one."""

    async def work(_: Message) -> None:
        await pass_time(1)

    site = Site(work)
    site.store.seconds = 3.0
    site.work(message())
    site.holding.renew(1300.0)
    await pass_time(4)
    assert site.store.named() == [([], [], ["m1"]), (["m1"], [], [])]
    assert (site.holding.deadline(), site.told("renewals")) == (None, [])
    await pass_time(4)
    assert (site.holding.deadline(), site.counts["handled"]) == (None, 1)


@pytest.mark.parametrize("broken", [ZeroDivisionError(), BadInput("too_large", "no"), None])
@simulated
async def test_a_renewal_that_breaks_behind_a_delete_loses_nothing(broken: Exception | None) -> None:
    """The message was handled and its delete waits: it is counted once, as what the delete makes of it."""

    async def work(_: Message) -> None:
        await pass_time(1)

    site = Site(work)
    site.store.seconds = 3.0
    site.store.script = [refusing("extend") if broken is None else broken]
    site.work(message())
    site.holding.renew(1300.0)
    await pass_time(7)
    assert site.store.named() == [([], [], ["m1"]), (["m1"], [], [])]
    assert (site.counts, site.told("back")) == ({"handled": 1}, [])
    assert site.holding.visibility.seconds == LEASE_S


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
async def test_a_lease_lost_before_its_handler_began_leaves_no_task() -> None:
    """Its first step never comes, and nobody waits for it at the end."""
    site = Site(hang)
    (held,) = site.take(message())
    site.store.script = [refusing("extend")]
    site.holding.renew(1300.0)
    await pass_time(0)
    site.holding.start([held])
    while len(site.holding):
        await asyncio.sleep(0)
    await pass_time(0)
    assert held.task.cancelled() and not site.holding.runs(held.task)


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


@simulated
async def test_what_is_refused_at_the_end_counts_as_lost() -> None:
    """A delete or release of a message that is somebody else's by now: nothing was handled, nothing given back."""
    for kind, handler in (("delete", done), ("release", retry_later)):
        site = Site(handler)
        site.store.script = [refusing(kind)]
        site.work(message())
        await pass_time(1)
        assert site.counts["lost"] == 1
        assert site.counts["handled"] + site.counts["given_back"] == 0
        assert (len(site.holding), site.told("acknowledged")) == (0, [])


async def retry_later(_: Message) -> None:
    raise Retry(7)


# What handlers decide ------------------------------------------------------------------------------------------------


class Odd(Exception):
    """No listener knows it."""


async def fail(_: Message) -> None:
    raise Odd("no such luck")


async def bury(_: Message) -> None:
    raise Bury("no such customer")


async def replay(_: Message) -> None:
    raise Replay(after=3, queue="billing/again")


def undecodable(body: bytes) -> object:
    raise UnicodeDecodeError("utf-8", body, 0, 1, "no")


def breaking(body: bytes) -> object:
    raise Odd("a rule of the payload")


@pytest.mark.parametrize(
    ("handler", "options", "attempt", "counts", "sent", "put"),
    [
        (done, {}, 5, "handled", None, []),
        (done, {}, 6, "buried", None, [POISON]),
        (done, {"uncounted_release": False}, 15, "handled", None, []),
        (done, {"uncounted_release": False}, 16, "buried", None, [POISON]),
        (done, {"poison": None}, 60, "handled", None, []),
        (retry_later, {}, 4, "retried", 7.0, []),
        (retry_later, {}, 5, "buried", None, [POISON]),
        (retry_later, {"poison": None}, 9, "retried", 7.0, []),
        (retry_later, {"max_attempts": 0}, 9, "retried", 7.0, []),
        (fail, {}, 1, "retried", 0.5, []),
        (fail, {}, 3, "retried", 18.0, []),
        (fail, {}, 5, "buried", None, [POISON]),
        (bury, {}, 1, "buried", None, [POISON]),
        (bury, {"poison": None}, 1, "retried", 30.0, []),
        (replay, {}, 1, "replayed", None, ["billing/again"]),
        (done, {"decode": undecodable}, 1, "buried", None, [POISON]),
        (done, {"decode": undecodable, "poison": None}, 1, "handled", None, []),
        (done, {"decode": breaking}, 1, "retried", 0.5, []),
        (done, {"decode": breaking}, 5, "buried", None, [POISON]),
    ],
)
@simulated
async def test_what_becomes_of_a_message(
    handler: Callable[[Any], object],
    options: dict[str, Any],
    attempt: int,
    counts: str,
    sent: float | None,
    put: list[str],
) -> None:
    """One fate, counted once, by one settlement: deleted, or released for as long as was decided."""
    site = Site(handler, **options)
    (held,) = site.work(message(attempt=attempt))
    await pass_time(1)
    assert {name: count for name, count in site.counts.items() if count} == {counts: 1}
    ((at, call),) = site.store.calls
    assert (at, len(call.delete), [item.after_ms / 1000 for item in call.release]) == (
        0.0,
        0 if sent is not None else 1,
        [] if sent is None else [sent],
    )
    assert not any(item.uncounted for item in call.release), "it was tried"
    assert [queue for queue, _ in site.store.puts] == put
    assert [queue for _, queue, _ in site.told("moved")] == put
    assert site.told("back") == ([] if sent is None else [(0.0, sent)])
    assert (held.concluded, site.holding.deadline(), len(site.holding)) == (True, None, 0)


@simulated
async def test_a_handler_cancelled_from_outside_gives_back_what_it_had() -> None:
    """At once and uncounted, for it has not had its say; whoever cancelled it sees it end."""
    site = Site(hang)
    (held,) = site.work(message())
    await pass_time(1)
    held.task.cancel()
    await asyncio.wait([held.task])
    assert held.task.cancelled()
    await pass_time(1)
    assert [item for _, call in site.store.calls for item in call.release] == [Release("m1", "r1", 0, True)]
    assert (site.counts["given_back"], site.holding.running, site.holding.deadline()) == (1, 0, None)


@pytest.mark.parametrize(("lease_s", "after"), [(LEASE_S, 500.0), (100.5, 0.5), (99.0, 0.0)])
@simulated
async def test_a_message_that_cannot_be_concluded_comes_back_with_its_lease(
    lease_s: float, after: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A poison queue that breaks: it is held no longer, looked for when its lease ends, and its slot is free."""
    site = Site(bury, visibility=lease_s)
    site.store.breaks = 100, ZeroDivisionError()
    site.holding.allow(1000)
    site.work(message())
    await pass_time(101)
    assert (len(site.holding), site.holding.running, site.holding.deadline()) == (0, 0, None)
    assert site.told("back") == [(100.0, after)]
    assert site.told("room") == [(100.0,)]
    assert (site.store.calls, site.counts) == ([], {})
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.getMessage().startswith(f"{QUEUE}: a message could not be concluded")
    assert line.exc_info


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


@simulated
async def test_a_payload_that_breaks_is_told_with_its_message_and_fault(caplog: pytest.LogCaptureFixture) -> None:
    """The line names message, queue and attempt, what was wrong and what follows: nobody else will say it."""
    site = Site(done, decode=breaking)
    site.work(message(7, attempt=2))
    await pass_time(1)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"message m7 of {QUEUE}, attempt 2: ")
    assert "a rule of the payload" in line
    assert line.endswith("; next in about 3 s, as attempt 3 of 5")


@simulated
async def test_without_a_wake_of_which_anything_is_known_a_burial_has_no_trace() -> None:
    """No trace context at all, and not an empty one, which nobody could read."""
    site = Site(bury)
    (held,) = site.work(message())
    await pass_time(1)
    assert held.traceparent is None
    ((_, put),) = site.store.puts
    facts, _ = opened(put.body)
    assert facts.traceparent is None
