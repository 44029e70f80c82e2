"""Receives while no vacuum may remove anything: fast, and nothing that shows up before their mark is lost.

What meets what: a transaction that commits late, a lease that lapses, one that is renewed or given back, a burial, a
delay, a pause, a full batch, rows that others hold, an expiry, put by a batch or by plain SQL; and the vacuum coming.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bridge.brokers.postgres.access import PostgresAccess
from bridge.queues.base import Depth, Extend, NewMessage, Received, Release, Settlement
from bridge.queues.postgres import sql as postgres_sql
from bridge.queues.postgres.connections import PostgresConnections
from bridge.queues.postgres.marks import AGAIN_S, FEW, PostgresMarks
from bridge.queues.postgres.store import PostgresStore
from tests.bridge.queues.postgres_rig import QUEUE, new, schema, server, store, url
from tests.support.postgres import execute
from tests.support.processes import until

__all__ = ["schema", "server", "store", "url"]
pytestmark = pytest.mark.system

GONE = FEW + 5_000


@contextlib.asynccontextmanager
async def pinned(url: str, store: PostgresStore) -> AsyncIterator[None]:
    """A transaction stays open, and what many messages left behind cannot be removed; a receive has found it out."""
    await execute(url, "ALTER TABLE queuebell_messages SET (autovacuum_enabled = false)")
    await store.create(QUEUE)
    holder = await PostgresAccess(url).connect()
    try:
        async with holder.transaction(isolation="repeatable_read", readonly=True):
            await holder.fetch("SELECT count(*) FROM queuebell_messages")
            await leave_behind(url)
            await store.receive(QUEUE, 32)
            yield
    finally:
        await holder.close()


async def leave_behind(url: str) -> None:
    await execute(
        url,
        "INSERT INTO queuebell_messages (queue, text, visible_at)"
        " SELECT $1, '', clock_timestamp() - interval '1 hour' FROM generate_series(1, $2::int)",
        QUEUE,
        GONE,
    )
    await execute(url, "DELETE FROM queuebell_messages")


def bodies(received: Received) -> list[bytes]:
    return [message.body for message in received.messages]


def a_look_is_due(patch: pytest.MonkeyPatch) -> None:
    """Have the time come for a look from the beginning."""
    mark = PostgresMarks.mark
    patch.setattr(PostgresMarks, "mark", lambda marks, queue, now: mark(marks, queue, now + 3600))


class Asked:
    """Which receives were asked for: whether from a mark on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.marked: list[bool] = []
        there = PostgresConnections.fetch

        async def fetch(connections: PostgresConnections, sql: str, args: Any, within_s: float) -> list[Any]:
            if sql == postgres_sql.RECEIVE:
                self.marked.append(args[3] is not None)
            return await there(connections, sql, args, within_s)

        patch.setattr(PostgresConnections, "fetch", fetch)


async def test_a_short_batch_goes_on_from_its_mark(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes what is put, says when to look again, and reads a part of what a look from the beginning reads."""
    asked = Asked(monkeypatch)
    async with pinned(url, store):
        for number in range(5):
            await store.put(QUEUE, new(b"%d" % number))
            received = await store.receive(QUEUE, 32)
            assert (bodies(received), received.blocked) == ([b"%d" % number], False)
            told = received.next_delayed_in_ms
            assert isinstance(told, int)
            assert 0 < told <= AGAIN_S * 1000
        assert bodies(await store.receive(QUEUE, 32)) == []
        assert asked.marked == [False, *[True] * 6]
        with monkeypatch.context() as patch:
            a_look_is_due(patch)
            whole = await store.receive(QUEUE, 32)
        assert (bodies(whole), whole.depth, whole.next_delayed_in_ms) == ([], Depth(0, 5), None), "exact again"


async def test_a_late_commit_is_found_by_the_look_that_was_told(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was put an hour ago and is committed behind the mark comes with the next look from the beginning."""
    slow = await PostgresAccess(url).connect()
    try:
        async with pinned(url, store):
            transaction = slow.transaction()
            await transaction.start()
            await slow.execute(
                "INSERT INTO queuebell_messages (queue, text, visible_at)"
                " VALUES ($1, 'late', clock_timestamp() - interval '30 minutes')",
                QUEUE,
            )
            await store.put(QUEUE, new(b"1"))
            assert bodies(await store.receive(QUEUE, 32)) == [b"1"]
            await transaction.commit()
            received = await store.receive(QUEUE, 32)
            assert bodies(received) == []
            assert isinstance(received.next_delayed_in_ms, int), "an answer that proves nothing says when to look"
            with monkeypatch.context() as patch:
                a_look_is_due(patch)
                assert bodies(await store.receive(QUEUE, 32)) == [b"late"]
    finally:
        await slow.close()


async def test_by_the_clock_a_late_commit_is_found_in_the_time_that_was_told(url: str, store: PostgresStore) -> None:
    """Nobody moves the time here: who looks when he is told to finds it, in a second or so for so many entries."""
    async with pinned(url, store):
        await execute(
            url,
            "INSERT INTO queuebell_messages (queue, text, visible_at) VALUES ($1, 'late', '2020-01-01')",
            QUEUE,
        )

        async def found() -> bool:
            received = await store.receive(QUEUE, 32)
            assert received.messages or isinstance(received.next_delayed_in_ms, int)
            return bodies(received) == [b"late"]

        await until(found, "the look from the beginning")


async def test_leases_end_and_delays_pass_behind_a_mark(url: str, store: PostgresStore) -> None:
    """A lease that lapses, one given back, one renewed, a delay: each is there when it is due, and told before."""
    async with pinned(url, store):
        await store.put(QUEUE, new(b"lapses", b"back", b"renewed"))
        held = {message.body: message for message in (await store.receive(QUEUE, 32, 600)).messages}
        back, renewed = held[b"back"], held[b"renewed"]
        await store.settle(
            QUEUE,
            Settlement(
                release=[Release(back.id, back.pop_receipt)], extend=[Extend(renewed.id, renewed.pop_receipt, 900)]
            ),
        )
        assert bodies(await store.receive(QUEUE, 32, 600)) == [b"back"]
        await store.put(QUEUE, [NewMessage(b"delayed", visible_after_ms=3_600_000)])
        assert bodies(await store.receive(QUEUE, 32, 600)) == []
        for body in (b"lapses", b"delayed"):
            due = "UPDATE queuebell_messages SET visible_at = clock_timestamp() + $2 * interval '1 ms' WHERE body = $1"
            await execute(url, due, body, 300)
            received = await store.receive(QUEUE, 32, 600)
            told = received.next_delayed_in_ms if body == b"delayed" else received.next_visible_in_ms
            assert isinstance(told, int)
            assert told <= 300 or bodies(received) == [body]
            if not received.messages:
                await execute(url, due, body, 0)
                assert bodies(await store.receive(QUEUE, 32, 600)) == [body]


async def test_rows_that_somebody_holds_keep_the_mark_before_them(url: str, store: PostgresStore) -> None:
    """A receive elsewhere that locked the first and let it go again hides it for as long, also from full batches."""
    other = await PostgresAccess(url).connect()
    try:
        async with pinned(url, store):
            for limit, taken in ((32, [b"2", b"3"]), (2, [b"2", b"3"])):
                await store.put(QUEUE, new(b"1"))
                await store.put(QUEUE, new(b"2", b"3"))
                transaction = other.transaction()
                await transaction.start()
                await other.execute(
                    "SELECT FROM queuebell_messages WHERE body = '1' AND visible_at <= clock_timestamp() FOR UPDATE"
                )
                received = await store.receive(QUEUE, limit, 600)
                assert bodies(received) == taken
                assert received.depth is not None
                assert received.depth.visible >= 1, "it does not pass for a proof"

                async def longer_than_a_commit_takes() -> bool:
                    again = await store.receive(QUEUE, 32, 600)
                    assert (bodies(again), again.blocked) == ([], True)
                    held = "SELECT bool_and(inserted_at < clock_timestamp() - interval '1.2 s') FROM queuebell_messages"
                    return bool((await execute(url, held + " WHERE body = '1' AND attempts = 0"))[0][0])

                await until(longer_than_a_commit_takes, "the mark would have gone past it")
                await transaction.rollback()
                assert bodies(await store.receive(QUEUE, 32, 600)) == [b"1"], "at once, and not by the next long look"
    finally:
        await other.close()


async def test_full_batches_and_a_pause_behind_a_mark(url: str, store: PostgresStore) -> None:
    """Full batches say that there is more and bring it; a pause counts at once; what expired is not given out."""
    async with pinned(url, store):
        await store.put(QUEUE, [*new(*(b"%02d" % n for n in range(6))), NewMessage(b"expires", ttl_s=600)])
        first = await store.receive(QUEUE, 3, 600)
        assert first.depth is not None
        assert (bodies(first), first.depth.visible) == ([b"00", b"01", b"02"], 4)
        await store.pause(QUEUE)
        assert bodies(await store.receive(QUEUE, 3, 600)) == []
        await store.pause(QUEUE, False)
        await execute(url, "UPDATE queuebell_messages SET expires_at = clock_timestamp() WHERE expires_at IS NOT NULL")
        last = await store.receive(QUEUE, 3, 600)
        assert last.depth is not None
        assert (bodies(last), last.depth.visible) == ([b"03", b"04", b"05"], 1), "a full batch proves nothing"
        assert bodies(await store.receive(QUEUE, 3, 600)) == []


async def test_once_a_vacuum_came_everything_is_as_ever(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look from the beginning is short, and so are all after it: no marks, no looks that are told."""
    async with pinned(url, store):
        pass
    await execute(url, "VACUUM queuebell_messages")
    asked = Asked(monkeypatch)
    with monkeypatch.context() as patch:
        a_look_is_due(patch)
        await store.receive(QUEUE, 32)
    received = await store.receive(QUEUE, 32)
    assert (received.depth, received.next_delayed_in_ms) == (Depth(0, 0), None)
    assert asked.marked == [False, False]


async def test_receives_beside_each_other_take_each_message_once(url: str, store: PostgresStore) -> None:
    """Receives and puts in turns and at once, from a mark on: every message once, none left."""
    async with pinned(url, store):
        found: list[bytes] = []

        async def take() -> None:
            found.extend(bodies(await store.receive(QUEUE, 8, 600)))

        for batch in range(20):
            await asyncio.gather(store.put(QUEUE, new(*(b"%d/%d" % (batch, n) for n in range(10)))), take(), take())

        async def all_taken() -> bool:
            await take()
            return len(found) >= 200

        await until(all_taken, "all are taken")
        assert len(set(found)) == len(found) == 200
