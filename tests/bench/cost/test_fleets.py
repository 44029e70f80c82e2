"""Small days, counted by hand."""

from __future__ import annotations

import pathlib
import sys
from decimal import Decimal
from xml.etree import ElementTree

import pytest

from bench.cost.crew import play
from bench.cost.day import Burst, Day
from bench.cost.policy import POLICIES
from bench.cost.tariff import PAPER
from tests.support.command import run

HOUR = Day(3600.0)
SMALL = Day(900.0, 2.0, (Burst(100.0, 100), Burst(500.0, 30)))


@pytest.mark.parametrize("threads", [1, 7, 40])
def test_an_idle_hour_of_push(threads: int) -> None:
    """A queue elsewhere costs the whole fleet at most 67 receives, however many they are, and a queue's birth (I2)."""
    hour = play("push", HOUR, threads, 1)
    assert 54 <= hour.misses <= 67
    assert hour.wakes["resync"] == 1 and hour.misses == sum(hour.wakes.values())


@pytest.mark.parametrize("name", POLICIES)
def test_all_work_is_done_once(name: str) -> None:
    """Every message is put, received and deleted once, by so many slots as were asked for, under every policy."""
    done = play(name, SMALL, 10, 3)
    assert done.puts == done.deletes == done.latency.count == 130
    assert done.hits <= 130
    assert done.listeners == (1 if POLICIES[name].slots > 1 else 10)
    assert done.first.count == 2
    assert done.latency.max_s >= 100 * 1.0 / 10, "ten slots cannot have been at it faster"


def test_the_white_papers_sums() -> None:
    """One idle thread is $2.376 a month, and two hundred are $475.20."""
    assert PAPER.month(79_200) == Decimal("2.376")
    assert PAPER.month(79_200 * 200) == Decimal("475.2")


COST = [sys.executable, "-m", "bench", "cost"]
SMALL_CLI = ["--threads", "3", "--day", "30m", "--hours-busy", "0.1", "--batch-items", "50:60", "--bursts", "2"]


@pytest.mark.rest
def test_the_command_tells_draws_and_repeats_itself(tmp_path: pathlib.Path) -> None:
    """Table and picture, one row for each policy asked for, in that order; the same seed gives the same text."""
    words = [*SMALL_CLI, "--policy", "push,polling", "--seed", "7", "--svg", str(tmp_path / "cost.svg")]
    first, second = run(*words, command=COST), run(*words, command=COST)
    text = first.stdout.decode()
    assert first.stdout == second.stdout
    rows = [line.split()[0] for line in text.splitlines() if line.startswith(("push", "polling"))]
    assert rows == ["push", "polling", "push", "polling"]
    assert "79,200 empty receives a day, $2.38 a month: the same" in text
    assert first.stderr.decode().splitlines().count("polling: done") == 1
    ElementTree.parse(tmp_path / "cost.svg")
