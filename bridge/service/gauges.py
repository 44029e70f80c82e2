"""The bridge's gauges, each read from the state of the rules when somebody asks for metrics."""

from __future__ import annotations

from collections.abc import Callable

from bridge.core.bell import Bell
from bridge.core.cluster.turns import Turns
from bridge.observe.metrics import Metrics
from bridge.queues.embedded.own_store import OwnStore
from bridge.queues.served import ServedStore
from bridge.service import content, status

Clock = Callable[[], float]


def watch(
    metrics: Metrics, bell: Bell, store: ServedStore, now: Clock, told_by_webhooks: Callable[[], set[str]]
) -> None:
    """Register the gauges of every bridge."""
    if isinstance(store, OwnStore):
        metrics.watch("queuebell_put_keys", "Keys of puts that are remembered", lambda: float(store.remembered))
    metrics.watch(
        "queuebell_receives_failing",
        "Listeners' queues whose receives fail",
        lambda: float(status.failing(bell)),
    )
    metrics.watch(
        "queuebell_queues_unknown",
        "Queue names with work announced that were forgotten for want of room, since the start",
        lambda: float(bell.ledger.unknown),
    )
    metrics.watch(
        "queuebell_store_up",
        "1 while the store of the bridge's own queues works",
        lambda: float(store.failure() is None),
    )
    metrics.watch_workers(lambda: status.scaled(bell))
    metrics.watch_jobs(lambda: status.in_flight(bell))
    metrics.watch_queues(lambda: status.queues(bell, now(), told_by_webhooks()))
    metrics.watch_counts(lambda: content.held(bell, now()))


def watch_cluster(metrics: Metrics, turns: Turns, now: Clock) -> None:
    """Register the gauges of a bridge that is one of a cluster."""
    metrics.watch(
        "queuebell_cluster_members",
        "Bridges of the cluster that are heard, this one among them",
        lambda: float(1 + len(turns.members.peers)),
    )
    metrics.watch(
        "queuebell_cluster_alone",
        "1 while this bridge acts as if there were no other",
        lambda: float(turns.members.alone(turns.at(now()))),
    )
    metrics.watch(
        "queuebell_cluster_refused",
        "Bridges that are heard on the cluster's subjects and are none of its members",
        lambda: float(len(turns.members.refused)),
    )
    metrics.watch(
        "queuebell_cluster_deferred",
        "Queues that wait for another bridge's look",
        lambda: float(len(turns.deferred)),
    )
