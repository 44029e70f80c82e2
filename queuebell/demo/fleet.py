"""The fleet: the bridge and the direct analysis as processes of their own, watched and stopped; and what workers are.

No child outlives the demo: each stands in a process group of its own, so that Ctrl-C at the terminal reaches only the
demo, which ends them in order; and on Linux the kernel ends them should the demo itself be killed. Workers notice the
end of their scaler, which is a part of the demo.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import listeners
from bridge.brokers.credential import FILE_VARIABLE, KEY_VARIABLE
from bridge.brokers.embedded import die_with_parent
from bridge.core.keys import CHANCE_BYTES, AccessList, new_key
from bridge.service.access import access_file
from queuebell.demo.plan import WORKER_COMMAND
from queuebell.demo.work import INPUT_QUEUE, RESULT_QUEUE, worker_log
from queuebell.demo.workers import Workers

READY_PREFIX: Final = "queuebell ready on "
START_PATIENCE_S: Final = 20.0
STOP_PATIENCE_S: Final = 5.0
BRIDGE_COMMAND: Final = (sys.executable, "-m", "queuebell", "serve", "--listen", "127.0.0.1:0", "--data")
DIRECT_COMMAND: Final = (sys.executable, "-m", "queuebell.demo.direct")
INITIATOR: Final = "initiator"
SCALER: Final = "scaler"
WORKER: Final = "worker"
CONTROLLER: Final = "process-controller"
ONLOOKER: Final = "onlooker"
GRANTS: Final = {
    INITIATOR: {"put": [INPUT_QUEUE]},
    SCALER: {"take": [INPUT_QUEUE], "look": [INPUT_QUEUE]},
    WORKER: {"take": [INPUT_QUEUE], "put": [RESULT_QUEUE]},
    CONTROLLER: {"take": [RESULT_QUEUE]},
    ONLOOKER: {"look": ["demo/*"]},
}
"""What each may where the bridge asks for keys, and nothing else."""


class ChildFell(Exception):
    """A process of the fleet could not start, or ended although nobody asked it to; says which, and its last words."""


class Child:
    """One process, with the time it lived and the file of what it said."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.dismissed = False
        """Its end is expected."""
        self._started = time.monotonic()
        self._ended: float | None = None
        self.watch: asyncio.Task[None] | None = None

    @property
    def lived_s(self) -> float:
        """How long it has lived, or lived, in seconds."""
        return (self._ended if self._ended is not None else time.monotonic()) - self._started

    @property
    def title(self) -> str:
        """Its name within a sentence."""
        return f"the {self.name}"

    def ended(self) -> None:
        """Note that it is gone."""
        self._ended = time.monotonic()

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it is still there."""
        if self.process.returncode is None:
            self.process.send_signal(number)

    def obituary(self) -> str:
        """Say in one line how it ended."""
        code = self.process.returncode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        words = last_words(self.log)
        return f"{self.title} {how}" + (f": {words}" if words else "")


def last_words(log: Path) -> str:
    """Return the last error that a process wrote to its log, or the last line; shortened."""
    try:
        lines = log.read_text("utf-8", "replace").split("\n")
    except OSError:
        return ""
    words, in_traceback = "", False
    for line in lines:
        if line.startswith("Traceback"):
            in_traceback = True
        elif in_traceback and line and not line[0].isspace():
            words, in_traceback = line, False
    return (words or next((line for line in reversed(lines) if line.strip()), "")).strip()[:300]


class Fleet:
    """Processes that the demo owns; ``folder`` takes the bridge's data and the logs."""

    def __init__(self, folder: Path, worker_command: Sequence[str] = WORKER_COMMAND) -> None:
        self._folder = folder
        self._worker_command = worker_command
        self._children: list[Child] = []
        self._fallen: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.bridge: Child | None = None
        self.keys: dict[str, str] = {}
        """By the name of a principal; none where nobody is asked."""
        # Whoever configured a bridge of their own by environment did not mean this one.
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("QUEUEBELL_")}
        packages = str(Path(listeners.__file__).resolve().parent.parent)
        known = self._environment.get("PYTHONPATH")
        self._environment["PYTHONPATH"] = packages + (os.pathsep + known if known else "")

    async def start_bridge(self, *, auth: bool = False) -> str:
        """Start the bridge on a free port and return its URL. Raises `ChildFell` if it does not become ready.

        ``auth`` has it ask for the keys that are made for it; those who stand outside of this process get theirs by a
        file, for a command line can be read by everybody.
        """
        command = [*BRIDGE_COMMAND, str(self._folder / "data")]
        if auth:
            self._make_keys(self._folder / "data" / "access.json")
            command.append("--auth")
        self.bridge = bridge = await self._start("bridge", command, signal.SIGTERM, output=True)
        assert bridge.process.stdout is not None
        try:
            async with asyncio.timeout(START_PATIENCE_S):
                line = (await bridge.process.stdout.readline()).decode("utf-8", "replace").strip()
                if not line:
                    await bridge.process.wait()
        except TimeoutError:
            raise ChildFell(f"the bridge was not ready within {START_PATIENCE_S:.0f} s") from None
        if not line.startswith(READY_PREFIX):
            raise ChildFell(
                bridge.obituary() if not line else f"the bridge said {line[:200]!r} and not where it listens"
            )
        return line.removeprefix(READY_PREFIX)

    def workers(self, url: str, visibility_s: float, changed: Callable[[int], None]) -> Workers:
        """Return what a scaler starts and ends workers by: each writes what it says to a log of its own."""
        key = {KEY_VARIABLE: "", FILE_VARIABLE: str(self._key_file)} if self.keys else {}
        return Workers(
            [*self._worker_command, url, str(visibility_s), str(self._folder)],
            {"PYTHONPATH": self._environment["PYTHONPATH"], **key},
            fell=self._fell,
            changed=changed,
            last_words=lambda number: last_words(worker_log(self._folder, number)),
        )

    async def start_direct(self) -> Child:
        """Start the direct analysis; it reads its paths from standard input and may end when it is done."""
        child = await self._start("direct analysis", DIRECT_COMMAND, signal.SIGKILL, output=True, asked=True)
        child.dismissed = True
        return child

    async def guard(self) -> None:
        """Wait for ever; raises `ChildFell` when a process ends that should not."""
        raise ChildFell(await asyncio.shield(self._fallen))

    async def stop(self) -> list[str]:
        """End the bridge last, first by asking; return a line for each that did not end well."""
        bridge = [] if self.bridge is None else [self.bridge]
        others = [child for child in self._children if child is not self.bridge]
        asked = [child for child in self._children if not child.dismissed]
        stubborn = [*await self._end(others), *await self._end(bridge)]
        for child in self._children:
            if child.watch is not None:
                await child.watch
        self._fallen.cancel()
        lines = [f"{child.title} did not stop within {STOP_PATIENCE_S:.0f} s" for child in stubborn]
        return lines + [child.obituary() for child in asked if child.process.returncode != 0 and child not in stubborn]

    async def _end(self, children: Sequence[Child]) -> list[Child]:
        for child in children:
            child.dismissed = True
            child.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_PATIENCE_S):
                for child in children:
                    await child.process.wait()
        except TimeoutError:
            stubborn = [child for child in children if child.process.returncode is None]
            for child in stubborn:
                child.send(signal.SIGKILL)
            return stubborn
        return []

    def _make_keys(self, path: Path) -> None:
        listed = AccessList()
        for name, grants in GRANTS.items():
            chance = secrets.token_bytes(CHANCE_BYTES)
            listed, self.keys[name] = new_key(listed, name, grants, chance=chance, now=time.time())
        access_file.change(path, lambda _: listed)
        with open(self._key_file, "w", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            file.write(self.keys[WORKER] + "\n")

    @property
    def _key_file(self) -> Path:
        return self._folder / "worker.key"

    async def _start(
        self,
        name: str,
        command: Sequence[str],
        farewell: signal.Signals,
        *,
        output: bool = False,
        asked: bool = False,
    ) -> Child:
        log = self._folder / f"{name.replace(' ', '-')}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-IS",
                die_with_parent.__file__,
                str(os.getpid()),
                str(int(farewell)),
                *command,
                stdin=asyncio.subprocess.PIPE if asked else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if output else errors,
                stderr=errors,
                cwd=self._folder,
                env=self._environment,
                process_group=0,
            )
        child = Child(name, process, log)
        self._children.append(child)
        child.watch = asyncio.create_task(self._watch(child), name=f"demo: watch {name}")
        return child

    async def _watch(self, child: Child) -> None:
        await child.process.wait()
        child.ended()
        if not child.dismissed:
            self._fell(child.obituary())

    def _fell(self, how: str) -> None:
        if not self._fallen.done():
            self._fallen.set_result(how)
