"""`lifespan`: listeners within the application of a web server, whose signals they leave alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queuebell.bridge import BadInput, ConfigurationError, open_store
from queuebell.listeners import PULL_ONLY, Listener, Message, lifespan
from tests.support.processes import PATIENCE_S, until

QUEUES = ["billing/orders", "billing/parcels"]


class Handled:
    """A handler that says what it was given, and waits for its gate."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.done: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message: Message) -> None:
        self.begun.put_nowait(message.text())
        await self.gate.wait()
        self.done.append(message.text())

    async def next(self) -> str:
        async with asyncio.timeout(PATIENCE_S):
            return await self.begun.get()


async def test_signals_stay_the_servers() -> None:
    """Nobody's handler is taken, although a listener by itself would; one that was told to take them is refused."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with lifespan(Listener("memory:signals", QUEUES[0], Handled(), bridge=PULL_ONLY))(None):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    told = Listener("memory:signals", QUEUES[0], Handled(), bridge=PULL_ONLY, name="told", handle_signals=True)
    with pytest.raises(BadInput, match="the signals are the server's; told"):
        lifespan(told)
    with pytest.raises(BadInput, match="the signals are the server's; told"):
        async with lifespan(lambda: told)(None):
            pass


@pytest.mark.parametrize("wrong", [(), ("http://127.0.0.1:8470",), (None,), (Listener, 3)])
async def test_what_is_no_part_is_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="lifespan: "):
        lifespan(*wrong)
    with pytest.raises(TypeError, match="lifespan: a part is a Listener or has"):
        async with lifespan(lambda: 3)(None):  # type: ignore[arg-type, return-value]
            pass


async def test_an_application_that_starts_again_needs_functions() -> None:
    """They make its parts anew; listeners, stores and bridges have one life, and the second start says so."""
    handled = Handled()
    again = lifespan(
        lambda: Listener("memory:again", QUEUES[0], handled, bridge=PULL_ONLY), store=lambda: open_store("memory:again")
    )
    for body in ("first", "second"):
        async with again(None) as state:
            await state["store"].put(QUEUES[0], [body])
            assert await handled.next() == body
    once = lifespan(Listener("memory:again", QUEUES[0], handled, bridge=PULL_ONLY))
    async with once(None):
        pass
    with pytest.raises(BadInput, match=r"this application starts a second time.*lambda: Listener"):
        async with once(None):
            pass


async def test_the_start_fails_with_the_error_of_a_listener() -> None:
    """The others stop, what was opened is closed, and the application is never entered."""
    closed: list[str] = []

    @asynccontextmanager
    async def resource() -> AsyncIterator[str]:
        try:
            yield "resource"
        finally:
            closed.append("resource")

    good = Listener("memory:start", QUEUES[0], Handled(), bridge=PULL_ONLY)
    bad = Listener("memory:start", QUEUES[1], Handled(), bridge="ftp://x")
    with pytest.raises(ConfigurationError, match="bridge"):
        async with lifespan(good, bad, resource)(None):
            pytest.fail("it has started")
    assert closed == ["resource"]
    assert not await good.started()


def broken(name: str) -> Listener:
    """Return a listener that breaks at its first receive."""

    class Broken:
        def tasks(self, depth: int) -> int:
            raise ZeroDivisionError("no such rule")

    return Listener(f"memory:{name}", QUEUES[0], Handled(), bridge=PULL_ONLY, scaling=Broken(), batch=1, name=name)


@pytest.mark.parametrize("handles", [True, False])
async def test_a_listener_that_breaks_ends_the_server(caplog: pytest.LogCaptureFixture, handles: bool) -> None:
    """It is logged, the others stop, and the server hears of it as by SIGTERM, if it handles that: else nobody does."""
    heard: list[int] = []
    standing = signal.signal(signal.SIGTERM, (lambda number, _: heard.append(number)) if handles else signal.SIG_DFL)
    other = Listener("memory:other", QUEUES[1], Handled(), bridge=PULL_ONLY)
    caplog.set_level(logging.ERROR, "queuebell.listener")

    async def serve() -> None:
        async with open_store("memory:breaks") as store, lifespan(broken("breaks"), other)(None):
            await store.put(QUEUES[0], ["x"] * 3)
            told = (lambda: heard) if handles else (lambda: "no listeners any more" in caplog.text)
            await until(told, "the server, or whoever reads the log, is told")
            assert not await other.started()

    try:
        with pytest.raises(ZeroDivisionError):
            await serve()
    finally:
        signal.signal(signal.SIGTERM, standing)
    assert heard == [signal.SIGTERM] * handles
    assert f"breaks: failed, and handles no more messages of {QUEUES[0]}: no such rule" in caplog.text


async def test_cancelled_while_it_stops_it_gives_up_at_once() -> None:
    """No task of a listener outlives the application, and what was at work comes back."""
    handled = Handled()
    handled.gate.clear()
    inside, leave = asyncio.Event(), asyncio.Event()

    async def serve() -> None:
        async with lifespan(Listener("memory:cancelled", QUEUES[0], handled, bridge=PULL_ONLY, grace=3600))(None):
            inside.set()
            await leave.wait()

    async with open_store("memory:cancelled") as store:
        serving = asyncio.create_task(serve(), name="serve")
        await inside.wait()
        await store.put(QUEUES[0], ["x"])
        assert await handled.next() == "x"
        leave.set()
        await until(lambda: "drain" in {task.get_name() for task in asyncio.all_tasks()}, "it stops")
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        assert serving.cancelled()
        depth = await store.depth(QUEUES[0])
        assert depth is not None and (depth.visible, depth.invisible) == (1, 0)
