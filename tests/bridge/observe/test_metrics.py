"""How queues stand, as `/metrics` tells of them."""

from __future__ import annotations

import pytest

from bridge.contract.jobs import Jobs, Spread
from bridge.contract.wire import Processes
from bridge.observe import facts, metrics, swallowed
from bridge.observe.metrics import Metrics
from bridge.observe.queue_families import Standing
from bridge.observe.registry import COLLECTOR
from bridge.observe.slices import at_once
from bridge.service.status import queues
from tests.support.bells import QUEUE, Rig


def shown(metrics: Metrics, name: str) -> dict[str, float]:
    """Return what one family tells, by queue."""
    return {
        sample.labels["queue"]: sample.value
        for collector in (metrics.registry, *metrics.walked)
        for family in collector.collect()
        for sample in family.samples
        if sample.name == name
    }


def told(rig: Rig, name: str, webhooks: tuple[str, ...] = ()) -> float:
    """Return what is told of the rig's queue."""
    counted = Metrics()
    counted.watch_queues(lambda: queues(rig.bell, rig.now, webhooks))
    return shown(counted, f"queuebell_queue_{name}")[QUEUE]


COUNTED: list[tuple[facts.Fact, dict[str, float]]] = [
    (facts.Triggered(QUEUE, "http", 1, count=3), {'triggers_total{bus="http"}': 3}),
    (facts.DuplicateDropped(QUEUE, "nats"), {'trigger_duplicates_total{bus="nats"}': 1}),
    (facts.TriggerRefused("mqtt", "bad_event"), {'triggers_refused_total{bus="mqtt",code="bad_event"}': 1}),
    (facts.HandedBack(QUEUE, 4), {"handed_back_messages_total": 4}),
    (facts.PutRefused("rate"), {'puts_refused_total{reason="rate"}': 1}),
    (facts.KedaDropped("slow"), {'keda_dropped_total{reason="slow"}': 1}),
    (facts.AccessRefused("forbidden", "", "put", QUEUE, "::1"), {'refusals_total{reason="forbidden"}': 1}),
    (facts.StartMissed(QUEUE, 1, 2), {"starts_missed_total": 1}),
    (facts.OwnerStuck(QUEUE, 1), {"owners_stuck_total": 1}),
    (facts.AuditFound(QUEUE, 5), {"audit_found_total": 1}),
    (facts.Covered(QUEUE, True), {'covers_total{settled="yes"}': 1}),
    (facts.Covered(QUEUE, False), {'covers_total{settled="no"}': 1}),
    (facts.Suspended(60.0, 3), {"suspends_total": 1}),
    (facts.Forgiven(QUEUE, "time", "p"), {'cluster_forgiven_total{by="time"}': 1}),
    (facts.ActedLate(QUEUE), {"cluster_acted_late_total": 1}),
    (facts.WordRefused("b", "why"), {"cluster_words_refused_total": 1}),
    (facts.MemberGone("b", "::1", True), {'cluster_gone_total{leaving="yes"}': 1}),
    (facts.MemberGone("b", "::1", False), {'cluster_gone_total{leaving="no"}': 1}),
    (facts.OwedDropped(QUEUE), {"cluster_owed_dropped_total": 1}),
    (facts.Woken(QUEUE, 1, "trigger", 0.004, 2), {
        'wakes_total{reason="trigger"}': 1, "carried_messages_total": 2, "wake_seconds_count": 1,
        "wake_seconds_sum": 0.004, 'wake_seconds_bucket{le="+Inf"}': 1,
        **{f'wake_seconds_bucket{{le="{bound}"}}': 1 for bound in map(float, metrics.SECONDS) if bound >= 0.004},
    }),
    (facts.HandlerStarted(QUEUE, 90.0), {
        "handler_start_seconds_count": 1, "handler_start_seconds_sum": 90,
        'handler_start_seconds_bucket{le="120.0"}': 1, 'handler_start_seconds_bucket{le="+Inf"}': 1,
    }),
    (facts.LoopLagged(300.0), {
        "loop_lag_seconds_count": 1, "loop_lag_seconds_sum": 300, 'loop_lag_seconds_bucket{le="+Inf"}': 1,
    }),
    (facts.SessionOpened(1, "l", "local", 1), {"sessions": 1}),
    (facts.SessionClosed(1, "l", "lost"), {"sessions": -1}),
    (facts.BusUp("nats", "::1", 0.0), {'bus_up{bus="nats"}': 1}),
    (facts.ReceivesTold(QUEUE, "deadman", 2, 3), {
        'receives_total{result="found",wake_source="deadman"}': 2,
        'receives_total{result="empty",wake_source="deadman"}': 3,
    }),
    (facts.WorkersTallied(QUEUE, "started", 6), {f'worker_starts_total{{queue="{QUEUE}"}}': 6}),
    (facts.WorkersTallied(QUEUE, "failed", 7), {f'worker_failures_total{{queue="{QUEUE}"}}': 7}),
    (facts.WorkersTallied(QUEUE, "idle", 8), {f'worker_ends_total{{queue="{QUEUE}",reason="idle"}}': 8}),
    (facts.JobsTold(QUEUE, "h", Jobs(outcomes={"buried": 1})), {
        f'last_report_timestamp_seconds{{event="buried",queue="{QUEUE}"}}': 17,
    }),
    (facts.JobsTold(QUEUE, "h", Jobs(leases_lost=1)), {
        f'last_report_timestamp_seconds{{event="lease_lost",queue="{QUEUE}"}}': 17,
    }),
    (facts.JobsTold(QUEUE, "h", Jobs(outcomes={"done": 1})), {}),
    (facts.Administered("p", "manage", QUEUE, "::1", "PUT"), {}),
]  # fmt: skip


def samples(counted: Metrics) -> dict[str, float]:
    """Return all that is told and is not 0, but for when counters began and what this process has swallowed."""
    lines = (line.rpartition(" ") for line in counted.render().decode().splitlines() if not line.startswith("#"))
    found = {name.removeprefix("queuebell_"): float(value) for name, _, value in lines if float(value)}
    return {name: value for name, value in found.items() if "_created" not in name and "exceptions" not in name}


@pytest.mark.parametrize(("fact", "shown"), COUNTED)
def test_a_fact_is_counted_by_its_metric_alone(fact: facts.Fact, shown: dict[str, float]) -> None:
    """Under its labels, and a second time as well; all other metrics stay what they were."""
    counted = Metrics(lambda: 17.0)
    assert samples(counted) == {}
    counted(fact)
    assert samples(counted) == shown
    counted(fact)
    gauges = ("bus_up", "last_report_timestamp_seconds")
    assert samples(counted) == {name: value * (1 if name.startswith(gauges) else 2) for name, value in shown.items()}


def test_latencies_are_counted_up_to_each_bound() -> None:
    """Of wakes and of starts of handlers, each by itself; the last number is of all."""
    counted = Metrics()
    counted(facts.Woken(QUEUE, 1, "due", 100.0, 0))
    for waited_s in (50.0, 500.0):
        counted(facts.HandlerStarted(QUEUE, waited_s))
    bounds, found = counted.latencies()
    assert bounds[-2:] == [60, 120]
    assert {name: numbers[-4:] for name, numbers in found.items()} == {"wake": [0, 0, 1, 1], "start": [0, 1, 1, 2]}
    assert "carried_messages_total" not in samples(counted)


def test_the_workers_of_a_queues_scalers_add_up_and_what_is_wanted_is_for_all() -> None:
    """A scaler counts its own machine; how many are wanted each of them says for all."""
    counted = Metrics()
    counted.watch_workers(lambda: [(QUEUE, Processes(5, 1, 2, running=4)), (QUEUE, Processes(6, 2, 1, running=3))])
    assert samples(counted) == {
        f'workers{{queue="{QUEUE}",state="{state}"}}': number
        for state, number in (("wanted", 6), ("ready", 3), ("starting", 3), ("running", 7))
    }


def test_queues_beyond_the_labels_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their listeners and those unattended add up, and the longest failure is shown; a label stays its queue's own."""
    monkeypatch.setattr(metrics, "QUEUE_LABELS_MAX", 2)
    rows = [
        Standing("a/0", 1, False, 0.0), Standing("a/1", 2, True, 1.0), Standing("a/2", 3, True, 5.0, 1),
        Standing("a/3", 4, True, 4.0, 2),
    ]  # fmt: skip
    counted = Metrics()
    counted.watch_queues(lambda: [rows])
    for _ in range(2):
        assert shown(counted, "queuebell_queue_listeners") == {"a/0": 1, "a/1": 2, "other": 7}
        rows.reverse()
    assert shown(counted, "queuebell_queue_unattended") == {"a/0": 0, "a/1": 1, "other": 2}
    assert shown(counted, "queuebell_queue_failing_seconds") == {"a/0": 0, "a/1": 1, "other": 5}
    assert shown(counted, "queuebell_queue_rejected") == {"a/0": 0, "a/1": 0, "other": 3}
    for queue in ("a/1", "a/2", "a/3"):
        counted(facts.Unannounced(queue, 2))
    assert shown(counted, "queuebell_unannounced_total") == {"a/0": 0, "a/1": 2, "other": 4}


def test_what_is_written_is_what_was_read() -> None:
    """It may be written on another thread, while the bridge goes on and counts."""
    counted = Metrics()
    rows = [Standing("a/0", 1, False, 0.0)]
    counted.watch_queues(lambda: [rows])
    counted.watch_jobs(lambda: ())
    told = facts.JobsTold("a/0", "charge", Jobs(outcomes={"done": 1}, handling=Spread([1], 5)))
    counted(told)
    write, before = at_once(counted.snapshot()), counted.render()
    assert b'queuebell_handled_total{handler="charge",outcome="done",queue="a/0"} 1.0' in before
    counted(told)
    counted(facts.Unannounced("a/0", 1))
    rows.clear()
    assert write() == before != counted.render()


def test_a_gauge_that_raises_hides_no_other_metric() -> None:
    """What was read is shown, and how many exceptions that cost."""

    def fails() -> float:
        raise RuntimeError("not ours")

    metrics = Metrics()
    before = swallowed.counts[COLLECTOR]
    metrics.watch("queuebell_broken", "A gauge that cannot be read", fails)
    metrics.watch("queuebell_sound", "A gauge that can", lambda: 7.0)
    text = metrics.render().decode()
    assert "queuebell_sound 7.0" in text
    assert "queuebell_broken 7" not in text
    assert swallowed.counts[COLLECTOR] == before + 1
    assert f'queuebell_exceptions_total{{what="{COLLECTOR}"}}' in metrics.render().decode()
