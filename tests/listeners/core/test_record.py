"""What an entry of the ledger allows the next who comes with its key."""

from __future__ import annotations

import msgspec
import pytest

from listeners.core.record import AlreadyDone, Begin, Record, Standing, Wait, begin

MINE = Record("order-7", Standing.BEGUN, "me", "m1", 2, 60.0)


def theirs(**changes: object) -> Record:
    base = Record("order-7", Standing.BEGUN, "they", "m2", 1, 60.0, b"half")
    return msgspec.structs.replace(base, **changes)


RESUMED = Begin(msgspec.structs.replace(MINE, progress=b"half"))


@pytest.mark.parametrize(
    ("found", "age", "expected"),
    [
        (None, 0.0, Begin(MINE)),
        (theirs(standing=Standing.DONE), 0.0, AlreadyDone()),
        (theirs(standing=Standing.DONE), 1e9, AlreadyDone()),
        (theirs(standing=Standing.OPEN), 0.0, RESUMED),
        (theirs(), 10.0, Wait(50.0)),
        (theirs(), 60.0, Wait(0.0)),
        (theirs(), 60.1, RESUMED),
        (theirs(lease_s=5.0), 10.0, RESUMED),
        (theirs(message="m1", attempt=1), 0.0, RESUMED),
        (theirs(message="m1", attempt=2), 0.0, Wait(60.0)),
        (theirs(message="m1", attempt=3), 0.0, Wait(60.0)),
        (theirs(holder="me"), 0.0, RESUMED),
    ],
)
def test_who_may_begin(found: Record | None, age: float, expected: object) -> None:
    """Nobody once it is done; at once what failed or was handed out anew; else after the entry's own lease."""
    assert begin(found, age, MINE) == expected
