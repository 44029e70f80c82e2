"""Threads for handlers that are plain functions: threads that no end of the program waits for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

T = TypeVar("T")

NAME: Final = "queuebell-handler"


class HandlerThreads:
    """Calls functions in threads, ``most`` at once; those beyond wait their turn.

    The threads of `concurrent.futures` are joined when the interpreter ends, so that one handler that hangs would keep
    its process for ever, whatever a listener's ``grace`` is. These are daemons: the listener waits for them within its
    grace, and nobody after it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._owed = 0
        self._threads = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have a function called; its future may be cancelled until it runs."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                self._ended()
                return
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it goes to whoever waits for it
                self._ended()
                future.set_exception(error)
            else:
                self._ended()
                future.set_result(result)

        with self._lock:
            if self._threads < min(self._owed + 1, self._most):
                # Started before its call is put and counted: where the system refuses a thread, nothing is left behind.
                threading.Thread(target=self._work, name=f"{NAME}_{self._threads + 1}", daemon=True).start()
                self._threads += 1
            self._owed += 1
        self._calls.put(run)
        return future

    @property
    def running(self) -> int:
        """The calls that wait or run."""
        return self._owed

    def close(self) -> None:
        """Have each thread end after the call it is in; what is waiting then is still called."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._calls.put(None)

    def _ended(self) -> None:
        # Before the result is told: whoever hears of it and has another call finds this thread free.
        with self._lock:
            self._owed -= 1

    def _work(self) -> None:
        while (run := self._calls.get()) is not None:
            run()
            del run  # or what it refers to would live until the next call
