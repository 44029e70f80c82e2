"""The scenario of the 2008 paper, on a clock that the test moves."""

from __future__ import annotations

import pathlib

import pytest

from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.embedded.own_store import OwnStore
from bridge.queues.embedded.sqlite import SqliteStore
from bridge.service.bridge import Bridge
from tests.bridge.queues.clocks import FakeClock
from tests.support.azure import fault, serving_azure


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_consumer_crashes_and_another_finishes(kind: str, tmp_path: pathlib.Path) -> None:
    """C1 takes message 1 and crashes; C2 takes and deletes 2; 1 re-appears after 30 s, and C2 finishes it."""
    clock = FakeClock()
    store: OwnStore
    if kind == "memory":
        store = MemoryStore(str(tmp_path), clock=clock, wall=clock.wall)
    else:
        store = SqliteStore(tmp_path / "queue.db", clock=clock, wall=clock.wall)
    async with Bridge(store=store) as bridge, serving_azure(bridge, wall=clock.wall) as front:
        assert (await front.ask("PUT", "/work")).status == 201
        first = await front.put("work", "1")
        second = await front.put("work", "2")
        (c1,) = await front.get("work")
        assert (c1.id, c1.text, c1.count) == (first.id, "1", 1)
        (c2,) = await front.get("work")
        assert (c2.id, c2.text) == (second.id, "2")
        assert (await front.delete("work", c2)).status == 204
        await clock.let_pass(29.9)
        assert await front.get("work") == []
        await clock.let_pass(0.2)
        (again,) = await front.get("work")
        assert (again.id, again.text, again.count) == (first.id, "1", 2)
        assert fault(await front.delete("work", c1)) == (400, "PopReceiptMismatch")
        assert (await front.delete("work", again)).status == 204
        counted = await front.ask("GET", "/work?comp=metadata")
        assert counted.headers["x-ms-approximate-messages-count"] == "0"


async def test_a_message_lives_a_week(tmp_path: pathlib.Path) -> None:
    """Without a time to live it is gone after seven days; with -1 it stays."""
    clock = FakeClock()
    async with (
        Bridge(store=MemoryStore(str(tmp_path), clock=clock, wall=clock.wall)) as bridge,
        serving_azure(bridge, wall=clock.wall) as front,
    ):
        await front.ask("PUT", "/work")
        await front.put("work", "week")
        await front.put("work", "ever", "?messagettl=-1")
        await clock.let_pass(604_799)
        assert [message.text for message in await front.get("work", "?numofmessages=32&visibilitytimeout=1")] == [
            "week",
            "ever",
        ]
        await clock.let_pass(2)
        assert [message.text for message in await front.get("work", "?numofmessages=32")] == ["ever"]
