"""Wires in virtual time: both real ends, client and bridge, over a network that cuts, swallows and splits.

Each put has a body of its own. What was acknowledged is there once, what was refused as not done is not there, what is
of unknown outcome is there at most once, and a put under a key that is asked for until it is answered is there once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from queuebell.bridge.brokers import wire as wires
from queuebell.bridge.brokers.wire import NotSent
from queuebell.bridge.contract.errors import StoreUnavailable, UnknownOutcome
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.api.queues import QueueRoutes
from queuebell.bridge.http.server import http_server
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.queues.http.session import Fallback
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.service.bridge import Bridge
from tests.support.sim_loop import pass_time, simulate

QUEUE = "billing/orders"
PUTTERS, STEPS = 40, 6


class Network:
    """Connects clients to the server there is; ``ill`` while it does harm."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.server: WebServer | None = None
        self.ill = True
        self.harm: Counter[str] = Counter()

    async def connect(self, make: Callable[[], asyncio.Protocol], *_: Any, **__: Any) -> tuple[Any, asyncio.Protocol]:
        """Take the place of the loop's own."""
        if self.server is None:
            raise ConnectionRefusedError(111, "refused")
        client, server = make(), self.server.connections()
        near, far = Pipe(self, client), Pipe(self, server)
        near.peer, far.peer = far, near
        server.connection_made(far)
        client.connection_made(near)
        return near, client


class Pipe(asyncio.Transport):
    peer: Pipe

    def __init__(self, network: Network, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._network = network
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._sent_until = 0.0
        self._deaf = self._lost = self._closing = False

    def write(self, data: Any) -> None:
        chance, harm = self._network.random, self._network.harm
        data = bytes(data)
        while data and not self._closing:
            size = chance.randint(1, len(data))
            part, data = data[:size], data[size:]
            if self._network.ill and chance.random() < 0.01:
                harm["cut"] += 1
                self._later(self.peer.arrives, part[: chance.randint(0, size)])
                self._later(self.abort)
                return
            if self._network.ill and chance.random() < 0.003:
                harm["swallowed"] += 1
                self.peer._deaf = True
            self._later(self.peer.arrives, part)

    def _later(self, call: Callable[..., object], *given: object) -> None:
        self._sent_until = max(self._sent_until, self._loop.time()) + self._network.random.random() * 0.01
        self._loop.call_at(self._sent_until, call, *given)

    def arrives(self, data: bytes) -> None:
        if data and not (self._lost or self._deaf):
            self._protocol.data_received(data)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._later(self.abort)

    def abort(self) -> None:
        self._closing = True
        for end in (self, self.peer):
            if not end._lost:
                end._lost = end._closing = True
                self._loop.call_soon(end._protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


async def play(seed: int) -> Counter[str]:
    """Put through a story of faults, then count what is there."""
    network, told = Network(seed), dict[bytes, str]()
    loop = asyncio.get_running_loop()
    loop.create_connection = network.connect  # type: ignore[method-assign]

    async def putter(number: int, store: HttpStore) -> None:
        for step in range(STEPS):
            body = b"%d %d" % (number, step)
            while told.get(body) != "done":
                try:
                    if step % 2:
                        await store.put_once(QUEUE, f"{number}-{step}", body)
                    else:
                        await store.put(QUEUE, [body])
                    told[body] = "done"
                except UnknownOutcome:
                    told[body] = "unknown"
                except StoreUnavailable:
                    told[body] = "not done"
                if not step % 2:
                    break
                await asyncio.sleep(network.random.random())
            await asyncio.sleep(network.random.random() * 0.2)

    async def serving() -> None:
        while network.ill:
            async with WebServer(bridge, WebSettings(port=1, shutdown_timeout=1.0)) as network.server:
                await asyncio.sleep(network.random.uniform(0.2, 2.0))
                # Stopping answers what came before, and refuses what comes.
                stopping, network.server = network.server, None
                network.harm["stopped"] += 1
                await stopping.stop()

    async with Bridge() as bridge:
        servers = asyncio.create_task(serving(), name="servers")
        async with HttpStore("http://127.0.0.1:1") as one, HttpStore("http://127.0.0.1:1") as two:
            await asyncio.gather(*(putter(number, (one, two)[number % 2]) for number in range(PUTTERS)))
            network.ill = False
        await servers
        await pass_time(60)
        found: Counter[bytes] = Counter()
        while messages := (await bridge.store.receive(QUEUE, 32, 3600.0)).messages:
            found.update(message.body for message in messages)
    for body, what in told.items():
        allowed = {"done": (1,), "unknown": (0, 1), "not done": (0,)}[what]
        assert found[body] in allowed, (seed, body, what, found[body])
    assert not found.keys() - told.keys()
    return network.harm + Counter(told.values())


@pytest.mark.parametrize("seed", range(12))
def test_nothing_acknowledged_is_lost_and_nothing_is_done_twice(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over wires that end at any byte, fall silent, and end with a server that stops with calls unanswered."""

    async def listen(*_: object, **__: object) -> tuple[list[object], int]:
        return [], 1

    async def nothing(*_: object) -> None:
        raise NotSent("HTTP is not simulated")

    chance = random.Random(seed)
    for name in ("put", "put_once"):
        real = getattr(QueueRoutes, name)

        async def slow(*given: Any, real: Any = real) -> Any:
            await asyncio.sleep(chance.random() * 0.3)
            return await real(*given)

        monkeypatch.setattr(QueueRoutes, name, slow)
    monkeypatch.setattr(wires, "WITHOUT_S", 1.0)
    monkeypatch.setattr(http_server, "listen", listen)
    monkeypatch.setattr(Fallback, "ask", nothing)
    happened = simulate(play(seed))
    assert happened["cut"] and happened["stopped"] and happened["done"] and happened["unknown"]
