"""The bench keeps its form: it starts, measures, writes and cleans up. What it measures is no test's business."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from bench.figures import Report
from bench.openloop import Schedule, Wire
from bench.results import write

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
