"""What became of messages, as families of metrics: at a bridge summed up over workers, at a worker its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.contract.jobs import BOUNDS_S, NO_JOBS, Jobs, Spread, plus
from bridge.observe.slices import Slices, at_once

_BOUNDS: Final = [*map(str, BOUNDS_S), "+Inf"]


class JobFamilies(Collector):
    """Shows what ``read`` gives by queue and handler, under names that begin with ``prefix``; equal labels add up."""

    def __init__(self, prefix: str, read: Callable[[], Iterable[tuple[str, str, Jobs]]]) -> None:
        self._prefix = prefix
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Read how they stand now."""
        return at_once(self.read())()

    def read(self) -> Slices[Callable[[], Iterator[Metric]]]:
        """Read how they stand now; return what makes families of it, on any thread: of many queues it takes long."""
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
