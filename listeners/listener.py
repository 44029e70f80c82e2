"""The listener: what a worker process runs.

`Listener` connects the parts and decides nothing by itself: its `Sessions` with the bridge, one `Dequeue` per queue,
the hooks, the signals, and the order of stopping (L12).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime
import functools
import logging
import os
import random
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic

from queuebell.bridge.brokers.credential import ApiKey
from queuebell.bridge.contract.address import is_http, one_text
from queuebell.bridge.contract.backoff import Backoff, Draw, RandomExponential
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.jobs import Jobs
from queuebell.bridge.contract.partitioning import Partitions, expand
from queuebell.bridge.queues.base import BATCH_MAX, VISIBILITY_S_MAX, QueueStore
from queuebell.bridge.storage.claim_check import ClaimCheck
from queuebell.listeners.figures import ListenerFigures
from queuebell.listeners.handler import Message, Payload, called_with
from queuebell.listeners.pool import Pool, is_number, is_whole
from queuebell.listeners.session.opening import (
    batch_max,
    bridge_of,
    check_client,
    check_store,
    kind_of,
    name_of,
    open_channel,
    open_publisher,
    open_store,
    owns,
    poison_of,
)
from queuebell.listeners.session.session import Session, Sessions
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.pool import Place
from queuebell.listeners.wake.receive_scaling import DepthScaling, Scaling
from queuebell.listeners.wake.table import Mode
from queuebell.listeners.wake.timers import DeadMan
from queuebell.listeners.work.claims import Claims
from queuebell.listeners.work.dequeue import Dequeue
from queuebell.listeners.work.events import ListenerEvents
from queuebell.listeners.work.failures import ReceiveFailures, StoreReached
from queuebell.listeners.work.holding import Rules
from queuebell.listeners.work.invoke import Invoker
from queuebell.listeners.work.ledger import Ledger, Once, purge_all
from queuebell.listeners.work.lifecycle import OneRun, StopSignals, refuse_in_import
from queuebell.listeners.work.payload import decoder
from queuebell.listeners.work.retry import (
    ATTEMPTS,
    Classify,
    Failed,
    Outcome,
    RetryPolicy,
    classify,
    describe_retry,
    outcome_word,
    policy_of,
)
from queuebell.listeners.work.starter import WorkerStatus

log = logging.getLogger("queuebell.listener")

NAMED_MAX: Final = 8
TIMEOUT_S_MAX: Final = 31_536_000
"""The longest time of a handler, and the longest grace: a year."""
WORSE: Final = (Mode.PUSH, Mode.CONNECTING, Mode.DEGRADED)
"""Where its sessions differ, a listener has the last of these modes."""
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 30.0


class Listener(Generic[Payload]):
    """Runs a handler on the messages of one or several queues, woken by a bridge; each is handled at least once.

    ::

        import asyncio

        from queuebell import Bridge, Listener, Message, RetryPolicy

        async def charge(message: Message) -> None:
            print("charging", message.text())

        async def main() -> None:
            async with Bridge() as bridge:
                await bridge.store.put("billing/orders", ["order 20"])
                listener = Listener(
                    bridge,
                    "billing/orders",
                    charge,
                    concurrency=8,
                    retry=RetryPolicy(attempts=3),
                    poison_queue="billing/orders-failed",
                    handler_timeout=20.0,
                    on_queue_empty=lambda queue: listener.stop(),
                )
                await listener.run()

        asyncio.run(main())

    All times are seconds. Raises `ConfigurationError`, `BadInput` or `TypeError` for invalid arguments. It prints
    nothing and configures no logging.

    Where messages come from:

    - ``store``: a store's URL, a `QueueStore`, or a `Bridge` of this process.
    - ``queue``: a queue reference, a partitioned queue (`Partitions`, or text as ``billing/orders:8``), or a list of
      any number of them; each session with the bridge serves about 200.
    - ``bridge``: the bridge that wakes it: its URL, a `Bridge` of this process, or `PULL_ONLY` to poll without one. A
      list of ``http://`` addresses names equal bridges, of which it uses one at a time; a list of ``nats://``
      addresses names the servers of one cluster. Leave it out if the store is the bridge's own: an http(s) URL, an
      open store of one, or a `Bridge`.
    - ``api_key``: the key for the bridge, or a function that returns it. Defaults to ``QUEUEBELL_API_KEY``, or the
      file that ``QUEUEBELL_API_KEY_FILE`` names.

    What handles them:

    - ``handler``: called with each message. If its parameter is annotated as a list, or it is decorated with `batch`,
      it gets whole batches (`queuebell.listeners.handler`).
    - ``payload``: a type that JSON bodies are decoded to, as ``value`` of a ``Message[Order]``: a `msgspec.Struct`,
      a dataclass, a TypedDict, an attrs class or a Pydantic model.
    - ``claim_check``: a `ClaimCheck` or the URL of a blob store; fetches large bodies that producers stored there.
    - ``ledger``: a `Ledger` or the URL of a table store; handles a message once although it is delivered twice.
    - ``handler_timeout``: cancels a handler after this time, and its attempt fails; None is no limit. The thread of a
      plain function cannot be cancelled, and a coroutine may swallow its cancellation: its attempt fails a second
      later. Either keeps its slot until it ends.
    - ``end_when_stuck``: ends `run` with `HandlersStuck` when such calls hold every slot of a queue, so that a
      supervisor restarts the process. False logs it and waits for one to end.

    How many at a time:

    - ``concurrency``: the messages of each queue that are handled at once; defaults to 32.
    - ``pool``: a `Pool` of handler slots shared by all its queues, and by other listeners with the same pool, instead
      of ``concurrency``.
    - ``batch``: the most messages of one receive and of one call of a batch handler, 1 to 32, to 256 on PostgreSQL.
    - ``scaling``: the number of receives for a depth (default `DepthScaling`).
    - ``visibility_timeout``: the lease of a message, above 0. It is renewed at half its time while a handler runs; a
      store may round it up to whole seconds.

    When a handler fails:

    - ``retry``: a `RetryPolicy` with the number of attempts and the pauses between them: 0.5 s by default, each six
      times the one before, up to 120 s.
    - ``max_attempts``: the number of attempts alone; 0 is unlimited. Leave it out with ``retry``.
    - ``poison_queue``: the queue for messages that failed every attempt; defaults to the queue's name and ``-poison``
      (of partitions, the logical queue's).
    - ``failures``: returns the class of an exception (default `queuebell.listeners.work.retry.classify`).

    The rest:

    - ``name``: a label for people; defaults to host and process. ``handler_name`` is the handler's name in metrics and
      defaults to ``module:function``.
    - ``backoff``: the pauses between polls while no bridge is connected (default `RandomExponential`).
    - ``grace``: the time that running handlers get at a stop.
    - ``handle_signals``: True handles SIGTERM and SIGINT in place of any other handler, False never. None handles them
      if nothing else does: not within a web server or a notebook, nor in another thread.
    - ``on_queue_empty``, ``on_work_detected``: hooks, plain or async, that may take the queue reference.
    """

    # The simulation and the chaos tests override these in a subclass.
    _draw: Draw = staticmethod(random.random)
    _now: Callable[[], datetime.datetime] = staticmethod(functools.partial(datetime.datetime.now, datetime.UTC))
    _new_instance: Callable[[], str] = staticmethod(functools.partial(secrets.token_hex, 16))

    def __init__(
        self,
        store: str | Sequence[str] | QueueStore | Any,
        queue: str | Partitions | Sequence[str | Partitions],
        handler: Callable[[Message[Payload]], object] | Callable[[list[Message[Payload]]], object],
        *,
        bridge: str | Sequence[str] | Any | None = None,
        api_key: ApiKey = None,
        payload: type[Payload] | Any | None = None,
        claim_check: ClaimCheck | str | None = None,
        ledger: Ledger | str | None = None,
        handler_timeout: float | None = None,
        end_when_stuck: bool = False,
        concurrency: int | None = None,
        pool: Pool | None = None,
        batch: int = 32,
        scaling: Scaling | None = None,
        visibility_timeout: float = 30.0,
        retry: RetryPolicy | None = None,
        max_attempts: int = ATTEMPTS,
        poison_queue: str | None = None,
        failures: Classify = classify,
        name: str | None = None,
        handler_name: str | None = None,
        backoff: Backoff | None = None,
        grace: float = 20.0,
        handle_signals: bool | None = None,
        on_queue_empty: Callable[..., object] | None = None,
        on_work_detected: Callable[..., object] | None = None,
    ) -> None:
        store = one_text(store)
        check_store(store)
        bridge = bridge_of(bridge, store)
        # Nothing is assigned: a listener of all partitions has a wake machine for each.
        served = expand([queue] if isinstance(queue, str | Partitions) else queue)
        self.queues = list(served)
        self._served = served
        most = batch_max(store) if is_whole(batch) and batch > BATCH_MAX else BATCH_MAX
        _check(is_whole(batch) and 1 <= batch <= most, f"batch is a whole number from 1 to {most} on this store")
        if pool is not None and not isinstance(pool, Pool):
            raise TypeError("pool: is a Pool of handler slots, as in Pool(32), or None")
        _check(pool is None or concurrency is None, "concurrency: a pool has its size, and Share(limit) for each queue")
        concurrency = (32 if pool is None else pool.size) if concurrency is None else concurrency
        _check(
            is_whole(concurrency) and 1 <= concurrency <= 1_000_000, "concurrency is a whole number from 1 to 1000000"
        )
        _check(
            is_number(visibility_timeout) and 0 < visibility_timeout <= VISIBILITY_S_MAX,
            f"visibility_timeout is a number of seconds up to {VISIBILITY_S_MAX}",
        )
        _check(
            handler_timeout is None or (is_number(handler_timeout) and 0 < handler_timeout <= TIMEOUT_S_MAX),
            f"handler_timeout is a number of seconds above 0, up to {TIMEOUT_S_MAX}",
        )
        _check(is_number(grace) and 0 <= grace <= TIMEOUT_S_MAX, f"grace is a number of seconds up to {TIMEOUT_S_MAX}")
        _check(ledger is None or isinstance(ledger, str | Ledger), "ledger is a Ledger, or the URL of a table store")
        _check(
            claim_check is None or isinstance(claim_check, str | ClaimCheck),
            "claim_check is a ClaimCheck, or the URL of a blob store",
        )
        if scaling is not None:
            called_with(getattr(scaling, "tasks", None), 1, "scaling: its tasks", "as in DepthScaling()")
        if backoff is not None:
            called_with(getattr(backoff, "miss", None), 1, "backoff: its miss", "as in RandomExponential()")
            called_with(getattr(backoff, "hit", None), 0, "backoff: its hit", "as in RandomExponential()")
        called_with(failures, 1, "failures", "it is given what a handler raised")
        self.instance = self._new_instance()
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        _check(len(self.name) <= 256 and self.name.isprintable(), "name is printable text of at most 256 characters")
        _check(
            api_key is None or isinstance(bridge, str) or is_http(store),
            "api_key: is for a bridge at an address, its own or a broker's",
        )
        # The bridge of a store that was opened with a key asks for the same.
        self._api_key = api_key = getattr(store, "api_key", None) if api_key is None else api_key
        self._store_given = store
        self._bridge_given = bridge
        self._handler = handler
        self._batch = batch
        self._concurrency = concurrency
        self._visibility = float(visibility_timeout)
        self._retry = policy_of(retry, max_attempts)
        self._poison = {ref: poison_of(ref, poison_queue, whole) for ref, whole in served.items()}
        self._decode = None if payload is None else decoder(payload)
        self._scaling = scaling or DepthScaling(batch, 1, max(1, -(-concurrency // batch)))
        self._backoff = backoff
        self._grace = float(grace)
        self._end_when_stuck = end_when_stuck
        self._pool = pool
        threads = min(concurrency * (len(self.queues) if pool is None else 1), 1024)
        self._invoker = Invoker(
            handler,
            threads=threads,
            timeout=handler_timeout,
            failures=failures,
            follows=self._follows,
            ends=self._ends,
        )
        self._handler_name = handler_name
        self._claim_check = claim_check
        self._claims: Claims | None = None
        self._ledger_given = ledger
        self._ledger: Ledger | None = None
        self._purging: asyncio.Task[None] | None = None
        self._outward = ListenerEvents(
            on_empty=on_queue_empty,
            on_work=on_work_detected,
            store_answered=self._on_boot,
            failed=self._failed,
            publisher=None if bridge is None else functools.partial(open_publisher, bridge, api_key),
        )
        self._starter: WorkerStatus | None = None
        self.handle_signals = handle_signals
        self._store: QueueStore | None = None
        self._reach = StoreReached()
        self._sessions: Sessions | None = None
        self._dequeues: dict[str, Dequeue] = {}
        self._listens = asyncio.Event()
        self._life = OneRun("listener", self.name, log)

    # Life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Listen until `stop` is called, a signal comes, or this is cancelled.

        Cancelled, it gives up its handlers at once and returns their messages. A first SIGTERM or SIGINT stops all
        listeners of the process as `stop` does, a second one at once: where ``handle_signals`` is None only if
        `asyncio.run` runs the loop and there is no other handler of the signals. Raises
        `ConfigurationError` if a store or bridge URL is of no known kind, or a store that never answered cannot be used
        as it is given (its client is not installed, its address is wrong); `BadQueueReference` for a queue that the
        store cannot have; `HandlersStuck` where ``end_when_stuck`` asks for it; and what a scaling or back-off rule
        raises. A store that is away is asked again for ever.
        """
        refuse_in_import()
        with self._life.running():
            try:
                with StopSignals(self.signalled, take=self.handle_signals):
                    await self._run()
            finally:
                self._listens.set()

    async def started(self) -> bool:
        """Wait until it listens, and return True; False where `run` ended before, and raises why.

        Its settings, its queues' names and its ledger are found good by then. Store and bridge may still be away.
        """
        await self._listens.wait()
        return not self._life.over

    async def stop(self) -> None:
        """Stop gracefully, and wait until it is done; from within a handler or a hook it only asks.

        No new receives; handlers get ``grace`` seconds; what has not started is released and announced.
        """
        self._life.asked.set()
        current = asyncio.current_task()
        if self._outward.runs(current) or any(dequeue.runs(current) for dequeue in self._dequeues.values()):
            return
        await self._life.ended()

    def signalled(self, count: int) -> None:
        """Handle the ``count``-th signal to stop: stop as `stop` does, immediately from the second on."""
        self._life.signalled(count, "stopping; a second signal stops at once")

    def state(self) -> ListenerFigures:
        """Return the figures of this listener: mode, session, and those of each queue."""
        sessions, session = self._sessions, None if self._sessions is None else self._sessions.first
        modes = {dequeue.controller.mode for dequeue in self._dequeues.values()} or {Mode.CONNECTING}
        mode = Mode.PULL if self._bridge_given is None else max(modes, key=WORSE.index)
        return ListenerFigures(
            name=self.name,
            instance=self.instance,
            mode=mode.value,
            session=sessions is not None and sessions.is_open,
            sessions=0 if session is None else session.sessions,
            boot=None if session is None else session.boot,
            queues={ref: dequeue.figures() for ref, dequeue in self._dequeues.items()},
            pool=None if self._pool is None else self._pool.figures(),
            bridge=None if session is None else session.bridge,
        )

    def jobs(self) -> Iterator[tuple[str, str, Jobs]]:
        """Return by queue and handler the outcomes of messages since the start (`listeners.collector`)."""
        for ref, dequeue in self._dequeues.items():
            yield ref, *dequeue.jobs()

    def unended(self) -> int:
        """Return how many calls of the handler go on; after `run` those that it could not end, for it leaves them.

        A plain function cannot be cancelled. Its thread is a daemon: it ends with the program, which need not wait.
        """
        swallowed = sum(dequeue.figures().active_handlers for dequeue in self._dequeues.values())
        return max(swallowed, self._invoker.calls_running)

    async def _run(self) -> None:
        self._store, owned = open_store(self._store_given, self._api_key)
        sessions: asyncio.Task[None] | None = None
        try:
            self._starter = self._starts()
            self._grace = self._starter.within(self._grace)
            if self._starter.linked:
                self._outward.ready, self._outward.took = self._starter.ready, self._starter.took
            check_client(self._store)
            self._open_claims(self._store)
            await self._open_ledger()
            for ref in self.queues:
                self._store.fingerprint(ref)  # refuses a queue that this store cannot have
                self._dequeues[ref] = self._dequeue(ref, self._store)
            if self._bridge_given is None:
                for dequeue in self._dequeues.values():
                    dequeue.begin_pull_only()
            else:
                self._sessions = Sessions(self.queues, self.instance, self._open_session)
                self._outward.send = self._sessions.send
                for dequeue in self._dequeues.values():
                    dequeue.arm()
                sessions = asyncio.create_task(self._sessions.run(), name=f"sessions[{self.name}]")
            self._log_start()
            self._listens.set()
            await self._life.until_asked(sessions)
            await self._stop_gracefully()
        finally:
            closing = self._closing(sessions, owned)
            try:
                await self._until_closed(asyncio.create_task(self._shut_down(closing), name=f"shut-down[{self.name}]"))
            finally:
                # Where `asyncio.run` ends it cancels all tasks, also that one: what it left open is closed even so.
                await closing.aclose()

    def _log_start(self) -> None:
        """Log what this worker waits for: a healthy one logs nothing else until messages come."""
        names = list(dict.fromkeys(ref if whole is None else str(whole) for ref, whole in self._served.items()))
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        assert self._store is not None
        bridge = "no bridge: it polls" if self._sessions is None else f"bridge {self._sessions.first.where}"
        queues, store = ", ".join(names[:NAMED_MAX]) + more, name_of(self._store)
        log.info("%s: listens to %s; store %s, %s", self.name, queues, store, bridge)

    async def _until_closed(self, shutdown: asyncio.Task[None]) -> None:
        """Wait until everything is closed, also when cancelled meanwhile: that only makes it hurry."""
        cancelled: asyncio.CancelledError | None = None
        while not shutdown.done():
            try:
                await asyncio.wait([shutdown])
            except asyncio.CancelledError as error:
                cancelled = error
                self._life.at_once.set()
        shutdown.result()
        if cancelled is not None:
            raise cancelled

    async def _stop_gracefully(self) -> None:
        for dequeue in self._dequeues.values():
            dequeue.stop()
        if self._sessions is not None:
            self._sessions.hello()  # capacity 0 (L12)
        await self._life.await_unless_aborted(self._drain(), "drain", "stopping at once")

    async def _drain(self) -> None:
        await asyncio.gather(*(dequeue.drain(self._grace) for dequeue in self._dequeues.values()))

    async def _shut_down(self, closing: contextlib.AsyncExitStack) -> None:
        """Shut down: cancel handlers, release messages, send `bye`, close everything."""
        async with closing:
            for dequeue in self._dequeues.values():
                if not dequeue.stopping:
                    dequeue.stop()
            await asyncio.gather(*(dequeue.abort() for dequeue in self._dequeues.values()))
            await asyncio.gather(*(dequeue.finish(self._life.at_once) for dequeue in self._dequeues.values()))
            if self._sessions is not None:
                await self._sessions.end()

    def _closing(self, sessions: asyncio.Task[None] | None, owned: bool) -> contextlib.AsyncExitStack:
        """Return what closes all that was opened: in reverse, each even if another fails."""
        closing = contextlib.AsyncExitStack()
        if self._starter is not None:
            closing.callback(self._starter.close)
        if owned and self._store is not None:
            closing.push_async_callback(self._store.close)
        if self._ledger is not None and self._ledger is not self._ledger_given:
            closing.push_async_callback(self._ledger.close)
        closing.push_async_callback(_ended, self._purging)
        if self._claims is not None:
            closing.push_async_callback(self._claims.close)
        closing.callback(self._invoker.close)
        closing.push_async_callback(self._outward.close)
        if self._sessions is not None:
            closing.push_async_callback(self._sessions.close)
        closing.push_async_callback(_ended, sessions)
        return closing

    # Parts -------------------------------------------------------------------------------------------------------

    def _starts(self) -> WorkerStatus:
        return WorkerStatus(
            lambda: sum(dequeue.held for dequeue in self._dequeues.values()), queues=self._dequeues.keys
        )

    def _open_session(self, instance: str, queues: list[str]) -> Session:
        assert self._store is not None
        return Session(
            open_channel(self._bridge_given, instance, self._api_key),
            instance,
            self.name,
            {ref: self._dequeues[ref] for ref in queues},
            # Not where slots are shared, for the bridge cannot know of room then.
            accepts=lambda: self._pool is None and self._all_own(queues),
            welcomed=functools.partial(self._welcomed, queues),
            draw=self._draw,
            store=name_of(self._store),
            store_kind=kind_of(self._store),
            drained=self._life.asked.set,
        )

    def _open_claims(self, store: QueueStore) -> None:
        if self._claim_check is not None:
            self._claims = Claims(self._claim_check, self._draw)
            self._claims.sweep(store, self._poison)

    async def _open_ledger(self) -> None:
        given = self._ledger_given
        if given is not None:
            self._ledger = Ledger(given) if isinstance(given, str) else given
            await self._ledger.check()
            self._purging = asyncio.create_task(
                purge_all(self._ledger, self.queues, self._draw), name=f"ledger-purge[{self.name}]"
            )

    def _dequeue(self, ref: str, store: QueueStore) -> Dequeue:
        longest = store.capabilities.visibility_s_max
        _check(self._visibility <= longest, f"visibility_timeout is up to {longest} seconds on this store")
        now = asyncio.get_running_loop().time()
        pull_only = self._bridge_given is None
        place = None if self._pool is None else self._join(self._pool, ref, store)
        capacity = self._concurrency if place is None else place.capacity
        controller = Controller(
            capacity,
            min(self._batch, store.capabilities.batch_max),
            scaling=self._scaling,
            polls=copy.deepcopy(self._backoff) if self._backoff is not None else RandomExponential(),
            retries=RandomExponential(RETRY_MIN_S, RETRY_MAX_S, RETRY_MIN_S),
            draw=self._draw,
            deadman=None if pull_only else DeadMan(now, self._draw),
            own=self._owns(ref, None),
            place=place,
        )
        return Dequeue(
            ref,
            store,
            controller,
            self._invoker,
            Rules(
                batch=self._batch,
                concurrency=capacity,
                visibility=self._visibility,
                retry=self._retry,
                poison=self._poison[ref],
                listener=self.name,
                now=self._now,
                handler=self._handler_name or self._invoker.name,
                decode=self._decode,
                claims=self._claims,
                once=None if self._ledger is None else Once(self._ledger, self._draw),
                end_when_stuck=self._end_when_stuck,
            ),
            self._outward,
            self._draw,
            self._pool,
            ReceiveFailures(self._reach),
            name_of(store),
        )

    def _join(self, pool: Pool, ref: str, store: QueueStore) -> Place:
        def granted() -> None:
            self._dequeues[ref].room_changed()

        def stuck() -> None:
            self._dequeues[ref].slots_stuck()

        whole = self._served[ref]
        logical = None if whole is None else whole.queue
        return pool.join(ref, granted, stuck, logical=logical, store=str(store))

    def _follows(self, message: Message, failed: Failed) -> str:
        return describe_retry(failed, message.attempt, self._retry, self._poison.get(message.queue) is not None)

    def _ends(self, message: Message, outcome: Outcome) -> str:
        return outcome_word(outcome, message.attempt, self._retry, self._poison.get(message.queue) is not None)

    # Embedded queues (O0) ------------------------------------------------------------------------------------------

    def _owns(self, ref: str, boot: str | None) -> bool:
        """Return whether a queue is embedded in the bridge: by `owns`, or by the same boot.

        Not where that service works on an external store, as the store or one of its answers reports.
        """
        bridge, store = self._bridge_given, self._store
        if bridge is None or store is None:
            return False
        engine = getattr(store, "engine", None)
        if engine is not None and engine(ref) is not None:
            return False
        return owns(bridge, store) or (boot is not None and boot == getattr(store, "boot", None))

    def _all_own(self, queues: Iterable[str]) -> bool:
        return all(self._dequeues[ref].controller.own for ref in queues)

    def _welcomed(self, queues: Iterable[str], boot: str) -> None:
        for ref in queues:
            self._dequeues[ref].controller.own = self._owns(ref, boot)

    def _on_boot(self, queue: str, boot: str | None) -> None:
        """Handle the boot of an answer: if it is the bridge's, the session's queues are embedded, and a hello says so.

        None means that the queue's fingerprint changed: it is in an external store.
        """
        if self._sessions is None:
            return
        session, queues = self._sessions.of(queue)
        if boot is None:
            self._welcomed(queues, session.boot or "")
            session.hello()
        elif boot == session.boot and not self._all_own(queues):
            for ref in queues:
                self._dequeues[ref].controller.own = True
            session.hello()

    def _failed(self, error: Exception) -> None:
        """Stop with this error: a worker that ends is restarted, one that misses wakes is not."""
        self._life.fail(error)


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def _check(holds: bool, detail: str) -> None:
    if not holds:
        raise BadInput("bad_parameter", detail)
