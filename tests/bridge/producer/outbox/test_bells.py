"""Bells of relays, rung amid a commit."""

from __future__ import annotations

import asyncio
from functools import partial

from bridge.producer.outbox.bells import hang, ring_here


async def test_a_bell_rings_until_it_is_taken_down() -> None:
    """From any thread, whatever it is called with."""
    rung = asyncio.Event()
    take_down = hang(partial(asyncio.get_running_loop().call_soon_threadsafe, rung.set))
    await asyncio.to_thread(ring_here, "a connection")
    await rung.wait()
    take_down()
    rung.clear()
    ring_here()
    await asyncio.sleep(0)
    assert not rung.is_set()


async def test_a_loop_that_is_gone_fails_no_commit() -> None:
    """Nor does it keep the others from hearing."""
    gone = asyncio.new_event_loop()
    gone.close()
    rung = asyncio.Event()
    take_down = [hang(partial(loop.call_soon_threadsafe, rung.set)) for loop in (gone, asyncio.get_running_loop())]
    ring_here()
    await rung.wait()
    for each in take_down:
        each()
