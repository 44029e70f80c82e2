"""A list of bridges wherever one may be named: workers, producers, outbox, frameworks and commands.

Two doors of one service stand for bridges that share a store. What goes on when bridges themselves go is in
`tests/services/test_many_bridges.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator, Iterator

import pytest
from taskiq.api import run_receiver_task

from bridge.core.settings import Periods
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.producer.blocking import BlockingStore
from bridge.service.bridge import BridgeSettings
from listeners import Message
from queuebell import Bridge, open_store
from queuebell.frameworks.taskiq import QueuebellBroker
from tests.listeners.rig import QUEUE, listening
from tests.queuebell.frameworks.django.shop import Shop, sqlite
from tests.support.command import Serving, perform, serving
from tests.support.outboxes import opened, put
from tests.support.processes import Processes, free_port, until


class House:
    """One service behind two doors, and an address where nobody is."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.dead = f"http://127.0.0.1:{free_port()}"
        self.doors: dict[str, contextlib.AsyncExitStack] = {}

    async def open(self, port: int = 0) -> str:
        stack = contextlib.AsyncExitStack()
        web = await stack.enter_async_context(WebServer(self.bridge, WebSettings(port=port, shutdown_timeout=0.2)))
        self.doors[web.url] = stack
        return web.url

    async def close(self, url: str) -> None:
        await self.doors.pop(url).aclose()

    @property
    def urls(self) -> list[str]:
        return [self.dead, *self.doors]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """Open two doors; nothing is swept, so that only what the bridge is told of is found."""
    settings = BridgeSettings(periods=Periods(sweep_s=0, slack_s=86_400.0))
    async with Bridge(settings=settings) as bridge:
        house = House(bridge)
        await house.open()
        await house.open()
        yield house
        bridge.end_sessions()
        for url in list(house.doors):
            await house.close(url)


async def test_a_list_is_store_and_bridge_at_once(house: House) -> None:
    """Store and session go on at the other door, each by itself; no queue is taken for a bridge's own meanwhile."""
    handled: list[str] = []

    async def handle(message: Message) -> None:
        handled.append(f"{message.text()} {message.wake_source}")

    async with open_store(house.urls) as store, listening(house.urls, handle, bridge=house.urls) as listener:

        async def works(number: int) -> None:
            await until(lambda: listener.state().session, "a session stands")
            await store.depth(QUEUE)  # whoever is gone is found to be gone
            await store.put(QUEUE, [str(number)])
            await until(lambda: f"{number} trigger" in handled, f"{number} is handled")

        await works(1)
        assert not listener._all_own([QUEUE]) and listener.state().queues[QUEUE].carried == 0
        for number in (2, 3):
            where = listener.state().bridge
            assert where in house.doors
            port = int(where.rpartition(":")[2])
            await house.close(where)
            await until(lambda was=where: listener.state().bridge not in (None, was), "it is at the other door")
            await works(number)
            await house.open(port)
    assert len(handled) == 3


async def test_a_blocking_store_and_an_outbox(house: House, tmp_path: pathlib.Path) -> None:
    """Threads and relays put through whichever door is open."""
    blocking = await asyncio.to_thread(BlockingStore, house.urls, bridge=house.urls)
    await asyncio.to_thread(blocking.put, QUEUE, ["one"])
    async with opened("sqlalchemy", str(tmp_path / "shop.db")) as rig, open_store(house.urls) as store:
        async with rig.relay(store) as relay:
            await rig.write(put("two", queue=QUEUE))
            await until(lambda: relay.state().sent == 1, "it is relayed")
            await house.close(next(iter(house.doors)))
            await rig.write(put("three", queue=QUEUE))
            await until(lambda: relay.state().sent == 2, "it is relayed again")
    assert await asyncio.to_thread(blocking.depth, QUEUE)
    await asyncio.to_thread(blocking.put, QUEUE, ["four"])
    await asyncio.to_thread(blocking.close)
    bodies = [message.body for message in await house.bridge.store.peek(QUEUE)]
    assert bodies == [b"one", b"two", b"three", b"four"]


async def test_taskiq(house: House) -> None:
    """Its tasks are put and handed over; the puts of equal bridges ring by themselves."""
    broker = QueuebellBroker(house.urls)
    done: list[int] = []

    @broker.task
    async def work(number: int) -> None:
        done.append(number)

    running = asyncio.create_task(run_receiver_task(broker, run_startup=True))
    try:
        await work.kiq(1)
        await until(lambda: done == [1], "it is done")
        await house.close(next(iter(house.doors)))
        await broker._open()[0].depth("taskiq/tasks")
        await work.kiq(2)
        await until(lambda: done == [1, 2], "it is done as well")
        assert broker._open()[1] is None
    finally:
        running.cancel()
        await asyncio.wait([running])
        await broker.shutdown()


@pytest.mark.prove
async def test_django(tmp_path: pathlib.Path) -> None:
    """``OPTIONS`` takes a list, for whoever enqueues and for the worker."""
    async with Processes(tmp_path) as processes:
        bridge = await processes.serve()
        urls = [f"http://127.0.0.1:{free_port()}", bridge.url]
        shop = Shop(processes, bridge, sqlite(tmp_path, range(1, 3)), {"store": urls})
        worker = await shop.worker()
        await shop.run("charge.enqueue(1)\ncharge.enqueue(2)\n")
        await shop.tells("charged", 2)
        assert await worker.stop() == 0, worker.errors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Serve once for the commands."""
    with serving(tmp_path_factory.mktemp("one")) as one:
        yield one


def asked(url: str, *words: str, code: int | None = 0) -> str:
    """Perform a command at these addresses, and return what it said."""
    done = perform(*words, env={"QUEUEBELL_BRIDGE": url, "QUEUEBELL_STORE": url}, code=code)
    return done.stdout.decode() + done.stderr.decode()


def test_every_command_asks_the_one_that_is_there(served: Serving) -> None:
    """Begun at random, so each several times; and it says whom it asked."""
    dead = f"http://127.0.0.1:{free_port()}"
    for url in (f"{dead},{served.url}", f"{served.url},{dead.removeprefix('http://')}"):
        for _ in range(3):
            assert "put 1" in asked(url, "queue", "put", QUEUE, "x")
            assert "1 visible" in asked(url, "queue", "depth", QUEUE)
            assert QUEUE in asked(url, "queue", "list")
            assert asked(url, "queue", "peek", QUEUE) == asked(url, "queue", "get", QUEUE) == "x\n"
            assert f"bridge at {served.url}: ready" in asked(url, "status")
            told = json.loads(asked(url, "status", "--json"))["bridge"]
            assert told["url"] == served.url and all(dead in gone for gone in told["gone"])
            assert asked(url, "explain", QUEUE).startswith(f"{QUEUE}: ")
            assert "published" in asked(url, "publish", "billing/elsewhere")


def test_nobody_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 69, and each address with its reason."""
    one, two = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    for words in (["status"], ["explain", QUEUE], ["queue", "forget", QUEUE], ["check", "--bridge", f"{one},{two}"]):
        said = asked(f"{one},{two}", *words, code=69)
        assert f"at {one}" in said and f"at {two}" in said
    assert "no bridge answers" in asked(f"{one},{two}", "publish", QUEUE, code=69)
    assert "cannot be reached" in asked(f"{one},{two}", "queue", "depth", QUEUE, code=69)


def test_one_that_holds_its_own_queues_has_all_their_listeners(served: Serving) -> None:
    """Nobody else has any, so that nothing is said of others."""
    assert "these are the listeners of" not in asked(served.url, "status")
    assert "own queues (of this bridge's service)" in asked(served.url, "check", code=None)


def test_check_looks_at_each(served: Serving, tmp_path: pathlib.Path) -> None:
    """One that is gone is a problem that clients hide; so are two that hold queues of their own."""
    dead = f"http://127.0.0.1:{free_port()}"
    said = asked(served.url, "check", "--bridge", f"{served.url},{dead}", code=1)
    assert f"bridge at {served.url}: " in said and f"{dead}: no bridge answers" in said
    with serving(tmp_path / "two") as other:
        asked(served.url, "queue", "put", QUEUE, "x")
        both = f"{served.url},{other.url}"
        told = json.loads(asked(both, "check", "--json", code=None))
        assert [each["url"] for each in told["bridges"]] == [served.url, other.url] and told["bridge"]["answers"]
        codes = [problem["code"] for problem in told["problems"]]
        assert "apart" not in codes and codes.count("disconnected") == 2
        asked(other.url, "queue", "put", QUEUE, "x")
        told = json.loads(asked(both, "check", "--json", code=1))
        assert "apart" in [problem["code"] for problem in told["problems"]]
        assert "each holds queues of its own" in asked(both, "check", code=1)


def test_each_is_told_to_forget(served: Serving, tmp_path: pathlib.Path) -> None:
    """Names are each bridge's own: a queue is forgotten by all that know it, and by none where one refuses."""
    name = "billing/mistake"
    with serving(tmp_path / "two") as other:
        both = f"{served.url},{other.url}"
        for url in (served.url, other.url, other.url):
            asked(url, "publish", name)
            assert "forgotten" in asked(both, "queue", "forget", name)
            for each in (served.url, other.url):
                assert name not in asked(each, "explain", name, code=1).partition(":")[0]
        asked(both, "queue", "forget", name, code=1)
