"""Headers from the put to the handler, and through all that may become of a message on its way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from bridge.contract.errors import BadInput, Unsupported
from bridge.contract.partitioning import Partitions
from bridge.producer.partitions import PartitionedQueue
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.producer.replaying import Choice, Replaying
from bridge.queues.base import BODY_BYTES_MAX, Capabilities, NewMessage, StoredMessage
from bridge.queues.checked import CheckedStore
from bridge.queues.embedded.memory import MemoryStore
from bridge.storage.blobs.memory import MemoryBlobs
from bridge.storage.claim_check import ClaimCheck, put_aside_all
from listeners import Bury, Message, Replay, Retry
from listeners.testing import run_once
from queuebell.testing import Rehearsal
from tests.conformance.headers import HOSTILE, LARGEST
from tests.listeners.rig import POISON, QUEUE, Store, listening, run_until
from tests.support.buses import RecordingBus
from tests.support.sim_loop import simulated

_names = itertools.count()


class Handler:
    """Does with each message what is said, and remembers body and headers."""

    def __init__(self, *outcomes: Exception) -> None:
        self.outcomes = list(outcomes)
        self.seen: list[tuple[bytes, dict[str, str]]] = []

    async def __call__(self, message: Message) -> None:
        self.seen.append((message.body, dict(message.headers)))
        if self.outcomes:
            raise self.outcomes.pop(0)


def headers_of(messages: Sequence[StoredMessage]) -> list[dict[str, str]]:
    return [message.headers for message in messages]


async def test_a_handler_reads_headers_and_changes_none() -> None:
    """Alone and in a batch; a message without has an empty mapping, and what no put takes is refused here too."""
    seen: list[dict[str, str]] = []

    async def one(message: Message) -> None:
        with pytest.raises(TypeError):
            message.headers["a"] = "other"  # type: ignore[index]
        seen.append(dict(message.headers))

    async def many(messages: list[Message]) -> None:
        for message in messages:
            await one(message)

    for handler in (one, many):
        await run_once(handler, "x", headers={"Trace": "y"})
        await run_once(handler, "x")
    assert seen == [{"trace": "y"}, {}] * 2
    with pytest.raises(BadInput):
        await run_once(one, "x", headers={"a": "\n"})


@pytest.mark.parametrize("carried", [True, False])
def test_headers_come_with_each_attempt_and_through_a_burial_and_back(carried: bool) -> None:
    """Inside a wake and by a receive: tried again, buried with its facts, and put back by a supervisor."""
    with Rehearsal() as rehearsal:
        handler = Handler(Retry(1), Bury("no"))
        supervisor = Handler(Replay())
        if carried:
            rehearsal.listen(QUEUE, handler)
        rehearsal.put(QUEUE, NewMessage("one", headers=HOSTILE))
        if not carried:
            rehearsal.listen(QUEUE, handler)
        rehearsal.run_until_idle()
        rehearsal.advance(2)
        assert handler.seen == [(b"one", HOSTILE)] * 2
        assert headers_of(rehearsal.waiting(POISON)) == [HOSTILE]
        assert [burial.reason for burial in rehearsal.buried(QUEUE)] == ["no"]
        rehearsal.listen(POISON, supervisor)
        rehearsal.run_until_idle()
        rehearsal.advance(1)
        assert supervisor.seen == [(b"one", HOSTILE)]
        assert handler.seen == [(b"one", HOSTILE)] * 3


@pytest.mark.parametrize("headers", LARGEST, ids=["line", "many", "unicode"])
def test_the_largest_headers_and_body_are_buried_whole(headers: dict[str, str]) -> None:
    """Where the facts do not fit beside the body the headers are there all the same: they count by themselves."""
    with Rehearsal() as rehearsal:
        rehearsal.listen(QUEUE, Handler(Bury("no")))
        rehearsal.put(QUEUE, NewMessage(b"\xff" * BODY_BYTES_MAX, headers=headers))
        rehearsal.run_until_idle()
        (message,) = rehearsal.waiting(POISON)
        assert (message.headers, rehearsal.buried(QUEUE) != []) == (headers, message.body[:1] != b"\xff")


@simulated
async def test_a_body_that_is_put_aside_leaves_its_headers_in_the_queue() -> None:
    """With its claim, to the poison queue and back to a handler."""
    store, check = Store(), ClaimCheck(MemoryBlobs())
    large = NewMessage(b"\xff" * (2 * BODY_BYTES_MAX), headers=HOSTILE)
    await store.put(QUEUE, await put_aside_all(check, store, QUEUE, [large]))
    assert headers_of(await store.peek(QUEUE)) == [HOSTILE]
    await run_until(listening(store, Handler(Bury("no")), claim_check=check), 1, "buried")
    assert headers_of(await store.peek(POISON)) == [HOSTILE]
    await run_until(listening(store, Handler(Replay()), POISON, claim_check=check), 1, "replayed", queue=POISON)
    handler = Handler()
    await run_until(listening(store, handler, claim_check=check), 1)
    assert [(len(body), headers) for body, headers in handler.seen] == [(len(large.body), HOSTILE)]


async def test_a_replay_by_hand_gives_headers_back() -> None:
    """Of the message as it stands, and of its body alone."""
    for plain in (True, False):
        async with MemoryStore(f"replay-{next(_names)}") as store:
            await store.put(POISON, [NewMessage("one", headers=HOSTILE), NewMessage("two")])
            await Replaying(store, store, POISON, Choice(plain=plain), 10, clock=lambda: 0.0).run()
            assert headers_of(await store.peek(QUEUE)) == [HOSTILE, {}]
            assert await store.peek(POISON) == []


async def test_partitions_and_publishing_queues_pass_headers_on() -> None:
    """To the partition of a key and to any, once and plainly."""
    async with MemoryStore(f"partitions-{next(_names)}") as store, Publisher(RecordingBus()) as publisher:
        queue = PartitionedQueue(PublishingQueue(store, publisher), Partitions(QUEUE, 2))
        await queue.put([NewMessage(str(each), headers={"n": str(each)}) for each in range(4)])
        await queue.put([NewMessage("4", headers={"n": "4"})], key="k")
        await queue.put_once("k", "id", NewMessage("5", headers={"n": "5"}))
        found = [message for each in await store.queues() for message in await store.peek(each)]
        assert sorted((message.body.decode(), message.headers["n"]) for message in found) == [
            (str(each), str(each)) for each in range(6)
        ]


class Bare(CheckedStore):
    """A store without headers, whose every request would be a fault of ours."""

    kind = "bare"
    capabilities = Capabilities()


async def test_what_a_store_cannot_carry_is_refused_before_anything_is_asked() -> None:
    """By a producer's queue too; the words say what to do."""
    async with Publisher(RecordingBus()) as publisher:
        for put in (Bare().put, PublishingQueue(Bare(), publisher).put):
            with pytest.raises(Unsupported, match="put without, and say it in the body"):
                await put(QUEUE, [NewMessage("x", headers={"a": "b"})])
