"""Exceptions that may fail one call only: counted, and logged at most once a minute for each kind of call.

The bridge, the worker and the scaler call foreign code: observers, span processors, log handlers, stores. Its
exceptions end here, so that the session or queue continues.
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

from queuebell.bridge.contract.throttle import Throttle

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
"""All loggers of Queuebell."""

log = logging.getLogger("queuebell")

counts: Counter[str] = Counter()
"""Exceptions swallowed since the start of this process, by kind of call."""
_lines: defaultdict[str, Throttle] = defaultdict(lambda: Throttle(EVERY_S))


def swallow(what: str, error: BaseException) -> None:
    """Count and log an exception with its traceback; ``what`` is one of a few constant texts."""
    counts[what] += 1
    more = _lines[what].passes(time.monotonic())
    if more is not None:
        after = f" ({more} more since the last such line)" if more else ""
        log.error("unexpected error in %s; only this call fails%s", what, after, exc_info=error)


class swallowing:  # noqa: N801 - lower case like contextlib.suppress
    """A context manager that passes exceptions to `swallow`; cancellations propagate."""

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
    """An awaitable was cancelled, but not by a cancellation of the awaiting task."""


async def unless_cancelled(call: Awaitable[T]) -> T:
    """Return the result of ``call``; a cancellation of this task propagates, any other raises `StrayCancellation`.

    Otherwise a driver that cancels its own future would silently end the task that keeps a session or a count alive.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StrayCancellation("cancelled by something other than this task") from error


class SafeLogger(logging.Logger):
    """A logger whose handlers and filters cannot break the code that logs."""

    def handle(self, record: logging.LogRecord) -> None:
        """Pass a record to the handlers."""
        try:
            super().handle(record)
        except Exception:  # noqa: BLE001 - a handler is foreign code, and logging its error would call it again
            counts["a log handler"] += 1
            if logging.raiseExceptions and _lines["a log handler"].passes(time.monotonic()) is not None:
                traceback.print_exc()


def _guard_loggers() -> None:
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if type(logger) is logging.Logger:  # Keeps classes set by the program.
            logger.__class__ = SafeLogger


_guard_loggers()
