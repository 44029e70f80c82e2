"""A bridge that has promised to look and stands still: its promise lapses, and others look after what relied on it.

Its connection stays, and with it its locks: a process that is stopped, or a network path that is frozen.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.brokers.postgres.access import PostgresAccess
from bridge.core.settings import Periods
from bridge.queues import open_store
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.voice import OPEN, PROMISE
from bridge.service.bridge import Bridge, BridgeSettings
from bridge.triggers.attachment import Attachments
from bridge.triggers.promises import CROWD, SILENCE_S, TICK_S, Promises
from tests.bridge.triggers.test_promises import QUEUE, Database, Said, Written, hot, keep
from tests.support.postgres import PostgresServer, execute, running
from tests.support.processes import Processes, until

LAST = 10
"""The statement before which the bridge is frozen at the latest: its promise is over then."""


class Heard(Database):
    """A database whose other bridge hears what is said of promises."""

    def __init__(self, other: Promises) -> None:
        super().__init__()
        self.other = other

    def carry_out(self, said: Said) -> None:
        super().carry_out(said)
        words = said.arguments[2] if said.statement == PROMISE else [each[1] for each in said.arguments]
        for word in words if said.statement in (PROMISE, "NOTIFY") else ():
            if word.startswith("{"):
                told = json.loads(word)
                self.other.told(f"{told['storage_account']}/{told['queue_name']}", told["by"], told["promised"], 0.0)


def forgotten(frozen_at: int, places: Sequence[int], fault: str = "") -> bool:
    """Freeze a bridge before one of its statements, and say whether nobody looked for a put whose steps come there."""
    other = Promises("queuebell", "another")
    database = Heard(other)
    put, bridge = database.put("3/7", "committed"), keep(hot(), database)

    def other_bridge() -> Iterator[None]:
        if fault != "no lapse":
            database.promised.clear()
        yield
        if fault != "nobody listens":
            assert other.silent(SILENCE_S) is None
        yield from keep(other, database)

    steps = itertools.chain(itertools.islice(bridge, frozen_at), other_bridge())
    for number in itertools.count():
        for place in places:
            if place == number:
                next(put, None)
        if next(steps, "over") == "over":
            break
    for _ in itertools.chain(put, keep(other, database)):
        pass
    return not database.committed <= database.found


EVERY = [
    (frozen_at, places)
    for frozen_at in range(1, LAST)
    for places in itertools.combinations_with_replacement(range(frozen_at + 5), 4)
]


def test_no_put_that_relied_on_a_frozen_bridge_is_forgotten() -> None:
    """Wherever the bridge freezes, and whatever a put does before and after, the other one looks after its commit."""
    for case in EVERY:
        assert not forgotten(*case), case


@pytest.mark.parametrize("fault", ["no lapse", "nobody listens"])
def test_a_promise_that_does_not_lapse_forgets_puts(fault: str) -> None:
    """So do bridges that take nothing over: the test above would see it."""
    assert any(forgotten(*case, fault) for case in EVERY)


def test_silence_is_what_the_others_wait_for() -> None:
    """Each word of a promise puts it off; the last one, or this bridge's own, leaves nothing to wait for."""
    promises = Promises("queuebell", "this")
    assert promises.silent(0.0) is None
    promises.told(QUEUE, "this", True, 1.0)
    assert promises.silent(1.0) is None, "its own word"
    promises.told(QUEUE, "another", True, 1.0)
    promises.told(QUEUE, "another", True, 3.0)
    assert promises.silent(3.0) == SILENCE_S
    promises.told(QUEUE, "a third", False, 3.0)
    assert promises.silent(2.0 + SILENCE_S) == 1.0
    promises.told(QUEUE, "another", False, 4.0)
    assert promises.silent(100.0) is None
    assert promises.wait() is None


async def test_what_is_taken_over_is_asked_about_and_looked_for() -> None:
    """At once, and once more when the transaction that is open is over; then all is over for the others too."""
    promises, line = Promises("queuebell", "this"), Written(["9/1"], ["9/1"], [])
    promises.told(QUEUE, "another", True, 0.0)
    assert promises.silent(SILENCE_S) is None
    assert promises.wait() == TICK_S
    for _ in range(3):
        await promises.turn(line, SILENCE_S)
    asked, looked = (OPEN, "queuebell"), ("NOTIFY", ("queuebell", QUEUE))
    assert line.said[:-1] == [asked, looked, asked, asked]
    ((_, said),) = line.said[-1][1:]  # type: ignore[misc]
    assert json.loads(str(said)) == {"storage_account": "a", "queue_name": "orders", "promised": False, "by": "this"}
    assert promises.wait() is None


async def test_a_refused_promise_is_the_others_to_keep() -> None:
    """A bridge that was refused looks once; should the other freeze after that, it takes over all the same."""
    promises, line = hot(), Written(["1/1", "2/1", "3/1"], [], [])
    await promises.turn(line, 10.0)
    promises.told(QUEUE, "another", True, 10.0)
    await promises.turn(line, 10.0)
    assert promises.wait() is None
    assert promises.silent(10.0 + SILENCE_S) is None
    assert promises.wait() == TICK_S


# -- a real server, and a real bridge that is stopped


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@contextlib.asynccontextmanager
async def crowd(url: str) -> AsyncIterator[None]:
    """Put all the time, from transactions beside each other, as long as the context lasts."""
    connections = [await PostgresAccess(url).connect() for _ in range(2 * CROWD)]

    async def put(connection: Any) -> None:
        while True:
            await connection.execute("SELECT queuebell_put($1, 'x'::text)", QUEUE)

    putting = [asyncio.create_task(put(each), name="crowd") for each in connections]
    try:
        yield
    finally:
        for task in putting:
            task.cancel()
        await asyncio.wait(putting)
        for connection in connections:
            connection.terminate()


@pytest.mark.system
async def test_a_bridge_that_is_stopped_silences_nobody(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts that rely on its promise are received through the other, without a sweep, and later ones notify again."""
    monkeypatch.setattr("bridge.triggers.promises.MANY", 10**9)  # the bridge of this process promises nothing
    url = server.url(search_path="frozen")
    await init(url, notify=True)
    await execute(url, "INSERT INTO queuebell_queues (name) VALUES ($1)", QUEUE)
    words: list[str] = []
    async with (
        Processes(tmp_path) as processes,
        Bridge(settings=BridgeSettings(periods=Periods(sweep_s=0))) as bridge,
        Attachments(bridge, postgres=[server.url()]),
        open_store(url) as store,
    ):
        heard, late, single = [await PostgresAccess(url).connect() for _ in range(3)]
        await heard.add_listener("queuebell", lambda *told: words.append(told[-1]))
        frozen = await processes.serve(postgres=server.url(), sweep_s="0")

        async def ready() -> bool:
            return bool((await frozen.ask("/readyz"))[0] == 200 and bridge.readiness().ready)

        await until(ready, "both hear the database")
        async with crowd(url):
            for what in ("the bridge promises to look", "and goes on"):
                words.clear()
                await until(lambda: any('"promised":true' in each for each in words), what)
            frozen.signal(signal.SIGSTOP)
        transaction = late.transaction()
        await transaction.start()
        await store.put(QUEUE, ["in a transaction"], connection=late)
        await single.execute("SELECT queuebell_put($1, 'single'::text)", QUEUE)
        words.clear()
        before = bridge.newest(QUEUE)
        await until(lambda: bridge.newest(QUEUE) != before, "somebody looks", 30)
        assert all('"payload_size"' not in word for word in words), "the put has relied on the promise"
        bodies: list[bytes] = []
        while batch := (await store.receive(QUEUE, 256, 600.0)).messages:
            bodies += [message.body for message in batch]
        assert b"single" in bodies
        assert b"in a transaction" not in bodies
        bodies.clear()
        before = bridge.newest(QUEUE)
        await transaction.commit()
        await until(lambda: bridge.newest(QUEUE) != before, "somebody looks after the commit", 30)

        async def found() -> bool:
            bodies.extend(each.body for each in (await store.receive(QUEUE, 256, 600.0)).messages)
            return bool(bodies)

        # Far from the beginning an answer says when to look again, 5 s ahead at most (decision 0020), as listeners do.
        await until(found, "what was committed late is received")
        assert bodies == [b"in a transaction"]
        words.clear()
        await single.execute("SELECT queuebell_put($1, 'x'::text)", QUEUE)
        await until(lambda: any('"payload_size"' in word for word in words), "the promise has lapsed: puts notify", 30)
        for each in (heard, late, single):
            await each.close()
