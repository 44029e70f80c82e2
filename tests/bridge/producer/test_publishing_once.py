"""Put once and publish: asked again until the outcome is known, and published whatever it was."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from bridge.contract.errors import BadInput, Overloaded, StoreFull, StoreUnavailable, UnknownOutcome, Unsupported
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import Capabilities, NewMessage, PutReceipt, QueueStore
from bridge.queues.http import HttpStore
from tests.support.buses import RecordingBus
from tests.support.sim_loop import simulated
from tests.support.web import serving

QUEUE = "billing/orders"
RECEIPT = PutReceipt("id", "receipt", 0)


class Scripted:
    """A store whose puts end as they are told to, one after the other."""

    capabilities = Capabilities(put_once=True)

    def __init__(self, *outcomes: Exception | PutReceipt | None) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[str, str, NewMessage]] = []
        self.more: list[dict[str, object]] = []
        self.held = asyncio.Event()

    async def put_once(self, queue: str, key: str, message: NewMessage, **more: object) -> PutReceipt | None:
        self.asked.append((queue, key, message))
        self.more.append(more)
        if not self.outcomes:
            self.held.set()
            await asyncio.Event().wait()
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def queue_of(store: object, publisher: Publisher) -> PublishingQueue:
    promise: QueueStore = store  # type: ignore[assignment]
    return PublishingQueue(promise, publisher, server_timeout=30.0)


def told(bus: RecordingBus) -> list[int]:
    """Return the delays that were published, in seconds."""
    return sorted(event.not_before_ms // 1000 for event in bus.taken)


async def test_what_fails_in_passing_is_asked_again() -> None:
    """The same key and body, until the store knows; a lost answer is published as well, now and for later."""
    store, bus = Scripted(Overloaded("busy", 0.0), UnknownOutcome("lost"), None), RecordingBus()
    async with Publisher(bus) as publisher:
        queue = queue_of(store, publisher)
        assert await queue.put_once(QUEUE, "key", "body") is None
    assert store.asked == [(QUEUE, "key", NewMessage(b"body"))] * 3
    assert told(bus)[0] == 0
    assert told(bus)[-1] in (29, 30)


async def test_a_put_is_published_after_it() -> None:
    """Its receipt is returned, and its delay is the trigger's."""
    store, bus = Scripted(RECEIPT), RecordingBus()
    async with Publisher(bus) as publisher:
        assert await queue_of(store, publisher).put_once(QUEUE, "key", b"body", visible_after_ms=5000) == RECEIPT
    assert store.asked[0][2].visible_after_ms == 5000
    assert told(bus) in ([4], [5])


async def test_patience_ends() -> None:
    """What is still failing then is raised as it was; a wait that would outlast it is not begun."""
    bus = RecordingBus()
    async with Publisher(bus) as publisher:
        store = Scripted(Overloaded("busy", 20.0))
        with pytest.raises(Overloaded) as refused:
            await queue_of(store, publisher).put_once(QUEUE, "key", b"body", patience=10.0)
        assert refused.value.retry_after == 20.0
        store = Scripted(StoreUnavailable("away"), StoreUnavailable("still away"))
        with pytest.raises(StoreUnavailable, match="still"):
            await queue_of(store, publisher).put_once(QUEUE, "key", b"body", patience=0.15)
    assert bus.taken == []


@pytest.mark.parametrize("create", [True, False])
async def test_what_is_said_of_a_put_reaches_the_store(create: bool) -> None:
    """Time to live, connection and whether a queue is made; on a connection it is one try, and nothing is published."""
    existing, connection = {} if create else {"create": False}, object()
    store, bus = Scripted(StoreUnavailable("away"), RECEIPT, RECEIPT, StoreUnavailable("away")), RecordingBus()
    async with Publisher(bus) as publisher:
        queue = queue_of(store, publisher)
        assert await queue.put_once(QUEUE, "one", "x", ttl_s=9, visible_after_ms=7, create=create) == RECEIPT
        more: dict[str, Any] = {"ttl_s": 9, "visible_after_ms": 7, "connection": connection, "create": create}
        assert await queue.put_once(QUEUE, "two", "x", **more) == RECEIPT
        with pytest.raises(StoreUnavailable):
            await queue.put_once(QUEUE, "two", "x", **more)
    assert store.asked == [(QUEUE, key, NewMessage(b"x", 7, 9)) for key in ("one", "one", "two", "two")]
    assert store.more == [existing, existing, *[{"connection": connection, **existing}] * 2]
    assert [event.queue for event in bus.taken] == [QUEUE]


@simulated
async def test_the_pauses_between_tries_grow_and_have_an_end() -> None:
    """From a tenth of a second up to five, on top of what the store asks for; a minute in all unless said otherwise."""
    loop, times = asyncio.get_running_loop(), []

    class Away(Scripted):
        async def put_once(self, queue: str, key: str, message: NewMessage, **more: object) -> PutReceipt | None:
            times.append(loop.time())
            raise Overloaded("x", 3.0) if len(times) == 1 else StoreFull("full")

    async with Publisher(RecordingBus()) as publisher:
        with pytest.raises(StoreFull):
            await queue_of(Away(), publisher).put_once(QUEUE, "key", "x")
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[0] == pytest.approx(3.1)
    for pause, step in zip(pauses[1:5], (0.1, 0.3, 0.7, 1.5), strict=True):
        assert 0.1 + 0.8 * step <= pause + 1e-6 and pause - 1e-6 <= 0.1 + 1.2 * step
    assert max(pauses[1:]) == pytest.approx(5.0)
    assert 54 < times[-1] - times[0] <= 60


async def test_what_no_other_try_would_change_is_raised_at_once() -> None:
    """A conflict, and a store that cannot."""
    bus = RecordingBus()
    async with Publisher(bus) as publisher:
        with pytest.raises(BadInput):
            await queue_of(Scripted(BadInput("message_conflict", "x")), publisher).put_once(QUEUE, "key", b"body")
        plain = Scripted()
        plain.capabilities = Capabilities()
        with pytest.raises(Unsupported):
            await queue_of(plain, publisher).put_once(QUEUE, "key", b"body")
    assert bus.taken == []


async def test_cancelled_in_the_middle_it_is_published_all_the_same() -> None:
    """The store may have carried it out (P2)."""
    store, bus = Scripted(), RecordingBus()
    async with Publisher(bus) as publisher:
        put = asyncio.create_task(queue_of(store, publisher).put_once(QUEUE, "key", b"body"), name="put")
        await store.held.wait()
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
    assert len(bus.taken) == 2


async def test_an_answer_that_was_lost_costs_no_second_message() -> None:
    """Over HTTP: the first connection breaks after the request was carried out; the second try says 204."""
    async with serving() as served:

        async def lose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Pass one request on and hang up instead of its answer; pass all others both ways."""
            nonlocal lost
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(4)
            async with served.client() as client:
                await client.send(head + body)
                reply = await client.reply()
            if not lost:
                lost = True
            else:
                status = b"204 No Content" if reply.status == 204 else b"%d X" % reply.status
                writer.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n\r\n" + reply.body)
                await writer.drain()
            writer.close()

        lost = False
        server = await asyncio.start_server(lose, "127.0.0.1", 0)
        async with server, Publisher(RecordingBus()) as publisher:
            port = server.sockets[0].getsockname()[1]
            async with HttpStore(f"http://127.0.0.1:{port}") as store:
                assert await PublishingQueue(store, publisher).put_once(QUEUE, "key", b"body") is None
        assert lost
        assert (await served.bridge.store.depth(QUEUE)) is not None
        assert len(await served.bridge.store.peek(QUEUE)) == 1
