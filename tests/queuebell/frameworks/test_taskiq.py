"""The broker for taskiq in process: what is put, handed over and settled, and what becomes of each bad end.

===================================  =====================================================================
what meets the broker                asked by
===================================  =====================================================================
typed arguments, results             test_typed_tasks_have_results
put once                             test_a_retried_kick_is_not_doubled, test_a_schedule_may_repeat_itself
delays                               test_a_delay_is_the_stores, test_a_delay_that_is_none
burial                               test_what_is_no_task, test_arguments_that_do_not_fit, test_unknown_task_in_the_end
retry policy                         test_unknown_task_until_it_is_known, test_a_middleware_that_breaks
taskiq's retries, requeue            test_retries_are_taskiqs, test_requeued_by_its_own_context
acknowledgement: when, manual        test_acknowledged_when_taskiq_says, test_manual_acknowledgement
stop, shutdown, restart              test_a_stop_gives_back, test_shutdown_gives_back, test_used_again
leases                               test_a_lease_that_is_lost
concurrency, several listeners       test_more_than_taskiq_runs, test_two_listeners_share
publish to a bridge elsewhere        test_a_store_elsewhere
partitions, pools                    test_refused_at_once (a partitioned queue is refused; a pool is not offered)
worker processes, stores, scheduler  test_taskiq_workers.py
===================================  =====================================================================
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pydantic
import pytest
import pytest_asyncio
from taskiq import (
    Context,
    TaskiqDepends,
)
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq.brokers.inmemory_broker import InmemoryResultBackend
from taskiq.exceptions import SendTaskError

from queuebell import (
    BadInput,
    BadQueueReference,
    Bridge,
    ConfigurationError,
    RetryPolicy,
)
from queuebell.bridge.contract.burial import Burial, opened
from queuebell.frameworks.taskiq import QueuebellBroker
from tests.support.processes import until

QUEUE = "taskiq/tasks"
POISON = "taskiq/tasks-poison"
WITHIN_S = 100.0
AT_ONCE = RetryPolicy(attempts=3, first_s=0.001, ceiling_s=0.001, factor=1)
_numbers = itertools.count()


class Order(pydantic.BaseModel):
    number: int
    placed: datetime.date


class Strange:
    """Nothing that pydantic knows a rule for."""


@pytest_asyncio.fixture
async def bridge() -> AsyncIterator[Bridge]:
    """A bridge of this process, with its own queues."""
    async with Bridge() as bridge:
        yield bridge


def broker_at(store: Any, **options: Any) -> QueuebellBroker:
    """A broker whose results are kept in this process."""
    return QueuebellBroker(store, **options).with_result_backend(InmemoryResultBackend())


@asynccontextmanager
async def working(broker: QueuebellBroker, **options: Any) -> AsyncIterator[None]:
    """Run a receiver of taskiq's, and shut the broker down after it."""
    running = asyncio.create_task(run_receiver_task(broker, run_startup=True, **options))
    try:
        async with asyncio.timeout(WITHIN_S):
            yield
    finally:
        running.cancel()
        await asyncio.wait([running])
        await broker.shutdown()


async def drained(bridge: Bridge, queue: str = QUEUE) -> None:
    """Wait until a queue holds nothing, visible or leased."""

    async def empty() -> bool:
        depth = await bridge.store.depth(queue)
        return depth is not None and depth.visible + depth.invisible == 0

    await until(empty, f"{queue} is empty")


async def buried(bridge: Bridge, count: int = 1) -> list[Burial]:
    """Wait for so many burials and return what is said of them."""

    async def enough() -> bool:
        depth = await bridge.store.depth(POISON)
        return depth is not None and depth.visible == count

    await until(enough, f"{count} burials")
    found = [opened(message.body)[0] for message in await bridge.store.peek(POISON)]
    return [burial for burial in found if burial is not None]


@pytest.mark.parametrize("delay", ["soon", -1, 604_801, "nan", "inf", 10**400])
async def test_a_delay_that_is_none(bridge: Bridge, delay: Any) -> None:
    broker = broker_at(bridge)

    @broker.task
    async def work() -> None: ...

    with pytest.raises(SendTaskError) as refused:
        await work.kicker().with_labels(delay=delay).kiq()
    assert isinstance(refused.value.__cause__, BadInput)
    assert "a number of seconds from 0 to 604800; nothing was put" in str(refused.value.__cause__)
    assert await bridge.store.depth(QUEUE) is None
    await broker.shutdown()


async def test_arguments_that_do_not_fit(bridge: Bridge, caplog: pytest.LogCaptureFixture) -> None:
    """The function is never called with them: they are buried, the reason names the argument and repeats no value."""
    broker = broker_at(bridge)
    called: list[object] = []

    @broker.task(task_name="charge")
    async def charge(order: Order, *cents: int, when: datetime.date | None = None) -> None:
        called.append(order)

    kick: Callable[..., Any] = charge.kiq
    fits = {"number": 1, "placed": "2026-11-22"}
    await kick({"number": "secret", "placed": "2026-11-22"})
    await kick(fits, 1, "secret")
    await kick(fits, when="secret")
    await kick(fits, nobody_knows=1)
    async with working(broker):
        reasons = sorted(burial.reason for burial in await buried(bridge, 4))
        await kick(fits, 1, 2, when=None)
        await until(lambda: called, "it is called with what fits")
        await drained(bridge)
    assert [reason.partition("charge: ")[2].partition(":")[0] for reason in reasons] == [
        "argument cents",
        "argument order",
        "argument when",
        "got an unexpected keyword argument 'nobody_knows'",
    ]
    assert "argument order: number: Input should be a valid integer" in reasons[1]
    assert called == [Order(number=1, placed=datetime.date(2026, 11, 22))]
    assert "secret" not in "".join(reasons)


async def test_arguments_that_nobody_can_check(bridge: Bridge) -> None:
    """What pydantic has no rule for, what is injected and what has no type goes to the function as it is."""
    broker = broker_at(bridge)
    called: list[object] = []

    @broker.task
    async def work(strange: Strange, free, context: Annotated[Context, TaskiqDepends()], **more: int) -> None:  # type: ignore[no-untyped-def]
        called.append((strange, free, context.message.task_id, more))

    kick: Callable[..., Any] = work.kicker().with_task_id("it").kiq
    await kick("anything", [1], more="x")
    async with working(broker):
        await until(lambda: called, "it is called")
        await drained(bridge)
    assert called == [("anything", [1], "it", {"more": "x"})]


async def test_unknown_task_in_the_end(bridge: Bridge) -> None:
    """After its attempts it is buried, with the name that nobody knew."""
    broker = broker_at(bridge, retry=AT_ONCE)

    async def work() -> None: ...

    elsewhere = QueuebellBroker(bridge)
    await elsewhere.register_task(work, task_name="nowhere").kiq()
    await elsewhere.shutdown()
    async with working(broker):
        (burial,) = await buried(bridge)
    assert (burial.failure, burial.attempts) == ("exhausted", 3)
    assert "no task 'nowhere' is known to this worker" in burial.reason


async def test_manual_acknowledgement(bridge: Bridge) -> None:
    """A task that acknowledges by itself is done once; one that forgets it comes again, and is buried in the end."""
    broker = broker_at(bridge, retry=AT_ONCE)
    seen: list[bool] = []

    @broker.task(ack_type=AcknowledgeType.MANUAL.value)
    async def work(remembers: bool, context: Annotated[Context, TaskiqDepends()]) -> None:
        seen.append(remembers)
        if remembers:
            await context.ack()

    kick: Callable[..., Any] = work.kiq
    async with working(broker):
        await kick(True)
        await drained(bridge)
        await kick(False)
        (burial,) = await buried(bridge)
    assert seen == [True, False, False, False]
    assert "was not acknowledged" in burial.reason


async def _invisible(bridge: Bridge, count: int) -> bool:
    return (await bridge.store.depth(QUEUE)).invisible == count


async def test_a_lease_that_is_lost(bridge: Bridge, caplog: pytest.LogCaptureFixture) -> None:
    """A message that was taken away is not handed over, and one that was handed over is told of at its end."""
    caplog.set_level(logging.INFO, "queuebell.listener")
    broker = QueuebellBroker(bridge, visibility_timeout=0.2)
    await bridge.store.put(QUEUE, ["a", "b"])
    listening = broker.listen()
    held = await anext(listening)
    await until(lambda: _invisible(bridge, 2), "both are received")
    await bridge.store.clear(QUEUE)
    await until(lambda: caplog.text.count("was deleted while it was handled") == 2, "the listener notices")
    await bridge.store.put(QUEUE, ["c"])
    assert (await anext(listening)).data == b"c"
    await held.ack()
    assert "it was no longer held" in caplog.text
    await broker.shutdown()
    await listening.aclose()


async def test_more_than_taskiq_runs(
    bridge: Bridge, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a process receives more than taskiq runs at once, somebody is told which number to set."""
    monkeypatch.setattr("queuebell.frameworks.taskiq.broker.IDLE_S", 0.0)
    broker = broker_at(bridge, concurrency=3)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    @broker.task
    async def work() -> None:
        begun.set()
        await goes_on.wait()

    for _ in range(3):
        await work.kiq()
    async with working(broker, max_async_tasks=1):
        await begun.wait()
        await until(lambda: _invisible(bridge, 3), "all are received")
        goes_on.set()
        await drained(bridge)
    assert caplog.text.count("Make `concurrency` of QueuebellBroker 1,") == 1


async def test_a_store_elsewhere(bridge: Bridge) -> None:
    """A kick to a store that rings no bridge is published, put once or not; nobody polls for it."""
    broker = broker_at(f"memory:taskiq-{next(_numbers)}", bridge=bridge)

    @broker.task
    async def work(number: int) -> int:
        return number

    async with working(broker):
        first = await work.kiq(1)
        assert (await first.wait_result(timeout=WITHIN_S)).return_value == 1
        second = await work.kicker().with_labels(schedule_id="s").kiq(2)
        assert (await second.wait_result(timeout=WITHIN_S)).return_value == 2
    assert bridge.describe(QUEUE).triggers >= 2


async def test_a_listener_that_cannot_work(bridge: Bridge) -> None:
    """What ends the listener is raised to taskiq, whose worker ends with it and is started again."""

    class Refuses:
        def __init__(self) -> None:
            self.capabilities = bridge.store.capabilities

        def fingerprint(self, queue: str) -> str:
            raise BadQueueReference("no such queue here")

    broker = QueuebellBroker(Refuses(), bridge=bridge)
    with pytest.raises(BadQueueReference):
        await anext(broker.listen())
    await broker.shutdown()


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (["gopher://here"], {}, ConfigurationError),
        (["memory:x"], {}, ConfigurationError),
        (["http://127.0.0.1:1", "orders"], {}, BadQueueReference),
        (["http://127.0.0.1:1", "billing/orders:8"], {}, BadQueueReference),
        (["http://127.0.0.1:1"], {"concurrency": 0}, BadInput),
        (["http://127.0.0.1:1"], {"visibility_timeout": 0}, BadInput),
        (["http://127.0.0.1:1"], {"poison_queue": "tasks"}, ConfigurationError),
    ],
)
def test_refused_at_once(arguments: list[Any], options: dict[str, Any], error: type[Exception]) -> None:
    """What cannot work is refused where the broker is made, and no event loop is needed for that."""
    with pytest.raises(error):
        QueuebellBroker(*arguments, **options)
