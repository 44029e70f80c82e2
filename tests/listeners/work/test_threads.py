"""Threads for handlers that are plain functions: how many there are, and what runs in them."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

import pytest

from bridge.queues.embedded.memory import MemoryStore
from listeners import Message
from listeners.work.threads import NAME, HandlerThreads
from tests.listeners.rig import QUEUE, listening, settled
from tests.support.processes import PATIENCE_S

TENANT = contextvars.ContextVar("tenant", default="nobody")


def ended(threads: HandlerThreads) -> None:
    """Close them, and wait until none is left."""
    threads.close()
    for thread in [each for each in threading.enumerate() if each.name.startswith(NAME)]:
        thread.join(PATIENCE_S)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_calls_run_at_once_than_may_and_all_run(most: int) -> None:
    """Those beyond wait their turn; threads are daemons, so that a call that hangs keeps no process."""
    threads, go, begun = HandlerThreads(most), threading.Event(), threading.Semaphore(0)
    most_at_once, at_once, lock = [0], [0], threading.Lock()

    def call(number: int) -> Callable[[], tuple[int, bool]]:
        def run() -> tuple[int, bool]:
            with lock:
                at_once[0] += 1
                most_at_once[0] = max(most_at_once[0], at_once[0])
            begun.release()
            assert go.wait(PATIENCE_S)
            with lock:
                at_once[0] -= 1
            return number, threading.current_thread().daemon

        return run

    futures = [threads.submit(call(number)) for number in range(3 * most)]
    for _ in range(most):
        assert begun.acquire(timeout=PATIENCE_S)
    assert threads.running == 3 * most
    go.set()
    assert [future.result(PATIENCE_S) for future in futures] == [(number, True) for number in range(3 * most)]
    assert (most_at_once[0], threads.running) == (most, 0)
    ended(threads)


def test_a_free_thread_is_used_again_and_a_failure_frees_it_too() -> None:
    """One call after the other needs one thread, whether they return, raise or were cancelled before they ran."""
    threads, names = HandlerThreads(4), set[str]()

    def fail() -> None:
        names.add(threading.current_thread().name)
        raise LookupError("no such order")

    for _ in range(3):
        assert threads.submit(lambda: names.add(threading.current_thread().name)).result(PATIENCE_S) is None
        with pytest.raises(LookupError, match="no such order"):
            threads.submit(fail).result(PATIENCE_S)
    assert names == {f"{NAME}_1"} and threads.running == 0
    go = threading.Event()
    held = [threads.submit(lambda: go.wait(PATIENCE_S)) for _ in range(4)]
    waiting = threads.submit(lambda: names.add("too late"))
    assert waiting.cancel()
    go.set()
    assert [each.result(PATIENCE_S) for each in held] == [True] * 4
    assert threads.submit(lambda: 7).result(PATIENCE_S) == 7
    ended(threads)
    assert threads.running == 0 and "too late" not in names


async def test_a_plain_handler_sees_the_context_of_its_listener() -> None:
    """Context variables, and with them spans and loggers, reach the thread that a handler runs in."""
    seen: list[tuple[str, bool]] = []

    def handle(message: Message) -> None:
        seen.append((TENANT.get(), threading.current_thread() is threading.main_thread()))

    token = TENANT.set("acme")
    async with MemoryStore("threads-context") as store:
        await store.put(QUEUE, ["one"])
        async with listening(store, handle) as listener:
            await settled(listener, 1)
    TENANT.reset(token)
    assert seen == [("acme", False)]
