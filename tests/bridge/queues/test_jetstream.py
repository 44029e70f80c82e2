"""What of the JetStream store the conformance suite does not ask: limits of leases, lost connections, strangers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.js.api import AckPolicy, ConsumerConfig

from bridge.contract.errors import ConfigurationError, StoreUnavailable, UnknownOutcome
from bridge.queue import Claim, NewMessage, Release, Settlement
from bridge.queues import open_store
from bridge.queues.jetstream import JetStreamStore
from bridge.queues.jetstream_names import Delivery, Names, reference_of
from tests.support.brokers import NatsServer
from tests.support.processes import until

QUEUE = "shop/orders"
LONG = 30.0


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path) as server:
        yield server


@pytest_asyncio.fixture
async def store(server: NatsServer) -> AsyncIterator[JetStreamStore]:
    async with JetStreamStore(f"nats://127.0.0.1:{server.port}") as store:
        yield store


async def consume(server: NatsServer, **config: int) -> None:
    """Make the queue's consumer as somebody else might have made it."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}")
    names = Names.of("queuebell", QUEUE)
    await client.jsm().add_consumer(
        names.stream, ConsumerConfig(durable_name=names.consumer, ack_policy=AckPolicy.EXPLICIT, ack_wait=30, **config)
    )
    await client.close()


async def has(store: JetStreamStore, messages: int) -> bool:
    found = await store.depth(QUEUE)
    return found is not None and found.visible == messages


def test_acknowledgements_are_read() -> None:
    """The subject of an acknowledgement tells stream, count, sequence and time, in the short and the long form."""
    short = "$JS.ACK.queuebell=a=b.queuebell.2.7.9.1700000000123456789.4"
    long = "$JS.ACK._.hash.queuebell=a=b.queuebell.2.7.9.1700000000123456789.4.random"
    for subject in (short, long):
        delivery = Delivery.of(subject)
        assert delivery is not None
        assert (delivery.stream, delivery.consumer) == ("queuebell=a=b", "queuebell")
        assert (delivery.delivered, delivery.sequence) == (2, 7)
        assert delivery.stored_at.isoformat() == "2023-11-14T22:13:20.123456+00:00"
    for subject in ("", "x", "$JS.ACK.a.b", short + " ", short.replace(".2.", ".x."), "a" + short):
        assert Delivery.of(subject) is None


def test_streams_lead_back_to_references() -> None:
    """A stream of ours has one reference; those of others have none."""
    assert reference_of("queuebell", Names.of("queuebell", "a-b/c_d").stream) == "a-b/c_d"
    for stream in ("ORDERS", "other=a=b", "queuebell=a", "queuebell=a=b=c", "queuebell=a=.b"):
        assert reference_of("queuebell", stream) is None


@pytest.mark.parametrize("query", ["prefix=a.b", "replicas=0", "replicas=6", "stream=x", "ack_wait=3"])
def test_addresses_that_are_none(query: str) -> None:
    """Options that there are not, or that cannot be, are mistakes of the configuration."""
    with pytest.raises(ConfigurationError):
        open_store(f"nats://127.0.0.1:4222?{query}")


@pytest.mark.asyncio
class TestJetStream:
    async def test_at_the_limit_of_leases_an_answer_proves_nothing(
        self, server: NatsServer, store: JetStreamStore
    ) -> None:
        """With as many leased as the consumer allows, a receive is blocked, and after a delete it is not (L8)."""
        await store.put(QUEUE, [NewMessage(b"%d" % n) for n in range(3)])
        await consume(server, max_ack_pending=2)
        first = await store.receive(QUEUE, 2, LONG)
        assert len(first.messages) == 2
        blocked = await store.receive(QUEUE, 5, LONG)
        assert (blocked.messages, blocked.blocked) == ([], True)
        assert blocked.depth is not None
        assert (blocked.depth.visible, blocked.depth.invisible) == (1, 2)
        await store.settle(QUEUE, Settlement(delete=[Claim(m.id, m.pop_receipt) for m in first.messages]))
        rest = await store.receive(QUEUE, 5, LONG)
        assert [message.body for message in rest.messages] == [b"2"]
        assert not rest.blocked

    async def test_a_batch_cut_short_by_the_limit_is_blocked(self, server: NatsServer, store: JetStreamStore) -> None:
        """Messages and the limit may come in one answer: there may be more then."""
        await store.put(QUEUE, [NewMessage(b"%d" % n) for n in range(3)])
        await consume(server, max_ack_pending=2)
        received = await store.receive(QUEUE, 5, LONG)
        assert len(received.messages) == 2
        assert received.blocked

    async def test_leases_are_never_shortened(self, store: JetStreamStore) -> None:
        """Whoever asks for a short lease after a long one gets the long one: others hold messages by it."""
        await store.put(QUEUE, [NewMessage(b"one"), NewMessage(b"two")])
        await store.receive(QUEUE, 1, LONG)
        await store.receive(QUEUE, 1, 1.0)
        state = await store._api.consumer(Names.of("queuebell", QUEUE))
        assert state is not None
        assert state.ack_wait_s == LONG

    async def test_a_lease_of_another_process_is_lengthened(self, server: NatsServer, store: JetStreamStore) -> None:
        """A consumer whose leases are too short for a receive is changed before it is asked."""
        await store.put(QUEUE, [NewMessage(b"one")])
        await consume(server)
        await store.receive(QUEUE, 1, 2 * LONG)
        state = await store._api.consumer(Names.of("queuebell", QUEUE))
        assert state is not None
        assert state.ack_wait_s == 2 * LONG

    async def test_the_last_delivery_is_reported(
        self, server: NatsServer, store: JetStreamStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A consumer with max_deliver strands messages: the last delivery of one is said aloud, the others are not."""
        await store.put(QUEUE, [NewMessage(b"one")])
        await consume(server, max_deliver=2)
        with caplog.at_level(logging.WARNING, "queuebell.store"):
            (held,) = (await store.receive(QUEUE, 1, LONG)).messages
            assert caplog.messages == []
            await store.settle(QUEUE, Settlement(release=[Release(held.id, held.pop_receipt)]))
            await store.receive(QUEUE, 1, LONG)
        assert "last delivery" in caplog.text

    async def test_a_strangers_publish_is_a_message(self, server: NatsServer, store: JetStreamStore) -> None:
        """Whatever is published on the queue's subject is put on the queue, headers or not."""
        await store.create(QUEUE)
        client = await nats.connect(f"nats://127.0.0.1:{server.port}")
        await client.jetstream().publish("queuebell.queue.shop.orders", b"hello", headers={"X-Any": "thing"})
        await client.close()
        assert [message.body for message in (await store.receive(QUEUE, 5, LONG)).messages] == [b"hello"]

    async def test_it_comes_back_after_the_server_does(self, server: NatsServer, store: JetStreamStore) -> None:
        """While the server is away calls say so; afterwards the next one connects anew and finds what was stored."""
        await store.put(QUEUE, [NewMessage(b"one")])
        await server.kill()
        with pytest.raises(StoreUnavailable):
            await store.receive(QUEUE, 1, LONG)
        await server.start()
        assert [message.body for message in (await store.receive(QUEUE, 1, LONG)).messages] == [b"one"]

    async def test_a_server_that_does_not_answer_leaves_the_outcome_open(
        self, server: NatsServer, store: JetStreamStore
    ) -> None:
        """A put that was sent into silence may yet be carried out (L6), and is carried out once."""
        await store.create(QUEUE)
        async with JetStreamStore(f"nats://127.0.0.1:{server.port}", timeout=0.5) as hasty:
            await hasty.put(QUEUE, [NewMessage(b"one")])
            server.pause()
            with pytest.raises(UnknownOutcome):
                await hasty.put(QUEUE, [NewMessage(b"two")])
            server.resume()
            await until(lambda: has(store, 2), "the put is carried out")
            await hasty.clear(QUEUE)

    async def test_a_server_without_jetstream_is_told(self, tmp_path: Path) -> None:
        """A server that has no JetStream is no store; it may get it, so another try is worth it."""
        async with (
            NatsServer(tmp_path / "plain", jetstream=False) as plain,
            JetStreamStore(f"nats://127.0.0.1:{plain.port}") as store,
        ):
            with pytest.raises(StoreUnavailable, match="no JetStream"):
                await store.put(QUEUE, [NewMessage(b"one")])
