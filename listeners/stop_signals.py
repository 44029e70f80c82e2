"""SIGTERM and SIGINT while something runs: how often they came, told on the event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Calls ``signalled(count)`` for each signal, in the main thread only; what stood before stands again after."""

    def __init__(self, signalled: Callable[[int], None], *, enabled: bool) -> None:
        self._signalled = signalled
        self._enabled = enabled and threading.current_thread() is threading.main_thread()
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._by_loop = False

    def __enter__(self) -> Self:
        if not self._enabled:
            return self
        self._loop = asyncio.get_running_loop()
        for number in SIGNALS:
            self._before[number] = signal.getsignal(number)
            try:
                self._loop.add_signal_handler(number, self._came)
                self._by_loop = True
            except NotImplementedError:  # Windows, and loops that are simulated
                signal.signal(number, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            if self._by_loop and self._loop is not None:
                self._loop.remove_signal_handler(number)
            if before is not None:
                signal.signal(number, before)

    def _came(self) -> None:
        self._count += 1
        self._signalled(self._count)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._came)
