"""Prometheus metrics: `Metrics` counts facts, `GuardedRegistry` survives collectors that raise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queuebell.bridge.contract.jobs import Jobs, add
from queuebell.bridge.contract.sources import UNREPORTED, WAKE_SOURCES
from queuebell.bridge.contract.wire import Processes
from queuebell.bridge.observe import facts, swallowed
from queuebell.bridge.observe.families import CountFamilies, JobFamilies, QueueCounts, QueueFamilies, QueueWorkers
from queuebell.bridge.observe.slices import Slices, at_once
from queuebell.bridge.observe.swallowed import swallowing

COLLECTOR = "a metric that is computed when read"


class _Guarded(Collector):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        if hasattr(collector, "describe"):
            self.describe = collector.describe

    def collect(self) -> Iterable[Metric]:
        try:
            return list(self._collector.collect())
        except Exception as error:  # noqa: BLE001 - the other metrics are still exported
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
    """A registry in which a collector that raises loses only its own metrics; also exports swallowed exceptions."""

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


QUEUE_LABELS_MAX = 2000
OTHER = "other"
# From a local wake (tens of microseconds) to the published bound of two minutes.
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120,
)  # fmt: skip

COUNTED: Final[dict[type[facts.Fact], tuple[str, str, tuple[str, ...], str]]] = {
    facts.Triggered: ("queuebell_triggers", "Accepted triggers", ("bus",), "count"),
    facts.DuplicateDropped: ("queuebell_trigger_duplicates", "Dropped duplicates of triggers", ("bus",), ""),
    facts.TriggerRefused: (
        "queuebell_triggers_refused", "Invalid messages on a bus", ("bus", "code"), "",
    ),
    facts.Woken: ("queuebell_wakes", "Wakes sent", ("reason",), ""),
    facts.HandedBack: (
        "queuebell_handed_back_messages", "Messages sent with a wake but not accepted by a worker", (), "count",
    ),
    facts.PutRefused: ("queuebell_puts_refused", "Puts answered 429", ("reason",), ""),
    facts.RoundMade: ("queuebell_rounds", "Questions for all queues of a store at once", ("kind", "answered"), ""),
    facts.KedaDropped: ("queuebell_keda_dropped", "Dropped or rejected streams to KEDA", ("reason",), ""),
    facts.AccessRefused: ("queuebell_refusals", "Requests and sessions without permission", ("reason",), ""),
    facts.StartMissed: ("queuebell_starts_missed", "Wakes that no worker answered in time", (), ""),
    facts.SettledByPeer: ("queuebell_cluster_forgiven", "Pending work settled by other bridges", ("by",), ""),
    facts.ActedLate: (
        "queuebell_cluster_acted_late", "Checks made in place of a silent bridge that was due first", (), "",
    ),
    facts.ClusterMessageRefused: (
        "queuebell_cluster_words_refused", "Invalid messages on the cluster's subjects", (), "",
    ),
    facts.MemberGone: ("queuebell_cluster_gone", "Bridges that left the cluster or fell silent", ("leaving",), ""),
    facts.OwedDropped: (
        "queuebell_cluster_owed_dropped", "Triggers dropped before they reached the other bridges", (), "",
    ),
    facts.OwnerStuck: ("queuebell_owners_stuck", "Sessions that started and then made no progress", (), ""),
    facts.AuditFound: (
        "queuebell_audit_found", "Visible messages without a wake; a value above 0 is a bug", (), "",
    ),
    facts.Covered: ("queuebell_covers", "Empty receives that workers reported", ("settled",), ""),
    facts.Suspended: (
        "queuebell_suspends", "Suspends of the machine, each followed by one receive per queue", (), "",
    ),
}  # fmt: skip
"""The counter of each fact: name, help text, the fields used as labels, and the field to add ("" adds 1)."""


class Metrics:
    """An observer that counts facts for Prometheus.

    Queue names come from outside, so the first 2,000 get a label of their own and the rest are ``other``.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = GuardedRegistry()
        self._clock = clock
        self._bus_up = Gauge("queuebell_bus_up", "1 while a bus is connected", ["bus"], registry=self.registry)
        self._carried = self._counter("queuebell_carried_messages", "Messages sent with a wake")
        self._receives = self._counter(
            "queuebell_receives", "Receives of workers and other clients", ("result", "wake_source")
        )
        self._wake_seconds = Histogram(
            "queuebell_wake_seconds", "Time from trigger to wake", buckets=SECONDS, registry=self.registry
        )
        self._start_seconds = Histogram(
            "queuebell_handler_start_seconds", "Time from trigger to handler, for messages sent with a wake",
            buckets=SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self._sessions = Gauge("queuebell_sessions", "Connected sessions", registry=self.registry)
        self._puts = self._counter("queuebell_put_messages", "Messages put in the queue service")
        self._loop_lag = Histogram(
            "queuebell_loop_lag_seconds", "Delay of the event loop, measured once a second", buckets=SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self._worker_starts = self._counter("queuebell_worker_starts", "Workers that scalers started", ("queue",))
        self._worker_failures = self._counter(
            "queuebell_worker_failures", "Workers of scalers that failed or did not start", ("queue",)
        )
        self._worker_ends = self._counter("queuebell_worker_ends", "Workers of scalers that ended", ("queue", "reason"))
        # A counter's first value raises no alert, because Prometheus cannot see the increase; a time does.
        self._last_report = Gauge(
            "queuebell_last_report_timestamp_seconds",
            "When a worker last reported a dead letter (buried) or a lost lease, in seconds since 1970",
            ["queue", "event"],
            registry=self.registry,
        )
        self._held: set[str] = set()
        """Queues with a label for counts of messages."""
        self._scaled: set[str] = set()
        """Queues with a label for metrics of scalers."""
        self._jobs: dict[str, dict[str, Jobs]] = {}
        """Outcomes of messages, by label of the queue and handler."""
        self._with_workers: set[str] = set()
        """Queues with a label for their workers."""
        self._queues: QueueFamilies | None = None
        self.walked: list[CountFamilies | JobFamilies | QueueFamilies] = []
        """Families of all queues, not in the registry: they are read in slices, and written in another thread."""
        for source in (*WAKE_SOURCES, UNREPORTED):
            self._receives.add(("found", source), 0)
            self._receives.add(("empty", source), 0)
        self._on: dict[type[facts.Fact], Callable[[Any], None]] = {
            kind: _counting(self._counter(name, text, labels), labels, amount)
            for kind, (name, text, labels, amount) in COUNTED.items()
        }
        self._wakes = self._on[facts.Woken]
        self._on |= {
            facts.Woken: self._on_woken,
            facts.HandlerStarted: lambda fact: self._start_seconds.observe(fact.waited_s),
            facts.QueueMoved: self._on_queue_moved,
            facts.ReceivesTold: lambda fact: self._count_receives(fact.source, fact.found, fact.empty),
            facts.SessionOpened: lambda _: self._sessions.inc(),
            facts.SessionClosed: lambda _: self._sessions.dec(),
            facts.Unannounced: self._on_unannounced,
            facts.WorkersTallied: self._on_workers,
            facts.JobsTold: self._on_jobs,
            facts.LoopLagged: lambda fact: self._loop_lag.observe(fact.lag_s),
            facts.BusUp: lambda fact: self._bus_up.labels(fact.bus).set(1),
            facts.BusDown: lambda fact: self._bus_up.labels(fact.bus).set(0),
        }

    def __call__(self, fact: facts.Fact) -> None:
        """Count one fact."""
        count = self._on.get(type(fact))
        if count is not None:
            count(fact)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return at_once(self.snapshot())()

    def snapshot(self) -> Slices[Callable[[], bytes]]:
        """Read all metrics slice by slice; return a function that writes them as text, in any thread."""
        made: list[Callable[[], Iterable[Metric]]] = []
        for families in self.walked:
            with swallowing(COLLECTOR):
                made.append((yield from families.read()))
        return partial(generate_latest, _Read(list(self.registry.collect()), made))

    def latencies(self) -> tuple[list[float], dict[str, list[float]]]:
        """Return the bounds of buckets in seconds, and the cumulative counts of wakes and handler starts."""
        counted = {"wake": self._wake_seconds, "start": self._start_seconds}
        return list(SECONDS), {
            name: [each.value for told in metric.collect() for each in told.samples if each.name.endswith("_bucket")]
            for name, metric in counted.items()
        }

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge with the value of ``read`` at each `render`."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def watch_workers(self, read: Callable[[], Iterable[tuple[str, Processes]]]) -> None:
        """Add metrics of the workers of scalers; ``read`` returns each scaler of each queue."""
        self.registry.register(_Workers(read, partial(_label, self._scaled)))

    def watch_jobs(self, read: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        """Add metrics of reported jobs; ``read`` returns the running calls, by queue and handler."""

        def jobs_now() -> Iterator[tuple[str, str, Jobs]]:
            running = [(self._job_label(queue), handler, Jobs(in_flight=count)) for queue, handler, count in read()]
            now = {queue: dict(sums) for queue, sums in self._jobs.items()}
            for queue, handler, jobs in running:
                add(now[queue], handler, jobs)
            return ((queue, handler, jobs) for queue, sums in now.items() for handler, jobs in sums.items())

        self.walked.append(JobFamilies("queuebell", jobs_now))

    def _job_label(self, queue: str) -> str:
        """Return a queue's label, and add it to the sums."""
        label = queue if queue in self._jobs or len(self._jobs) < QUEUE_LABELS_MAX else OTHER
        self._jobs.setdefault(label, {})
        return label

    def _on_jobs(self, fact: facts.JobsTold) -> None:
        label = self._job_label(fact.queue)
        add(self._jobs[label], fact.handler, fact.more)
        for event, count in (("buried", fact.more.outcomes.get("buried")), ("lease_lost", fact.more.leases_lost)):
            if count:
                self._last_report.labels(label, event).set(self._clock())

    def watch_queues(self, read: Callable[[], Iterable[list[QueueWorkers]]]) -> None:
        """Add metrics of queues and their workers, which ``read`` returns in slices."""
        self._queues = QueueFamilies(read, partial(_label, self._with_workers))
        self.walked.append(self._queues)

    def _on_unannounced(self, fact: facts.Unannounced) -> None:
        if self._queues is not None:
            self._queues.count_unannounced(fact.queue, fact.count)

    def watch_counts(self, read: Callable[[], Iterable[list[QueueCounts]]]) -> None:
        """Add the counts of messages of queues, which ``read`` returns in slices."""
        self.walked.append(CountFamilies(read, partial(_label, self._held)))

    def _on_workers(self, fact: facts.WorkersTallied) -> None:
        queue = _label(self._scaled, fact.queue)
        if fact.what == "started":
            self._worker_starts.add((queue,), fact.count)
        elif fact.what == "failed":
            self._worker_failures.add((queue,), fact.count)
        else:
            self._worker_ends.add((queue, fact.what), fact.count)

    def _on_woken(self, fact: facts.Woken) -> None:
        self._wakes(fact)
        self._wake_seconds.observe(fact.waited_s)
        if fact.carried:
            self._carried.add((), fact.carried)

    def _on_queue_moved(self, fact: facts.QueueMoved) -> None:
        if fact.put:
            self._puts.add((), fact.put)
        if fact.receives:
            found, empty = fact.receives - fact.empty, fact.empty
            for source, (found_by, empty_by) in fact.sources.items():
                self._count_receives(source, found_by, empty_by)
                found -= found_by
                empty -= empty_by
            if found or empty:
                self._count_receives(UNREPORTED, found, empty)

    def _count_receives(self, source: str, found: int, empty: int) -> None:
        if found:
            self._receives.add(("found", source), found)
        if empty:
            self._receives.add(("empty", source), empty)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> _Counter:
        counter = _Counter(name, text, labels)
        self.registry.register(counter)
        return counter


class _Counter(Collector):
    """A counter that takes one addition, instead of eight calls of the library's; without labels it starts at 0."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._about = (name, text)
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = {} if labels else {(): 0}

    def add(self, labels: tuple[str, ...], amount: int) -> None:
        """Add an amount."""
        self._counts[labels] = self._counts.get(labels, 0) + amount

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Read the counts."""
        family = CounterMetricFamily(*self._about, labels=self._labels)
        for labels, count in list(self._counts.items()):
            family.add_metric(labels, count)
        yield family


def _counting(counter: _Counter, labels: tuple[str, ...], amount: str) -> Callable[[Any], None]:
    """Return a function that counts a fact; label texts are cached."""
    values: Callable[[Any], Any] = attrgetter(*labels) if labels else lambda _: ()
    known: dict[Any, tuple[str, ...]] = {} if labels else {(): ()}

    def count(fact: facts.Fact) -> None:
        key = values(fact)
        words = known.get(key)
        if words is None:
            words = known[key] = tuple(
                each if isinstance(each, str) else "yes" if each else "no"
                for each in (key if len(labels) > 1 else (key,))
            )
        counter.add(words, getattr(fact, amount) if amount else 1)

    return count


def _label(known: set[str], queue: str) -> str:
    """Return the label of a queue, and add it to ``known`` if there is room."""
    if queue not in known and len(known) >= QUEUE_LABELS_MAX:
        return OTHER
    known.add(queue)
    return queue


class _Read(NamedTuple):
    """Metrics that were read, in the form of a registry; families of queues are made on demand."""

    metrics: list[Metric]
    made: list[Callable[[], Iterable[Metric]]]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield from self.metrics
        for make in self.made:
            yield from make()


class _Workers(Collector):
    """The workers of scalers by their newest heartbeats: ``wanted`` is for all machines, the others are summed."""

    def __init__(self, read: Callable[[], Iterable[tuple[str, Processes]]], label: Callable[[str], str]) -> None:
        self._read = read
        self._label = label

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read how they stand now."""
        stand: dict[tuple[str, str], int] = {}
        for queue, told in self._read():
            label = self._label(queue)
            stand[label, "wanted"] = max(stand.get((label, "wanted"), 0), told.wanted)
            for state, number in (("ready", told.ready), ("starting", told.starting), ("running", told.running)):
                stand[label, state] = stand.get((label, state), 0) + number
        family = GaugeMetricFamily("queuebell_workers", "Workers of scalers", labels=["queue", "state"])
        for labels, number in stand.items():
            family.add_metric(labels, number)
        yield family
