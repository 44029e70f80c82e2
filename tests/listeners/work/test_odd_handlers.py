"""Whatever a handler does to its list, its exceptions or its task costs one attempt, and other messages nothing."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.queues.base import Depth
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.listeners import Bury, Listener, Message, Replay, Retry
from queuebell.listeners.work.retry import RetryPolicy
from tests.listeners.rig import QUEUE, listening
from tests.support.processes import until
from tests.support.sim_loop import pass_time, simulated
from tests.support.spans import spans


class Stop(BaseException):
    """No `Exception`."""


class Unreadable(Exception):
    def __str__(self) -> str:
        raise Stop


class Unreadable2(Exception):
    def __getattr__(self, name: str) -> object:
        raise Stop


class Patient(TimeoutError):
    retry_after = 10**400


def retry_later(after: Any) -> Retry:
    outcome = Retry()
    outcome.after = after
    return outcome


def replay_to(queue: Any) -> Replay:
    outcome = Replay()
    outcome.queue = queue
    return outcome


def bury_for(reason: Any) -> Bury:
    outcome = Bury("x")
    outcome.reason = reason
    return outcome


async def cancel_itself(_: object) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def raising(error: BaseException) -> Callable[[object], Awaitable[None]]:
    async def handle(_: object) -> None:
        raise error

    return handle


def timed_store() -> MemoryStore:
    """A store of its own, whose clock is the loop's."""
    time = asyncio.get_running_loop().time
    return MemoryStore(f"odd-{uuid.uuid4().hex}", clock=time, wall=lambda: 1_800_000_000 + time())


@contextlib.contextmanager
def broken_log() -> Iterator[None]:
    """A handler of the log whose file is closed."""
    file = io.StringIO()
    file.close()
    handler = logging.StreamHandler(file)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


ODD = {
    "an exception whose text raises": raising(Unreadable()),
    "an exception whose attributes raise": raising(Unreadable2()),
    "no Exception": raising(Stop()),
    "a pause without end": raising(Patient()),
    "a pause that is text": raising(retry_later("soon")),
    "a pause that is no number": raising(retry_later(float("nan"))),
    "a replay to a number": raising(replay_to(5)),
    "a reason that is a number": raising(bury_for(5)),
    "a cancellation of its own task": cancel_itself,
    "a cancellation out of nowhere": raising(asyncio.CancelledError()),
    "an exception that closes generators": raising(GeneratorExit()),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("around", [contextlib.nullcontext, spans, broken_log], ids=["", "traced", "broken log"])
@simulated
async def test_an_odd_handler_costs_its_message_an_attempt(
    odd: Callable[[object], Awaitable[None]], batch: bool, around: Callable[[], AbstractContextManager[object]]
) -> None:
    """The message is dead-lettered after its attempts; the good ones beside it are handled once."""
    with around():
        await _handled_oddly(odd, batch)


async def _handled_oddly(odd: Callable[[object], Awaitable[None]], batch: bool) -> None:
    calls: list[str] = []

    async def one(message: Message) -> None:
        calls.append(message.text())
        if message.text() == "odd":
            await odd(message)

    async def many(messages: list[Message]) -> None:
        for message in messages:
            await one(message)

    store = timed_store()
    await store.put(QUEUE, ["odd", *([] if batch else [f"good {number}" for number in range(4)])])
    options: dict[str, Any] = {"retry": RetryPolicy(attempts=2), "visibility_timeout": 30.0}
    async with listening(store, many if batch else one, **options) as listener:
        await pass_time(3700)
        assert len(await store.peek(f"{QUEUE}-poison")) == 1
        assert listener.state().queues[QUEUE].lost_leases == 0
    assert calls.count("odd") == 2
    assert sorted(set(calls) - {"odd"}) == ([] if batch else [f"good {number}" for number in range(4)])
    assert len(calls) == 2 + (0 if batch else 4)
    await store.close()


@pytest.mark.parametrize("timeout", [None, 5.0], ids=["untimed", "timed"])
@pytest.mark.parametrize("kind", ["coroutine", "thread", "coroutine of a thread"])
async def test_an_exception_that_closes_generators_is_an_attempt_like_any_other(
    kind: str, timeout: float | None
) -> None:
    async def later(_: Message) -> None:
        await asyncio.sleep(0)
        raise GeneratorExit

    def now(_: Message) -> None:
        raise GeneratorExit

    handlers: dict[str, Any] = {"coroutine": later, "thread": now, "coroutine of a thread": lambda one: later(one)}
    store = MemoryStore(f"odd-{uuid.uuid4().hex}")
    await store.put(QUEUE, ["odd"])

    async def over() -> bool:
        return await store.depth(QUEUE) == Depth(0, 0)

    async with listening(store, handlers[kind], retry=RetryPolicy(attempts=1), handler_timeout=timeout):
        await until(over, "it is no longer in its queue")
        assert len(await store.peek(f"{QUEUE}-poison")) == 1
    await store.close()


@pytest.mark.parametrize(
    "change",
    [lambda messages: messages.sort(key=Message.text), lambda messages: messages.reverse()],
    ids=["sort", "reverse"],
)
@simulated
async def test_outcomes_follow_the_order_of_the_list(change: Callable[[list[Message]], None]) -> None:
    """A batch handler may sort its list: the outcomes are in the order that it has when the handler returns."""
    calls: list[list[str]] = []

    async def handle(messages: list[Message]) -> list[Retry | None]:
        change(messages)
        calls.append([message.text() for message in messages])
        return [Retry(after=1) if message.text() == "bad" and len(calls) == 1 else None for message in messages]

    store = timed_store()
    await store.put(QUEUE, ["z", "y", "bad"])
    async with listening(store, handle):
        await pass_time(20)
    assert [sorted(call) for call in calls] == [["bad", "y", "z"], ["bad"]]
    await store.close()


@simulated
async def test_a_batch_handler_may_empty_its_list() -> None:
    handled: list[str] = []

    async def handle(messages: list[Message]) -> None:
        while messages:
            handled.append(messages.pop().text())

    store = timed_store()
    await store.put(QUEUE, ["a", "b", "c"])
    async with listening(store, handle) as listener:
        await pass_time(20)
        assert listener.state().queues[QUEUE].handled == 3
    assert sorted(handled) == ["a", "b", "c"]
    await store.close()


@simulated
async def test_a_cleared_queue_does_not_lengthen_leases() -> None:
    """Its messages were deleted, so no lease was too short; their handlers are cancelled."""
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await pass_time(600)

    store = timed_store()
    await store.put(QUEUE, ["a"])
    async with listening(store, handle, visibility_timeout=4.0) as listener:
        await begun.wait()
        await store.clear(QUEUE)
        await pass_time(10)
        state = listener.state().queues[QUEUE]
        assert (state.too_short, state.visibility_s, state.active_handlers, state.lost_leases) == (0, 4.0, 0, 1)
    await store.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 1.5}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"batch": 1.5}, "batch"),
        ({"visibility_timeout": "30"}, "visibility_timeout"),
        ({"handler_timeout": 10**400}, "handler_timeout"),
        ({"grace": None}, "grace"),
        ({"ledger": 5}, "ledger"),
        ({"claim_check": 5}, "claim_check"),
        ({"bridge": 5}, "bridge"),
    ],
)
def test_an_argument_of_another_type_is_named(options: dict[str, Any], named: str) -> None:
    async def handle(message: Message) -> None: ...

    with pytest.raises((ValueError, ConfigurationError), match=f"{named}.* is "):
        Listener("memory:typed", QUEUE, handle, **{"bridge": "http://127.0.0.1:1", **options})
