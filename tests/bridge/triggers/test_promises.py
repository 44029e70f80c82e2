"""Promises: however a put that relies on one and its commit interleave with a bridge, its queue is triggered later.

A put within the promise, around its beginning and around its end; the connection lost between any two statements.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from queuebell.bridge.contract.errors import BusUnavailable
from queuebell.bridge.queues.postgres.schema import OPEN, PROMISE, WITHDRAW
from queuebell.bridge.triggers.promises import CROWD, MANY, PROMISE_S, SILENCE_S, TICK_S, Promises

QUEUE = "a/orders"
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

    def __init__(self) -> None:
        self.crowds = 1
        """How many answers still contain other open transactions."""
        self.promised: dict[str, int] = {}
        self.open: set[str] = set()
        self.committed: set[str] = set()
        self.found: set[str] = set()

    def ask(self, statement: str, *arguments: object) -> Any:
        return Said(statement, arguments)

    def notify(self, said: Sequence[tuple[str, str]]) -> Any:
        return Said("NOTIFY", said)

    def look(self) -> None:
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

    def put(self, name: str) -> Iterator[None]:
        """A transaction that puts, in the steps of the trigger function."""
        self.open.add(name)
        yield
        relied = self.promised.get(QUEUE, 0) > 0
        yield
        self.committed.add(name)
        if not relied:
            self.look()
        yield
        self.open.discard(name)


def keep(promises: Promises, database: Database, lost_at: int) -> Iterator[None]:
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
                promises.reset()
                break
            yield
            count += 1
            database.carry_out(said)


def hot() -> Promises:
    """Promises of a bridge that hears many puts."""
    promises = Promises("queuebell", BOOT)
    for _ in range(MANY):
        promises.on_put(QUEUE, 0.0)
    return promises


def lost(places: Sequence[int], lost_at: int) -> bool:
    """Have the steps of a put come before these statements of the bridge, and say whether nobody looked for it."""
    database = Database()
    put, bridge = database.put("3/7"), keep(hot(), database, lost_at)
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


def test_a_connection_lost_at_any_statement_forgets_nothing() -> None:
    """The next connection finds what is pending; a put that saw no promise has notified by itself."""
    for lost_at in range(1, 9):
        for places in itertools.combinations_with_replacement(range(10), 4):
            assert not lost(places, lost_at), (lost_at, places)


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


def test_a_crowd_of_others_prolongs_it_by_as_much() -> None:
    """New transactions renew it for the same time; those that were open before do not."""
    promises, line = hot(), Written(CROWDED, [QUEUE], OTHERS, [QUEUE], OTHERS, [], [])
    asyncio.run(promises.turn(line, 10.0))
    asyncio.run(promises.turn(line, 10.0 + PROMISE_S))
    assert line.said[2:] == [(OPEN, "queuebell"), given(QUEUE), STANDS], "given again, before it lapses"
    line.said.clear()
    asyncio.run(promises.turn(line, 10.0 + 2 * PROMISE_S - 0.001))
    assert line.said == [STANDS]
    asyncio.run(promises.turn(line, 10.0 + 2 * PROMISE_S))
    assert (WITHDRAW,) in line.said


STANDS = ("NOTIFY", ("queuebell", word(QUEUE, True)))


async def test_a_refused_promise_is_the_others_to_keep() -> None:
    """A rejected bridge triggers once, and takes over if the other one freezes."""
    promises, line = hot(), Written(["1/1", "2/1", "3/1"], [], [])
    await promises.turn(line, 10.0)
    promises.on_report(QUEUE, "another", True, 10.0)
    await promises.turn(line, 10.0)
    assert promises.wait() is None
    assert promises.take_over(10.0 + SILENCE_S) is None
    assert promises.wait() == TICK_S
