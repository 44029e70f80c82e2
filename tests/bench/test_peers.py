"""The bench of peers keeps its form. The peers are not installed here: what is shown is what needs none of them."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import peers
from bench.figures import Report
from bench.peers import SYSTEMS, lines_of, measure, notes, tell
from bench.programs.sample import sample
from bench.sizes import FULL, QUICK
from bench.stage import Stage
from bench.stages import BEGIN, FLUSH, STAGES, each, medians

ROOT = Path(__file__).resolve().parents[2]


def test_lines_are_those_with_code() -> None:
    """No blank line, comment or docstring counts; a statement over three lines is three, and so is a text in a call."""
    source = '''"""What it is.

Two lines more.
"""
# a comment

import os


def f(a):  # kept: code stands before it
    """Documents."""
    return g(
        a,
        """text
of two lines""",
    )
'''
    assert lines_of(source) == 7
    assert lines_of("") == 0


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


def test_notes_say_what_was_done() -> None:
    """The number of puts, the pause and the idle time are those of the run."""
    text = " ".join(notes(FULL, 120))
    assert "120 puts each, one every 0.5 s" in text
    assert "for 10 minutes" in text


def marks(begin: int, step: int) -> list[tuple[str, int]]:
    """The clocks of one put, each ``step`` microseconds after the one before."""
    names = [BEGIN, *(name for name, _ in STAGES)]
    return [(name, (begin + at * step) * 1000) for at, name in enumerate(names)]


def test_stages_are_told_apart_put_by_put() -> None:
    """What comes again before the next put is not counted, nor a put that lacks a stage."""
    first, second, cut = marks(0, 100), marks(50_000, 300), marks(90_000, 100)[:-1]
    again = [("bytes", 9_000_000), ("on the disk", 9_500_000)]
    found = each([*cut, *second, *again, *first])
    assert found == [[pytest.approx(0.1)] * len(STAGES), [pytest.approx(0.3)] * len(STAGES)]
    assert medians(found) == [(words, pytest.approx(0.2)) for _, words in STAGES]


def test_a_heartbeat_within_a_put_does_not_pass_for_its_bytes() -> None:
    """Where something was read before the request was sent, the put is left out: its order is not that of a put."""
    assert each([*marks(0, 100), (STAGES[1][0], 50_000)]) == []


def test_sample_is_one_line_of_nanoseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task adds one line: how long ago its stamp was taken."""
    monkeypatch.setenv("SAMPLES", str(tmp_path / "samples"))
    sample(str(time.monotonic_ns() - 5_000_000))
    sample(str(time.monotonic_ns()).encode())
    first, second = map(int, (tmp_path / "samples").read_text().splitlines())
    assert first >= 5_000_000 > 0 <= second


async def test_missing_environment_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the peers' own environment nothing is started, and the error says how it is made."""
    monkeypatch.setattr(peers, "PEERS", tmp_path)
    async with Stage() as stage:
        with pytest.raises(RuntimeError, match="`make peers`"):
            await measure(stage, QUICK, lambda _: None)
        assert list(stage.folder.iterdir()) == []


async def test_missing_server_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Redis the run ends at once, with the name of the program that it lacks."""
    (tmp_path / "celery").touch()
    monkeypatch.setattr(peers, "PEERS", tmp_path)
    monkeypatch.setenv("PATH", "")
    async with Stage() as stage:
        with pytest.raises(RuntimeError, match="redis-server"):
            await measure(stage, QUICK, lambda _: None)
        assert list(stage.folder.iterdir()) == []


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "1441", "soon"])
def test_idle_minutes_have_bounds(minutes: str) -> None:
    """A time that is none, or more than a day, is a usage error that says what may be given."""
    command = [sys.executable, "-m", "bench", "--quick", f"--idle-minutes={minutes}", "peers"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 2
    assert "--idle-minutes" in ran.stderr
