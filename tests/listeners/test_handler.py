"""What a handler may be, what it may say, and what becomes of its message."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bridge.contract.errors import BadInput, StoreUnavailable
from bridge.queues.base import NewMessage
from bridge.queues.embedded.memory import MemoryStore
from listeners import PULL_ONLY, Bury, Done, Listener, Message, Retry, batch
from listeners.handler import Kind, kind_of, outcomes_of
from tests.listeners.rig import POISON, QUEUE, Store, listening, raising, settled
from tests.support.sim_loop import pass_time, simulated


class Order(msgspec.Struct):
    number: int


class Callee:
    async def __call__(self, message: Message) -> None: ...

    async def method(self, messages: list[Message]) -> None: ...


async def coroutine(message: Message) -> None: ...


def plain(message: Message) -> None: ...


@batch
async def declared(messages: Any) -> None: ...


def annotated(messages: Sequence[Message]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (coroutine, Kind.ASYNC),
        (plain, Kind.PLAIN),
        (lambda message: None, Kind.PLAIN),
        (declared, Kind.ASYNC | Kind.BATCH),
        (annotated, Kind.BATCH),
        (Callee(), Kind.ASYNC),
        (Callee().method, Kind.ASYNC | Kind.BATCH),
        (functools.partial(coroutine), Kind.ASYNC),
        (functools.partial(declared), Kind.ASYNC | Kind.BATCH),
        (print, Kind.PLAIN),
    ],
)
def test_the_kind_of_a_handler_is_told_by_its_definition(handler: Any, kind: Kind) -> None:
    """Coroutine or plain, single or batch: by `async def`, the decorator, or the annotation of the first parameter."""
    assert kind_of(handler) == kind


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


@simulated
async def test_a_poison_queue_never_buries_further() -> None:
    """What a supervisor cannot handle stays where it is, even if its handler says `Bury`."""
    store, seen = Store(), 0

    async def handle(message: Message) -> None:
        nonlocal seen
        seen += 1
        raise Bury("no")

    await store.fill(b"x", queue=POISON)
    async with listening(store, handle, POISON, max_attempts=1):
        await pass_time(100)
        assert seen >= 3
        depth = await store.depth(POISON)
        assert depth.visible + depth.invisible == 1
        assert await store.depth(POISON + "-poison") is None


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


@simulated
async def test_a_burial_waits_for_a_store_that_fails() -> None:
    """Put first, delete after: while the poison queue cannot be reached, the original stays held."""
    store = Store()
    failures = [raising(StoreUnavailable("busy")) for _ in range(3)]
    put = store.put

    async def reluctant(queue: str, messages: Any) -> Any:
        if queue == POISON and failures:
            await failures.pop()()
        return await put(queue, messages)

    store.put = reluctant  # type: ignore[method-assign]

    async def handle(message: Message) -> None:
        raise Bury("no")

    await store.fill(b"x")
    async with listening(store, handle) as listener:
        result = await _until_quiet(store, listener)
        assert result["poison"] == [b"x"]
        assert result["buried"] == 1
        assert not failures


@simulated
async def test_what_cannot_be_buried_comes_back_when_its_lease_ends() -> None:
    """A poison queue that refuses the message for good costs no message and no slot."""
    store, attempts = Store(), []
    put = store.put

    async def refusing(queue: str, messages: Any) -> Any:
        if queue == POISON and len(attempts) < 3:
            raise BadInput("message_too_large", "too large")
        return await put(queue, messages)

    store.put = refusing  # type: ignore[method-assign]

    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        raise Bury("no")

    await store.fill(b"x")
    async with listening(store, handle, concurrency=1, max_attempts=0) as listener:
        result = await _until_quiet(store, listener)
        assert attempts == [1, 2, 3]
        assert result["poison"] == [b"x"]
        assert listener.state().queues[QUEUE].free == 1


@simulated
async def test_payloads_are_decoded_and_what_does_not_decode_is_buried() -> None:
    """`payload`: the handler sees the value; malformed, mistyped or not even UTF-8 goes to the poison queue."""
    store, seen = Store(), []

    async def handle(message: Message) -> None:
        seen.append(message.value)

    bad = [b"{", b'{"number": "x"}', b'{"number": "\xff"}', b"[" * 3000, b""]
    await store.fill(b'{"number": 7}', *bad)
    async with listening(store, handle, payload=Order) as listener:
        result = await _until_quiet(store, listener)
        assert seen == [Order(7)]
        assert sorted(result["poison"]) == sorted(bad)


@simulated
async def test_a_batch_handler_gives_an_outcome_per_message() -> None:
    """One call for what came together; each message goes its own way."""
    store, sizes = Store(), []

    @batch
    async def handle(messages: list[Message]) -> list[Any]:
        sizes.append(len(messages))
        outcome = {"ok": None, "bad": Bury("no"), "again": Retry(1)}
        return [outcome[m.text()] if m.attempt == 1 else Done() for m in messages]

    await store.fill(b"ok", b"bad", b"again", b"ok")
    async with listening(store, handle) as listener:
        result = await _until_quiet(store, listener)
        assert sizes == [4, 1]
        assert result["poison"] == [b"bad"]
        assert (result["handled"], result["retried"], result["buried"]) == (3, 1, 1)


@simulated
async def test_a_batch_handler_that_raises_or_miscounts_fails_the_whole_batch() -> None:
    """Nobody can tell which messages were done, so all come again."""
    store, calls = Store(), 0

    async def handle(messages: list[Message]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("half-way")
        return [None] * 9 if calls == 2 else None

    await store.fill(b"a", b"b")
    async with listening(store, handle) as listener:
        result = await _until_quiet(store, listener)
        assert result["handled"] == 2
        assert result["retried"] >= 3


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


async def test_a_thread_that_outlives_its_time_keeps_its_slot() -> None:
    """It cannot be cancelled: the message goes on its way, the slot only when the thread has ended."""
    store = MemoryStore("lingering-threads")
    release = threading.Event()
    seen: list[str] = []

    def handle(message: Message) -> None:
        seen.append(message.text())
        if message.text() == "long":
            release.wait(10)

    await store.put(QUEUE, [NewMessage(b"long")])
    async with listening(store, handle, concurrency=1, handler_timeout=0.05, max_attempts=1) as listener:
        await settled(listener, 1, "buried")
        assert listener.state().queues[QUEUE].free == 0
        await store.put(QUEUE, [NewMessage(b"short")])
        release.set()
        await settled(listener, 1)
    assert seen == ["long", "short"]
    await store.close()
