"""Processes that play runs, one run at a time each, on every core there is.

A child reads jobs as lines of JSON from its standard input and answers each with one line; it ends when the input
does, and when whoever started it is killed. Children take no notice of Ctrl-C, which a terminal sends to all of them:
whoever uses the crew ends them.
"""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import IO, Final, Self

import msgspec

from bridge.brokers.embedded import die_with_parent
from tests.simulation.fault import Fault
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Plan

RUN: Final = "tests.simulation.run:run"
_CHUNK: Final = 1 << 16
# A child in the middle of a long run would not notice that its input has ended.
_TIED: Final = (sys.executable, "-IS", die_with_parent.__file__)
_KILL: Final = str(int(signal.SIGKILL))


class Job(msgspec.Struct, frozen=True):
    """One run to play; ``faults`` None are those of the seed."""

    plan: Plan
    seed: int
    faults: list[Fault] | None = None
    keep_story: bool = False


class Played(msgspec.Struct, frozen=True):
    """A job and what it came to: an outcome, or the traceback of what broke the simulation itself."""

    job: Job
    outcome: Outcome | None
    broken: str = ""


class CrewLost(Exception):
    """A process of the crew ended while it played; says which job, and how it ended."""


class _Member:
    """One child, the job it plays, and what it has written of its answer."""

    __slots__ = ("job", "process", "written")

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.job: Job | None = None
        self.written = bytearray()

    def give(self, job: Job) -> None:
        assert self.process.stdin is not None
        self.job = job
        try:
            self.process.stdin.write(msgspec.json.encode(job) + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.lost() from None

    def take(self) -> Played | None:
        """Read what has come; None while the answer is not whole. Raises `CrewLost` where the child has ended."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), _CHUNK)
        if not data or self.job is None:
            raise self.lost()
        self.written += data
        if not data.endswith(b"\n"):
            return None
        answer = msgspec.json.decode(bytes(self.written), type=Outcome | str)
        job, self.job = self.job, None
        self.written.clear()
        return Played(job, None, answer) if isinstance(answer, str) else Played(job, answer)

    def lost(self) -> CrewLost:
        self.process.kill()
        code = self.process.wait()
        job = self.job
        what = "before its first run" if job is None else f"while it played seed {job.seed} of {job.plan.name}"
        return CrewLost(f"a process of the simulation ended with code {code} {what}")


class Crew:
    """``size`` processes (at least 1) that call ``run`` (``MODULE:FUNCTION``, with the arguments of `run.run`).

    A context manager: leaving it, however, ends every process at once. Raises `CrewLost` where one ends by itself.
    """

    def __init__(self, size: int, run: str = RUN) -> None:
        self._size = size
        self._run = run
        self._members: list[_Member] = []

    def __enter__(self) -> Self:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a text is what PATH holds
        try:
            for _ in range(self._size):
                process = subprocess.Popen(
                    [*_TIED, str(os.getpid()), _KILL, sys.executable, "-m", "tests.simulation.crew", self._run],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": path},
                )
                self._members.append(_Member(process))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def play(self, jobs: Iterable[Job]) -> Iterator[Played | None]:
        """Play the jobs and yield what they came to, as they end; None about once a second while none does.

        ``jobs`` is asked for the next one only when a process is free, so that it may depend on what came out so far.
        """
        waiting = iter(jobs)
        with selectors.DefaultSelector() as selector:
            for member in self._members:
                job = next(waiting, None)
                if job is None:
                    break
                member.give(job)
                assert member.process.stdout is not None
                selector.register(member.process.stdout, selectors.EVENT_READ, member)
            while selector.get_map():
                ready = selector.select(1.0)
                if not ready:
                    yield None
                for key, _ in ready:
                    free: _Member = key.data
                    played = free.take()
                    if played is None:
                        continue
                    yield played
                    job = next(waiting, None)
                    if job is None:
                        selector.unregister(key.fileobj)
                    else:
                        free.give(job)

    def play_one(self, job: Job) -> Played:
        """Play one job and return what it came to."""
        for played in self.play([job]):
            if played is not None:
                return played
        raise CrewLost("no process to play with")

    def _end(self) -> None:
        for member in self._members:
            member.process.kill()
        for member in self._members:
            member.process.wait()
            for pipe in (member.process.stdin, member.process.stdout):
                if pipe is not None:
                    _close(pipe)
        self._members = []


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        pass  # what was not flushed has nobody to read it


def serve(name: str, jobs: IO[bytes], answers: IO[bytes]) -> None:
    """Play what comes until the input ends; what breaks in a run is its answer, as text."""
    module, _, function = name.partition(":")
    run: Callable[..., Outcome] = getattr(importlib.import_module(module), function)
    for line in jobs:
        job = msgspec.json.decode(line, type=Job)
        answer: Outcome | str
        try:
            answer = run(job.plan, job.seed, job.faults, keep_story=job.keep_story)
        except Exception:
            answer = traceback.format_exc()
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever a run prints must not get among the answers.
    given = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.argv[1], sys.stdin.buffer, given)
    except BrokenPipeError:
        sys.exit(1)
