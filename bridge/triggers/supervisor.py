"""Holds one broker's connection for ever, by the rules of `supervision`: the one task per configured broker."""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from bridge.contract.backoff import Draw, FullJitter
from bridge.contract.errors import BusUnavailable, ConfigurationError, said
from bridge.observe.facts import BusDown, BusUp, Fact

log = logging.getLogger("queuebell.bridge")

CONNECT_S: Final = 12.0
"""For connecting and all subscriptions; every step has its own, shorter bound, and this one holds without them."""
PROBE_S: Final = 2.5
CLOSE_S: Final = 3.0
CANCEL_AGAIN_S: Final = CLOSE_S + 1.0
"""Longer than a connection may take to close: a second cancellation must not cut that short."""


class Supervisable(Protocol):
    """What is supervised: one connection, made once. Every `Broker` is one, and says what the methods promise."""

    @property
    def address(self) -> str:
        """Where it connects, without secrets."""
        ...

    @property
    def dropped(self) -> int:
        """Messages lost on their way in, since connect."""
        ...

    async def connect(self) -> None:
        """Connect, or raise `BusUnavailable` or `ConfigurationError`."""
        ...

    async def probe(self) -> float:
        """Send a message to oneself and return the seconds it took; raises `BusUnavailable`."""
        ...

    async def broken(self) -> str:
        """Wait until it is known to be broken, and return why."""
        ...

    async def close(self) -> None:
        """End it; may be called twice."""
        ...


C = TypeVar("C", bound=Supervisable)


class Supervised(Generic[C]):
    """One bus: ``on_up`` subscribes on each fresh connection, ``on_gap`` hears when triggers may have been missed.

    ``factory`` gives a new, unconnected broker for each try, for a broken one is never trusted again. ``on_down`` is
    called, once for each connection that was up, before it is torn down.
    """

    def __init__(
        self,
        factory: Callable[[], C],
        name: str,
        on_up: Callable[[C], Awaitable[None]],
        on_gap: Callable[[], object],
        *,
        on_down: Callable[[], None] = lambda: None,
        tell: Callable[[Fact], None] = lambda fact: None,
        draw: Draw = random.random,
    ) -> None:
        self.name = name
        self._factory = factory
        self._on_up = on_up
        self._on_gap = on_gap
        self._on_down = on_down
        self._tell = tell
        self._draw = draw
        self._task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._rules: Supervision | None = None

    async def start(self) -> None:
        """Begin to connect; returns at once, and never fails for a broker that is not there."""
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._rules = Supervision(self.name, self._factory().address, loop.time())
            self._task = loop.create_task(self._hold(self._rules), name=f"bus[{self.name}]")

    async def stop(self) -> None:
        """Let go of the connection, within some seconds; may be called twice, and both return when it is done."""
        if self._task is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._task), name=f"stop[{self.name}]")
        await asyncio.shield(self._stopping)

    async def _stop(self, task: asyncio.Task[None]) -> None:
        while not task.done():
            # Asked until it ends: a client library that connects just now may swallow a cancellation (one SIGTERM in
            # some thousand starts met that, and the process never ended).
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_AGAIN_S)

    @property
    def up(self) -> bool:
        """Whether a connection stands."""
        return self._rules is not None and self._rules.state is State.UP

    def check(self) -> tuple[bool, str]:
        """Return whether the bus works, and how it stands, for `/readyz`."""
        if self._rules is None:
            return False, "not started"
        now = asyncio.get_running_loop().time()
        if self._task is not None and self._task.done():
            return False, "stopped"
        return self._rules.ready(now), self._rules.detail(now)

    async def _hold(self, rules: Supervision) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.0, rules.due() - loop.time()))
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
                await self._tear_down(broker)

    async def _connect(self, rules: Supervision, broker: C) -> bool:
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
            # A fault of a library must not end the bus for good (several were met).
            log.exception("unexpected error from a broker's client", extra={"bus": self.name})
            rules.failed(loop.time(), type(error).__name__, self._draw)
        else:
            rules.connected(loop.time())
            return True
        return False

    async def _watch(self, rules: Supervision, broker: C) -> None:
        """Return once the connection is broken."""
        loop = asyncio.get_running_loop()
        broken = loop.create_task(broker.broken(), name=f"broken[{self.name}]")
        try:
            while rules.state is State.UP:
                await asyncio.wait([broken], timeout=max(0.0, rules.due() - loop.time()))
                if broken.done():
                    rules.broken(loop.time(), _outcome(broken), self._draw)
                    return
                await self._probe(rules, broker)
                self._report(rules)
        finally:
            broken.cancel()
            await asyncio.wait([broken])

    async def _probe(self, rules: Supervision, broker: C) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PROBE_S):
                seconds = await broker.probe()
        except (BusUnavailable, OSError) as error:
            rules.probe_lost(loop.time(), said(error) or "no answer to a probe", self._draw)
        except Exception as error:
            log.exception("unexpected error from a broker's client", extra={"bus": self.name})
            rules.probe_lost(loop.time(), type(error).__name__, self._draw)
        else:
            rules.probed(loop.time(), seconds, broker.dropped)

    def _report(self, rules: Supervision) -> None:
        for fact in rules.facts():
            self._tell(fact)
        if rules.take_gap():
            self._on_gap()

    async def _tear_down(self, broker: C) -> None:
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


PROBE_EVERY_S = 5.0
PROBES_LOST_MAX = 2
RETRY_FIRST_S = 0.1
RETRY_CAP_S = 5.0
HOPELESS_S = 5.0
"""The pause after a refusal that another try does not help: whoever sets the broker right need not tell us."""
UNREADY_AFTER_S = 2.0
"""How long a bus may be doubtful while `/readyz` stays good. A broker that hangs is found out by the first lost probe,
within `PROBE_EVERY_S` and a probe's own 2 s; all three together are 9 s of the 10 s that are promised."""
STEADY_S = 5.0
"""How long a connection has to hold before the next pause starts small again: one that dies at once is no success."""


class State(enum.Enum):
    """Where a supervised connection stands."""

    DOWN = "down"
    CONNECTING = "connecting"
    UP = "up"


class Supervision:
    """The rules for one bus. Tell it what happened; it says when to act, and keeps facts and gaps to be taken.

    A gap is a time in which triggers may have been missed: before every connection, the first one too, and whenever
    the client library dropped messages.
    """

    def __init__(self, bus: str, address: str, now: float) -> None:
        self.state = State.DOWN
        self.bus = bus
        self.address = address
        self.reason = "not connected yet"
        self.round_trip_s: float | None = None
        self.connects = 0
        self._backoff = FullJitter(RETRY_FIRST_S, RETRY_CAP_S)
        self._due_at = now
        self._up_since = now
        self._down_since = now
        self._doubted_since: float | None = now
        self._lost = 0
        self._dropped = 0
        self._gap = False
        self._told_down = False
        self._facts: list[Fact] = []

    # -- what is to be done ------------------------------------------------------------------------------------------

    def due(self) -> float:
        """Return when to act next: connect while DOWN, probe while UP."""
        return self._due_at

    def facts(self) -> list[Fact]:
        """Take the changes of state since last time: one fact for each."""
        taken, self._facts = self._facts, []
        return taken

    def take_gap(self) -> bool:
        """Say whether triggers may have been missed since last time."""
        taken, self._gap = self._gap, False
        return taken

    def ready(self, now: float) -> bool:
        """Say whether the bus works, as far as is known; never before it has worked once."""
        if not self.connects:
            return False
        return self._doubted_since is None or now - self._doubted_since < UNREADY_AFTER_S

    def detail(self, now: float) -> str:
        """Say in one line how it stands, for `/readyz`."""
        if self._doubted_since is None and self.state is State.UP:
            return f"{self.address}: connected"
        return f"{self.address}: {self.reason}, for {max(0.0, now - self._down_since):.0f} s"

    # -- what happened -----------------------------------------------------------------------------------------------

    def connecting(self) -> None:
        """A try begins."""
        assert self.state is State.DOWN
        self.state = State.CONNECTING

    def connected(self, now: float) -> None:
        """The connection stands and everything is subscribed on it."""
        assert self.state is State.CONNECTING
        self.state = State.UP
        self._facts.append(BusUp(self.bus, self.address, now - self._down_since))
        self.connects += 1
        self._told_down = False
        self._doubted_since = None
        self._lost = self._dropped = 0
        self._up_since = now
        self._due_at = now + PROBE_EVERY_S
        self._gap = True

    def failed(self, now: float, reason: str, draw: Draw, *, hopeless: bool = False) -> None:
        """The try came to nothing; ``hopeless`` where only a change of configuration can help."""
        assert self.state is State.CONNECTING
        self.state = State.DOWN
        self._down(now, reason, draw)
        if hopeless:
            self._due_at = now + HOPELESS_S

    def probed(self, now: float, round_trip_s: float, dropped: int) -> None:
        """A message to ourselves came back; ``dropped`` is the connection's count of messages lost on their way in."""
        if self.state is not State.UP:
            return
        self.round_trip_s = round_trip_s
        self._lost = 0
        self._doubted_since = None
        self._due_at = now + PROBE_EVERY_S
        if dropped > self._dropped:
            self._dropped = dropped
            self._gap = True

    def probe_lost(self, now: float, reason: str, draw: Draw) -> bool:
        """A message to ourselves did not come back. Say whether to tear the connection down; else probe at once."""
        if self.state is not State.UP:
            return False
        self._lost += 1
        if self._doubted_since is None:
            self._doubted_since = self._down_since = now
        self.reason = reason
        self._due_at = now
        if self._lost < PROBES_LOST_MAX:
            return False
        self.broken(now, reason, draw)
        return True

    def broken(self, now: float, reason: str, draw: Draw) -> None:
        """The connection is known to be broken, by whatever source."""
        if self.state is not State.UP:
            return
        self.state = State.DOWN
        if now - self._up_since >= STEADY_S:
            self._backoff.hit()
        if self._doubted_since is None:
            self._down_since = now
        self._down(now, reason, draw)

    def _down(self, now: float, reason: str, draw: Draw) -> None:
        self.reason = reason
        self.round_trip_s = None
        if self._doubted_since is None:
            self._doubted_since = now
        if not self._told_down:
            self._told_down = True
            self._facts.append(BusDown(self.bus, self.address, reason))
        self._due_at = now + self._backoff.miss(draw)
