"""What may come on a cluster's subjects, and what a broker may forbid: each is counted and told, and nothing is lost.

Over a real NATS server and a store elsewhere, with sweeps off, so that only what was told is found. After each fault
one message a bridge is put, and has to be handled.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import pytest

from bridge.brokers.base import Broker
from bridge.contract.cluster import MEMBERS_MAX, Able, Covered, Member, Word, encode_word
from bridge.core.cluster.strangers import OTHER_ENGINE, OTHER_MACHINE, OTHER_NAME, TOO_MANY
from bridge.core.cluster.turns import OWN_BOOT
from bridge.observe.facts import Forgiven, MemberRefused, WordRefused
from bridge.queues.redis.store import RedisStore
from tests.services.clustered import EVENT, PATIENCE_S, QUEUE, clustered
from tests.support.processes import until
from tests.support.redis import RedisServer

STRANGER = "5" * 32


def say(broker: Broker, *words: Word | bytes, on: str = "member") -> None:
    for word in words:
        payload = word if isinstance(word, bytes) else encode_word(word)
        assert broker.publish(("queuebell", "cluster", on), payload)


async def test_strangers_frames(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S42: No words at all, on any subject: counted, with one line a second."""
    junk = (b"", b"{}", b"[]", b"null", b"\xff" * 100, b'{"type": "member"}', b"[" * 10_000, b'"member"', b"\0")
    async with clustered(tmp_path) as cluster, cluster.stranger() as broker:
        with caplog.at_level(logging.WARNING, "queuebell.bridge"):
            say(broker, *junk)
            say(broker, *junk, on="anything")
            for place in cluster.places:
                await until(lambda p=place: len(p.of(WordRefused)) >= 2 * len(junk), "each is counted", PATIENCE_S)
        lines = [record for record in caplog.records if "is no word of a bridge" in record.getMessage()]
        assert 1 <= len(lines) <= 2 * len(cluster.places)
        assert b"queuebell_cluster_words_refused_total" in cluster.places[0].bridge.metrics.render()
        say(broker, b"x" * 600_000)
        await cluster.works()


async def test_words_of_a_boot_that_is_ours(tmp_path: Path) -> None:
    """S43: Numbers that were never said, one that came back before: it acts alone for a while, and says why."""
    async with clustered(tmp_path) as cluster, cluster.stranger() as broker:
        first = cluster.places[0]
        boot = first.bridge.boot
        say(broker, Member(boot=boot, seq=1, cluster="shop"), Member(boot=boot, seq=1 << 40, cluster="shop"))
        say(broker, Able(boot=boot, seq=1), Covered(boot=boot, queue=QUEUE, begun_age_ms=0, ids=(("s", "i"),)))
        await until(lambda: len(first.of(WordRefused)) >= 2, "counted", PATIENCE_S)
        assert first.bridge.cluster().alone
        assert [fact.why for fact in first.of(MemberRefused)] == [OWN_BOOT]
        assert [each.why for each in first.bridge.cluster().refused] == [OWN_BOOT]
        await cluster.works()
        await cluster.calm()


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


async def test_covers_of_what_was_never_seen(tmp_path: Path) -> None:
    """S44: Of other queues, other names, numbers never said, times that cannot be: nothing owed is forgiven."""
    async with clustered(tmp_path) as cluster, cluster.stranger() as broker:
        first = cluster.places[0]
        boot = first.bridge.boot
        newest = first.bridge.turns.members.seq if first.bridge.turns is not None else 0
        covers = [
            Covered(boot=STRANGER, queue=queue, store=store, begun_age_ms=age, heard={boot: (seq, since)}, ids=ids)
            for queue in (QUEUE, "billing/unheard")
            for store in (None, "ab")
            for age, seq, since in ((0, newest + 1000, 0), (0, 1 << 40, 1_400), (1 << 40, 1, 0), (0, 0, 1_500))
            for ids in ((), tuple(("nobody", f"{number}") for number in range(32)))
        ]
        # Of nobody, and then of somebody who counts as a member.
        say(broker, *covers, on="covered")
        await until(lambda: len(first.of(WordRefused)) >= len(covers), "of no member", PATIENCE_S)
        say(broker, Member(boot=STRANGER, seq=1, cluster="shop"))
        say(broker, Able(boot=STRANGER, seq=1, queues={QUEUE: None}), on="able")
        await until(lambda: STRANGER in first.members(), "a member", PATIENCE_S)
        first.bridge.trigger([EVENT], bus="http")
        say(broker, *covers, on="covered")
        say(broker, b'{"type": "covered", "boot": "%s", "queue": "a/b", "begun_age_ms": -1}' % STRANGER.encode())
        say(broker, b'{"type": "covered", "boot": "%s", "queue": "a", "heard": {}}' % STRANGER.encode())
        await cluster.works()
        assert not [fact for place in cluster.places for fact in place.of(Forgiven) if fact.peer == STRANGER]


async def test_versions_of_yesterday_and_tomorrow(tmp_path: Path) -> None:
    """One without any words of a cluster, words that lack fields, have more of them, or are of other kinds."""
    async with clustered(tmp_path) as cluster, cluster.stranger() as broker:
        await cluster.join(name=None)
        first = cluster.places[0]
        old = Member(boot=STRANGER, seq=1, cluster="shop")
        new = b'{"type":"member","boot":"%s","seq":2,"cluster":"shop","version":"9","shard":{"of":[1]}}' % (b"6" * 32)
        say(broker, old, new, b'{"type":"member","boot":"%s","seq":1}' % (b"7" * 32))
        say(broker, b'{"type":"lease","boot":"%s","seq":[]}' % STRANGER.encode(), b'{"type":"vote"}')
        able = b'{"type":"able","boot":"%s","seq":2,"queues":{"%s":{"room":true,"visibility_ms":30000,"cores":4}}}'
        say(broker, able % (b"6" * 32, QUEUE.encode()), on="able")
        await until(lambda: {STRANGER, "6" * 32} <= first.members(), "both are members", PATIENCE_S)
        versions = {each.boot: each.version for each in first.bridge.cluster().members}
        assert (versions[STRANGER], versions["6" * 32]) == ("", "9")
        assert [fact.why for fact in first.of(MemberRefused)] == [OTHER_NAME]
        assert not first.of(WordRefused)
        await cluster.works()


async def test_another_engine_and_another_name_are_refused_by_name(tmp_path: Path) -> None:
    """S45: Each looks by itself, on either side, and either side says so."""
    async with clustered(tmp_path, 0) as cluster:
        for about in ({"store": "aa"}, {"store": "bb"}):
            await cluster.join(about=about)
        await cluster.join(name="stall", about={"store": "aa"})
        wanted = [{OTHER_ENGINE, OTHER_NAME}, {OTHER_ENGINE, OTHER_NAME}, {OTHER_NAME}]
        for place, why in zip(cluster.places, wanted, strict=True):
            await until(lambda p=place, w=why: {f.why for f in p.of(MemberRefused)} == w, "refused", PATIENCE_S)
        await cluster.works()


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


@pytest.mark.timeout(600)
async def test_one_bridge_more_than_a_cluster_has(tmp_path: Path) -> None:
    """S45: Whom some do not take for a member acts, and is looked after, all the same."""
    async with clustered(tmp_path, 0) as cluster:
        for number in range(MEMBERS_MAX + 1):
            await cluster.join(worker=number % 11 == 0)
        await until(
            lambda: all(
                len(place.bridge.cluster().members) == MEMBERS_MAX and not place.bridge.cluster().alone
                for place in cluster.places
            ),
            "each hears 31 others", PATIENCE_S,
        )  # fmt: skip
        for place in cluster.places:
            await until(lambda p=place: p.of(MemberRefused), "and refuses one", PATIENCE_S)
            assert {fact.why for fact in place.of(MemberRefused)} == {TOO_MANY}
        await cluster.works()


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
            assert "does not let this bridge hear the others" in check.detail
        assert mute.bridge.readiness().ready
