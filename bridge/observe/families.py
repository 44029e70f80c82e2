"""Metrics of queues and handlers, computed when they are read: `QueueFamilies`, `CountFamilies`, `JobFamilies`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from queuebell.bridge.contract.jobs import BOUNDS_S, NO_JOBS, Jobs, Spread, plus
from queuebell.bridge.observe.slices import Slices, at_once


class QueueWorkers(NamedTuple):
    """The workers of one queue."""

    queue: str
    listeners: int
    """Subscribed sessions."""
    unattended: bool
    """Whether work waits and no worker checks the queue."""
    failing_s: float
    """The longest time for which receives of a session have failed; 0 if they work."""
    rejected: int = 0
    """Workers that the bridge rejected recently."""


class QueueFamilies(Collector):
    """Exports the slices of ``read``, and a counter; queues that share a label are merged.

    Listeners and unattended queues are summed, the longest failure is kept. A queue's counter starts at 0 before the
    first count, because Prometheus cannot see the increase to a first value.
    """

    def __init__(self, read: Callable[[], Iterable[list[QueueWorkers]]], label: Callable[[str], str]) -> None:
        self._read = read
        self._label = label
        self._unannounced: dict[str, int] = {}

    def count_unannounced(self, queue: str, count: int) -> None:
        """Count receives that found messages without a trigger."""
        label = self._label(queue)
        self._unannounced[label] = self._unannounced.get(label, 0) + count

    def collect(self) -> Iterator[Metric]:
        """Read the current values."""
        return at_once(self.read())()

    def read(self) -> Slices[Callable[[], Iterator[Metric]]]:
        """Read the values slice by slice; return a function that makes the families, in any thread."""
        sums: dict[str, tuple[int, int, float, int]] = {}
        for part in self._read():
            for queue, listeners, unattended, failing_s, rejected in part:
                label = self._label(queue)
                others, lonely, longest_s, outside = sums.get(label, (0, 0, 0.0, 0))
                longest_s = max(longest_s, failing_s)
                sums[label] = (others + listeners, lonely + unattended, longest_s, outside + rejected)
            yield
        return partial(self._families, sums, dict(self._unannounced))

    def _families(self, sums: dict[str, tuple[int, int, float, int]], unannounced: dict[str, int]) -> Iterator[Metric]:
        names = (
            ("queuebell_queue_listeners", "Sessions of a queue"),
            ("queuebell_queue_unattended", "1 while work waits and no worker checks the queue"),
            (
                "queuebell_queue_failing_seconds",
                "Time for which a worker's receives have failed, 0 if they work",
            ),
            ("queuebell_queue_rejected", "Workers of a queue that the bridge rejected within 90 s; they poll"),
        )
        for place, (name, text) in enumerate(names):
            family = GaugeMetricFamily(name, text, labels=["queue"])
            for label, row in sums.items():
                family.add_metric([label], row[place])
            yield family
        counted = CounterMetricFamily(
            "queuebell_unannounced", "Receives that found new messages without a trigger", labels=["queue"]
        )
        for label in {**sums, **unannounced}:
            counted.add_metric([label], unannounced.get(label, 0))
        yield counted


class QueueCounts(NamedTuple):
    """The known counts of one queue; None is unknown and not exported."""

    queue: str
    visible: int | None
    invisible: int | None
    leased: int | None
    buried: int | None
    oldest_s: float | None


class CountFamilies(Collector):
    """Exports the slices of ``read``; queues that share a label are summed, and the oldest message is kept."""

    def __init__(self, read: Callable[[], Iterable[list[QueueCounts]]], label: Callable[[str], str]) -> None:
        self._read = read
        self._label = label

    def collect(self) -> Iterator[Metric]:
        """Read the current values."""
        return at_once(self.read())()

    def read(self) -> Slices[Callable[[], Iterator[Metric]]]:
        """Read the values slice by slice; return a function that makes the families, in any thread."""
        messages: dict[tuple[str, str], int] = {}
        leased: dict[str, int] = {}
        buried: dict[str, int] = {}
        oldest: dict[str, float] = {}
        for part in self._read():
            for counts in part:
                label = self._label(counts.queue)
                for state, number in (("visible", counts.visible), ("invisible", counts.invisible)):
                    if number is not None:
                        messages[label, state] = messages.get((label, state), 0) + number
                for sums, number in ((leased, counts.leased), (buried, counts.buried)):
                    if number is not None:
                        sums[label] = sums.get(label, 0) + number
                if counts.oldest_s is not None:
                    oldest[label] = max(oldest.get(label, 0.0), counts.oldest_s)
            yield
        return partial(_families, messages, leased, buried, oldest)


def _families(
    messages: dict[tuple[str, str], int], leased: dict[str, int], buried: dict[str, int], oldest: dict[str, float]
) -> Iterator[Metric]:
    text = "Messages in the queue service, and in external stores as their workers reported"
    family = GaugeMetricFamily("queuebell_queue_messages", text, labels=["queue", "state"])
    for labels, number in messages.items():
        family.add_metric(labels, number)
    yield family
    numbers: tuple[tuple[str, str, dict[str, int] | dict[str, float]], ...] = (
        ("leased", "Messages in flight", leased),
        ("buried", "Messages in the poison queue", buried),
        ("oldest_seconds", "Time for which the oldest visible message has waited", oldest),
    )
    for name, words, found in numbers:
        family = GaugeMetricFamily(f"queuebell_queue_{name}", words, labels=["queue"])
        for label, value in found.items():
            family.add_metric([label], value)
        yield family


_BOUNDS: Final = [*map(str, BOUNDS_S), "+Inf"]


class JobFamilies(Collector):
    """Exports the rows of ``read`` (queue, handler, jobs) under names with a ``prefix``; equal labels are summed."""

    def __init__(self, prefix: str, read: Callable[[], Iterable[tuple[str, str, Jobs]]]) -> None:
        self._prefix = prefix
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Read the current values."""
        return at_once(self.read())()

    def read(self) -> Slices[Callable[[], Iterator[Metric]]]:
        """Read the values; return a function that makes the families, in any thread: for many queues it takes long."""
        rows = list(self._read())
        yield
        return partial(self._families, rows)

    def _families(self, rows: list[tuple[str, str, Jobs]]) -> Iterator[Metric]:
        sums: dict[tuple[str, str], Jobs] = {}
        lost: dict[str, int] = {}
        for queue, handler, jobs in rows:
            sums[queue, handler] = plus(sums.get((queue, handler), NO_JOBS), jobs)
            lost[queue] = lost.get(queue, 0) + jobs.leases_lost
        prefix, both = self._prefix, ["queue", "handler"]
        handled = CounterMetricFamily(f"{prefix}_handled", "Ended handler attempts", labels=[*both, "outcome"])
        failures = CounterMetricFamily(f"{prefix}_failures", "Failed handler attempts", labels=[*both, "class"])
        in_flight = GaugeMetricFamily(f"{prefix}_in_flight", "Handler calls in progress", labels=both)
        handling = HistogramMetricFamily(f"{prefix}_handling_seconds", "Duration of a handler call", labels=both)
        waiting = HistogramMetricFamily(
            f"{prefix}_waiting_seconds", "Time from the put of a message to its first attempt", labels=both
        )
        leases = CounterMetricFamily(f"{prefix}_leases_lost", "Lost leases", labels=["queue"])
        for labels, jobs in sums.items():
            for outcome, count in jobs.outcomes.items():
                handled.add_metric([*labels, outcome], count)
            for name, count in jobs.failures.items():
                failures.add_metric([*labels, name], count)
            in_flight.add_metric(labels, jobs.in_flight)
            for family, spread in ((handling, jobs.handling), (waiting, jobs.waiting)):
                family.add_metric(labels, _buckets(spread), spread.total_ms / 1000)
        for queue, count in lost.items():
            leases.add_metric([queue], count)
        yield from (handled, failures, in_flight, handling, waiting, leases)


def _buckets(spread: Spread) -> list[tuple[str, float]]:
    counts = spread.counts + [0] * (len(_BOUNDS) - len(spread.counts))
    return list(zip(_BOUNDS, accumulate(counts), strict=True))
