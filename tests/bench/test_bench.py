"""The bench keeps its form: it starts, measures, writes and cleans up. What it measures is no test's business."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.figures import Report, median_ratio, percentile
from bench.results import write

ROOT = Path(__file__).resolve().parents[2]


def test_percentile_is_a_sample_that_the_share_of_all_are_not_above() -> None:
    """Nearest rank: no figure is made up between two samples."""
    samples = [float(number) for number in range(1, 101)]
    assert (percentile(samples, 0.5), percentile(samples, 0.99), percentile(samples, 1.0)) == (50.0, 99.0, 100.0)
    assert percentile([7.0], 0.99) == 7.0


def test_ratio_is_taken_round_by_round() -> None:
    """A round in which the machine was slow weighs on both sides of its own ratio only."""
    assert median_ratio([2.0, 20.0, 3.0], [1.0, 10.0, 2.0]) == 2.0


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


def test_unknown_figure_is_refused() -> None:
    """A figure that does not exist is a usage error that names it."""
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "nothing"], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert ran.returncode == 2
    assert "nothing" in ran.stderr
