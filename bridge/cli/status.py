"""Show how the bridge, its listeners and its queues stand.

Exit code 1 where the bridge is not ready, 69 where none answers.
"""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from bridge.cli.client import BridgeClient, add_client_arguments, client_settings, plain, print_json, print_table
from bridge.contract.errors import BusUnavailable
from bridge.contract.partitioning import parse_physical

QUEUES_SHOWN = 50
INSTANCE_DIGITS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``status``."""
    parser.add_argument("queues", nargs="*", metavar="ACCOUNT/QUEUE", help="only these (default: the first 50)")
    add_client_arguments(parser, "bridge")


def run(args: argparse.Namespace) -> int:
    """Ask and show."""
    wanted = [parse_physical(queue) for queue in args.queues]
    url = client_settings(args).bridge
    with BridgeClient(url) as client:
        _, readiness = client.get("/readyz")
        if not isinstance(readiness, dict):
            raise BusUnavailable(f"what answers at {client.url} is no bridge")
        _, listeners = client.get("/v1/listeners")
        names = wanted or _names(client, listeners)
        queues = [state for name in names if (state := _queue(client, name)) is not None]
        lonely, troubled = _findings(client, wanted)
    ready = bool(readiness.get("ready"))
    if args.json:
        state = {"url": url, **readiness}
        told = {"unattended": lonely, "troubled": troubled}
        print_json({"bridge": state, "listeners": _rows(listeners), "queues": queues, **told})
        return 0 if ready else 1
    print(f"bridge at {url}: {'ready' if ready else 'NOT READY'}")
    for name, check in readiness.get("checks", {}).items():
        if not check.get("ok") or check.get("detail"):
            print(f"  {name}: {'ok' if check.get('ok') else 'broken'} {check.get('detail') or ''}".rstrip())
    for row in lonely:
        print(f"  {row.get('queue')}: {row.get('detail')}")
    for row in troubled:
        where = f" on {row['queue']}" if row.get("queue") else ""
        print(plain(f"  {row.get('listener')} {_short(row)}{where}: {row.get('detail')}"))
    _show_listeners(_rows(listeners))
    _show_queues(queues, len(names))
    return 0 if ready else 1


def _rows(listeners: Any) -> list[dict[str, Any]]:
    rows = listeners.get("listeners", []) if isinstance(listeners, dict) else listeners
    return [row for row in rows or [] if isinstance(row, dict)]


def _names(client: BridgeClient, listeners: Any) -> list[str]:
    """Name the queues of the service, then those that only have listeners."""
    status, page = client.get(f"/v1/queues?limit={QUEUES_SHOWN}")
    names = [str(name) for name in page.get("queues", [])] if status == 200 else []
    for row in _rows(listeners):
        names += [name for name in _queues_of(row) if name not in names]
    return names[:QUEUES_SHOWN]


def _queues_of(row: dict[str, Any]) -> list[str]:
    queues = row.get("queues") or []
    return [queue["queue"] if isinstance(queue, dict) else str(queue) for queue in queues]


def _queue(client: BridgeClient, name: str) -> dict[str, Any] | None:
    status, state = client.get(f"/v1/queues/{quote(name)}")
    return state if status == 200 and isinstance(state, dict) else None


def _findings(client: BridgeClient, wanted: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the queues with work and without a session (B14), and the sessions in trouble.

    Also queues that the queue service does not know. A session in trouble as a whole is so for every queue.
    """
    status, findings = client.get("/v1/findings")
    told = findings if status == 200 and isinstance(findings, dict) else {}
    lonely = [row for row in told.get("unattended") or [] if not wanted or row.get("queue") in wanted]
    troubled = [row for row in told.get("sessions") or [] if not wanted or row.get("queue") in [None, *wanted]]
    return lonely[:QUEUES_SHOWN], troubled[:QUEUES_SHOWN]


def _short(row: dict[str, Any]) -> str:
    """Return what tells two sessions of one name apart; plain subscribers have no instance."""
    return str(row.get("instance") or "-")[:INSTANCE_DIGITS]


def _show_listeners(rows: list[dict[str, Any]]) -> None:
    print()
    if not rows:
        print("no listeners")
        return
    print_table(
        ["LISTENER", "INSTANCE", "CHANNEL", "QUEUES"],
        [[row.get("listener"), _short(row), row.get("channel"), ", ".join(_queues_of(row))] for row in rows],
    )


def _show_queues(queues: list[dict[str, Any]], named: int) -> None:
    print()
    if not queues:
        print("no queues")
        return
    rows = []
    for state in queues:
        depth = state.get("depth") or {}
        # Receives are counted by the bridge's own service; of a queue elsewhere none is known, which is not zero.
        receives = (state.get("receives") or {}) if depth else {}
        rows.append(
            [
                state.get("queue"),
                depth.get("visible"),
                depth.get("invisible"),
                "paused" if state.get("paused") else "dirty" if state.get("dirty") else "clean",
                state.get("sessions", 0),
                state.get("triggers", 0),
                sum((state.get("wakes") or {}).values()),
                receives.get("total"),
                receives.get("empty"),
            ]
        )
    print_table(["QUEUE", "VISIBLE", "INVISIBLE", "STATE", "SESSIONS", "TRIGGERS", "WAKES", "RECEIVES", "EMPTY"], rows)
    for state in queues:
        if sources := state.get("wake_sources"):
            found = ", ".join(f"{source} {count}" for source, count in sorted(sources.items()))
            print(f"{state.get('queue')}: work was found by {found}")
    if named >= QUEUES_SHOWN:
        print(f"the first {QUEUES_SHOWN} queues; name others to see them")
