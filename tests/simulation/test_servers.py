"""The store elsewhere: how vague it can be told to be, and that the truth about it is told when it becomes true."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from bridge.core.bell import Bell
from bridge.queues.base import Depth, NewMessage, Received
from tests.simulation.events import BecameInvisible, BecameVisible, Event
from tests.simulation.plan import PRESETS
from tests.simulation.servers import StoreHost
from tests.simulation.world import World

Q = "shop/q0"


class Rig:
    """A store of one plan, and what its world hears of it."""

    def __init__(self, **changes: Any) -> None:
        self.heard: list[Event] = []
        plan = msgspec.structs.replace(PRESETS["elsewhere-wire"], **changes)
        self.world = World(plan, 1, self.heard.append, Bell)
        self.store = StoreHost(self.world)

    def put(self, *delays_ms: int) -> None:
        bodies = [NewMessage(b"%d" % number, delay) for number, delay in enumerate(delays_ms)]
        asyncio.run(self.store.put(Q, bodies))

    def receive(self, visibility_s: float = 30.0) -> Received:
        return asyncio.run(self.store.receive(Q, 32, visibility_s))

    def levels(self) -> list[tuple[float, int]]:
        return [(each.at, each.visible) for each in self.heard if isinstance(each, BecameVisible | BecameInvisible)]


@pytest.fixture
def make() -> Iterator[Callable[..., Rig]]:
    """Make stores that are closed after the test."""
    with contextlib.ExitStack() as ends:

        def rig(**changes: Any) -> Rig:
            one = Rig(**changes)
            ends.callback(one.store.close)
            return one

        yield rig


def test_an_exact_store_tells_all(make: Callable[..., Rig]) -> None:
    """What is visible, what is not, and when the next becomes so."""
    rig = make()
    rig.put(0, 5000)
    received = rig.receive()
    assert [message.body for message in received.messages] == [b"0"]
    assert (received.depth, received.next_visible_in_ms, received.boot) == (Depth(0, 2), 5000, None)


def test_an_approximate_store_counts_what_is_leased(make: Callable[..., Rig]) -> None:
    """Its depth tells nothing apart, and it keeps the next due time to itself."""
    rig = make(exact_depth=False, next_visible=False)
    rig.put(0)
    assert rig.receive().depth == Depth(1, 0)
    again = rig.receive()
    assert (again.messages, again.depth, again.next_visible_in_ms) == ([], Depth(1, 0), None)


def test_a_blind_receive_finds_nothing_and_changes_nothing(make: Callable[..., Rig]) -> None:
    """A false empty is drawn only where there is something to miss."""
    rig = make()
    rig.put(0)
    rig.world.trouble.begin("false_empty", 1.0)
    blind = rig.receive()
    assert (blind.messages, blind.depth, rig.world.visible()) == ([], None, 1)
    rig.world.trouble.end("false_empty", 1.0)
    assert len(rig.receive().messages) == 1
    rig.world.trouble.begin("false_empty", 1.0)
    assert rig.receive().depth == Depth(0, 1), "there is nothing that it could miss"


def test_the_truth_is_told_at_the_time_it_became_true(make: Callable[..., Rig]) -> None:
    """Delays and leases that end are told at their ends, though nobody calls the store."""
    rig = make()
    rig.put(1000, 2000)
    rig.world.kernel.run(3.0)
    assert len(rig.receive(visibility_s=4.0).messages) == 2
    rig.world.kernel.run(60.0)
    assert rig.levels() == [(1.0, 1), (2.0, 2), (3.0, 0), (7.0, 2)]
