"""The ledger: a handler's effect happens once although its message came twice, and long work resumes where it stopped.

One entity per key stands in a table with optimistic concurrency. An attempt inserts it or takes it over, writes its
checkpoints to it, and marks it done before the message is deleted. Every write names the ETag of the previous one, so
an attempt that lost its key can write no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import (
    ENDS_THE_PROCESS,
    BadInput,
    Closed,
    ConfigurationError,
    Conflict,
    QueuebellError,
    named,
)
from queuebell.bridge.contract.names import is_token
from queuebell.bridge.storage.tables.base import Entity, TableStore
from queuebell.listeners.handler import Message
from queuebell.listeners.work.retry import Failed, Outcome, Succeeded
from queuebell.listeners.work.retry_until import NoLongerWanted, retry_until

log = logging.getLogger("queuebell.ledger")

PROGRESS_BYTES_MAX: Final = 32 * 1024
CHECK_AGAIN_S: Final = 5.0
"""Seconds between checks of a key that another attempt works on."""
LET_GO_S: Final = 0.5
"""What a worker that stops gives the table to hear that it has let go of its keys."""
PURGE_S: Final = 3600.0
CHECK_S: Final = 5.0
"""What the first question to the table gets; a worker does not wait longer for it to begin."""


class Standing(enum.Enum):
    """How far the work on a key has come."""

    BEGUN = "begun"
    """An attempt works on it, or died doing so."""
    OPEN = "open"
    """An attempt failed: the next one may begin."""
    DONE = "done"


class Record(msgspec.Struct, frozen=True):
    """An entry of the ledger.

    ``holder`` names one attempt and none other, ``message`` (its queue, its id, the moment it was inserted) and
    ``attempt`` what it was handed; ``lease_s`` is how old the entity must be before another message of this key may
    take over; ``progress`` is the last checkpoint.
    """

    key: str
    standing: Standing
    holder: str
    message: str
    attempt: int
    lease_s: float
    progress: bytes | None = None


_decode = msgspec.json.Decoder(Record).decode


class Ledger:
    """Remembers in a table store which messages are done.

    ``table`` is a table store's URL or a `TableStore`; one opened here is closed with `close`. ``key`` gives the
    business id of a message; without it the message itself counts: its queue, its id and the moment it was inserted,
    which are the same on each attempt. A key holds for its queue, or with ``scope`` (a token) for all queues of that
    scope. For ``lease`` seconds an entry is left to the attempt that wrote it, which renews it at half of that; for
    ``keep`` seconds after its last write it is remembered: longer than a message may take to come again.
    """

    def __init__(
        self,
        table: str | TableStore,
        *,
        key: Callable[[Message], str] | None = None,
        scope: str | None = None,
        lease: float = 60.0,
        keep: float = 7 * 86_400.0,
        holder: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        if not 1 <= lease <= 604_800:
            raise BadInput("bad_parameter", "lease is from 1 to 604800 seconds")
        if not keep > 2 * lease:
            raise BadInput("bad_parameter", "keep is more than two leases, in seconds")
        if scope is not None and not is_token(scope):
            raise BadInput("bad_parameter", "scope is a token: letters, digits, '_' and '-'")
        self._owned = isinstance(table, str)
        if isinstance(table, str):
            from queuebell.bridge.storage.tables import open_table

            table = open_table(table)
        self.table: TableStore = table
        self.lease = float(lease)
        self.keep = float(keep)
        self._key = key
        self._scope = scope
        self._holder = holder

    def partition(self, queue: str) -> str:
        """Return the partition key of a queue's entries."""
        return self._scope or queue.replace("/", ".")

    def row(self, key: str) -> str:
        """Return the row key of an entry: a key may be any text."""
        return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()

    def wanted(self, message: Message) -> Record:
        """Return the record of a new attempt. Raises what ``key`` raises, and `TypeError` if it gives no text."""
        # An id is unique in its queue only, and a store may reuse ids when a queue is created again.
        own = f"{message.queue} {message.id} {message.inserted_at.isoformat()}"
        key: object = own if self._key is None else self._key(message)
        if not isinstance(key, str) or not 0 < len(key) <= 1024:
            raise TypeError("a ledger's key is text of 1 to 1024 characters")
        return Record(key, Standing.BEGUN, self._holder(), own, message.attempt, self.lease)

    async def purge(self, queue: str) -> int:
        """Forget entries of a queue that are older than ``keep``; return how many."""
        partition, count, after = self.partition(queue), 0, ""
        while page := await self.table.entities(partition, older_than_s=self.keep, after=after):
            after = page[-1].row
            for entity in page:
                try:
                    await self.table.delete(partition, entity.row, entity.etag)
                except Conflict:
                    continue  # written meanwhile: it is not old any more
                count += 1
        return count

    async def check(self) -> None:
        """Ask the table one question, for `CHECK_S` seconds at most.

        Raises `ConfigurationError` where it can never be used: before a message is received, because each would lose an
        attempt. A table that is away or not created yet is not an error: `Once` waits.
        """
        try:
            async with asyncio.timeout(CHECK_S):
                await self.table.get("queuebell", self.row("check"))
        except ConfigurationError as error:
            if not error.retryable:
                raise
        except (QueuebellError, TimeoutError) as error:
            log.debug("the ledger does not answer yet: %s", str(error) or "time-out")

    async def close(self) -> None:
        """Close the table store if it was opened here; may be called twice."""
        if self._owned:
            await self.table.close()


class Entry:
    """One attempt's hold on its key. Its writes come one after the other, each with the ETag of the one before."""

    def __init__(self, ledger: Ledger, row: str, partition: str, standing: Record, draw: Draw) -> None:
        self.etag: str | None = None
        """The ETag of the last acknowledged write; None before the first."""
        self.lost = False
        """Another attempt has taken over: nothing of this one counts any more."""
        self._table = ledger.table
        self._where = (partition, row)
        self._record = standing
        self._draw = draw
        self._writing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    @property
    def key(self) -> str:
        """The key that is held."""
        return self._record.key

    @property
    def progress(self) -> bytes | None:
        """The last checkpoint, of this attempt or of one before."""
        return self._record.progress

    async def checkpoint(self, progress: bytes) -> None:
        """Write how far the work has come. Raises `BadInput` above 32 KiB, and `Conflict` once another took over."""
        check_progress(progress)
        await self.write(Standing.BEGUN, progress)

    def checkpoint_from_thread(self, progress: bytes) -> None:
        """Do as `checkpoint`, and wait for it; called in a handler's thread."""
        asyncio.run_coroutine_threadsafe(self.checkpoint(progress), self._loop).result()

    async def write(self, standing: Standing, progress: bytes | None = None) -> None:
        """Write the standing, and progress if there is any new, however long the table is away.

        Raises `Conflict` if another attempt has taken over.
        """
        async with self._writing:
            if self.lost:
                raise Conflict("another attempt may have taken over this key")
            if self._record.standing is not Standing.BEGUN:
                return
            new = msgspec.structs.replace(
                self._record, standing=standing, progress=self._record.progress if progress is None else progress
            )
            await retry_until(
                lambda: self._write(new),
                f"write entry {self._where[1]} of the ledger ({self._record.key!r})",
                wanted=lambda: True,
                draw=self._draw,
            )

    async def let_go(self) -> None:
        """Open the entry for the next attempt, and write no more: its handler was cancelled."""
        await self.write(Standing.OPEN)
        self.lost = True

    async def _write(self, new: Record) -> None:
        if self.lost:
            raise Conflict("another attempt has taken over this key")
        data = msgspec.json.encode(new)
        try:
            if self.etag is None:
                raise Conflict("whether its first write was carried out is not known")
            self.etag = await self._table.replace(*self._where, data, self.etag)
        except Conflict:
            # It may be a write of our own whose answer was lost; only this attempt writes with this holder.
            found = await self._table.get(*self._where)
            if found is None or (theirs := _read(found)) is None or theirs.holder != new.holder:
                self.lost = True
                raise
            self.etag = await self._table.replace(*self._where, data, found.etag)
        self._record = new


Call = Callable[[list[Message]], Awaitable[Sequence[Outcome]]]


class Once:
    """Runs handlers under a ledger: each key by one attempt at a time, and never again once it is done."""

    def __init__(self, ledger: Ledger, draw: Draw) -> None:
        self._ledger = ledger
        self._draw = draw

    async def run(self, messages: list[Message], call: Call, wanted: Callable[[], bool]) -> list[Outcome | None]:
        """Return an outcome per message, calling the handler with those whose keys could be begun.

        Waits while others work on all the keys. Where some could be begun, the outcome of those that could not is None:
        the caller settles the rest and calls again with them, so that an attempt which holds keys never waits for
        others. Raises `NoLongerWanted` once ``wanted`` is False, and `asyncio.CancelledError`.
        """
        logged = False
        while True:
            outcomes, pause = await self._round(messages, call, wanted, known=logged)
            if any(outcome is not None for outcome in outcomes):
                return outcomes
            if not logged:
                log.info(
                    "%d messages of %s wait: another attempt works on their keys", len(messages), messages[0].queue
                )
                logged = True
            await asyncio.sleep(pause * (1 + 0.1 * self._draw()))
            if not wanted():
                raise NoLongerWanted

    async def _round(
        self, messages: list[Message], call: Call, wanted: Callable[[], bool], *, known: bool
    ) -> tuple[list[Outcome | None], float]:
        """Handle what can be begun now; return the outcomes, None for what waits, and the pause before the next check.

        ``known`` says that all keys are known to have an entry.
        """
        pause = CHECK_AGAIN_S
        outcomes: list[Outcome | None] = [None] * len(messages)
        entries: dict[int, Entry] = {}
        twins: dict[int, int] = {}
        rows: dict[tuple[str, str], int] = {}
        begun: list[Entry] = []
        try:
            for index, message in enumerate(messages):
                try:
                    mine = self._ledger.wanted(message)
                except ENDS_THE_PROCESS:
                    raise
                except BaseException as error:
                    log.exception("message %s of %s: its ledger key failed", message.id, message.queue)
                    outcomes[index] = Failed(f"the ledger's key: {named(error)}")
                    continue
                where = (self._ledger.partition(message.queue), self._ledger.row(mine.key))
                if where in rows:
                    twins[index] = rows[where]
                    continue
                rows[where] = index
                found = await self._begin(*where, mine, wanted, begun, known=known)
                if isinstance(found, Entry):
                    entries[index] = found
                elif isinstance(found, Wait):
                    pause = min(pause, found.seconds + 0.01)
                else:
                    outcomes[index] = found
            given = [_with_entry(messages[index], entry) for index, entry in entries.items()]
            results = await self._call(given, begun, call) if given else []
        except (asyncio.CancelledError, NoLongerWanted):
            await _let_go(begun)
            raise
        for index, outcome in zip(entries, await self._end_all(begun, results), strict=True):
            outcomes[index] = outcome
        for index, first in twins.items():
            outcomes[index] = outcomes[first]  # of two messages of one key in a batch, both share one fate
        return outcomes, pause

    async def _begin(
        self,
        partition: str,
        row: str,
        mine: Record,
        wanted: Callable[[], bool],
        begun: list[Entry],
        *,
        known: bool,
    ) -> Entry | Outcome | Wait:
        """Begin a key; its entry is in ``begun`` before its first write, whose answer may be lost."""
        first = mine.attempt == 1 and not known  # mostly there is no entry yet: one call instead of two
        while True:
            found: Entity | None = None
            if not first:
                found = await retry_until(
                    lambda: self._ledger.table.get(partition, row),
                    f"read the ledger for {mine.key!r}",
                    wanted=wanted,
                    draw=self._draw,
                )
            first = False
            standing = None if found is None else _read(found)
            if found is not None and standing is None:
                return Failed(f"entry {partition}/{row} of the ledger cannot be read; is this worker too old?")
            decided = decide(standing, 0.0 if found is None else found.age_s, mine)
            if isinstance(decided, AlreadyDone):
                log.info("message %s came again: %r is done", mine.message, mine.key)
                return Succeeded()
            if isinstance(decided, Wait):
                return decided
            entry = Entry(self._ledger, row, partition, decided.record, self._draw)
            begun.append(entry)
            entry.etag = await self._write_first(partition, row, decided.record, found, wanted)
            if entry.etag is not None:
                return entry
            begun.pop()
            await asyncio.sleep(0.01 * (1 + 0.1 * self._draw()))
            if not wanted():
                raise NoLongerWanted

    async def _write_first(
        self, partition: str, row: str, mine: Record, found: Entity | None, wanted: Callable[[], bool]
    ) -> str | None:
        """Insert or take over and return the ETag; None where another attempt was quicker."""
        table, data = self._ledger.table, msgspec.json.encode(mine)
        try:
            return await retry_until(
                lambda: (
                    table.insert(partition, row, data)
                    if found is None
                    else table.replace(partition, row, data, found.etag)
                ),
                f"begin {mine.key!r} in the ledger",
                wanted=wanted,
                draw=self._draw,
            )
        except Conflict:
            return None  # also where it was our own write whose answer was lost: the next check finds our holder

    async def _call(self, given: list[Message], entries: list[Entry], call: Call) -> Sequence[Outcome]:
        handler = asyncio.current_task()
        renewing = [
            asyncio.create_task(
                self._renew(entry, handler if len(entries) == 1 else None), name=f"ledger-renew[{entry.key[:40]}]"
            )
            for entry in entries
        ]
        try:
            return await call(given)
        finally:
            for task in renewing:
                task.cancel()  # not waited for: a stop just then would take the outcome along

    async def _renew(self, entry: Entry, handler: asyncio.Task[Any] | None) -> None:
        """Keep an entry young; once it is lost, cancel the handler."""
        while True:
            await asyncio.sleep(self._ledger.lease / 2)
            try:
                await entry.write(Standing.BEGUN)
            except Conflict:
                log.warning(
                    "another worker has taken over key %r after this attempt's lease ended; this attempt is cancelled",
                    entry.key,
                )
                if handler is not None:
                    handler.cancel()
                return
            except QueuebellError as error:
                log.warning(
                    "the ledger entry of key %r could not be renewed and will be tried again: %s", entry.key, error
                )

    async def _end_all(self, entries: list[Entry], results: Sequence[Outcome]) -> list[Outcome]:
        """Write the handler's outcome, and return the outcome that counts.

        If it is cancelled meanwhile it has `LET_GO_S` left, and the cancellation comes with the next wait.
        """
        ended: list[Outcome] = []
        try:
            for entry, outcome in zip(entries, results, strict=True):
                ended.append(await self._end(entry, outcome))
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LET_GO_S):
                    for entry, outcome in list(zip(entries, results, strict=True))[len(ended) :]:
                        ended.append(await self._end(entry, outcome))
            # A success that the ledger does not know of must come again, as after a crash.
            lost = Failed("the worker stopped before the ledger recorded its success")
            ended += [lost if isinstance(outcome, Succeeded) else outcome for outcome in results[len(ended) :]]
            if (task := asyncio.current_task()) is not None:
                task.cancel()
        return ended

    async def _end(self, entry: Entry, outcome: Outcome) -> Outcome:
        done = isinstance(outcome, Succeeded)
        try:
            await entry.write(Standing.DONE if done else Standing.OPEN)
        except Conflict:
            if done:
                return Failed("another attempt has taken over its key meanwhile")
        except Closed:
            raise
        except QueuebellError as error:
            if done:
                return Failed(f"the ledger could not be written: {error}")
        return outcome


async def _let_go(entries: list[Entry]) -> None:
    """Open entries whose handler did not end: their messages are released uncounted, so no attempt is higher.

    For a moment only, for the worker stops; what does not reach the table in time is left to the entry's own lease.
    """
    try:
        async with asyncio.timeout(LET_GO_S):
            for entry in entries:
                with contextlib.suppress(Conflict):  # another attempt has it already
                    await entry.let_go()
    except (QueuebellError, TimeoutError) as error:
        log.warning(
            "the ledger did not confirm the release of %d keys. Nothing is lost: their next attempts wait until the "
            "entries expire: %s",
            len(entries),
            str(error) or "no answer in time",
        )


async def purge_all(ledger: Ledger, queues: list[str], draw: Draw) -> None:
    """Forget old entries of these queues, every hour or so, until it is cancelled."""
    while True:
        await asyncio.sleep(PURGE_S * (0.8 + 0.4 * draw()))
        for queue in queues:
            try:
                count = await ledger.purge(queue)
                if count:
                    log.info("%s: %d old entries forgotten", queue, count)
            except QueuebellError as error:
                log.info("%s: old entries of the ledger could not be forgotten now: %s", queue, error)
            except Exception:
                log.exception("%s: unexpected error while removing old entries of the ledger", queue)


def check_progress(progress: object) -> None:
    """Raise `BadInput` for a checkpoint that is not bytes or is too long."""
    if not isinstance(progress, bytes) or len(progress) > PROGRESS_BYTES_MAX:
        raise BadInput("too_large", f"a checkpoint is text or bytes, at most {PROGRESS_BYTES_MAX} bytes")


def _with_entry(message: Message, entry: Entry) -> Message:
    return msgspec.structs.replace(message, progress=entry.progress, entry=entry)


def _read(entity: Entity) -> Record | None:
    try:
        return _decode(entity.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class Begin(msgspec.Struct, frozen=True):
    """Write this record, in place of the one that was read if there was one, and begin."""

    record: Record


class AlreadyDone(msgspec.Struct, frozen=True):
    """The effect happened: delete the message unhandled."""


class Wait(msgspec.Struct, frozen=True):
    """Another attempt works on this key; check again in so many seconds at the latest."""

    seconds: float


def decide(found: Record | None, age_s: float, wanted: Record) -> Begin | AlreadyDone | Wait:
    """Decide what an attempt may do that found this record, written ``age_s`` ago.

    An attempt takes over, with the progress made, from one that failed; from one whose message is the same and was
    delivered again, because the store has ended the earlier lease; and from one that has not renewed its entry within
    its lease. Two live attempts cannot both go on writing: each write names the ETag of the one before it.

    Where a store has lost count of its hand-outs (it crashed after a receive that was not on its disk), the attempt is
    no higher, and it waits for the lease. Another receipt would tell it from the earlier hand-out, but not which of the
    two is the newer, nor that the earlier worker died with the store: as a rule it lives, and is at work.
    """
    if found is None:
        return Begin(wanted)
    if found.standing is Standing.DONE:
        return AlreadyDone()
    again = found.message == wanted.message and wanted.attempt > found.attempt
    if found.holder == wanted.holder or found.standing is Standing.OPEN or again or age_s > found.lease_s:
        return Begin(msgspec.structs.replace(wanted, progress=found.progress))
    return Wait(max(0.0, found.lease_s - age_s))
