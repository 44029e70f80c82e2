"""An observer that counts facts, in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.contract.jobs import Jobs, add
from bridge.contract.sources import UNREPORTED, WAKE_SOURCES
from bridge.contract.wire import Processes
from bridge.observe import facts
from bridge.observe.count_families import CountFamilies, Held
from bridge.observe.job_families import JobFamilies
from bridge.observe.queue_families import QueueFamilies, Standing
from bridge.observe.registry import COLLECTOR, GuardedRegistry
from bridge.observe.slices import Slices, at_once
from bridge.observe.swallowed import swallowing

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
"""Of each fact that a counter counts: its name, its words, the fields that are its labels, and the one that is added,
"" where 1 is."""


class Metrics:
    """Counts facts; knows which labels are bounded.

    Queue names come from outside, so a ``queue`` label is given to the first 2,000 of them and ``other`` to the rest.
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
        # A counter's first value raises no alert: Prometheus cannot see how it rose. A time needs no value before it.
        self._last_report = Gauge(
            "queuebell_last_report_timestamp_seconds",
            "When a worker last reported a dead letter (buried) or a lost lease, in seconds since 1970",
            ["queue", "event"],
            registry=self.registry,
        )
        self._held: set[str] = set()
        """Queues that have a label among the counts of messages."""
        self._scaled: set[str] = set()
        """Queues that have a label among the metrics of scalers."""
        self._jobs: dict[str, dict[str, Jobs]] = {}
        """What became of messages, by the label of their queue and by handler."""
        self._standing: set[str] = set()
        """Queues that have a label among those of how they stand."""
        self._queues: QueueFamilies | None = None
        self.walked: list[CountFamilies | JobFamilies | QueueFamilies] = []
        """Not in the registry: what walks over all queues is read in slices, and made on another thread."""
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
        """Read all metrics, slice by slice; return what writes them as text, on any thread: that takes longest."""
        made: list[Callable[[], Iterable[Metric]]] = []
        for families in self.walked:
            with swallowing(COLLECTOR):
                made.append((yield from families.read()))
        return partial(generate_latest, _Read(list(self.registry.collect()), made))

    def latencies(self) -> tuple[list[float], dict[str, list[float]]]:
        """Return bounds in seconds, and how many wakes and starts of handlers there were up to each, and in all."""
        counted = {"wake": self._wake_seconds, "start": self._start_seconds}
        return list(SECONDS), {
            name: [each.value for told in metric.collect() for each in told.samples if each.name.endswith("_bucket")]
            for name, metric in counted.items()
        }

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show what ``read`` gives at each `render`, as a gauge."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def watch_workers(self, read: Callable[[], Iterable[tuple[str, Processes]]]) -> None:
        """Show at each `render` how the workers of scalers stand: ``read`` gives each scaler of each queue."""
        self.registry.register(_Workers(read, partial(_label, self._scaled)))

    def watch_jobs(self, read: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        """Show at each `render` what was told of jobs; ``read`` gives the calls that run, by queue and handler."""

        def told() -> Iterator[tuple[str, str, Jobs]]:
            running = [(self._job_label(queue), handler, Jobs(in_flight=count)) for queue, handler, count in read()]
            now = {queue: dict(sums) for queue, sums in self._jobs.items()}
            for queue, handler, jobs in running:
                add(now[queue], handler, jobs)
            return ((queue, handler, jobs) for queue, sums in now.items() for handler, jobs in sums.items())

        self.walked.append(JobFamilies("queuebell", told))

    def _job_label(self, queue: str) -> str:
        """Return a queue's label, which is among the sums from now on."""
        label = queue if queue in self._jobs or len(self._jobs) < QUEUE_LABELS_MAX else OTHER
        self._jobs.setdefault(label, {})
        return label

    def _on_jobs(self, fact: facts.JobsTold) -> None:
        label = self._job_label(fact.queue)
        add(self._jobs[label], fact.handler, fact.more)
        for event, count in (("buried", fact.more.outcomes.get("buried")), ("lease_lost", fact.more.leases_lost)):
            if count:
                self._last_report.labels(label, event).set(self._clock())

    def watch_queues(self, read: Callable[[], Iterable[list[Standing]]]) -> None:
        """Show at each `render` how the queues stand that ``read`` gives, slice by slice."""
        self._queues = QueueFamilies(read, partial(_label, self._standing))
        self.walked.append(self._queues)

    def _on_unannounced(self, fact: facts.Unannounced) -> None:
        if self._queues is not None:
            self._queues.found(fact.queue, fact.count)

    def watch_counts(self, read: Callable[[], Iterable[list[Held]]]) -> None:
        """Show at each `render` how many messages each queue holds that ``read`` gives, slice by slice."""
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
    """A counter that costs an addition, where the library's own costs eight calls; without labels it begins at 0."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._about = (name, text)
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = {} if labels else {(): 0}

    def add(self, labels: tuple[str, ...], amount: int) -> None:
        """Count so many."""
        self._counts[labels] = self._counts.get(labels, 0) + amount

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Read the counts."""
        family = CounterMetricFamily(*self._about, labels=self._labels)
        for labels, count in list(self._counts.items()):
            family.add_metric(labels, count)
        yield family


def _counting(counter: _Counter, labels: tuple[str, ...], amount: str) -> Callable[[Any], None]:
    """Return what counts a fact; the words of its labels are looked up once."""
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
    """Return the label of a queue, which is ``known`` from now on where there is room."""
    if queue not in known and len(known) >= QUEUE_LABELS_MAX:
        return OTHER
    known.add(queue)
    return queue


class _Read(NamedTuple):
    """Metrics that were read, as a registry gives them; those of queues are made when they are asked for."""

    metrics: list[Metric]
    made: list[Callable[[], Iterable[Metric]]]

    def collect(self) -> Iterator[Metric]:
        """Return them."""
        yield from self.metrics
        for make in self.made:
            yield from make()


class _Workers(Collector):
    """The workers of scalers as their newest heartbeats said: ``wanted`` is for all machines, the others add up."""

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
