"""The worlds that actuators work on: child processes, a command, and a stand-in for systemd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from queuebell.listeners.scaling.actuators.base import Actuator
from queuebell.listeners.scaling.actuators.command import CommandActuator
from queuebell.listeners.scaling.actuators.process import ProcessActuator
from queuebell.listeners.scaling.actuators.systemd import SystemdActuator
from tests.support.processes import PATIENCE_S
from tests.support.systemctl import Systemctl

SAYS_READY = """
import os, signal, socket, sys
fd = int(os.environ["QUEUEBELL_STARTER"].partition(":")[0])
link = socket.socket(fileno=fd)
print("out", flush=True)
print("trouble", file=sys.stderr, flush=True)
link.sendall(b"ready\\nbu")
link.sendall(b"sy\\nnonsense\\nidle\\n")
signal.pause()
"""


class Heard:
    """Who is told, and waits for it."""

    def __init__(self) -> None:
        self.news: list[tuple[object, ...]] = []
        self._came = asyncio.Event()

    def found(self, ids: list[str]) -> None:
        """Note it."""
        self._note("found", *ids)

    def ready(self, number: str) -> None:
        """Note it."""
        self._note("ready", number)

    def busy_changed(self, number: str, *, busy: bool) -> None:
        """Note it."""
        self._note("busy" if busy else "idle", number)

    def ended(self, number: str, code: int | None, why: str) -> None:
        """Note it."""
        self._note("ended", number, code, why)

    def _note(self, *news: object) -> None:
        self.news.append(news)
        self._came.set()

    async def until(self, holds: Callable[[list[tuple[object, ...]]], bool]) -> None:
        """Wait until the news hold something."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds(self.news):
                self._came.clear()
                await self._came.wait()


def count(what: str, number: int) -> Callable[[list[tuple[object, ...]]], bool]:
    """Return what asks for so many pieces of news of a kind."""
    return lambda news: sum(each[0] == what for each in news) >= number


def python(code: str, **given: Any) -> ProcessActuator:
    """Make an actuator whose workers run this code."""
    return ProcessActuator([sys.executable, "-c", code], **given)


class World:
    """What one kind works on; ``look`` is how soon it is to see by itself."""

    KIND = ""

    def __init__(self, look_s: float = 0.02) -> None:
        self.look_s = look_s

    def make(self) -> Actuator:
        """Make an actuator whose workers become ready and stay."""
        raise NotImplementedError

    def hopeless(self) -> Actuator:
        """Make one that can start nothing."""
        raise NotImplementedError

    def outside(self) -> int:
        """Return how many really run; of processes nobody but their actuator knows."""
        raise NotImplementedError


class OfProcesses(World):
    """Child processes."""

    KIND = "process"

    def make(self) -> Actuator:
        """Make one."""
        return python(SAYS_READY)

    def hopeless(self) -> Actuator:
        """Make one whose program is not there."""
        return ProcessActuator(["./no-such"])


class OfCommands(World):
    """A command that writes down what it is told."""

    KIND = "command"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self.told = folder / "wanted"

    def make(self) -> Actuator:
        """Make one."""
        return CommandActuator(["/bin/sh", "-c", f"echo $QUEUEBELL_WANTED {{}} >> {self.told}"])

    def hopeless(self) -> Actuator:
        """Make one whose program is not there."""
        return CommandActuator(["./no-such", "{}"])

    def outside(self) -> int:
        """Return what it was told last."""
        return int(self.told.read_text().split()[-1])


class OfUnits(World):
    """Units of systemd."""

    KIND = "systemd"

    def __init__(self, systemctl: Systemctl) -> None:
        super().__init__()
        self.systemctl = systemctl

    def make(self) -> Actuator:
        """Make one."""
        return SystemdActuator("queuebell-worker@", every_s=self.look_s)

    def hopeless(self) -> Actuator:
        """Make one whose template is not there."""
        return SystemdActuator("no-such@", every_s=self.look_s)

    def outside(self) -> int:
        """Return how many units run."""
        return len(self.systemctl.live)


KINDS = ("process", "command", "systemd")


@contextlib.asynccontextmanager
async def world_of(kind: str, folder: pathlib.Path, patch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Make the world of a kind, with what stands in for what is not here."""
    if kind == "process":
        yield OfProcesses()
    elif kind == "command":
        yield OfCommands(folder)
    else:
        systemctl = Systemctl(folder / "bin")
        patch.setenv("PATH", f"{systemctl.folder}:{os.environ['PATH']}")
        yield OfUnits(systemctl)
        systemctl.check()
