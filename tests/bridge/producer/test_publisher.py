"""The publishers' shells: P3 to P5 with a real task, a real thread, and buses that fail."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from queuebell.bridge.contract.errors import BadInput, BusUnavailable
from queuebell.bridge.producer.buses import Bus
from queuebell.bridge.producer.publisher import BlockingPublisher, Publisher, PublisherState
from tests.support.buses import RecordingBus
from tests.support.processes import PATIENCE_S

# Private: `_send_batch`, `_loop`, `_thread`: the test plants a fault of the publisher there.


async def test_publish_returns_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """P4: a bus without an answer delays nothing, and unsent triggers are returned on leaving."""
    bus = RecordingBus()
    bus.gate.clear()
    publisher = Publisher(bus, source="shop", close_timeout=0.01)
    await publisher.publish("a", "q", id="first")
    await bus.until(lambda bus: len(bus.batches) == 1)
    for _ in range(100):
        await publisher.publish("a", "q")
    unsent = await publisher.close()
    assert [(event.queue, event.payload_size) for event in unsent] == [("a/q", 101)]
    assert await publisher.close() == unsent
    assert publisher.state().unsent == 1
    (record,) = caplog.records
    assert record.getMessage() == "closed with 1 unsent triggers"
    assert [record.__dict__[name] for name in ("unsent", "source")] == [1, "shop"]


async def test_a_bus_that_breaks_its_promise_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception is logged, and the event is kept."""
    bus = RecordingBus(KeyError("oops"))
    async with Publisher(bus) as publisher:
        await publisher.publish("a", "q")
        await bus.until(lambda bus: len(bus.taken) == 1)
    assert caplog.messages[0] == "unexpected error from a bus"
    assert publisher.state().failures == 1


async def test_faults_at_the_end_are_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus that cannot be closed, and a bug of the publisher; close still ends."""

    class Broken(RecordingBus):
        async def close(self) -> None:
            raise OSError("a fault")

    monkeypatch.setattr(Publisher, "_send_batch", None)
    publisher = Publisher(Broken())
    await publisher.publish("a", "q")
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "queuebell-publisher"]
    await asyncio.wait([task])
    await publisher.close()
    assert caplog.messages == [
        "unexpected error in the publisher's task",
        "unexpected error while closing a bus; its connection may stay open",
    ]
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [TypeError, OSError]


async def test_a_refused_event_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    bus = RecordingBus(BadInput("bad_trigger", "no"))
    async with Publisher(bus) as publisher:
        await publisher.publish("a", "q")
    assert bus.taken == []
    assert publisher.state().refused == 1
    (record,) = caplog.records
    assert record.getMessage() == "the bridge rejected a trigger: no"
    ((refused,),) = bus.batches
    assert [record.__dict__[name] for name in ("queue", "id", "code")] == ["a/q", refused.id, "bad_trigger"]


async def test_close_wakes_a_back_off() -> None:
    """P4."""
    bus = RecordingBus(*[BusUnavailable("away")] * 8)
    publisher = Publisher(bus, close_timeout=30.0)
    await publisher.publish("a", "q")
    await bus.until(lambda bus: len(bus.batches) == 5)
    bus.outcomes.clear()
    assert await publisher.close() == []
    assert len(bus.taken) == 1


async def test_cancelling_the_close_still_ends_the_task() -> None:
    bus = RecordingBus()
    bus.gate.clear()
    publisher = Publisher(bus, close_timeout=30.0)
    await publisher.publish("a", "q")
    await bus.until(lambda bus: len(bus.batches) == 1)
    closing = asyncio.create_task(publisher.close(), name="closing")
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert bus.closed


def test_a_wrong_close_timeout_is_refused() -> None:
    Publisher("http://127.0.0.1:1", close_timeout=0)
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(BadInput, match="close_timeout must be a number of seconds, 0 or more") as refused:
            Publisher("http://127.0.0.1:1", close_timeout=wrong)
        assert refused.value.code == "bad_parameter"


class _ThreadBus:
    """A bus for another thread's loop: no asyncio objects made here."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.threads: set[str] = set()

    async def publish(self, events: object) -> None:
        for event in events:  # type: ignore[attr-defined]
            self.events.append(f"{event.queue}:{event.payload_size}")
        self.threads.add(threading.current_thread().name)

    async def close(self) -> None:
        return


def test_the_blocking_twin_is_used_from_many_threads() -> None:
    """Every publish is sent before close returns, from the publisher's own thread."""
    bus: Bus = _ThreadBus()
    with BlockingPublisher(bus) as publisher:
        threads = [
            threading.Thread(target=lambda n=n: [publisher.publish("a", f"q{n}") for _ in range(20)]) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sizes: dict[str, int] = {}
    for entry in bus.events:
        queue, size = entry.split(":")
        sizes[queue] = sizes.get(queue, 0) + int(size)
    assert sizes == {f"a/q{n}": 20 for n in range(8)}
    assert bus.threads == {"queuebell-publisher"}
    assert publisher.state() == PublisherState(sent=publisher.state().sent)
    assert "queuebell-publisher" not in [one.name for one in threading.enumerate()]


def test_the_blocking_twin_refuses_like_the_other() -> None:
    """Wrong arguments, and use after close, raise ValueError in the caller's thread."""
    publisher = BlockingPublisher(_ThreadBus())
    with pytest.raises(ValueError):
        publisher.publish("a", "q", 0)
    assert publisher.close() == []
    assert publisher.close() == []
    with pytest.raises(ValueError, match="closed"):
        publisher.publish("a", "q")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_blocking_twin_says_that_its_thread_has_ended() -> None:
    """A callback may end it, as `SystemExit` does; close does not hang."""

    def leave() -> None:
        raise KeyboardInterrupt  # of a thread that is not the main one, nobody asks for it

    publisher = BlockingPublisher(_ThreadBus())
    publisher._loop.call_soon_threadsafe(leave)
    publisher._thread.join(PATIENCE_S)
    with pytest.raises(BusUnavailable, match="thread has ended"):
        publisher.publish("billing", "orders")
    assert publisher.close() == []


def test_the_blocking_twin_returns_what_was_not_sent() -> None:
    """P4: an unreachable bridge costs close_timeout."""
    publisher = BlockingPublisher("http://127.0.0.1:9", close_timeout=0.05)
    publisher.publish("a", "q", 2)
    (event,) = publisher.close()
    assert (event.queue, event.payload_size) == ("a/q", 2)


def test_the_blocking_twin_knows_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child has no thread: it raises, and close does not hang."""
    publisher = BlockingPublisher(_ThreadBus())
    real = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: real + 1)
    with pytest.raises(ValueError, match="fork"):
        publisher.publish("a", "q")
    assert publisher.close() == []
    monkeypatch.undo()
    publisher.close()
