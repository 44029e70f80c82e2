"""What may come on a cluster's subjects, and what a broker may forbid: each is counted and told, and nothing is lost.

Over a real NATS server and a store elsewhere, with sweeps off, so that only what was told is found. After each fault
one message a bridge is put, and has to be handled.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import pytest

from queuebell.bridge.brokers.base import Broker
from queuebell.bridge.contract.cluster import ClusterMessage, encode_cluster_message
from queuebell.bridge.core.cluster.coordinator import OWN_BOOT
from queuebell.bridge.core.cluster.members import OTHER_MACHINE
from queuebell.bridge.observe.facts import ClusterMessageRefused, MemberRefused
from queuebell.bridge.queues.redis.store import RedisStore
from tests.services.clustered import PATIENCE_S, clustered
from tests.support.processes import until
from tests.support.redis import RedisServer


def say(broker: Broker, *words: ClusterMessage | bytes, on: str = "member") -> None:
    for word in words:
        payload = word if isinstance(word, bytes) else encode_cluster_message(word)
        assert broker.publish(("queuebell", "cluster", on), payload)


async def test_strangers_frames(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S42: No words at all, on any subject: counted, with one line a second."""
    junk = (b"", b"{}", b"[]", b"null", b"\xff" * 100, b'{"type": "member"}', b"[" * 10_000, b'"member"', b"\0")
    async with clustered(tmp_path) as cluster, cluster.stranger() as broker:
        with caplog.at_level(logging.WARNING, "queuebell.bridge"):
            say(broker, *junk)
            say(broker, *junk, on="anything")
            for place in cluster.places:
                await until(
                    lambda p=place: len(p.of(ClusterMessageRefused)) >= 2 * len(junk), "each is counted", PATIENCE_S
                )
        lines = [
            record for record in caplog.records if "invalid message on the cluster's subjects" in record.getMessage()
        ]
        assert 1 <= len(lines) <= 2 * len(cluster.places)
        assert b"queuebell_cluster_words_refused_total" in cluster.places[0].bridge.metrics.render()
        say(broker, b"x" * 600_000)
        await cluster.works()


async def test_two_bridges_with_one_boot(tmp_path: Path) -> None:
    """S43: A copy of a machine: both act alone and say so; a third one is there, and nothing is lost at any of them."""
    async with clustered(tmp_path, 1) as cluster:
        for boot in ("c" * 32, "c" * 32):
            await cluster.join(boot=boot)
        twins = cluster.places[1:]
        for twin in twins:
            await until(lambda t=twin: t.of(MemberRefused), "it hears the other one", PATIENCE_S)
            assert {fact.why for fact in twin.of(MemberRefused)} == {OWN_BOOT}
        for _ in range(3):
            await cluster.works()
        assert all(twin.bridge.cluster().alone for twin in twins)


@pytest.mark.system
async def test_one_address_that_leads_to_two_engines(tmp_path: Path) -> None:
    """S45: The same `localhost` on two machines. Whoever proves to be on ours is let in, also after it was emptied."""
    async with contextlib.AsyncExitStack() as stack:
        mine, other = [await stack.enter_async_context(RedisServer(tmp_path / name)) for name in "ab"]
        cluster = await stack.enter_async_context(clustered(tmp_path, 0))
        for server in (mine, other):
            await cluster.join(store=RedisStore(server.url()), about={"store": "aa"})
        for place in cluster.places:
            await until(lambda p=place: p.of(MemberRefused), "refused", PATIENCE_S)
            assert {fact.why for fact in place.of(MemberRefused)} == {OTHER_MACHINE}
        await cluster.works()
        async with mine.stranger() as redis:
            await redis.delete("queuebell:identity")
        third = await cluster.join(store=RedisStore(mine.url()), about={"store": "aa"})
        await cluster.calm(cluster.places[0], third)
        assert cluster.places[1].bridge.boot not in third.members()


RULES = """
authorization {{ users: [
  {{ user: all, password: x }}
  {{ user: few, password: x, permissions: {{ {denied}: {{ deny: "queuebell.cluster.>" }} }} }}
] }}
"""


@pytest.mark.parametrize("denied", ["publish", "subscribe"])
async def test_an_account_that_may_not_speak_or_hear(
    denied: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S46: It acts alone, hears triggers on the broker all the same, and says what to grant."""
    async with clustered(tmp_path, 2, extra=RULES.format(denied=denied), user="all:x@") as cluster:
        with caplog.at_level(logging.WARNING, "queuebell"):
            mute = await cluster.join(url=cluster.url.replace("all:x@", "few:x@"))
            await cluster.works()
            await until(
                lambda: [
                    record for record in caplog.records if "queuebell.cluster" in record.getMessage()
                ],
                "one line says so", PATIENCE_S,
            )  # fmt: skip
        assert mute.bridge.cluster().alone
        if denied == "subscribe":
            check = mute.bridge.readiness().checks["cluster"]
            assert not check.ok
            assert "denies this bridge access" in check.detail
        assert mute.bridge.readiness().ready
