"""The embedded queue on an SQLite file that this process owns: one writer thread, group commit."""

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

from bridge.contract.errors import Closed, StoreDamaged, StoreFull, StoreUnavailable
from bridge.queues.base import PUT_WINDOW_S
from bridge.queues.embedded.committer import Call, Commit, Committer
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.file import FileLock, Reserve, open_file, translate
from bridge.queues.embedded.state import Level, StoreObserver
from bridge.queues.embedded.store import EmbeddedStore, deliver, random_receipt

_log = logging.getLogger("queuebell.store")

_GROUP_MAX = 1024
# Up to so many callers it is worth waiting for those that were just answered.
_FEW = 64
# Turns of the loop that a call waits for others at most, however many come in each.
_LOOKS_MAX = 4
# A file that nobody writes to is tried at most this often, and only when somebody asks `failure`.
_PROBE_S = 3.0
# Tidying begins when nothing was asked for so long; a wait that only exists while there is something to tidy.
_QUIET_S = 0.01
# A defect that broke the writer once may do so again and again, and must not take the processor for that.
_BROKEN_PAUSE_S = 0.2
_pause = threading.Event()
# Commits between two steps of tidying while it is never quiet.
_COMMITS_PER_STEP = 64
# While puts wait for room, making it is not to wait for the end of what makes it possible.
_COMMITS_PER_STEP_TIGHT = 4


class SqliteStore(EmbeddedStore):
    """A queue store on one file, owned by this process (`EmbeddedStore`).

    All calls go through one writer thread. It takes whatever waits, makes one transaction of it, and answers after its
    commit, so that with ``synchronous="FULL"`` what was acknowledged survives a loss of power. ``clock`` (monotonic
    seconds) and ``wall`` (seconds since the epoch, asked once at opening) are the time (O2). The key of a `put_once` is
    remembered for ``put_window_s`` at least.

    A store belongs to the event loop that opened it. Raises `StoreOwned`, `StoreDamaged`, `StoreUnavailable` or
    `ConfigurationError` when it is opened, `StoreFull`, `StoreUnavailable` and `UnknownOutcome` later.
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
        # Whoever uses the engine holds this: the writer, or the loop for what needs no statement (`_hand_over`).
        self._in_use = threading.Lock()
        self._under_way = 0
        # Whether `_hand_over` is to come, how many calls it saw last and left, how often, and how many went together
        # lately.
        self._looking = False
        self._seen = 0
        self._looks = 0
        self._together = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._committer: Committer | None = None
        self._levels: list[Level] = []
        self._connection: sqlite3.Connection | None = None
        self._lock: FileLock | None = None
        # Of the writer's thread: the calls taken and not answered, and whether the last one was taken.
        self._in_hand: list[Call] = []
        self._last = False
        self._identity = (0, 0)
        self._writes_seen = 0
        self._seen_at = 0.0

    async def open(self) -> None:
        """Own and open the file in the writer's thread; 1 to 2 s at a million messages."""
        self._refuse_closed()
        if self._opening is None:
            loop = self._loop = asyncio.get_running_loop()
            self._thread = threading.get_ident()
            self._opening = loop.create_future()
            self._ended = loop.create_future()
            # Whoever asked may be cancelled; the outcome is then looked at by the next call.
            self._opening.add_done_callback(_looked_at)
            # A daemon, so that a program that forgot to close is not held for ever; nothing acknowledged is at risk.
            threading.Thread(target=self._write, name="queuebell-writer", daemon=True).start()
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except Exception:
            # Let a later call try again: another owner may be gone by then. (A caller's cancellation is no Exception.)
            if self._opening is opening:
                self._opening = None
            raise

    def observe(self, observer: StoreObserver) -> None:
        """Let ``observer`` hear of every commit from now on; one at a time, the last one counts."""
        self._observer = (observer,)

    def levels(self) -> list[Level]:
        """Return how the queues stood when the file was opened; once, for of many queues it is much to keep."""
        levels, self._levels = self._levels, []
        return levels

    def failure(self) -> str | None:
        """Return what is wrong with the file, or None; a file not written to for a while is tried meanwhile."""
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
        """Carry out what waits, bring the log into the file, let go of the lock; may be called twice."""
        first = not self._closed
        self._closed = True
        if self._opening is None or self._ended is None:
            return
        if first:
            self._give()
            self._calls.put(None)
        await asyncio.shield(self._ended)

    def _engine(self) -> Engine | None:
        return None if self._committer is None else self._committer.engine

    def _submit(self, call: Call) -> None:
        first = not self._turn
        self._turn.append(call)
        if first and self._together <= 1 and not self._under_way and not self._answers_here(call):
            # They came one by one lately: to wait for others costs a turn of the loop, and nobody comes.
            self._give()
        elif first:
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._looking:
            assert self._loop is not None
            self._looking = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Give the writer what was asked for in one turn of the loop, together, or wait for more that is to come.

        The first call alone would wake it, at the price of the interpreter's lock, for a commit of one. So it is with
        a few beside a commit of others: callers that ask again when they are answered would stay in two halves for
        ever, each at the price of a commit, with the writer and the loop in each other's way.
        """
        self._looking = False
        count = len(self._turn)
        if count <= self._under_way <= _FEW:
            # They would wait for that commit anyway; `_deliver` looks again.
            return
        if self._seen < count < self._together <= _FEW and self._looks < _LOOKS_MAX:
            self._seen = count
            self._looks += 1
            self._look_soon()
            return
        self._give()

    def _give(self) -> None:
        calls, self._turn = self._turn, []
        self._seen = self._looks = 0
        if not calls:
            return
        # Falls slowly, for one that is late is no sign of fewer callers.
        self._together = max(len(calls), self._together - 1)
        if self._found_nothing(calls):
            return
        self._under_way += len(calls)
        for first in range(0, len(calls), _GROUP_MAX):
            self._calls.put(calls[first : first + _GROUP_MAX])

    def _answers_here(self, call: Call) -> bool:
        """Say whether `_found_nothing` might answer it, which tells the observers: not from within the caller."""
        return self._committer is None or self._committer.is_receive(call)

    def _found_nothing(self, calls: list[Call]) -> bool:
        """Answer receives that find nothing here, without the writer, and say whether that was done.

        Only where no earlier call is unanswered and the writer does nothing by itself: then everything that was ever
        acknowledged is in the counts, and the order of what the observers hear is that of the calls.
        """
        committer = self._committer
        if self._under_way or committer is None or not self._in_use.acquire(blocking=False):
            return False
        try:
            commit = committer.find_nothing(calls)
        except Exception:  # noqa: BLE001 - the calls must be answered whatever it is
            _log.exception("%s: a receive could not be answered in memory; the writer answers it", self.path)
            return False
        finally:
            self._in_use.release()
        if commit is None:
            return False
        deliver(commit, self._observer)
        return True

    def _observers(self) -> Sequence[StoreObserver]:
        return self._observer

    # -- on the writer's thread ------------------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            committer = self._start()
        except Exception as error:  # noqa: BLE001  (whatever it is, it is raised by `open`)
            self._tell(self._failed, error)
            return
        self._tell(self._started, committer)
        try:
            while not self._last:
                try:
                    self._serve(committer)
                except Exception as error:  # noqa: BLE001  (what breaks the writer costs the calls in hand, no later ones)
                    self._commit_told(committer.broke(error, self._in_hand))
                    _pause.wait(_BROKEN_PAUSE_S)
        finally:
            try:
                self._let_go(committer)
            finally:
                self._tell(self._stopped)

    def _start(self) -> Committer:
        reserve = Reserve(self.path.with_name(self.path.name + ".reserve"))
        try:
            engine = self._open_engine()
        except StoreFull:
            if not reserve.give_up():
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
            self._levels = engine.state.levels()
            engine.state.commit()
            engine.state.take_levels()
        except BaseException as error:
            connection.close()
            lock.release()
            if isinstance(error, sqlite3.Error):
                raise translate(error, str(self.path)) from error
            if isinstance(error, TypeError | ValueError | OverflowError):
                # A table that holds what we never wrote.
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
                    # Between two calls of one worker there is a pause too; tidying waits for a longer one.
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
                    committer.run(group, self._commit_told)
                since_tidy += 1
            if since_tidy > (_COMMITS_PER_STEP_TIGHT if committer.upkeep.tight else _COMMITS_PER_STEP) and (
                committer.untidy and not self._last
            ):
                # Never quiet: a step all the same, or the file would only grow.
                since_tidy = 1
                self._tidy(committer)

    def _tidy(self, committer: Committer) -> None:
        with self._in_use:
            committer.tidy()

    def _commit_told(self, commit: Commit) -> None:
        told = commit.calls
        self._in_hand = [] if len(told) == len(self._in_hand) else [call for call in self._in_hand if call not in told]
        self._tell(self._deliver, commit, self._observer)

    def _tell(self, function: Callable[..., object], *args: Any) -> None:
        loop = self._loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # The loop is closed: nobody waits any more, but what was asked is carried out.
            _log.debug("%s: the event loop was closed before the store", self.path)

    def _let_go(self, committer: Committer) -> None:
        connection, lock = self._connection, self._lock
        try:
            if connection is not None:
                try:
                    committer.upkeep.checkpoint("TRUNCATE")
                except sqlite3.Error as error:
                    _log.warning("%s: the log was left for the next start: %s", self.path, error)
                connection.close()
        finally:
            if lock is not None:
                lock.release()

    def _check_file(self) -> None:
        """Refuse to acknowledge what would go into a file that nobody can find again."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise StoreUnavailable(f"{self.path}: {error.strerror}") from error
        if (found.st_dev, found.st_ino) != self._identity:
            raise StoreUnavailable(f"{self.path}: the data file was replaced by another")

    # -- told by the writer, on the event loop's thread ------------------------------------------------------------

    def _deliver(self, commit: Commit, observers: Sequence[StoreObserver]) -> None:
        self._under_way -= len(commit.calls)
        if self._turn:
            self._look_soon()
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
        # Calls that came after the last group; the store is closed to new ones.
        while not self._calls.empty():
            for call in self._calls.get_nowait() or ():
                call.error = Closed("the store is closed")
                call.resolve()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def _looked_at(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
