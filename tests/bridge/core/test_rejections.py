"""Workers that the bridge rejected: remembered with their reason, bounded, and forgotten in time."""

from __future__ import annotations

from bridge.core.rejections import KEPT_MAX, RECENT_S, Rejections


def test_repeated_rejections_are_one_with_its_count_and_times() -> None:
    """By queue, worker and reason; each queue of the worker has its own."""
    told = Rejections()
    for now in (10.0, 30.0, 60.0):
        told.add(now, ["a/x", "a/y"], "staging", "store_mismatch", "another store", instance="i")
    told.add(61.0, ["a/x"], "staging", "forbidden", "not granted")
    rows = [(each.queue, each.code, each.count, each.first_at, each.last_at) for each in told.recent(70.0)]
    assert rows == [
        ("a/x", "forbidden", 1, 61.0, 61.0),
        ("a/x", "store_mismatch", 3, 10.0, 60.0),
        ("a/y", "store_mismatch", 3, 10.0, 60.0),
    ]
    assert told.recent(70.0)[1].describe(70.0) == ("the bridge rejected staging 3 times, last 10 s ago: another store")
    assert set(told.by_queue(70.0)) == {"a/x", "a/y"}


def test_a_worker_that_stopped_trying_is_forgotten() -> None:
    """After ninety seconds, three times its longest pause; one that comes back later begins at one."""
    told = Rejections()
    told.add(0.0, ["a/x"], "staging", "store_mismatch", "why")
    told.add(5.0, ["a/x"], "staging", "store_mismatch", "why")
    assert told.recent(5.0 + RECENT_S) and not told.recent(5.1 + RECENT_S)
    told.add(200.0, ["a/x"], "staging", "store_mismatch", "why")
    assert told.recent(200.0)[0].count == 1


def test_a_worker_that_is_accepted_is_forgotten() -> None:
    """That one and no other."""
    told = Rejections()
    told.add(0.0, ["a/x"], "one", "store_mismatch", "why", instance="1")
    told.add(0.0, ["a/x"], "two", "store_mismatch", "why", instance="2")
    told.accepted("1")
    assert [each.listener for each in told.recent(1.0)] == ["two"]


def test_rejections_are_bounded() -> None:
    """However many names strangers give; those that were repeated last stay, and so does one of no known queue."""
    told = Rejections()
    for number in range(2 * KEPT_MAX):
        told.add(float(number) / KEPT_MAX, ["a/x"], f"stranger {number}", "store_mismatch", "why")
    told.add(3.0, (), "", "bad_parameter", "why")
    kept = told.recent(3.0)
    assert len(kept) == KEPT_MAX and kept[0].queue == ""
    assert "stranger 0" not in {each.listener for each in kept}
