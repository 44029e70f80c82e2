"""The table: what each operation may depend on, counted at 100 and at 10,000 of it, without a clock.

A cell fails where the operation takes over a fifth more steps beside 10,000 of a thing than beside 100.
``python -m bench growth`` shows the same in processor time, up to a million.
"""

from __future__ import annotations

import pytest

from tests.growth.table import TABLE, World
from tests.support.growth import Work

FEW, MANY = 100, 10_000
BEGINS = {("Cluster", "queues"): 1000}
"""Where more than 100 are needed: a word between bridges names 1,000 queues at most."""
ENDS = {("Store", "unmatched"): 1000}
"""Where fewer than 10,000 show it: each of them is an operation."""
GROWTH_MAX = 1.2
TIMES = 3
"""The fewest steps of so many count: a table that grows now and then is paid for by all that fill it."""

FILLS = [(world, thing) for world, row in TABLE.items() for thing in dict.fromkeys(" ".join(row.values()).split())]


async def steps(world: World, thing: str, count: int) -> dict[str, int]:
    """Return the steps of each operation that this thing might matter to, beside so many of it."""
    async with world().opened() as made:
        await getattr(made, f"fill_{thing}")(count)
        found: dict[str, int] = {}
        for operation, things in TABLE[world].items():
            if thing in things.split():
                works: list[Work] = [await getattr(made, operation)() for _ in range(TIMES)]
                found[operation] = min(work.steps for work in works)
        return found


async def grown(world: World, thing: str) -> dict[str, tuple[int, int]]:
    """Return the operations that take over a fifth more steps beside many of this thing than beside few: both steps."""
    begin = BEGINS.get((world.__name__, thing), FEW)
    end = ENDS.get((world.__name__, thing), MANY)
    few, many = await steps(world, thing, begin), await steps(world, thing, end)
    return {name: (few[name], many[name]) for name in few if many[name] > GROWTH_MAX * few[name]}


@pytest.mark.parametrize(("world", "thing"), FILLS, ids=[f"{world.__name__}-{thing}" for world, thing in FILLS])
async def test_no_cost_grows_with(world: World, thing: str) -> None:
    """Each operation takes as many steps beside 10,000 as beside 100, within a fifth."""
    assert not await grown(world, thing)
