"""The accounts can fail: each of the six numbers, planted, is found, in the small account and in the large one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import pace
from tests.chaos.catalogue import ROWS
from tests.chaos.pace import Pace
from tests.chaos.row import Measurement, Row, run
from tests.chaos.site import Site
from tests.chaos.tally import TotalQueue


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


async def test_a_row_fails_where_the_promise_is_broken(tmp_path: Path) -> None:
    """A trigger is lost and there is no sweep: nobody comes, and the row says what is missing."""

    async def nobody_comes(site: Site) -> None:
        await site.elsewhere(sweep_s="0")
        await site.worker()
        bodies = await site.put(1, tell=False)
        await site.tally.all_started(bodies, within_s=pace.sweep(site.pace).seconds)

    with pytest.raises(AssertionError, match="started; missing"):
        await run(Row("F4", "", "", pace.sweep, nobody_comes), tmp_path)
