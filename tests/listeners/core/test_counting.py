"""When a listener counts what its store holds, and what it tells of it."""

from __future__ import annotations

import pytest

from bridge.contract.wire import BuriedCount, Counts, StoreDepth
from listeners.core.counting import COUNT_S, Counting

QUEUE = "billing/orders"
POISON = "billing/orders-poison"
BACKLOG = Counts(5000, 7, leased=7, delayed=0, oldest_ms=90_000)


def test_a_bounded_count_does_not_hide_a_better_one() -> None:
    """Beside each full batch a store counts a little; what was counted apart stays until it is old, or all is taken."""
    rules = Counting(QUEUE, None)
    rules.answered(Counts(1056, 32, at_least=True), 0.0, whole=False)
    assert rules.report(1, 0.0)[0] == StoreDepth(1056, 32, 0, at_least=True)
    rules.counted(BACKLOG, 0.1)
    rules.answered(Counts(1056, 32, at_least=True), 0.2, whole=False)
    assert rules.report(2, 1.1)[0] == StoreDepth(5000, 7, 1000, leased=7, delayed=0, oldest_ms=90_000)
    rules.answered(Counts(0, 32), 0.3, whole=False)
    assert rules.report(3, 0.3)[0] == StoreDepth(0, 32, 0)
    rules.counted(BACKLOG, 0.4)
    rules.answered(Counts(1056, 32, at_least=True), 0.4 + COUNT_S, whole=False)
    assert rules.report(4, 0.4 + COUNT_S)[0] == StoreDepth(1056, 32, 0, at_least=True)


def test_a_count_that_was_overtaken_is_of_no_use() -> None:
    """It is of the moment at which it was asked for: a receive that was answered meanwhile knows better."""
    rules = Counting(QUEUE, None)
    rules.answered(Counts(0, 0), 5.0, whole=True)
    rules.counted(BACKLOG, 4.0)
    assert rules.report(1, 5.0)[0] == StoreDepth(0, 0, 0)
    rules.counted(None, 6.0)
    assert rules.report(2, 6.0)[0] == StoreDepth(0, 0, 0), "a queue that is gone holds nothing"


def test_what_is_deleted_after_the_last_look_is_not_leased_any_more() -> None:
    """Nobody looks again for a while; of what was received since a count nothing is known of that count."""
    rules = Counting(QUEUE, None)
    rules.deleted()
    rules.answered(Counts(0, 3, leased=2, delayed=1), 1.0, whole=True)
    rules.deleted()
    assert rules.report(1, 2.0)[0] == StoreDepth(0, 2, 1000, leased=1, delayed=1)
    rules.took()
    rules.deleted()
    assert rules.report(2, 2.0)[0] == StoreDepth(0, 2, 1000, leased=1, delayed=1)
    rules.counted(Counts(4, 1), 3.0)
    for _ in range(2):
        rules.deleted()
    assert rules.report(3, 3.0)[0] == StoreDepth(4, 0, 0, leased=0)


@pytest.mark.parametrize("sessions", [0, 1, 100])
def test_all_sessions_together_count_twice_a_minute(sessions: int) -> None:
    """However many receives find work."""
    rules, counted = Counting(QUEUE, None), 0
    every = COUNT_S * max(1, sessions)
    for step in range(1000):
        counted += rules.worth(step * every / 100, sessions)
    assert counted == 10


def test_the_poison_queue_is_counted_at_the_start_after_burials_and_while_something_lies_there() -> None:
    """A quiet queue without burials costs one count; what a person empties elsewhere is seen at the next sweep."""
    rules = Counting(QUEUE, POISON)
    assert rules.worth_burying("trigger", 0.0, own=False) == POISON
    rules.buried(0, 0.1)
    assert [rules.worth_burying(source, 100.0, own=False) for source in ("trigger", "sweep", "deadman")] == [None] * 3
    rules.buries()
    assert rules.worth_burying("", 0.2, own=False) == POISON, "soon after the start as well"
    rules.buried(0, 0.3)
    rules.buries()
    assert rules.worth_burying("", 100.0, own=False) == POISON
    rules.buried(1, 100.1)
    rules.buries()
    assert rules.worth_burying("", 101.0, own=False) is None, "not more often than every so many seconds"
    assert rules.worth_burying("trigger", 100.0 + COUNT_S, own=False) == POISON, "and not forgotten"
    rules.buried(2, 131.0)
    assert rules.worth_burying("trigger", 300.0, own=False) is None
    assert rules.worth_burying("sweep", 300.0, own=False) == POISON
    rules.buried(0, 300.1)
    assert rules.worth_burying("sweep", 400.0, own=False) is None


def test_who_never_buries_counts_no_poison_queue() -> None:
    """And who takes from the bridge's own queue counts it only where the bridge cannot know its name."""
    assert Counting(QUEUE, None).worth_burying("sweep", 0.0, own=False) is None
    assert Counting(QUEUE, POISON).worth_burying("sweep", 0.0, own=True) is None
    named = Counting(QUEUE, "billing/graves")
    assert named.worth_burying("sweep", 0.0, own=True) == "billing/graves"
    named.buried(3, 1.0)
    assert named.report(1, 3.0)[1] == BuriedCount(3, 2000, "billing/graves")


def test_levels_are_told_until_they_are_echoed_and_again_to_another_bridge() -> None:
    """A lost heartbeat heals, an idle session tells nothing, and a bridge that was started anew learns all."""
    rules = Counting(QUEUE, POISON)
    rules.greeted()
    assert not rules.changed
    rules.buried(3, 0.0)
    assert rules.changed
    assert rules.report(7, 1.0) == (None, BuriedCount(3, 1000))
    rules.counted(Counts(1, 0), 2.0)
    rules.echoed(6)
    rules.echoed(7)
    assert rules.changed, "what was counted after that heartbeat is still owed"
    rules.report(8, 3.0)
    rules.echoed(8)
    assert not rules.changed
    rules.greeted()
    assert rules.changed
