"""The bench keeps its form: it starts, measures, writes and cleans up. What it measures is no test's business."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from bench import peers
from bench.figures import Report
from bench.openloop import Schedule, Wire
from bench.peers import SYSTEMS, lines_of, tell
from bench.results import write
from bench.stages import FLUSH

ROOT = Path(__file__).resolve().parents[2]


def test_missed_target_is_written_as_missed(tmp_path: Path) -> None:
    """A figure past its target stands in the results, with its number, as missed."""
    report = Report("Some figure")
    report.at_most("latency, times the floor", 1.51, 1.3)
    report.at_least("rate", 12_000, 10_000, "{:,.0f}")
    write(tmp_path / "RESULTS.md", [("cores", "2")], [report], ["python", "-m", "bench"], 1.0)
    text = (tmp_path / "RESULTS.md").read_text("utf-8")
    assert "| latency, times the floor | 1.51 | <= 1.30 | **missed** |" in text
    assert "| rate | 12,000 | >= 10,000 | met |" in text
    assert "| cores | 2 |" in text


@pytest.mark.parametrize(
    "name",
    [
        "auth",
        "growth",
        "intake",
        *(pytest.param(name, marks=pytest.mark.rest) for name in ("idle", "ingestion", "scale")),
    ],
)
def test_quick_run_measures_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    """A quick run of a figure ends well, writes it down, and leaves no files behind."""
    out, scratch = tmp_path / "RESULTS.md", tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "bench", "--quick", "--out", str(out), name]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": "", "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "NOT MEASURED" not in out.read_text("utf-8")
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("name", ["postgres", "postgres-pressure", "postgres_pressure"])
def test_what_needs_others_beside_us_says_so(tmp_path: Path, name: str) -> None:
    """Without a server or the other queues a figure on request is reported as not measured, with what it needs."""
    out = tmp_path / "RESULTS.md"
    command = [sys.executable, "-m", "bench", "--quick", "--out", str(out), name]
    ran = subprocess.run(command, cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "NOT MEASURED: RuntimeError: needs a PostgreSQL server" in out.read_text("utf-8")


class Sent:
    """Stands for a connection: what it was given to send, and when that was due."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, float]] = []

    def ask(self, request: bytes, due: float) -> None:
        """Take a request."""
        self.asked.append((request, due))


def schedule(count: int, wires: list[Sent]) -> Schedule:
    """Return a run of ten requests a second that began at 100."""
    made = Schedule([b"<", b">"], 5, 10.0, count)
    made.begun = 100.0
    made.free.extend(cast(Wire, wire) for wire in wires)
    return made


async def test_requests_keep_the_time_at_which_they_were_due() -> None:
    """A request that no connection was free for is sent late, and its wait counts from its own time."""
    first, second = Sent(), Sent()
    run = schedule(4, [first, second])
    assert run.send_due(100.0)
    assert run.send_due(100.35)
    assert [wire.asked for wire in (first, second)] == [
        [(b"<0000000000000005>", 100.0)],
        [(b"<0000000000000006>", 100.1)],
    ]
    run.free.append(cast(Wire, first))
    assert run.send_due(101.0)
    run.free.append(cast(Wire, second))
    assert not run.send_due(101.0)
    assert [first.asked[1], second.asked[1]] == [(b"<0000000000000007>", 100.2), (b"<0000000000000008>", 100.3)]


async def test_answers_are_counted_by_status_until_all_are_there() -> None:
    """Latency is from when the request was due; the run ends with the last answer and not before."""
    run = schedule(2, [Sent()])
    run.answer(b"201", time.monotonic() - 2.0, False)
    assert not run.done.is_set()
    run.answer(b"429", time.monotonic(), True)
    assert run.done.is_set()
    assert (len(run.latencies[b"201"]), len(run.latencies[b"429"]), run.begged) == (1, 1, 1)
    assert run.latencies[b"201"][0] >= 2.0
    run.fail(b"closed afterwards")
    assert run.wrong is None


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_system_is_a_program_of_its_own(name: str) -> None:
    """Its file has a producer, its command is that of the file, and the file is no longer than a first page."""
    system = SYSTEMS[name]
    source = (peers.PROGRAMS / f"{system.program}.py").read_text("utf-8")
    functions = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.AsyncFunctionDef)]
    assert "producing" in functions
    assert not system.worker or any(f"bench.programs.{system.program}" in part for part in system.worker)
    assert 5 < lines_of(source) < 40


def test_everybody_is_in_the_lock() -> None:
    """What is named as a rival is installed by the peers' lock, in the version that the lock says."""
    locked = (ROOT / "requirements-peers.lock").read_text("utf-8")
    for name in (name for name, system in SYSTEMS.items() if system.rival):
        assert f"\n{name}==" in locked, name


def waits(ours: float) -> dict[str, tuple[list[float], list[float]]]:
    """Everybody took 2 ms and more; ours what is said."""
    return {name: ([ours if name == peers.OURS else 2.0 + at] * 3, [1.0]) for at, name in enumerate(SYSTEMS)}


@pytest.mark.parametrize("ours, verdict", [(1.5, True), (9.5, False)])
def test_ours_is_held_against_the_best_of_the_others(ours: float, verdict: bool) -> None:
    """Below every other at p50 and p99, or written as missed, with the name of the one that is better."""
    report = Report("peers")
    tell(report, waits(ours), dict.fromkeys(SYSTEMS, 7), [(FLUSH, 0.91)])
    found = {figure.name: figure for figure in report.figures}
    for share in ("p50", "p99"):
        figure = found[f"{share}, ms: Queuebell, below every other (Celery with Redis)"]
        assert (figure.met, figure.target) == (verdict, "<= 5.00")
    assert found["Celery with Redis: commands of Redis while idle"].value == "7"
    assert found[f"Queuebell, of its p50, ms: {FLUSH}"].value == "0.91"
    assert found["bare NATS, and Queuebell's commit with its flush: the sum of both p50, ms"].value == "11.91"
    assert found["Queuebell: lines of the program"].value == "10"
    assert not any("bare NATS" in name and "lines" in name for name in found)
