"""What a worker says to a bridge that stops (C7), with a bridge played by hand, in virtual time.

| at the `drain` it | says | what its bridge looks for |
|---|---|---|
| has nothing | `bye` | nothing |
| holds a message | `bye` with its lease | the end of that lease |
| had a receive without an answer | `bye` with when a lease of it ends | that moment |
| has a receive in flight | nothing, and goes on | now + V (B8), when the bridge ends the session |
"""

from __future__ import annotations

import asyncio

from bridge.contract.errors import UnknownOutcome
from bridge.contract.wire import Bye, Cover, Drain, Hello, ListenerHeartbeat
from listeners import Message
from tests.listeners.rig import QUEUE, Store, hanging, listening, raising, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import simulated


def drain(bridge: FakeBridge) -> None:
    """Say that the bridge stops."""
    assert bridge.link is not None
    bridge.link.down.put_nowait(Drain())


async def nothing(message: Message) -> None:
    """Handle a message."""


@simulated
async def test_a_worker_with_nothing_to_do_says_so_and_is_at_another_bridge_at_once() -> None:
    """Also right after a look, and after what it read with the `drain` no receive begins under the old session."""
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge):
        await bridge.until(ListenerHeartbeat)
        bridge.wake(QUEUE)
        await bridge.until(Cover)
        drain(bridge)
        bridge.wake(QUEUE)
        assert await bridge.until(Bye) == [Bye()]
        await bridge.until(Hello, 2)
        assert (bridge.connects, store.receives) == (2, 1)


@simulated
async def test_a_worker_that_holds_a_message_names_its_lease() -> None:
    """The handler goes on; should the worker die before another bridge hears of it, the first has told the end."""
    store, bridge = Store(), FakeBridge()
    asked = asyncio.Event()

    async def handle(message: Message) -> None:
        asked.set()
        await hanging(20.0)()

    async with listening(store, handle, bridge=bridge, visibility_timeout=30.0) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"a")
        bridge.wake(QUEUE)
        await asked.wait()
        await bridge.until(Cover)
        drain(bridge)
        (bye,) = await bridge.until(Bye)
        (end,) = bye.leases[QUEUE]
        assert 29_000 <= end <= 31_000
        await settled(listener, 1)


@simulated
async def test_a_worker_whose_receive_had_no_answer_names_when_its_lease_ends() -> None:
    """It would look by itself then; if it dies before that, somebody else has to."""
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge, visibility_timeout=30.0):
        await bridge.until(ListenerHeartbeat)
        store.receiving.append(raising(UnknownOutcome("no answer")))
        bridge.wake(QUEUE)
        await bridge.until(Cover)
        drain(bridge)
        (bye,) = await bridge.until(Bye)
        (end,) = bye.leases[QUEUE]
        assert 25_000 <= end <= 31_000


@simulated
async def test_a_worker_with_a_receive_in_flight_says_nothing() -> None:
    """Nobody knows what it brings: the bridge ends such a session, and looks when the lease must be over (B8)."""
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge):
        await bridge.until(ListenerHeartbeat)
        store.receiving.append(hanging(3.0))
        bridge.wake(QUEUE)
        drain(bridge)
        await bridge.until(Cover)
        assert not bridge.of(Bye)
        assert bridge.connects == 1
