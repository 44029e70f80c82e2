"""Workers that are killed, stopped for a while, many, or idle."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.services.register import Register
from tests.support.processes import Processes

CLOCK = "test/clock"


async def test_killed_with_messages_in_hand(processes: Processes, register: Register) -> None:
    """What a killed worker held, received or carried, goes to others when its leases end; nothing is lost."""
    bridge = await processes.serve()
    received = await register.put(bridge, 4, batch=4)
    victim = await register.worker(bridge, hold=True, concurrency=8, visibility=2)
    await register.all_have("start", received)
    # Messages are only carried to where slots are known to be free.
    await bridge.has_room(register.queue, 4)
    carried = await register.put(bridge, 4, batch=4)
    await register.all_have("start", carried)
    (state,) = await victim.figures()
    figures = state["queues"][register.queue]
    assert (figures["held"], figures["active_handlers"]) == (8, 8)
    assert figures["carried"] == 4

    others = [await register.worker(bridge, visibility=2) for _ in range(2)]
    await bridge.has_listeners(3)
    await victim.kill()
    await register.all_have("done", within_s=100)
    await bridge.is_drained(register.queue)
    numbers = register.numbers()
    assert (numbers.acknowledged, numbers.duplicated) == (8, 0)
    assert {event["attempt"] for worker in others for event in worker.events["done"]} == {2}


async def test_publish_reaches_a_queue_elsewhere(processes: Processes, register: Register) -> None:
    """Without any sweep, one publish after the put wakes the worker, and a killed worker's messages come back."""
    store = await processes.serve(data="store")
    bridge = await processes.serve(data="bridge", sweep_s="0", heartbeat_s="0.2")
    victim = await register.worker(bridge, store=store, hold=True, visibility=2)
    await bridge.has_listeners(1)
    bodies = await register.put(store, 3, batch=3)
    async with bridge.asking.post(f"{bridge.url}/v1/triggers/{register.queue}?size=3") as answer:
        assert answer.status == 202
    await register.all_have("start", bodies, within_s=100)
    # Its heartbeat says how long it holds them; whoever is left is woken when that is over (L7, B7).
    other = await register.worker(bridge, store=store, visibility=2)
    await bridge.has_listeners(2)
    await victim.kill()
    await register.all_have("done", bodies, within_s=150)
    assert sorted(other.bodies("done")) == sorted(bodies)
    await store.is_drained(register.queue)
    assert register.numbers().duplicated == 0


async def test_killed_before_it_said_started(processes: Processes, register: Register) -> None:
    """A put whose carrier is dead but not yet known to be is handed to others within the lease of a carried message."""
    bridge = await processes.serve()
    victim = await register.worker(bridge, visibility=1)
    await bridge.has_listeners(1)
    victim.signal(signal.SIGSTOP)
    bodies = await register.put(bridge, 3)
    other = await register.worker(bridge, visibility=1)
    await register.all_have("done", bodies, within_s=100)
    await victim.kill()
    await bridge.is_drained(register.queue)
    assert sorted(other.bodies("done")) == sorted(bodies)
    assert register.numbers().duplicated == 0


async def test_ten_idle_listeners(processes: Processes, register: Register) -> None:
    """Ten idle listeners make no receive at all, over many heartbeats; the first put then costs none either."""
    bridge = await processes.serve(heartbeat_s="0.2")
    await register.put(bridge, 1)
    workers = [await register.worker(bridge, listeners=5) for _ in range(2)]
    await bridge.has_listeners(10)
    await register.all_have("done")
    clock = Register(processes, CLOCK)
    await clock.worker(bridge)
    await bridge.has_listeners(11)
    await bridge.is_drained(register.queue)
    before = await bridge.receives(register.queue)
    # A message that is due in three seconds is the clock.
    await clock.put(bridge, 1, visible_after_ms=3000)
    await clock.all_have("done")
    state = await bridge.queue(register.queue)
    assert state["receives"]["total"] - before == 0
    assert (state["sessions"], state["dirty"]) == (10, False)
    await register.put(bridge, 1)
    await register.all_have("done")
    assert await bridge.receives(register.queue) - before <= 1
    assert [await worker.stop() for worker in workers] == [0, 0]


async def test_fifty_listeners_with_one_slot(processes: Processes, register: Register) -> None:
    """Fifty puts find fifty listeners of one slot each: all are in their handlers at the same time."""
    bridge = await processes.serve()
    workers = [await register.worker(bridge, listeners=10, concurrency=1, hold=True) for _ in range(5)]
    await bridge.has_listeners(50)
    bodies = await register.put(bridge, 50)
    await register.all_have("start", bodies, within_s=100)
    assert not register.counts["done"]
    who = {event["who"] for worker in workers for event in worker.events["start"]}
    assert len(who) == 50
    assert await bridge.receives(register.queue) <= 100
    for worker in workers:
        worker.tell("go")
    await register.all_have("done", bodies)
    await bridge.is_drained(register.queue)
    assert register.numbers().duplicated == 0


@pytest.mark.parametrize("count", [1000, pytest.param(5000, marks=pytest.mark.rest)])
async def test_put_flood(processes: Processes, register: Register, count: int) -> None:
    """Thousands of messages in batches, from four producers at once, for three workers: each is handled once."""
    bridge = await processes.serve()
    workers = [await register.worker(bridge, concurrency=100) for _ in range(3)]
    await bridge.has_listeners(3)
    await asyncio.gather(*(register.put(bridge, count, batch=32) for _ in range(4)))
    await register.all_have("done")
    await bridge.is_drained(register.queue)
    numbers = register.numbers()
    assert (numbers.acknowledged, numbers.duplicated) == (4 * count, 0)
    assert all(worker.bodies("done") for worker in workers)
    assert [await worker.stop() for worker in workers] == [0, 0, 0]


async def test_asked_to_stop_while_busy(processes: Processes, register: Register) -> None:
    """SIGTERM lets a worker finish what it began, and what it had not begun is with another at once."""
    bridge = await processes.serve()
    leaving = await register.worker(bridge, hold=True, concurrency=2, visibility=30)
    begun = await register.put(bridge, 2)
    await register.all_have("start", begun)
    leaving.signal(signal.SIGTERM)
    await leaving.complains("stopping")
    staying = await register.worker(bridge, visibility=30)
    later = await register.put(bridge, 3)
    await register.all_have("done", later, within_s=50)
    leaving.tell("go")
    assert await leaving.ended() == 0
    assert sorted(leaving.bodies("done")) == sorted(begun)
    assert sorted(staying.bodies("done")) == sorted(later)
    await bridge.is_drained(register.queue)
    assert register.numbers().duplicated == 0


async def test_told_twice_to_stop(processes: Processes, register: Register) -> None:
    """A second SIGTERM cancels the handlers; their messages are given back, and another has them at once."""
    bridge = await processes.serve()
    leaving = await register.worker(bridge, hold=True, visibility=30)
    bodies = await register.put(bridge, 2)
    await register.all_have("start", bodies)
    leaving.signal(signal.SIGTERM)
    await leaving.complains("stopping")
    staying = await register.worker(bridge, visibility=30)
    leaving.signal(signal.SIGTERM)
    await register.all_have("done", bodies, within_s=50)
    assert await leaving.ended(within_s=50) == 0
    assert sorted(leaving.bodies("cancelled")) == sorted(bodies)
    assert sorted(staying.bodies("done")) == sorted(bodies)
