"""Call a store that may be away until it answers, as long as the answer is still needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from queuebell.bridge.contract.backoff import Draw, FullJitter
from queuebell.bridge.contract.bounds import STORE_CALL_S
from queuebell.bridge.contract.errors import ConfigurationError, QueuebellError, StoreError

T = TypeVar("T")

log = logging.getLogger("queuebell.listener")

_OF_NO_MESSAGE: Final = (StoreError, ConfigurationError)


class NoLongerWanted(Exception):
    """The message was lost or released while a store did not answer."""


async def retry_until(
    call: Callable[[], Awaitable[T]],
    what: str,
    *,
    wanted: Callable[[], bool],
    draw: Draw,
    allow_s: float = STORE_CALL_S,
) -> T:
    """Return what ``call`` gives, repeating what fails in passing: with jitter, and longer time-outs after time-outs.

    A failure that is not about the message (a revoked right, a missing container, an unusable address) is retried too:
    an operator can fix it, and giving up would cost the message an attempt.
    ``allow_s`` limits the first try. Raises any other error of the call, and `NoLongerWanted` once ``wanted`` is
    False.
    """
    patience = Patience(allow_s)
    while wanted():
        try:
            async with asyncio.timeout(patience.seconds):
                return await call()
        except (QueuebellError, TimeoutError) as error:
            if isinstance(error, QueuebellError) and not (error.retryable or type(error) in _OF_NO_MESSAGE):
                raise
            log.warning("failed to %s, trying again: %s", what, str(error) or "time-out")
            pause = patience.miss(draw, timed_out=isinstance(error, TimeoutError))
        await asyncio.sleep(pause)
    raise NoLongerWanted


PAUSE_FIRST_S: Final = 0.2
PAUSE_CAP_S: Final = 30.0
LONGER_MAX: Final = 4.0


class Patience:
    """The time-outs and pauses of one call that is repeated until it succeeds.

    ``seconds`` is what the next try may take: ``first``, doubled after each try that timed out, four-fold at most.
    """

    __slots__ = ("_backoff", "_first", "seconds")

    def __init__(self, first: float) -> None:
        self.seconds = self._first = first
        self._backoff = FullJitter(PAUSE_FIRST_S, PAUSE_CAP_S)

    def miss(self, draw: Draw, *, timed_out: bool) -> float:
        """Count a try that failed and return the seconds to wait before the next."""
        if timed_out:
            self.seconds = min(self.seconds * 2, self._first * LONGER_MAX)
        return self._backoff.miss(draw)
