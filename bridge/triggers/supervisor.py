"""Keeps one connection to a broker or database open: connects, probes, reports outages, reconnects.

It stands above the client libraries because none of them notices every dead connection: only a message to ourselves
that comes back proves one, and a new connection costs less than a wrong belief.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from queuebell.bridge.brokers.base import Broker
from queuebell.bridge.brokers.postgres.broker import PostgresBroker
from queuebell.bridge.contract.backoff import Draw, FullJitter
from queuebell.bridge.contract.errors import BusUnavailable, ConfigurationError, said
from queuebell.bridge.observe.facts import BusDown, BusUp, Fact

log = logging.getLogger("queuebell.bridge")

CONNECT_S: Final = 12.0
"""For connecting and all subscriptions; each step has its own, shorter limit."""
PROBE_S: Final = 2.5
CLOSE_S: Final = 3.0
CANCEL_AGAIN_S: Final = CLOSE_S + 1.0
"""Longer than a connection may take to close, so that a second cancellation does not cut that short."""
PROBE_EVERY_S: Final = 5.0
PROBES_LOST_MAX: Final = 2
RETRY_FIRST_S: Final = 0.1
RETRY_CAP_S: Final = 5.0
HOPELESS_S: Final = 5.0
"""The pause after a refusal that only a change at the broker can end; it may be fixed at any time."""
UNREADY_AFTER_S: Final = 2.0
"""How long a bus may be doubtful while `/readyz` stays good. The first lost probe finds a broker that hangs within
`PROBE_EVERY_S` and the 2 s of a probe; all three together are 9 s of the 10 s that are promised."""
STEADY_S: Final = 5.0
"""How long a connection has to last to reset the back-off: one that breaks immediately is not a success."""

C = TypeVar("C", bound=Broker | PostgresBroker)


class SupervisedConnection(Generic[C]):
    """One bus: ``on_up`` subscribes on each new connection, ``on_gap`` is called when triggers may have been missed.

    ``factory`` makes a new, unconnected broker for each try, because a broken one is not reused. ``on_down`` is called
    once for each connection that was up, before it is closed.
    """

    def __init__(
        self,
        factory: Callable[[], C],
        name: str,
        on_up: Callable[[C], Awaitable[None]],
        on_gap: Callable[[], object],
        *,
        on_down: Callable[[], None] = lambda: None,
        emit: Callable[[Fact], None] = lambda fact: None,
        draw: Draw = random.random,
    ) -> None:
        self.name = name
        self._factory = factory
        self._on_up = on_up
        self._on_gap = on_gap
        self._on_down = on_down
        self._emit = emit
        self._draw = draw
        self._task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._rules: ConnectionRules | None = None

    async def start(self) -> None:
        """Begin to connect; returns immediately, also if the broker is unavailable."""
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._rules = ConnectionRules(self.name, self._factory().address, loop.time())
            self._task = loop.create_task(self._run(self._rules), name=f"bus[{self.name}]")

    async def stop(self) -> None:
        """Close the connection within some seconds; may be called twice, and both calls return when it is closed."""
        if self._task is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._task), name=f"stop[{self.name}]")
        await asyncio.shield(self._stopping)

    async def _stop(self, task: asyncio.Task[None]) -> None:
        while not task.done():
            # Repeated, because a client library that is connecting may swallow a cancellation (one SIGTERM in some
            # thousand starts met that, and the process never ended).
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_AGAIN_S)

    def check(self) -> tuple[bool, str]:
        """Return whether the bus works, and its state in one line, for `/readyz`."""
        if self._rules is None:
            return False, "not started"
        if self._task is not None and self._task.done():
            return False, "stopped"
        now = asyncio.get_running_loop().time()
        return self._rules.ready(now), self._rules.detail(now)

    async def _run(self, rules: ConnectionRules) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.0, rules.due_at - loop.time()))
            broker = self._factory()
            try:
                if await self._connect(rules, broker):
                    try:
                        self._report(rules)
                        await self._watch(rules, broker)
                    finally:
                        self._on_down()
                self._report(rules)
            finally:
                await self._close(broker)

    async def _connect(self, rules: ConnectionRules, broker: C) -> bool:
        loop = asyncio.get_running_loop()
        rules.connecting()
        try:
            async with asyncio.timeout(CONNECT_S):
                await broker.connect()
                await self._on_up(broker)
        except ConfigurationError as error:
            rules.failed(loop.time(), str(error), self._draw, hopeless=True)
        except (BusUnavailable, OSError) as error:  # TimeoutError is an OSError
            rules.failed(loop.time(), said(error) or "timed out", self._draw)
        except Exception as error:
            # A bug in a library must not end the bus (several were met).
            log.exception("unexpected error from a broker's client", extra={"bus": self.name})
            rules.failed(loop.time(), type(error).__name__, self._draw)
        else:
            rules.connected(loop.time())
            return True
        return False

    async def _watch(self, rules: ConnectionRules, broker: C) -> None:
        """Probe the connection until it is broken."""
        loop = asyncio.get_running_loop()
        broken = loop.create_task(broker.broken(), name=f"broken[{self.name}]")
        try:
            while rules.state is State.UP:
                await asyncio.wait([broken], timeout=max(0.0, rules.due_at - loop.time()))
                if broken.done():
                    rules.broken(loop.time(), _outcome(broken), self._draw)
                    return
                await self._probe(rules, broker)
                self._report(rules)
        finally:
            broken.cancel()
            await asyncio.wait([broken])

    async def _probe(self, rules: ConnectionRules, broker: C) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PROBE_S):
                await broker.probe()
        except (BusUnavailable, OSError) as error:
            rules.probe_lost(loop.time(), said(error) or "no answer to a probe", self._draw)
        except Exception as error:
            log.exception("unexpected error from a broker's client", extra={"bus": self.name})
            rules.probe_lost(loop.time(), type(error).__name__, self._draw)
        else:
            rules.probed(loop.time(), broker.dropped)

    def _report(self, rules: ConnectionRules) -> None:
        for fact in rules.facts():
            self._emit(fact)
        if rules.take_gap():
            self._on_gap()

    async def _close(self, broker: C) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await broker.close()
        except TimeoutError:
            log.warning("a broker's connection did not close in time and was abandoned", extra={"bus": self.name})
        except Exception:
            log.exception("unexpected error from a broker's client", extra={"bus": self.name})


def _outcome(broken: asyncio.Task[str]) -> str:
    if broken.cancelled():
        return "its monitoring ended"
    error = broken.exception()
    return broken.result() if error is None else type(error).__name__


class State(enum.Enum):
    """The state of a supervised connection."""

    DOWN = "down"
    CONNECTING = "connecting"
    UP = "up"


class ConnectionRules:
    """The rules for one bus, without I/O: the next act is due at ``due_at`` (connect while DOWN, probe while UP).

    A gap is a time in which triggers may have been missed: before every connection, including the first, and whenever
    the client library dropped messages.
    """

    def __init__(self, bus: str, address: str, now: float) -> None:
        self.state = State.DOWN
        self.due_at = now
        self._bus = bus
        self._address = address
        self._reason = "not connected yet"
        self._worked = False
        self._backoff = FullJitter(RETRY_FIRST_S, RETRY_CAP_S)
        self._up_since = now
        self._down_since = now
        self._doubted_since: float | None = now
        self._lost = 0
        self._dropped = 0
        self._gap = False
        self._reported_down = False
        self._facts: list[Fact] = []

    def facts(self) -> list[Fact]:
        """Return the changes of state since the last call, one fact for each."""
        taken, self._facts = self._facts, []
        return taken

    def take_gap(self) -> bool:
        """Return whether triggers may have been missed since the last call."""
        taken, self._gap = self._gap, False
        return taken

    def ready(self, now: float) -> bool:
        """Return whether the bus works, as far as is known; False before its first connection."""
        if not self._worked:
            return False
        return self._doubted_since is None or now - self._doubted_since < UNREADY_AFTER_S

    def detail(self, now: float) -> str:
        """Return its state in one line, for `/readyz`."""
        if self._doubted_since is None and self.state is State.UP:
            return f"{self._address}: connected"
        return f"{self._address}: {self._reason}, for {max(0.0, now - self._down_since):.0f} s"

    def connecting(self) -> None:
        """Note that a try begins."""
        assert self.state is State.DOWN
        self.state = State.CONNECTING

    def connected(self, now: float) -> None:
        """Note that the connection and all its subscriptions are established."""
        assert self.state is State.CONNECTING
        self.state = State.UP
        self._facts.append(BusUp(self._bus, self._address, now - self._down_since))
        self._worked = True
        self._reported_down = False
        self._doubted_since = None
        self._lost = self._dropped = 0
        self._up_since = now
        self.due_at = now + PROBE_EVERY_S
        self._gap = True

    def failed(self, now: float, reason: str, draw: Draw, *, hopeless: bool = False) -> None:
        """Note that the try failed; ``hopeless`` if only a change of configuration can help."""
        assert self.state is State.CONNECTING
        self._down(now, reason, draw)
        if hopeless:
            self.due_at = now + HOPELESS_S

    def probed(self, now: float, dropped: int) -> None:
        """Note that a probe came back; ``dropped`` is the connection's count of messages lost on their way in."""
        if self.state is not State.UP:
            return
        self._lost = 0
        self._doubted_since = None
        self.due_at = now + PROBE_EVERY_S
        if dropped > self._dropped:
            self._dropped = dropped
            self._gap = True

    def probe_lost(self, now: float, reason: str, draw: Draw) -> None:
        """Note that a probe did not come back: probe again immediately, and give up the connection after the second."""
        if self.state is not State.UP:
            return
        self._lost += 1
        if self._doubted_since is None:
            self._doubted_since = self._down_since = now
        self._reason = reason
        self.due_at = now
        if self._lost >= PROBES_LOST_MAX:
            self.broken(now, reason, draw)

    def broken(self, now: float, reason: str, draw: Draw) -> None:
        """Note that the connection is broken."""
        if self.state is not State.UP:
            return
        if now - self._up_since >= STEADY_S:
            self._backoff.hit()
        if self._doubted_since is None:
            self._down_since = now
        self._down(now, reason, draw)

    def _down(self, now: float, reason: str, draw: Draw) -> None:
        self.state = State.DOWN
        self._reason = reason
        if self._doubted_since is None:
            self._doubted_since = now
        if not self._reported_down:
            self._reported_down = True
            self._facts.append(BusDown(self._bus, self._address, reason))
        self.due_at = now + self._backoff.miss(draw)
