"""Every interleaving of small worlds of scalers, and the mistakes that these worlds must notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuebell.listeners.scaling.processes import Processes
from queuebell.listeners.scaling.scaled_queue import ScaledQueue
from tests.listeners.scaling.scaling_world import Budget, Violation, World, explore


def served(before: int = 1, **budget: int) -> World:
    """Return a world in which so many messages were handled and the processes are idle, with more to come."""
    world = World(1, Budget(puts=before))
    while choices := list(world.choices()):
        choices[0][1](world)
    world.budget = Budget(**{"puts": 0, **budget})
    return world


WORLDS: dict[str, tuple[Callable[[], World], int]] = {
    "one message": (lambda: World(1, Budget()), 2),
    "a start that is refused": (lambda: World(1, Budget(refusals=1)), 1),
    "a process that dies": (lambda: World(1, Budget(deaths=1)), 1),
    "a count that fails": (lambda: World(1, Budget(failed_counts=1)), 1),
    "a message that is due later": (lambda: World(1, Budget(delayed=1)), 1),
    "two scalers": (lambda: World(2, Budget()), 1),
    "two scalers, one of which can start nothing": (lambda: World(2, Budget(), broken=1), 1),
}

SERVED: dict[str, tuple[Callable[[], World], int]] = {
    "another message, with two who are idle": (lambda: served(2, puts=1), 1),
    "a message for later, with one who is idle": (lambda: served(delayed=1), 2),
}
TWO = {"two messages": (lambda: World(1, Budget(puts=2)), 1)}
WORLDS |= SERVED


@pytest.mark.long
def test_every_order_with_two_messages_ends_well() -> None:
    """The same with a second put at any moment."""
    make, ticks = TWO["two messages"]
    assert explore(make(), ticks=ticks) > 1000


def _began_ready(self: Processes, now: float, ids: list[str]) -> None:
    _BEGAN(self, now, ids)
    for number in ids:
        self.became_ready(now, number)


def _idle_although_busy(self: Processes, now: float) -> list[str]:
    return [number for number in self.ids if self.is_ready(number) and not self.ends(number)]


def _no_back_off(self: Processes, now: float, why: str) -> None:
    self.failure = why
    self.withdraw()


_BEGAN = Processes.began

MUTANTS = {
    "ready before its hello": (Processes, "began", _began_ready, "one message", "before the hello"),
    "ended while it holds a lease": (
        Processes,
        "idle",
        _idle_although_busy,
        "another message, with two who are idle",
        "held a lease",
    ),
    "no back-off": (Processes, "_failed", _no_back_off, "a start that is refused", "repeated at once"),
    "idle although something is due": (
        ScaledQueue,
        "_due_soon",
        lambda self, now: False,
        "a message for later, with one who is idle",
        "shortly before something was due",
    ),
    "others not taken off": (ScaledQueue, "others", property(lambda self: 0), "two scalers", "for one message"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the words of what it breaks, so that it is no other."""
    owner, attribute, planted, world, words = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, planted)
    make, ticks = (WORLDS | TWO)[world]
    with pytest.raises(Violation, match=words):
        explore(make(), ticks=ticks)
