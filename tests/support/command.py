"""The command `queuebell`: run to its end, in this process or one of its own, or serving on a free port."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from unittest import mock

from queuebell.command.main import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "queuebell"]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of ours, with the checkout on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEBELL_")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(more or {})}


def run(
    *words: str,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
    code: int | None = 0,
    command: Sequence[str] = COMMAND,
) -> subprocess.CompletedProcess[bytes]:
    """Run one command to its end and check its exit code (None: any)."""
    done = subprocess.run(
        [*command, *words], input=stdin, capture_output=True, env=environment(env), cwd=cwd, timeout=500, check=False
    )
    if code is not None:
        assert done.returncode == code, f"{words}: {done.returncode} {done.stdout!r} {done.stderr.decode()}"
    return done


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Undo what a command does to a process that it has for itself: where the log goes, how many files may be open."""
    ours, files = logging.getLogger("queuebell"), resource.getrlimit(resource.RLIMIT_NOFILE)
    level = ours.level
    try:
        with mock.patch.object(logging.getLogger(), "handlers", []):
            yield
    finally:
        ours.setLevel(level)
        resource.setrlimit(resource.RLIMIT_NOFILE, files)


def perform(
    *words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, code: int | None = 0
) -> subprocess.CompletedProcess[bytes]:
    """Perform one command in this process and check its exit code (None: any).

    To start a Python costs more than most commands do. What only a process shows, such as pipes that break, signals
    and terminals, is for `run`.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with tempfile.TemporaryFile("w+b") as given:
        given.write(stdin)
        given.seek(0)
        with (
            mock.patch.dict(os.environ, environment(env), clear=True),
            mock.patch.multiple(sys, stdin=given, stdout=out, stderr=err, path=[*sys.path]),
            _as_it_was(),
        ):
            try:
                ended = main(words)
            except SystemExit as left:  # how argparse refuses, and shows its help
                ended = int(left.code or 0)
    done = subprocess.CompletedProcess([*words], ended, out.buffer.getvalue(), err.buffer.getvalue())
    assert code in (None, ended), f"{words}: {ended} {done.stdout!r} {done.stderr.decode()}"
    return done


class Serving:
    """A bridge in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process = process
        self.url = url
        self.pid = process.pid

    def client(self, *words: str, stdin: bytes = b"", code: int | None = 0) -> str:
        """Run a client command against it and return what it wrote."""
        env = {"QUEUEBELL_BRIDGE": self.url, "QUEUEBELL_STORE": self.url}
        return perform(*words, stdin=stdin, env=env, code=code).stdout.decode()

    def stop(self) -> tuple[int, str]:
        """Ask for a stop and return the exit code and the log."""
        self.process.terminate()
        _, log = self.process.communicate(timeout=200)
        return self.process.returncode, log.decode()


@contextlib.contextmanager
def serving(data: pathlib.Path, *words: str, env: Mapping[str, str] | None = None) -> Iterator[Serving]:
    """Start `queuebell serve` on a free port and wait for its line; it is killed at the end if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--listen", "127.0.0.1:0", "--data", str(data), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(env),
    )
    try:
        line = process.stdout.readline().decode()
        start = "queuebell ready on "
        assert line.startswith(start), line + process.communicate()[1].decode()
        yield Serving(process, line.removeprefix(start).strip())
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
