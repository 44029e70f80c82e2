"""How queues stand, as `/metrics` tells of them."""

from __future__ import annotations

import re

from queuebell.bridge.contract.jobs import Jobs, Spread
from queuebell.bridge.contract.wire import Processes
from queuebell.bridge.observe import facts, swallowed
from queuebell.bridge.observe.families import QueueCounts, QueueWorkers
from queuebell.bridge.observe.metrics import COLLECTOR, Metrics
from queuebell.bridge.service.state.status import queues
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
    counted.watch_queues(lambda: queues(rig.scheduler, rig.now, webhooks))
    return shown(counted, f"queuebell_queue_{name}")[QUEUE]


def samples(counted: Metrics) -> dict[str, float]:
    """Return all that is told and is not 0, but for when counters began and what this process has swallowed."""
    lines = (line.rpartition(" ") for line in counted.render().decode().splitlines() if not line.startswith("#"))
    found = {name.removeprefix("queuebell_"): float(value) for name, _, value in lines if float(value)}
    return {name: value for name, value in found.items() if "_created" not in name and "exceptions" not in name}


def test_the_workers_of_a_queues_scalers_add_up_and_what_is_wanted_is_for_all() -> None:
    """A scaler counts its own machine; how many are wanted each of them says for all."""
    counted = Metrics()
    counted.watch_workers(lambda: [(QUEUE, Processes(6, 2, 1, running=3)), (QUEUE, Processes(5, 1, 2, running=4))])
    assert samples(counted) == {
        f'workers{{queue="{QUEUE}",state="{state}"}}': number
        for state, number in (("wanted", 6), ("ready", 3), ("starting", 3), ("running", 7))
    }


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


HERE, THERE = "billing/orders", "billing/mail"
HAPPENED = (
    facts.Triggered(HERE, "http", 3, count=2), facts.Triggered(HERE, "nats", 1), facts.DuplicateDropped(HERE, "mqtt"),
    facts.TriggerRefused("nats", "bad_trigger"), facts.Woken(HERE, 1, "trigger", 0.003, 2),
    facts.Woken(THERE, 2, "sweep", 200.0, 0), facts.HandlerStarted(HERE, 0.02), facts.HandedBack(HERE, 4),
    facts.PutRefused("bytes"), facts.RoundMade("postgres", True),
    facts.KedaDropped("slow"), facts.AccessRefused("forbidden", "shop", "put", HERE, "::1"),
    facts.StartMissed(HERE, 1, 2), facts.SettledByPeer(HERE, "name", "b"), facts.ActedLate(HERE),
    facts.ClusterMessageRefused("b", "why"), facts.MemberGone("b", "a", leaving=True),
    facts.MemberGone("c", "a", leaving=False), facts.OwedDropped(HERE), facts.OwnerStuck(HERE, 1),
    facts.AuditFound(HERE, 5), facts.Covered(HERE, settled=True), facts.Covered(HERE, settled=False),
    facts.Suspended(9.0, 3), facts.SessionOpened(1, "w", "websocket", 1), facts.SessionOpened(2, "v", "nats", 1),
    facts.SessionClosed(1, "w", "bye"), facts.BusUp("nats", "n:4222", 0.1), facts.BusUp("mqtt", "m:1883", 0.1),
    facts.BusDown("mqtt", "m:1883", "gone"), facts.QueueMoved(HERE, 1, 0, put=6, receives=9, empty=4,
    sources={"trigger": (2, 1)}), facts.QueueMoved(THERE, 0, 0, put=0, receives=0, empty=0),
    facts.ReceivesTold(THERE, "poll", 3, 0), facts.ReceivesTold(THERE, "sweep", 0, 7), facts.Unannounced(THERE, 2),
    facts.WorkersTallied(HERE, "started", 3), facts.WorkersTallied(HERE, "failed", 2),
    facts.WorkersTallied(HERE, "idle", 1), facts.LoopLagged(0.3),
    facts.JobsTold(HERE, "m:f", Jobs({"done": 5, "buried": 1}, {"ValueError": 2}, 7, 1, Spread([1, 2], 30),
    Spread([], 0))),
)  # fmt: skip
"""Each fact that is counted, and what adds up."""
LEFT_OUT = re.compile(r'_bucket\{.*le="(?!0.005"|0.025"|0.5"|\+Inf)').search
"""Most bounds of a histogram."""
COUNTED = """\
audit_found_total 1
bus_up{bus="nats"} 1
carried_messages_total 2
cluster_acted_late_total 1
cluster_forgiven_total{by="name"} 1
cluster_gone_total{leaving="no"} 1
cluster_gone_total{leaving="yes"} 1
cluster_owed_dropped_total 1
cluster_words_refused_total 1
covers_total{settled="no"} 1
covers_total{settled="yes"} 1
failures_total{class="ValueError",handler="m:f",queue="QUEUE"} 2
handed_back_messages_total 4
handled_total{handler="m:f",outcome="buried",queue="QUEUE"} 1
handled_total{handler="m:f",outcome="done",queue="QUEUE"} 5
handler_start_seconds_bucket{le="+Inf"} 1
handler_start_seconds_bucket{le="0.025"} 1
handler_start_seconds_bucket{le="0.5"} 1
handler_start_seconds_count 1
handler_start_seconds_sum 0.02
handling_seconds_bucket{handler="m:f",le="+Inf",queue="QUEUE"} 3
handling_seconds_bucket{handler="m:f",le="0.005",queue="QUEUE"} 3
handling_seconds_bucket{handler="m:f",le="0.025",queue="QUEUE"} 3
handling_seconds_bucket{handler="m:f",le="0.5",queue="QUEUE"} 3
handling_seconds_count{handler="m:f",queue="QUEUE"} 3
handling_seconds_sum{handler="m:f",queue="QUEUE"} 0.03
in_flight{handler="m:f",queue="QUEUE"} 10
in_flight{handler="m:g",queue="OTHER"} 1
keda_dropped_total{reason="slow"} 1
last_report_timestamp_seconds{event="buried",queue="QUEUE"} 1.8e+09
last_report_timestamp_seconds{event="lease_lost",queue="QUEUE"} 1.8e+09
leases_lost_total{queue="QUEUE"} 1
loop_lag_seconds_bucket{le="+Inf"} 1
loop_lag_seconds_bucket{le="0.5"} 1
loop_lag_seconds_count 1
loop_lag_seconds_sum 0.3
owners_stuck_total 1
put_messages_total 6
puts_refused_total{reason="bytes"} 1
queue_buried{queue="QUEUE"} 1
queue_failing_seconds{queue="QUEUE"} 1.5
queue_leased{queue="QUEUE"} 2
queue_listeners{queue="OTHER"} 1
queue_listeners{queue="QUEUE"} 2
queue_messages{queue="QUEUE",state="invisible"} 3
queue_messages{queue="QUEUE",state="visible"} 4
queue_oldest_seconds{queue="QUEUE"} 8.5
queue_rejected{queue="QUEUE"} 3
queue_unattended{queue="QUEUE"} 1
receives_total{result="empty",wake_source="sweep"} 7
receives_total{result="empty",wake_source="trigger"} 1
receives_total{result="empty",wake_source="unreported"} 3
receives_total{result="found",wake_source="poll"} 3
receives_total{result="found",wake_source="trigger"} 2
receives_total{result="found",wake_source="unreported"} 3
refusals_total{reason="forbidden"} 1
rounds_total{answered="yes",kind="postgres"} 1
sessions 1
starts_missed_total 1
suspends_total 1
trigger_duplicates_total{bus="mqtt"} 1
triggers_refused_total{bus="nats",code="bad_trigger"} 1
triggers_total{bus="http"} 2
triggers_total{bus="nats"} 1
unannounced_total{queue="OTHER"} 2
wake_seconds_bucket{le="+Inf"} 2
wake_seconds_bucket{le="0.005"} 1
wake_seconds_bucket{le="0.025"} 1
wake_seconds_bucket{le="0.5"} 1
wake_seconds_count 2
wake_seconds_sum 200.003
wakes_total{reason="sweep"} 1
wakes_total{reason="trigger"} 1
worker_ends_total{queue="QUEUE",reason="idle"} 1
worker_failures_total{queue="QUEUE"} 2
worker_starts_total{queue="QUEUE"} 3
workers{queue="QUEUE",state="ready"} 1
workers{queue="QUEUE",state="running"} 4
workers{queue="QUEUE",state="starting"} 2
workers{queue="QUEUE",state="wanted"} 5
"""


def test_each_metric_has_its_name_its_labels_and_its_sum() -> None:
    counted = Metrics(clock=lambda: 1_800_000_000.0)
    counted.watch_queues(lambda: [[QueueWorkers(HERE, 2, True, 1.5, 3)], [QueueWorkers(THERE, 1, False, 0.0)]])
    counted.watch_counts(
        lambda: [[QueueCounts(HERE, 4, 3, 2, 1, 8.5)], [QueueCounts(THERE, None, None, None, None, None)]]
    )
    counted.watch_jobs(lambda: [(HERE, "m:f", 3), (THERE, "m:g", 1)])
    counted.watch_workers(lambda: [(HERE, Processes(5, 1, 2, running=4))])
    for fact in HAPPENED:
        counted(fact)
    told = [f"{name} {value:g}\n" for name, value in sorted(samples(counted).items()) if not LEFT_OUT(name)]
    assert "".join(told).replace(HERE, "QUEUE").replace(THERE, "OTHER") == COUNTED
