"""Points in time as text: RFC 3339, UTC, milliseconds."""

from __future__ import annotations

import datetime


def rfc3339(moment: datetime.datetime) -> str:
    """Write a moment as ``2026-11-20T17:31:00.123Z``; fractions of a millisecond are cut off."""
    utc = moment if moment.tzinfo is datetime.UTC else moment.astimezone(datetime.UTC)
    # isoformat is three times as fast as strftime, and there is one or two of these per message received.
    return utc.isoformat(timespec="milliseconds")[:23] + "Z"


def from_rfc3339(text: str) -> datetime.datetime:
    """Read what `rfc3339` wrote. Raises `ValueError` for text of another form or without an offset."""
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time needs an offset from UTC")
    return moment
