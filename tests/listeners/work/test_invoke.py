"""What a handler may raise: all of it is told by the outcome, but what ends the process."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from listeners.core.settle import Failed, Succeeded
from listeners.handler import Message
from listeners.work.invoke import Invoker

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
