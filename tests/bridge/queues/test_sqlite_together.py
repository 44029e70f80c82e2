"""Which calls go to the writer together: those of a few callers that ask again once they are answered."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bridge.queues.base import NewMessage
from bridge.queues.embedded.sqlite import _FEW, _LOOKS_MAX, SqliteStore
from tests.support.writers import standing

Q = "billing/orders"
TURNS = 8


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls were handed over, each time."""
    handed: list[int] = []

    class Noted(queue.SimpleQueue[list[object] | None]):
        def put(self, item: list[object] | None, *args: Any) -> None:
            if item is not None:
                handed.append(len(item))
            super().put(item, *args)

    monkeypatch.setattr(queue, "SimpleQueue", Noted)
    return handed


@pytest_asyncio.fixture
async def store(tmp_path: Path, groups: list[int]) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(tmp_path / "queue.db")
    await made.open()
    await made.create(Q)
    groups.clear()
    yield made
    await made.close()


def puts(store: SqliteStore, count: int) -> list[asyncio.Task[object]]:
    return [asyncio.create_task(store.put(Q, [NewMessage(b"x")]), name="put") for _ in range(count)]


async def turns(count: int = TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_few_wait_for_the_commit_that_others_wait_for(store: SqliteStore, groups: list[int]) -> None:
    """They would wait for it in the writer's queue too, and go together with whoever comes meanwhile."""
    with standing():
        asked = puts(store, 3)
        await turns()
        assert groups == [3]
        for _ in range(2):
            asked += puts(store, 1)
            await turns()
        assert groups == [3]
    await asyncio.gather(*asked)
    assert groups == [3, 2]


async def test_more_than_are_under_way_do_not_wait(store: SqliteStore, groups: list[int]) -> None:
    """Theirs is the larger commit; what the writer finds when it has ended is theirs."""
    with standing():
        asked = puts(store, 2)
        await turns()
        asked += puts(store, 3)
        await turns()
        assert groups == [2, 3]
    await asyncio.gather(*asked)


async def test_beside_many_nobody_waits(store: SqliteStore, groups: list[int]) -> None:
    """With many callers commits are large anyway, and the writer must not stand still between them."""
    with standing():
        asked = puts(store, _FEW + 1)
        await turns()
        asked += puts(store, 1)
        await turns()
        assert groups == [_FEW + 1, 1]
    await asyncio.gather(*asked)


async def test_up_to_so_many_go_together_again(store: SqliteStore, groups: list[int]) -> None:
    """As many as are few: those that come back one by one are waited for, but no longer than some turns."""
    await asyncio.gather(*puts(store, _FEW))
    asked = puts(store, 1)
    await turns(1)
    asked += puts(store, 1)
    await asyncio.gather(*asked)
    assert groups == [_FEW, 2]


async def test_callers_that_come_back_one_by_one_go_together(store: SqliteStore, groups: list[int]) -> None:
    """Each turn of the loop brings one; as many as went together last are waited for."""
    await asyncio.gather(*puts(store, 3))
    asked = []
    for _ in range(3):
        asked += puts(store, 1)
        await turns(1)
    await asyncio.gather(*asked)
    assert groups == [3, 3]


async def test_a_caller_alone_waits_for_nobody_for_long(store: SqliteStore, groups: list[int]) -> None:
    """A turn that brings no other call is the last one that is waited for."""
    await asyncio.gather(*puts(store, 9))
    asked = puts(store, 1)
    await turns(1 + 2)
    assert groups == [9, 1]
    await asyncio.gather(*asked)


async def test_nobody_waits_for_ever(store: SqliteStore, groups: list[int]) -> None:
    """However many come one by one, so many turns are enough."""
    await asyncio.gather(*puts(store, 40))
    asked = []
    for _ in range(20):
        asked += puts(store, 1)
        await turns(1)
        if len(groups) > 1:
            break
    assert groups[1:] in ([_LOOKS_MAX + 1], [_LOOKS_MAX])
    await asyncio.gather(*asked)


async def test_close_carries_out_what_waits(store: SqliteStore, groups: list[int]) -> None:
    """Also what was held back beside a commit."""
    with standing():
        asked = puts(store, 3)
        await turns()
        asked += puts(store, 1)
        await turns()
        assert groups == [3]
        closing = asyncio.create_task(store.close(), name="close")
        await turns()
        assert groups == [3, 1]
    await closing
    assert len(await asyncio.gather(*asked)) == 4
