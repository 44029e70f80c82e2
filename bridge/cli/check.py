"""Check a configuration without starting anything, and the health of the bridge if one answers.

Says what each configured rule promises and costs. Exit code 0 where all is well, 1 where something is wrong with the
bridge that runs, 78 for a configuration that is wrong, 69 where --bridge was given and none answers.
"""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

import msgspec

from bridge.checking import Problem, judge
from bridge.cli.client import BridgeClient, add_client_arguments, client_settings, print_json
from bridge.config import Settings
from bridge.contract.bounds import in_words
from bridge.contract.errors import BusUnavailable
from bridge.core.settings import Numbers, Tuning

QUEUES_ASKED = 1000
_PORT_UNKNOWN = 4222


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``check``."""
    add_client_arguments(parser, "bridge")


def run(args: argparse.Namespace) -> int:
    """Check, and show what was found."""
    settings = client_settings(args)
    _check_configuration(settings)
    rules = Tuning(settings.periods()).each()
    try:
        problems, unreachable = _ask(settings.bridge), None
    except BusUnavailable as error:
        if args.bridge is not None:
            raise
        problems, unreachable = [], str(error)
    if args.json:
        print_json(
            {
                "configuration": {"ok": True, "queues": [_row(match, numbers) for match, numbers in rules]},
                "bridge": {"url": settings.bridge, "answers": unreachable is None, "ok": not problems},
                "notices_suspend": _notices_suspend(),
                "problems": problems,
            }
        )
    else:
        _show(settings.bridge, rules, problems, unreachable)
    return 1 if problems else 0


def _check_configuration(settings: Settings) -> None:
    """Put together what `serve` would start; raises `ConfigurationError` that names the key."""
    from bridge.assembly import assemble, check_data
    from bridge.embedded_broker import EmbeddedNats, find_server

    embedded = EmbeddedNats.among(settings.nats)
    if embedded is not None:
        find_server()
        # Which free port it gets is known once it runs.
        embedded.port = embedded.port or _PORT_UNKNOWN
        settings = msgspec.structs.replace(settings, nats=embedded.resolve(settings.nats))
    check_data(settings)
    assemble(settings, embedded, in_memory=True)


def _notices_suspend() -> bool:
    from bridge.suspend_clocks import system_clocks

    return system_clocks() is not None


def _ask(url: str) -> list[Problem]:
    with BridgeClient(url) as client:
        _, readiness = client.get("/readyz")
        if not isinstance(readiness, dict) or "ready" not in readiness:
            raise BusUnavailable(f"what answers at {url} is no bridge")
        status, findings = client.get("/v1/findings")
        queues = [state for name in _names(client) if (state := _queue(client, name)) is not None]
    return judge(readiness, findings if status == 200 and isinstance(findings, dict) else {}, queues)


def _names(client: BridgeClient) -> list[str]:
    """Name the queues that somebody listens to, then those of the service."""
    names: dict[str, None] = {}
    _, listeners = client.get("/v1/listeners")
    for row in (listeners or {}).get("listeners", []):
        names.update((queue["queue"], None) for queue in row.get("queues") or [] if isinstance(queue, dict))
    status, page = client.get(f"/v1/queues?limit={QUEUES_ASKED}")
    if status == 200:
        names.update((str(name), None) for name in page.get("queues", []))
    return list(names)[:QUEUES_ASKED]


def _queue(client: BridgeClient, name: str) -> dict[str, Any] | None:
    status, state = client.get(f"/v1/queues/{quote(name)}")
    return state if status == 200 and isinstance(state, dict) else None


def _row(match: str, numbers: Numbers) -> dict[str, Any]:
    return {
        "match": match,
        **msgspec.structs.asdict(numbers),
        **msgspec.structs.asdict(numbers.bound()),
        "words": in_words(numbers.bound(), sweeps=numbers.sweep_s > 0),
    }


def _show(url: str, rules: list[tuple[str, Numbers]], problems: list[Problem], unreachable: str | None) -> None:
    print("configuration: ok")
    print("  own queues (of this bridge's service): milliseconds, and no receive while they are empty")
    for match, numbers in rules:
        print(f"  {match}: {in_words(numbers.bound(), sweeps=numbers.sweep_s > 0)}")
    if not _notices_suspend():
        print("  this system has no clock that shows a suspend; after one, queues elsewhere wait for their sweep")
    if unreachable is not None:
        print(f"bridge: {unreachable}; only the configuration was checked")
        return
    print(f"bridge at {url}: {'something is wrong' if problems else 'all is well'}")
    for problem in problems:
        print(f"  {_plain(problem.subject)}: {_plain(problem.what)}")
        print(f"    -> {_plain(problem.advice)}")


def _plain(text: str) -> str:
    """Write without what could drive a terminal: labels come from strangers."""
    return text if text.isprintable() else ascii(text)[1:-1]
