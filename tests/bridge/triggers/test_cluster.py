"""What comes on a cluster's subjects: each word goes to the rules, and everything else is counted once (S42)."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.contract.cluster import decode_word
from bridge.contract.errors import BadInput
from bridge.observe.facts import Fact, WordRefused
from bridge.service.bridge import Bridge
from bridge.triggers.cluster import ClusterLine
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
