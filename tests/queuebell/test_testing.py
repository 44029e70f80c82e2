"""`Rehearsal` and the plugin for pytest: handlers with their bridge, their queue and a time that is moved."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge import BadInput, Publisher
from queuebell.bridge.queues.base import Depth
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.listeners import Bury, Message, Retry
from queuebell.testing import Rehearsal
from tests.support.command import ROOT, environment
from tests.support.processes import PATIENCE_S

QUEUE = "billing/orders"


@pytest.fixture
def rehearsal() -> Iterator[Rehearsal]:
    """Have one around the test."""
    with Rehearsal(patience=PATIENCE_S) as made:
        yield made


class Seen:
    """A handler that notes what it was given; bodies say what it is to do."""

    def __init__(self) -> None:
        self.attempts: list[tuple[str, int]] = []
        self.queues: set[str] = set()

    async def __call__(self, message: Message) -> None:
        self.attempts.append((message.text(), message.attempt))
        self.queues.add(message.queue)
        match message.text().split():
            case ["fail", *_]:
                raise ValueError("broken")
            case ["retry", after] if message.attempt == 1:
                raise Retry(after=float(after))
            case ["bury"]:
                raise Bury("no such customer")
            case ["sleep", length]:
                await asyncio.sleep(float(length))
                self.attempts.append(("slept", message.attempt))


def test_without_a_listener_it_waits(rehearsal: Rehearsal) -> None:
    """Until one comes; a queue that nobody knows is empty."""
    assert (rehearsal.waiting(QUEUE), rehearsal.buried(QUEUE), rehearsal.depth(QUEUE)) == ([], [], Depth(0, 0))
    rehearsal.put(QUEUE, "one")
    rehearsal.run_until_idle()
    assert [message.body for message in rehearsal.waiting(QUEUE)] == [b"one"]
    seen = Seen()
    rehearsal.listen(QUEUE, seen)
    rehearsal.run_until_idle()
    assert seen.attempts == [("one", 1)]


def test_a_function_is_waited_for(rehearsal: Rehearsal) -> None:
    """In its thread, whichever way time goes."""
    began, go, done = threading.Event(), threading.Event(), list[str]()

    def handle(message: Message) -> None:
        began.set()
        assert go.wait(PATIENCE_S)
        threading.Event().wait(0.05)
        done.append(message.text())
        if message.attempt == 1:
            raise ValueError("again")
        done.append("late")

    def let() -> None:
        assert began.wait(PATIENCE_S)
        go.set()

    other = threading.Thread(target=let)
    other.start()
    rehearsal.listen(QUEUE, handle)
    rehearsal.put(QUEUE, "x")
    rehearsal.run_until_idle()
    assert done == ["x"]
    other.join(PATIENCE_S)
    rehearsal.advance(10)
    assert done == ["x", "x", "late"]


def test_a_handler_that_waits_for_time_is_named() -> None:
    """`run_until_idle` gives up in the end, and says what to do; closing waits for no grace in real time."""
    with Rehearsal(patience=0.1) as rehearsal:
        for queue in (QUEUE, "billing/parcels"):
            rehearsal.listen(queue, Seen(), grace=3600)
            rehearsal.put(queue, "sleep 86400")
        with pytest.raises(TimeoutError, match=r"a handler of billing/orders, billing/parcels .* advance\(seconds\)"):
            rehearsal.run_until_idle()
        with pytest.raises(TimeoutError):
            rehearsal.run(asyncio.Event().wait())


def test_a_producer_and_a_store_of_ones_own(rehearsal: Rehearsal) -> None:
    """A coroutine of the test's puts, also to another store whose puts a publisher tells of."""
    seen = Seen()
    store = MemoryStore("rehearsed elsewhere")
    rehearsal.listen(QUEUE, seen, store=store)
    rehearsal.run_until_idle()

    async def produce() -> str:
        await store.put(QUEUE, ["elsewhere"])
        async with Publisher(rehearsal.bridge) as publisher:
            await publisher.publish(QUEUE)
        return "published"

    assert rehearsal.run(produce()) == "published"
    rehearsal.run_until_idle()
    assert seen.attempts == [("elsewhere", 1)]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e12])
def test_time_goes_forward_within_bounds(rehearsal: Rehearsal, seconds: float) -> None:
    with pytest.raises(BadInput, match="advance"):
        rehearsal.advance(seconds)


async def test_within_a_running_loop_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="without `async`"):
        Rehearsal()


PLUGIN = """
pytest_plugins = ["queuebell.pytest_plugin"]
import sys
assert not {"bridge", "listeners", "queuebell.testing"} & set(sys.modules), "loaded before it is used"

def test_it(rehearsal):
    done = []
    rehearsal.listen("a/q", lambda message: done.append(message.text()))
    rehearsal.put("a/q", "x")
    rehearsal.run_until_idle()
    assert done == ["x"]
"""


def test_the_plugin_brings_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PLUGIN)
    done = pytest_run("-p", "no:asyncio", "-W", "error", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def pytest_run(*words: str, cwd: Path) -> Any:
    """Run pytest as a program."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=cwd,
        env=environment({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
