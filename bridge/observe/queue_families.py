"""How each queue stands, as families of metrics that are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.observe.slices import Slices, at_once


class Standing(NamedTuple):
    """How one queue stands with those who take from it."""

    queue: str
    listeners: int
    """Sessions that are subscribed."""
    unattended: bool
    """Work waits, and nobody is there to look."""
    failing_s: float
    """For how long the receives of a session have failed, the longest of all; 0 where they are answered."""
    rejected: int = 0
    """Workers that the bridge rejected lately."""


class QueueFamilies(Collector):
    """Shows what ``read`` gives in slices, and what was counted since; queues that share a label are one.

    Of those the listeners and the unattended queues add up, and the one that has failed longest is shown. A queue's
    counter begins at 0 before anything is counted, or the first increase of all could not be seen.
    """

    def __init__(self, read: Callable[[], Iterable[list[Standing]]], label: Callable[[str], str]) -> None:
        self._read = read
        self._label = label
        self._unannounced: dict[str, int] = {}

    def found(self, queue: str, count: int) -> None:
        """Count receives that found what nobody had announced."""
        label = self._label(queue)
        self._unannounced[label] = self._unannounced.get(label, 0) + count

    def collect(self) -> Iterator[Metric]:
        """Read how they stand now."""
        return at_once(self.read())()

    def read(self) -> Slices[Callable[[], Iterator[Metric]]]:
        """Read how they stand, slice by slice; return what makes families of it, on any thread."""
        stand: dict[str, tuple[int, int, float, int]] = {}
        for part in self._read():
            for queue, listeners, unattended, failing_s, rejected in part:
                label = self._label(queue)
                others, lonely, longest_s, outside = stand.get(label, (0, 0, 0.0, 0))
                longest_s = max(longest_s, failing_s)
                stand[label] = (others + listeners, lonely + unattended, longest_s, outside + rejected)
            yield
        return partial(self._families, stand, dict(self._unannounced))

    def _families(self, stand: dict[str, tuple[int, int, float, int]], unannounced: dict[str, int]) -> Iterator[Metric]:
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
            for label, row in stand.items():
                family.add_metric([label], row[place])
            yield family
        counted = CounterMetricFamily(
            "queuebell_unannounced", "Receives that found new messages without a trigger", labels=["queue"]
        )
        for label in {**stand, **unannounced}:
            counted.add_metric([label], unannounced.get(label, 0))
        yield counted
