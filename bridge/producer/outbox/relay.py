"""The relay: puts the committed rows of an outbox to a store and deletes them."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Self

import msgspec

from queuebell.bridge.contract.backoff import Draw, RandomExponential
from queuebell.bridge.contract.errors import BadInput, ConfigurationError, QueuebellError, Unsupported, named
from queuebell.bridge.producer.outbox import table
from queuebell.bridge.producer.outbox.database import Link, OutboxDatabase, on_local_commit
from queuebell.bridge.producer.outbox.table import OutboxRow, message_of
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import QueueStore, once
from queuebell.bridge.queues.side_by_side import side_by_side

log = logging.getLogger("queuebell.outbox")

AT_ONCE: Final = 16
"""Queues that one read puts to at the same time, each in its order."""
TURN_S: Final = 5.0
"""After this no further put begins: rows that were put are deleted, and the transaction ends."""
BEHIND_S: Final = 2 * TURN_S
"""How long another relay may hold the outbox before that is logged."""
REST_S_MAX: Final = 30.0
BUSY_S: Final = 1.0
"""The next read while another relay is active: that relay may be killed before it reads the newest commit."""
_DATABASE: Final = "the outbox"
_ANOTHER: Final = "this relay"
_LISTENING: Final = "listening"


class RelayState(msgspec.Struct, frozen=True):
    """Counters of a relay: messages put, rows rejected, and failures, which are retried.

    ``listening``: commits of any process notify it; otherwise those of this process do, and it polls each
    ``interval_s``. ``busy``: another relay held the outbox at the last read.
    """

    sent: int = 0
    refused: int = 0
    failures: int = 0
    listening: bool = False
    busy: bool = False


class Relay:
    """Puts the committed messages of an outbox to a store immediately, in the order of their ids for each queue.

    ``to`` is a store whose puts trigger by themselves (the bridge's embedded queues), or a `PublishingQueue`. If the
    store supports put-once, each row is put once, even if this process is killed at any moment and restarted within the
    store's window (10 minutes); otherwise at least once.

    ``interval_s`` (above 0) is the polling interval where commits of other processes send no notification: on SQLite,
    and while the listening connection is down. ``sweep_s`` is the longest time between two reads. Leaving waits up to
    ``close_timeout`` seconds for what was committed before. Entering raises `NotPrepared` if the table is missing and
    `ConfigurationError` if it is of another version; an unavailable database is retried.
    """

    def __init__(
        self,
        database: OutboxDatabase,
        to: QueueStore | PublishingQueue,
        *,
        interval_s: float = 1.0,
        sweep_s: float = 60.0,
        close_timeout: float = 5.0,
        draw: Draw = random.random,
    ) -> None:
        for name, value in (("interval_s", interval_s), ("sweep_s", sweep_s)):
            if not (math.isfinite(value) and value > 0):
                raise BadInput("bad_parameter", f"{name} must be a number of seconds above 0")
        if not (math.isfinite(close_timeout) and close_timeout >= 0):
            raise BadInput("bad_parameter", "close_timeout must be a number of seconds, 0 or more")
        self._database = database
        self._place = database.place
        self._sink = _Sink(to)
        self._interval_s, self._sweep_s, self._close_timeout = interval_s, sweep_s, close_timeout
        self._draw = draw
        self._queues, self._connections = _Backoffs(), _Backoffs()
        self._committed, self._leaving = asyncio.Event(), asyncio.Event()
        self._lost: asyncio.Future[None] | None = None
        self._stopping = self._listening = False
        self._failing: set[str] = set()
        self._sent = self._refused = self._failures = 0
        self._busy_since: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            async with self._database.connect() as link:
                refused, others = await link.call(partial(table.check_table, place=self._place))
        except QueuebellError:
            await self._database.close()
            raise
        except Exception as error:  # noqa: BLE001 - a driver may raise anything
            self._failed(_DATABASE, "cannot be read; its rows are kept", error)
        else:
            if refused:
                log.warning("%s: %d rows were rejected and are kept; see the column refused", self._place.name, refused)
            if others:
                log.error(
                    "%s: %d rows are from another version of Queuebell and stay: run a relay of that version",
                    self._place.name,
                    others,
                )
        self._unsubscribe = on_local_commit(partial(loop.call_soon_threadsafe, self._committed.set))
        self._committed.set()
        self._tasks = [loop.create_task(self._relay(), name="queuebell-outbox")]
        if self._place.dialect == "postgresql":
            self._tasks.append(loop.create_task(self._listen(), name="queuebell-outbox-listen"))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        self.stop()
        # Not a cancellation: while connecting, it would leave a driver's socket open.
        self._leaving.set()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        try:
            await asyncio.wait(self._tasks, timeout=self._close_timeout)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            await self._database.close()
        for task in self._tasks:
            if not task.cancelled() and (bug := task.exception()) is not None:
                log.error("unexpected error in a task of the outbox", exc_info=bug)

    async def run(self) -> None:
        """Relay until `stop` or a cancellation, including what was committed before."""
        async with self:
            await self.ended()

    async def ended(self) -> None:
        """Wait until `stop` was called and the rows committed by then were put, or could not be."""
        await asyncio.wait(self._tasks[:1])

    def stop(self) -> None:
        """Read once more, and end `run` once the rows committed by now are put, or cannot be."""
        self._stopping = True
        self._committed.set()

    def state(self) -> RelayState:
        """Return the counters since it was created."""
        return RelayState(self._sent, self._refused, self._failures, self._listening, self._busy_since is not None)

    async def _relay(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            stopping, notified = self._stopping, self._committed.is_set()
            self._committed.clear()
            outcome = await self._relay_once(notified)
            if outcome is _Outcome.MORE:
                continue
            if stopping:
                return
            idle_s = self._sweep_s if self._listening else min(self._interval_s, self._sweep_s)
            backoffs = self._connections if outcome is _Outcome.FAILED else self._queues
            following = backoffs.next_read(now(), idle_s, busy=outcome is _Outcome.BUSY)
            try:
                async with asyncio.timeout_at(following):
                    await self._committed.wait()
            except TimeoutError:
                continue

    async def _relay_once(self, notified: bool) -> _Outcome:
        """Read, put and delete up to 100 rows."""
        now = asyncio.get_running_loop().time
        try:
            async with self._database.connect() as link:
                resting = self._queues.resting(now())
                found = await link.call(
                    partial(table.read_pending, place=self._place, resting=resting, notified=notified),
                    commit=self._place.dialect == "sqlite",  # so that no writer waits for a store
                )
                by_queue: dict[str, list[OutboxRow]] = {}
                for row in found.rows:
                    by_queue.setdefault(row.queue, []).append(row)
                self._queues.keep(now(), by_queue)
                all_asked = not by_queue or await self._put_all(link, by_queue.values())
        except Exception as error:  # noqa: BLE001 - a driver may raise anything
            self._connections.failed(_DATABASE, now(), self._draw)
            self._failed(_DATABASE, "cannot be read; its rows are kept", error)
            return _Outcome.FAILED
        self._worked(_DATABASE)
        self._connections.worked(_DATABASE)
        self._note_busy(found.busy, now())
        if found.busy:
            return _Outcome.BUSY
        # A full read continues immediately even if no put worked: failed queues rest, and others come behind them.
        return _Outcome.DONE if all_asked and not found.full else _Outcome.MORE

    async def _put_all(self, link: Link, queues: Iterable[Sequence[OutboxRow]]) -> bool:
        """Put the rows of several queues and record the outcome; False if the time was over before all were tried."""
        give_up = asyncio.get_running_loop().time() + TURN_S
        turns = asyncio.Semaphore(AT_ONCE)
        sent: list[OutboxRow] = []
        refused: dict[OutboxRow, str] = {}

        async def one(rows: Sequence[OutboxRow]) -> None:
            async with turns:
                await self._put(rows, give_up, sent, refused)

        await side_by_side("queuebell-outbox-put", map(one, queues))
        if sent or refused:
            done = partial(table.record_outcome, place=self._place, sent=sent, refused=refused)
            await link.call(done, commit=True)
            self._sent += len(sent)
            self._refused += len(refused)
        return asyncio.get_running_loop().time() < give_up

    async def _put(
        self, rows: Sequence[OutboxRow], give_up: float, sent: list[OutboxRow], refused: dict[OutboxRow, str]
    ) -> None:
        """Put the rows of one queue in order until a put fails or ``give_up``; add them to ``sent`` and ``refused``."""
        now, queue = asyncio.get_running_loop().time, rows[0].queue
        size = self._sink.at_once
        waiting = deque(rows[start : start + size] for start in range(0, len(rows), size))
        while waiting and now() < give_up:
            some = waiting.popleft()
            try:
                await self._sink.put(queue, some)
            except Exception as error:  # noqa: BLE001 - an unexpected error of a store is retried
                if not isinstance(error, BadInput | Unsupported):
                    self._queues.failed(queue, now(), self._draw, getattr(error, "retry_after", None))
                    self._failed(queue, "a put failed; its rows are kept and retried", error)
                    return
                if len(some) > 1:  # only the store knows which of them it rejects
                    waiting.extendleft([row] for row in reversed(some))
                    continue
                refused[some[0]] = reason = f"{getattr(error, 'code', 'internal')}: {named(error)}"
                log.error(
                    "%s: a message cannot be put and is not retried; its row %d is kept with the reason: %s",
                    queue,
                    some[0].id,
                    reason,
                    extra={"queue": queue, "put_key": some[0].put_key},
                )
            else:
                sent += some
                self._queues.worked(queue)
                self._worked(queue)

    def _note_busy(self, busy: bool, now: float) -> None:
        """Note whether another relay holds the outbox, and log it after `BEHIND_S`."""
        if not busy:
            self._busy_since = None
            self._worked(_ANOTHER)
        elif self._busy_since is None:
            self._busy_since = now
        elif now - self._busy_since >= BEHIND_S and _ANOTHER not in self._failing:
            self._failing.add(_ANOTHER)
            log.warning(
                "%s: another relay has used it for %g s; its rows are kept. If that relay hangs, the "
                "server ends its transaction after %g s, and this relay continues",
                self._place.name,
                now - self._busy_since,
                table.HELD_S,
            )

    def _failed(self, name: str, failure: str, error: Exception) -> None:
        self._failures += 1
        if name not in self._failing:  # one line for each change of state
            self._failing.add(name)
            log.warning("%s: %s: %s", name, failure, named(error))

    def _worked(self, name: str) -> None:
        if name in self._failing:
            self._failing.discard(name)
            log.info("%s: works again", name)

    async def _listen(self) -> None:
        """Keep a connection that receives the notification of every commit."""
        loop = asyncio.get_running_loop()
        while not self._leaving.is_set():
            try:
                async with self._database.listen(self._committed.set) as lost:
                    if self._leaving.is_set():
                        return
                    self._lost, self._listening = lost, True
                    self._connections.worked(_LISTENING)
                    self._committed.set()  # commits before the first notification
                    await lost
                if self._leaving.is_set():
                    return
                log.warning("the connection that receives commits is lost; polling every %g s", self._interval_s)
            except Unsupported as error:
                log.warning(
                    "commits of other processes are not received; polling every %g s: %s", self._interval_s, error
                )
                return
            except Exception as error:  # noqa: BLE001 - a driver may raise anything
                log.debug("no connection that receives commits: %s", named(error))
            finally:
                self._listening = False
                self._committed.set()
            self._connections.failed(_LISTENING, loop.time(), self._draw)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._connections.next_read(loop.time(), self._sweep_s)):
                    await self._leaving.wait()


class _Outcome(enum.Enum):
    """The result of one read."""

    DONE = enum.auto()
    MORE = enum.auto()
    BUSY = enum.auto()
    FAILED = enum.auto()


class _Sink:
    """The store or publishing queue that messages are put to, by put-once where it is supported."""

    def __init__(self, to: QueueStore | PublishingQueue) -> None:
        self._to = to
        store = to.store if isinstance(to, PublishingQueue) else to
        if not hasattr(store, "capabilities"):
            raise ConfigurationError("an outbox relays to a store from open_store(), or to a PublishingQueue")
        self._once = store.capabilities.put_once
        self.at_once = 1 if self._once else store.capabilities.batch_max

    async def put(self, queue: str, rows: Sequence[OutboxRow]) -> None:
        """Put rows, a single one with put-once. Raises what the store raises."""
        messages = [message_of(row, time.time_ns() // 1_000_000) for row in rows]
        if not self._once:
            await self._to.put(queue, messages)
        elif isinstance(self._to, PublishingQueue):
            await self._to.put_once(queue, rows[0].put_key, messages[0], patience=0.0)
        else:
            await once(self._to).put_once(queue, rows[0].put_key, messages[0])


class _Backoffs:
    """Which queues or connections rest after a failure: with a jittered back-off, 30 s at most, or as the store asks.

    Times are seconds of one monotonic clock.
    """

    __slots__ = ("_backoffs", "_until")

    def __init__(self) -> None:
        self._backoffs: dict[str, RandomExponential] = {}
        self._until: dict[str, float] = {}

    def failed(self, name: str, now: float, draw: Draw, asked_s: float | None = None) -> None:
        """Let one rest after a failure; ``asked_s`` is the least pause that its store asks for."""
        pause = self._backoffs.setdefault(name, RandomExponential(0.1, REST_S_MAX)).miss(draw)
        self._until[name] = now + (asked_s or 0.0) + pause

    def worked(self, name: str) -> None:
        """Forget its failures."""
        self._backoffs.pop(name, None)
        self._until.pop(name, None)

    def resting(self, now: float) -> list[str]:
        """Return those that rest now."""
        return sorted(name for name, until in self._until.items() if until > now)

    def keep(self, now: float, waiting: Iterable[str]) -> None:
        """Forget all that neither rest nor wait."""
        for name in self._until.keys() - set(waiting) - set(self.resting(now)):
            self.worked(name)

    def next_read(self, now: float, idle_s: float, *, busy: bool = False) -> float:
        """Return when to read again without a notification: after ``idle_s``, or sooner if a rest ends.

        ``busy``: another relay is active.
        """
        ends = [until for until in self._until.values() if until > now]
        return min([now + (min(BUSY_S, idle_s) if busy else idle_s), *ends])
