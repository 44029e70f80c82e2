"""Faults of a cluster: its bridges killed, stopped, cut off, joining and leaving, and its NATS servers.

No sweep and no dead-man comes within a row: what a wake misses stays where it is, and the row fails. How long a wait
was is told, and is no verdict: six servers and their workers share the machine with whatever else runs there.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from queuebell.bridge.contract.errors import StoreError
from tests.chaos import pace
from tests.chaos.cluster_ground import JOINS, SEATS, ClusterGround
from tests.chaos.pace import Bound, Pace
from tests.chaos.row import Needs, Row, Story
from tests.chaos.site import QUEUE, Site, Speaker
from tests.support.postgres import is_installed
from tests.support.processes import until

SILENT_S = 3.5
"""Whoever is silent for so long is gone (C1)."""
PLACE_S = 0.25
CALLERS = 3
BATCH = 2
PAUSE_S = 0.05
NEVER_S = "86400"

ClusterStory = Callable[[Site, ClusterGround], Awaitable[None]]


class Load:
    """Puts batches by three callers, each at whichever bridge answers; at its end all that is acknowledged is handled.

    An async context manager.
    """

    def __init__(self, site: Site, ground: ClusterGround) -> None:
        self._site = site
        self._ground = ground
        self._bodies: list[str] = []
        self._ends = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._put(), name=f"load {number}") for number in range(CALLERS)]
        await self.flows()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.flows()
        self._ends.set()
        await asyncio.gather(*self._tasks)
        if kind is None:
            await self._site.wakes(self._bodies)

    async def flows(self, count: int = 20) -> None:
        """Wait until so many more are acknowledged and one of them is handled."""
        before = len(self._bodies)
        await until(lambda: len(self._bodies) >= before + count, f"{count} more are acknowledged")
        new = self._bodies[before:]
        await until(lambda: any(body in self._site.tally.done for body in new), "one of them is handled")

    async def _put(self) -> None:
        async with self._ground.store(timeout=2 * self._site.pace.store_call_s) as store:
            while not self._ends.is_set():
                bodies = self._site.tally.names(BATCH)
                try:
                    await store.put(QUEUE, bodies)
                except StoreError:
                    pass  # nobody knows of all of them whether they were stored
                else:
                    self._site.tally.acknowledge(bodies, time.monotonic())
                    self._bodies += bodies
                await self._site.lasts(PAUSE_S)


def on_cluster(story: ClusterStory, *, through: bool = False) -> Story:
    """Return a story of one site from one that has a cluster too; ``through`` proxies, see `ClusterGround`."""

    async def inject(site: Site) -> None:
        settings = {**site.pace.settings(), "sweep_s": "0", "slack_s": NEVER_S}
        ground = await site.enter(ClusterGround(site.processes, settings, through=through))
        site.bridge = site.store = ground.living()
        await story(site, ground)
        site.bridge = site.store = ground.living()
        sources = {event["source"] for worker in site.workers for event in worker.events["start"]}
        assert not sources & {"sweep", "deadman"}, sources

    return inject


async def workers(site: Site, ground: ClusterGround, count: int = SEATS) -> None:
    """Start workers that have the addresses of all bridges; the store of the last is the database itself."""
    for number in range(count):
        direct = number == count - 1
        await site.worker(store=ground.postgres.url() if direct else ground.url, bridge=ground.url, settled=False)
    await ground.have_listeners(count)


async def worker_at(site: Site, ground: ClusterGround, place: int, **options: bool) -> Speaker:
    """Start a worker that knows one bridge alone; its store is the database."""
    url = ground.bridges[place].url
    return await site.worker(store=ground.postgres.url(), bridge=url, settled=False, **options)


async def killed_under_load(site: Site, ground: ClusterGround) -> None:
    """F41: each of them once."""
    await workers(site, ground)
    async with Load(site, ground) as load:
        for place in range(SEATS):
            await ground.kill(place)
            await load.flows()
            await ground.start(place)
            await ground.hear_each_other()


async def two_of_three_killed(site: Site, ground: ClusterGround) -> None:
    """F42: in the order of the queue, and nobody comes back."""
    await workers(site, ground)
    order = await ground.order(QUEUE)
    async with Load(site, ground) as load:
        for place in order[:2]:
            await ground.kill(place)
            await load.flows()


async def first_killed_with_a_message(site: Site, ground: ClusterGround) -> None:
    """F43a: it cannot act any more when the second has the put and leaves it to the first, as the able one before it.

    The second acts on what it deferred, and not only when it finds the first gone and looks for leases (C5).
    """
    for place in range(SEATS):
        await worker_at(site, ground, place)
    await ground.have_listeners(SEATS)
    first, second, _ = await ground.order(QUEUE)
    ground.bridges[first].signal(signal.SIGSTOP)
    site.store = ground.bridges[second]
    bodies = await site.put(2, tell=False)
    stopped = time.monotonic()
    await ground.kill(first)
    await site.wakes(bodies, stopped)
    assert {event["source"] for worker in site.workers for event in worker.events["start"]} == {"trigger"}


async def first_killed_with_its_worker(site: Site, ground: ClusterGround) -> None:
    """F43b: nobody else knows of the lease; its peers look at the queue that it was able for when V is over (C5)."""
    first, *others = await ground.order(QUEUE)
    holder = await worker_at(site, ground, first, hold=True)
    await ground.have_listeners(1)
    site.store = ground.bridges[others[0]]
    bodies = await site.put(2, tell=False)
    await site.tally.all_started(bodies)
    for place in others:
        await worker_at(site, ground, place)
    await ground.have_listeners(SEATS)
    await holder.kill()
    await ground.kill(first)
    await site.wakes_again(bodies, time.monotonic())
    await site.tally.all_done(bodies)


async def node_killed(site: Site, ground: ClusterGround) -> None:
    """F44a: each server of NATS once; a bridge finds the next by its address, for it is told of no other."""
    await workers(site, ground)
    async with Load(site, ground) as load:
        for node in ground.nats.nodes:
            await node.kill()
            await load.flows()
            await ground.hear_each_other()
            await node.start()


async def leader_killed(site: Site, ground: ClusterGround) -> None:
    """F44b."""
    await workers(site, ground)
    async with Load(site, ground) as load:
        leader = await ground.nats.first()
        await leader.kill()
        await load.flows()
        await ground.hear_each_other()
        await leader.start()


async def all_nodes_restarted(site: Site, ground: ClusterGround) -> None:
    """F44c: all at once, and back after longer than anybody is believed to be there without a word."""
    await workers(site, ground)
    async with Load(site, ground) as load:
        await asyncio.gather(*(node.kill() for node in ground.nats.nodes))
        await site.lasts(SILENT_S + 0.5)
        await load.flows()
        await asyncio.gather(*(node.start() for node in ground.nats.nodes))
        await ground.hear_each_other()


async def cut_from_nats(site: Site, ground: ClusterGround) -> None:
    """F45a: the first in order; both sides go on, each with a worker, and then are one again."""
    first, second, _ = await ground.order(QUEUE)
    for place in (first, second):
        await worker_at(site, ground, place)
    await ground.have_listeners(2)
    async with Load(site, ground) as load:
        for way in ground.nats_ways[first]:
            way.refusing = True
            way.cut()

        async def alone() -> bool:
            return bool((await ground.bridges[first].ask("/v1/cluster"))[1]["alone"])

        await until(alone, "it knows that it is alone")
        await load.flows()
        for place in (first, second):
            site.store = ground.bridges[place]
            await site.wakes(await site.put(2, tell=False))
        for way in ground.nats_ways[first]:
            way.refusing = False
        began = time.monotonic()
        await ground.hear_each_other()
        site.figures["one again after"] = f"{time.monotonic() - began:.1f} s"


async def cut_from_store(site: Site, ground: ClusterGround) -> None:
    """F45b: the first in order can take no put and answer no receive; its workers and producers go to the others."""
    await workers(site, ground)
    first, *_ = await ground.order(QUEUE)
    async with Load(site, ground) as load:
        ground.store_ways[first].refusing = True
        ground.store_ways[first].cut()
        await load.flows()
        ground.store_ways[first].black_hole()
        ground.store_ways[first].refusing = False
        await load.flows()
        ground.store_ways[first].heal()
        ground.store_ways[first].cut()
        site.store = ground.bridges[first]

        async def takes() -> bool:
            return bool(await site.try_put(2))

        await until(takes, "it takes puts again")


def stopped(seconds: float) -> Story:
    """F46: the first in order stands still, and goes on as if nothing had been."""

    async def inject(site: Site, ground: ClusterGround) -> None:
        await workers(site, ground)
        first, *_ = await ground.order(QUEUE)
        async with Load(site, ground):
            ground.bridges[first].signal(signal.SIGSTOP)
            await site.lasts(seconds)
            ground.bridges[first].signal(signal.SIGCONT)
            await ground.hear_each_other()

    return on_cluster(inject)


def frozen(members: int) -> Story:
    """F46d, F46e: the first in order and its worker stand still, and whoever puts at another is served meanwhile."""

    async def inject(site: Site, ground: ClusterGround) -> None:
        for place in range(members, SEATS):
            await ground.leave(place)
        await ground.hear_each_other()
        for place in range(members):
            await worker_at(site, ground, place)
        await ground.have_listeners(members)
        first, second, *_ = await ground.order(QUEUE)
        still = (ground.bridges[first], site.workers[first])
        for each in still:
            each.signal(signal.SIGSTOP)
        site.store = ground.bridges[second]

        async def served(when: str) -> None:
            waited = await site.wakes(await site.put(1, tell=False))
            site.figures[when] = f"{waited:.3f} s"

        await served("at once")
        await served("again")

        async def gone() -> bool:
            return len((await ground.bridges[second].ask("/v1/cluster"))[1]["members"]) < members

        await until(gone, "it counts as gone")
        await served("when it counts as gone")
        # Nobody polled: the worker of the frozen one stood still too, and may look by itself afterwards. The last put
        # may come with the check of what the frozen one had, whose reason is not a trigger.
        sources = {event["source"] for worker in site.workers for event in worker.events["start"]}
        assert not sources & {"poll", "deadman"}, sources
        for each in still:
            each.signal(signal.SIGCONT)
        await ground.hear_each_other()
        await served("when it goes on")

    return on_cluster(inject)


async def join_and_leave(site: Site, ground: ClusterGround) -> None:
    """F47: one more comes, takes work, and leaves in order; twice."""
    await workers(site, ground)
    async with Load(site, ground) as load:
        for _ in range(2):
            await ground.start(JOINS)
            await ground.hear_each_other()
            newcomer = await worker_at(site, ground, JOINS)
            await load.flows()
            assert await newcomer.stop() == 0
            await ground.leave(JOINS)
            await ground.hear_each_other()


async def first_leaves(site: Site, ground: ClusterGround) -> None:
    """F48a: one message after the other, so that each is a wake of its own; the first leaves in between."""
    await workers(site, ground)
    first, second, _ = await ground.order(QUEUE)
    site.store = ground.bridges[second]
    bodies: list[str] = []
    leaving = asyncio.create_task(ground.leave(first), name="leave")
    while not leaving.done() or len(bodies) < 20:
        new = await site.put(1, tell=False)
        await site.wakes(new)
        bodies += new
    await leaving
    site.figures["waked meanwhile"] = str(len(bodies))


async def rolling_restart(site: Site, ground: ClusterGround) -> None:
    """F48b: all bridges one after the other, and then all servers of NATS."""
    await workers(site, ground)
    async with Load(site, ground) as load:
        await restart_all(ground)
        await load.flows()


async def restart_all(ground: ClusterGround) -> None:
    """Have each bridge leave and come back, and restart each server of NATS."""
    for place in sorted(ground.bridges):
        await ground.leave(place)
        await ground.start(place)
        await ground.hear_each_other()
    for node in ground.nats.nodes:
        await node.restart()
        await ground.hear_each_other()


def next_in_order(periods: Pace) -> Bound:
    """The first is gone: the next looks when it has deferred for long enough, and a worker has to find a bridge."""
    seconds = periods.start_ack_s + 2 * PLACE_S + pace.reconnect(periods).seconds
    return Bound("A + 0.5 s + reconnect (<= 5 s) + A rounds + R", seconds)


def next_with_worker(periods: Pace) -> Bound:
    """The same, where its worker lives on and others have workers of their own."""
    return Bound(
        "A + 0.5 s + A rounds + R", periods.start_ack_s + 2 * PLACE_S + pace.redispatch(periods, SEATS).seconds
    )


def lease_of_the_gone(periods: Pace) -> Bound:
    """A lease that only the dead knew of."""
    return Bound(
        "V + 3.5 s + A rounds + R",
        periods.visibility_s + 1.0 + SILENT_S + pace.redispatch(periods, SEATS).seconds,
    )


def stands_still(seconds: float) -> pace.Promise:
    """A bridge that holds sessions stands still: they find others when it is found dead."""
    return pace.later(next_in_order, seconds, f"{seconds:g} s")


def planned(periods: Pace) -> Bound:
    """Nobody is surprised."""
    return Bound("1 s", 1.0)


def _row(number: str, fault: str, how: str, promise: pace.Promise, inject: Story) -> Row:
    command = "apt-get install postgresql"
    return Row(number, fault, how, promise, inject, Needs.SYSTEM, command, is_installed, judged=False)


ROWS = (
    _row("F41", "cluster: a bridge killed under load", "kill -9 of each", next_in_order, on_cluster(killed_under_load)),
    _row("F42", "cluster: two of three killed", "kill -9", next_in_order, on_cluster(two_of_three_killed)),
    _row("F43a", "cluster: the first in order killed, a message waits", "SIGSTOP, put at the second, kill -9",
        next_with_worker, on_cluster(first_killed_with_a_message)),
    _row("F43b", "cluster: the first killed with a worker and its lease", "kill -9 of both", lease_of_the_gone,
        on_cluster(first_killed_with_its_worker)),
    _row("F44a", "cluster: NATS server killed", "kill -9 of each; nobody is told of others", pace.reconnect,
        on_cluster(node_killed, through=True)),
    _row("F44b", "cluster: NATS leader killed", "kill -9", pace.reconnect, on_cluster(leader_killed)),
    _row("F44c", "cluster: all NATS servers restarted", "kill -9, 4 s", pace.reconnect,
        on_cluster(all_nodes_restarted)),
    _row("F45a", "cluster: the first cut off from NATS", "proxies refuse", pace.reconnect,
        on_cluster(cut_from_nats, through=True)),
    _row("F45b", "cluster: the first cut off from the store", "proxy refuses, then swallows", pace.store_back,
        on_cluster(cut_from_store, through=True)),
    *(
        _row(f"F46{letter}", "cluster: the first stands still", f"SIGSTOP, {seconds:g} s", stands_still(seconds),
            stopped(seconds))
        for letter, seconds in (("a", 0.9), ("b", 3.4), ("c", 10.0))
    ),
    *(
        _row(f"F46{letter}", f"cluster: the first of {members} and its worker stand still",
            "SIGSTOP, puts at the second", next_with_worker, frozen(members))
        for letter, members in (("d", 2), ("e", 3))
    ),
    _row("F47", "cluster: one joins and leaves", "twice, SIGTERM", planned, on_cluster(join_and_leave)),
    _row("F48a", "cluster: the first leaves", "SIGTERM, one message after the other", planned,
        on_cluster(first_leaves)),
    _row("F48b", "cluster: all restarted in turn", "SIGTERM; NATS: kill -9", planned, on_cluster(rolling_restart)),
)  # fmt: skip
