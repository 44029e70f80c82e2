"""What became of messages, as listeners tell of it in heartbeats."""

from __future__ import annotations

import pytest

from bridge.contract.jobs import CLASSES_MAX, COUNT_MAX, Jobs, Spread
from bridge.core.jobs import STEP_MAX, JobCounts, seen
from bridge.core.ledger import Debt
from bridge.core.routing import Seats
from bridge.core.settings import Periods, Tuning
from bridge.observe.facts import JobsTold

ME, YOU = "1" * 32, "2" * 32


def debt(queue: str = "a/b") -> Debt:
    return Debt(queue=queue, seats=Seats(), numbers=Tuning(Periods()).of(queue))


def test_only_what_is_new_in_a_level_is_counted() -> None:
    """Repeated, late and reordered heartbeats add nothing, and sums of several listeners add up."""
    counts, queue = JobCounts(), debt()
    first = Jobs({"done": 2}, {"ValueError": 1}, 3, 1, Spread([2], 1), Spread([0, 1], 4))
    assert counts.told(ME, queue, {"m:f": first}) == [
        JobsTold("a/b", "m:f", Jobs({"done": 2}, {"ValueError": 1}, 0, 1, Spread([2], 1), Spread([0, 1], 4)))
    ]
    assert counts.told(ME, queue, {"m:f": first}) == []
    assert counts.told(ME, queue, {"m:f": Jobs({"done": 5})}) == [JobsTold("a/b", "m:f", Jobs({"done": 3}))]
    assert counts.told(ME, queue, {"m:f": first}) == []
    counts.told(YOU, queue, {"m:f": Jobs({"done": 1}), "m:g": Jobs({"lost": 1})})
    assert queue.jobs is not None
    assert {name: jobs.outcomes for name, jobs in queue.jobs.items()} == {"m:f": {"done": 6}, "m:g": {"lost": 1}}


def test_a_queue_of_which_nobody_told_keeps_nothing() -> None:
    """Ten thousand idle queues pay nothing for it, nor does one that told zeros or calls that run."""
    counts, queue = JobCounts(), debt()
    counts.told(ME, queue, {"m:f": Jobs({"done": 0}, in_flight=4)})
    assert queue.jobs is None


def test_words_of_a_newer_listener_are_ignored() -> None:
    """An outcome is a label of a metric, and never taken from outside."""
    counts, queue = JobCounts(), debt()
    assert counts.told(ME, queue, {"m:f": Jobs({"teleported": 1})}) == []
    assert queue.jobs is None


def test_no_heartbeat_adds_more_than_a_listener_can_have_done() -> None:
    """An absurd level is taken as where its counts stand, not as work that was done."""
    counts, queue = JobCounts(), debt()
    absurd = Jobs({"done": COUNT_MAX}, {"E": COUNT_MAX}, 0, COUNT_MAX, Spread([COUNT_MAX], COUNT_MAX))
    counts.told(ME, queue, {"m:f": absurd})
    counts.told(ME, queue, {"m:f": absurd})
    most = Jobs({"done": STEP_MAX}, {"E": STEP_MAX}, 0, STEP_MAX, Spread([STEP_MAX], 1000 * STEP_MAX))
    assert queue.jobs == {"m:f": most}


def test_names_that_change_with_every_heartbeat_are_not_kept() -> None:
    """Of one listener 21 classes of failure are remembered: more no listener tells."""
    counts, queue = JobCounts(), debt()
    for number in range(100):
        counts.told(ME, queue, {"m:f": Jobs({}, {f"E{number}": 1})})
    assert queue.jobs is not None
    assert sum(queue.jobs["m:f"].failures.values()) == CLASSES_MAX + 1


def test_who_was_forgotten_says_that_it_was_heard_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its levels are not counted again, while one that was never heard counts from its first word on."""
    monkeypatch.setattr("bridge.core.jobs.TELLERS_MAX", 2)
    counts, queue = JobCounts(), debt()
    instances = [f"{number:032x}" for number in range(3)]
    for round_ in range(5):
        for instance in instances:
            counts.told(instance, queue, {"m:f": Jobs({"done": 4}, resumed=round_ > 0)})
    assert queue.jobs == {"m:f": Jobs({"done": 12})}
    assert counts.told(instances[-1], queue, {"m:f": Jobs({"done": 6}, resumed=True)}) == [
        JobsTold("a/b", "m:f", Jobs({"done": 2}))
    ]


def test_calls_that_run_are_a_level() -> None:
    """What is told replaces, 0 takes away, what is not told stays; and no session has more than 20 handlers."""
    running = seen(None, {"m:f": Jobs(in_flight=2), "m:g": Jobs(in_flight=1)})
    assert seen(running, {"m:f": Jobs(), "m:h": Jobs(in_flight=3)}) == {"m:g": 1, "m:h": 3}
    for number in range(100):
        running = seen(running, {f"m:{number}": Jobs(in_flight=1)})
    assert list(running) == [f"m:{number}" for number in range(80, 100)]
