"""Calls on their way to an engine, and how a group of them becomes one commit."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from bridge.contract.errors import (
    QueuebellError,
    StoreFull,
    StoreOwned,
    StoreUnavailable,
    UnknownOutcome,
    named,
)
from bridge.queues.base import Settlement, Settling
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.file import Reserve, limit_log, translate
from bridge.queues.embedded.state import Grant, Handed, Level, State

_log = logging.getLogger("queuebell.store")

# Settlements that are deleted by one statement: with 32 claims each, they stay below the 999 variables of any SQLite.
_TOGETHER_MAX = 30


class Call:
    """One operation waiting for its commit; ``future`` is None where nobody waits for the answer.

    ``queue`` and ``grant`` are those of a put with a grant: every grant is answered, also that of a failed put.
    ``unheard`` gets an answer that nobody waits for any more.
    """

    __slots__ = ("args", "error", "future", "grant", "operation", "queue", "result", "unheard")

    def __init__(
        self,
        operation: Callable[..., object],
        args: tuple[Any, ...],
        future: asyncio.Future[Any] | None,
        queue: str = "",
        grant: Grant | None = None,
        unheard: Callable[[Any], None] | None = None,
    ) -> None:
        self.operation = operation
        self.args = args
        self.future = future
        self.queue = queue
        self.grant = grant
        self.unheard = unheard
        self.result: object = None
        self.error: Exception | None = None

    def fail(self, error: Exception | None) -> None:
        """Have it answered by an error; None leaves its answer as it stands."""
        if error is not None:
            self.error, self.result = error, None

    def resolve(self) -> None:
        """Give the answer to whoever still waits; on the event loop's thread."""
        future = self.future
        if future is None:
            if self.error is not None:
                _log.warning("a store operation in the background failed: %s", self.error)
        elif not future.done():
            if self.error is not None:
                future.set_exception(self.error)
            else:
                future.set_result(self.result)
        elif self.unheard is not None and self.error is None:
            self.unheard(self.result)


class Commit:
    """What one commit came to: the calls answered, the levels, and the grants' outcomes."""

    __slots__ = ("calls", "handed", "levels")

    def __init__(self, calls: Sequence[Call], levels: list[Level], handed: list[Handed]) -> None:
        self.calls = calls
        self.levels = levels
        self.handed = handed


class Committer:
    """Runs groups of calls on an engine, one commit each, and remembers whether the file works.

    ``failure`` is what was wrong when something was written last, or None; ``writes`` counts the attempts to write.
    """

    def __init__(self, engine: Engine, where: str, reserve: Reserve | None = None) -> None:
        self.engine = engine
        self.upkeep = Upkeep(engine.state)
        self._reserve = reserve
        self._puts = (engine.put, engine.put_existing, engine.put_once)
        self._settle_asked = engine.settle
        self._receives = (engine.receive, engine.receive_stamped)
        # A process before this one filled the disk: puts wait for room from the start, and it is said.
        self.failure: str | None = None
        self.writes = 0
        self._where = where
        # Whether a step of tidying failed since something was written last.
        self._stuck = False
        if reserve is not None and reserve.short:
            self.failure = _no_room(where)
            self.upkeep.tighten(True)

    @property
    def untidy(self) -> bool:
        """Whether `tidy` has something to do and a chance to do it.

        While a file fails it has none, unless what it lacks is room: then nothing else may make it.
        """
        return self.upkeep.untidy and (self.failure is None or (self.upkeep.tight and not self._stuck))

    def run(self, calls: Sequence[Call], tell: Callable[[Commit], None]) -> None:
        """Run ``calls`` as one commit; if that fails, each by itself, so that each fails for its own reason only.

        ``tell`` hears of each commit, after it and in order.
        """
        error = self._attempt(calls)
        if error is not None and len(calls) > 1:
            for call in calls:
                call.fail(self._insist(call, self._attempt((call,))))
                tell(self._outcome((call,)))
            return
        if error is not None:
            calls[0].fail(self._insist(calls[0], error))
        tell(self._outcome(calls))

    def _insist(self, call: Call, error: Exception | None) -> Exception | None:
        """On a full disk, run a call again after each way of making room, and return what came of the last."""
        if isinstance(error, StoreFull) and self._restart_log():
            error = self._attempt((call,))
        if isinstance(error, StoreFull) and self._reserve is not None and self._reserve.give_up():
            self.upkeep.tighten(True)
            self._restart_log()
            # Without a look whether it can be held again: what it gave is for this call.
            error = self._attempt((call,), short=True)
        return error

    def is_receive(self, call: Call) -> bool:
        """Say whether `find_nothing` might answer it."""
        return call.operation in self._receives

    def find_nothing(self, calls: Sequence[Call]) -> Commit | None:
        """Carry out receives that find nothing; None, and nothing done, where that is not so of all of ``calls``.

        No statement runs, so that any thread may ask which has the engine to itself.
        """
        engine = self.engine
        engine.state.tick()
        if not all(self.is_receive(call) and engine.finds_nothing(call.args[0]) for call in calls):
            return None
        for call in calls:
            try:
                call.result = call.operation(*call.args)
            except Exception as error:  # noqa: BLE001  (whatever it is, its caller hears)
                call.error = error
        return self._outcome(calls)

    def tidy(self) -> None:
        """Do one step of tidying; a failure is remembered and ends the tidying until the next commit that works.

        On a full disk each step makes room, and as soon as there is enough of it puts are taken again.
        """
        try:
            self.upkeep.tidy()
            probes = self.upkeep.tight and not self._lacks_room()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the writer
            self._stuck = True
            if isinstance(error, sqlite3.Error):
                self._fail(translate(error, self._where))
            else:
                _log.exception("%s: tidying failed", self._where)
                self._fail(StoreUnavailable(f"{self._where}: tidying failed ({named(error)}); messages are safe"))
            return
        if probes:
            self._attempt((Call(self.engine.probe, (), None),))

    def broke(self, error: Exception, calls: Sequence[Call]) -> Commit:
        """Fail the calls that were in hand when the writer broke; it goes on with those that come next."""
        why = f"{self._where}: the writer failed unexpectedly ({named(error)}) and went on"
        _log.error("%s; what was acknowledged is safe. Please report this with the log", why, exc_info=error)
        self._fail(StoreUnavailable(why))
        self._roll_back()
        for call in calls:
            call.fail(UnknownOutcome(f"{why}; it may have been done"))
        try:
            return self._outcome(calls)
        except Exception:  # noqa: BLE001 - this is the way out of any defect
            _log.exception("%s: the state of the queues could not be read", self._where)
            return Commit(calls, [], [])

    def _lacks_room(self) -> bool:
        """Say whether puts wait for room, after a look whether there is enough again."""
        if self._reserve is None or not self._reserve.short:
            return False
        if not self._reserve.hold():
            return True
        self.upkeep.tighten(False)
        return False

    def _attempt(self, calls: Sequence[Call], short: bool = False) -> Exception | None:
        """Run calls and commit; None, or the failure that took everything back. No put is taken where it is short."""
        engine = self.engine
        try:
            # Once a group: every call of it was asked for before this moment.
            engine.state.tick()
            short = short or self._lacks_room()
            for together in self._runs(calls):
                if len(together) > 1:
                    self._delete(together)
                    continue
                (call,) = together
                call.error = None
                try:
                    if short and call.operation in self._puts:
                        raise StoreFull(_no_room(self._where))
                    call.result = call.operation(*call.args)
                except QueuebellError as refusal:
                    # Refused before it changed anything: the others of this commit go on.
                    call.error = refusal
            wrote = engine.state.commit()
            self.writes += wrote
        except Exception as error:  # noqa: BLE001  (a defect in one operation must not end the writer: its caller hears)
            unknown = engine.state.committing
            self._roll_back()
            return self._explain(error, unknown)
        if wrote:
            self._stuck = False
        if wrote and self.failure is not None and not short:
            _log.warning("%s: works again", self._where)
            self.failure = None
        return None

    def _roll_back(self) -> None:
        try:
            self.engine.state.rollback()
        except Exception as error:  # noqa: BLE001 - the file takes back by itself what was not committed
            _log.error("%s: rollback failed as well: %s", self._where, named(error))

    def _runs(self, calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
        """Yield calls one by one, but deletes from one queue that follow one another together."""
        run: list[Call] = []
        queue: object = None
        for call in calls:
            of = call.args[0] if call.operation == self._settle_asked and _only_deletes(call.args[1]) else None
            if run and (of != queue or len(run) >= _TOGETHER_MAX):
                yield run
                run = []
            queue = of
            if of is None:
                yield (call,)
            else:
                run.append(call)
        if run:
            yield run

    def _delete(self, calls: Sequence[Call]) -> None:
        """Carry out settlements that only delete, with one look and one statement for all of them."""
        name = calls[0].args[0]
        asked: list[Settlement] = [call.args[1] for call in calls]
        for call in calls:
            call.error = None
        try:
            claims = [claim for each in asked for claim in each.delete]
            settled = iter(self.engine.settle(name, Settlement(delete=claims)).delete)
        except QueuebellError as refusal:
            for call in calls:
                call.error = refusal
            return
        for call, each in zip(calls, asked, strict=True):
            call.result = Settling(list(islice(settled, len(each.delete))), [], [])

    def _explain(self, error: Exception, committing: bool) -> Exception:
        if isinstance(error, sqlite3.Error):
            ours = translate(error, self._where)
            failed_write = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_WRITE
            if committing and type(ours) is StoreUnavailable and not failed_write:
                # The log's last page may have reached the disk all the same, and be found after a crash. Not so where
                # writing it failed (a quota, a limit of the file's size): without its last frame there is no commit.
                ours = UnknownOutcome(str(ours))
            elif isinstance(ours, StoreOwned):
                # Once open nobody can own it; somebody held it for a moment.
                ours = StoreUnavailable(str(ours))
            self._fail(ours)
            return ours
        if isinstance(error, StoreUnavailable):
            self._fail(error)
        return error

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            _log.error("%s", error)
        self.failure = str(error)
        self.writes += 1

    def _restart_log(self) -> bool:
        """Let the log be written over from its start, which may be all the room there is; say whether that was done."""
        try:
            self.upkeep.checkpoint("RESTART")
        except sqlite3.Error as error:
            _log.debug("%s: shortening the log failed: %s", self._where, error)
            return False
        return True

    def _outcome(self, calls: Sequence[Call]) -> Commit:
        handed = self.engine.state.take_handed()
        for call in calls:
            if call.grant is not None and call.error is not None:
                queue = self.engine.state.queues.get(call.queue)
                handed.append(Handed(call.queue, call.grant.session, [], queue.visible if queue else 0))
        return Commit(calls, self.engine.state.take_levels(), handed)


def _no_room(where: str) -> str:
    return f"{where}: there is no room left"


def _only_deletes(settlement: Settlement) -> bool:
    return bool(settlement.delete) and not settlement.release and not settlement.extend


_GARBAGE_ROWS = 500
_FREED_ROWS = 1000
_FREE_PAGES = 1024
_VACUUM_PAGES = 64
# On a full disk a step gives so many pages back; the log takes them, and all that moves with them, without growing.
_GIVEN_BACK_PAGES = 256
_LOG_PAGES = 1000
_KEYS = 500


class Upkeep:
    """Knows what is left to tidy of a state; the caller's loop decides when."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._vacuuming = False
        self.tight = False
        """Whether the disk is full: every free page goes back at once, and the log keeps no more than it needs."""

    @property
    def untidy(self) -> bool:
        """Whether `tidy` has something to do."""
        state = self._state
        return (
            bool(state.garbage)
            or state.freed >= (1 if self.tight else _FREED_ROWS)
            or self._vacuuming
            or state.log_pages >= _LOG_PAGES
            or self._keys_due
        )

    def tidy(self) -> None:
        """Do one bounded step of removing, giving space back to the file system, or shortening the log."""
        state = self._state
        if state.garbage:
            gone = state.execute(
                "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages WHERE q=? LIMIT ?)",
                (state.garbage[0], _GARBAGE_ROWS),
            ).rowcount
            state.freed += gone
            state.removed(gone)
            if gone < _GARBAGE_ROWS:
                del state.garbage[0]
        elif self.tight and (state.freed or self._vacuuming):
            self._give_back()
        elif state.freed >= _FREED_ROWS or self._vacuuming:
            self._vacuum()
        elif state.log_pages >= _LOG_PAGES:
            self.checkpoint("PASSIVE")
        elif self._keys_due:
            state.forget_keys(_KEYS)

    def tighten(self, tight: bool) -> None:
        """Give back whatever is free from now on, or no longer."""
        # From the one to the other it is looked once, for what was freed before.
        self._vacuuming = tight
        self.tight = tight
        limit_log(self._state.connection, tight)

    @property
    def _keys_due(self) -> bool:
        # By the time of the last commit: where nothing happens, nothing is due.
        state = self._state
        return state.keys.due is not None and state.keys.due <= state.now

    def checkpoint(self, mode: str) -> None:
        """Bring the write-ahead log into the file."""
        state = self._state
        state.log_pages = 0
        state.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def _vacuum(self) -> None:
        state = self._state
        state.freed = 0
        (free,) = state.execute("PRAGMA freelist_count").fetchone()
        (pages,) = state.execute("PRAGMA page_count").fetchone()
        # A file in steady use needs its free pages again at once: begin when half is free, end when an eighth is.
        if free < _FREE_PAGES or free * (8 if self._vacuuming else 2) < pages:
            if self._vacuuming:
                # The file itself shrinks with the checkpoint.
                self.checkpoint("TRUNCATE")
                self._vacuuming = False
            return
        self._vacuuming = True
        self._free(_VACUUM_PAGES)

    def _give_back(self) -> None:
        state = self._state
        state.freed = 0
        (free,) = state.execute("PRAGMA freelist_count").fetchone()
        self._vacuuming = free > _GIVEN_BACK_PAGES
        if free:
            self._free(_GIVEN_BACK_PAGES)
        # The file shrinks with it. The log stays as long as it is: deletes go on, whoever takes what becomes free.
        self.checkpoint("RESTART")

    def _free(self, pages: int) -> None:
        # The statement steps once for each page without giving rows, and only `executescript` goes on to its end.
        state = self._state
        state.connection.executescript(f"PRAGMA incremental_vacuum({pages})")
        state.log_pages += pages
