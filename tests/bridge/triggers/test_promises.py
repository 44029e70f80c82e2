"""Promises to look: whatever comes between a put that relies on one and its commit, somebody looks afterwards.

What meets what: a put within the promise, around its beginning, around its end; committed, rolled back, prepared in two
phases; the connection lost between any two statements; one bridge, two of them; the server's own locks.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pytest

from bridge.brokers.postgres.access import PostgresAccess
from bridge.contract.errors import BusUnavailable
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.voice import OPEN, PROMISE, WITHDRAW
from bridge.service.bridge import Bridge
from bridge.triggers.attachment import Attachments
from bridge.triggers.promises import CROWD, MANY, OPEN_S, PROMISE_S, RENEWALS, TICK_S, WINDOW_S, Promises
from tests.support.postgres import PostgresServer, execute, running
from tests.support.processes import until

QUEUE, NEXT = "a/orders", "a/next"
BOOT = "b" * 32
STATEMENTS = 12
"""A promise, looks while it stands, its end and what comes after."""


class Said:
    """One statement on its way to the server."""

    def __init__(self, statement: str, arguments: Sequence[Any]) -> None:
        self.statement, self.arguments = statement, arguments
        self.answer: list[dict[str, str]] = []

    def __await__(self) -> Generator[Said, None, list[dict[str, str]]]:
        yield self
        return self.answer


class Database:
    """The locks of a database, what is committed in it, and what was looked for."""

    def __init__(self, crowds: int = 1) -> None:
        self.crowds = crowds
        """How often whoever asks finds others that put meanwhile."""
        self.promised: dict[str, int] = {}
        self.open: set[str] = set()
        self.committed: set[str] = set()
        self.found: set[str] = set()
        self.looks = 0

    def ask(self, statement: str, *arguments: object) -> Any:
        return Said(statement, arguments)

    def notify(self, said: Sequence[tuple[str, str]]) -> Any:
        return Said("NOTIFY", said)

    def look(self) -> None:
        self.looks += 1
        self.found |= self.committed

    def carry_out(self, said: Said) -> None:
        if said.statement == PROMISE:
            self.promised = dict.fromkeys(said.arguments[1], 1)
            said.answer = [{"name": name} for name in self.promised]
        elif said.statement == WITHDRAW:
            self.promised.clear()
        elif said.statement == OPEN:
            crowd = [f"{n}/{self.crowds}" for n in range(CROWD)] if self.crowds > 0 else []
            self.crowds -= 1
            said.answer = [{"transaction": name} for name in (*crowd, *sorted(self.open))]
        else:
            self.look()

    def put(self, name: str, end: str, fault: str = "") -> Iterator[None]:
        """A transaction that puts, step by step as the trigger function has it."""
        if fault not in ("no part", "part late"):
            self.open.add(name)
        yield
        relied = self.promised.get(QUEUE, 0) > 0
        if fault == "part late":
            yield
            self.open.add(name)
        yield
        if end == "prepared":
            self.open.discard(name)
            self.open.add(f"-1/{name}")
            yield
        if end != "rolled back":
            self.committed.add(name)
            if not relied:
                self.look()
        yield
        self.open -= {name, f"-1/{name}"}


def keep(promises: Promises, database: Database, lost_at: int | None = None) -> Iterator[None]:
    """Carry out what a bridge says, statement by statement, until nothing is promised or owed; 0.3 s lie between."""
    now, count = 0.0, 0
    while promises.wait() is not None:
        now += max(promises.wait() or 0.0, PROMISE_S * 0.6)
        turn = promises.turn(database, now)
        said: Said | None = None
        while True:
            try:
                if said is not None and count == lost_at:
                    database.promised.clear()
                    turn.throw(BusUnavailable("gone"))
                said = turn.send(None)
            except StopIteration:
                break
            except BusUnavailable:
                promises.broke()
                break
            yield
            count += 1
            database.carry_out(said)


def hot() -> Promises:
    """Promises of a bridge that hears many puts."""
    promises = Promises("queuebell", BOOT)
    for _ in range(MANY):
        promises.heard(QUEUE, 0.0)
    return promises


def lost(places: Sequence[int], end: str, lost_at: int | None = None, fault: str = "") -> bool:
    """Have the steps of a put come before these statements of the bridge, and say whether nobody looked for it."""
    database = Database()
    put, bridge = database.put("3/7", end, fault), keep(hot(), database, lost_at)
    for number in range(STATEMENTS + 1):
        for place in places:
            if place == number:
                next(put, None)
        next(bridge, None)
    for _ in put:
        pass
    for _ in bridge:
        pass
    assert not any(database.promised.values()), "withdrawn in the end"
    return not database.committed <= database.found


@pytest.mark.parametrize("end", ["committed", "rolled back", "prepared"])
def test_no_put_that_relied_on_a_promise_is_forgotten(end: str) -> None:
    """At each moment of a bridge's statements each step of a put may come; somebody looks after its commit."""
    steps = 5 if end == "prepared" else 4
    for places in itertools.combinations_with_replacement(range(STATEMENTS + 1), steps):
        assert not lost(places, end), places


def test_a_connection_lost_at_any_statement_forgets_nothing() -> None:
    """The next connection finds out what was owed; a put that saw no promise any more has said so itself."""
    for lost_at in range(1, 9):
        for places in itertools.combinations_with_replacement(range(10), 4):
            assert not lost(places, "committed", lost_at), (lost_at, places)


@pytest.mark.parametrize("fault", ["no part", "part late"])
def test_the_order_of_the_function_is_what_it_takes(fault: str) -> None:
    """A put that takes part only after it looked, or never, can be forgotten: the two tests above would see it."""
    every = itertools.combinations_with_replacement(range(STATEMENTS + 1), 5)
    assert any(lost(places, "committed", fault=fault) for places in every)


def test_many_puts_at_any_moment() -> None:
    """Puts of any length beside each other, while promises come and go: none is forgotten, none is promised twice."""
    for seed in range(200):
        beside_each_other(random.Random(seed))


def beside_each_other(draw: random.Random) -> None:
    """Twelve puts, and a bridge that becomes busy again and again."""
    database, promises = Database(30), hot()
    bridge = keep(promises, database)
    puts = [database.put(f"{n}/7000", draw.choice(["committed", "rolled back", "prepared"])) for n in range(12)]
    while puts:
        if draw.random() < 0.1:
            for _ in range(MANY):
                promises.heard(QUEUE, draw.random())
        if draw.random() < 0.4:
            if next(bridge, "over") == "over":
                bridge = keep(promises, database)
        else:
            put = draw.choice(puts)
            if next(put, "over") == "over":
                puts.remove(put)
    for _ in keep(promises, database) if next(bridge, "over") == "over" else bridge:
        pass
    assert database.committed <= database.found
    assert not any(database.promised.values())


def test_a_second_promise_beside_what_the_first_left_open() -> None:
    """What relied on the second is waited for as well, though it began after the first was over."""
    database, promises = Database(), hot()
    bridge = keep(promises, database)
    puts = [database.put(f"{number}/7", "committed") for number in range(2)]
    for number, put in enumerate(puts):
        database.crowds = 1
        for _ in range(MANY):
            promises.heard(QUEUE, 1000.0 * number)
        while not database.promised.get(QUEUE):
            next(bridge)
        for _ in range(2):
            next(put)
        while database.promised:
            next(bridge)
        for _ in range(5):
            next(bridge)
    for put in puts:
        for _ in put:
            pass
        for _ in range(5):
            next(bridge, None)
    assert database.found == {"0/7", "1/7"}
    assert promises.wait() is None


def test_few_puts_are_not_many() -> None:
    """Nothing is promised below the limit, nor by puts of many queues, nor by as many over a longer time."""
    promises = Promises("queuebell", BOOT)
    assert not any(promises.heard(QUEUE, 0.0) for _ in range(MANY - 1))
    assert not any(promises.heard(f"a/{n}", 0.0) for n in range(MANY))
    assert not any(promises.heard(QUEUE, 10 + n * WINDOW_S / (MANY - 2)) for n in range(100))
    assert promises.wait() is None
    assert [promises.heard(QUEUE, 1000.0) for _ in range(MANY)][-1]
    assert promises.wait() == TICK_S


def test_a_put_that_stays_open_is_looked_for_seldom_and_in_time() -> None:
    """The question whether it is over becomes rarer up to a limit; there is no look before the answer has changed."""
    database, promises = Database(), hot()
    database.open.add("3/7")
    bridge = keep(promises, database)
    while promises.wait() != OPEN_S:
        next(bridge)
    looks = database.looks
    for _ in range(20):
        next(bridge)
    assert database.looks == looks
    database.open.clear()
    database.committed.add("late")
    for _ in bridge:
        pass
    assert database.found == {"late"}


@pytest.mark.parametrize("crowds, ended, lasts", [(0, 0, 0), (1, 1, 1), (2, 1, 2), (1000, 1, RENEWALS + 1)])
def test_a_promise_lasts_as_long_as_the_crowd(crowds: int, ended: int, lasts: int) -> None:
    """Nothing is promised to one who puts alone, however fast; and after some time a bridge listens in any case."""
    said: list[str] = []

    class Written(Database):
        def carry_out(self, each: Said) -> None:
            said.append(each.statement)
            super().carry_out(each)

    for _ in itertools.islice(keep(hot(), Written(crowds)), 100):
        pass
    assert said.count(WITHDRAW) == ended
    assert said.count(PROMISE) == lasts
    assert said[: said.index(WITHDRAW)].count(OPEN) == lasts + 1 if ended else WITHDRAW not in said


def test_what_another_bridge_has_promised_is_not_promised_again() -> None:
    """Nothing is given then, and nothing withdrawn."""

    class Taken(Database):
        def carry_out(self, said: Said) -> None:
            assert said.statement != WITHDRAW
            if said.statement != PROMISE:
                super().carry_out(said)

    for _ in keep(hot(), Taken()):
        pass


class Written:
    """A server that answers as it is told, and writes down what it is asked, with its arguments."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.said: list[tuple[object, ...]] = []

    async def ask(self, statement: str, *arguments: object) -> list[dict[str, str]]:
        self.said.append((statement, *arguments))
        if statement == WITHDRAW:
            return []
        return [{"transaction" if statement == OPEN else "name": each} for each in self.answers.pop(0)]

    async def notify(self, said: Sequence[tuple[str, str]]) -> None:
        self.said.append(("NOTIFY", *said))


def word(queue: str, promised: bool) -> str:
    """What a bridge says of a queue that it looks after, or has looked after to the end."""
    account, name = queue.split("/")
    return json.dumps(
        {"storage_account": account, "queue_name": name, "promised": promised, "by": BOOT}, separators=(",", ":")
    )


def given(*queues: str) -> tuple[object, ...]:
    """The promise of these queues, and what is said of them."""
    return (PROMISE, "queuebell", list(queues), [word(queue, True) for queue in queues])


CROWDED, OTHERS = ["1/1", "2/1", "3/1"], ["4/1", "5/1", "6/1"]


def test_a_promise_step_by_step() -> None:
    """What is asked, with which names, and when: given at once, told every turn, withdrawn at its time."""
    promises, line = hot(), Written(CROWDED, [QUEUE], [], [], [])
    asyncio.run(promises.turn(line, 10.0))
    assert line.said == [(OPEN, "queuebell"), given(QUEUE)]
    assert promises.wait() == TICK_S
    line.said.clear()
    # A turn before its end asks nothing and tells whoever listens.
    asyncio.run(promises.turn(line, 10.0 + PROMISE_S - 0.001))
    assert line.said == [STANDS]
    line.said.clear()
    asyncio.run(promises.turn(line, 10.0 + PROMISE_S))
    assert line.said == [(OPEN, "queuebell"), (WITHDRAW,), (OPEN, "queuebell"), OVER]
    assert promises.wait() is None


def test_a_crowd_of_others_prolongs_it_by_as_much() -> None:
    """New transactions keep it; then it lasts as long again, and those that were there before are no crowd."""
    promises, line = hot(), Written(CROWDED, [QUEUE], OTHERS, [QUEUE], OTHERS, [], [])
    asyncio.run(promises.turn(line, 10.0))
    asyncio.run(promises.turn(line, 10.0 + PROMISE_S))
    assert line.said[2:] == [(OPEN, "queuebell"), given(QUEUE), STANDS], "given again, before it lapses"
    line.said.clear()
    asyncio.run(promises.turn(line, 10.0 + 2 * PROMISE_S - 0.001))
    assert line.said == [STANDS]
    asyncio.run(promises.turn(line, 10.0 + 2 * PROMISE_S))
    assert (WITHDRAW,) in line.said


def test_who_is_no_crowd_is_left_alone_for_a_while() -> None:
    """Puts that were many and not beside each other are not asked about again before the window is over."""
    promises, line = hot(), Written([], [])
    asyncio.run(promises.turn(line, 10.0))
    assert [said[0] for said in line.said] == [OPEN]
    assert promises.wait() is None
    assert not any(promises.heard(QUEUE, 10.0 + WINDOW_S - 0.001) for _ in range(2 * MANY))
    assert [promises.heard(QUEUE, 10.0 + WINDOW_S) for _ in range(MANY)][-1]


def test_the_window_begins_anew_at_its_end() -> None:
    """Puts of the moment at which a window is over count towards the next one."""
    promises = Promises("queuebell", BOOT)
    assert not any(promises.heard(QUEUE, 1.0) for _ in range(MANY - 1))
    assert not promises.heard(QUEUE, 1.0 + WINDOW_S)
    assert not promises.heard("a/other", 1.0 + WINDOW_S)


TOLD = ("NOTIFY", ("queuebell", QUEUE))
STANDS, OVER = (("NOTIFY", ("queuebell", word(QUEUE, promised))) for promised in (True, False))


def withdrawn(line: Written) -> Promises:
    """One that has withdrawn its promise while two transactions, 9/1 and 9/2, that may have relied on it are open."""
    promises = hot()
    line.answers[:0] = [CROWDED, [QUEUE], [], ["9/1", "9/2"]]
    for now in (10.0, 10.0 + PROMISE_S):
        asyncio.run(promises.turn(line, now))
    assert line.said[-1] == TOLD
    line.said.clear()
    return promises


def test_what_is_owed_is_asked_about_each_turn() -> None:
    """Well before the time of a next promise; those that began later do not count, and in the end nothing is owed."""
    line = Written(["9/1", "9/2", "8/1"], ["9/1", "9/2"], ["9/2", "8/1"], ["8/1"])
    promises = withdrawn(line)
    waits = [promises.wait()]
    for now in (10.6, 10.7):
        asyncio.run(promises.turn(line, now))
        waits.append(promises.wait())
    assert line.said == [(OPEN, "queuebell")] * 2
    asyncio.run(promises.turn(line, 10.8))
    assert line.said[2:] == [(OPEN, "queuebell"), TOLD]
    # More seldom each time, and often again once one of them is over: others may follow.
    assert [*waits, promises.wait()] == [TICK_S, 2 * TICK_S, 4 * TICK_S, TICK_S]
    asyncio.run(promises.turn(line, 10.9))
    assert line.said[4:] == [(OPEN, "queuebell"), OVER]
    assert promises.wait() is None


def test_what_is_owed_is_looked_for_while_another_queue_is_promised() -> None:
    """As soon as it is over and somebody asks; then the first queue is told of no more, and can be promised again."""
    line = Written(["9/1", "9/2", *OTHERS], [NEXT], CROWDED, [NEXT], [], [])
    promises = withdrawn(line)
    for _ in range(MANY):
        promises.heard(NEXT, 20.0)
    asyncio.run(promises.turn(line, 20.0))
    assert line.said == [(OPEN, "queuebell"), given(NEXT)]
    line.said.clear()
    asyncio.run(promises.turn(line, 20.0 + PROMISE_S))
    # A crowd of others: the promise goes on.
    said = ("NOTIFY", ("queuebell", word(NEXT, True)), ("queuebell", word(QUEUE, False)))
    assert line.said == [(OPEN, "queuebell"), given(NEXT), said]
    asyncio.run(promises.turn(line, 20.0 + 2 * PROMISE_S))
    while promises.wait() is not None:
        asyncio.run(promises.turn(line, 30.0))
    for _ in range(MANY):
        promises.heard(QUEUE, 40.0)
    line.answers[:] = [CROWDED, [QUEUE]]
    asyncio.run(promises.turn(line, 40.0))
    assert line.said[-1] == given(QUEUE)


def test_a_fresh_one_is_due_for_nothing() -> None:
    """Nothing waits before anything was heard, and a first turn asks and tells nothing but who is open."""
    promises, line = Promises("queuebell", BOOT), Written([])
    assert promises.wait() is None
    asyncio.run(promises.turn(line, 0.0))
    assert line.said == [(OPEN, "queuebell")]
    assert promises.wait() is None


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.mark.system
async def test_a_promise_on_a_real_server(server: PostgresServer) -> None:
    """The function, the locks and the bridge: many puts begin it; what relied on it and stays open is looked for."""
    url = server.url(search_path="promises")
    await init(url, notify=True)
    await execute(url, "INSERT INTO queuebell_queues (name) VALUES ($1)", QUEUE)  # or the first to put has others wait
    async with Bridge() as bridge, Attachments(bridge, postgres=[server.url()]) as buses:
        (database,) = buses.databases.values()
        await until(lambda: database.check()[0], "the database is heard")
        heard = await PostgresAccess(url).connect()
        said: list[str] = []
        await heard.add_listener("queuebell", lambda *told: said.append(told[-1]))
        many = await PostgresAccess(url).connect()
        late = await PostgresAccess(url).connect()
        others = [await PostgresAccess(url).connect() for _ in range(CROWD)]
        try:
            # Open beside each other, and as many more as it takes: the bridge asks who is open when it has heard those.
            crowd = [each.transaction() for each in others]
            for each, transaction in zip(others, crowd, strict=True):
                await transaction.start()
                await each.execute("SELECT queuebell_put($1, 'x'::text)", QUEUE)

            async def promised() -> bool:
                for _ in range(MANY):
                    await many.execute("SELECT queuebell_put($1, 'x'::text)", QUEUE)
                return any('"promised"' in each for each in said)

            await until(promised, "a promise is given")
            for transaction in crowd:
                await transaction.commit()
            # Whether this put relies on it or says so itself is up to the moment; either way its commit is heard.
            transaction = late.transaction()
            await transaction.start()
            await late.execute("SELECT queuebell_put($1, 'x'::text)", QUEUE)

            async def locks(count: int) -> bool:
                rows = await execute(url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
                return bool(rows[0][0] == count)

            await until(lambda: locks(1), "nothing is promised, and the put is open")
            before = bridge.newest(QUEUE)
            await transaction.commit()
            await until(lambda: bridge.newest(QUEUE) != before, "somebody looks after the commit")
            await until(lambda: locks(0), "nothing is promised or open in the end")
        finally:
            for connection in (heard, many, late, *others):
                await connection.close()


@pytest.mark.system
async def test_an_upgrade_brings_the_function_along(server: PostgresServer) -> None:
    """`queue init` without a word about NOTIFY replaces the function of a version before, for its own channel."""
    url = server.url(search_path="upgraded")
    await init(url, notify=True, prefix="mine")
    assert await init(url) == []
    await execute(
        url,
        "CREATE OR REPLACE FUNCTION queuebell_notify_put() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_notify('mine', 'a/b'); RETURN NULL; END $$",
    )
    (done,) = await init(url)
    assert "notifies the channel mine" in done
    assert await init(url) == []
    await init(url, notify=False)
    assert await init(url) == [], "silence stays"


@pytest.mark.system
async def test_puts_that_are_promised_say_nothing(server: PostgresServer) -> None:
    """While somebody holds a promise, its queue's puts notify nobody, and others do as ever; delayed ones likewise."""
    url = server.url(search_path="silence")
    await init(url, notify=True)
    access = PostgresAccess(url)
    keeper, putter, heard = await access.connect(), await access.connect(), await access.connect()
    said: list[str] = []
    try:
        await heard.add_listener("queuebell", lambda *told: said.append(told[-1]))
        assert [row["name"] for row in await keeper.fetch(*given(QUEUE))] == [QUEUE]
        assert await putter.fetch(*given(QUEUE)) == [], "one at a time"
        for delay in ("0", "1 hour"):
            await putter.execute("SELECT queuebell_put($1, 'x'::text, $2::text::interval)", QUEUE, delay)
        async with putter.transaction():
            await putter.execute("INSERT INTO queuebell_messages (queue, text) VALUES ($1, ''), ('a/other', '')", QUEUE)
            (mine,) = await putter.fetch(OPEN, "queuebell")
            assert [row["transaction"] for row in await keeper.fetch(OPEN, "queuebell")] == [mine["transaction"]]
            assert await keeper.fetch(OPEN, "another") == []
        assert await keeper.fetch(OPEN, "queuebell") == []
        await keeper.fetch(WITHDRAW)
        await putter.execute("SELECT queuebell_put($1, 'x'::text)", QUEUE)
        await until(lambda: len(said) == 3, "two of the puts are heard")
        assert ["promised" in said[0], "other" in said[1], "orders" in said[2]] == [True, True, True]
        assert (await execute(url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))[0][0] == 0
    finally:
        for connection in (keeper, putter, heard):
            await connection.close()
