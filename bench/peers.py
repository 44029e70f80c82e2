"""Queuebell beside other systems that run tasks: an idle put to its handler, what idleness asks, and lines to write.

The others want other versions than ours of a client, and have an environment of their own (`make peers`). Each is its
program in `bench.programs`, run by the command of its own documentation with the settings it has by default.
"""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import tokenize
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from bench.figures import Report, percentile
from bench.servers import database, jetstream, postgres, programs, redis
from bench.sizes import Scale
from bench.stage import ROOT, Child, Stage
from bench.stages import FLUSH, stages

PEERS: Final = ROOT / ".venv-peers" / "bin"
PROGRAMS: Final = Path(__file__).with_name("programs")
SETTLE_S: Final = 3.0
"""What a worker does when it begins is over by then."""
WARM_UP: Final = 1
READY_S: Final = 30.0
CHECKS_PER_PERIOD: Final = 600
LOOK_S: Final = 0.05

BRIDGE, FOLDER, REDIS, NATS, SYNCED, POSTGRES = "bridge", "folder", "redis", "nats", "synced nats", "postgres"
COUNTED: Final = {
    BRIDGE: "receives",
    FOLDER: "receives",
    REDIS: "commands of Redis",
    NATS: "messages to NATS",
    SYNCED: "messages to NATS",
    POSTGRES: "statements of PostgreSQL",
}
"""The kinds of servers, and what they count of an idle worker."""


class System(NamedTuple):
    """One that is measured."""

    label: str
    program: str
    """Its file in bench/programs."""
    server: str
    worker: tuple[str, ...] = ()
    """The command of its worker; none where the producer is the worker."""
    setup: tuple[str, ...] = ()
    """The command that makes its tables; ``{server}`` is the address."""
    rival: bool = False


OURS, ON_POSTGRES, WITHIN, TASKIQ_SYNCED, PGQUEUER, HOP = "ours", "postgres", "within", "synced", "pgqueuer", "hop"
_TASKIQ: Final = ("taskiq", "worker", "bench.programs.taskiq_jetstream:broker")
_PROCRASTINATE: Final = ("procrastinate", "--app=bench.programs.procrastinate_postgres.app")
SYSTEMS: Final = {
    OURS: System("Queuebell", "queuebell_embedded", BRIDGE, ("python", "-m", "bench.programs.queuebell_embedded")),
    ON_POSTGRES: System(
        "Queuebell on PostgreSQL",
        "queuebell_postgres",
        POSTGRES,
        ("python", "-m", "bench.programs.queuebell_postgres"),
        ("queuebell", "queue", "init", "{server}", "--notify"),
    ),
    WITHIN: System("Queuebell, all in one process", "queuebell_within", FOLDER),
    "celery": System(
        "Celery with Redis",
        "celery_redis",
        REDIS,
        ("celery", "-A", "bench.programs.celery_redis", "worker"),
        rival=True,
    ),
    "taskiq": System("taskiq with JetStream", "taskiq_jetstream", NATS, _TASKIQ, rival=True),
    TASKIQ_SYNCED: System("taskiq with JetStream, `sync_interval: always`", "taskiq_jetstream", SYNCED, _TASKIQ),
    "arq": System("arq with Redis", "arq_redis", REDIS, ("arq", "bench.programs.arq_redis.WorkerSettings"), rival=True),
    PGQUEUER: System(
        "PgQueuer",
        "pgqueuer_postgres",
        POSTGRES,
        ("python", "-m", "bench.programs.pgqueuer_postgres"),
        ("pgq", "install"),
        rival=True,
    ),
    "procrastinate": System(
        "Procrastinate",
        "procrastinate_postgres",
        POSTGRES,
        (*_PROCRASTINATE, "worker"),
        (*_PROCRASTINATE, "schema", "--apply"),
        rival=True,
    ),
    HOP: System("bare NATS, which keeps nothing", "nats_bare", NATS, ("python", "-m", "bench.programs.nats_bare")),
}


Count = Callable[[], Awaitable[int]]
"""Asks a server how much it was asked so far."""


class Side:
    """One system that runs, and what was measured of it."""

    def __init__(self, name: str, producer: Child, worker: Child, samples: Path, count: Count) -> None:
        self.name = name
        self.count = count
        self.taken: list[float] = []
        """Milliseconds from before the put to the start of its handler."""
        self.answered: list[float] = []
        """Milliseconds that the put took its caller."""
        self._producer = producer
        self._worker = worker
        self._samples = samples
        self._read = 0

    async def round(self, count: int, pause_s: float) -> list[float]:
        """Put so many, and return what they took; the first few are left out."""
        answered = await self._producer.ask("put", count=count + WARM_UP, pause_s=pause_s)
        self.answered += answered[WARM_UP:]
        wanted = self._read + count + WARM_UP
        # Nothing is looked at while a put is under way: the machine is to be as idle as it is said to be.
        for _ in range(CHECKS_PER_PERIOD):
            if len(lines := self._lines()) >= wanted:
                break
            await asyncio.sleep(LOOK_S)
        else:
            raise RuntimeError(f"{self.name}: {wanted - len(lines)} tasks did not come\n{self._worker.words()}")
        found = [int(line) / 1e6 for line in lines[self._read + WARM_UP :]]
        self._read = len(lines)
        self.taken += found
        return found

    def _lines(self) -> list[str]:
        return self._samples.read_text("ascii").splitlines() if self._samples.exists() else []


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Start all, put to each in turns, leave all alone together, and count what their programs are."""
    if not (PEERS / "celery").exists():
        raise RuntimeError("the peers have an environment of their own, and it is not there: run `make peers`")
    programs()  # before minutes have passed
    report = Report("Beside Celery, taskiq, arq, PgQueuer and Procrastinate")
    sides = await _sides(stage)
    say(f"{len(sides)} systems are up")
    for turn in range(scale.peers_rounds):
        for side in (*sides[turn % len(sides) :], *sides[: turn % len(sides)]):
            found = await side.round(scale.peers_samples, scale.peers_pause_s)
            p50, p99 = (percentile(found, share) for share in (0.5, 0.99))
            say(f"round {turn + 1}: {SYSTEMS[side.name].label}: p50 {p50:.2f}, p99 {p99:.2f} ms")
    spans = await stages(stage, scale.peers_samples, scale.peers_pause_s)
    await asyncio.sleep(min(SETTLE_S, scale.peers_idle_s))
    before = [await side.count() for side in sides]
    say(f"all are left alone for {scale.peers_idle_s:g} s")
    await asyncio.sleep(scale.peers_idle_s)
    idle = {side.name: await side.count() - count for side, count in zip(sides, before, strict=True)}
    tell(report, {side.name: (side.taken, side.answered) for side in sides}, idle, spans)
    report.notes += [*notes(scale, len(sides[0].taken)), await asyncio.to_thread(_versions)]
    return report


def tell(
    report: Report,
    waits: dict[str, tuple[list[float], list[float]]],
    idle: dict[str, int],
    spans: list[tuple[str, float]],
) -> None:
    """Write the figures down: of each system what its handlers waited and its puts took, and what it asked for idle."""
    for share in (0.5, 0.99):
        found = {name: percentile(taken, share) for name, (taken, _) in waits.items()}
        label = f"p{share * 100:.0f}, ms"
        best = min((name for name in SYSTEMS if SYSTEMS[name].rival), key=found.__getitem__)
        report.at_most(f"{label}: Queuebell, below every other ({SYSTEMS[best].label})", found[OURS], found[best])
        synced = SYSTEMS[TASKIQ_SYNCED].label
        report.at_most(f"{label}: Queuebell, below {synced}", found[OURS], found[TASKIQ_SYNCED])
        report.at_most(f"{label}: Queuebell on PostgreSQL, below PgQueuer", found[ON_POSTGRES], found[PGQUEUER])
    for name, system in SYSTEMS.items():
        taken, answered = waits[name]
        three = f"{percentile(taken, 0.5):.2f} / {percentile(taken, 0.99):.2f} / {max(taken):.2f}"
        report.tell(
            f"{system.label}: p50 / p99 / max; the put itself, p50, ms", f"{three}; {percentile(answered, 0.5):.2f}"
        )
    # Whoever stores before he wakes does both, one after the other.
    least = percentile(waits[HOP][0], 0.5) + dict(spans).get(FLUSH, 0.0)
    report.tell("bare NATS, and Queuebell's commit with its flush: the sum of both p50, ms", f"{least:.2f}")
    for name, system in SYSTEMS.items():
        if name not in (WITHIN, HOP):
            report.tell(f"{system.label}: {COUNTED[system.server]} while idle", f"{idle[name]:,}")
    for name, system in SYSTEMS.items():
        if name not in (TASKIQ_SYNCED, HOP):
            program = (PROGRAMS / f"{system.program}.py").read_text("utf-8")
            report.tell(f"{system.label}: lines of the program", str(lines_of(program)))
    for what, span in spans:
        report.tell(f"Queuebell, of its p50, ms: {what}", f"{span:.2f}")


def notes(scale: Scale, puts: int) -> list[str]:
    """Say how it was measured."""
    how = (
        f"{puts} puts each, one every {scale.peers_pause_s:g} s (a fifth more or less, so that no poll falls in step), "
        f"in {scale.peers_rounds} rounds of each in turns; stamped just before the put is called and first thing in "
        "the handler. Producer, server and worker are processes of their own, except where all is in one, and all "
        "workers stay connected while another has its turn. Each has the settings of its own first page; PgQueuer its "
        "psycopg driver, and taskiq's worker runs on uvloop, which it takes where it is installed."
    )
    kept = (
        "What was put is on the disk at Queuebell before its worker is woken (`synchronous=FULL`), and at PostgreSQL "
        "(`fsync=on`, `synchronous_commit=on`). Redis writes a snapshot after an hour, or minutes where much changed; "
        "JetStream keeps a file that it syncs every two minutes: a loss of power may take what these two have "
        "answered. With `sync_interval: always` JetStream syncs as the others do."
    )
    idle = (
        f"Idle: all were left alone at once for {scale.peers_idle_s / 60:.3g} minutes. Counted by the servers: "
        "commands of Redis (`INFO commandstats`), statements of PostgreSQL (`pg_stat_statements`, a database each), "
        "messages that clients sent to NATS (`in_msgs`), receives at our bridge. Heartbeats over a socket that is "
        "open anyway are in none of these. Lines: those of its file in bench/programs that are no comment, docstring "
        "or blank; two of each are the bench's."
    )
    spans = (
        f"The stages of Queuebell's p50 were taken from {scale.peers_samples} further puts, with clocks in all three "
        "processes (bench/traced.py), which cost a little themselves. After half a second of quiet everything is "
        "cold: the processor, its caches, the disk."
    )
    return [how, kept, idle, spans]


def _versions() -> str:
    names = (
        "celery",
        "redis",
        "taskiq",
        "taskiq-nats",
        "arq",
        "pgqueuer",
        "procrastinate",
        "psycopg",
        "nats-py",
        "uvloop",
    )
    ask = f"from importlib.metadata import version; print(', '.join(f'{{n}} {{version(n)}}' for n in {names}))"
    told = [[str(PEERS / "python"), "-c", ask], *([program, "--version"] for program in programs())]
    said = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for command in told]
    # What Redis says of its build is of no use here.
    return f"Versions: {'; '.join(text.partition(' sha=')[0] for text in said)}."


def lines_of(source: str) -> int:
    """Count the lines of a program that hold code: no blank ones, no comments, no docstrings."""
    held: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            continue
        if token.type not in (tokenize.NEWLINE, tokenize.ENDMARKER):
            statement.append(token)
            continue
        # A statement that is nothing but a text documents.
        if any(part.type != tokenize.STRING for part in statement):
            held.update(line for part in statement for line in range(part.start[0], part.end[0] + 1))
        statement = []
    return len(held)


async def _sides(stage: Stage) -> list[Side]:
    cluster = await postgres(stage, "cluster")
    sides = [await _side(stage, name, system, cluster) for name, system in SYSTEMS.items()]
    await asyncio.sleep(SETTLE_S)
    return sides


async def _side(stage: Stage, name: str, system: System, cluster: str) -> Side:
    server, count = await _server(stage, name, system.server, cluster)
    samples = stage.folder / f"{name}.samples"
    environment = {"SERVER": server, "SAMPLES": str(samples)}
    if system.server == POSTGRES:
        # What `pgq install` looks at.
        where = urlsplit(server)
        environment |= {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(where.port),
            "PGUSER": "postgres",
            "PGDATABASE": where.path[1:],
        }
    folder = PEERS if system.rival or name == TASKIQ_SYNCED else Path(sys.executable).parent
    if system.setup:
        setup = [str(folder / system.setup[0]), *(part.format(server=server) for part in system.setup[1:])]
        done = await stage.program(f"set-up of {name}", setup, **environment)
        if await done.process.wait():
            raise RuntimeError(f"{' '.join(setup)}\n{done.words()}")
    if name == ON_POSTGRES:
        _, environment["BRIDGE"] = await stage.bridge(None, "--postgres", server)
    produce = [str(folder / "python"), "-m", "bench.programs.producer", system.program]
    worker = None
    if system.worker:
        work = [str(folder / system.worker[0]), *system.worker[1:]]
        worker = await stage.program(f"worker of {name}", work, **environment)
    producer = await stage.program(f"producer of {name}", produce, asked=True, **environment)
    await producer.line(READY_S)
    return Side(name, producer, worker or producer, samples, count)


async def _server(stage: Stage, name: str, kind: str, cluster: str) -> tuple[str, Count]:
    if kind == BRIDGE:
        _, server = await stage.bridge()
        return server, _receives(f"{server}/v1/queues/bench/tasks")
    if kind == POSTGRES:
        return await database(cluster, f"bench_{name}"), _statements(cluster, f"bench_{name}")
    if kind == REDIS:
        server = await redis(stage, name)
        return server, _commands(server)
    if kind == FOLDER:
        return str(stage.data(name)), _nothing
    server, monitoring = await jetstream(stage, name, always=kind == SYNCED)
    return server, _messages(monitoring)


async def _nothing() -> int:
    return 0


def _receives(url: str) -> Count:
    async def count() -> int:
        return int((await _json(url))["receives"]["total"])

    return count


def _messages(monitoring: str) -> Count:
    async def count() -> int:
        return int((await _json(f"{monitoring}/varz"))["in_msgs"])

    return count


def _commands(server: str) -> Count:
    from redis import Redis

    # One connection for the whole run: what it said to connect is in both counts, what it asks is left out.
    client = Redis.from_url(server)

    async def count() -> int:
        told = client.info("commandstats")
        return sum(told[key]["calls"] for key in told if key != "cmdstat_info")

    return count


def _statements(cluster: str, name: str) -> Count:
    async def count() -> int:
        import asyncpg  # type: ignore[import-untyped]

        # Asked of another database, so that the question is not counted.
        connection = await asyncpg.connect(f"{cluster}/postgres")
        try:
            return int(
                await connection.fetchval(
                    "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid"
                    " WHERE d.datname = $1",
                    name,
                )
            )
        finally:
            await connection.close()

    return count


async def _json(url: str) -> Any:
    def get() -> Any:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)

    return await asyncio.to_thread(get)
