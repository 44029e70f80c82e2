"""Brings what was committed to an outbox to a store: the shell around `rows`, `pace` and `statements`."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

import msgspec

from bridge.contract.backoff import Draw
from bridge.contract.errors import BadInput, ConfigurationError, QueuebellError, Unsupported, named
from bridge.producer.outbox import statements
from bridge.producer.outbox.bells import hang
from bridge.producer.outbox.database import Link, OutboxDatabase
from bridge.producer.outbox.pace import Pace
from bridge.producer.outbox.rows import OutboxRow, by_queue, is_final, message_of
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import QueueStore, once
from bridge.queues.side_by_side import side_by_side

log = logging.getLogger("queuebell.outbox")

AT_ONCE: Final = 16
"""Queues that one look puts to at the same time; each in its order."""
TURN_S: Final = 5.0
"""After this no further put of a look begins: what stands is deleted, and the transaction ends."""
BEHIND_S: Final = 2 * TURN_S
"""After so long behind another relay the log says so."""
_DATABASE: Final = "the outbox"
_ANOTHER: Final = "this relay"
_LISTENING: Final = "listening"


class _Outcome(enum.Enum):
    """What one look came to."""

    DONE = enum.auto()
    MORE = enum.auto()
    BUSY = enum.auto()
    FAILED = enum.auto()


class RelayState(msgspec.Struct, frozen=True):
    """What a relay has done since it started: messages put, rows refused, puts that failed and are tried again.

    ``listening`` says that a commit in any process rings here; otherwise those of this process do, and ``interval_s``.
    ``busy`` says that another relay had the outbox at the last look.
    """

    sent: int = 0
    refused: int = 0
    failures: int = 0
    listening: bool = False
    busy: bool = False


class Relay:
    """Puts what is committed to an outbox to a store: at once, in the order of its ids queue by queue, once.

    ``to`` is a store whose puts ring by themselves (the queue service, a `Bridge`'s own), or a `PublishingQueue`, which
    tells a bridge of each put. Where the store puts once, each row is put once, also if this process is killed at any
    moment and started again within the store's window (10 minutes); elsewhere it is put at least once.

    ``interval_s`` (above 0) is how often is looked where no commit of another process can ring: on SQLite, and while
    the connection that listens is down. ``sweep_s`` is how often is looked although nothing rang. Leaving waits
    ``close_timeout`` seconds for what was committed before. Entering raises `NotPrepared` where the table is missing,
    and `ConfigurationError` where it is of another version; a database that is away is tried again.
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
        self._pace, self._trouble = Pace(), Pace()
        self._rung, self._leaving = asyncio.Event(), asyncio.Event()
        self._lost: asyncio.Future[None] | None = None
        self._stopping = self._listening = False
        self._away: set[str] = set()
        self._sent = self._refused = self._failures = 0
        self._busy_since: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unhang: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            async with self._database.connect() as link:
                refused, others = await link.call(partial(statements.check, place=self._place))
        except QueuebellError:
            await self._database.close()
            raise
        except Exception as error:  # noqa: BLE001 - it is a driver's, and any
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
        self._unhang = hang(partial(loop.call_soon_threadsafe, self._rung.set))
        self._rung.set()
        self._tasks = [loop.create_task(self._relay(), name="queuebell-outbox")]
        if self._place.dialect == "postgresql":
            self._tasks.append(loop.create_task(self._listen(), name="queuebell-outbox-listen"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unhang()
        self.stop()
        self._rung.set()  # what this very process has committed is on its way before it leaves
        # Not by a cancellation: one amid connecting leaves a driver's socket open.
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
        """Relay until `stop` or a cancellation; what was committed before is brought out."""
        async with self:
            await self.ended()

    async def ended(self) -> None:
        """Wait until `stop` was called and what waited then was put, or could not be."""
        await asyncio.wait(self._tasks[:1])

    def stop(self) -> None:
        """Have `run` end once what waits now is put, or cannot be."""
        self._stopping = True
        self._rung.set()

    def state(self) -> RelayState:
        """Return the counters since it was made."""
        return RelayState(self._sent, self._refused, self._failures, self._listening, self._busy_since is not None)

    async def _relay(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            stopping, rung = self._stopping, self._rung.is_set()
            self._rung.clear()
            outcome = await self._turn(rung)
            if outcome is _Outcome.MORE:
                continue
            if stopping:
                return
            idle_s = self._sweep_s if self._listening else min(self._interval_s, self._sweep_s)
            pace = self._trouble if outcome is _Outcome.FAILED else self._pace
            following = pace.next_look(now(), idle_s, busy=outcome is _Outcome.BUSY)
            try:
                async with asyncio.timeout_at(following):
                    await self._rung.wait()
            except TimeoutError:
                continue

    async def _turn(self, rung: bool) -> _Outcome:
        """Read, put and delete."""
        now = asyncio.get_running_loop().time
        try:
            async with self._database.connect() as link:
                resting = self._pace.resting(now())
                found = await link.call(
                    partial(statements.look, place=self._place, resting=resting, rung=rung),
                    commit=self._place.dialect == "sqlite",  # no writer waits for a store
                )
                self._pace.keep(now(), by_queue(found.rows))
                all_asked = not found.rows or await self._bring(link, found.rows)
        except Exception as error:  # noqa: BLE001 - it is a driver's, and any
            self._trouble.failed(_DATABASE, now(), self._draw)
            self._failed(_DATABASE, "cannot be read; its rows are kept", error)
            return _Outcome.FAILED
        self._worked(_DATABASE)
        self._trouble.worked(_DATABASE)
        self._behind(found.busy, now())
        if found.busy:
            return _Outcome.BUSY
        # A full look goes on at once even if no put worked: the queues that failed rest, and others come behind them.
        return _Outcome.DONE if all_asked and not found.full else _Outcome.MORE

    async def _bring(self, link: Link, found: Sequence[OutboxRow]) -> bool:
        """Put rows and take them away; False where time was over before each was asked about."""
        give_up = asyncio.get_running_loop().time() + TURN_S
        turns = asyncio.Semaphore(AT_ONCE)
        sent: list[OutboxRow] = []
        refused: dict[OutboxRow, str] = {}

        async def one(rows: Sequence[OutboxRow]) -> None:
            async with turns:
                await self._put(rows, give_up, sent, refused)

        await side_by_side("queuebell-outbox-put", map(one, by_queue(found).values()))
        if sent or refused:
            done = partial(statements.finish, place=self._place, sent=sent, refused=refused)
            await link.call(done, commit=True)
            self._sent += len(sent)
            self._refused += len(refused)
        return asyncio.get_running_loop().time() < give_up

    async def _put(
        self, rows: Sequence[OutboxRow], give_up: float, sent: list[OutboxRow], refused: dict[OutboxRow, str]
    ) -> None:
        """Put rows of one queue in their order, as far as the store takes them."""
        now, queue = asyncio.get_running_loop().time, rows[0].queue
        size = self._sink.at_once
        waiting = deque(rows[start : start + size] for start in range(0, len(rows), size))
        while waiting and now() < give_up:
            some = waiting.popleft()
            try:
                await self._sink.put(queue, some)
            except Exception as error:  # noqa: BLE001 - a store that fails in a way it does not promise is tried again
                if not is_final(error):
                    self._pace.failed(queue, now(), self._draw, getattr(error, "retry_after", None))
                    self._failed(queue, "a put failed; its rows are kept and retried", error)
                    return
                if len(some) > 1:  # which of them it is only the store knows
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
                self._pace.worked(queue)
                self._worked(queue)

    def _behind(self, busy: bool, now: float) -> None:
        """Note whether another relay has the outbox, and say so once it has had it for long."""
        if not busy:
            self._busy_since = None
            self._worked(_ANOTHER)
        elif self._busy_since is None:
            self._busy_since = now
        elif now - self._busy_since >= BEHIND_S and _ANOTHER not in self._away:
            self._away.add(_ANOTHER)
            log.warning(
                "%s: another relay has used it for %g s; its rows are kept. If that relay hangs, the "
                "server ends its transaction after %g s, and this relay continues",
                self._place.name,
                now - self._busy_since,
                statements.HELD_S,
            )

    def _failed(self, who: str, what: str, error: Exception) -> None:
        self._failures += 1
        if who not in self._away:  # one line for each change of state
            self._away.add(who)
            log.warning("%s: %s: %s", who, what, named(error))

    def _worked(self, who: str) -> None:
        if who in self._away:
            self._away.discard(who)
            log.info("%s: works again", who)

    async def _listen(self) -> None:
        """Hold a connection on which every commit is heard."""
        loop = asyncio.get_running_loop()
        while not self._leaving.is_set():
            try:
                async with self._database.listen(self._rung.set) as lost:
                    if self._leaving.is_set():
                        return
                    self._lost, self._listening = lost, True
                    self._trouble.worked(_LISTENING)
                    self._rung.set()  # what was committed before it was heard
                    await lost
                if self._leaving.is_set():
                    return
                log.warning("the connection that receives commits is lost; polling every %g s", self._interval_s)
            except Unsupported as error:
                log.warning(
                    "commits of other processes are not received; polling every %g s: %s", self._interval_s, error
                )
                return
            except Exception as error:  # noqa: BLE001 - it is a driver's, and any
                log.debug("no connection that receives commits: %s", named(error))
            finally:
                self._listening = False
                self._rung.set()
            self._trouble.failed(_LISTENING, loop.time(), self._draw)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._trouble.next_look(loop.time(), self._sweep_s)):
                    await self._leaving.wait()


class _Sink:
    """One of the two that messages are put to, and the way that each row is put once where that can be."""

    def __init__(self, to: QueueStore | PublishingQueue) -> None:
        self._to = to
        store = to.store if isinstance(to, PublishingQueue) else to
        if not hasattr(store, "capabilities"):
            raise ConfigurationError("an outbox relays to a store from open_store(), or to a PublishingQueue")
        self._once = store.capabilities.put_once
        self.at_once = 1 if self._once else store.capabilities.batch_max

    async def put(self, queue: str, rows: Sequence[OutboxRow]) -> None:
        """Put rows, one where they are put once. Raises what the store raises."""
        messages = [message_of(row, time.time_ns() // 1_000_000) for row in rows]
        if not self._once:
            await self._to.put(queue, messages)
        elif isinstance(self._to, PublishingQueue):
            await self._to.put_once(queue, rows[0].put_key, messages[0], patience=0.0)
        else:
            await once(self._to).put_once(queue, rows[0].put_key, messages[0])
