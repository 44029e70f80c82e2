"""A registry of Prometheus whose collectors cost only what they tell themselves when they raise."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.observe import swallowed

COLLECTOR = "a metric that is read when it is asked for"


class _Guarded(Collector):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        if hasattr(collector, "describe"):
            self.describe = collector.describe

    def collect(self) -> Iterable[Metric]:
        try:
            return list(self._collector.collect())
        except Exception as error:  # noqa: BLE001 - the other metrics are shown
            swallowed.swallow(COLLECTOR, error)
            return []


class _Exceptions(Collector):
    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "queuebell_exceptions", "Unexpected exceptions that cost one call only, by what was called", labels=["what"]
        )
        for what, count in list(swallowed.counts.items()):
            family.add_metric([what], count)
        yield family


class GuardedRegistry(CollectorRegistry):
    """Shows what its collectors give, and how many exceptions this process has swallowed."""

    def __init__(self) -> None:
        super().__init__()
        self._guards: dict[Collector, Collector] = {}
        self.register(_Exceptions())

    def register(self, collector: Collector) -> None:
        """Add a collector."""
        guarded = _Guarded(collector)
        super().register(guarded)
        self._guards[collector] = guarded

    def unregister(self, collector: Collector) -> None:
        """Remove a collector."""
        super().unregister(self._guards.pop(collector))
