"""What a handler may be, what it may say, and what becomes of its message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuebell.listeners import PULL_ONLY, Bury, Done, Listener, Message, Retry
from queuebell.listeners.handler import outcomes_of
from tests.listeners.rig import POISON, QUEUE, Store, listening
from tests.support.sim_loop import pass_time, simulated


async def _until_quiet(store: Store, listener: Listener) -> dict[str, Any]:
    """Let virtual time pass until neither queue changes any more; return what stands where."""
    await pass_time(400)
    figures = listener.state().queues[QUEUE]
    assert figures.held == 0
    return {
        "left": await store.depth(QUEUE),
        "poison": await store.bodies(POISON) if await store.depth(POISON) else [],
        "handled": figures.handled,
        "retried": figures.retried,
        "buried": figures.buried,
    }


@pytest.mark.parametrize("handler", [None, 7, lambda: None])
def test_what_takes_no_message_is_refused(handler: Any) -> None:
    """A mistake is told when the listener is made, not at the first message."""
    with pytest.raises(TypeError, match="a handler"):
        Listener("memory:x", QUEUE, handler, bridge=PULL_ONLY)


def test_outcomes_of_a_batch_are_one_per_message() -> None:
    """None means all done; another length or kind is refused, and of a list only the items that are no outcome."""
    retry, bury = Retry(3), Bury("no")
    assert outcomes_of(None, 2) == [Done(), Done()]
    assert outcomes_of([None, retry, bury, Done], 4) == [Done(), retry, bury, Done()]
    first, second, third = outcomes_of([None, 7, ValueError()], 3)
    assert first == Done() and "not int" in str(second) and "not ValueError" in str(third)
    for wrong in ([None], "ab", 7):
        with pytest.raises(TypeError):
            outcomes_of(wrong, 2)
    with pytest.raises(ValueError, match="after"):
        Retry(-1)


@simulated
async def test_a_timeout_of_the_handlers_own_is_just_an_exception() -> None:
    """TimeoutError and CancelledError from within are failed attempts; neither ends the listener."""
    store = Store()

    async def handle(message: Message) -> None:
        if message.attempt == 1:
            async with asyncio.timeout(1):
                await pass_time(100)
        if message.attempt == 2:
            raise asyncio.CancelledError

    await store.fill(b"x")
    async with listening(store, handle, handler_timeout=40) as listener:
        result = await _until_quiet(store, listener)
        assert (result["handled"], result["retried"]) == (1, 2)


@simulated
async def test_bury_and_retry_do_as_they_say() -> None:
    """`Bury` moves at once, `Retry(after)` waits so long, `Retry()` takes the listener's own back-off."""
    store, seen = Store(), []
    loop = asyncio.get_running_loop()

    async def handle(message: Message) -> None:
        seen.append((message.text(), loop.time()))
        if message.text() == "bad":
            raise Bury("unknown customer")
        if message.attempt == 1:
            raise Retry(50) if message.text() == "later" else Retry()

    await store.fill(b"bad", b"later", b"soon")
    async with listening(store, handle) as listener:
        result = await _until_quiet(store, listener)
        assert result["poison"] == [b"bad"]
        assert (result["handled"], result["retried"], result["buried"]) == (2, 2, 1)
        (_, first), (_, second) = (entry for entry in seen if entry[0] == "later")
        assert second - first == pytest.approx(50, abs=1)


@simulated
async def test_a_message_that_kills_its_worker_is_buried_unseen() -> None:
    """Handed out more often than allowed without an outcome, it does not reach the handler again."""
    store, seen = Store(), []

    async def handle(message: Message) -> None:
        seen.append(message.text())

    await store.fill(b"killer")
    for _ in range(2):
        await store.receive(QUEUE, 1, 1.0)
        await pass_time(2)
    async with listening(store, handle, max_attempts=2) as listener:
        assert (await _until_quiet(store, listener))["poison"] == [b"killer"]
        assert seen == []
