"""Points in time as text."""

from __future__ import annotations

import datetime
import time

import pytest

from bridge.contract.times import from_rfc3339, rfc3339

EARLY = datetime.timezone(datetime.timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime.datetime(2026, 11, 20, 17, 31, 0, 123_999, datetime.UTC), "2026-11-20T17:31:00.123Z"),
        (datetime.datetime(2026, 11, 20, 17, 31, tzinfo=datetime.UTC), "2026-11-20T17:31:00.000Z"),
        (datetime.datetime(2026, 11, 20, 3, 0, 5, 7000, EARLY), "2026-11-19T21:30:05.007Z"),
        (datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, datetime.UTC), "1969-12-31T23:59:59.999Z"),
    ],
)
def test_a_moment_is_written_in_utc_to_the_millisecond(moment: datetime.datetime, text: str) -> None:
    """Whatever its zone; fractions are cut off, not rounded, and it is read back as the same."""
    assert rfc3339(moment) == text
    assert from_rfc3339(text) == moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def test_a_machine_that_is_not_set_to_utc_writes_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a moment in any zone but UTC itself too."""
    monkeypatch.setenv("TZ", "XXX-3")
    time.tzset()
    try:
        assert rfc3339(datetime.datetime(2026, 11, 20, 3, 0, 5, 7000, EARLY)) == "2026-11-19T21:30:05.007Z"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-11-20T17:31:00", "2026-11-20T17:31:00.123"])
def test_a_time_needs_its_offset(text: str) -> None:
    """Or nobody knows when it is."""
    with pytest.raises(ValueError, match="offset" if "T" in text else "Invalid isoformat"):
        from_rfc3339(text)
