"""Time limits of calls to blob and table stores, independent of their client libraries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from queuebell.bridge.contract.errors import UnknownOutcome

CALL_S: Final = 60.0
"""The most for one call. A client's own time-out restarts with each byte and does not cover ``100 Continue``."""
LISTING_S: Final = 300.0
"""The most for a listing, which can be many requests."""


@contextlib.asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """End the block after ``seconds``. Raises `UnknownOutcome`: the store may still carry the call out."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise UnknownOutcome(f"{what}: no answer within {seconds:g} s") from None
