"""What the simulator promises: runs repeat themselves, and its command names what failed and what was never checked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.exploration.cluster.mutants import ForgivesByArrival
from tests.simulation import command
from tests.simulation.command import Job, Played, play_one
from tests.simulation.plan import PRESETS
from tests.simulation.run import run
from tests.simulation.test_cluster import with_turns


def test_the_command_plays_seeds_and_one_seed_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "4", "--jobs", "2"]) == 0
    said = capsys.readouterr().out
    assert "4 runs" in said and "receives an hour of an empty queue (own)" in said and "checked: I1" in said
    assert "All of it held." in said
    args = ("--seed", "17", "--store", "elsewhere", "--channel", "broker")
    assert command.main([*args]) == 0
    said = capsys.readouterr().out
    assert command.main([*args]) == 0
    assert capsys.readouterr().out == said and " put producer=" in said and "trace " in said


def test_the_command_names_what_failed_and_the_faults_that_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong turn (W1) and an exception of the simulator itself."""

    def play(given: Any, processes: int) -> list[Played]:
        found = list(given)
        return [*map(play_one, found[:-1]), Played(found[-1], None, "Traceback\nValueError: a defect")]

    wrong = with_turns(ForgivesByArrival)
    monkeypatch.setattr(command, "play", play)
    monkeypatch.setattr(command, "run", lambda *given, **named: run(*given, **named, scheduler=wrong))
    words = ["--bridges", "2", "--seeds", "2", "--hours", "0.02", "--workers", "1", "--faults", "slow_link"]
    assert command.main(words) == 1
    said = capsys.readouterr().out
    assert "FAILED: 2 of 2 runs" in said and "C4" in said and "ValueError: a defect" in said
    assert "The faults without which seed 0 keeps C" in said


def test_what_a_run_never_checked_is_no_proof(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """I6 is checked only in runs that restart their bridge."""
    one = play_one(Job(PRESETS["own-wire"], 1, []))
    monkeypatch.setattr(command, "play", lambda given, _: [one for _ in given])
    assert command.main(["--seeds", "16"]) == 0
    assert "Never checked: " in capsys.readouterr().out


@pytest.mark.parametrize("words", ["--seeds 0", "--hours 0", "--faults rain", "--faults stall", "--bridges 3 --auth"])
def test_options_that_cannot_be_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words.split())
    assert ended.value.code == 2
    assert words.split()[0][2:5] in capsys.readouterr().err
