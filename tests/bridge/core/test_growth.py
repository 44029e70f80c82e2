"""What a frame costs the rules does not grow with the sessions of its queue: counted in steps, at two sizes."""

from __future__ import annotations

import pytest

from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import Cover, Hello, Subscription
from bridge.core.bell import Bell
from bridge.core.settings import Periods
from tests.support.steps import steps

QUEUE = "billing/orders"
BOOT = "b" * 32
GROWTH = 1.2
"""A fifth more at a hundred times the size: dictionaries and numbers of more digits."""


def hello(bell: Bell, now: float, number: int, store: str = "s") -> int:
    """Begin a session of the queue."""
    session = bell.open(now, "test")
    bell.frame(now, session, Hello(f"{number:032x}", "worker", [Subscription(QUEUE, 4, store=store)], []))
    return session


def fleet(size: int) -> tuple[Bell, list[int]]:
    """Return rules with so many sessions of one queue, and the sessions."""
    bell = Bell(BOOT, Periods(), lambda: 0.5)
    sessions = [hello(bell, 0.0, number) for number in range(size)]
    bell.commands()
    bell.facts()
    return bell, sessions


def costs(size: int) -> dict[str, int]:
    """Return the steps of what happens to one session of so many."""
    bell, sessions = fleet(size)
    event = CloudQueueWorkDetected("billing", "orders", 1)
    found = {"hello": steps(lambda: hello(bell, 1.0, size))}
    bell.commands()
    found["trigger"] = steps(lambda: bell.trigger(2.0, event, "http"))
    debt = bell.ledger.debts[QUEUE]
    owner = debt.owner
    assert owner is not None
    found["wake"] = steps(lambda: bell.take(2.0, owner))
    cover = Cover(QUEUE, BOOT, debt.gen, 0, store="s")
    found["cover"] = steps(lambda: bell.frame(3.0, owner, cover))
    assert not debt.dirty
    found["end"] = steps(lambda: bell.lost(4.0, sessions[size // 2], "gone"))
    return found


def test_no_frame_costs_more_with_more_sessions() -> None:
    """A hello, a trigger, a wake, a cover, and the end of a session, at 100 and at 10,000 sessions of a queue."""
    few, many = costs(100), costs(10_000)
    grown = {what: (few[what], many[what]) for what in few if many[what] > GROWTH * few[what]}
    assert not grown


@pytest.mark.parametrize("frame", ["hello", "cover"])
def test_a_session_of_another_store_is_refused_however_many_there_are(frame: str) -> None:
    """B11: as long as another one names a store, and no longer; whoever takes its own place over may change it."""
    bell, sessions = fleet(3)
    if frame == "cover":
        bell.frame(1.0, sessions[0], Cover(QUEUE, BOOT, 0, 0, store="other"))
        assert bell.sessions.get(sessions[0]) is None
        return
    other = hello(bell, 1.0, 9, "other")
    assert bell.sessions.get(other) is None
    for session in sessions[1:]:
        bell.lost(2.0, session, "gone")
    assert bell.sessions.get(hello(bell, 3.0, 8, "other")) is None
    # The very instance that is still there, with another store: it is compared with nobody.
    assert bell.sessions.get(hello(bell, 4.0, 0, "other")) is not None
    assert bell.ledger.debts[QUEUE].seats.store == "other"
    assert bell.sessions.get(hello(bell, 5.0, 7, "s")) is None
