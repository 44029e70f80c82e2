"""How many messages each queue holds, as families of metrics that are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.observe.slices import Slices, at_once


class Held(NamedTuple):
    """What is known of one queue's messages; None is not told, and is not shown."""

    queue: str
    visible: int | None
    invisible: int | None
    leased: int | None
    buried: int | None
    oldest_s: float | None


class CountFamilies(Collector):
    """Shows what ``read`` gives in slices. Queues that share a label add up, and the oldest of all is shown."""

    def __init__(self, read: Callable[[], Iterable[list[Held]]], label: Callable[[str], str]) -> None:
        self._read = read
        self._label = label

    def collect(self) -> Iterator[Metric]:
        """Read how they stand now."""
        return at_once(self.read())()

    def read(self) -> Slices[Callable[[], Iterator[Metric]]]:
        """Read how they stand, slice by slice; return what makes families of it, on any thread."""
        messages: dict[tuple[str, str], int] = {}
        leased: dict[str, int] = {}
        buried: dict[str, int] = {}
        oldest: dict[str, float] = {}
        for part in self._read():
            for held in part:
                label = self._label(held.queue)
                for state, number in (("visible", held.visible), ("invisible", held.invisible)):
                    if number is not None:
                        messages[label, state] = messages.get((label, state), 0) + number
                for sums, number in ((leased, held.leased), (buried, held.buried)):
                    if number is not None:
                        sums[label] = sums.get(label, 0) + number
                if held.oldest_s is not None:
                    oldest[label] = max(oldest.get(label, 0.0), held.oldest_s)
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
