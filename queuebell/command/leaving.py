"""The last step of ``queuebell listen`` where a handler does not end: the process ends without it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NoReturn

SETTLE_S: Final = 1.0
FLUSH_S: Final = 2.0
"""How long what was written gets to leave: a handler that hangs may do so in the midst of a write."""


class CountedThreads(ThreadPoolExecutor):
    """The event loop's own threads, where a coroutine's calls of `asyncio.to_thread` run, and how many still do."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="queuebell-thread")
        self._running: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a function called."""
        future = super().submit(fn, *args, **kwargs)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def settle(self) -> int:
        """Return how many calls do not end within a moment: one that was cut off may be about to."""
        running = [asyncio.wrap_future(future) for future in tuple(self._running)]
        if not running:
            return 0
        _, left = await asyncio.wait(running, timeout=SETTLE_S)
        return len(left)


def leave(code: int) -> NoReturn:
    """End the process now, with what was written and logged, and without what Python does and waits for at its end.

    For commands only: a library must not end the program it is part of.
    """
    flushing = threading.Thread(target=_flush, name="queuebell-flush", daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)
    os._exit(code)


def _flush() -> None:
    for flush in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            flush()
