"""The long run, short: it starts, hurts, drains and sums up; and its account is not its own opinion."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.bulk_tally import BulkTally
from tests.chaos.long_faults import FAULTS
from tests.chaos.long_run import LongRun


@pytest.mark.parametrize("auth", [False, pytest.param(True, marks=pytest.mark.rest)], ids=["open", "with keys"])
async def test_a_short_long_run(tmp_path: Path, auth: bool) -> None:
    """Under a killed producer and sessions reset, all that was acknowledged is handled; a note removed is a loss."""
    said: list[str] = []
    story = LongRun(6_000, minutes=0.0, seed=3, faults=["F1", "F22"], say=said.append, auth=auth)
    outcome = await story.run(tmp_path)
    assert outcome.broken == []
    assert outcome.total.acknowledged >= 6_000
    assert (outcome.total.lost, outcome.total.unexpected) == (0, 0)
    assert outcome.faults
    assert said[-1] == "all is put and healed; draining"
    assert outcome.as_json()["lost"] == 0
    note = max((tmp_path / "notes").glob("handled-*"), key=lambda file: file.stat().st_size)
    note.write_bytes(note.read_bytes()[8:])
    assert BulkTally(tmp_path / "notes").total().lost + outcome.total.duplicated >= 1


def test_every_fault_of_a_long_run_stands_in_the_catalogue() -> None:
    """By the same number, and with a bound."""
    from tests.chaos.catalogue import chosen
    from tests.chaos.long_run import PACE

    for number, fault in FAULTS.items():
        assert chosen(number)
        assert fault.number == number
        assert fault.bound_s(PACE) > 0
