"""Reading the two forms in which requests write a moment."""

from __future__ import annotations

import datetime
import functools
import re

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_http = re.compile(
    r"[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT"
).fullmatch
_iso = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:T([0-9]{2}:[0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,7}))?)?(Z|[+-][0-9]{2}:[0-9]{2}))?"
).fullmatch


# Requests of one second carry one text; what is remembered is public and the same for everybody.
@functools.lru_cache(maxsize=256)
def read_http_date(text: str) -> datetime.datetime | None:
    """Read ``Sun, 06 Nov 1994 08:49:37 GMT``; None for anything else."""
    match = _http(text)
    if match is None or match[2] not in _MONTHS:
        return None
    try:
        return datetime.datetime(
            int(match[3]),
            _MONTHS[match[2]],
            int(match[1]),
            int(match[4]),
            int(match[5]),
            int(match[6]),
            tzinfo=datetime.UTC,
        )
    except ValueError:
        return None


def read_iso(text: str) -> datetime.datetime | None:
    """Read a day, or a day with a time and a zone, in the forms of a shared access signature; None for anything else.

    A day alone is its first moment in UTC. Digits past the microsecond are cut off.
    """
    match = _iso(text)
    if match is None:
        return None
    day, minutes, seconds, fraction, zone = match.groups()
    whole = f"{day}T{minutes or '00:00'}:{seconds or '00'}.{(fraction or '').ljust(6, '0')[:6]}"
    try:
        moment = datetime.datetime.fromisoformat(whole + ("+00:00" if zone in (None, "Z") else zone))
        return moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None


def write_iso(moment: datetime.datetime) -> str:
    """Write a moment as the service does, with seven digits of a second's fraction."""
    return f"{moment.astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}0Z"
