"""Real processes of a test: bridges, workers, producers; all are gone when the test is, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from queuebell.bridge.brokers.credential import FILE_VARIABLE
from queuebell.bridge.brokers.embedded import die_with_parent
from tests.support.access import written

ROOT = Path(__file__).resolve().parent.parent.parent
READY = "queuebell ready on "


def placed(name: str) -> Path:
    """Return the path of a file or folder of the checkout; an sdist has bridge/ and listeners/ below queuebell/."""
    path = ROOT / name
    return path if path.exists() else ROOT / "queuebell" / name


PATIENCE_S = 300.0
GLANCE_S = 0.02
WORKER, PRODUCER, SCALER, OURSELVES = "worker", "producer", "scaler", "ourselves"
GRANTS = {
    # Where its store is not the bridge's, a worker that buries rings the poison queue.
    WORKER: {"take": ["*"], "ring": ["*"]},
    PRODUCER: {"put": ["*"], "ring": ["*"]},
    # Its workers inherit its key.
    SCALER: {"take": ["*"], "ring": ["*"], "look": ["*"]},
    OURSELVES: {verb: ["*"] for verb in ("ring", "put", "look", "manage", "operate")},
}
# Each worker of pytest-xdist has ports of its own: two that draw from one range meet once in some twenty runs.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# Not of the generator that a test may have seeded: its neighbours would draw the same.
_PORTS = iter(random.SystemRandom().sample(range(16_384 + _WORKER, 32_768, _WORKERS), 16_384 // _WORKERS))


def environment(**more: str) -> dict[str, str]:
    """Return our own environment without anybody's settings of Queuebell, with the checkout importable."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("QUEUEBELL_")}
    path = os.pathsep.join(part for part in (str(ROOT), kept.get("PYTHONPATH", "")) if part)
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


def lives(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def free_port() -> int:
    """Return a port of loopback that nobody has, another each time, below those that a system gives out by itself.

    One of those may be a connection's by the time it is wanted. And who connects again and again to one where nobody
    listens is given that very port one day, and is connected to itself.
    """
    for port in _PORTS:
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


async def until(holds: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Wait until ``holds()`` (plain or a coroutine) is true, and return what it gave; fails with ``what``."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                found = holds()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(GLANCE_S)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s: {what}") from None


class Program:
    """One process with its own process group; its lines of standard output are kept and can be waited for."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: Path) -> None:
        self.name = name
        self.process = process
        self.lines: list[str] = []
        self._errors = errors
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name=f"read {name}")

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        return self._errors.read_text("utf-8", "replace")

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        return self.process.returncode

    async def line(self, *words: str, since: int = 0, within_s: float = PATIENCE_S) -> str:
        """Wait for a line of output, from number ``since`` on, that holds all ``words``."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    for line in self.lines[since:]:
                        if all(word in line for word in words):
                            return line
                    assert not self._reading.done(), f"{self.name} ended ({self.code}): {self.errors[-3000:]}"
                    self._news.clear()
                    since = len(self.lines)
                    await self._news.wait()
        except TimeoutError:
            said = "\n".join([*self.lines[-20:], "stderr:", self.errors[-3000:]])
            raise AssertionError(f"{self.name} did not say {words} within {within_s:g} s but:\n{said}") from None

    async def complains(self, *words: str) -> None:
        """Wait until all ``words`` stand in what it wrote to standard error."""
        await until(lambda: all(word in self.errors for word in words), f"{self.name} says {words}")

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        self.process.stdin.write(line.encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        """Signal the process itself."""
        self.process.send_signal(number)

    def interrupt(self) -> None:
        """Do what Ctrl-C at a terminal does: SIGINT for the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    async def kill(self) -> None:
        """End its whole group with -9 and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.ended()

    async def stop(self, within_s: float = PATIENCE_S) -> int:
        """Ask it to end by SIGTERM and return its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended(within_s)

    async def ended(self, within_s: float = PATIENCE_S) -> int:
        """Wait for its end and return the exit code."""
        try:
            async with asyncio.timeout(within_s):
                code = await self.process.wait()
                await self._reading
        except TimeoutError:
            raise AssertionError(f"{self.name} did not end within {within_s:g} s: {self.errors[-3000:]}") from None
        return code

    async def _read(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        while line := await stdout.readline():
            self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
            self.heard(self.lines[-1])
            self._news.set()
        self._news.set()

    def heard(self, line: str) -> None:
        """Take note of a line of output."""


class Service(Program):
    """A ``queuebell serve`` that is ready, and its answers."""

    url: str
    data: Path
    asking: aiohttp.ClientSession
    answer = b""
    """Of its last put that was answered."""

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    async def ask(self, path: str) -> tuple[int, Any]:
        """Return status and JSON of a GET."""
        async with self.asking.get(self.url + path) as answer:
            return answer.status, json.loads(await answer.read())

    async def queue(self, name: str) -> dict[str, Any]:
        """Return how a queue stands; empty where it is not known."""
        status, state = await self.ask(f"/v1/queues/{name}")
        return dict(state) if status == 200 else {}

    async def receives(self, name: str) -> int:
        """Return how many receives the queue has had since the bridge started."""
        return int((await self.queue(name))["receives"]["total"])

    async def put(self, queue: str, *bodies: str, **more: Any) -> int:
        """Put messages, all or none, and return the status."""
        messages = [{"body": body, **more} for body in bodies]
        async with self.asking.post(f"{self.url}/v1/queues/{queue}/messages", json={"messages": messages}) as answer:
            self.answer = await answer.read()
            return answer.status

    async def has_listeners(self, count: int) -> None:
        """Wait until so many listeners have said hello."""

        async def enough() -> bool:
            _, state = await self.ask("/v1/listeners")
            return len(state["listeners"]) == count

        await until(enough, f"{count} listeners at {self.url}")

    async def has_room(self, queue: str, free: int) -> None:
        """Wait until so many handler slots of all listeners of the queue are known to be free."""

        async def enough() -> bool:
            _, state = await self.ask("/v1/listeners")
            seats = [seat for one in state["listeners"] for seat in one["queues"] if seat["queue"] == queue]
            return sum(seat["free"] for seat in seats if seat["has_room"]) == free

        await until(enough, f"{queue} has room for {free}")

    async def is_clean(self, queue: str) -> None:
        """Wait until nothing is owed to the queue: nothing is visible, and the bridge knows it."""

        async def clean() -> bool:
            return (await self.queue(queue)).get("dirty") is False

        await until(clean, f"{queue} is clean")

    async def is_drained(self, queue: str) -> None:
        """Wait until the queue holds no message at all, visible or leased."""

        async def empty() -> bool:
            return (await self.queue(queue)).get("depth") == {"visible": 0, "invisible": 0}

        await until(empty, f"{queue} is empty")


class Processes:
    """Starts programs and ends them all; an async context manager. Logs and data go below ``folder``.

    With ``auth`` all bridges ask for keys, by one access file: a worker's and a producer's, which are in files that
    their environment names, and our own.
    """

    def __init__(self, folder: Path, *, auth: bool = False) -> None:
        self.folder = folder
        self.headers: dict[str, str] = {}
        """What our own requests have to carry."""
        self._access = folder / "access.json" if auth else None
        if self._access is not None:
            secrets = written(self._access, GRANTS)
            for role in (WORKER, PRODUCER, SCALER):
                self._key_file(role).write_text(secrets[role] + "\n")
            self.headers["Authorization"] = f"Bearer {secrets[OURSELVES]}"
        self._programs: list[Program] = []
        self._numbers = itertools.count()
        self._asking = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S), headers=self.headers)

    def _key_file(self, role: str) -> Path:
        return self.folder / f"{role}.key"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for program in self._programs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.process.pid, signal.SIGKILL)
        for program in self._programs:
            await program.ended()
        await self._asking.close()

    async def start(
        self,
        *command: str,
        name: str = "",
        kind: type[Program] = Program,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        role: str = "",
    ) -> Any:
        """Start a command; whoever has a ``role`` gets its key, where one is asked for."""
        env = env or environment()
        if role and self._access is not None:
            env[FILE_VARIABLE] = str(self._key_file(role))
        name = name or f"{Path(command[0]).name}-{len(self._programs)}"
        # Counted as they begin: of those that are started side by side each has a file of its own.
        errors = self.folder / f"{name}-{next(self._numbers)}.log"
        # Should this process be killed itself, the kernel ends them (Linux); else the group is killed at the end.
        tied = (sys.executable, "-IS", die_with_parent.__file__, str(os.getpid()), str(int(signal.SIGKILL)))
        with errors.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *tied,
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                cwd=cwd or self.folder,
                env=env,
                start_new_session=True,
                limit=1 << 20,
            )
        program = kind(name, process, errors)
        self._programs.append(program)
        return program

    async def serve(
        self, *options: str, data: str = "data", port: int = 0, launcher: Sequence[str] = (), **settings: str
    ) -> Service:
        """Start a bridge and wait until it is ready; ``settings`` are those of its environment, in small letters.

        It lets a put wait for long: a disk or a processor that is slow for a moment rejects none of a test's.
        """
        settings = {"put_wait_ms": "60000", **settings}
        folder = self.folder / data
        module = launcher or ("-m", "queuebell")
        asking: tuple[str, ...] = ()
        if self._access is not None:
            asking = ("--auth", "--access", str(self._access))
            # Who publishes triggers there, it does not know.
            asking += ("--trust-brokers",) if {"--nats", "--mqtt"} & set(options) else ()
        bridge: Service = await self.start(
            sys.executable,
            *module,
            "serve",
            "--listen",
            f"127.0.0.1:{port or free_port()}",
            "--data",
            str(folder),
            *options,
            *asking,
            name="bridge",
            kind=Service,
            env=environment(**{f"QUEUEBELL_{key.upper()}": value for key, value in settings.items()}),
        )
        bridge.url = (await bridge.line(READY)).removeprefix(READY)
        bridge.data, bridge.asking = folder, self._asking
        return bridge


def descriptors() -> set[int]:
    """Return the file descriptors that are open."""
    found: set[int] = set()
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - on Linux a link into /proc
        with contextlib.suppress(OSError):
            os.fstat(int(name))  # the one that the listing itself used is closed by now
            found.add(int(name))
    return found
