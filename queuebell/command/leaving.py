"""Ends the process of ``queuebell listen`` when a handler hangs."""

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
"""How long to wait for output to be flushed: a handler may hang in the middle of a write."""


class CountedThreads(ThreadPoolExecutor):
    """The event loop's executor, which knows how many calls of `asyncio.to_thread` still run."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="queuebell-thread")
        self._running: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in a thread."""
        future = super().submit(fn, *args, **kwargs)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def settle(self) -> int:
        """Return how many calls still run after a moment; a cancelled one may be about to end."""
        running = [asyncio.wrap_future(future) for future in tuple(self._running)]
        if not running:
            return 0
        _, left = await asyncio.wait(running, timeout=SETTLE_S)
        return len(left)


def leave(code: int) -> NoReturn:
    """End the process now: flush output and logs, but do not wait for threads as Python would.

    For commands only: a library must not end the program it is part of.
    """
    flushing = threading.Thread(target=_flush, name="queuebell-flush", daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)
    os._exit(code)


def _flush() -> None:
    for flush in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone
            flush()
