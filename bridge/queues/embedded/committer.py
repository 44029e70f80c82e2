"""`Committer` runs groups of calls on an engine, one commit each; `Upkeep` tidies the file."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from queuebell.bridge.contract.errors import (
    QueuebellError,
    StoreFull,
    StoreOwned,
    StoreUnavailable,
    UnknownOutcome,
    named,
)
from queuebell.bridge.queues.base import Settlement, Settling
from queuebell.bridge.queues.embedded.engine import Engine
from queuebell.bridge.queues.embedded.file import Reserve, limit_log, translate
from queuebell.bridge.queues.embedded.state import Backlog, Grant, GrantResult, State

_log = logging.getLogger("queuebell.store")

# Maximum of settlements in one DELETE: with 32 claims each, below the 999 variables that every SQLite allows.
_TOGETHER_MAX = 30


class Call:
    """One operation waiting for its commit; ``future`` is None if no caller waits.

    ``queue`` and ``grant`` belong to a put with a grant, which gets a result even if the put fails. ``abandoned`` gets
    an answer whose caller was cancelled.
    """

    __slots__ = ("abandoned", "args", "error", "future", "grant", "operation", "queue", "result")

    def __init__(
        self,
        operation: Callable[..., object],
        args: tuple[Any, ...],
        future: asyncio.Future[Any] | None,
        queue: str = "",
        grant: Grant | None = None,
        abandoned: Callable[[Any], None] | None = None,
    ) -> None:
        self.operation = operation
        self.args = args
        self.future = future
        self.queue = queue
        self.grant = grant
        self.abandoned = abandoned
        self.result: object = None
        self.error: Exception | None = None

    def fail(self, error: Exception | None) -> None:
        """Replace the answer by an error, unless it is None."""
        if error is not None:
            self.error, self.result = error, None

    def resolve(self) -> None:
        """Answer the caller if it still waits; in the event loop's thread."""
        future = self.future
        if future is None:
            if self.error is not None:
                _log.warning("a store operation in the background failed: %s", self.error)
        elif not future.done():
            if self.error is not None:
                future.set_exception(self.error)
            else:
                future.set_result(self.result)
        elif self.abandoned is not None and self.error is None:
            self.abandoned(self.result)


class Commit:
    """The result of one commit: the answered calls, the backlogs, and the outcomes of grants."""

    __slots__ = ("backlogs", "calls", "grant_results")

    def __init__(self, calls: Sequence[Call], backlogs: list[Backlog], grant_results: list[GrantResult]) -> None:
        self.calls = calls
        self.backlogs = backlogs
        self.grant_results = grant_results


class Committer:
    """Runs groups of calls on an engine, one commit each, and tracks whether the file works.

    Calls of a failed commit are repeated one by one, so that each fails only for its own reason. On a full disk deletes
    still work, and puts wait for space. ``failure`` describes the last write if it failed; ``writes`` counts attempts.
    """

    def __init__(self, engine: Engine, where: str, reserve: Reserve | None = None) -> None:
        self.engine = engine
        self.upkeep = Upkeep(engine.state)
        self.reserve = reserve
        self._puts = (engine.put, engine.put_existing, engine.put_once)
        self._settle_asked = engine.settle
        self._receives = (engine.receive, engine.receive_stamped)
        self.failure: str | None = None
        self.writes = 0
        self._where = where
        # Whether tidying failed since the last successful write.
        self._stuck = False
        if reserve is not None and reserve.short:
            self.failure = _no_space(where)
            self.upkeep.tighten(True)

    @property
    def untidy(self) -> bool:
        """Whether `tidy` has work that can succeed: while the file fails, only if it may make space."""
        return self.upkeep.untidy and (self.failure is None or (self.upkeep.tight and not self._stuck))

    def run(self, calls: Sequence[Call], report: Callable[[Commit], None]) -> None:
        """Run ``calls`` as one commit; if it fails, run each alone. ``report`` gets each commit, in order."""
        error = self._attempt(calls)
        if error is not None and len(calls) > 1:
            for call in calls:
                call.fail(self._make_space(call, self._attempt((call,))))
                report(self._outcome((call,)))
            return
        if error is not None:
            calls[0].fail(self._make_space(calls[0], error))
        report(self._outcome(calls))

    def _make_space(self, call: Call, error: Exception | None) -> Exception | None:
        """On a full disk, make space step by step and repeat the call; return its last error."""
        if isinstance(error, StoreFull) and self._restart_log():
            error = self._attempt((call,))
        if isinstance(error, StoreFull) and self.reserve is not None and self.reserve.release():
            self.upkeep.tighten(True)
            self._restart_log()
            # The released reserve is for this call.
            error = self._attempt((call,), short=True)
        return error

    def is_receive(self, call: Call) -> bool:
        """Return whether `find_nothing` might answer the call."""
        return call.operation in self._receives

    def find_nothing(self, calls: Sequence[Call]) -> Commit | None:
        """Carry out receives if none of them would find messages; otherwise do nothing and return None.

        Runs no statement, so any thread may call it that has the engine to itself.
        """
        engine = self.engine
        engine.state.tick()
        if not all(self.is_receive(call) and engine.finds_nothing(call.args[0]) for call in calls):
            return None
        for call in calls:
            try:
                call.result = call.operation(*call.args)
            except Exception as error:  # noqa: BLE001  (the caller gets any exception)
                call.error = error
        return self._outcome(calls)

    def tidy(self) -> None:
        """Do one step of tidying; a failure stops tidying until the next successful commit.

        On a full disk each step makes space, and puts work again once there is enough.
        """
        try:
            self.upkeep.tidy()
            probes = self.upkeep.tight and not self._lacks_space()
        except Exception as error:  # noqa: BLE001 - no exception may end the writer
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
        """Fail the calls in progress after an unexpected error of the writer, which continues with later calls."""
        why = f"{self._where}: unexpected error in the writer ({named(error)}), which continues"
        _log.error("%s; acknowledged messages are safe. Please report this with the log", why, exc_info=error)
        self._fail(StoreUnavailable(why))
        self._roll_back()
        for call in calls:
            call.fail(UnknownOutcome(f"{why}; the call may have been carried out"))
        try:
            return self._outcome(calls)
        except Exception:  # noqa: BLE001 - the calls must be answered
            _log.exception("%s: cannot read the state of the queues", self._where)
            return Commit(calls, [], [])

    def _lacks_space(self) -> bool:
        """Return whether puts wait for space, after a try to reserve it again."""
        if self.reserve is None or not self.reserve.short:
            return False
        if not self.reserve.hold():
            return True
        self.upkeep.tighten(False)
        return False

    def _attempt(self, calls: Sequence[Call], short: bool = False) -> Exception | None:
        """Run calls and commit; return None, or the error after a rollback. If ``short``, puts are refused."""
        engine = self.engine
        try:
            # Once a group: all its calls were made before this moment.
            engine.state.tick()
            short = short or self._lacks_space()
            for together in self._runs(calls):
                if len(together) > 1:
                    self._delete(together)
                    continue
                (call,) = together
                call.error = None
                try:
                    if short and call.operation in self._puts:
                        raise StoreFull(_no_space(self._where))
                    call.result = call.operation(*call.args)
                except QueuebellError as refusal:
                    # It changed nothing, so the other calls of this commit continue.
                    call.error = refusal
            wrote = engine.state.commit()
            self.writes += wrote
        except Exception as error:  # noqa: BLE001  (no exception may end the writer; the caller gets it)
            unknown = engine.state.committing
            self._roll_back()
            return self._explain(error, unknown)
        if wrote:
            self._stuck = False
        if wrote and self.failure is not None and not short:
            _log.warning("%s: writes work again", self._where)
            self.failure = None
        return None

    def _roll_back(self) -> None:
        try:
            self.engine.state.rollback()
        except Exception as error:  # noqa: BLE001 - SQLite discards uncommitted changes at the next start
            _log.error("%s: rollback failed too: %s", self._where, named(error))

    def _runs(self, calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
        """Yield calls one by one, but consecutive deletes of one queue together."""
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
        """Carry out settlements that only delete, by one statement for all."""
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
                # The last page of the log may have reached the disk, and be found after a crash. If writing it failed
                # (quota, limit of the file's size), there is no commit.
                ours = UnknownOutcome(str(ours))
            elif isinstance(ours, StoreOwned):
                # Once open, it cannot be owned by another process, only locked for a moment.
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
        """Restart the log from its beginning, which may be the only space left; return whether it worked."""
        try:
            self.upkeep.checkpoint("RESTART")
        except sqlite3.Error as error:
            _log.debug("%s: restarting the log failed: %s", self._where, error)
            return False
        return True

    def _outcome(self, calls: Sequence[Call]) -> Commit:
        grant_results = self.engine.state.take_grant_results()
        for call in calls:
            if call.grant is not None and call.error is not None:
                queue = self.engine.state.queues.get(call.queue)
                grant_results.append(GrantResult(call.queue, call.grant.session, [], queue.visible if queue else 0))
        return Commit(calls, self.engine.state.take_backlogs(), grant_results)


def _no_space(where: str) -> str:
    return f"{where}: no space left"


def _only_deletes(settlement: Settlement) -> bool:
    return bool(settlement.delete) and not settlement.release and not settlement.extend


_GARBAGE_ROWS = 500
_FREED_ROWS = 1000
_FREE_PAGES = 1024
_VACUUM_PAGES = 64
# Pages returned in a step on a full disk; the log has room for them and for moved pages.
GIVEN_BACK_PAGES = 256
_LOG_PAGES = 1000
_KEYS = 500


class Upkeep:
    """Removes in bulk, returns space to the file system and shortens the log while no call waits.

    Each step takes milliseconds, so that calls hardly wait. Steps are only due after writes, so that an idle store does
    nothing.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._vacuuming = False
        self.tight = False
        """Whether the disk is full: free pages are returned immediately, and the log stays minimal."""

    @property
    def untidy(self) -> bool:
        """Whether `tidy` has something to do."""
        state = self._state
        return (
            bool(state.deleted_queue_ids)
            or state.freed >= (1 if self.tight else _FREED_ROWS)
            or self._vacuuming
            or state.log_pages >= _LOG_PAGES
            or self._keys_due
        )

    def tidy(self) -> None:
        """Do one bounded step: remove rows, return space to the file system, or shorten the log."""
        state = self._state
        if state.deleted_queue_ids:
            gone = state.execute(
                "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages WHERE q=? LIMIT ?)",
                (state.deleted_queue_ids[0], _GARBAGE_ROWS),
            ).rowcount
            state.freed += gone
            state.removed(gone)
            if gone < _GARBAGE_ROWS:
                del state.deleted_queue_ids[0]
        elif self.tight and (state.freed or self._vacuuming):
            self._give_back()
        elif state.freed >= _FREED_ROWS or self._vacuuming:
            self._vacuum()
        elif state.log_pages >= _LOG_PAGES:
            self.checkpoint("PASSIVE")
        elif self._keys_due:
            state.forget_keys(_KEYS)

    def tighten(self, tight: bool) -> None:
        """Start or stop returning all free space."""
        # One pass follows for pages that were freed before.
        self._vacuuming = tight
        self.tight = tight
        limit_log(self._state.connection, tight)

    @property
    def _keys_due(self) -> bool:
        # As of the last commit: nothing is due while nothing happens.
        state = self._state
        return state.keys.due is not None and state.keys.due <= state.now

    def checkpoint(self, mode: str) -> None:
        """Copy the write-ahead log into the file."""
        state = self._state
        state.log_pages = 0
        state.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def _vacuum(self) -> None:
        state = self._state
        state.freed = 0
        (free,) = state.execute("PRAGMA freelist_count").fetchone()
        (pages,) = state.execute("PRAGMA page_count").fetchone()
        # A file in steady use soon needs its free pages again: begin when half is free, end when an eighth is.
        if free < _FREE_PAGES or free * (8 if self._vacuuming else 2) < pages:
            if self._vacuuming:
                # The checkpoint shrinks the file.
                self.checkpoint("TRUNCATE")
                self._vacuuming = False
            return
        self._vacuuming = True
        self._free(_VACUUM_PAGES)

    def _give_back(self) -> None:
        state = self._state
        state.freed = 0
        (free,) = state.execute("PRAGMA freelist_count").fetchone()
        self._vacuuming = free > GIVEN_BACK_PAGES
        if free:
            self._free(GIVEN_BACK_PAGES)
        # This shrinks the file. The log keeps its length, so that deletes still work if others take the free space.
        self.checkpoint("RESTART")

    def _free(self, pages: int) -> None:
        # The statement steps once a page without returning rows; only `executescript` runs it to the end.
        state = self._state
        state.connection.executescript(f"PRAGMA incremental_vacuum({pages})")
        state.log_pages += pages
