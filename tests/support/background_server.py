"""A server that serves a whole module of tests: started once, on a port that it chooses and tells itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from queuebell.bridge.brokers.embedded import die_with_parent
from tests.support.processes import PATIENCE_S, environment


class BackgroundServer:
    """A process that says where it listens; a context manager. ``url`` is what ``ready`` found in a line of its own."""

    def __init__(self, command: Sequence[str], ready: str, *, cwd: Path | None = None, **variables: str) -> None:
        self._command = command
        self._ready = re.compile(ready)
        self._cwd = cwd
        self._variables = variables
        self._told = threading.Event()
        self._lines: list[str] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            # Should this process be killed itself, the kernel ends the server too.
            [
                sys.executable,
                "-IS",
                die_with_parent.__file__,
                str(os.getpid()),
                str(int(signal.SIGKILL)),
                *self._command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._cwd,
            env=environment(**self._variables),
            text=True,
            errors="replace",
        )
        self._reading = threading.Thread(target=self._read, name="a server's words", daemon=True)
        self._reading.start()
        try:
            ready = self._told.wait(PATIENCE_S) and self.url
            assert ready, f"{self._command[0]} is not ready: {self._lines[-20:]}"
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as words:
            for line in words:
                if not self.url:
                    self._lines.append(line)
                    if found := self._ready.search(line):
                        self.url = found[1]
                        self._told.set()
        self._told.set()
