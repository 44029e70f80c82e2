"""The scaler: starts workers when a wake comes, and ends them when there is nothing to do.

It holds one session with a bridge, as a listener does, and never takes a message: its workers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from queuebell.bridge.brokers.credential import ApiKey
from queuebell.bridge.contract.address import one_text
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.contract.wire import SCALER
from queuebell.bridge.queues.base import QueueStore
from queuebell.listeners.figures import ScalerFigures
from queuebell.listeners.scaling.actuators.base import Actuator
from queuebell.listeners.scaling.actuators.process import ProcessActuator
from queuebell.listeners.scaling.processes import Limits
from queuebell.listeners.scaling.queue_scaler import QueueScaler, proof_of
from queuebell.listeners.scaling.scaled_queue import ScaledQueue
from queuebell.listeners.session.opening import (
    bridge_of,
    check_client,
    check_store,
    kind_of,
    name_of,
    open_channel,
    open_store,
    owns,
)
from queuebell.listeners.session.session import Session
from queuebell.listeners.wake.receive_scaling import Scaling
from queuebell.listeners.work.lifecycle import OneRun, StopSignals, refuse_in_import
from queuebell.listeners.work.starter import STARTED_FOR

log = logging.getLogger("queuebell.scaler")


class Scaler:
    """Starts and ends the workers of one queue, from none to ``max`` and back; it handles no messages itself.

    ::

        await Scaler("http://127.0.0.1:8470", "billing/orders", ["python", "worker.py"], max=4).run()

    All times are seconds. Raises `ConfigurationError`, `BadInput` or `TypeError` for invalid arguments.

    - ``store``, ``bridge``, ``name``, ``api_key``, ``handle_signals``: as of a `Listener`.
    - ``queue``: a queue reference.
    - ``command``: one worker: a program and its arguments, as in ``["python", "worker.py"]``. It runs a
      `Listener` of this queue, with the same bridge, and stays in the foreground. Or an `Actuator` that starts it.
    - ``min``, ``max``: the fewest and the most workers.
    - ``idle``: how long a worker has no messages before it ends.
    - ``per_process``: how many messages one worker handles at once (32, as a `Listener` does).
    - ``scaling``: the number of workers for a number of messages, instead (`DepthScaling`, `StepScaling`).
    - ``start_rate``: the most workers started in any one second.
    - ``start_timeout``: how long a worker may take until its listener has a session.
    - ``grace``: the time between SIGTERM and SIGKILL of a worker; more than the ``grace`` of its listener.
    - ``trust_count``: trusts a count of 0 of a store with approximate counts (SQS). Otherwise the scaler also receives,
      and gives back what it finds.
    - ``environment``: variables added to the workers' environment.
    """

    # The simulation overrides these in a subclass.
    _draw: Draw = staticmethod(random.random)
    _new_instance: Callable[[], str] = staticmethod(functools.partial(secrets.token_hex, 16))

    def __init__(
        self,
        store: str | Sequence[str] | QueueStore | Any,
        queue: str,
        command: Sequence[str] | Actuator,
        *,
        bridge: str | Sequence[str] | Any | None = None,
        name: str | None = None,
        min: int = 0,  # noqa: A002 - the word of the command line
        max: int = 8,  # noqa: A002
        idle: float = 60.0,
        per_process: int = 32,
        scaling: Scaling | None = None,
        start_rate: int = 10,
        start_timeout: float = 30.0,
        grace: float = 30.0,
        trust_count: bool = False,
        environment: Mapping[str, str] | None = None,
        handle_signals: bool | None = None,
        api_key: ApiKey = None,
    ) -> None:
        store = one_text(store)
        check_store(store)
        self._bridge_given = bridge_of(bridge, store)
        self.queue = parse_reference(queue)
        self.limits = Limits(
            minimum=min,
            maximum=max,
            per_process=per_process,
            start_rate=start_rate,
            idle_s=float(idle),
            start_timeout_s=float(start_timeout),
        )
        if grace < 0:
            raise BadInput("bad_parameter", "grace is a number of seconds, 0 or more")
        if isinstance(command, str):
            raise TypeError('command: is a list, the program and its arguments, as in ["python", "worker.py"]')
        self._actuator: Actuator = (
            ProcessActuator(
                command, grace=grace, prefix=self.queue, environment={STARTED_FOR: self.queue, **(environment or {})}
            )
            if isinstance(command, Sequence)
            else command
        )
        self.instance = self._new_instance()
        self.name = name or f"scaler {socket.gethostname()}:{os.getpid()}"
        self.handle_signals = handle_signals
        self._store_given = store
        self._api_key: ApiKey = getattr(store, "api_key", None) if api_key is None else api_key
        self._scaling = scaling
        self._trust = trust_count
        self._session: Session | None = None
        self.queue_scaler: QueueScaler | None = None
        self._life = OneRun("scaler", self.name, log)

    async def run(self) -> None:
        """Scale until `stop` is called, a signal comes, or this is cancelled; then all its workers have ended.

        A second signal, or a cancellation, kills them. Raises what `Listener.run` raises.
        """
        refuse_in_import()
        with self._life.running(), StopSignals(self.signalled, take=self.handle_signals):
            await self._run()

    async def stop(self) -> None:
        """Stop: SIGTERM to all workers, SIGKILL after ``grace``; return when all have ended.

        Those that outlive their scaler, units of systemd, work on, and the next scaler goes on with them.
        """
        self._life.asked.set()
        await self._life.ended()

    def signalled(self, count: int) -> None:
        """Handle the ``count``-th signal to stop: stop as `stop` does, immediately from the second on."""
        goes_on = self._actuator.outlives
        self._life.signalled(
            count, "stopping; its workers go on" if goes_on else "stopping its workers; a second signal kills them"
        )

    def retire(self, why: str) -> None:
        """Stop as `stop` does, without waiting, and say ``why``: the process goes on."""
        fate = "go on" if self._actuator.outlives else "end in order"
        self._life.signalled(1, f"{why}; its workers {fate}")

    def retune(self, limits: Limits) -> None:
        """Apply other limits from now on. What runs beyond a smaller maximum ends when it is idle."""
        self.limits = limits
        if self.queue_scaler is not None:
            self.queue_scaler.feed(self.queue_scaler.rules.retune, limits)
            if self._session is not None:
                self._session.hello()

    def state(self) -> ScalerFigures | None:
        """Return how its workers stand; None before it runs."""
        return None if self.queue_scaler is None else self.queue_scaler.figures()

    async def _run(self) -> None:
        store, owned = open_store(self._store_given, self._api_key)
        async with contextlib.AsyncExitStack() as closing:
            if owned:
                closing.push_async_callback(store.close)
            check_client(store)
            store.fingerprint(self.queue)  # refuses a queue that this store cannot have
            scaled = self.queue_scaler = self._make(store)
            closing.push_async_callback(scaled.finish)
            await self._actuator.open(scaled)
            closing.push_async_callback(self._actuator.close)
            closing.callback(scaled.stop)  # however it ends: else each end would be taken for a failure
            pull_only = self._bridge_given is None
            holding: asyncio.Task[None] | None = None
            if not pull_only:
                session = self._session = Session(
                    open_channel(self._bridge_given, self.instance, self._api_key),
                    self.instance,
                    self.name,
                    {self.queue: scaled},
                    accepts=lambda: False,
                    welcomed=lambda boot: self._welcomed(store, boot),
                    draw=self._draw,
                    store=name_of(store),
                    kind=SCALER,
                    store_kind=kind_of(store),
                )
                closing.push_async_callback(session.close)
            scaled.begin(pull_only=pull_only)
            if self._session is not None:
                holding = asyncio.create_task(self._session.run(), name=f"session[{self.name}]")
                closing.push_async_callback(_ended, holding)
            log.info(
                "%s: scales %s from %d to %d; store %s, %s: %s",
                self.name,
                self.queue,
                self.limits.minimum,
                self.limits.maximum,
                name_of(store),
                "no bridge: it counts the queue by a timer"
                if self._session is None
                else f"bridge {self._session.where}",
                self._actuator,
            )
            await self._life.until_asked(holding)
            await self._stop_gracefully(scaled)

    def _make(self, store: QueueStore) -> QueueScaler:
        rules = ScaledQueue(
            asyncio.get_running_loop().time(),
            self.limits,
            self._draw,
            proof=proof_of(store.capabilities, trust=self._trust),
            own=self._owns(store, None),
            scaling=self._scaling,
            pull_only=self._bridge_given is None,
            outlive=self._actuator.outlives,
        )
        return QueueScaler(
            self.queue,
            store,
            rules,
            self._actuator,
            trust=self._trust,
            send=lambda frame: None if self._session is None else self._session.send(frame),
            answered=lambda boot: self._answered(store, boot),
            broke=self._life.fail,
        )

    def _answered(self, store: QueueStore, boot: str | None) -> None:
        """Handle the boot of a count: if it is the bridge's, the queue is embedded, and a hello reports it (O0).

        None means that the queue's fingerprint changed: it is in an external store.
        """
        session, scaled = self._session, self.queue_scaler
        if session is None or scaled is None or (boot is not None and boot != session.boot):
            return
        owns = self._owns(store, session.boot if boot is None else boot)
        if boot is None or owns != scaled.rules.controller.own:
            scaled.rules.controller.own = owns
            session.hello()

    def _owns(self, store: QueueStore, boot: str | None) -> bool:
        """Whether the queue is of the bridge's own queue service, as of a `Listener` (O0)."""
        engine = getattr(store, "engine", None)
        if self._bridge_given is None or (engine is not None and engine(self.queue) is not None):
            return False
        return owns(self._bridge_given, store) or (boot is not None and boot == getattr(store, "boot", None))

    def _welcomed(self, store: QueueStore, boot: str) -> None:
        if self.queue_scaler is not None:
            self.queue_scaler.rules.controller.own = self._owns(store, boot)

    async def _stop_gracefully(self, scaled: QueueScaler) -> None:
        """Leave the bridge once all workers have ended (L12)."""
        scaled.stop()
        if self._session is not None:
            self._session.hello()  # capacity 0
        says = "not waiting any longer" if self._actuator.outlives else "killing its workers"
        await self._life.await_unless_aborted(self._actuator.close(), f"end workers[{self.name}]", says)
        await scaled.looked()
        if self._session is not None:
            await self._session.end()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
