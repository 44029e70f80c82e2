"""The long run, short: it starts, hurts, drains and sums up; and its account is not its own opinion."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.bulk import BulkTally
from tests.chaos.long_run import LongRun


@pytest.mark.parametrize("auth", [False, pytest.param(True, marks=pytest.mark.rest)], ids=["open", "with keys"])
async def test_a_short_long_run(tmp_path: Path, auth: bool) -> None:
    """Under a killed producer and sessions reset, all that was acknowledged is handled; a note removed is a loss."""
    said: list[str] = []
    outcome = await LongRun(6_000, seed=3, say=said.append, auth=auth).run(tmp_path, ["F1", "F22"])
    assert outcome.broken == []
    assert outcome.total.acknowledged >= 6_000
    assert (outcome.total.lost, outcome.total.unexpected) == (0, 0)
    assert outcome.faults
    assert said[-1] == "all is put and healed; draining"
    note = max((tmp_path / "notes").glob("handled-*"), key=lambda file: file.stat().st_size)
    note.write_bytes(note.read_bytes()[8:])
    assert BulkTally(tmp_path / "notes").total().lost + outcome.total.duplicated >= 1
