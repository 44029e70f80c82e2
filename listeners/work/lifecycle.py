"""How a listener or a scaler runs and stops: once, by signal, and never while its module is imported for a handler.

`OneRun` is one run. `StopSignals` handles SIGTERM and SIGINT: the first stops all listeners of the process in order,
the second immediately. With ``take`` None it handles signals only if nobody else does: in the main thread, where
`asyncio.run` or ``run_until_complete`` runs the loop, and where both signals have Python's and asyncio's own handlers.
A web server has handlers of its own by the time a listener starts within it, and a notebook's loop runs for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

from queuebell.bridge.contract.errors import ConfigurationError


class OneRun:
    """One run of ``what``, called ``name`` in the log. Asked to stop before it runs, it ends as it begins."""

    def __init__(self, what: str, name: str, log: logging.Logger) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        self._what, self._name, self._log = what, name, log
        self._defect: Exception | None = None
        self._ended: asyncio.Future[None] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run, from here to the end of the block; then raise what broke. Raises `RuntimeError` the second time."""
        if self._ended is not None:
            raise RuntimeError(f"a {self._what} runs once")
        self._ended = asyncio.get_running_loop().create_future()
        try:
            yield
            if self._defect is not None:
                raise self._defect
        finally:
            self._ended.set_result(None)

    @property
    def over(self) -> bool:
        """Whether it ran and has ended."""
        return self._ended is not None and self._ended.done()

    async def ended(self) -> None:
        """Wait until it has ended; not where it has not begun."""
        if self._ended is not None and not self._ended.done():
            await asyncio.wait([self._ended])

    def signalled(self, count: int, says: str) -> None:
        """Handle the ``count``-th signal to stop; log ``says`` once while it runs."""
        if self._ended is not None and not self.asked.is_set():
            self._log.info("%s: %s", self._name, says)
        self.asked.set()
        if count > 1 and self._ended is not None:
            self.at_once.set()

    def fail(self, error: Exception) -> None:
        """Stop, and raise this error in the end: a worker that ends is restarted, one that misses wakes is not."""
        self._defect = self._defect or error
        self.asked.set()

    async def until_asked(self, sessions: asyncio.Task[None] | None) -> None:
        """Wait until a stop is requested; the task of the ``sessions`` has no end, and its error is raised."""
        asked = asyncio.create_task(self.asked.wait(), name="stop-asked")
        waiting: set[asyncio.Task[Any]] = {asked} if sessions is None else {asked, sessions}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if sessions is not None and sessions in done:
            sessions.result()

    async def await_unless_aborted(self, work: Coroutine[Any, Any, None], name: str, says: str) -> None:
        """Await ``work``; if the run is to end at once, cancel it and log ``says``."""
        working = asyncio.create_task(work, name=name)
        aborting = asyncio.create_task(self.at_once.wait(), name="abort-asked")
        try:
            await asyncio.wait([working, aborting], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                self._log.warning("%s: %s", self._name, says)
        finally:
            aborting.cancel()
            working.cancel()
            await asyncio.wait([working, aborting])


log = logging.getLogger("queuebell.listener")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_FOREGROUND: Final = (asyncio.Runner.run.__code__, asyncio.BaseEventLoop.run_until_complete.__code__)


class StopSignals:
    """Calls ``signalled(count)`` on the running loop for each signal; restores the previous handlers after.

    ``take`` True replaces any handler, False installs none, None only if there is no other; in the main thread only.
    """

    def __init__(self, signalled: Callable[[int], None], *, take: bool | None) -> None:
        self._signalled = signalled
        self._take = take
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        if self._take is not False and threading.current_thread() is threading.main_thread():
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            _owner.join(self, forced=bool(self._take))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _owner.leave(self)

    def tell(self, count: int) -> None:
        """Call ``signalled`` on the loop with the number of signals so far."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._signalled, count)

    @property
    def lives(self) -> bool:
        """Whether its loop runs; an abandoned loop calls nothing."""
        return self._loop is not None and self._loop.is_running()

    @property
    def awaited(self) -> bool:
        """Whether another task waits for the end of the one that entered it."""
        return bool(getattr(self._task, "_callbacks", True))


class _Owner:
    """The process's handler of both signals, from the first member to the last."""

    _count = _last = _pid = 0
    _awaited = False

    def __init__(self) -> None:
        self._members: list[StopSignals] = []
        self._before: dict[int, Any] = {}

    def join(self, member: StopSignals, *, forced: bool) -> None:
        """Add a member and install both handlers if none are, or if ``forced``; otherwise do nothing."""
        if not self._members:
            for number in SIGNALS:
                if signal.getsignal(number) == self._came:  # replaced after the last member, and restored
                    self._give_back(number)
            if not forced and not (_in_foreground() and all(map(_unhandled, SIGNALS))):
                return
            self._before.clear()
            self._count, self._awaited, self._pid = 0, False, os.getpid()
        self._members.append(member)
        for number in SIGNALS:
            if forced or number not in self._before:
                self._take(number)
        if self._count:
            member.tell(self._count)  # the process is being stopped already

    def leave(self, member: StopSignals) -> None:
        """Remove a member; after the last one the previous handlers come back."""
        if member not in self._members:
            return
        self._members.remove(member)
        self._awaited |= member.awaited
        if self._members:
            return
        for number in SIGNALS:
            if signal.getsignal(number) == self._came:  # else it was replaced meanwhile, and stays
                self._give_back(number)
        if self._count and not self._awaited:
            # No caller waits for their end, so the program still has to get the signal.
            log.info("the listeners have stopped; the program gets the signal now")
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
    """Stop the server of this process by SIGTERM; return whether it handles that signal.

    Only in the main thread: a server in another thread, as in a test, does not handle signals.
    """
    handled = threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGTERM))
    if handled:
        signal.raise_signal(signal.SIGTERM)
    return handled


def _unhandled(number: int) -> bool:
    """Return whether a signal has Python's or `asyncio.run`'s own handler."""
    handler: Any = signal.getsignal(number)
    if handler in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler):
        return True
    return isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner)


def _in_foreground() -> bool:
    """Return whether the loop runs in the foreground, as by `asyncio.run`; a notebook's runs for ever."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in _FOREGROUND:
            return True
        frame = frame.f_back
    return False


_modules: list[tuple[str, list[ConfigurationError]]] = []


@contextlib.contextmanager
def importing(module: str) -> Iterator[None]:
    """Make `refuse_in_import` raise while the block imports ``module``, and raise that error again at the block's end.

    So the import fails even where the module swallows the error.
    """
    refused: list[ConfigurationError] = []
    _modules.append((module, refused))
    try:
        yield
    finally:
        _modules.remove((module, refused))
        if refused:
            raise refused[0]


def refuse_in_import() -> None:
    """Raise `ConfigurationError` where `importing` is under way: that worker would run instead of the one asked for."""
    if _modules:
        module, refused = _modules[-1]
        refused.append(
            ConfigurationError(
                f"module {module} runs a worker or a scaler while it is imported for its handler. Put that below "
                'if __name__ == "__main__": then `python` runs it, and `queuebell listen` only imports it'
            )
        )
        raise refused[-1]
