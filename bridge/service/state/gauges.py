"""The gauges of a bridge and of a cluster's member, read when somebody scrapes them."""

from __future__ import annotations

from collections.abc import Callable

from queuebell.bridge.core.cluster.coordinator import Coordinator
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.metrics import Metrics
from queuebell.bridge.queues.embedded.store import EmbeddedStore
from queuebell.bridge.queues.served import ServedStore
from queuebell.bridge.service.state import content, status

Clock = Callable[[], float]


def watch(
    metrics: Metrics, scheduler: WakeScheduler, store: ServedStore, now: Clock, webhook_queues: Callable[[], set[str]]
) -> None:
    """Register the gauges of every bridge."""
    if isinstance(store, EmbeddedStore):
        metrics.watch("queuebell_put_keys", "Remembered keys of puts", lambda: float(store.remembered))
    metrics.watch(
        "queuebell_receives_failing",
        "Workers' queues whose receives fail",
        lambda: float(status.failing(scheduler)),
    )
    metrics.watch(
        "queuebell_queues_unknown",
        "Queue names with announced work that were dropped for lack of space, since the start",
        lambda: float(scheduler.pending.evicted_with_work),
    )
    metrics.watch(
        "queuebell_store_up",
        "1 while the store of the queue service works",
        lambda: float(store.failure() is None),
    )
    metrics.watch_workers(lambda: status.scaled(scheduler))
    metrics.watch_jobs(lambda: status.in_flight(scheduler))
    metrics.watch_queues(lambda: status.queues(scheduler, now(), webhook_queues()))
    metrics.watch_counts(lambda: content.held(scheduler, now()))


def watch_cluster(metrics: Metrics, coordinator: Coordinator, now: Clock) -> None:
    """Register the gauges of a cluster member."""
    metrics.watch(
        "queuebell_cluster_members",
        "Reachable bridges of the cluster, including this one",
        lambda: float(1 + len(coordinator.members.peers)),
    )
    metrics.watch(
        "queuebell_cluster_alone",
        "1 while this bridge acts as if it were the only one",
        lambda: float(coordinator.members.alone(coordinator.at(now()))),
    )
    metrics.watch(
        "queuebell_cluster_refused",
        "Bridges that send on the cluster's subjects but are not members",
        lambda: float(len(coordinator.members.refused)),
    )
    metrics.watch(
        "queuebell_cluster_deferred",
        "Queues that wait for another bridge's check",
        lambda: float(len(coordinator.deferred)),
    )
