"""The accounts can fail: each of the six numbers, planted, is found, in the small account and in the large one."""

from __future__ import annotations

import array
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos import pace
from tests.chaos.bulk_producer import RECORD
from tests.chaos.bulk_tally import BulkTally
from tests.chaos.catalogue import ROWS, chosen
from tests.chaos.pace import Pace
from tests.chaos.row import Measurement, Row, run
from tests.chaos.site import Site
from tests.chaos.tally import Tally, TotalQueue, total


def test_the_six_numbers() -> None:
    """One of each kind."""
    attempted = {"taken": None, "lost": None, "recovered": None, "nothing": None, "expired": None}
    handled = Counter({"taken": 3, "recovered": 1, "stranger": 1})
    numbers = total(attempted, {"taken": 1.0, "lost": 1.0, "expired": 1.0}, handled, {"expired"})
    assert numbers == TotalQueue(attempted=5, acknowledged=3, lost=1, duplicated=2, recovered=1, unexpected=1)


def test_the_six_numbers_of_a_long_run(tmp_path: Path) -> None:
    """From the notes of two producers and two workers, the last record of each cut off by a kill."""
    tally = BulkTally(tmp_path)
    second = 2 << 40

    def note(name: str, *records: tuple[int, int]) -> None:
        data = b"".join(RECORD.pack(*record) for record in records)
        (tmp_path / name).write_bytes(data + RECORD.pack(7 << 40, 1)[:9])

    note("attempted-0", (0, 32), (32, 32))
    note("acknowledged-0", (0, 32))
    note("attempted-2", (second, 32))
    note("acknowledged-2", (second, 32))
    one = array.array("Q", [*range(32), 40, 41, second])
    two = array.array("Q", [*range(4), *range(second, second + 30), second + 1000, 99 << 40])
    (tmp_path / "handled-a").write_bytes(one.tobytes() + b"\x01")
    (tmp_path / "handled-b").write_bytes(two.tobytes())
    assert tally.total() == TotalQueue(attempted=96, acknowledged=64, lost=2, duplicated=5, recovered=2, unexpected=2)
    assert (tally.acknowledged(0), tally.acknowledged(2), tally.acknowledged(5)) == (32, 32, 0)
    assert tally.handled() == len(one) + len(two)


async def test_a_wait_counts_from_when_it_could_be_ended() -> None:
    """From visibility, or from the moment given where that is later, to the next start; not from an earlier one."""
    tally = Tally()
    tally.acknowledge(["a", "b"], 10.0)
    tally.began("a", 9.5)
    tally.began("b", 12.0)
    assert tally.measure(["a", "b"]) == 2.0
    tally.began("a", 15.0)
    assert tally.measure(["a"], 14.0) == 1.0
    assert tally.worst_wake_s == 2.0


def test_what_is_not_kept_is_named() -> None:
    """Loss, a stranger, a wait past the bound, and a row that did nothing."""
    row = ROWS[0]
    bound = row.promise(Pace())

    def faults(wake_s: float, *numbers: int) -> list[str]:
        return Measurement(row, bound, wake_s, TotalQueue(*numbers), 1.0, {}).faults(0.0)

    assert faults(0.1, 2, 2, 0, 1, 0, 0) == []
    assert faults(0.1, 2, 2, 1, 0, 0, 0) == ["lost=1"]
    assert faults(0.1, 2, 2, 0, 0, 0, 3) == ["unexpected=3"]
    assert faults(0.1, 2, 0, 0, 0, 0, 0) == ["nothing was put"]
    assert len(faults(bound.seconds + 0.1, 2, 2, 0, 0, 0, 0)) == 1


def test_rows_have_numbers_of_their_own_and_all_faults_have_one() -> None:
    """F1 to F49, each at least once; what cannot be injected here comes with a command."""
    numbers = [row.number for row in ROWS]
    assert len(set(numbers)) == len(numbers)
    assert {number.rstrip("abcdefgh") for number in numbers} == {f"F{number}" for number in range(1, 50)}
    assert all(row.command for row in ROWS if row.inject is None)
    assert [row.number for row in chosen("f10b,F1")] == ["F10b", "F1"]
    with pytest.raises(ValueError, match="F99"):
        chosen("F99")


async def test_a_row_fails_where_the_promise_is_broken(tmp_path: Path) -> None:
    """A trigger is lost and there is no sweep: nobody comes, and the row says what is missing."""

    async def nobody_comes(site: Site) -> None:
        await site.elsewhere(sweep_s="0")
        await site.worker()
        bodies = await site.put(1, tell=False)
        await site.tally.all_started(bodies, within_s=pace.sweep(site.pace).seconds)

    with pytest.raises(AssertionError, match="started; missing"):
        await run(Row("F4", "", "", pace.sweep, nobody_comes), tmp_path)
