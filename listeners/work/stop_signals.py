"""SIGTERM and SIGINT of a process: one owner for all its listeners, told on each one's event loop.

The first signal asks all of them to stop, the second to stop at once. Who says nothing (``take`` None) takes signals
only from nobody: in the main thread, where `asyncio.run` or ``run_until_complete`` runs the loop, and where both stand
as Python and asyncio leave them. A web server has handlers of its own by the time a listener starts within it, and a
notebook's loop is run by nobody who waits for its end.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

log = logging.getLogger("queuebell.listener")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_FOREGROUND: Final = (asyncio.Runner.run.__code__, asyncio.BaseEventLoop.run_until_complete.__code__)


class StopSignals:
    """Calls ``signalled(count)`` on the running loop for each signal of the process; what stood before stands after.

    ``take`` True takes the signals from whoever has them, False never, None from nobody; in the main thread only.
    """

    def __init__(self, signalled: Callable[[int], None], *, take: bool | None) -> None:
        self._signalled = signalled
        self._take = take
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        if self._take is not False and threading.current_thread() is threading.main_thread():
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            _owner.join(self, told=bool(self._take))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _owner.leave(self)

    def tell(self, count: int) -> None:
        """Tell on the loop how many signals have come."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._signalled, count)

    @property
    def lives(self) -> bool:
        """Whether its loop runs: one that was abandoned hears nothing any more."""
        return self._loop is not None and self._loop.is_running()

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for the end of the task that it stands in."""
        return bool(getattr(self._task, "_callbacks", True))


class _Owner:
    """The process's handler of both signals, from the first member to the last."""

    _count = _last = _pid = 0
    _awaited = False

    def __init__(self) -> None:
        self._members: list[StopSignals] = []
        self._before: dict[int, Any] = {}

    def join(self, member: StopSignals, *, told: bool) -> None:
        """Take a member, and both signals if none has them yet, or it was told to; else it hears nothing."""
        if not self._members:
            for number in SIGNALS:
                if signal.getsignal(number) == self._came:  # somebody had taken it from the last one, and gave it back
                    self._give_back(number)
            if not told and not (_in_foreground() and all(map(_nobodys, SIGNALS))):
                return
            self._before.clear()
            self._count, self._awaited, self._pid = 0, False, os.getpid()
        self._members.append(member)
        for number in SIGNALS:
            if told or number not in self._before:
                self._take(number)
        if self._count:
            member.tell(self._count)  # the process is being stopped already

    def leave(self, member: StopSignals) -> None:
        """Let a member go; after the last one the signals are those that they were before the first."""
        if member not in self._members:
            return
        self._members.remove(member)
        self._awaited |= member.awaited
        if self._members:
            return
        for number in SIGNALS:
            if signal.getsignal(number) == self._came:  # else somebody took it meanwhile, and it is theirs
                self._give_back(number)
        if self._count and not self._awaited:
            # Nobody hears that they have ended, so the program still has to hear of the signal, as it would have.
            log.info("the listeners have stopped; the rest of the program gets the signal now")
            asyncio.get_running_loop().call_soon(signal.raise_signal, self._last)

    def _take(self, number: int) -> None:
        before = signal.getsignal(number)
        if before != self._came:
            self._before[number] = before
            signal.signal(number, self._came)

    def _give_back(self, number: int) -> None:
        before = self._before.pop(number, None)
        signal.signal(number, signal.SIG_DFL if before is None else before)

    def _came(self, number: int, frame: FrameType | None) -> None:
        living = [member for member in self._members if member.lives]
        if not living or os.getpid() != self._pid:  # a process forked off a worker is none
            self._give_back(number)
            signal.raise_signal(number)
            return
        self._count += 1
        self._last = number
        for member in living:
            member.tell(self._count)


_owner: Final = _Owner()


def tell_server() -> bool:
    """Have the server of this process stop as its operator would, by SIGTERM; say whether one handles it.

    Only in the main thread: a server beside it, as of a test, is not the one that has the signals.
    """
    handled = threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGTERM))
    if handled:
        signal.raise_signal(signal.SIGTERM)
    return handled


def _nobodys(number: int) -> bool:
    """Say whether a signal stands as Python or `asyncio.run` leaves it."""
    handler: Any = signal.getsignal(number)
    if handler in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler):
        return True
    return isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner)


def _in_foreground() -> bool:
    """Say whether somebody waits for this loop's end, as `asyncio.run` does; a notebook's runs for ever."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in _FOREGROUND:
            return True
        frame = frame.f_back
    return False
