"""Lists of queues that begin at what may be seen, and that read a bounded part of the store for each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from bridge.core.grants import Reach

READ_AT_ONCE: Final = 1000
"""Names that one call of the store reads at most."""
CALLS_MAX: Final = 32
"""Calls of the store that one request makes at most."""

Row = tuple[str, dict[str, str]]
"""A queue with its metadata."""


async def listed(
    read: Callable[[str, str, int], Awaitable[list[Row]]],
    reach: Reach,
    prefix: str,
    after: str,
    count: int,
    fits: Callable[[str], bool] | None = None,
) -> tuple[list[Row], str | None]:
    """Return up to ``count`` queues of ``reach`` that ``fits`` accepts, and where a next page begins, or None.

    ``read`` takes a prefix, the name to go on after, and a limit. A page may hold fewer queues than ``count``, or none,
    although another one follows: a request makes at most 32 calls.
    """
    found: list[Row] = []
    calls = 0
    for stretch, exact in reach.stretches(prefix, after):
        more = True
        while more:
            if calls == CALLS_MAX:
                return found, after
            calls += 1
            # One more than asked for: it tells whether there is a next page.
            most = 1 if exact else READ_AT_ONCE if fits else min(READ_AT_ONCE, count + 1 - len(found))
            rows = await read(stretch, "" if exact else after, most)
            more = len(rows) == most and not exact
            if exact:
                rows = [row for row in rows if row[0] == stretch]
            after = stretch if exact else rows[-1][0] if rows else after
            found += [row for row in rows if fits is None or fits(row[0])]
            if len(found) > count:
                return found[:count], found[count - 1][0]
    return found, None
