"""A queue that lives elsewhere: its store is not the bridge's own, so a put rings only if somebody publishes it."""

from __future__ import annotations

import sys

from tests.services.register import Register
from tests.support.processes import Processes


async def test_producer_killed_between_put_and_publish(processes: Processes, register: Register) -> None:
    """A put whose producer died before its publish is found by the sweep, once, without anybody polling."""
    store = await processes.serve(data="store")
    bridge = await processes.serve(data="bridge", sweep_s="1.5")
    await store.put(register.queue, "first")
    worker = await register.worker(bridge, store=store)
    await bridge.has_listeners(1)
    await register.all_have("done", ["first"])
    await bridge.is_clean(register.queue)
    asked = await store.receives(register.queue)

    bodies = register.names(3)
    producer = await processes.start(
        sys.executable, "-m", "tests.services.producer", store.url, bridge.url, register.queue, *bodies
    )
    await producer.line("about to publish")
    register.acknowledged += bodies
    await producer.kill()
    await register.all_have("done", bodies, within_s=100)
    await store.is_drained(register.queue)

    state = await bridge.queue(register.queue)
    assert state["wakes"].get("sweep", 0) >= 1
    assert state["triggers"] == 0
    assert not state["exists"]
    # At most one receive and its empty successor a sweep; a fleet that polled would have made many more.
    assert await store.receives(register.queue) - asked <= 2 * state["wakes"]["sweep"] + 1
    assert {event["source"] for event in worker.events["start"][1:]} == {"sweep"}
    assert worker.bodies("done") == ["first", *bodies] or sorted(worker.bodies("done")[1:]) == sorted(bodies)


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
    held = await bridge.ask("/v1/listeners")
    assert held[0] == 200
    other = await register.worker(bridge, store=store, visibility=2)
    await bridge.has_listeners(2)
    await victim.kill()
    await register.all_have("done", bodies, within_s=150)
    assert sorted(other.bodies("done")) == sorted(bodies)
    await store.is_drained(register.queue)
    assert register.numbers().duplicated == 0
