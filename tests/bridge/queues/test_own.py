"""What an own store tells its bridge: levels, grants, reclaims (O1, O3, O7), on both kinds of own store."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bridge.contract.errors import BadInput, QueueNotFound
from bridge.queues import limits
from bridge.queues.base import Claim, NewMessage, Release, Settlement
from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.embedded.own_store import OwnStore
from bridge.queues.embedded.sqlite import SqliteStore
from bridge.queues.embedded.terms import Grant, Level
from tests.bridge.queues.clocks import Counter, FakeClock
from tests.bridge.queues.ears import Ear

Q = "billing/orders"
BOOT = "ab" * 16


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, clock: FakeClock, ear: Ear, tmp_path: Path) -> AsyncIterator[OwnStore]:
    made: OwnStore
    if request.param == "memory":
        made = MemoryStore(uuid.uuid4().hex, boot=BOOT, clock=clock, wall=clock.wall, receipts=Counter())
    else:
        made = SqliteStore(tmp_path / "queue.db", boot=BOOT, clock=clock, wall=clock.wall, receipts=Counter())
    made.observe(ear)
    await made.open()
    yield made
    await made.close()


def one(body: bytes = b"x", delay_ms: int = 0, ttl_s: int = -1) -> list[NewMessage]:
    return [NewMessage(body, delay_ms, ttl_s)]


async def test_each_commit_tells_the_level(store: OwnStore, ear: Ear, clock: FakeClock) -> None:
    """Put, receive and an empty receive are each told, as of their place in the writer's order."""
    await store.put(Q, [NewMessage(b"a"), NewMessage(b"b", 500)])
    await store.receive(Q, 1, 2.0)
    await store.receive(Q, 1, 2.0)
    assert ear.levels == [
        Level(Q, True, 1, 1, True, 2, 0, 0, 500, leased=0, delayed=1, oldest_ms=0),
        Level(Q, True, 0, 2, False, 0, 1, 0, 500, leased=1, delayed=1),
        Level(Q, True, 0, 2, False, 0, 1, 1, 500, leased=1, delayed=1),
    ]
    clock.now += 0.5
    received = await store.receive(Q, 5, 2.0)
    assert received.boot == BOOT
    # What came due since the last look made it rise, although it is taken again within the same commit.
    assert ear.levels[-1] == Level(Q, True, 0, 2, True, 0, 1, 0, 1500, leased=2)


async def test_calls_together_are_one_level(store: OwnStore, ear: Ear) -> None:
    """A put and the receive that takes it in the same commit still tell that it rose."""
    await store.create(Q)
    ear.levels.clear()
    put = asyncio.create_task(store.put(Q, one()), name="put")
    receive = asyncio.create_task(store.receive(Q, 1, 2.0), name="receive")
    await asyncio.gather(put, receive)
    assert sum(level.put for level in ear.levels) == 1
    assert sum(level.receives for level in ear.levels) == 1
    assert any(level.rose for level in ear.levels)
    assert ear.levels[-1].visible == 0


async def test_told_before_acknowledged(store: OwnStore, ear: Ear) -> None:
    """The bridge marks before the producer hears of it (B1)."""
    heard: list[int] = []
    task = asyncio.create_task(store.put(Q, one()), name="put")
    task.add_done_callback(lambda _: heard.append(len(ear.levels)))
    await task
    await asyncio.sleep(0)
    assert heard == [1]


async def test_reread_lets_time_pass(store: OwnStore, ear: Ear, clock: FakeClock) -> None:
    """A due timer re-reads: too early it tells the rest, in time that it rose (O3)."""
    await store.put(Q, one(delay_ms=100))
    clock.now += 0.099
    store.reread(Q)
    assert await ear.next_level() == Level(Q, True, 0, 1, False, 0, 0, 0, 1, delayed=1)
    clock.now += 0.001
    store.reread(Q)
    assert await ear.next_level() == Level(Q, True, 1, 0, True, 0, 0, 0, None, oldest_ms=0)
    store.reread("billing/unknown")
    assert await ear.next_level() == Level("billing/unknown", False, 0, 0, False, 0, 0, 0, None)


async def test_expiry_is_part_of_the_level(store: OwnStore, ear: Ear, clock: FakeClock) -> None:
    """What expired is not visible, and the level says when that will change (O1)."""
    await store.put(Q, one(ttl_s=1))
    assert ear.levels[-1].next_visible_in_ms == 1000
    clock.now += 1.0
    store.reread(Q)
    assert await ear.next_level() == Level(Q, True, 0, 0, False, 0, 0, 0, None)
    assert (await store.receive(Q, 1, 1.0)).messages == []


async def test_deleting_a_queue_is_told(store: OwnStore, ear: Ear) -> None:
    """A queue that is gone has no level."""
    await store.put(Q, one())
    await store.clear(Q)
    assert ear.levels[-1] == Level(Q, True, 0, 0, False, 0, 0, 0, None)
    await store.delete(Q)
    assert ear.levels[-1] == Level(Q, False, 0, 0, False, 0, 0, 0, None)


async def test_a_grant_on_an_empty_queue_leases_what_is_put(store: OwnStore, ear: Ear) -> None:
    """The first ones put are handed over within the put's own commit, never more than granted (O7)."""
    ear.next_grant = Grant("s1", 2, 2.0)
    receipts = await store.put(Q, [NewMessage(b"a"), NewMessage(b"late", 10), NewMessage(b"b"), NewMessage(b"c")])
    assert ear.asked == [(Q, 3)]
    (hand,) = ear.handed
    assert (hand.queue, hand.session, hand.visible) == (Q, "s1", 3)
    assert [m.body for m in hand.messages] == [b"a", b"b"]
    assert {m.dequeue_count for m in hand.messages} == {1}
    assert ear.levels == [Level(Q, True, 1, 3, True, 4, 0, 0, 10, leased=2, delayed=1, oldest_ms=0)]
    # The put's receipt is void by the lease, as after any receive.
    settling = await store.settle(Q, Settlement(delete=[Claim(receipts[0].id, receipts[0].pop_receipt)]))
    assert settling.delete[0].code == "pop_receipt_mismatch"
    settling = await store.settle(Q, Settlement(delete=[Claim(m.id, m.pop_receipt) for m in hand.messages]))
    assert [settled.ok for settled in settling.delete] == [True, True]


async def test_a_grant_with_others_waiting_takes_the_oldest(store: OwnStore, ear: Ear) -> None:
    """Pushing is no way past those who wait longer."""
    await store.put(Q, one(b"first"))
    ear.next_grant = Grant("s1", 1, 2.0)
    await store.put(Q, one(b"second"))
    assert [m.body for m in ear.carried()] == [b"first"]
    assert ear.handed[0].visible == 2


async def test_a_paused_queue_has_the_level_of_an_empty_one(store: OwnStore, ear: Ear, clock: FakeClock) -> None:
    """Nothing rises while it is paused, and time changes only what expires; resumed, all rises at once."""
    await store.put(Q, one(b"held"))
    await store.receive(Q, 1, 2.0)
    await store.pause(Q)
    assert ear.levels[-1] == Level(Q, True, 0, 1, False, 0, 0, 0, None, True, leased=1)
    await store.put(Q, one(b"new"))
    await store.put(Q, one(b"expires", ttl_s=5))
    assert ear.levels[-1] == Level(Q, True, 0, 3, False, 1, 0, 0, 5000, True, leased=1)
    clock.now += 2.0
    await store.receive(Q, 1, 2.0)
    assert ear.levels[-1] == Level(Q, True, 0, 3, False, 0, 1, 1, 3000, True)
    clock.now += 3.0
    heard = len(ear.levels)
    await store.pause(Q)
    assert [(level.invisible, level.rose) for level in ear.levels[heard:]] == [(2, False)]
    await store.pause(Q, False)
    assert ear.levels[-1] == Level(Q, True, 2, 0, True, 0, 0, 0, None, oldest_ms=5000)
    heard = len(ear.levels)
    await store.pause(Q, False)
    assert len(ear.levels) == heard


async def test_a_resume_that_is_emptied_within_its_commit_still_rose(store: OwnStore, ear: Ear) -> None:
    """Whoever went idle before must hear of it, as after a put."""
    await store.put(Q, one())
    await store.pause(Q)
    await asyncio.gather(store.pause(Q, False), store.receive(Q, 1, 2.0))
    assert any(level.rose and not level.paused for level in ear.levels[-2:])
    assert (ear.levels[-1].visible, ear.levels[-1].invisible) == (0, 1)


async def test_no_grant_is_honoured_while_paused(store: OwnStore, ear: Ear) -> None:
    """It is answered with nothing, whether the queue is empty or not."""
    await store.create(Q)
    await store.pause(Q)
    for body in (b"first", b"second"):
        ear.next_grant = Grant("s", 5, 2.0)
        await store.put(Q, one(body))
        assert (ear.handed[-1].session, ear.carried(), ear.handed[-1].visible) == ("s", [], 0)
    await store.pause(Q, False)
    assert [(m.body, m.dequeue_count) for m in (await store.receive(Q, 5, 2.0)).messages] == [
        (b"first", 1),
        (b"second", 1),
    ]


async def test_a_delayed_put_asks_for_no_grant(store: OwnStore, ear: Ear) -> None:
    """Nothing visible, nobody to wake."""
    ear.next_grant = Grant("s1", 1, 2.0)
    await store.put(Q, one(delay_ms=10))
    assert ear.asked == []


async def test_a_grant_for_a_put_that_fails_is_answered(
    store: OwnStore, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reserved slots for a session hears that they are free again."""
    monkeypatch.setattr("bridge.queues.embedded.state.QUEUES_MAX", 1)
    await store.create("billing/other")
    ear.next_grant = Grant("s1", 1, 2.0)
    with pytest.raises(BadInput) as refused:
        await store.put(Q, one())
    assert (refused.value.code, refused.value.status) == ("too_many_queues", 503)
    assert [(hand.session, hand.messages) for hand in ear.handed] == [("s1", [])]
    with pytest.raises(QueueNotFound):
        await store.peek(Q)


async def test_reclaim_undoes_a_lease_nobody_took_up(store: OwnStore, ear: Ear) -> None:
    """Visible at once, receipt void, count restored; and it rises, so the next session is woken."""
    ear.next_grant = Grant("s1", 1, 2.0)
    await store.put(Q, one())
    (carried,) = ear.carried()
    claim = Claim(carried.id, carried.pop_receipt)
    store.reclaim(Q, [claim])
    assert await ear.next_level() == Level(Q, True, 1, 0, True, 0, 0, 0, None, oldest_ms=0)
    settling = await store.settle(Q, Settlement(delete=[claim]))
    assert settling.delete[0].code == "pop_receipt_mismatch"
    assert (await store.receive(Q, 1, 2.0)).messages[0].dequeue_count == 1


async def test_reclaim_of_what_was_taken_up_does_nothing(store: OwnStore, ear: Ear) -> None:
    """An accepted, deleted or unknown message is left alone."""
    ear.next_grant = Grant("s1", 2, 2.0)
    await store.put(Q, [NewMessage(b"a"), NewMessage(b"b")])
    a, b = ear.carried()
    await store.settle(Q, Settlement(delete=[Claim(a.id, a.pop_receipt)], release=[Release(b.id, b.pop_receipt, 5000)]))
    store.reclaim(Q, [Claim(a.id, a.pop_receipt), Claim(b.id, b.pop_receipt), Claim("?", "?")])
    assert await ear.next_level() == Level(Q, True, 0, 1, False, 0, 0, 0, 5000, delayed=1)
    store.reclaim("billing/unknown", [Claim(a.id, a.pop_receipt)])
    assert not (await ear.next_level()).exists


async def test_reclaim_may_keep_the_count(store: OwnStore, ear: Ear) -> None:
    """Where the work may have begun, the attempt counts."""
    ear.next_grant = Grant("s1", 1, 2.0)
    await store.put(Q, one())
    (carried,) = ear.carried()
    store.reclaim(Q, [Claim(carried.id, carried.pop_receipt)], uncount=False)
    await ear.next_level()
    assert (await store.receive(Q, 1, 2.0)).messages[0].dequeue_count == 2


async def test_metadata_can_be_read(store: OwnStore) -> None:
    """What `create` was given last, for the endpoint that shows it."""
    assert isinstance(store, MemoryStore | SqliteStore)
    await store.create(Q, {"a": "ü"})
    await store.create(Q)
    assert (await store.standing(Q))[0] == {"a": "ü"}
    await store.create(Q, {})
    assert (await store.standing(Q))[0] == {}
    for wrong in ({"a": 1}, {"a": "\ud800"}, {"a": "x" * limits.METADATA_BYTES_MAX}):
        with pytest.raises(BadInput):
            await store.create(Q, wrong)  # type: ignore[arg-type]


async def test_an_observer_that_fails_harms_no_caller(store: OwnStore, ear: Ear) -> None:
    """What is committed is acknowledged; the failure goes to the loop's handler."""
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context.get("exception")))

    def fail(*_: object) -> None:
        raise RuntimeError("ear")

    ear.committed = fail  # type: ignore[method-assign]
    assert len(await store.put(Q, one())) == 1
    assert [str(failure) for failure in failures] == ["ear"]
