x

from __future__ import annotations

import sys

from tests.services.register import Register
from tests.support.processes import Processes




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
