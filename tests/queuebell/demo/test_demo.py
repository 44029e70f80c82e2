"""The demo, played for real: a bridge, workers, one of them killed."""

from __future__ import annotations

import asyncio
import contextlib
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

from queuebell.demo.outcome import Outcome
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
    """All of it holds on a few files: equal, nothing lost, no receive while quiet; and nothing is left behind."""
    async with demo(tmp_path, "demo", *SMALL) as process:
        out, err = await process.communicate()
    text = out.decode()
    assert (process.returncode, err.decode()) == (0, ""), text
    assert "quiet 1   0.3 s: 0 receives" in text
    assert "0 receives in 0.6 s of quiet" in text
    assert "all 60 files are as the direct analysis has them" in text
    assert "no worker process yet; a scaler starts up to 2" in text
    assert re.search(r"zero      0 -> (\d -> )+0 worker processes", text)
    assert "kill -9" in text
    assert text.endswith("All of it held.\n")
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "\x1b" not in text
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_with_authentication(tmp_path: Path) -> None:
    """With keys all holds as without: they stand in two closed files, and on no command line and in no log."""
    async with demo(tmp_path, "demo", *SMALL, "--bursts", "1", "--auth", "--keep") as process:
        await until_line(process, "burst 1")
        children = children_of(process.pid)
        assert process.stdout is not None
        text = (await process.stdout.read()).decode()
        await process.wait()
    assert (process.returncode, text.rpartition("\n\n")[2]) == (0, "All of it held.\n"), text
    assert any("--auth" in command for command in children.values())
    assert [command for command in children.values() if "qb_" in command] == []
    (kept,) = (tmp_path / "scratch").iterdir()
    secret = {path.name for path in kept.rglob("*") if path.is_file() and b"qb_" in path.read_bytes()}
    assert secret == {"worker.key"}
    for path in (kept / "worker.key", kept / "data" / "access.json"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert "unauthenticated" in (kept / "bridge.log").read_text()


@pytest.mark.prove
async def test_json(tmp_path: Path) -> None:
    """The JSON is the only thing on standard output, and its figures fit together."""
    async with demo(tmp_path, "demo", *SMALL, "--bursts", "1", "--json", "--keep") as process:
        out, err = await process.communicate()
    outcome = msgspec.json.decode(out, type=Outcome)
    assert process.returncode == 0, err.decode()
    assert outcome.ok
    assert outcome.equal
    assert outcome.report == outcome.direct
    assert (outcome.report.files, outcome.files_put, outcome.lost, outcome.faults) == (60, 60, 0, [])
    assert outcome.bill.receives_while_quiet == 0
    assert outcome.bill.messages >= 2 * (outcome.files_put + outcome.probes_put)
    assert outcome.bill.wake.count == outcome.probes_put == 20
    assert (outcome.processes[0], max(outcome.processes), outcome.processes[-1]) == (0, 2, 0)
    assert outcome.killed_worker > 0
    assert outcome.bill.process_s < outcome.bill.polling.process_s
    (kept,) = (tmp_path / "scratch").iterdir()
    assert str(kept) in err.decode()
    assert (kept / "data" / "queue.db").exists()


async def test_corrupted_result(tmp_path: Path) -> None:
    """A worker that miscounts one file makes the demo fail, and the file is named."""
    script = (
        "import sys; from queuebell.demo.cli import perform; from queuebell.demo.plan import Plan; "
        f"worker = (sys.executable, {str(Path(__file__).with_name('faulty_worker.py'))!r}); "
        "sys.exit(perform(Plan(workers=2, bursts=1, quiet_s=0.1, sources=['ast.py', 'argparse.py', 'abc.py'],"
        " worker_command=worker)))"
    )
    async with demo(tmp_path, module=script) as process:
        out, _ = await process.communicate()
    assert process.returncode == 1
    assert "1 files differ from the direct analysis, the first is argparse.py" in out.decode()
    assert out.decode().endswith("FAILED\n")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.prove)])
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


@pytest.mark.parametrize(
    ("word", "name", "how"),
    [
        pytest.param("queuebell serve", "the bridge", "was ended by signal 9", marks=pytest.mark.prove),
        ("demo.worker", "worker ", "ended by SIGKILL"),
    ],
)
async def test_crash(tmp_path: Path, word: str, name: str, how: str) -> None:
    """A bridge or worker that dies unasked ends the demo, and all others, with one clear line and exit code 1."""
    async with demo(tmp_path, "demo", "--files", "60", "--quiet", "600", "--workers", "2") as process:
        await until_line(process, "burst 1")
        children = children_of(process.pid)
        os.kill(next(pid for pid, command in children.items() if word in command), signal.SIGKILL)
        _, err = await process.communicate()
    assert process.returncode == 1
    assert len(err.decode().splitlines()) == 1, err.decode()
    (line,) = err.decode().splitlines()
    assert line.startswith(f"queuebell demo: {name}")
    assert how in line
    assert [pid for pid in children if alive(pid)] == []
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [("--workers", "1"), ("--workers", "x"), ("--bursts", "0"), ("--quiet", "nan"), ("--quiet", "0"), ("--files", "0")],
)
async def test_usage(tmp_path: Path, arguments: tuple[str, str]) -> None:
    """An option out of range is refused with its name and exit code 2, before anything starts."""
    async with demo(tmp_path, "demo", *arguments) as process:
        _, err = await process.communicate()
    assert process.returncode == 2
    assert arguments[0] in err.decode()
