"""Show how the bridge, its listeners and its queues stand.

Exit code 1 where the bridge is not ready, 69 where none answers.
"""

from __future__ import annotations

import argparse
from urllib.parse import quote

import msgspec

from bridge.contract.errors import BadQueueReference
from bridge.contract.jobs import Jobs, quantile
from bridge.contract.names import POISON_SUFFIX, poison_reference
from bridge.contract.partitioning import parse_physical
from bridge.contract.wire import Processes
from bridge.service.state import (
    Cluster,
    Findings,
    Listeners,
    ListenerState,
    QueueNames,
    QueueState,
    Readiness,
    Troubled,
    Unattended,
)
from bridge.service.status import workers
from queuebell.command.client import BridgeClient, add_client_arguments, client_settings, plain, print_json, print_table

QUEUES_SHOWN = 50
INSTANCE_DIGITS = 8
UNKNOWN = "?"
COLUMNS = [
    "QUEUE", "VISIBLE", "INVISIBLE", "COUNTED", "STATE", "SESSIONS", "TRIGGERS", "WAKES", "OLDEST", "RECEIVES", "EMPTY",
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``status``."""
    parser.add_argument("queues", nargs="*", metavar="ACCOUNT/QUEUE", help="only these (default: the first 50)")
    add_client_arguments(parser, "bridge")


def run(args: argparse.Namespace) -> int:
    """Ask and show."""
    wanted = [parse_physical(queue) for queue in args.queues]
    with BridgeClient(client_settings(args).bridge) as client:
        # An answer of /readyz says the same whatever its status.
        readiness = client.read("/readyz", Readiness)[1]
        if readiness is None:
            raise client.stranger()
        listeners = (client.read("/v1/listeners", Listeners)[1] or Listeners()).listeners
        names = wanted or _names(client, listeners)
        beside = [poison for name in names for poison in _poison_of(name) if poison not in names]
        queues = [state for name in [*names, *beside] if (state := _queue(client, name)) is not None]
        lonely, graves, troubled = _findings(client, [*wanted, *beside] if wanted else [])
        cluster = client.read("/v1/cluster", Cluster)[1] or Cluster()
    if args.json:
        bridge = {"url": client.url, **msgspec.structs.asdict(readiness), "gone": client.gone}
        told: dict[str, object] = {"unattended": lonely, "buried": graves, "troubled": troubled}
        if cluster.name is not None:
            told["cluster"] = cluster
        print_json({"bridge": bridge, "listeners": listeners, "queues": queues, **told})
        return 0 if readiness.ready else 1
    print(f"bridge at {client.url}: {'ready' if readiness.ready else 'NOT READY'}")
    for gone in client.gone:
        print(plain(f"  {gone}"))
    for name, check in readiness.checks.items():
        if not check.ok or check.detail:
            print(f"  {name}: {'ok' if check.ok else 'broken'} {check.detail}".rstrip())
    _show_cluster(cluster)
    for row in lonely:
        print(f"  {row.queue}: {row.detail}")
    for row in graves:
        way = row.queue if row.here else f"{row.queue} --store URL"
        print(f"  {row.queue}: {row.detail}; `queuebell queue replay --dry-run {way}` says why")
    for each in troubled:
        where = f" on {each.queue}" if each.queue else ""
        print(plain(f"  {each.listener} {_short(each)}{where}: {each.detail}"))
    _show_listeners(listeners)
    if client.boot is None or cluster.name is not None:
        # Other bridges serve the same queues, and have listeners of their own.
        print(f"these are the listeners of {client.url} alone; --bridge with the address of another one shows its own")
    _show_queues(queues, len(names))
    return 0 if readiness.ready else 1


def _names(client: BridgeClient, listeners: list[ListenerState]) -> list[str]:
    """Name the queues of the service, then those that only have listeners."""
    page = client.read(f"/v1/queues?limit={QUEUES_SHOWN}", QueueNames)[1]
    names = [] if page is None else page.queues
    for row in listeners:
        names += [each.queue for each in row.queues if each.queue not in names]
    return names[:QUEUES_SHOWN]


def _poison_of(name: str) -> list[str]:
    """Name the queue's poison queue, unless it is one itself or cannot have one."""
    if name.endswith(POISON_SUFFIX):
        return []
    try:
        return [poison_reference(name)]
    except BadQueueReference:
        return []


def _queue(client: BridgeClient, name: str) -> QueueState | None:
    return client.read(f"/v1/queues/{quote(name)}", QueueState)[1]


def _findings(client: BridgeClient, wanted: list[str]) -> tuple[list[Unattended], list[Unattended], list[Troubled]]:
    """Return the queues with work and without a session (B14), those with what was buried, and sessions in trouble.

    Also queues that the queue service does not know. A session in trouble as a whole is so for every queue.
    """
    told = client.read("/v1/findings", Findings)[1] or Findings()
    lonely = [row for row in told.unattended if not wanted or row.queue in wanted]
    graves = [row for row in told.buried if not wanted or row.queue in wanted]
    troubled = [row for row in told.sessions if not wanted or row.queue in [None, *wanted]]
    return lonely[:QUEUES_SHOWN], graves[:QUEUES_SHOWN], troubled[:QUEUES_SHOWN]


def _show_cluster(cluster: Cluster) -> None:
    if cluster.name is None:
        return
    others = [
        f"{row.address or row.boot[:INSTANCE_DIGITS]}{' (leaving)' if row.leaving else ''}"
        for row in cluster.members[1:]
    ]
    with_whom = f"with {', '.join(others)}" if others else "nobody else is heard"
    alone = "; acts alone until it hears itself" if cluster.alone and others else ""
    waiting = len(cluster.deferred) + cluster.left_out
    wait = f"{waiting} {'queue waits' if waiting == 1 else 'queues wait'} for another bridge's look"
    print(plain(f"  cluster {cluster.name}: {with_whom}{alone}; {wait}"))
    for each in cluster.refused:
        print(
            plain(f"  cluster {cluster.name}: {each.address or each.boot[:INSTANCE_DIGITS]} is none of it: {each.why}")
        )


def _short(row: ListenerState | Troubled) -> str:
    """Return what tells two sessions of one name apart; plain subscribers have no instance."""
    return (row.instance or "-")[:INSTANCE_DIGITS]


def _show_listeners(rows: list[ListenerState]) -> None:
    print()
    if not rows:
        print("no listeners")
        return
    print_table(
        ["LISTENER", "INSTANCE", "CHANNEL", "QUEUES"],
        [[row.listener, _short(row), row.channel, ", ".join(each.queue for each in row.queues)] for row in rows],
    )
    for row in rows:
        for each in row.queues:
            if isinstance(told := each.processes, Processes):
                print(plain(f"{each.queue}: {row.listener}: {workers(told)}"))


def _counted(state: QueueState) -> str:
    """Say when the messages were counted: a queue elsewhere by its store, when a listener last received from it."""
    if state.depth is None:
        return "not known"
    return "now" if state.depth_age_ms is None else f"{state.depth_age_ms / 1000:.0f} s ago"


def _handled(jobs: Jobs) -> str:
    """Say in words what became of a handler's messages, and how long it takes."""
    words = [f"{count} {name.replace('_', ' ')}" for name, count in jobs.outcomes.items()]
    words += [f"{jobs.in_flight} in flight"] * bool(jobs.in_flight)
    middle, most = quantile(jobs.handling, 0.5), quantile(jobs.handling, 0.95)
    if middle is not None and most is not None:
        words.append(f"half of them within {middle:g} s, 95 % within {most:g} s")
    failed = ", ".join(f"{name} {count}" for name, count in jobs.failures.items())
    return ", ".join(words) + (f"; failed by {failed}" if failed else "")


def _show_queues(queues: list[QueueState], named: int) -> None:
    print()
    if not queues:
        print("no queues")
        return
    rows = []
    for state in queues:
        depth, receives = state.depth, state.receives
        least = "+" if state.depth_at_least else ""
        rows.append(
            [
                state.queue,
                f"{depth.visible}{least}" if depth else UNKNOWN,
                f"{depth.invisible}{least}" if depth else UNKNOWN,
                _counted(state),
                "paused" if state.paused else "dirty" if state.dirty else "clean",
                state.sessions,
                state.triggers,
                sum(state.wakes.values()),
                "-" if state.oldest_ms is None else f"{state.oldest_ms / 1000:.1f} s",
                *((receives.total, receives.empty) if depth else (UNKNOWN, UNKNOWN)),
            ]
        )
    print_table(COLUMNS, rows)
    for state in queues:
        if state.wake_sources:
            found = ", ".join(f"{source} {count}" for source, count in sorted(state.wake_sources.items()))
            print(f"{state.queue}: work was found by {found}")
    for state in queues:
        for handler, jobs in state.jobs.items():
            print(plain(f"{state.queue}: {handler}: {_handled(jobs)}"))
    if named >= QUEUES_SHOWN:
        print(f"the first {QUEUES_SHOWN} queues; name others to see them")
