"""Holds one broker's connection for ever, by the rules of `supervision`: the one task per configured broker."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from bridge.contract.backoff import Draw
from bridge.contract.errors import BusUnavailable, ConfigurationError, said
from bridge.core.supervision import State, Supervision
from bridge.observe.facts import Fact

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
            rules.failed(loop.time(), said(error) or "it took too long", self._draw)
        except Exception as error:
            # A fault of a library must not end the bus for good (several were met).
            log.exception("a broker's client failed in a way it does not promise", extra={"bus": self.name})
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
            log.exception("a broker's client failed in a way it does not promise", extra={"bus": self.name})
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
            log.warning("a broker's connection would not close and was left", extra={"bus": self.name})
        except Exception:
            log.exception("a broker's client failed in a way it does not promise", extra={"bus": self.name})


def _outcome(broken: asyncio.Task[str]) -> str:
    if broken.cancelled():
        return "the watch on it ended"
    error = broken.exception()
    return broken.result() if error is None else type(error).__name__
