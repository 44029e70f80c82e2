"""What the bridge shows of handlers: the metrics of all workers, and each queue's own state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from bridge.contract.jobs import OTHER, Jobs, Spread
from bridge.contract.wire import Hello, ListenerHeartbeat, QueueBeat, Subscription
from bridge.observe.facts import JobsTold
from bridge.observe.metrics import Metrics
from bridge.observe.slices import at_once
from bridge.service.overview import Wanted, queues
from bridge.service.status import describe, in_flight
from tests.support.bells import QUEUE, Rig

BOTH = {"queue": QUEUE, "handler": "m:f"}


def sample_of(metrics: Metrics) -> Callable[..., float | None]:
    """Return what asks for one number of those of jobs."""
    registry = CollectorRegistry()
    (jobs,) = metrics.walked
    registry.register(jobs)
    return registry.get_sample_value


def tell(rig: Rig, number: int, **jobs: Jobs) -> None:
    rig.say(number, ListenerHeartbeat(1, {QUEUE: QueueBeat(jobs={f"m:{name}": each for name, each in jobs.items()})}))


def test_metrics_and_state_sum_up_what_listeners_tell() -> None:
    """Counters add up over listeners and stay when they leave; what runs goes with its session."""
    rig, metrics = Rig(), Metrics()
    metrics.watch_jobs(lambda: in_flight(rig.bell))
    first, second = rig.join(QUEUE), rig.join(QUEUE)
    tell(rig, first, f=Jobs({"done": 2, "failed": 1}, {"ValueError": 1}, 3, 1, Spread([0, 2, 1], 9), Spread([3], 1)))
    tell(rig, second, f=Jobs({"done": 4}, {}, 2, 0, Spread([4], 2)))
    for fact in rig.facts:
        metrics(fact)
    sample = sample_of(metrics)

    def shown() -> list[float | None]:
        return [
            sample("queuebell_handled_total", BOTH | {"outcome": "done"}),
            sample("queuebell_handled_total", BOTH | {"outcome": "failed"}),
            sample("queuebell_failures_total", BOTH | {"class": "ValueError"}),
            sample("queuebell_leases_lost_total", {"queue": QUEUE}),
            sample("queuebell_handling_seconds_bucket", BOTH | {"le": "0.001"}),
            sample("queuebell_handling_seconds_bucket", BOTH | {"le": "0.005"}),
            sample("queuebell_handling_seconds_count", BOTH),
            sample("queuebell_handling_seconds_sum", BOTH),
            sample("queuebell_waiting_seconds_count", BOTH),
        ]

    counters = [6, 1, 1, 1, 4, 6, 7, 0.011, 3]
    assert shown() == counters
    assert sample("queuebell_in_flight", BOTH) == 5
    state = describe(rig.bell, QUEUE, rig.now)
    assert state is not None
    assert (state.jobs["m:f"].outcomes, state.jobs["m:f"].in_flight) == ({"done": 6, "failed": 1}, 5)
    (shown_row,) = at_once(queues(rig.bell, rig.now, Wanted(), lambda _: True)).rows
    assert (shown_row.handled, shown_row.failed) == (7, 1)
    rig.lose(first)
    assert (shown(), sample("queuebell_in_flight", BOTH)) == (counters, 2)
    rig.lose(second)
    assert (shown(), sample("queuebell_in_flight", BOTH)) == (counters, 0)


def test_a_repeated_hello_keeps_what_runs() -> None:
    """A listener that only says more of itself has not let go of anything."""
    rig = Rig()
    number = rig.join(QUEUE)
    tell(rig, number, f=Jobs(in_flight=3))
    session = rig.bell.sessions.get(number)
    assert session is not None and session.instance is not None
    rig.say(number, Hello(session.instance, "again", [Subscription(QUEUE, 0)]))
    assert list(in_flight(rig.bell)) == [(QUEUE, "m:f", 3)]


def test_the_time_of_the_newest_dead_letter_and_lost_lease_is_shown() -> None:
    """From the first of them on, so that an alert needs no scrape before it; other outcomes change nothing."""
    times = iter((1001.0, 1002.0))
    metrics = Metrics(lambda: next(times))
    for outcomes in ({"done": 5, "retried": 1}, {"buried": 1}, {"done": 1}):
        metrics(JobsTold(QUEUE, "m:f", Jobs(outcomes)))
    metrics(JobsTold("a/lost", "m:f", Jobs({"lost": 1}, leases_lost=1)))
    reported = metrics.registry.get_sample_value
    name = "queuebell_last_report_timestamp_seconds"
    assert reported(name, {"queue": QUEUE, "event": "buried"}) == 1001.0
    assert reported(name, {"queue": QUEUE, "event": "lease_lost"}) is None
    assert reported(name, {"queue": "a/lost", "event": "lease_lost"}) == 1002.0


def test_labels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many queues their counts go on as those of other, and none is lost."""
    monkeypatch.setattr("bridge.observe.metrics.QUEUE_LABELS_MAX", 3)
    metrics = Metrics()
    metrics.watch_jobs(lambda: [(f"a/r{number}", "m:f", 1) for number in range(5)])
    for number in range(10):
        metrics(JobsTold(f"a/q{number}", "m:f", Jobs({"done": 1})))
    handled = [name for name in metrics.render().decode().splitlines() if name.startswith("queuebell_handled_total")]
    assert len(handled) == 4
    others = {"queue": OTHER, "handler": "m:f"}
    assert sample_of(metrics)("queuebell_handled_total", others | {"outcome": "done"}) == 7
    assert sample_of(metrics)("queuebell_in_flight", others) == 5
