"""The fault catalogue: every row that one machine can inject, once, with real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos import pace
from tests.chaos.catalogue import ROWS
from tests.chaos.row import Needs, Row, run
from tests.chaos.site import Site

# With keys and without them every row is run by `make test-long`; a submission runs each of them once, half with keys.
FEW = {"F4", "F7a", "F10a", "F17", "F24a", "F34", "F38a"}
"""Of all tests, some of each room; the rest are for `make test-rest`."""
FEW_WITH_KEYS = {"F6", "F10a"}
"""The same of those with authentication: sessions over a broker, and over HTTP."""
KEYS_ELSEWHERE = {"F49a", "F49b", "F49c", "F49e"}
"""What is shown there of keys, F49d shows."""
HERE = [row for row in ROWS if row.needs is Needs.NOTHING]
KEYED = {row.number for row in HERE[::2] if row.number not in KEYS_ELSEWHERE}


def mark(row: Row, *, auth: bool) -> pytest.MarkDecorator | tuple[()]:
    """Return when a row is run."""
    if row.number in (FEW_WITH_KEYS if auth else FEW):
        return ()
    return pytest.mark.rest if auth == (row.number in KEYED) else pytest.mark.long


SYSTEM = [row for row in ROWS if row.needs is Needs.SYSTEM]


async def holds(row: Row, folder: Path, *, auth: bool = False) -> None:
    measurement = await run(row, folder, auth=auth)
    sys.stdout.write(f"{row.number} {row.fault}: {measurement}\n")
    assert measurement.faults() == []


@pytest.mark.parametrize("row", [pytest.param(row, id=row.number, marks=mark(row, auth=False)) for row in HERE])
async def test_a_fault_loses_nothing_and_keeps_its_bound(row: Row, tmp_path: Path) -> None:
    """Lost = 0, unexpected = 0, and the longest wait is within the promise of its row."""
    await holds(row, tmp_path)


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.number, marks=mark(row, auth=True)) for row in HERE if row.number not in KEYS_ELSEWHERE],
)
async def test_a_fault_is_no_worse_with_authentication(row: Row, tmp_path: Path) -> None:
    """The same where bridges ask for keys, and every process has one."""
    await holds(row, tmp_path, auth=True)


@pytest.mark.system
@pytest.mark.parametrize("row", SYSTEM, ids=lambda row: row.number)
async def test_a_fault_that_needs_a_system_package(row: Row, tmp_path: Path) -> None:
    await holds(row, tmp_path)


async def test_a_row_fails_where_the_promise_is_broken(tmp_path: Path) -> None:
    """A trigger is lost and there is no sweep: nobody comes, and the row says what is missing."""

    async def nobody_comes(site: Site) -> None:
        await site.elsewhere(sweep_s="0")
        await site.worker()
        bodies = await site.put(1, tell=False)
        await site.tally.all_started(bodies, within_s=pace.sweep(site.pace).seconds)

    with pytest.raises(AssertionError, match="started; missing"):
        await run(Row("F4", "", "", pace.sweep, nobody_comes), tmp_path)
