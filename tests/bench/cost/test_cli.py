"""`python -m bench cost`."""

from __future__ import annotations

import json
import pathlib
import sys
from xml.etree import ElementTree

import pytest

from bench.cost import crew
from bench.cost.cli import main
from bench.cost.crew import PolicyLost, play_all
from bench.cost.day import Day
from bridge.contract.errors import BadInput
from tests.support.command import run

COST = [sys.executable, "-m", "bench", "cost"]
SMALL = ["--threads", "3", "--day", "30m", "--hours-busy", "0.1", "--batch-items", "50:60", "--bursts", "2"]


@pytest.mark.rest
def test_the_command_tells_draws_and_repeats_itself(tmp_path: pathlib.Path) -> None:
    """Table and picture, one row for each policy asked for, in that order; the same seed gives the same text."""
    words = [*SMALL, "--policy", "push,polling", "--seed", "7", "--svg", str(tmp_path / "cost.svg")]
    first, second = run(*words, command=COST), run(*words, command=COST)
    text = first.stdout.decode()
    assert first.stdout == second.stdout
    rows = [line.split()[0] for line in text.splitlines() if line.startswith(("push", "polling"))]
    assert rows == ["push", "polling", "push", "polling"]
    assert "79,200 empty receives a day, $2.38 a month: the same" in text
    assert first.stderr.decode().splitlines().count("polling: done") == 1
    ElementTree.parse(tmp_path / "cost.svg")


def test_json_is_all_there_is_on_standard_output() -> None:
    """The price counts; policies may be named one by one."""
    prices = ["--price", "1", "--per", "1", "--process-hour", "2"]
    words = ["--policy", "push", "--policy", "own", "--seed", "1", *prices, "--json"]
    told = json.loads(run(*SMALL, *words, command=COST).stdout)
    for row in told["rows"]:
        assert float(row["month"]) == row["transactions"] * 30 * 48
        assert float(row["process_month"]) == 3 * 0.5 * 30 * 48 * 2, "three for half an hour, at $2 an hour"
    assert [row["outcome"]["policy"] for row in told["rows"]] == ["push", "own"]
    assert told["tariff"] == ["1", 1, "2"]


@pytest.mark.parametrize(
    "words",
    [
        ["--threads", "0"],
        ["--threads", "many"],
        ["--hours-busy", "0"],
        ["--hours-busy", "nan"],
        ["--day", "24"],
        ["--day", "1s"],
        ["--batch-items", "9:8"],
        ["--batch-items", "0:8"],
        ["--batch-items", "8"],
        ["--bursts", "0"],
        ["--policy", "pushing"],
        ["--policy", "push,push"],
        ["--policy", ""],
        ["--price", "-1"],
        ["--price", "cheap"],
        ["--price", "NaN"],
        ["--per", "0"],
        ["--process-hour", "-0.1"],
        ["--start", "26"],
        ["--seed", "-1"],
        ["more"],
    ],
)
def test_bad_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What an option cannot be is said before anything is played, with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--day", "1h", "--hours-busy", "2"], "no more than the day"),
        (["--threads", "1", "--batch-items", "900000:900000"], "no time to handle them"),
        (["--svg", "/nowhere/at/all.svg"], "--svg"),
        (["--svg", "/"], "--svg"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A day that cannot be, or a picture that could not be written, is said at once, with exit code 2."""
    assert main(words) == 2
    assert complaint in capsys.readouterr().err


def test_a_process_that_ends_without_a_result_is_told() -> None:
    """A policy whose process breaks is named, and nobody waits for it."""
    broken = Day(-1.0, "not a number", ())  # type: ignore[arg-type]
    with pytest.raises(PolicyLost, match="'own'"):
        play_all(["own"], broken, 1, 1, lambda name, share: None)


def test_every_policy_has_its_turn() -> None:
    """The order in which they begin names each of them once."""
    assert sorted(crew.HEAVIEST_FIRST) == sorted(crew.POLICIES)


def test_another_seed_is_another_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same seed is the same one."""
    days: list[Day] = []

    def drawn(names: list[str], day: Day, *_: object) -> None:
        days.append(day)
        raise BadInput("bad_parameter", "this is enough")

    monkeypatch.setattr("bench.cost.cli.compare", drawn)
    for seed in ("1", "1", "2"):
        assert main([*SMALL, "--seed", seed]) == 2
    assert days[0] == days[1] != days[2]


def test_one_policy_named_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether in one option or in two."""
    assert main(["--policy", "push", "--policy", "push"]) == 2
    assert "names one policy twice" in capsys.readouterr().err
