"""How queues stand, as `/metrics` tells of them."""

from __future__ import annotations

from queuebell.bridge.contract.wire import Processes
from queuebell.bridge.observe import swallowed
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
    counted.watch_workers(lambda: [(QUEUE, Processes(5, 1, 2, running=4)), (QUEUE, Processes(6, 2, 1, running=3))])
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
