"""A retry policy at work: for each kind of worker, beside what an error or a handler asks for, across restarts."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from bridge.queues.base import Capabilities
from listeners import Listener, Message, Pool, Retry, RetryPolicy, batch
from tests.listeners.rig import POISON, QUEUE, Store, listening, run_until, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulated

OTHER = "billing/parcels"
POLICY = RetryPolicy(
    attempts=4,
    first_s=3,
    ceiling_s=20,
    factor=5,
    jitter=0,
    transient=RetryPolicy(attempts=5, first_s=7, factor=2, ceiling_s=100, jitter=0),
)


class Busy(Exception):
    """As a client tells that its server is throttling, and for how long."""

    status = 503

    def __init__(self, retry_after: float) -> None:
        self.retry_after = retry_after


class Worker:
    """Fails each attempt with ``error``, and notes when it began; of one kind."""

    def __init__(self, error: Exception, kind: str = "single") -> None:
        self.error = error
        self.kind = kind
        self.began: list[float] = []
        self.attempts: list[int] = []

    async def one(self, message: Message) -> None:
        self._fail(message)

    @batch
    async def many(self, messages: list[Message]) -> list[Any]:
        for message in messages:
            self._fail(message)
        return []

    def _fail(self, message: Message) -> None:
        self.began.append(self.loop.time())
        self.attempts.append(message.attempt)
        raise self.error

    @property
    def handler(self) -> Any:
        self.loop = asyncio.get_running_loop()
        return self.many if self.kind == "batch" else self.one

    @property
    def options(self) -> dict[str, Any]:
        return {"pool": {"pool": Pool(4)}, "bridge": {"bridge": FakeBridge()}}.get(self.kind, {})

    def pauses(self) -> list[float]:
        return [round(after - before, 1) for before, after in itertools.pairwise(self.began)]


@pytest.mark.parametrize("kind", ["single", "batch", "pool", "bridge"])
@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (ValueError("unclear"), [3, 15, 20]),
        (TimeoutError("transient"), [7, 14, 28, 56]),
        (Busy(retry_after=30), [30, 30, 30, 56]),
        (Busy(retry_after=200), [200] * 4),
        (Retry(after=50), [50] * 3),
        (Retry(after=0.5), [0.5] * 3),
        (Retry(), [3, 15, 20]),
    ],
    ids=lambda value: None if isinstance(value, list) else repr(value),
)
@simulated
async def test_pauses_and_attempts_are_those_of_the_policy(error: Exception, pauses: list[float], kind: str) -> None:
    """By the class of the failure; what an error asks for beyond that, and what a handler says, comes first."""
    store, worker = Store(), Worker(error, kind)
    await store.fill(b"x")
    await run_until(listening(store, worker.handler, retry=POLICY, **worker.options), 1, "buried")
    assert worker.pauses() == pytest.approx(pauses, abs=0.6)
    assert worker.attempts == list(range(1, len(pauses) + 2))
    assert await store.bodies(POISON) == [b"x"]


@simulated
async def test_listeners_of_one_pool_have_their_own_policies() -> None:
    """They share slots, and nothing else."""
    store, pool = Store(), Pool(2)
    quick, slow = Worker(ValueError("quick")), Worker(ValueError("slow"))
    await store.fill(b"x")
    await store.fill(b"y", queue=OTHER)
    late = RetryPolicy(attempts=3, first_s=40, ceiling_s=40, jitter=0)
    async with (
        listening(store, quick.handler, retry=POLICY, pool=pool) as one,
        listening(store, slow.handler, OTHER, retry=late, pool=pool) as two,
    ):
        await settled(one, 1, "buried")
        await settled(two, 1, "buried", OTHER)
    assert quick.pauses() == pytest.approx([3, 15, 20], abs=0.6)
    assert slow.pauses() == pytest.approx([40, 40], abs=0.6)


@simulated
async def test_a_worker_that_comes_later_goes_on_where_the_last_one_stopped() -> None:
    """The store counts the attempts: neither the pauses nor the burial begin anew, and each goes by its own policy."""
    store, first, second = Store(), Worker(ValueError("x")), Worker(ValueError("x"))
    await store.fill(b"x")
    async with listening(store, first.handler, retry=POLICY) as listener:
        await settled(listener, 2, "retried")
    steady = RetryPolicy(attempts=4, first_s=30, ceiling_s=300, factor=1, jitter=0)
    await run_until(listening(store, second.handler, retry=steady), 1, "buried")
    assert (first.attempts, second.attempts) == ([1, 2], [3, 4])
    assert second.began[0] - first.began[1] == pytest.approx(15, abs=0.6)
    assert second.pauses() == pytest.approx([30], abs=0.6)


@simulated
async def test_a_message_is_not_buried_unseen_while_its_class_has_attempts_left() -> None:
    """The fifth attempt of a transient failure begins, though any other failure ends with the fourth."""
    store, worker = Store(), Worker(TimeoutError())
    await store.fill(b"x")
    async with listening(store, worker.handler, retry=POLICY) as listener:
        await settled(listener, 4, "retried")
        worker.error = ValueError("unclear now")
        await settled(listener, 1, "buried")
    (burial,) = await store.burials()
    assert burial.reason == "attempt 5 of 4: ValueError: unclear now"


@simulated
async def test_a_pause_longer_than_the_store_can_hide_is_as_long_as_it_can() -> None:
    """A release that the store refuses would bring the message back when its lease ends: sooner still."""

    class Limited(Store):
        capabilities = Capabilities(visibility_s_max=60)  # type: ignore[assignment]

    store, worker = Limited(), Worker(ValueError("x"))
    await store.fill(b"x")
    policy = RetryPolicy(first_s=3600, ceiling_s=3600, jitter=0)
    async with listening(store, worker.handler, retry=policy):
        await pass_time(1)
    ((release,),) = [settlement.release for settlement in store.settlements]
    assert release.after_ms == 60_000


@simulated
async def test_what_is_on_a_poison_queue_is_tried_by_the_policy_for_ever() -> None:
    """The pauses grow to the ceiling, and no attempt is the last."""
    store, worker = Store(), Worker(ValueError("x"))
    await store.fill(b"x", queue=POISON)
    async with listening(store, worker.handler, POISON, retry=POLICY) as listener:
        await settled(listener, 6, "retried", POISON)
    assert worker.pauses() == pytest.approx([3, 15, 20, 20, 20], abs=0.6)


def test_a_contradiction_is_refused() -> None:
    """Two numbers of attempts, or a policy that is none."""
    for options, error in (({"max_attempts": 6, "retry": POLICY}, ValueError), ({"retry": 5}, TypeError)):
        with pytest.raises(error, match="retry: "):
            Listener("memory:x", QUEUE, print, bridge=FakeBridge(), **options)
