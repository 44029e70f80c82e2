"""Workers as child processes of the scaler: the default.

Each is in its own process group, so that what it starts ends with it, and inherits one end of a socket pair. On it the
worker's listener reports ready, busy or idle (`queuebell.listeners.work.starter`); its end means for the worker that
the scaler is gone, whatever killed it. One whose listener does not run yet is ended by the kernel then, on Linux, and
whatever is left after the grace by the guard (`guard.py`), a process that the scaler starts beside its workers.
SIGTERM asks a worker to stop in order; after the grace its group is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shlex
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from queuebell.bridge.brokers.embedded import die_with_parent
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.listeners.scaling.actuators import guard
from queuebell.listeners.scaling.actuators.base import ProcessEvents, StartFailed
from queuebell.listeners.scaling.actuators.output import OUTPUT
from queuebell.listeners.work.starter import BUSY, IDLE, READY, STARTER_GONE, VARIABLE, ticket

log = logging.getLogger("queuebell.scaler")

LINES_KEPT: Final = 5
LINE_BYTES: Final = 2048
WORD_BYTES: Final = 4096
SPENT: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Errors of a machine without resources for one more process (S48)."""
DRAIN_S: Final = 1.0
"""How long the output of a process that has ended is read on: what it has started may hold it open for ever."""


class Child:
    """One process that was started."""

    def __init__(self, number: str, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self.number = number
        self.process = process
        self.link = link
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.tasks: list[asyncio.Task[None]] = []
        self.ending: asyncio.Task[None] | None = None

    def signal(self, number: int) -> None:
        """Send a signal to the process and to all that it has started in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class ProcessActuator:
    """Starts ``command`` as child processes; see the module.

    ``grace`` is what a worker gets between SIGTERM and SIGKILL, in seconds: more than its listener's own. ``prefix`` is
    what its output is passed on with, to our standard error. ``environment`` is added to our own.
    """

    outlives = False
    unseen = None

    def __init__(
        self,
        command: Sequence[str],
        *,
        grace: float = 30.0,
        prefix: str = "worker",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not command or not command[0]:
            raise ConfigurationError("command: nothing was given to start; it follows `--`, as in -- python worker.py")
        self._command = list(command)
        self._grace = grace
        self._prefix = prefix
        self._environment = dict(environment or {})
        self._children: dict[str, Child] = {}
        self._events: ProcessEvents | None = None
        self._count = 0
        self._starting = asyncio.Lock()
        self._guard: asyncio.subprocess.Process | None = None
        self._resting: asyncio.Task[None] | None = None
        self._closed = False

    def __str__(self) -> str:
        return shlex.join(self._command)

    async def open(self, events: ProcessEvents) -> None:
        """Keep ``events``. A missing command may still be installed, so each start searches again."""
        self._events = events

    async def start(self, count: int) -> list[str]:
        """Start so many; where one cannot be, those before it run on: a machine may have room for some."""
        begun: list[Child] = []
        async with self._starting:
            try:
                while len(begun) < count:
                    if self._closed:
                        raise StartFailed("the scaler stops")
                    begun.append(await self._start())
            except (OSError, ValueError) as error:
                raise StartFailed(_start_error(self._command[0], error), [child.number for child in begun]) from error
            except BaseException:
                for child in begun:
                    child.signal(signal.SIGKILL)
                raise
        return [child.number for child in begun]

    async def _start(self) -> Child:
        self._count += 1
        environment = {**os.environ, **self._environment}
        command = _tied(self._command, environment)
        await self._start_guard()
        with contextlib.ExitStack() as theirs_to_close, contextlib.ExitStack() as on_failure:
            ours, theirs = socket.socketpair()
            on_failure.callback(ours.close)
            theirs_to_close.callback(theirs.close)
            # Its own pipes: asyncio's `wait` would wait for the end of pipes that a worker's children may hold open.
            pipes = []
            for _ in range(2):
                read, write = os.pipe()
                on_failure.callback(os.close, read)
                theirs_to_close.callback(os.close, write)
                pipes.append((read, write))
            (out, out_end), (err, err_end) = pipes
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out_end,
                stderr=err_end,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
                env={**environment, VARIABLE: ticket(theirs.fileno(), self._grace)},
            )
            self._write_guard(f"+{process.pid}\n")
            on_failure.pop_all()
        ours.setblocking(False)
        number = str(process.pid)
        while number in self._children:  # the number of one that ended just now, and is still read
            number = f"{process.pid}.{self._count}"
        child = Child(number, process, ours)
        self._children[number] = child
        name = f"worker[{number}]"
        reading = [
            asyncio.create_task(self._pass_on(child, out, keep=False), name=f"{name} output"),
            asyncio.create_task(self._pass_on(child, err, keep=True), name=f"{name} errors"),
        ]
        reports = asyncio.create_task(self._read_reports(child), name=f"{name} words")
        child.tasks = [asyncio.create_task(self._watch(child, reading, reports), name=name)]
        return child

    async def _start_guard(self) -> None:
        """Start the guard, or another one in place of one that was killed."""
        if self._guard is not None and self._guard.returncode is None:
            return
        self._guard = await asyncio.create_subprocess_exec(
            *(sys.executable, "-IS", guard.__file__, str(self._grace)),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._write_guard("".join(f"+{child.process.pid}\n" for child in self._children.values()))

    def _write_guard(self, words: str) -> None:
        # A killed guard matters only if the scaler is killed too; the next start has a new one.
        if self._guard is not None and self._guard.stdin is not None and not self._guard.stdin.is_closing():
            self._guard.stdin.write(words.encode())

    async def _end_guard(self) -> None:
        guarding, self._guard = self._guard, None
        if guarding is not None and guarding.stdin is not None:
            guarding.stdin.close()
            await guarding.wait()
        if self._resting is not None and self._resting is not asyncio.current_task():
            await self._resting

    async def stop(self, ids: Sequence[str]) -> None:
        """Send SIGTERM, and SIGKILL to the whole group after the grace."""
        for number in ids:
            child = self._children.get(number)
            if child is not None and child.ending is None:
                child.ending = asyncio.create_task(self._end(child), name=f"end worker[{number}]")

    async def look(self) -> None:
        """No-op: workers report by themselves."""

    def running(self) -> list[str]:
        """Return the ids of all that live."""
        return list(self._children)

    async def close(self) -> None:
        """End all and wait for them; cancelled, it kills them first."""
        self._closed = True
        async with self._starting:
            await self.stop(self.running())
        while self._children:
            tasks = [task for child in self._children.values() for task in child.tasks]
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:
                for child in self._children.values():
                    child.signal(signal.SIGKILL)
                await asyncio.wait(tasks)
                await self._end_guard()
                raise
        await self._end_guard()

    async def _end(self, child: Child) -> None:
        # The worker alone: its listener stops the commands that it runs, in order.
        with contextlib.suppress(ProcessLookupError):
            child.process.terminate()
        try:
            async with asyncio.timeout(self._grace):
                await child.process.wait()
        except TimeoutError:
            log.warning("worker %s: did not end within %g s of SIGTERM; it is killed", child.number, self._grace)
            child.signal(signal.SIGKILL)

    async def _watch(self, child: Child, reading: list[asyncio.Task[None]], reports: asyncio.Task[None]) -> None:
        """Wait for the end of a process, and leave nothing of it behind."""
        code = await child.process.wait()
        if child.ending is not None and not reports.done():
            # A shell ends at once and leaves its worker, which holds the socket: that one gets its grace as well.
            child.signal(signal.SIGTERM)
            await asyncio.wait([reports], timeout=self._grace)
        child.signal(signal.SIGKILL)  # what it left in its group
        await asyncio.wait(reading, timeout=DRAIN_S)
        for task in (*reading, reports):
            task.cancel()
        await asyncio.wait([*reading, reports])
        child.link.close()
        if child.ending is not None:
            child.ending.cancel()
            await asyncio.wait([child.ending])
        del self._children[child.number]
        self._write_guard(f"-{child.process.pid}\n")
        if self._events is not None:
            self._events.ended(child.number, code, _describe_end(code, child.lines))
        if not self._children and not self._starting.locked():
            # Nothing is left to guard: a scaler at rest has no process beside it.
            self._resting = asyncio.create_task(self._end_guard(), name="end of the guard")

    async def _read_reports(self, child: Child) -> None:
        """Read what the listener of a worker reports."""
        loop, left = asyncio.get_running_loop(), b""
        while True:
            try:
                data = await loop.sock_recv(child.link, WORD_BYTES)
            except OSError:
                return
            if not data:
                return
            *words, left = (left + data).split(b"\n")
            left = left[-WORD_BYTES:]
            for word in words:
                if self._events is None or child.number not in self._children:
                    continue
                if word == READY:
                    self._events.ready(child.number)
                elif word in (BUSY, IDLE):
                    self._events.busy_changed(child.number, busy=word == BUSY)

    async def _pass_on(self, child: Child, pipe: int, *, keep: bool) -> None:
        """Write each line of a worker's output to our standard error with its prefix; of errors keep the last."""
        stream = asyncio.StreamReader(limit=2 * LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream),
            open(pipe, "rb", buffering=0),  # noqa: ASYNC230, SIM115
        )
        try:
            while True:
                try:
                    line = await stream.readline()
                except ValueError:
                    continue  # longer than the limit: what was read of it is dropped
                if not line:
                    return
                text = line.decode("utf-8", "backslashreplace").rstrip("\r\n")[:LINE_BYTES]
                if keep and text.strip():
                    child.lines.append(text)
                OUTPUT.pass_on(f"{self._prefix}[{child.number}] {text}\n")
        finally:
            transport.close()


def _tied(command: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that has the kernel signal this one when we are gone; raises `FileNotFoundError`."""
    if sys.platform != "linux" or not sys.executable:
        return command
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    tie = (sys.executable, "-IS", die_with_parent.__file__, str(os.getpid()), str(int(STARTER_GONE)))
    return [*tie, program, *command[1:]]


def _start_error(program: str, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError) and shutil.which(program) is None:
        return f"there is no program {program} here or on PATH"
    spent = isinstance(error, OSError) and error.errno in SPENT
    return f"{program} cannot be started: {getattr(error, 'strerror', None) or error}" + (
        "; this machine, or what this user may have of it, is out of processes, memory or open files" if spent else ""
    )


def _describe_end(code: int, lines: deque[str]) -> str:
    if code < 0:
        try:
            how = f"ended by {signal.Signals(-code).name}"
        except ValueError:
            how = f"ended by signal {-code}"
    else:
        how = f"exit code {code}"
    return f"{how}: {' | '.join(lines)}" if lines else how
