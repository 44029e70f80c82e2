"""Batches under a ledger: what is free is handled, and what others work on waits without harm."""

from __future__ import annotations

import asyncio
from typing import Any

from bridge.queues.base import NewMessage
from listeners import Ledger, Message, Retry
from listeners.core.record import Standing
from tests.listeners.rig import QUEUE, listening, settled
from tests.listeners.test_ledger import OTHER, Site, by_body
from tests.support.sim_loop import pass_time, simulated


@simulated
async def test_a_batch_is_handled_by_those_that_are_not_done() -> None:
    """What is done is left out, twins share one fate, the rest is handled; each is settled by its own outcome."""
    site = Site(key=by_body)
    batches: list[list[str]] = []

    async def handle(messages: list[Message]) -> list[Any]:
        batches.append([message.text() for message in messages])
        return [Retry(1) if message.text() == "again" and message.attempt == 1 else None for message in messages]

    await site.store.fill(b"done")
    async with site.listening(handle) as listener:
        await settled(listener, 1)
        batches.clear()
        await site.store.fill(b"done", b"new", b"again", b"new", b"again")
        await settled(listener, 6)
        assert listener.state().queues[QUEUE].retried == 2
    assert batches[0] == ["new", "again"]
    assert [text for batch in batches[1:] for text in batch] == ["again"]
    assert await site.table.standings() == [Standing.DONE] * 3


@simulated
async def test_two_batches_never_wait_for_each_other() -> None:
    """Each holds a key that the other wants: it ends what it holds before it waits, and each key is handled once."""
    site = Site(key=by_body)
    site.table.latency = 0.05
    handled: list[str] = []

    async def handle(messages: list[Message]) -> None:
        handled.extend(message.text() for message in messages)

    await site.store.fill(b"a", b"b", b"b", b"a")
    async with site.listening(handle, batch=2) as listener:
        await settled(listener, 4)
        assert listener.state().queues[QUEUE].retried == 0
    assert sorted(handled) == ["a", "b"]


@simulated
async def test_a_batch_waits_for_keys_of_others_without_losing_an_attempt() -> None:
    """Longer than all attempts would last: what is free is done at once, the rest when its holder failed, unburied."""
    site = Site(key=by_body)
    clock = asyncio.get_running_loop().time
    batches: list[list[tuple[str, int]]] = []
    working = asyncio.Event()

    async def work(message: Message) -> None:
        working.set()
        await pass_time(600)
        raise Retry(86_400)

    async def handle(messages: list[Message]) -> None:
        batches.append([(message.text(), message.attempt) for message in messages])

    await site.store.put(OTHER, [NewMessage(b"held")])
    ledger = Ledger(site.table, key=by_body, scope="all")
    async with listening(site.store, work, OTHER, ledger=ledger) as holder, asyncio.timeout(7200):
        await working.wait()
        began = clock()
        await site.store.fill(b"held", b"free", b"held")
        other = Ledger(site.table, key=by_body, scope="all")
        async with listening(site.store, handle, ledger=other, batch=3, concurrency=3) as listener:
            await settled(listener, 1)
            assert clock() - began < 5
            await site.store.fill(b"more")
            await settled(listener, 2)
            assert clock() - began < 60, "what waits takes no slot of what is done"
            await settled(listener, 4)
            figures = listener.state().queues[QUEUE]
        assert (figures.retried, figures.buried, figures.lost_leases) == (0, 0, 0)
        assert clock() - began > 590
        await holder.stop()
    assert batches == [[("free", 1)], [("more", 1)], [("held", 1)]]
