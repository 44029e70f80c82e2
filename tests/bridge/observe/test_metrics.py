"""How queues stand, as `/metrics` tells of them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bridge import Bridge
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.jobs import Jobs, Spread
from bridge.contract.wire import ListenerHeartbeat, Processes, QueueBeat
from bridge.observe import facts, metrics, swallowed
from bridge.observe.metrics import Metrics
from bridge.observe.queue_families import Standing
from bridge.observe.registry import COLLECTOR
from bridge.observe.slices import at_once
from bridge.queues.base import NewMessage
from bridge.service.state import ListenerState, Subscribed
from bridge.service.status import queues, told_by_webhooks
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


def test_a_lost_bus_is_down() -> None:
    """It has a value, or an alert could not see it."""
    counted = Metrics()
    counted(facts.BusUp("nats", "::1", 0.0))
    counted(facts.BusDown("nats", "::1", "gone"))
    assert 'queuebell_bus_up{bus="nats"} 0.0' in counted.render().decode()


@pytest.mark.parametrize(
    ("moved", "receives"),
    [
        ((9, 4, {"trigger": (2, 1), "sweep": (0, 2)}), {"trigger": (2, 1), "sweep": (0, 2), "unreported": (3, 1)}),
        ((3, 1, {"due": (2, 1)}), {"due": (2, 1)}),
        ((2, 0, {}), {"unreported": (2, 0)}),
        ((2, 2, {}), {"unreported": (0, 2)}),
        ((0, 0, {}), {}),
    ],
)
def test_a_receive_counts_by_what_it_was_for(
    moved: tuple[int, int, dict[str, tuple[int, int]]], receives: dict[str, tuple[int, int]]
) -> None:
    """And those of which no client said one as unreported; puts of the same commit count beside them."""
    counted = Metrics()
    all_of_them, empty, sources = moved
    counted(facts.QueueMoved(QUEUE, 1, 1, 5, all_of_them, empty, sources))
    told = samples(counted)
    assert told.pop("put_messages_total") == 5
    assert told == {
        f'receives_total{{result="{result}",wake_source="{source}"}}': number
        for source, numbers in receives.items()
        for result, number in zip(("found", "empty"), numbers, strict=True)
        if number
    }


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


def test_work_that_waits_with_nobody_there_is_unattended() -> None:
    """Not while a listener or a webhook is there, nor where only a gap says that something may have been missed."""
    rig = Rig()
    rig.trigger()
    assert (told(rig, "listeners"), told(rig, "unattended")) == (0, 1)
    assert told(rig, "unattended", (QUEUE,)) == 0
    number = rig.join()
    assert (told(rig, "listeners"), told(rig, "unattended")) == (1, 0)
    rig.cover(number, rig.debt().gen)
    rig.lose(number)
    rig.bell.gap(rig.now)
    rig.drive()
    assert rig.debt().dirty
    assert told(rig, "unattended") == 0


def test_a_webhook_that_is_not_reached_attends_to_nothing() -> None:
    """As in the findings."""
    rows = [ListenerState(channel="webhook", queues=[Subscribed(queue=queue)], state=state) for queue, state in (
        ("a/well", "ok"), ("a/away", "failing"), ("a/gone", "disabled")
    )]  # fmt: skip
    assert told_by_webhooks(rows) == {"a/well"}


def test_the_longest_failure_of_a_queues_listeners_is_shown() -> None:
    """In seconds, on and on while nobody tells otherwise, and 0 once its receives are answered."""
    rig = Rig()
    first, second = rig.join(), rig.join()
    for number, failing_ms in ((first, 2000), (second, 30_000)):
        rig.say(number, ListenerHeartbeat(1, {QUEUE: QueueBeat(failing_ms=failing_ms)}))
    rig.wait(5)
    assert told(rig, "failing_seconds") == 35
    rig.say(second, ListenerHeartbeat(2, {QUEUE: QueueBeat()}))
    assert told(rig, "failing_seconds") == 7
    rig.say(first, ListenerHeartbeat(2, {QUEUE: QueueBeat()}))
    assert told(rig, "failing_seconds") == 0


def test_a_lost_publish_is_counted_from_0_on() -> None:
    """The series is there before, for Prometheus cannot see how a counter rose that it sees for the first time."""
    rig, counted = Rig(), Metrics()
    counted.watch_queues(lambda: queues(rig.bell, rig.now, ()))
    number = rig.join()
    assert shown(counted, "queuebell_unannounced_total") == {QUEUE: 0}
    for level in (1, 1, 3):
        rig.say(number, ListenerHeartbeat(1, {QUEUE: QueueBeat(receives={"sweep": (level, 0)}, unannounced=level)}))
    for fact in rig.facts:
        counted(fact)
    assert shown(counted, "queuebell_unannounced_total") == {QUEUE: 3}
    assert rig.debt().unannounced == 3
    rig.lose(number)
    assert rig.bell.forget(QUEUE)
    assert shown(counted, "queuebell_unannounced_total") == {QUEUE: 3}, "a counter never falls while a bridge runs"


@pytest.mark.parametrize(("before_s", "dirty", "counted"), [(9.0, False, 0), (11.0, False, 1), (11.0, True, 0)])
def test_work_that_was_announced_meanwhile_is_no_lost_publish(before_s: float, dirty: bool, counted: int) -> None:
    """By a trigger within the last two heartbeats, or one that is owed still; a listener's `more` announces nothing."""
    rig = Rig()
    number = rig.join()
    rig.trigger()
    if not dirty:
        rig.cover(number, rig.debt().gen)
    for _ in range(2):
        rig.wait(before_s / 2)
        rig.beat(number)
    rig.more(number, unannounced=True)
    rig.say(number, ListenerHeartbeat(1, {QUEUE: QueueBeat(receives={"sweep": (1, 0)}, unannounced=1)}))
    assert rig.debt().unannounced == counted


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


async def test_a_scrape_asks_nothing_of_a_store_or_a_listener() -> None:
    """Ten of them leave every count of receives as it was, and send no frame."""
    async with Bridge() as bridge:
        await bridge.store.put(QUEUE, [NewMessage(b"x")])
        bridge.trigger([CloudQueueWorkDetected("a", "elsewhere")], bus="http")
        heard: list[facts.Fact] = []
        bridge.observe(heard.append)
        before = msgspec.json.encode([bridge.describe(QUEUE), bridge.describe("a/elsewhere")])
        assert all(b"queuebell_queue_unattended" in bridge.metrics.render() for _ in range(10))
        await asyncio.sleep(0)
        after = [bridge.describe(QUEUE), bridge.describe("a/elsewhere")]
        assert [(each.receives.total, each.gen) for each in after] == [
            (each["receives"]["total"], each["gen"]) for each in msgspec.json.decode(before)
        ]
        assert heard == []


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
