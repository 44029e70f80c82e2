"""Check a configuration without starting anything, and the health of the bridge if one answers.

Shows the bound and the cost of each configured rule; with --live also whether the brokers, databases and the store of
the configuration can be reached from here. Exit code 0 if all is well or there are only warnings, 1 if the running
bridge has a problem or something cannot be reached, 78 for a wrong configuration, 69 if --bridge was given and none
answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from queuebell.bridge.contract.address import http_addresses
from queuebell.bridge.contract.bounds import OWN_IN_WORDS, RoughCounts, in_words, rounds_in_words
from queuebell.bridge.contract.errors import BusUnavailable, ConfigurationError, NotAllowed, QueuebellError
from queuebell.bridge.contract.settings import LISTENER_TABLE, SCALE_TABLE
from queuebell.bridge.core.settings import Numbers, Tuning
from queuebell.bridge.keda.streams import REPEAT_S
from queuebell.bridge.service.state.answers import (
    Cluster,
    Findings,
    Listeners,
    QueueNames,
    QueueState,
    Readiness,
    RuleNumbers,
)
from queuebell.bridge.service.state.check import (
    Problem,
    among,
    clocks_apart,
    doubtful_grants,
    in_turns,
    judge,
    looked_after,
    paused,
    rough,
    split,
    untold,
)
from queuebell.command.client import BridgeClient, add_client_arguments, client_settings, plain, print_json, trouble
from queuebell.command.progress import Progress
from queuebell.settings import Settings, read_tables

QUEUES_ASKED: Final = 1000
DEADLINE_S: Final = 30.0
"""Seconds for all answers of a bridge."""
NO_KEYS_ADVICE: Final = (
    "no token of this issuer is accepted until then: check its address (jwks), and that it is reached from here; the"
    " bridge asks again with the next token"
)
UNREACHED_BUS: Final = (
    "a bridge here would start and retry until it is there; work that is published there meanwhile is found by a sweep"
)
UNREACHED_STORE: Final = "a bridge here would refuse puts and receives until it is there; its messages are safe"
OK: Final = 200
GONE: Final = 404
_PORT_UNKNOWN: Final = 4222

Answer = TypeVar("Answer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``check``."""
    parser.add_argument(
        "--live",
        action="store_true",
        help="also connect to each broker, database and store of the configuration, as serve would",
    )
    add_client_arguments(parser, "bridge")


def run(args: argparse.Namespace) -> int:
    """Check, and show what was found."""
    settings = client_settings(args)
    _check_configuration(settings)
    _check_tables(args.config)
    reached = _reach(settings) if args.live else []
    rules = Tuning(settings.periods()).each()
    answers = [_ask(where.url) for where in http_addresses(settings.bridge, "bridge")]
    amiss: list[Problem] = []
    listened = {told.url: told.listened for told in answers}
    for told in answers:
        others = {queue for url, queues in listened.items() if url != told.url for queue in queues}
        told.problems = looked_after(told.problems, others if told.on_engine else ())
    gone = {told.url: told.unreachable for told in answers if told.unreachable is not None}
    if len(gone) < len(answers):
        alone = {told.url: told.boot for told in answers if told.boot is not None}
        checks = {told.url: told.checks for told in answers if told.unreachable is None} if len(answers) > 1 else {}
        amiss = among({url: str(why) for url, why in gone.items()}, alone, checks)
    elif args.bridge is not None or not all(isinstance(why, BusUnavailable) for why in gone.values()):
        whys = [*gone.values()]
        refused = next((why.code for why in whys if isinstance(why, NotAllowed)), "")
        raise whys[0] if len(whys) == 1 else BusUnavailable("; ".join(map(str, whys)), refused)
    problems = [*(problem for told in answers for problem in told.problems), *amiss]
    # A warning of several bridges is shown once, with their addresses.
    said: dict[Problem, list[str]] = {}
    for told in answers:
        for warning in told.warnings:
            said.setdefault(warning, []).append(told.url)
    warnings = [*said]
    warnings += split({told.url: told.cluster for told in answers})
    warnings += [*_doubtful_grants(settings, _all_queues(answers)), *_keyless_issuers(settings), *_open_data(settings)]
    if args.json:
        print_json(
            {
                "configuration": {"ok": True, "queues": [_row(match, numbers) for match, numbers in rules]},
                "bridge": _entry(min(answers, key=lambda told: told.unreachable is not None)),
                "bridges": [_entry(told) for told in answers],
                "notices_suspend": _notices_suspend(),
                **({"reached": reached} if args.live else {}),
                "problems": problems,
                "warnings": warnings,
            }
        )
    else:
        _show(rules, answers, amiss, keda=settings.keda is not None)
        if args.live:
            _show_reached(reached)
        for warning in warnings:
            by = f" of {', '.join(said[warning])}" if warning in said and len(answers) > 1 else ""
            print(f"  warning{by}: {plain(warning.subject)}: {plain(warning.what)}")
            print(f"    -> {plain(warning.advice)}")
    return 1 if problems or not all(each.ok for each in reached) else 0


def _reach(settings: Settings) -> list[Reached]:
    """Connect to each broker and store of the configuration."""
    with contextlib.closing(Progress.on(sys.stderr)) as progress:

        def done(number: int, of: int) -> None:
            progress.now("check", f"{number} of {of} answered", share=number / of)

        return asyncio.run(reach(settings, done))


def _show_reached(reached: list[Reached]) -> None:
    print("reached from here:" if reached else "reached from here: no broker, database or store is configured")
    for each in reached:
        if each.ok:
            print(f"  {each.name}: ok, {plain(each.detail)}")
        else:
            trouble(f"  {each.name}: NOT REACHED after {each.ms / 1000:.1f} s: {each.detail}")
            print(f"    -> {UNREACHED_STORE if each.name == STORE else UNREACHED_BUS}")


def _entry(told: _Told) -> dict[str, Any]:
    return {
        "url": told.url,
        "answers": told.unreachable is None,
        "ok": None if told.unreachable is not None else not told.problems,
        "queues": None if told.numbers is None else [_row(each.match, each) for each in told.numbers],
        "rough_counts": told.rough,
    }


def _check_configuration(settings: Settings) -> None:
    """Build what `serve` would start; raises `ConfigurationError` that names the key."""
    from queuebell.assembly import assemble, check_data
    from queuebell.bridge.brokers.embedded.server import EmbeddedNats, find_server

    embedded = EmbeddedNats.from_urls(settings.nats)
    if embedded is not None:
        find_server()
        # Its port is known only once it runs.
        embedded.port = embedded.port or _PORT_UNKNOWN
        settings = msgspec.structs.replace(settings, nats=embedded.resolve(settings.nats))
    check_data(settings)
    assemble(settings, embedded, in_memory=True)


def _check_tables(file: str | None) -> None:
    """Read what `listen` and `scale` would read of the file; raises `ConfigurationError` as they do."""
    from queuebell.command import listen_settings, scale

    source = file or os.environ.get("QUEUEBELL_CONFIG")
    tables = read_tables(source) if source else {}
    if LISTENER_TABLE in tables:
        listener = listen_settings.load(source, environment={})
        listen_settings.retry_of(listener)
        # Only the command line of `listen` names its queues.
        shares = [text for key in listen_settings.SHARES for text in getattr(listener, key)]
        named = [text.partition("=")[0].strip() for text in shares]
        listen_settings.pool_of(listener, dict.fromkeys(named))
    if SCALE_TABLE in tables:
        scale.load(source, environment={}, options={})


def _all_queues(answers: list[_Told]) -> list[str] | None:
    """Return the names of the queues of all bridges; None where some may be missing."""
    queues: dict[str, None] = {}
    for told in answers:
        if told.queues is None:
            return None
        queues.update(dict.fromkeys(told.queues))
    return list(queues)


def _doubtful_grants(settings: Settings, queues: list[str] | None) -> list[Problem]:
    """Judge the access file, if it can be read here and all queues are known."""
    if queues is None:
        return []
    from queuebell.bridge.access import access_file
    from queuebell.bridge.queues.checked import similar_names

    try:
        principals = access_file.read(settings.access_file()).principals
    except ConfigurationError:
        # With auth in this configuration it was refused before.
        return []
    return doubtful_grants(principals, queues, similar_names)


def _open_data(settings: Settings) -> list[Problem]:
    """Warn if other users can read the data directory."""
    from queuebell.bridge.queues.embedded.file import CLOSE, open_to_others

    exposed = open_to_others(pathlib.Path(settings.data))
    advice = f"close it to them: {CLOSE.format(settings.data)}"
    return [Problem("data", settings.data, exposed, advice)] if exposed else []


def _keyless_issuers(settings: Settings) -> list[Problem]:
    """Fetch the keys of issuers with an address; those in files were read with the configuration."""
    if not settings.issuer:
        return []
    from queuebell.bridge.access.tokens import Tokens

    missing = asyncio.run(Tokens(settings.issuer, time.time).missing())
    return [Problem("issuer", name, f"no keys from {why}", NO_KEYS_ADVICE) for name, why in missing.items()]


def _notices_suspend() -> bool:
    from queuebell.bridge.service.clocks import system_clocks

    return system_clocks() is not None


class _Told(msgspec.Struct):
    """The answers of the bridge at one address."""

    url: str
    problems: list[Problem] = []
    warnings: list[Problem] = []
    queues: list[str] | None = None
    """The names of all queues; None where some may be missing."""
    numbers: list[RuleNumbers] | None = None
    unreachable: BusUnavailable | NotAllowed | None = None
    """Why it did not answer."""
    boot: str | None = None
    """Its boot, if it has its own queues."""
    checks: list[str] = []
    listened: list[str] = []
    """Queues of its sessions."""
    on_engine: bool = False
    """Whether its queues are in a shared store."""
    cluster: Cluster = Cluster()
    rough: list[RoughCounts] = []
    """The cost of scalers that cannot count exactly."""


def _ask(url: str) -> _Told:
    """Ask the bridge everything to judge; the result holds the error if none answers."""
    try:
        with BridgeClient(url, DEADLINE_S) as client:
            return _questions(client)
    except (BusUnavailable, NotAllowed) as error:
        return _Told(url, unreachable=error)


def _questions(client: BridgeClient) -> _Told:
    errors: dict[str, int] = {}

    def get(path: str, kind: type[Answer]) -> Answer | None:
        """Return the answer, or None where there is none; an error is noted."""
        status, answer = client.read(path, kind)
        if answer is None:
            errors[path] = status
        return answer

    readiness = client.read("/readyz", Readiness)[1]
    if readiness is None:
        raise client.stranger()
    findings = get("/v1/findings", Findings)
    names: dict[str, None] = {}
    listeners = (get("/v1/listeners", Listeners) or Listeners()).listeners
    for row in listeners:
        names.update((queue.queue, None) for queue in row.queues)
    listened = list(names)
    page = get(f"/v1/queues?limit={QUEUES_ASKED}", QueueNames) or QueueNames()
    names.update((name, None) for name in page.queues)
    whole = not errors and page.next is None
    states: list[QueueState] = []
    asked = list(names)[:QUEUES_ASKED]
    with contextlib.closing(Progress.on(sys.stderr)) as progress:
        for number, name in enumerate(asked):
            progress.now("check", f"{number} of {len(asked)} queues", share=number / len(asked))
            path = f"/v1/queues/{quote(name)}"
            state = get(path, QueueState)
            if state is not None:
                states.append(state)
            elif errors[path] == GONE:
                # Deleted since it was named.
                del errors[path]
    problems = judge(readiness, findings or Findings(), states)
    # An older bridge does not have this route.
    cluster = client.read("/v1/cluster", Cluster)[1] or Cluster()
    turns = in_turns(cluster)
    nats = readiness.checks.get("nats")
    if nats is not None and not nats.ok:
        # Without NATS no member hears another, which is reported already.
        turns = [problem for problem in turns if problem.code not in {"alone", "unheard"}]
    problems += (problem for problem in turns if problem.code == "alone")
    problems += (untold(path, status) for path, status in errors.items())
    return _Told(
        client.url,
        problems,
        [*(problem for problem in turns if problem.code != "alone"), *clocks_apart(*client.clocks), *paused(states)],
        list(names) if whole else None,
        None if findings is None else findings.numbers,
        boot=client.boot if page.queues else None,
        checks=list(readiness.checks),
        listened=listened,
        on_engine=client.boot is None,
        cluster=cluster,
        rough=rough(listeners, (findings.numbers if findings is not None else None) or []),
    )


def _row(match: str, numbers: Numbers) -> dict[str, Any]:
    return {
        "match": match,
        **msgspec.structs.asdict(numbers),
        **msgspec.structs.asdict(numbers.bound()),
        "words": in_words(numbers.bound(), sweeps=numbers.sweep_s > 0),
    }


def _show(rules: list[tuple[str, Numbers]], answers: list[_Told], amiss: list[Problem], *, keda: bool) -> None:
    print("configuration: ok")
    answered = [told for told in answers if told.unreachable is None]
    _show_rules(rules, on_engine=bool(answered) and all(told.on_engine for told in answered))
    if keda:
        print(
            "  KEDA: streams need no counts of own queues; a queue in another store is counted"
            f" {3600 / REPEAT_S:.0f} times an hour for all streams together, and for polls"
        )
    if not _notices_suspend():
        print("  this system has no clock that notices a suspend; after one, messages in other stores wait for a sweep")
    if not answered:
        print(f"bridge: {'; '.join(str(told.unreachable) for told in answers)}; only the configuration was checked")
    for told in answered:
        _show_bridge(rules, told)
    _show_problems(amiss)


def _show_bridge(rules: list[tuple[str, Numbers]], told: _Told) -> None:
    (trouble if told.problems else print)(
        f"bridge at {told.url}: {'something is wrong' if told.problems else 'all is well'}"
    )
    if told.numbers is None:
        print(
            "  it does not report its own settings: those above are of this command's configuration, not the bridge's"
        )
    elif [_numbers(match, numbers) for match, numbers in rules] == [
        _numbers(each.match, each) for each in told.numbers
    ]:
        print("  its settings of the wake protocol are the same")
    else:
        print("  its settings differ from this command's configuration:")
        _show_rules([(plain(each.match), each) for each in told.numbers], on_engine=told.on_engine)
    for each in told.rough:
        print(f"  {plain(each.queue)}: {plain(each.listener)}: {each.in_words()}")
    _show_problems(told.problems)


def _show_problems(problems: list[Problem]) -> None:
    for problem in problems:
        trouble(f"  {problem.subject}: {problem.what}")
        print(f"    -> {plain(problem.advice)}")


def _show_rules(rules: list[tuple[str, Numbers]], *, on_engine: bool) -> None:
    if on_engine:
        print("  the queues are in a store that several bridges may serve; for all of them:")
    else:
        print(f"  own queues (of this bridge's service): {OWN_IN_WORDS}")
    for match, numbers in rules:
        print(f"  {match}: {in_words(numbers.bound(), sweeps=numbers.sweep_s > 0)}")
    usual = rules[0][1].sweep_s
    if usual > 0:
        print(f"  in PostgreSQL, PGMQ and Redis, if the bridge has its address: {rounds_in_words(usual)}")


def _numbers(match: str, numbers: Numbers) -> dict[str, Any]:
    return {**msgspec.structs.asdict(numbers), "match": match}


STORE: Final = "store"
WITHIN_S: Final = 10.0
"""How long one of them may take; all are tried at the same time."""


class Reached(msgspec.Struct, frozen=True):
    """The result for one of them; ``name`` is that of `/readyz`."""

    name: str
    ok: bool
    detail: str
    ms: int


async def reach(settings: Settings, done: Callable[[int, int], object]) -> list[Reached]:
    """Try all at the same time, and call ``done`` with the number finished and the total after each.

    A bus carries a message to its sender, a store lists one queue: nothing is changed. Servers that start with the
    bridge (``embedded``) are left out.
    """
    asked = _asked(settings)
    reached: list[Reached] = []

    async def one(name: str, ask: Callable[[], Awaitable[str]]) -> Reached:
        result = await _reached(name, ask)
        reached.append(result)
        done(len(reached), len(asked))
        return result

    return list(await asyncio.gather(*(one(name, ask) for name, ask in asked.items())))


async def _reached(name: str, ask: Callable[[], Awaitable[str]]) -> Reached:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(WITHIN_S):
            ok, detail = True, await ask()
    except TimeoutError:
        ok, detail = False, f"no answer within {WITHIN_S:g} s"
    except QueuebellError as error:
        ok, detail = False, str(error)
    return Reached(name, ok, detail, round(1000 * (loop.time() - began)))


def _asked(settings: Settings) -> dict[str, Callable[[], Awaitable[str]]]:
    from queuebell.assembly import SERVED
    from queuebell.bridge.brokers.embedded.server import EmbeddedNats

    asked: dict[str, Callable[[], Awaitable[str]]] = {}
    for kind, urls in (("nats", settings.nats), ("mqtt", settings.mqtt), ("postgres", settings.postgres)):
        ask = _database if kind == "postgres" else _broker
        for number, url in enumerate(urls, 1):
            # `/readyz` counts them all, the embedded one too.
            if EmbeddedNats.from_urls([url]) is None:
                asked[kind if number == 1 else f"{kind}-{number}"] = lambda ask=ask, url=url: ask(url, settings.prefix)  # type: ignore[misc]
    if settings.store.partition(":")[0].lower() in SERVED:
        asked[STORE] = lambda: _engine(settings.store)
    return asked


def without_session(url: str) -> str:
    """Return an address that names no MQTT client or session: those are the running bridge's, and would end it."""
    where, mark, query = url.partition("?")
    kept = [each for each in query.split("&") if each.partition("=")[0] not in ("client_id", "session")]
    return where + mark * bool(kept and query) + "&".join(kept)


async def _broker(url: str, prefix: str) -> str:
    from queuebell.bridge.brokers import open_broker
    from queuebell.bridge.brokers.address import take_prefix

    given, own = take_prefix(url)
    broker = open_broker(without_session(given), name="queuebell-check", prefix=prefix if given == url else own)
    try:
        await broker.connect()
        return f"{broker.address}: a message to ourselves took {1000 * await broker.probe():.1f} ms"
    finally:
        await broker.close()


async def _database(url: str, _: str) -> str:
    from queuebell.bridge.brokers.address import take_prefix
    from queuebell.bridge.brokers.postgres.broker import PostgresBroker

    line = PostgresBroker(take_prefix(url)[0])
    try:
        await line.connect()
        return f"{line.address}: a notification to ourselves took {1000 * await line.probe():.1f} ms"
    finally:
        await line.close()


async def _engine(url: str) -> str:
    from queuebell.bridge.queues import open_store

    store = open_store(url)
    try:
        await store.queues(limit=1)
        return f"{store}: it answers"
    finally:
        await store.close()
