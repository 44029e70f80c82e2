"""What comes on a cluster's subjects: each word goes to the rules, and everything else is counted once (S42)."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.contract.cluster import decode_word
from bridge.contract.errors import BadInput
from bridge.contract.event import CloudQueueWorkDetected
from bridge.observe.facts import Fact, WordRefused
from bridge.service.bridge import Bridge
from bridge.triggers.cluster import SLICE, ClusterLine
from tests.support.growth import counted
from tests.support.memory_broker import MemoryServer
from tests.support.words import TYPES, payloads


def is_refused(payload: bytes) -> bool:
    try:
        decode_word(payload)
    except BadInput:
        return True
    return False


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from([*TYPES, "tomorrow"]), payloads), min_size=5, max_size=20))
def test_whatever_comes_is_taken_or_counted(caplog: pytest.LogCaptureFixture, said: list[tuple[str, bytes]]) -> None:
    """On every subject; nothing is raised, and no error is logged."""
    facts: list[Fact] = []

    async def run() -> None:
        server = MemoryServer()
        broker = server.broker()
        async with Bridge() as bridge:
            line = ClusterLine(bridge, "queuebell", (), name="shop")
            bridge.observe(facts.append)
            await broker.connect()
            await line.attach(broker)
            for word, payload in said:
                assert server.deliver(("queuebell", "cluster", word), payload) == 1
            for _ in range(5):
                await asyncio.sleep(0)
            line.detach()

    asyncio.run(run())
    # Those of bridges that are no members are refused by the rules, which name them.
    counted = [fact for fact in facts if isinstance(fact, WordRefused) and not fact.boot]
    assert len(counted) == sum(is_refused(payload) for _, payload in said)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    caplog.clear()


async def leave(queues: int) -> tuple[int, list[int]]:
    """Return the most steps of one turn of a leave with so many queues, and how many were told before each barrier."""
    server = MemoryServer()
    broker = server.broker()
    async with Bridge() as bridge:
        line = ClusterLine(bridge, "queuebell", ("nats",), name="shop")
        await broker.connect()
        await line.attach(broker)
        for number in range(queues):
            bridge.trigger([CloudQueueWorkDetected("many", f"q{number}")], bus="nats")
        told: list[int] = []
        barrier, before = broker.barrier, len(server.log)

        async def asked() -> None:
            told.append(len(server.log) - before - sum(told))
            await barrier()
            await asyncio.sleep(0)  # the answer of a real one comes by the loop

        broker.barrier = asked  # type: ignore[method-assign]
        with counted() as work:
            await bridge.leave()
        topics = {topic for topic, _ in server.log[before:] if topic[1] == "trigger"}
        assert len(topics) == queues
        line.detach()
        return work.longest, told


async def test_a_bridge_that_leaves_holds_the_loop_no_longer_with_more_queues() -> None:
    """What it leaves is gathered and told in slices, and the broker is asked after each."""
    (few, _), (many, told) = await leave(1000), await leave(5000)
    assert many <= 1.2 * few, (few, many)
    assert max(told) <= SLICE + 2, "some words of the cluster beside them"
