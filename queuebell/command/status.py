"""Show the state of the bridge, its listeners and its queues.

VISIBLE messages can be received now, INVISIBLE ones later: LEASED by a worker, delayed, or to be retried. DEAD is the
number in the poison queue, COUNTED how old these numbers are. STATE is dirty from a trigger until a receive finds the
queue empty, then clean. TRIGGERS, WAKES, RECEIVES and EMPTY receives count since the bridge started.

Exit code 1 if the bridge is not ready, 69 if none answers. With --watch it repeats until Ctrl-C, which is 0.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import time
from typing import Final, TextIO
from urllib.parse import quote

import msgspec

from queuebell.bridge.contract.errors import BadQueueReference, BusUnavailable
from queuebell.bridge.contract.jobs import BOUNDS_S, Jobs, quantile
from queuebell.bridge.contract.names import POISON_SUFFIX, poison_reference
from queuebell.bridge.contract.partitioning import parse_physical
from queuebell.bridge.contract.wire import Processes
from queuebell.bridge.service.state.answers import (
    Cluster,
    Findings,
    Listeners,
    ListenerState,
    QueueNames,
    QueueState,
    Readiness,
    Rejected,
    Troubled,
    Unattended,
)
from queuebell.bridge.service.state.status import workers
from queuebell.command.client import (
    BridgeClient,
    add_client_arguments,
    client_settings,
    plain,
    print_json,
    print_table,
    trouble,
)
from queuebell.command.options import seconds
from queuebell.command.progress import terminal

QUEUES_SHOWN = 50
INSTANCE_DIGITS = 8
UNKNOWN = "?"
COLUMNS = [
    "QUEUE", "VISIBLE", "INVISIBLE", "LEASED", "DEAD", "COUNTED", "STATE", "SESSIONS", "TRIGGERS", "WAKES", "OLDEST",
    "RECEIVES", "EMPTY",
]  # fmt: skip


SPARE = ["EMPTY", "RECEIVES", "WAKES", "TRIGGERS", "COUNTED", "INVISIBLE", "SESSIONS"]
"""The columns that a narrow terminal leaves out, in this order."""
WATCH_S: Final = 2.0
_AGES: Final = re.compile(r"\d+(\.\d+)? s\b|\"(oldest_ms|depth_age_ms|first_ms|last_ms|\w+_s)\":[^,}\]]*")
"""What changes although nothing happens."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``status``."""
    parser.add_argument("queues", nargs="*", metavar="ACCOUNT/QUEUE", help="only these (default: the first 50)")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_pause_or_queue,
        const=WATCH_S,
        metavar="SECONDS",
        help=f"repeat every so many seconds, 0.5 to 3600 (default {WATCH_S:g}): in place on a terminal, elsewhere only"
        " after a change; it counts queues in their stores, which queuebell top does not",
    )
    add_client_arguments(parser, "bridge")


def run(args: argparse.Namespace) -> int:
    """Show the state once, or until Ctrl-C."""
    wanted = [parse_physical(queue) for queue in args.queues]
    bridge, pause = client_settings(args).bridge, args.watch
    if pause is None:
        return _show(bridge, wanted, as_json=args.json)
    if isinstance(pause, str):
        wanted, pause = [*wanted, parse_physical(pause)], WATCH_S
    with contextlib.suppress(KeyboardInterrupt):
        _watch(bridge, wanted, pause, as_json=args.json)
    return 0


def _pause_or_queue(text: str) -> float | str:
    """Read what follows --watch: seconds, or the first queue."""
    return text if "/" in text else seconds(0.5, 3600)(text)


class _Block(io.StringIO):
    """Printed text that is kept until it is known whether to show it; as wide and coloured as the real output."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out

    def isatty(self) -> bool:
        return self._out.isatty()


def _watch(bridge: str, wanted: list[str], pause_s: float, *, as_json: bool) -> None:
    """Show the state repeatedly, and wait for a bridge that does not answer."""
    in_place = terminal(sys.stdout) and not as_json
    if in_place:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        live = Live(console=Console(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    before: str | None = None
    with live if in_place else contextlib.nullcontext():
        if in_place:
            live.console.show_cursor()  # else whatever ends or stops us by a signal would leave none
        while True:
            block = _Block(sys.stdout)
            with contextlib.redirect_stdout(block):
                try:
                    _show(bridge, wanted, as_json=as_json)
                except BusUnavailable as error:
                    if before is None:
                        raise
                    print_json({"error": str(error)}) if as_json else trouble(f"{error}; trying again")
            text = block.getvalue()
            known = _AGES.sub("", text)
            if in_place:
                live.update(Text.from_ansi(text), refresh=True)
            elif known != before:
                sys.stdout.write(text if before is None or as_json else f"\n{text}")
                sys.stdout.flush()
            before = known
            time.sleep(pause_s)


def _show(bridge: str, wanted: list[str], *, as_json: bool) -> int:
    with BridgeClient(bridge) as client:
        # An answer of /readyz says the same whatever its status.
        readiness = client.read("/readyz", Readiness)[1]
        if readiness is None:
            raise client.stranger()
        listeners = (client.read("/v1/listeners", Listeners)[1] or Listeners()).listeners
        lonely, graves, troubled, rejected = _findings(client, [])
        names = wanted or _names(client, listeners, [row.queue for row in [*lonely, *graves]])
        beside = [poison for name in names for poison in _poison_of(name) if poison not in names]
        queues = [state for name in [*names, *beside] if (state := _queue(client, name)) is not None]
        unknown = [name for name in wanted if name not in {state.queue for state in queues}]
        if wanted:
            lonely, graves, troubled, rejected = _findings(client, [*wanted, *beside])
        cluster = client.read("/v1/cluster", Cluster)[1] or Cluster()
    if as_json:
        about = {"url": client.url, **msgspec.structs.asdict(readiness), "gone": client.gone}
        told: dict[str, object] = {"unattended": lonely, "buried": graves, "troubled": troubled, "rejected": rejected}
        told["unknown"] = unknown
        if cluster.name is not None:
            told["cluster"] = cluster
        print_json({"bridge": about, "listeners": listeners, "queues": queues, **told})
        return 0 if readiness.ready else 1
    (print if readiness.ready else trouble)(f"bridge at {client.url}: {'ready' if readiness.ready else 'NOT READY'}")
    for gone in client.gone:
        trouble(f"  {gone}")
    for name, check in readiness.checks.items():
        if not check.ok or check.detail:
            line = f"  {name}: {'ok' if check.ok else 'broken'} {check.detail}".rstrip()
            (print if check.ok else trouble)(line)
    _show_cluster(cluster)
    for row in lonely:
        trouble(f"  {row.queue}: {row.detail}")
    for row in graves:
        way = row.queue if row.here else f"{row.queue} --store URL"
        other = (
            "" if row.here else " (on NATS and SQS: `queuebell queue get --json --keep`, which counts as an attempt)"
        )
        print(f"  {row.queue}: {row.detail}; see why: queuebell queue replay --dry-run {way}{other}")
    for each in troubled:
        where = f" on {each.queue}" if each.queue else ""
        trouble(f"  {each.listener} {_short(each)}{where}: {each.detail}")
    for refused in rejected:
        trouble(f"  {f'{refused.queue}: ' if refused.queue else ''}{refused.detail}")
    _show_listeners(listeners)
    if client.boot is None or cluster.name is not None:
        # Other bridges serve the same queues, and have listeners of their own.
        print(f"these are the listeners of {client.url} only; --bridge URL shows those of another bridge")
    _show_queues(queues, len(names))
    for name in unknown:
        trouble(f"{name}: there is no such queue: the bridge saw no message, trigger or worker of it")
    return 0 if readiness.ready else 1


def _names(client: BridgeClient, listeners: list[ListenerState], found: list[str]) -> list[str]:
    """Name the queues of the service, then those that only have listeners or findings."""
    page = client.read(f"/v1/queues?limit={QUEUES_SHOWN}", QueueNames)[1]
    names = [] if page is None else page.queues
    for row in listeners:
        names += [each.queue for each in row.queues if each.queue not in names]
    names += [name for name in found if name not in names]
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


def _findings(
    client: BridgeClient, wanted: list[str]
) -> tuple[list[Unattended], list[Unattended], list[Troubled], list[Rejected]]:
    """Return queues with work and no session (B14), those with dead letters, sessions in trouble, rejected workers.

    Also queues that the queue service does not know. A session in trouble as a whole is so for every queue.
    """
    told = client.read("/v1/findings", Findings)[1] or Findings()
    lonely = [row for row in told.unattended if not wanted or row.queue in wanted]
    graves = [row for row in told.buried if not wanted or row.queue in wanted]
    troubled = [row for row in told.sessions if not wanted or row.queue in [None, *wanted]]
    rejected = [row for row in told.rejected if not wanted or row.queue in ["", *wanted]]
    return lonely[:QUEUES_SHOWN], graves[:QUEUES_SHOWN], troubled[:QUEUES_SHOWN], rejected[:QUEUES_SHOWN]


def _show_cluster(cluster: Cluster) -> None:
    if cluster.name is None:
        return
    others = [
        f"{row.address or row.boot[:INSTANCE_DIGITS]}{' (leaving)' if row.leaving else ''}"
        for row in cluster.members[1:]
    ]
    with_whom = f"with {', '.join(others)}" if others else "no other member is known"
    alone = "; acts alone until it receives its own messages" if cluster.alone and others else ""
    waiting = len(cluster.deferred) + cluster.left_out
    wait = f"{waiting} {'queue waits' if waiting == 1 else 'queues wait'} for another bridge's check"
    print(plain(f"  cluster {cluster.name}: {with_whom}{alone}; {wait}"))
    for each in cluster.refused:
        print(
            plain(
                f"  cluster {cluster.name}: {each.address or each.boot[:INSTANCE_DIGITS]} is not a member: {each.why}"
            )
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


def _told(state: QueueState, name: str, number: int | None) -> str:
    """Return a number, ``?`` for one whose reason stands below the table, ``-`` for one that cannot exist."""
    if number is not None:
        return str(number)
    return UNKNOWN if name in state.untold else "-"


def _oldest(state: QueueState) -> str:
    if state.oldest_ms is not None:
        return f"{state.oldest_ms / 1000:.1f} s"
    waits = state.depth is None or state.depth.visible > 0
    return UNKNOWN if waits and "oldest_ms" in state.untold else "-"


def _why_untold(queues: list[QueueState]) -> list[str]:
    """Return the reason for each ``?`` of the table, once."""
    reasons: dict[str, list[str]] = {}
    for state in queues:
        shown = {"depth": state.depth, "leased": state.leased, "buried": state.buried, "oldest_ms": state.oldest_ms}
        for name, number in shown.items():
            if number is None and name in state.untold and (name != "oldest_ms" or _oldest(state) == UNKNOWN):
                reasons.setdefault(f"{_NAMES[name]} not known: {state.untold[name]}", []).append(state.queue)
    return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]


_NAMES = {"depth": "depth", "leased": "leased", "buried": "buried", "oldest_ms": "age of the oldest message"}


def _counted(state: QueueState) -> str:
    """Say when the messages were counted: a queue elsewhere by its store, when a listener last received from it."""
    if state.depth is None:
        return "not known"
    return "now" if state.depth_age_ms is None else f"{state.depth_age_ms / 1000:.0f} s ago"


def _handled(jobs: Jobs) -> str:
    """Return a handler's outcomes and durations as text."""
    words = [f"{count} {name.replace('_', ' ')}" for name, count in jobs.outcomes.items()]
    words += [f"{jobs.in_flight} in flight"] * bool(jobs.in_flight)
    middle, most = quantile(jobs.handling, 0.5), quantile(jobs.handling, 0.95)
    if middle is not None and most is not None:
        words.append(f"half took at most {_seconds(middle)}, 95 % at most {_seconds(most)}")
    failed = ", ".join(f"{name} {count}" for name, count in jobs.failures.items())
    return ", ".join(words) + (f"; failed by {failed}" if failed else "")


def _seconds(bound: float) -> str:
    return f"{bound:g} s" if bound <= BOUNDS_S[-1] else f"more than {BOUNDS_S[-1]:g} s"


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
                _told(state, "leased", state.leased),
                _told(state, "buried", state.buried),
                _counted(state),
                "paused" if state.paused else "dirty" if state.dirty else "clean",
                state.sessions,
                state.triggers,
                sum(state.wakes.values()),
                _oldest(state),
                *((receives.total, receives.empty) if depth else (UNKNOWN, UNKNOWN)),
            ]
        )
    print_table(COLUMNS, rows, spare=SPARE)
    for line in _why_untold(queues):
        print(plain(line))
    for state in queues:
        if state.wake_sources:
            found = ", ".join(f"{source} {count}" for source, count in sorted(state.wake_sources.items()))
            print(f"{state.queue}: receives that found work, by their reason: {found}")
    for state in queues:
        for handler, jobs in state.jobs.items():
            print(plain(f"{state.queue}: {handler}: {_handled(jobs)}"))
    if named >= QUEUES_SHOWN:
        print(f"only the first {QUEUES_SHOWN} queues are shown; name others to see them")
