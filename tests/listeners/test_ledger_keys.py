"""A ledger without a key of its own never takes one message for another, wherever ids begin anew."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from pathlib import Path

import msgspec
import pytest

from bridge.contract.wire import Hello, Subscription, Wake
from bridge.producer.partitions import PartitionedQueue
from bridge.queues.base import NewMessage
from bridge.queues.jetstream.store import JetStreamStore
from bridge.service.bridge import Bridge
from bridge.storage.tables.memory import MemoryTable
from listeners import Ledger, Listener, Message
from listeners.core.record import Begin, Wait, begin
from listeners.work.take import carried_message
from tests.listeners.rig import listening
from tests.support.brokers import NatsServer
from tests.support.ear import Ear
from tests.support.sim_loop import pass_time, simulated

QUEUE = "billing/orders"
NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
FIRST = Message("1", QUEUE, b"x", 1, NOON)


def key_of(message: Message) -> str:
    return Ledger(MemoryTable(uuid.uuid4().hex)).wanted(message).key


def test_a_message_is_itself_on_each_attempt() -> None:
    """Neither the attempt, nor what woke the worker, nor a body that its holder changed makes it another."""
    again = msgspec.structs.replace(FIRST, attempt=2, wake_source="lease", body=b"half done")
    assert key_of(again) == key_of(FIRST)


@pytest.mark.parametrize(
    "other",
    [
        {"queue": "billing/orders-p1"},
        {"id": "2"},
        {"inserted_at": NOON + datetime.timedelta(milliseconds=1)},
    ],
)
def test_one_that_differs_is_another(other: dict[str, object]) -> None:
    """An id is unique in its queue only, and only as long as the queue is there."""
    assert key_of(msgspec.structs.replace(FIRST, **other)) != key_of(FIRST)


@simulated
async def test_a_message_is_itself_whether_it_is_carried_or_received() -> None:
    """A wake brings the same id and time of insertion as the store tells later."""
    ear = Ear()
    async with Bridge() as bridge:
        bridge.connect(ear).feed(Hello("1" * 32, "one", [Subscription(QUEUE, 4, own=True)], ["messages"]))
        await bridge.store.put(QUEUE, [NewMessage(b"x")])
        await pass_time(60)
        await bridge.store.pause(QUEUE)
        await pass_time(60)
        (stored,) = await bridge.store.peek(QUEUE)
    wakes = [frame for frame in ear.said if isinstance(frame, Wake)]
    carried = [carried_message(each) for wake in wakes for each in wake.messages or []]
    assert [(each.id, each.inserted_at) for each in carried] == [(stored.id, stored.inserted_at)]


async def handled(listener: Listener, count: int) -> None:
    """Wait until so many messages have succeeded, be it that the ledger took them for done."""
    async with asyncio.timeout(60):
        while sum(figures.handled for figures in listener.state().queues.values()) < count:
            await asyncio.sleep(0.005)


async def test_one_scope_over_partitions_handles_all(tmp_path: Path) -> None:
    """Each partition of JetStream is a stream that counts from 1."""
    bodies = [f"order {number}" for number in range(20)]
    seen: list[str] = []

    async def see(message: Message) -> None:
        seen.append(message.text())

    ledger = Ledger(MemoryTable(uuid.uuid4().hex), scope="orders")
    async with NatsServer(tmp_path) as server, JetStreamStore(f"nats://127.0.0.1:{server.port}") as store:
        queue = PartitionedQueue(store, "billing/orders:4")
        await queue.create()
        for body in bodies:
            await queue.put([body])
        async with listening(store, see, "billing/orders:4", ledger=ledger) as listener:
            await handled(listener, len(bodies))
    assert sorted(seen) == sorted(bodies)


async def test_a_queue_made_anew_is_handled_anew(tmp_path: Path) -> None:
    """Its ids begin at 1 again, while the ledger remembers those of the queue that was deleted."""
    seen: list[str] = []

    async def see(message: Message) -> None:
        seen.append(message.text())

    ledger = Ledger(MemoryTable(uuid.uuid4().hex))
    async with NatsServer(tmp_path) as server, JetStreamStore(f"nats://127.0.0.1:{server.port}") as store:
        ids = []
        for round_ in ("old", "new"):
            receipts = await store.put(QUEUE, [NewMessage(b"%s %d" % (round_.encode(), n)) for n in range(3)])
            ids.append([receipt.id for receipt in receipts])
            async with listening(store, see, QUEUE, ledger=ledger) as listener:
                await handled(listener, 3)
            await store.delete(QUEUE)
    assert ids[0] == ids[1], "else this asks for nothing"
    assert sorted(seen) == sorted(f"{round_} {n}" for round_ in ("old", "new") for n in range(3))


def test_messages_of_one_number_in_two_queues_are_not_the_same() -> None:
    """Ids begin anew in each queue: a second attempt of the one takes nothing over from a first of the other."""
    ledger = Ledger(MemoryTable(uuid.uuid4().hex), key=lambda message: "order 7", scope="all")
    found = ledger.wanted(FIRST)
    for other in (
        msgspec.structs.replace(FIRST, attempt=2, queue="billing/other"),
        msgspec.structs.replace(FIRST, attempt=2, inserted_at=NOON + datetime.timedelta(seconds=1)),
    ):
        assert begin(found, 1.0, ledger.wanted(other)) == Wait(59.0)
    again = ledger.wanted(msgspec.structs.replace(FIRST, attempt=2))
    assert begin(found, 1.0, again) == Begin(again)
