"""The demo, played for real: a bridge, workers, one of them killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from queuebell.demo.analysis import Facts
from queuebell.demo.outcome import Outcome
from queuebell.demo.scenario import sources
from tests.support.command import ROOT

WITHIN_S = 500.0
SMALL = ("--files", "60", "--bursts", "2", "--quiet", "0.3", "--workers", "2")


@asynccontextmanager
async def demo(tmp_path: Path, *arguments: str, module: str = "queuebell") -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the demo with its temporary files below ``tmp_path``, where nothing may be left of them."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c" if module.startswith("import") else "-m",
        module,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def children_of(pid: int) -> dict[int, str]:
    """Return the living children of a process with their command lines."""
    if (proc := Path("/proc")).is_dir():  # not every Linux has ps
        rows = []
        for entry in proc.glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                rows.append((entry.name, fields[1], fields[0], command))
    else:
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
        )
        split = (line.split(maxsplit=3) for line in listing.stdout.splitlines())
        rows = [(row[0], row[1], row[2], row[3]) for row in split if len(row) == 4]
    return {int(child): command for child, parent, state, command in rows if int(parent) == pid and state[0] != "Z"}


def alive(pid: int) -> bool:
    """Say whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until_line(process: asyncio.subprocess.Process, word: str) -> str:
    """Read a program's output up to the line that has ``word``."""
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if word in line:
            return line
    raise AssertionError(f"ended without {word!r}")


async def test_small_run(tmp_path: Path) -> None:
    """All of it holds on a few files: equal, nothing missing, no receive while quiet; and nothing is left behind."""
    async with demo(tmp_path, "demo", *SMALL) as process:
        out, err = await process.communicate()
    text = out.decode()
    assert (process.returncode, err.decode()) == (0, ""), text
    assert "quiet 1   0.3 s: 0 receives" in text
    assert re.search(r"in 0\.\d s of quiet +0 ", text)
    assert text.splitlines()[-14].startswith("60 files, ")
    assert "none yet; a scaler starts up to 2" in text
    assert re.search(r"worker processes +0 to 2 to 0 ", text)
    assert "kill -9" in text
    assert text.endswith("All of it held: the result equals the direct analysis.\n")
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "\x1b" not in text
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.rest
async def test_json(tmp_path: Path) -> None:
    """The JSON is the only thing on standard output, and its figures fit together."""
    async with demo(tmp_path, "demo", *SMALL, "--bursts", "1", "--json") as process:
        out, err = await process.communicate()
    found = json.loads(out)
    assert (process.returncode, found.pop("ok"), found.pop("faults")) == (0, True, []), err.decode()
    outcome = msgspec.convert(found, Outcome)
    assert (outcome.files, outcome.put, outcome.missing, outcome.quiet_receives, outcome.dead_letters) == (
        60,
        80,
        0,
        0,
        0,
    )
    assert (outcome.processes[0], max(outcome.processes), outcome.processes[-1]) == (0, 2, 0)
    assert outcome.killed is not None
    assert 0 < outcome.p50_ms <= outcome.p99_ms
    assert outcome.process_s < outcome.workers * outcome.seconds
    assert 0 < outcome.totals.classes < outcome.totals.functions < outcome.totals.lines


async def test_corrupted_result(tmp_path: Path) -> None:
    """A worker that miscounts one file makes the demo fail, and the file is named."""
    wrong = sources(30)[3]
    faulty = (
        "import asyncio, sys, msgspec; from queuebell.demo import worker; honest = worker.analyse;"
        f" worker.analyse = lambda path: msgspec.structs.replace(honest(path), lines=(path != {wrong!r}) *"
        " honest(path).lines); asyncio.run(worker.work(sys.argv[1]))"
    )
    script = (
        "import sys; from queuebell.demo.cli import perform; from queuebell.demo.outcome import Plan;"
        f"sys.exit(perform(Plan(2, 1, 0.1, 30, (sys.executable, '-c', {faulty!r}))))"
    )
    async with demo(tmp_path, module=script) as process:
        out, _ = await process.communicate()
    assert process.returncode == 1
    assert f"1 files differ from the direct analysis, first {wrong}" in out.decode()
    assert out.decode().endswith("FAILED\n")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.rest)])
async def test_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM, even twice, ends every process and removes every file."""
    async with demo(tmp_path, "demo", "--files", "60", "--quiet", "600", "--workers", "2") as process:
        await until_line(process, "burst 1")
        children = children_of(process.pid)
        assert len(children) >= 3
        process.send_signal(number)
        process.send_signal(number)
        out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (130, "")
    assert "every process is stopped" in out.decode()
    assert [pid for pid in children if alive(pid)] == []
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_crash(tmp_path: Path) -> None:
    """A bridge that dies ends the demo and all workers, with one clear line and exit code 1."""
    async with demo(tmp_path, "demo", "--files", "60", "--quiet", "600", "--workers", "2") as process:
        await until_line(process, "burst 1")
        children = children_of(process.pid)
        os.kill(next(pid for pid, command in children.items() if "queuebell serve" in command), signal.SIGKILL)
        _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode() == "queuebell demo: the bridge ended with code -9: \n"
    assert [pid for pid in children if alive(pid)] == []
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"missing": 1}, "1 of 80 messages have no result"),
        ({"differing": ["b.py", "a.py"]}, "2 files differ from the direct analysis, first a.py"),
        ({"quiet_receives": 3}, "3 receives while it was quiet; there should be none"),
        ({"dead_letters": 2}, "2 messages were dead-lettered"),
        ({"killed": None}, "no worker was killed"),
        ({"processes": [0, 2, 1]}, "0 workers ran before the work came, and 1 after it"),
        ({"processes": [1, 2, 0]}, "1 workers ran before the work came, and 0 after it"),
        ({}, None),
    ],
)
def test_faults(broken: dict[str, object], words: str | None) -> None:
    """Each broken promise is one sentence, and a run that kept all has none."""
    kept = Outcome(
        files=60, put=80, missing=0, duplicates=5, differing=[], totals=Facts(), workers=2, processes=[0, 2, 0],
        killed=7, seconds=9.0, process_s=8.0, direct_s=1.0, quiet_s=1.0, quiet_receives=0, wakes=80, receives=90,
        receives_empty=1, dead_letters=0, p50_ms=2.0, p99_ms=3.0,
    )  # fmt: skip
    assert msgspec.structs.replace(kept, **broken).faults == ([] if words is None else [words])
