"""Exceptions that must cost one call and nothing else: counted, and logged at most once a minute for each kind of call.

The bridge, the worker and the scaler call what others wrote: observers, span processors, log handlers, stores. What
such a call raises ends here, so that the session or queue that was being served goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Awaitable
from types import TracebackType
from typing import Final, TypeVar

from bridge.contract.throttle import Throttle

T = TypeVar("T")

EVERY_S: Final = 60.0
LOGGERS: Final = tuple(
    f"queuebell{name}"
    for name in (
        *("", ".access", ".azure", ".bridge", ".broker", ".claims", ".config", ".keda", ".ledger", ".listener"),
        *(".metrics", ".outbox", ".partitions", ".publisher", ".relay", ".scaler", ".store", ".taskiq", ".tracing"),
        *(".web", ".webhook"),
    )
)
"""All that Queuebell logs by."""

log = logging.getLogger("queuebell")

counts: Counter[str] = Counter()
"""How many exceptions ended here since this process began, by what was called."""
_lines: defaultdict[str, Throttle] = defaultdict(lambda: Throttle(EVERY_S))


def swallow(what: str, error: Exception) -> None:
    """Count an exception of ``what`` (one of a few texts, never one from outside), and log it with its traceback."""
    counts[what] += 1
    more = _lines[what].passes(time.monotonic())
    if more is not None:
        after = f" ({more} more since the last such line)" if more else ""
        log.error("unexpected error in %s; only this call fails%s", what, after, exc_info=error)


class swallowing:  # noqa: N801 - reads as what it is, like contextlib.suppress
    """A block whose exceptions are passed to `swallow`; a cancellation goes on."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        swallow(self._what, error)
        return True


class StrayCancellation(RuntimeError):
    """Something that was awaited ended with a cancellation that nobody asked of the task that awaits it."""


async def unless_cancelled(call: Awaitable[T]) -> T:
    """Return what ``call`` brings; a cancellation of this task goes on, and any other is `StrayCancellation`.

    A driver that cancels a future of its own would else end the task that keeps a session or a count alive, silently.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StrayCancellation("a cancellation that nobody asked for") from error


class SafeLogger(logging.Logger):
    """A logger whose handlers and filters cannot break the code that logs."""

    def handle(self, record: logging.LogRecord) -> None:
        """Pass a record to the handlers."""
        try:
            super().handle(record)
        except Exception:  # noqa: BLE001 - a handler is the user's, and to log it would call it again
            counts["a log handler"] += 1
            if logging.raiseExceptions and _lines["a log handler"].passes(time.monotonic()) is not None:
                traceback.print_exc()


def _guard_loggers() -> None:
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if type(logger) is logging.Logger:  # a class that the program set is left alone
            logger.__class__ = SafeLogger


_guard_loggers()
