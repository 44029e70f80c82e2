"""How often a database is asked by what listens to it: counted in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bridge.brokers.postgres.line import PostgresLine
from bridge.contract.errors import BusUnavailable
from bridge.triggers import postgres
from bridge.triggers.postgres import LOOK_S, ROOM, ROOM_LOOKS, Promising, Voices
from bridge.triggers.promises import Promises
from tests.support.sim_loop import elapse, simulated


class Line:
    """A connection that notes when it was asked whether puts send triggers, and how many connections are left."""

    search_path: str | None = None

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.rooms: list[float] = []
        self.broken = False

    async def ask(self, query: str, *_: object) -> list[dict[str, Any]]:
        (self.rooms if query == ROOM else self.asked).append(asyncio.get_running_loop().time())
        if self.broken:
            raise BusUnavailable("gone")
        return [{"used": 1, "most": 100}] if query == ROOM else []


def as_line(line: Line) -> PostgresLine:
    return cast(PostgresLine, line)


@simulated
async def test_whether_puts_ring_is_asked_every_few_seconds_and_no_more() -> None:
    """At once on a fresh connection, then each `LOOK_S`; never again once it is gone."""
    line = Line()
    voices = Voices("db", "queuebell", lambda: None)
    began = asyncio.get_running_loop().time()
    await voices.attach(as_line(line))
    await elapse(10 * LOOK_S + 0.1)
    assert [round(at - began, 3) for at in line.asked] == [LOOK_S * number for number in range(11)]
    assert len(line.rooms) == 1 + 10 // ROOM_LOOKS
    voices.detach()
    await elapse(10 * LOOK_S)
    assert len(line.asked) == 11


@simulated
async def test_a_connection_that_breaks_is_not_asked_again() -> None:
    """The one after it is asked at once; what was seen last stands meanwhile."""
    line = Line()
    voices = Voices("db", "queuebell", lambda: None)
    assert voices.check() == (True, "not checked yet")
    await voices.attach(as_line(line))
    seen = voices.check()
    line.broken = True
    await elapse(20 * LOOK_S)
    assert len(line.asked) == 2 and voices.check() == seen
    other = Line()
    await voices.attach(as_line(other))
    assert len(other.asked) == 1
    voices.detach()


@pytest.mark.parametrize("waits", [[0.25] * 4, [5.0, 0.0, 30.0]])
@simulated
async def test_promises_are_kept_at_their_own_pace(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn comes when the rule says, and none after the last."""
    loop = asyncio.get_running_loop()
    left, turns = list(waits), list[float]()

    async def turn(_: Promises, __: object, now: float) -> None:
        turns.append(now)
        del left[0]

    monkeypatch.setattr(postgres.Promises, "heard", lambda *_: True)
    monkeypatch.setattr(postgres.Promises, "wait", lambda _: left[0] if left else None)
    monkeypatch.setattr(postgres.Promises, "turn", turn)
    promising = Promising("db", "queuebell", "b" * 32)
    began = loop.time()
    promising.attach(as_line(Line()))
    await elapse(100.0)
    assert [at - began for at in turns] == pytest.approx([sum(waits[: number + 1]) for number in range(len(waits))])
    # Told of another put, it begins again.
    left.append(1.0)
    promising.put("a/b")
    await elapse(2.0)
    assert len(turns) == len(waits) + 1
    promising.detach()
