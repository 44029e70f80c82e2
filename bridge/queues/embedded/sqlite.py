"""The embedded store on an SQLite file that this process owns: one writer thread, many calls a commit."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from queuebell.bridge.contract.errors import Closed, StoreDamaged, StoreFull, StoreUnavailable
from queuebell.bridge.queues.base import PUT_WINDOW_S
from queuebell.bridge.queues.embedded.committer import Call, Commit, Committer
from queuebell.bridge.queues.embedded.engine import Engine
from queuebell.bridge.queues.embedded.file import FileLock, Reserve, open_file, translate
from queuebell.bridge.queues.embedded.state import Backlog, StoreObserver
from queuebell.bridge.queues.embedded.store import EmbeddedStore, deliver, random_receipt

_log = logging.getLogger("queuebell.store")

_GROUP_MAX = 1024
# Up to so many callers, it is worth waiting for those just answered to call again.
_FEW = 64
# Maximum turns of the loop that a call waits for others.
_WAITS_MAX = 4
# Least interval of test writes to an idle file, made only when `failure` is called.
_PROBE_S = 3.0
# Tidying begins after so long without calls; the writer waits like this only while there is something to tidy.
_QUIET_S = 0.01
# Pause after an unexpected error, so that a repeating one does not use the whole processor.
_BROKEN_PAUSE_S = 0.2
_pause = threading.Event()
# Commits between two steps of tidying under constant load.
_COMMITS_PER_STEP = 64
# The same while puts wait for space.
_COMMITS_PER_STEP_TIGHT = 4


class SqliteStore(EmbeddedStore):
    """The embedded store on one file, owned by this process (`EmbeddedStore`).

    One writer thread carries out all waiting calls as one transaction and answers after its commit: calls are durable
    before they are answered, in order, and with ``synchronous="FULL"`` they survive a loss of power. A crash leaves the
    state of the last commit. ``clock`` (monotonic seconds) and ``wall`` (seconds since the epoch, read once at opening)
    define the time (O2). The key of a `put_once` is remembered for ``put_window_s`` at least.

    A store belongs to the event loop that opened it. Opening raises `StoreOwned`, `StoreDamaged`, `StoreUnavailable` or
    `ConfigurationError`; calls raise `StoreFull`, `StoreUnavailable` and `UnknownOutcome`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        boot: str | None = None,
        synchronous: str = "FULL",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        receipts: Callable[[], int] = random_receipt,
        put_window_s: float = PUT_WINDOW_S,
    ) -> None:
        self.path = Path(path).absolute()
        super().__init__(f"sqlite:{self.path}")
        self.boot = boot or secrets.token_hex(16)
        self._synchronous = synchronous
        self._clock = clock
        self._wall = wall
        self._receipts = receipts
        self._put_window_s = put_window_s
        self._observer: tuple[StoreObserver, ...] = ()
        self._calls: queue.SimpleQueue[list[Call] | None] = queue.SimpleQueue()
        self._turn: list[Call] = []
        # Held while using the engine: by the writer, or by the loop for receives that find nothing (`_hand_over`).
        self._in_use = threading.Lock()
        self._under_way = 0
        # Of `_hand_over`: whether it is scheduled, how many calls it saw last, how often it waited, and the recent size
        # of groups.
        self._handing_over = False
        self._seen = 0
        self._waits = 0
        self._recent_callers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._committer: Committer | None = None
        self._backlogs: list[Backlog] = []
        self._connection: sqlite3.Connection | None = None
        self._lock: FileLock | None = None
        # Of the writer's thread: the calls in progress, and whether `close` was called.
        self._in_hand: list[Call] = []
        self._last = False
        self._identity = (0, 0)
        self._writes_seen = 0
        self._seen_at = 0.0

    async def open(self) -> None:
        """Own and open the file in the writer's thread; takes 1 to 2 s at a million messages."""
        self._refuse_closed()
        if self._opening is None:
            loop = self._loop = asyncio.get_running_loop()
            self._thread = threading.get_ident()
            self._opening = loop.create_future()
            self._ended = loop.create_future()
            # If the caller is cancelled, the next call gets the outcome.
            self._opening.add_done_callback(_retrieve)
            # A daemon, so that a program ends without `close`; acknowledged calls are safe.
            threading.Thread(target=self._write, name="queuebell-writer", daemon=True).start()
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except Exception:
            # A later call may try again. (A cancellation is not an Exception.)
            if self._opening is opening:
                self._opening = None
            raise

    def observe(self, observer: StoreObserver) -> None:
        """Report every commit to ``observer`` from now on, instead of an earlier one."""
        self._observer = (observer,)

    def backlogs(self) -> list[Backlog]:
        """Return the states of the queues at the opening of the file; only once, to free memory."""
        backlogs, self._backlogs = self._backlogs, []
        return backlogs

    def failure(self) -> str | None:
        """Return what is wrong with the file, or None; starts a test write if the file has been idle for a while."""
        committer = self._committer
        if committer is None or self._closed:
            return "the data file is not open"
        now = self._clock()
        if committer.failure is None and committer.writes != self._writes_seen:
            self._writes_seen, self._seen_at = committer.writes, now
        elif now - self._seen_at > _PROBE_S:
            self._seen_at = now
            self._submit(Call(committer.engine.probe, (), None))
        return committer.failure

    async def close(self) -> None:
        """Carry out waiting calls, copy the log into the file and release the lock; may be called twice."""
        first = not self._closed
        self._closed = True
        if self._opening is None or self._ended is None:
            return
        if first:
            self._submit_turn()
            self._calls.put(None)
        await asyncio.shield(self._ended)

    def _engine(self) -> Engine | None:
        return None if self._committer is None else self._committer.engine

    def _submit(self, call: Call) -> None:
        first = not self._turn
        self._turn.append(call)
        if first and self._recent_callers <= 1 and not self._under_way and not self._answers_here(call):
            # Calls have come one by one lately: waiting for others would only cost a turn of the loop.
            self._submit_turn()
        elif first:
            self._hand_over_soon()

    def _hand_over_soon(self) -> None:
        if not self._handing_over:
            assert self._loop is not None
            self._handing_over = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Pass the calls of one turn of the loop to the writer together, or wait for more.

        Passed at once, the first call would be a commit of its own, and callers that call again when they are answered
        would stay in two groups for ever, each with its own commit, while the writer and the loop contend for the
        interpreter lock.
        """
        self._handing_over = False
        count = len(self._turn)
        if count <= self._under_way <= _FEW:
            # They would wait for the current commit anyway; `_deliver` checks again.
            return
        if self._seen < count < self._recent_callers <= _FEW and self._waits < _WAITS_MAX:
            self._seen = count
            self._waits += 1
            self._hand_over_soon()
            return
        self._submit_turn()

    def _submit_turn(self) -> None:
        calls, self._turn = self._turn, []
        self._seen = self._waits = 0
        if not calls:
            return
        # Falls slowly: one late call does not mean fewer callers.
        self._recent_callers = max(len(calls), self._recent_callers - 1)
        if self._found_nothing(calls):
            return
        self._under_way += len(calls)
        for first in range(0, len(calls), _GROUP_MAX):
            self._calls.put(calls[first : first + _GROUP_MAX])

    def _answers_here(self, call: Call) -> bool:
        """Return whether `_found_nothing` might answer it; its report to observers must not run within the caller."""
        return self._committer is None or self._committer.is_receive(call)

    def _found_nothing(self, calls: list[Call]) -> bool:
        """Answer receives that find nothing without the writer; return whether that was done.

        Only if no earlier call is unanswered and the writer is idle: then the counts include everything acknowledged,
        and reports come in the order of the calls.
        """
        committer = self._committer
        if self._under_way or committer is None or not self._in_use.acquire(blocking=False):
            return False
        try:
            commit = committer.find_nothing(calls)
        except Exception:  # noqa: BLE001 - the calls must be answered
            _log.exception("%s: answering a receive in memory failed; the writer answers it", self.path)
            return False
        finally:
            self._in_use.release()
        if commit is None:
            return False
        deliver(commit, self._observer)
        return True

    def _observers(self) -> Sequence[StoreObserver]:
        return self._observer

    # -- in the writer's thread ------------------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            committer = self._start()
        except Exception as error:  # noqa: BLE001  (`open` raises any exception)
            self._call_loop(self._failed, error)
            return
        self._call_loop(self._started, committer)
        try:
            while not self._last:
                try:
                    self._serve(committer)
                except Exception as error:  # noqa: BLE001  (an unexpected error fails the calls in progress, not later ones)
                    self._on_commit(committer.broke(error, self._in_hand))
                    _pause.wait(_BROKEN_PAUSE_S)
        finally:
            try:
                self._close_file(committer)
            finally:
                self._call_loop(self._stopped)

    def _start(self) -> Committer:
        reserve = Reserve(self.path.with_name(self.path.name + ".reserve"))
        try:
            engine = self._open_engine()
        except StoreFull:
            if not reserve.release():
                raise
            engine = self._open_engine()
        if not reserve.short:
            reserve.hold()
        return Committer(engine, str(self.path), reserve)

    def _open_engine(self) -> Engine:
        connection, lock = open_file(self.path, self._synchronous)
        try:
            found = self.path.stat()
            self._identity = (found.st_dev, found.st_ino)
            engine = Engine(
                connection,
                clock=self._clock,
                wall=self._wall,
                receipts=self._receipts,
                boot=self.boot,
                check=self._check_file,
                put_window_s=self._put_window_s,
            )
            self._backlogs = engine.state.backlogs()
            engine.state.commit()
            engine.state.take_backlogs()
        except BaseException as error:
            connection.close()
            lock.release()
            if isinstance(error, sqlite3.Error):
                raise translate(error, str(self.path)) from error
            if isinstance(error, TypeError | ValueError | OverflowError):
                # The table has values that no version wrote.
                raise StoreDamaged(f"{self.path}: the data file is damaged ({error})") from error
            raise
        self._connection, self._lock = connection, lock
        return engine

    def _serve(self, committer: Committer) -> None:
        get, get_nowait, empty = self._calls.get, self._calls.get_nowait, self._calls.empty
        since_tidy = 0
        while not self._last:
            group: list[Call] = []
            if not committer.untidy:
                calls = get()
            else:
                try:
                    # Tidying waits for a longer pause than that between two calls of one worker.
                    calls = get(timeout=_QUIET_S) if since_tidy else get_nowait()
                except queue.Empty:
                    since_tidy = 0
                    self._tidy(committer)
                    continue
            while True:
                if calls is None:
                    self._last = True
                    break
                group += calls
                if len(group) >= _GROUP_MAX or empty():
                    break
                calls = get_nowait()
            if group:
                self._in_hand = group
                with self._in_use:
                    committer.run(group, self._on_commit)
                since_tidy += 1
            if since_tidy > (_COMMITS_PER_STEP_TIGHT if committer.upkeep.tight else _COMMITS_PER_STEP) and (
                committer.untidy and not self._last
            ):
                # Tidy under constant load too, or the file would only grow.
                since_tidy = 1
                self._tidy(committer)

    def _tidy(self, committer: Committer) -> None:
        with self._in_use:
            committer.tidy()

    def _on_commit(self, commit: Commit) -> None:
        done = commit.calls
        self._in_hand = [] if len(done) == len(self._in_hand) else [call for call in self._in_hand if call not in done]
        self._call_loop(self._deliver, commit, self._observer)

    def _call_loop(self, function: Callable[..., object], *args: Any) -> None:
        loop = self._loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # The loop is closed and no caller waits, but the calls are carried out.
            _log.debug("%s: the event loop was closed before the store", self.path)

    def _close_file(self, committer: Committer) -> None:
        connection, lock = self._connection, self._lock
        try:
            if connection is not None:
                try:
                    committer.upkeep.checkpoint("TRUNCATE")
                except sqlite3.Error as error:
                    _log.warning(
                        "%s: the WAL checkpoint failed and will be repeated at the next start: %s", self.path, error
                    )
                connection.close()
        finally:
            if lock is not None:
                lock.release()

    def _check_file(self) -> None:
        """Raise `StoreUnavailable` before a commit if the file was moved or replaced."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise StoreUnavailable(f"{self.path}: {error.strerror}") from error
        if (found.st_dev, found.st_ino) != self._identity:
            raise StoreUnavailable(f"{self.path}: the data file was replaced by another")

    # -- called by the writer, in the event loop's thread ----------------------------------------------------------

    def _deliver(self, commit: Commit, observers: Sequence[StoreObserver]) -> None:
        self._under_way -= len(commit.calls)
        if self._turn:
            self._hand_over_soon()
        deliver(commit, observers)

    def _started(self, committer: Committer) -> None:
        self._committer = committer
        self._seen_at = self._clock()
        if self._opening is not None:
            self._opening.set_result(None)

    def _failed(self, error: Exception) -> None:
        if self._opening is not None:
            self._opening.set_exception(error)
        self._stopped()

    def _stopped(self) -> None:
        self._committer = None
        # Calls that came after the last group.
        while not self._calls.empty():
            for call in self._calls.get_nowait() or ():
                call.error = Closed("the store is closed")
                call.resolve()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
