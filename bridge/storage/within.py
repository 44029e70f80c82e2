"""The end of every call to a blob store or table store, whatever its client library waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from bridge.contract.errors import UnknownOutcome

CALL_S: Final = 60.0
"""How long one call may take. A client's own time-out counts from byte to byte, and none counts the wait for a
``100 Continue``."""
LISTING_S: Final = 300.0
"""The same for a listing, which may be many requests."""


@contextlib.asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """End the block after so many seconds. Raises `UnknownOutcome`: the store may have done it, or may still."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise UnknownOutcome(f"{what}: no answer within {seconds:g} s") from None
