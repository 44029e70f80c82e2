"""Two and three bridges by chance, with clocks hours apart and faults: no message is left (I1), sweeps are off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.clusters import World, story, walk

WORLDS: dict[str, Callable[[], World]] = {
    "both hear": lambda: World(2, (0, 1), messages=2),
    "without names": lambda: World(2, (0, 1), messages=2, named=False),
    "one worker": lambda: World(2, (1,), messages=2, named=False),
    "one hears and tells": lambda: World(2, (0, 1), messages=2, heard_by=(0,)),
    "words lost and repeated": lambda: World(2, (0, 1), messages=2, faults={"lose": 2, "repeat": 2}),
    "a worker dies": lambda: World(2, (0, 1), messages=2, faults={"crash worker": 1}),
    "a worker dies and none comes": lambda: World(2, (0, 1), messages=2, faults={"end worker": 1}),
    "... and triggers are bare": lambda: World(2, (0, 1), messages=2, named=False, faults={"end worker": 1, "lose": 1}),
    "a bridge dies": lambda: World(2, (0, 1), messages=2, faults={"crash bridge": 1}),
    "a machine sleeps": lambda: World(2, (0, 1), messages=2, named=False, faults={"suspend": 2, "repeat": 1}),
    "some for later": lambda: World(2, (0, 1), messages=4, delayed=(1, 3)),
    "deaf to one": lambda: World(2, (0, 1), messages=2, named=False, faults={"drop": 2, "repeat": 1}),
    "deaf to one with a name": lambda: World(2, (0, 1), messages=2, faults={"drop": 2, "repeat": 1}),
    "deaf to one for later": lambda: World(2, (0, 1), messages=2, delayed=(1,), faults={"drop": 2}),
    "three": lambda: World(3, (0, 1, 2), messages=3, faults={"lose": 1, "repeat": 1, "crash bridge": 1}),
    "three and two workers": lambda: World(
        3, (0, 2), messages=3, named=False, faults={"lose": 1, "drop": 1, "suspend": 1, "crash worker": 1}
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_no_walk_leaves_a_message(name: str) -> None:
    """I1, with a few seeds."""
    for seed in range(8):
        world = walk(WORLDS[name], seed)
        assert not world.lost(), (name, seed, story(world))


@pytest.mark.rest
@pytest.mark.parametrize("name", WORLDS)
def test_no_walk_of_many_leaves_a_message(name: str) -> None:
    """I1, with many."""
    for seed in range(8, 400):
        world = walk(WORLDS[name], seed)
        assert not world.lost(), (name, seed, story(world))


@pytest.mark.parametrize("size", [(1, (0,)), (2, (0,)), (2, (1,)), (2, (0, 1)), (3, (2,)), (3, (0, 1, 2))])
def test_calm_a_trigger_costs_what_it_costs_one_bridge(size: tuple[int, tuple[int, ...]]) -> None:
    """C2, C4: wherever the worker is; the others hold the mark and forgive it."""
    bridges, workers = size
    world = World(bridges, workers, messages=20)
    for number in range(20):
        world.do(("put", number))
        world.settle(10.0)
    assert world.lost() == []
    assert world.late() == 0
    assert world.words <= 20 * (bridges - 1) * 2
    alone = World(1, (0,), messages=20)
    for number in range(20):
        alone.do(("put", number))
        alone.settle(10.0)
    assert world.receives <= alone.receives + 20 * (len(workers) > 1)
