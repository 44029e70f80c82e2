"""Points in time as text: RFC 3339, UTC, milliseconds."""

from __future__ import annotations

import datetime


def rfc3339(moment: datetime.datetime) -> str:
    """Return a moment as ``2026-11-20T17:31:00.123Z``, truncated to milliseconds."""
    utc = moment if moment.tzinfo is datetime.UTC else moment.astimezone(datetime.UTC)
    # isoformat is three times as fast as strftime, and each received message needs one or two.
    return utc.isoformat(timespec="milliseconds")[:23] + "Z"


def from_rfc3339(text: str) -> datetime.datetime:
    """Return the moment of a text. Raises `ValueError` for an invalid text or a missing offset."""
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time needs an offset from UTC")
    return moment
