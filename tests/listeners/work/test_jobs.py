"""What becomes of messages is counted in one place each, whatever a listener is and however an attempt ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from bridge import Bridge
from bridge.contract.errors import StoreUnavailable, UnknownOutcome
from bridge.contract.jobs import NO_JOBS, Jobs, plus
from bridge.observe.facts import JobsTold
from bridge.queues.base import NewMessage, Settlement, Settling
from bridge.storage.tables.memory import MemoryTable
from listeners import Bury, Ledger, Listener, Message, Pool, Replay, Retry, RetryPolicy, batch
from tests.listeners.rig import POISON, QUEUE, Store, hanging, listening
from tests.support.sim_loop import pass_time, simulated

OTHERS = "billing/others"
SCRIPT = [b"done"] * 5 + [b"retry"] * 4 + [b"fail"] * 3 + [b"bury"] * 2 + [b"hopeless"]
OUTCOMES = {"done": 12, "retried": 4, "failed": 4, "buried": 3}
"""What becomes of them where a message has two attempts."""
FAILURES = {"ValueError": 5, "poisoned": 2}
SHORT = RetryPolicy(attempts=2, first_s=0.1, ceiling_s=0.1)


def outcome(message: Message) -> None:
    """End as the body says: some succeed at their second attempt."""
    if message.body == b"bury":
        raise Bury("as it says")
    if message.body == b"hopeless" or (message.body == b"fail" and message.attempt == 1):
        raise ValueError(message.body)
    if message.body == b"retry" and message.attempt == 1:
        raise Retry(0.1)


class Finished(Exception):
    """Stands for a handler that returns."""


async def on_loop(message: Message) -> None:
    await asyncio.sleep(0.02)
    outcome(message)


def in_thread(message: Message) -> None:
    outcome(message)


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


async def worked(listener: Listener, attempts: int) -> None:
    """Wait until so many attempts have ended."""
    async with asyncio.timeout(3600):
        while sum(own(listener).outcomes.values()) < attempts:
            await asyncio.sleep(0.05)


Case = tuple[Callable[[Any], object], str, dict[str, Any]]
CASES: dict[str, Case] = {
    "on the loop": (on_loop, QUEUE, {}),
    "in threads": (in_thread, QUEUE, {}),
    "a pool": (on_loop, QUEUE, {"pool": Pool(3)}),
    "partitions": (on_loop, f"{QUEUE}:3", {}),
    "a ledger": (on_loop, QUEUE, {"ledger": "memory"}),
}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["own", "elsewhere"])
@pytest.mark.parametrize("case", CASES)
@simulated
async def test_bridge_and_worker_count_exactly_what_happened(case: str, elsewhere: bool) -> None:
    """Each ended attempt in one outcome and each failure in its class, with the time of handler and wait."""
    handler, queue, options = CASES[case]
    if "ledger" in options:
        options = {"ledger": Ledger(MemoryTable())}
    async with Bridge() as bridge:
        store: Any = Store() if elsewhere else bridge
        put = store.put if elsewhere else bridge.store.put
        async with listening(store, handler, queue, bridge=bridge, retry=SHORT, **options) as listener:
            for number, body in enumerate(SCRIPT):
                await put(listener.queues[number % len(listener.queues)], [NewMessage(body)])
            bridge.gap()
            await worked(listener, sum(OUTCOMES.values()))
        told, shown = summed(bridge, *listener.queues), own(listener)
        assert told == shown
        assert (shown.outcomes, shown.failures) == (OUTCOMES, FAILURES)
        assert (shown.in_flight, shown.leases_lost) == (0, 0)
        assert sum(shown.handling.counts) == sum(OUTCOMES.values())
        assert sum(shown.waiting.counts) == len(SCRIPT)


@simulated
async def test_of_a_batch_each_message_is_an_attempt() -> None:
    """Whether the handler says what became of each, or raises for all; the time of the batch counts for each."""

    @batch
    async def handle(messages: list[Message]) -> list[Any]:
        await pass_time(0.2)
        if any(message.body == b"all" for message in messages):
            raise KeyError("all")
        return [
            Bury("no") if each.body == b"bury" else Retry(60) if each.body == b"retry" else None for each in messages
        ]

    async with Bridge() as bridge:
        await bridge.store.put(QUEUE, [NewMessage(body) for body in (b"done", b"retry", b"bury", b"done")])
        await bridge.store.put(OTHERS, [NewMessage(b"all"), NewMessage(b"with it")])
        async with listening(bridge, handle, [QUEUE, OTHERS], bridge=bridge, retry=RetryPolicy(first_s=60)) as listener:
            await worked(listener, 6)
        first, second = summed(bridge, QUEUE), summed(bridge, OTHERS)
    assert first.outcomes == {"done": 2, "retried": 1, "buried": 1} and first.failures == {"poisoned": 1}
    assert first.handling.counts == [0, 0, 0, 0, 0, 0, 4] and first.handling.total_ms == 800
    assert second.outcomes == {"failed": 2} and second.failures == {"KeyError": 2}


@simulated
async def test_what_no_handler_sees_is_an_attempt_all_the_same() -> None:
    """A body that does not decode fails its attempt without a call, and has no time."""

    async def handle(message: Message[int]) -> None:
        pass

    async with Bridge() as bridge:
        await bridge.store.put(QUEUE, [NewMessage(b"17"), NewMessage(b"no number")])
        async with listening(bridge, handle, bridge=bridge, payload=int) as listener:
            await worked(listener, 2)
        told = summed(bridge, QUEUE)
    assert (told.outcomes, told.failures) == ({"done": 1, "buried": 1}, {"undecodable": 1})
    assert sum(told.handling.counts) == 1


@pytest.mark.parametrize("stopped", [False, True], ids=["out of time", "stopped"])
@simulated
async def test_a_handler_that_is_cut_off(stopped: bool) -> None:
    """Out of time it failed, by a class of its own; stopped, its message is given back, which is no failure."""
    began = asyncio.Event()

    async def handle(message: Message) -> None:
        began.set()
        await pass_time(1000)

    async with Bridge() as bridge:
        await bridge.store.put(QUEUE, [NewMessage(b"slow")])
        limit = None if stopped else 5.0
        policy = RetryPolicy(attempts=1)
        async with listening(bridge, handle, bridge=bridge, grace=0, handler_timeout=limit, retry=policy) as listener:
            await began.wait()
            await pass_time(6)
            if stopped:
                assert summed(bridge, QUEUE).in_flight == 1
            else:
                await worked(listener, 1)
        told = summed(bridge, QUEUE)
    assert (told.outcomes, told.failures) == (({"given_back": 1}, {}) if stopped else ({"buried": 1}, {"timeout": 1}))
    assert sum(told.handling.counts) == 1


@simulated
async def test_an_attempt_whose_lease_is_lost_ends_once() -> None:
    """Somebody took the message away: whatever the handler does then, the attempt is lost and nothing else."""
    began = asyncio.Event()

    async def handle(message: Message) -> None:
        began.set()
        await pass_time(1000)

    store = Store()
    async with Bridge() as bridge:
        await store.fill(b"one", b"two")
        async with listening(store, handle, bridge=bridge, visibility_timeout=10) as listener:
            await began.wait()
            await store.clear(QUEUE)
            await worked(listener, 2)
            await pass_time(20)
        told = summed(bridge, QUEUE)
    assert (told.outcomes, told.leases_lost, told.failures, told.in_flight) == ({"lost": 2}, 2, {}, 0)


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


@simulated
async def test_a_replay_is_an_outcome_of_the_poison_queue() -> None:
    """And the message that was put back is an attempt of its own queue."""

    async def supervise(message: Message) -> None:
        raise Replay

    async def handle(message: Message) -> None:
        pass

    async with Bridge() as bridge:

        async def bad(message: Message) -> None:
            raise Bury("once")

        await bridge.store.put(QUEUE, [NewMessage(b"one")])
        async with listening(bridge, bad, bridge=bridge, handler_name="bad") as listener:
            await worked(listener, 1)
        async with listening(bridge, supervise, POISON, bridge=bridge) as listener:
            await worked(listener, 1)
        async with listening(bridge, handle, bridge=bridge, handler_name="good") as listener:
            await worked(listener, 1)
        state = bridge.describe(QUEUE)
        assert summed(bridge, POISON).outcomes == {"replayed": 1}
        assert state is not None
        assert {name: jobs.outcomes for name, jobs in state.jobs.items()} == {"bad": {"buried": 1}, "good": {"done": 1}}


@simulated
async def test_carried_messages_count_as_any_other_and_an_idle_session_tells_nothing() -> None:
    """Those that come with a wake are first attempts; after they were told, heartbeats are as short as before."""
    async with Bridge() as bridge, listening(bridge, on_loop, bridge=bridge) as listener:
        await pass_time(1)
        facts: list[Any] = []
        bridge.observe(facts.append)
        for _ in range(3):
            await bridge.store.put(QUEUE, [NewMessage(b"done")])
            await pass_time(1)
        await pass_time(11)
        assert listener.state().queues[QUEUE].carried == 3
        assert summed(bridge, QUEUE) == own(listener)
        assert listener._dequeues[QUEUE].owes_report() == 0
        told = [fact for fact in facts if isinstance(fact, JobsTold)]
        await pass_time(60)
        assert told == [fact for fact in facts if isinstance(fact, JobsTold)]


class Shaky(Store):
    """A store that is away at times, hangs, or does what it was asked and does not say so."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw = draw

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        chance = self.draw.random()
        if chance < 0.15:
            raise StoreUnavailable("away")
        if chance < 0.3:
            await pass_time(15)
        answer = await super().settle(queue, settlement)
        if chance > 0.85:
            raise UnknownOutcome("no answer")
        return answer


@pytest.mark.parametrize("batches", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize("seed", range(5))
@simulated
async def test_whatever_is_held_ends_in_exactly_one_outcome(seed: int, batches: bool) -> None:
    """However store, handlers, leases and the stop fall together, and the bridge is told just that."""
    draw = random.Random(seed)

    async def one(message: Message) -> None:
        if draw.random() < 0.3:
            await pass_time(draw.random() * 30)
        raise draw.choice([ValueError("no"), Retry(draw.random()), Bury("no"), *[Finished()] * 3])

    async def handle(message: Message) -> None:
        with contextlib.suppress(Finished):
            await one(message)

    @batch
    async def handle_all(messages: list[Message]) -> list[Any]:
        await pass_time(draw.random() * 12)
        return [draw.choice([None, Retry(1), Bury("no")]) for _ in messages]

    store = Shaky(draw)
    options = {"visibility_timeout": 8, "handler_timeout": 20, "grace": draw.choice([0, 5]), "concurrency": 6}
    async with Bridge() as bridge:
        await store.fill(*[b"x"] * 32)
        async with listening(store, handle_all if batches else handle, bridge=bridge, **options) as listener:
            await pass_time(draw.random() * 200)
        shown = own(listener)
        assert sum(shown.outcomes.values()) == listener._dequeues[QUEUE]._holding._numbers
        assert shown.in_flight == 0
        assert summed(bridge, QUEUE) == shown
