"""What a handler may raise: all of it is told by the outcome, but what ends the process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import functools
import threading
from typing import Any

import pytest

from bridge.contract.burial import BODY_LOST
from listeners.core.settle import Bury, Failed, Succeeded
from listeners.handler import Done, Message
from listeners.work.claims import BodyLost
from listeners.work.invoke import Invoker
from tests.support.processes import PATIENCE_S

MESSAGE = Message("1", "billing/orders", b"x", 1, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))


class Odd(BaseException):
    """No `Exception`, as some libraries have theirs."""


def raising(error: type[BaseException], kind: str) -> Any:
    async def on_loop(message: Message) -> None:
        raise error("odd")

    def in_thread(message: Message) -> None:
        raise error("odd")

    async def on_batch(messages: list[Message]) -> None:
        raise error("odd")

    return {"coroutine": on_loop, "thread": in_thread, "batch": on_batch}[kind]


@pytest.mark.parametrize("kind", ["coroutine", "thread", "batch"])
@pytest.mark.parametrize("error", [Odd, MemoryError])
async def test_whatever_a_handler_raises_fails_its_attempt(error: type[BaseException], kind: str) -> None:
    """Else its task would end, and the message be held, and its lease renewed, for as long as the worker lives."""
    invoker = Invoker(raising(error, kind), threads=1, timeout=5.0)
    try:
        if invoker.batch:
            outcomes = await invoker.many([MESSAGE, MESSAGE], lambda _: None)
        else:
            outcomes = [await invoker.one(MESSAGE, lambda _: None)]
    finally:
        invoker.close()
    for outcome in outcomes:
        assert isinstance(outcome, Failed)
        assert (outcome.reason, outcome.error) == (f"{error.__name__}: odd", error.__name__)
        assert "odd" in (outcome.trace or "").splitlines()[-1]
    assert Succeeded() not in outcomes


@pytest.mark.parametrize("kind", ["coroutine", "batch"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_goes_on(error: type[BaseException], kind: str) -> None:
    """To whoever runs the event loop; the messages come back when their leases end."""
    invoker = Invoker(raising(error, kind), threads=1, timeout=None)
    calling: Any = invoker.many([MESSAGE], lambda _: None) if invoker.batch else invoker.one(MESSAGE, lambda _: None)
    with pytest.raises(error):
        calling.send(None)


async def test_one_invalid_outcome_of_a_batch_fails_its_message_alone() -> None:
    """The handler has done the others: to have all again because of one would do them twice."""

    async def mixed(messages: list[Message]) -> list[Any]:
        return [None, "done", Done]

    invoker = Invoker(mixed, threads=1, timeout=None)
    first, second, third = await invoker.many([MESSAGE] * 3, lambda _: None)
    assert (first, third) == (Succeeded(), Succeeded())
    assert isinstance(second, Failed) and "not str" in second.reason


class Handles:
    """A handler that is an object."""

    async def __call__(self, message: Message) -> None:
        """Handle a message."""


async def test_a_handler_is_called_by_the_name_that_it_was_written_with() -> None:
    """An object by its class, and a partial by what it calls."""
    named = functools.partial(functools.partial(deep, 1))
    for handler, name in [(Handles(), "Handles"), (named, "deep"), (lose, "lose")]:
        assert Invoker(handler, threads=1, timeout=None).name == f"{__name__}:{name}"  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["coroutine", "thread", "batch"])
@pytest.mark.parametrize("timeout", [None, 600.0])
async def test_a_cancellation_from_within_fails_the_attempt(kind: str, timeout: float | None) -> None:
    """Of all messages of a batch: nobody outside has cancelled anything."""
    invoker = Invoker(raising(asyncio.CancelledError, kind), threads=1, timeout=timeout)
    try:
        if invoker.batch:
            outcomes = await invoker.many([MESSAGE, MESSAGE], lambda _: None)
        else:
            outcomes = [await invoker.one(MESSAGE, lambda _: None)]
    finally:
        invoker.close()
    assert outcomes == [Failed("the handler was cancelled from within")] * (2 if invoker.batch else 1)


@pytest.mark.parametrize("timeout", [None, 600.0])
@pytest.mark.parametrize("batch", [False, True])
async def test_a_thread_goes_on_after_its_call_was_cancelled(batch: bool, timeout: float | None) -> None:
    """Who gave it a slot hears of it, and that it has ended."""
    begun, go, lingering = threading.Event(), threading.Event(), list[concurrent.futures.Future[Any]]()

    def one(message: Message) -> None:
        begun.set()
        go.wait(PATIENCE_S)

    def many(messages: list[Message]) -> None:
        one(messages[0])

    invoker = Invoker(many if batch else one, threads=1, timeout=timeout)
    linger: Any = lingering.append
    calling = asyncio.create_task(invoker.many([MESSAGE], linger) if batch else invoker.one(MESSAGE, linger))  # type: ignore[arg-type]
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    (call,) = lingering
    assert (call.done(), invoker.calls_running) == (False, 1)
    go.set()
    call.result(PATIENCE_S)
    assert invoker.calls_running == 0
    invoker.close()


@pytest.mark.parametrize("timeout", [None, 600.0])
async def test_a_coroutine_that_a_plain_function_returns_is_run(timeout: float | None) -> None:
    """As of a lambda around one; what it raises is the outcome."""
    seen: list[Message] = []

    async def see(message: Message) -> None:
        seen.append(message)
        if len(seen) == 2:
            raise Odd

    invoker = Invoker(lambda message: see(message), threads=1, timeout=timeout)
    try:
        assert await invoker.one(MESSAGE, lambda _: None) == Succeeded()
        assert isinstance(await invoker.one(MESSAGE, lambda _: None), Failed)
    finally:
        invoker.close()
    assert seen == [MESSAGE] * 2


async def deep(depth: int, message: Message) -> None:
    """Fail far down, by two functions in turn, for lines that repeat are told once."""
    if depth == 0:
        raise ValueError("at the end")
    await deeper(depth - 1, message)


async def deeper(depth: int, message: Message) -> None:
    """Go on as `deep` does."""
    await deep(depth, message)


async def test_a_trace_tells_the_newest_frames_and_a_bury_its_own_class() -> None:
    """Of a deep call what is next to the failure; a body that is lost is not the handler's word."""
    outcome = await Invoker(functools.partial(deep, 30), threads=1, timeout=None).one(MESSAGE, lambda _: None)
    assert isinstance(outcome, Failed)
    trace = outcome.trace or ""
    assert (trace.count("in deep"), trace.count('raise ValueError("at the end")')) == (20, 1)
    assert "in _one" not in trace
    lost = await Invoker(lose, threads=1, timeout=None).one(MESSAGE, lambda _: None)
    assert lost == Bury("gone", BODY_LOST)


async def lose(message: Message) -> None:
    """Find no body."""
    raise BodyLost("gone")
