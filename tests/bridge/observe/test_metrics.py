"""How queues stand, as `/metrics` tells of them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bridge import Bridge
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.jobs import Jobs, Spread
from bridge.contract.wire import ListenerHeartbeat, QueueBeat
from bridge.observe import facts, metrics
from bridge.observe.metrics import Metrics
from bridge.observe.queue_families import Standing
from bridge.queues.base import NewMessage
from bridge.service.state import ListenerState, Subscribed
from bridge.service.status import queues, told_by_webhooks
from tests.support.bells import QUEUE, Rig


def shown(metrics: Metrics, name: str) -> dict[str, float]:
    """Return what one family tells, by queue."""
    return {
        sample.labels["queue"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def told(rig: Rig, name: str, webhooks: tuple[str, ...] = ()) -> float:
    """Return what is told of the rig's queue."""
    counted = Metrics()
    counted.watch_queues(lambda: queues(rig.bell, rig.now, webhooks))
    return shown(counted, f"queuebell_queue_{name}")[QUEUE]


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
        Standing("a/0", 1, False, 0.0), Standing("a/1", 2, True, 1.0), Standing("a/2", 3, True, 5.0),
        Standing("a/3", 4, True, 4.0),
    ]  # fmt: skip
    counted = Metrics()
    counted.watch_queues(lambda: rows)
    for _ in range(2):
        assert shown(counted, "queuebell_queue_listeners") == {"a/0": 1, "a/1": 2, "other": 7}
        rows.reverse()
    assert shown(counted, "queuebell_queue_unattended") == {"a/0": 0, "a/1": 1, "other": 2}
    assert shown(counted, "queuebell_queue_failing_seconds") == {"a/0": 0, "a/1": 1, "other": 5}
    for queue in ("a/1", "a/2", "a/3"):
        counted(facts.Unannounced(queue, 2))
    assert shown(counted, "queuebell_unannounced_total") == {"a/0": 0, "a/1": 2, "other": 4}


def test_what_is_written_is_what_was_read() -> None:
    """It may be written on another thread, while the bridge goes on and counts."""
    counted = Metrics()
    rows = [Standing("a/0", 1, False, 0.0)]
    counted.watch_queues(lambda: rows)
    counted.watch_jobs(lambda: ())
    told = facts.JobsTold("a/0", "charge", Jobs(outcomes={"done": 1}, handling=Spread([1], 5)))
    counted(told)
    write, before = counted.snapshot(), counted.render()
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
