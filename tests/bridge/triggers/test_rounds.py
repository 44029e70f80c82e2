"""The shell of rounds: when it asks, what a failure costs it, and what many queues cost."""

from __future__ import annotations

import asyncio
import logging

import pytest

from queuebell.bridge.contract.errors import BadQueueReference, StoreUnavailable
from queuebell.bridge.contract.wire import EmptyReceive, Hello, ListenerHeartbeat, QueueBeat, Subscription, Wake
from queuebell.bridge.observe.facts import Fact, RoundMade
from queuebell.bridge.queues.base import VisibleQueues
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.triggers.rounds import Rounds
from tests.support.ear import Ear
from tests.support.sim_loop import simulated

EVERY_S, BEAT_S = 54.0, 1.0


class Store:
    kind = "postgres"
    scope = "5c"

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.found: list[str] | None = []
        self.takes_s = 0.0
        self.errors: list[BaseException] = []
        self.opened, self.closed = 0, 0

    def fingerprint(self, queue: str) -> str:
        if queue == "other/orders":
            raise BadQueueReference("this store has no such queue")
        if queue == "faulty/orders":
            raise RuntimeError("a fault")
        return queue

    async def visible_queues(self) -> VisibleQueues | None:
        self.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        if self.errors:
            raise self.errors.pop()
        return None if self.found is None else VisibleQueues(self.found, "here and there")

    async def close(self) -> None:
        self.closed += 1
        raise RuntimeError("a fault")

    def open(self) -> Store:
        self.opened += 1
        return self


class Listening:
    """A session of many queues that finds each empty whenever it is woken."""

    def __init__(self, bridge: Bridge, *queues: str, store: str = "") -> None:
        self.bridge, self.queues, self.ear = bridge, queues, Ear()
        self.session = bridge.connect(self.ear)
        self.session.feed(Hello("1" * 32, "1", [Subscription(each, 4, store=store or each) for each in queues], []))

    def wakes(self) -> list[tuple[str, str]]:
        """Find nothing for each wake, and return queues and reasons."""
        wakes = [frame for frame in self.ear.said if isinstance(frame, Wake)]
        self.ear.said.clear()
        for wake in wakes:
            self.session.feed(EmptyReceive(wake.queue, self.bridge.boot, wake.gen, 0, place="here and there"))
        return [(wake.queue, wake.reason) for wake in wakes]

    async def listen(self, seconds: float) -> list[tuple[str, str]]:
        found = self.wakes()
        for _ in range(int(seconds)):
            await asyncio.sleep(BEAT_S)
            found += self.wakes()
            self.session.feed(ListenerHeartbeat(0, {each: QueueBeat(free=4) for each in self.queues}, {}))
        return found


@simulated
@pytest.mark.parametrize("count", [10, 1000])
async def test_many_idle_queues_cost_one_question_a_period(count: int) -> None:
    store, queues = Store(), [f"a/q{number}" for number in range(count)]
    async with Bridge() as bridge:
        rounds = Rounds(bridge, store.open)
        rounds.start()
        listening = Listening(bridge, *queues)
        assert await listening.listen(30) == [(each, "resync") for each in queues]
        assert await listening.listen(600) == []
        assert len(store.asked) == 11
        store.found = ["a/q1", "nobody/listens"]
        assert await listening.listen(EVERY_S) == [("a/q1", "sweep")]
        # The address is looked up again from time to time; what fails there costs nothing.
        assert (store.opened, store.closed) == (2, 1)
        await rounds.stop()
        await rounds.stop()


@simulated
async def test_it_asks_while_a_listener_of_such_a_store_is_here() -> None:
    store = Store()
    async with Bridge() as bridge:
        rounds = Rounds(bridge, store.open, here=True)
        rounds.start()
        listening = Listening(bridge, "a/b", store="another")
        await listening.listen(300)
        assert store.asked == []
        Listening(bridge, "other/orders")
        Listening(bridge, "faulty/orders")
        another = Listening(bridge, "a/c")
        await another.listen(600)
        assert len(store.asked) in (11, 12)
        await listening.listen(1200)
        assert len(store.asked) <= 16
        await rounds.stop()
    assert (store.opened, store.closed) == (1, 0)


@simulated
@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), RuntimeError("a fault"), asyncio.CancelledError(), None], ids=repr
)
async def test_two_failures_cost_one_round(error: BaseException | None, caplog: pytest.LogCaptureFixture) -> None:
    """After one it asks again. After two its queues are swept one by one, and the next round stands for them again."""
    store, facts = Store(), list[Fact]()
    async with Bridge() as bridge:
        bridge.observe(lambda fact: facts.append(fact) if isinstance(fact, RoundMade) else None)
        rounds = Rounds(bridge, store.open)
        rounds.start()
        listening = Listening(bridge, "a/b")
        await listening.listen(EVERY_S * 2 + 6)
        if error:
            store.errors = [error]
            assert await listening.listen(EVERY_S) == []
        store.errors, store.found = [error] * 2 if error else [], [] if error else None
        with caplog.at_level(logging.WARNING):
            assert await listening.listen(EVERY_S + 14) == [("a/b", "sweep")]
        store.found = []
        await listening.listen(EVERY_S)
        assert await listening.listen(300) == []
        once = [False, True] if error else []
        answered = [fact.answered for fact in facts if isinstance(fact, RoundMade)]
        assert answered[: 5 + len(once)] == [True, True, *once, False, False, True]
        # Each repetition connects anew.
        assert store.opened == (3 if error else 2)
        assert ("swept by itself: away" in caplog.text) == isinstance(error, StoreUnavailable)
        await rounds.stop()


@simulated
async def test_a_round_is_as_old_as_its_question() -> None:
    """What becomes visible while the store answers is not covered by the answer."""
    store = Store()
    store.takes_s = 9.0
    async with Bridge(draw=lambda: 1.0) as bridge:
        rounds = Rounds(bridge, store.open)
        rounds.start()
        listening = Listening(bridge, "a/b")
        await listening.listen(EVERY_S + 12)
        empty_at = bridge.scheduler.timers.found_empty_at(bridge.scheduler.pending.by_queue["a/b"])
        assert empty_at == store.asked[0]
        await rounds.stop()


@simulated
async def test_what_a_peer_tells_meanwhile_postpones_the_question() -> None:
    """Also the repetition of one that failed: then the peer's stands for it (C11)."""
    store = Store()
    async with Bridge() as bridge:
        rounds = Rounds(bridge, store.open)
        rounds.start()
        listening = Listening(bridge, "a/b")
        await listening.listen(EVERY_S + 1)
        (made,) = bridge.scheduler.timers.rounds
        for _ in range(5):
            await listening.listen(30)
            assert made.answered(bridge.now(), [], "here and there")
        assert len(store.asked) == 1
        store.errors = [StoreUnavailable("away")]
        await listening.listen(EVERY_S + 1)
        assert len(store.asked) == 2
        assert made.answered(bridge.now(), [], "here and there")
        await listening.listen(10)
        assert len(store.asked) == 2
        await listening.listen(EVERY_S)
        assert len(store.asked) == 3
        await rounds.stop()
