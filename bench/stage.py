"""The processes and folders of one measurement, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

ROOT: Final = Path(__file__).resolve().parent.parent
START_S: Final = 30.0
ANSWER_S: Final = 180.0
STOP_S: Final = 10.0


class Child:
    """One process; `ask` is for those that run a role (bench.role)."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: Path) -> None:
        self.name = name
        self.process = process
        self.ready: dict[str, Any] = {}
        self._errors = errors

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self.process.pid

    async def line(self, within: float = ANSWER_S) -> str:
        """Return the next line it says. Raises `RuntimeError` if it ended, or said nothing in time."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(within):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise RuntimeError(f"{self.name} said nothing for {within:.0f} s\n{self.words()}") from None
        if not line:
            raise RuntimeError(f"{self.name} ended\n{self.words()}")
        return line.decode().strip()

    async def ask(self, do: str, **arguments: object) -> Any:
        """Have it do something, and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        return json.loads(await self.line())

    def words(self) -> str:
        """Return the end of what it wrote to standard error."""
        return "\n".join(self._errors.read_text("utf-8", "replace").splitlines()[-12:])

    async def stop(self) -> None:
        """Ask it to end; kill it if it does not."""
        if self.process.returncode is not None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        else:
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class Stage:
    """All that one measurement starts; leaving it ends every process and removes every file."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="queuebell-bench-"))
        self._children: list[Child] = []
        # Who configured a bridge by environment did not mean these.
        self._environment = {key: text for key, text in os.environ.items() if not key.startswith("QUEUEBELL_")}
        known = self._environment.get("PYTHONPATH")
        self._environment["PYTHONPATH"] = str(ROOT) + (os.pathsep + known if known else "")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            await child.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def data(self, name: str) -> Path:
        """Return a folder for a database, made."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    async def role(self, module: str, *arguments: object, traced: bool = False) -> Child:
        """Start ``python -m bench.<module> ARGUMENTS`` and wait until it is ready; ``traced`` with a span for all."""
        name = " ".join([module, *(str(a) for a in arguments[:1])])
        child = await self.program(name, [*_python(traced), f"bench.{module}", *map(str, arguments)], asked=True)
        child.ready = json.loads(await child.line(START_S))
        return child

    async def bridge(self, data: Path | None = None, *options: str, traced: bool = False) -> tuple[Child, str]:
        """Start ``queuebell serve`` on a free port; return it and its URL; ``traced`` with a span for all."""
        data = data or self.data(f"bridge-{len(self._children)}")
        command = [*_python(traced), "queuebell", "serve", "--listen", "127.0.0.1:0", "--data", str(data)]
        child = await self.program("queuebell serve", [*command, "--log-level", "warning", *options])
        return child, (await child.line(START_S)).removeprefix("queuebell ready on ")

    async def nats(self) -> str | None:
        """Start a NATS server on a free port and return its URL; None where there is no such program."""
        program = nats_program()
        if program is None:
            return None
        ports = self.data("nats-ports")
        child = await self.program(
            "nats-server", [program, "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(ports)]
        )
        file = ports / f"nats-server_{child.pid}.ports"
        for _ in range(500):
            with contextlib.suppress(OSError, ValueError, LookupError):
                return str(json.loads(file.read_text())["nats"][0])
            await asyncio.sleep(0.01)
        raise RuntimeError(f"nats-server did not come up\n{child.words()}")

    async def mosquitto(self) -> str | None:
        """Start a mosquitto that never drops on a free port and return its URL; None where there is no such program."""
        program = mosquitto_program()
        if program is None:
            return None
        port = free_port()
        file = self.folder / "mosquitto.conf"
        # Its own limit of 1,000 waiting messages would be measured otherwise.
        file.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\npersistence false\n"
            "max_queued_messages 0\nmax_queued_bytes 0\nlog_type error\n"
        )
        child = await self.program("mosquitto", [program, "-c", str(file)])
        for _ in range(500):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            return f"mqtt://127.0.0.1:{port}"
        raise RuntimeError(f"mosquitto did not come up\n{child.words()}")

    async def azure_endpoint(self) -> tuple[Child, str]:
        """Start ``queuebell serve`` with its Azure endpoint on a free port; return it and the endpoint's URL."""
        port = free_port()
        child, _ = await self.bridge(None, "--azure-queue", f"127.0.0.1:{port}")
        return child, f"http://127.0.0.1:{port}"

    async def azurite(self, program: str) -> tuple[Child, str]:
        """Start Azurite's queue service with its default store on a free port; return it and its URL."""
        options = ["--queueHost", "127.0.0.1", "--queuePort", "0", "--silent", "--disableTelemetry"]
        child = await self.program("azurite-queue", [program, *options, "--location", str(self.data("azurite"))])
        while "listens on " not in (line := await child.line(START_S)):
            pass
        return child, line.rpartition(" ")[2]

    async def program(
        self, name: str, command: list[str], *, asked: bool = False, user: str | None = None, **environment: str
    ) -> Child:
        """Start a program, with more of an environment; as another ``user``, where one is given."""
        errors = self.folder / f"{len(self._children)}.log"
        with errors.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE if asked else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self.folder,
                env=self._environment | environment,
                user=user,
                process_group=0,
                limit=1 << 26,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        child = Child(name, process, errors)
        self._children.append(child)
        return child


def _python(traced: bool) -> list[str]:
    """Return what begins a command that runs a module; ``traced`` with OpenTelemetry's own library in its process."""
    return [sys.executable, "-m", *(["bench.programs.traced"] if traced else [])]


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def nats_program() -> str | None:
    """Return the path of a NATS server: the wheel's, else the one on the PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    return str(beside) if beside.is_file() else shutil.which("nats-server")


def mosquitto_program() -> str | None:
    """Return the path of mosquitto; Debian keeps it where only root looks."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin")


# Loaded here: nothing may be imported between fork and exec.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    assert _libc is not None
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
