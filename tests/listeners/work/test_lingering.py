"""Handlers that hang: one call a message and worker, attempts that count, and a worker that says so."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable
from typing import Any

import pytest

from bridge.contract.errors import HandlersStuck
from bridge.contract.wire import ListenerHeartbeat, Starved
from listeners import PULL_ONLY, Listener, Pool
from listeners.core.retry_policy import RetryPolicy
from listeners.handler import Message, batch
from listeners.work.holding import IN_VAIN
from tests.listeners.rig import POISON, QUEUE, Store, listening, settled
from tests.listeners.work.test_holding import Site, message
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulated

STEADY = RetryPolicy(attempts=5, first_s=1.0, factor=1.0, ceiling_s=1.0, jitter=0.0)


class Hanging:
    """Stands for the threads of all workers: a call that is given `hang` runs until the test lets it return."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.calls: list[concurrent.futures.Future[Any]] = []

    def __call__(self, _: int) -> Hanging:
        return self

    def submit(self, call: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        given = call.args[-1]  # type: ignore[attr-defined]
        texts = [each.text() for each in (given if isinstance(given, list) else [given])]
        self.began += texts
        if any(text.startswith("hang") for text in texts):
            self.calls.append(future)
        else:
            future.set_result(call())
        return future

    @property
    def running(self) -> int:
        return sum(not call.done() for call in self.calls)

    def close(self) -> None:
        pass


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Hanging:
    """Replace the threads of plain functions."""
    threads = Hanging()
    monkeypatch.setattr("listeners.work.invoke.HandlerThreads", threads)
    return threads


def work(_: Message) -> None:
    """Return at once."""


@batch
def work_all(_: list[Message]) -> None:
    """Return at once."""


@simulated
async def test_a_message_that_hangs_ends_as_a_dead_letter_and_costs_one_slot(threads: Hanging) -> None:
    """What lies behind it is handled, although each of its attempts would have taken a slot."""
    store = Store()
    await store.fill(b"hang", *(b"good %d" % number for number in range(20)))
    async with listening(store, work, concurrency=4, handler_timeout=2.0, retry=STEADY) as listener:
        await settled(listener, 1, "buried")
        await settled(listener, 20)
        figures = listener.state().queues[QUEUE]
        assert (figures.hung_handlers, figures.free) == (1, 3)
        (burial,) = await store.burials()
        threads.calls[0].set_result(None)
    assert threads.began.count("hang") == 1
    assert (burial.attempts, burial.error) == (5, "HandlerTimeout")
    assert burial.reason == f"attempt 5 of 5: {IN_VAIN}"
    assert [attempt.attempt for attempt in burial.history] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("options", [{"concurrency": 3}, {"pool": Pool(3)}])
@simulated
async def test_messages_that_hang_end_as_dead_letters_where_no_slot_is_left(
    threads: Hanging, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Their worker says so once, counts their attempts, and goes on as soon as a thread returns."""
    store = Store()
    await store.fill(b"hang 1", b"hang 2", b"hang 3", b"good")
    async with listening(store, work, handler_timeout=2.0, retry=STEADY, **options) as listener:
        await settled(listener, 3, "buried")
        assert sorted(await store.bodies(POISON)) == [b"hang 1", b"hang 2", b"hang 3"]
        assert listener.state().queues[QUEUE].free == 0
        assert listener.state().queues[QUEUE].handled == 0
        threads.calls.pop().set_result(None)
        await settled(listener, 1)
        for thread in threads.calls:
            thread.set_result(None)
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert said.getMessage().startswith(f"{QUEUE}: every handler slot is held by a call of {__name__}:work that ran ")
    assert "handler slots are free again" in caplog.text


@simulated
async def test_a_worker_that_was_told_to_ends_where_no_slot_is_left(threads: Hanging) -> None:
    """Its supervisor restarts it; the messages go back to the queue with the attempt counted."""
    store = Store()
    await store.fill(b"hang", b"good")
    listener = Listener(
        store, QUEUE, work, bridge=PULL_ONLY, concurrency=1, handler_timeout=2.0, end_when_stuck=True, grace=1.0,
        handle_signals=False,
    )  # fmt: skip
    with pytest.raises(HandlersStuck, match=f"{QUEUE}: every handler slot"):
        await listener.run()
    assert listener.unended() == 1
    await pass_time(2)
    assert {(each.body, each.dequeue_count) for each in await store.peek(QUEUE, 8)} == {(b"good", 0), (b"hang", 1)}


@simulated
async def test_the_other_queues_of_a_pool_whose_slots_are_all_held_are_named(
    threads: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log and in heartbeats with the queue that holds them, until a call returns; who was told to ends."""
    store, bridge, pool = Store(), FakeBridge(), Pool(2)
    await store.fill(b"hang 1", b"hang 2")
    await store.fill(b"good", queue="a/other")
    options: dict[str, Any] = {"handler_timeout": 2.0, "retry": STEADY, "pool": pool}
    told = Listener(store, "a/told", work, bridge=PULL_ONLY, end_when_stuck=True, handle_signals=False, **options)
    running = asyncio.create_task(told.run())
    async with listening(store, work, [QUEUE, "a/other"], bridge=bridge, **options) as listener:
        await bridge.until(ListenerHeartbeat)
        bridge.wake(QUEUE)
        await settled(listener, 2, "buried")
        bridge.wake("a/other")
        why = f"no free slot: 2 of 2 held by timed-out handlers of queue {QUEUE}"
        with pytest.raises(HandlersStuck, match=f"a/told: {why}"):
            async with asyncio.timeout(60):
                await running
        await pass_time(20)
        beats = bridge.beats[-1].queues
        assert (beats["a/other"].hung, beats["a/other"].starved) == (0, Starved(2, [QUEUE]))
        assert (beats[QUEUE].hung, beats[QUEUE].starved) == (2, None)
        assert f"a/other: {why}" in caplog.text
        threads.calls[0].set_result(None)
        await settled(listener, 1, queue="a/other")
        await pass_time(20)
        assert bridge.beats[-1].queues["a/other"].starved is None
        assert "a/other: handler slots are free again" in caplog.text
        threads.calls[1].set_result(None)


@pytest.mark.parametrize("handler", [work, work_all])
@simulated
async def test_a_thread_that_returns_late_gives_its_messages_back(threads: Hanging, handler: Any) -> None:
    """For what was left of the pause; they are handled again then, here or elsewhere."""
    store = Store()
    await store.fill(b"hang")
    policy = RetryPolicy(first_s=10.0, jitter=0.0)
    async with listening(store, handler, handler_timeout=2.0, retry=policy) as listener:
        await settled(listener, 1, "retried")
        assert len(threads.began) == 1
        await pass_time(4)
        began = asyncio.get_running_loop().time()
        threads.calls.pop().set_result(None)
        while len(threads.began) < 2:
            await pass_time(0.01)
        assert 5.9 <= asyncio.get_running_loop().time() - began <= 6.2
        threads.calls.pop().set_result(None)


@simulated
async def test_others_may_take_what_hangs_here_while_this_worker_could_take_it_again() -> None:
    """It is released after its pause, and received again by the same worker it fails without a second thread."""
    began: list[str] = []

    async def handle(given: Message) -> None:
        began.append(given.id)

    site = Site(handle)
    site.elsewhere = True
    thread: concurrent.futures.Future[Any] = concurrent.futures.Future()
    site.holding._lingering.add(thread, ["m1"])
    site.work(message(attempt=2))
    await pass_time(0)
    assert (site.holding.running, site.store.calls) == (0, [])
    await pass_time(5)
    ((_, settlement),) = site.store.calls
    assert [(each.id, each.uncounted) for each in settlement.release] == [("m1", False)]
    assert (began, site.told("hung")) == ([], [(1,)])
    thread.set_result(None)
    await pass_time(0)
    site.work(message(attempt=3))
    await pass_time(0)
    assert (began, site.told("hung")) == (["m1"], [(1,), (0,)])


@simulated
async def test_what_is_parked_goes_back_when_the_listener_stops() -> None:
    """Its attempt counts; one whose lease was lost meanwhile is not settled at all."""
    site = Site(work)
    thread: concurrent.futures.Future[Any] = concurrent.futures.Future()
    site.holding._lingering.add(thread, ["m1", "m2"])
    lost, _ = site.work(message(1), message(2))
    await pass_time(0.1)
    site.holding._lose(lost, "lease_ended")
    await site.end()
    ((_, settlement),) = site.store.calls
    assert [(each.id, each.uncounted) for each in settlement.release] == [("m2", False)]
    await pass_time(1000)
    assert len(site.store.calls) == 1


@pytest.mark.parametrize("sessions", [1, 2])
@simulated
async def test_a_worker_asks_others_only_where_its_bridge_has_other_sessions(threads: Hanging, sessions: int) -> None:
    """Alone it counts the attempts by itself; its heartbeat reports the slot that is held."""
    store, bridge = Store(), FakeBridge()
    bridge.sessions = sessions
    await store.fill(b"hang")
    async with listening(store, work, bridge=bridge, concurrency=2, handler_timeout=2.0, retry=STEADY) as listener:
        await bridge.until(ListenerHeartbeat)
        bridge.wake(QUEUE)
        await settled(listener, 1, "retried")
        await pass_time(60)
        assert bridge.beats[-1].queues[QUEUE].hung == 1
        (burial,) = await store.burials()
        assert [attempt.attempt for attempt in burial.history] == [1, 2, 3, 4, 5]
        assert (store.receives > 1) == (sessions == 2), "the other one might have had it"
        threads.calls[0].set_result(None)
    assert threads.began == ["hang"]


class Stubborn:
    """A coroutine that swallows each cancellation of a message `stays` until the test lets it go."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.cancelled: list[float] = []
        self.began = 0

    async def __call__(self, message: Message) -> None:
        self.began += message.text() == "stays"
        while message.text() == "stays" and not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                self.cancelled.append(asyncio.get_running_loop().time())


@pytest.mark.parametrize("plain", [False, True])
@simulated
async def test_a_coroutine_that_outlives_its_cancellation_ends_as_a_dead_letter(plain: bool, threads: Hanging) -> None:
    """Its attempt fails a second after its time-out, and it keeps one slot, also where a plain callable made it."""
    store, stubborn = Store(), Stubborn()
    await store.fill(b"stays", b"good")
    handler: Any = (lambda message: stubborn(message)) if plain else stubborn
    began = asyncio.get_running_loop().time()
    async with listening(store, handler, concurrency=2, handler_timeout=2.0, retry=STEADY) as listener:
        await settled(listener, 1, "retried")
        assert 3.0 <= asyncio.get_running_loop().time() - began <= 3.1
        await settled(listener, 1, "buried")
        figures = listener.state().queues[QUEUE]
        assert (figures.handled, figures.hung_handlers, figures.free, figures.active_handlers) == (1, 1, 1, 0)
        assert (listener.unended(), stubborn.began, len(stubborn.cancelled)) == (1, 1, 1)
        (burial,) = await store.burials()
        stubborn.free.set()
        await pass_time(0.1)
        assert (listener.state().queues[QUEUE].free, listener.unended()) == (2, 0)
    assert burial.reason == f"attempt 5 of 5: {IN_VAIN}"
    assert [attempt.attempt for attempt in burial.history] == [1, 2, 3, 4, 5]


@simulated
async def test_a_worker_whose_coroutines_hold_every_slot_ends_within_its_grace() -> None:
    """It says so and stops if it was told to; the calls that are left are counted."""
    store, stubborn = Store(), Stubborn()
    await store.fill(b"stays", b"good")
    listener = Listener(
        store, QUEUE, stubborn, bridge=PULL_ONLY, concurrency=1, handler_timeout=2.0, end_when_stuck=True, grace=5.0,
        handle_signals=False,
    )  # fmt: skip
    began = asyncio.get_running_loop().time()
    with pytest.raises(HandlersStuck, match=f"{QUEUE}: every handler slot"):
        await listener.run()
    assert 8.0 <= asyncio.get_running_loop().time() - began <= 8.1, "time-out, one second, and the grace"
    assert listener.unended() == 1
    await pass_time(2)
    assert {(each.body, each.dequeue_count) for each in await store.peek(QUEUE, 8)} == {(b"good", 0), (b"stays", 1)}
    stubborn.free.set()
    await pass_time(0)


@pytest.mark.parametrize("late", ["returns", "raises"])
@simulated
async def test_a_coroutine_that_ends_within_its_last_second_has_the_last_word(
    late: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it cleans up counts as its attempt, with the outcome that it chose."""

    async def handle(_: Message) -> None:
        try:
            await pass_time(1000)
        except asyncio.CancelledError:
            await pass_time(0.9)
            if late == "raises":
                raise ValueError("rolled back") from None

    store = Store()
    await store.fill(b"slow")
    async with listening(store, handle, handler_timeout=2.0, retry=STEADY) as listener:
        await settled(listener, 1, "handled" if late == "returns" else "retried")
        assert listener.state().queues[QUEUE].hung_handlers == 0
    assert ("rolled back" in caplog.text) == (late == "raises")


@simulated
async def test_a_stop_in_the_moment_that_a_coroutine_ends_undoes_no_outcome() -> None:
    """Its attempt has succeeded although the task that waits for it was cancelled before it heard so."""
    ends = asyncio.Event()

    async def handle(_: Message) -> None:
        await ends.wait()
        asyncio.get_running_loop().call_soon(site.holding._tasks.copy().pop().cancel)

    site = Site(handle, timeout=5.0)
    site.work(message())
    await pass_time(0)
    ends.set()
    await pass_time(1)
    ((_, settlement),) = site.store.calls
    assert ([each.id for each in settlement.delete], settlement.release) == (["m1"], [])


@simulated
async def test_a_handler_with_a_time_out_may_stop_its_listener() -> None:
    """It runs in a task of its own, and the stop knows that it must not wait for it."""
    store = Store()
    await store.fill(b"last")

    async def handle(_: Message) -> None:
        await listener.stop()

    listener = Listener(store, QUEUE, handle, bridge=PULL_ONLY, handler_timeout=2.0, handle_signals=False)
    began = asyncio.get_running_loop().time()
    await listener.run()
    assert asyncio.get_running_loop().time() - began < 1, "it waited for its own handler"
    assert listener.state().queues[QUEUE].handled == 1
