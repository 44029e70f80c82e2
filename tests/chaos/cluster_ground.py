"""Three bridges that take turns: on three NATS servers that know each other, before one PostgreSQL; all processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import aiohttp

from queuebell.bridge.core.cluster.members import rank
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.queues.postgres.schema import init
from tests.chaos.site import INSIDE
from tests.support.brokers import NatsCluster
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes, Service, free_port, until
from tests.support.tcp_proxy import TcpProxy

NAME = "chaos"
SEATS = 3
JOINS = SEATS
"""The place of one more, who is in every address and not there at first."""


@contextlib.asynccontextmanager
async def _postgres() -> AsyncIterator[PostgresServer]:
    server = await asyncio.to_thread(PostgresServer)
    try:
        await asyncio.to_thread(server.start)
        yield server
    finally:
        await asyncio.to_thread(server.remove)


class ClusterGround:
    """The servers of a cluster, which know each other when it is entered; an async context manager.

    ``settings`` are those of each bridge's environment. With ``through``, all that a bridge has to NATS and to the
    store goes through proxies of its own, by place, and nobody tells it of another way.
    """

    def __init__(self, processes: Processes, settings: Mapping[str, str], *, through: bool = False) -> None:
        self.processes = processes
        self.bridges: dict[int, Service] = {}
        """Those who are there, by place."""
        self.postgres: PostgresServer
        self.nats = NatsCluster(processes.folder / "nats", tells=not through)
        self.nats_ways: dict[int, list[TcpProxy]] = {}
        self.store_ways: dict[int, TcpProxy] = {}
        self._ports = [free_port() for _ in range(SEATS + 1)]
        self._settings = dict(settings)
        self._through = through
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.postgres, _ = await asyncio.gather(
                stack.enter_async_context(_postgres()), stack.enter_async_context(self.nats)
            )
            await init(self.postgres.url(), notify=True)
            for place in range(SEATS if self._through else 0):
                self.nats_ways[place] = [
                    await stack.enter_async_context(TcpProxy(node.port)) for node in self.nats.nodes
                ]
                self.store_ways[place] = await stack.enter_async_context(TcpProxy(self.postgres.port))
            await asyncio.gather(*map(self.start, range(SEATS)))
            await self.hear_each_other()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    # Addresses ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address of all bridges, of the one that is not there yet too."""
        return "http://" + ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def store(self, *, timeout: float = 5.0) -> HttpStore:
        """Return the queues of all of them, as a producer with many addresses has them."""
        key = self.processes.headers.get("Authorization", "").removeprefix("Bearer ") or None
        return HttpStore(self.url, timeout=timeout, api_key=key)

    def living(self) -> Service:
        """Return one that is there."""
        return next(iter(self.bridges.values()))

    async def order(self, queue: str) -> list[int]:
        """Return the places of those who are there in the order of a queue."""
        ranks: dict[int, int] = {}
        for place, service in self.bridges.items():
            _, view = await service.ask("/v1/cluster")
            ranks[place] = next(rank(queue, member["boot"]) for member in view["members"] if member["me"])
        return sorted(ranks, key=lambda place: -ranks[place])

    # What is done to them ----------------------------------------------------------------------------------------

    async def start(self, place: int) -> Service:
        """Start the bridge of a place, on its port and its data."""
        ways = self.nats_ways.get(place) or self.nats.nodes
        way = self.store_ways.get(place)
        service = await self.processes.serve(
            *("--nats", "nats://" + ",".join(f"127.0.0.1:{each.port}" for each in ways)),
            *("--store", self.postgres.url(), "--cluster", NAME),
            data=f"bridge-{place}",
            port=self._ports[place],
            # The address is the same for all: it is what names the engine to the others.
            launcher=(*INSIDE, "way", f"{self.postgres.port}/{way.port}") if way else (),
            **self._settings,
        )
        self.bridges[place] = service
        return service

    async def kill(self, place: int) -> None:
        """End a bridge with -9."""
        await self.bridges.pop(place).kill()

    async def leave(self, place: int) -> None:
        """Have a bridge leave in order."""
        code = await (service := self.bridges.pop(place)).stop()
        assert code == 0, f"it left with {code}: {service.errors[-3000:]}"

    async def restart_postgres(self) -> None:
        """Have PostgreSQL crash and come back."""
        await asyncio.to_thread(self.postgres.stop, "immediate")
        await asyncio.to_thread(self.postgres.start)

    # What they know ----------------------------------------------------------------------------------------------

    async def hear_each_other(self) -> None:
        """Wait until each hears all others and itself."""

        async def heard() -> bool:
            views = await asyncio.gather(*(service.ask("/v1/cluster") for service in self.bridges.values()))
            return all(len(view["members"]) == len(self.bridges) and not view["alone"] for _, view in views)

        await until(heard, "everybody hears everybody")

    async def have_listeners(self, count: int) -> None:
        """Wait until so many listeners have sessions with those who are there, and each knows who is able."""

        async def enough() -> bool:
            try:
                asked = [
                    (await service.ask("/v1/listeners"), await service.ask("/v1/cluster"))
                    for service in self.bridges.values()
                ]
            except aiohttp.ClientError:
                return False  # one is on its way out
            if sum(len(listeners["listeners"]) for (_, listeners), _ in asked) != count:
                return False
            able = [{one["boot"]: one["able"] for one in view["members"]} for _, (_, view) in asked]
            return all(each == able[0] for each in able)

        await until(enough, f"{count} listeners at the bridges, which know of each other's")
