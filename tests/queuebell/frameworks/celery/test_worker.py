"""Workers of Celery's own command: each pool, what Celery's users report of other brokers, and kills.

The first, second and fifth are shown on Celery's transport for Redis as well, the second and sixth on that for SQS, and
the last on that for Azure.

===========================================================  ===========================================
what users report of other brokers                           asked by
===========================================================  ===========================================
a task for later runs twice, or is held and lost             test_a_day_of_a_worker (for later)
a long task is given to a second worker                      the same (begins once, beyond its lease)
tasks are stuck, or lost, after a warm shutdown or SIGTERM   test_who_is_told_to_stop_or_killed
acks_late stops after failures                               test_a_day_of_a_worker (retried, never, add)
an idle worker polls                                         the same (no receive)
ping and inspect fail                                        the same
the prefetch multiplier is ignored                           test_who_is_told_to_stop_or_killed (another has it)
a killed worker loses its task                               the same
===========================================================  ===========================================
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import kombu.pools
import pytest
import redis
from azure.storage.queue import QueueClient

from queuebell.bridge.producer.blocking import BlockingStore
from tests.support import postgres
from tests.support.azurite import ACCOUNT, API_VERSION, KEY, azurite_queue, connection_string
from tests.support.command import ROOT, environment, perform, serving
from tests.support.moto import give_keys, moto
from tests.support.processes import PATIENCE_S, until
from tests.support.redis import RedisServer

SHOP = "tests.queuebell.frameworks.celery.shop"


class Shop:
    """A broker, and workers beside it."""

    def __init__(self, broker: str, folder: Path, **options: str) -> None:
        self.folder = folder
        self.url = broker.replace("queuebell", "http", 1)
        self.place = {"BROKER": broker, "FOLDER": str(folder), "STORE": json.dumps(options)}
        os.environ.update(self.place)
        self.tasks: Any = importlib.reload(importlib.import_module(SHOP))

    @contextlib.contextmanager
    def worker(self, pool: str, count: int = 1, *more: str) -> Iterator[subprocess.Popen[str]]:
        """Start a worker, and wait until it is ready."""
        options = (*more, "-P", pool, "-c", str(count), "-l", "INFO", "-n", f"{os.urandom(4).hex()}@here")
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", SHOP, "worker", *options],
            cwd=ROOT,
            env=environment(self.place),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                sys.stdout.write(line)
                if " ready." in line:
                    break
            else:
                raise AssertionError("the worker ended before it was ready")
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            sys.stdout.write(process.communicate()[0])  # shown if the test fails

    def lines(self, *first: str) -> list[str]:
        """Return what was written that begins so."""
        with contextlib.suppress(FileNotFoundError):
            text = (self.folder / "lines").read_text()
            return [line for line in text.splitlines() if line.startswith(" ".join(first))]
        return []

    def state(self, queue: str = "celery") -> dict[str, Any]:
        """Return what the bridge says of a queue."""
        with urllib.request.urlopen(f"{self.url}/v1/queues/celery/{queue}", timeout=PATIENCE_S) as answer:
            return dict(json.load(answer))


@contextlib.contextmanager
def opened(broker: str, folder: Path, **options: str) -> Iterator[Shop]:
    """Open a shop, and leave nothing of it in this process."""
    folder.mkdir()
    shop = Shop(broker, folder, **options)
    yield shop
    shop.tasks.app.close()
    kombu.pools.reset()


@pytest.fixture(autouse=True)
def environment_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKER", "FOLDER", "STORE"):
        monkeypatch.setenv(name, "")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with serving(tmp_path / "data") as bridge:
        with opened(bridge.url.replace("http", "queuebell", 1), tmp_path / "shop") as shop:
            yield shop


@pytest.mark.parametrize("pool", ["prefork", "solo", pytest.param("threads", marks=pytest.mark.long)])
def test_a_day_of_a_worker(shop: Shop, pool: str) -> None:
    """Tasks at once, for later, beyond their lease, requeued, rejected, retried; and it answers who asks for it."""
    tasks = shop.tasks
    with shop.worker(pool, 2) as worker:
        assert len(tasks.app.control.ping(timeout=PATIENCE_S, limit=1)) == 1
        assert shop.state()["receives"] == {"total": 0, "empty": 0}
        later = tasks.add.apply_async((3, 4), countdown=2)
        assert tasks.add.delay(1, 2).get(timeout=PATIENCE_S) == 3
        assert shop.state()["delayed"] == 1, "it waits in the store"
        held = tasks.hold.delay("long", tasks.LEASE_S + 1)
        for task in (tasks.again, tasks.retried, *([tasks.dies] if pool == "prefork" else [])):
            task.delay().get(timeout=PATIENCE_S)
        tasks.never.delay()
        assert later.get(timeout=PATIENCE_S) == 7
        held.get(timeout=PATIENCE_S)
        assert len(shop.lines("begins")) == len(shop.lines("ends")) == 1
        assert shop.lines("again") == ["again False", "again True"]
        assert shop.lines("retried") == ["retried 0", "retried 1"]
        assert shop.lines("dies") == (["dies False", "dies True"] if pool == "prefork" else [])
        assert shop.lines("add") == ["add 1 2", "add 3 4"]
        assert tasks.add.delay(5, 6).get(timeout=PATIENCE_S) == 11
        while shop.state()["depth"]["invisible"]:  # a result can be there before its message is deleted
            assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0
    assert shop.state()["depth"] == {"visible": 0, "invisible": 0}
    assert shop.state("celery-poison")["depth"] == {"visible": 1, "invisible": 0}


@pytest.mark.parametrize("pool", ["prefork", pytest.param("solo", marks=pytest.mark.long)])
def test_who_is_told_to_stop_or_killed(shop: Shop, pool: str) -> None:
    """What runs ends, beyond its lease; what waits is another's at once; what was in hands at a kill comes again."""
    tasks = shop.tasks
    with shop.worker(pool) as first:
        running = tasks.hold.delay("first", tasks.LEASE_S + 1)
        while not shop.lines("begins first"):
            assert first.poll() is None
        waits = tasks.hold.delay("second", 0)
        first.send_signal(signal.SIGTERM)
        with shop.worker(pool) as second:
            waits.get(timeout=PATIENCE_S)
            running.get(timeout=PATIENCE_S)
            assert first.wait(PATIENCE_S) == 0
            assert len(shop.lines("begins first")) == len(shop.lines("ends first")) == 1
            lost = tasks.hold.delay("third", 1)
            while not shop.lines("begins third"):
                assert second.poll() is None
            os.killpg(second.pid, signal.SIGKILL)
        with shop.worker(pool):
            lost.get(timeout=PATIENCE_S)
    assert len(shop.lines("begins third")) == 2 and len(shop.lines("ends third")) == 1


@contextlib.asynccontextmanager
async def another_store(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Start a store, and yield its address."""
    if kind == "redis":
        async with RedisServer(folder / "redis") as redis_server:
            yield redis_server.url()
    elif kind == "sqs":
        give_keys(monkeypatch)
        with moto() as moto_server:
            yield f"sqs://eu-central-1?endpoint={moto_server.url}"
    elif kind == "azure":
        with azurite_queue(folder) as azurite_server:
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(azurite_server.url))
            yield f"azure:?api_version={API_VERSION}"
    else:
        with postgres.running() as postgres_server:
            await asyncio.to_thread(perform, "queue", "init", postgres_server.url())
            yield postgres_server.url()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sqs", marks=pytest.mark.rest),
        pytest.param("postgres", marks=pytest.mark.system),
        *(pytest.param(kind, marks=[pytest.mark.system, pytest.mark.long]) for kind in ("azure", "redis")),
    ],
)
async def test_a_worker_on_each_store(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, for later, requeued, retried, rejected; beyond its lease once, after a kill again."""
    async with another_store(kind, tmp_path, monkeypatch) as store:
        await asyncio.to_thread(work_on, store, tmp_path, 2 if kind in ("azure", "sqs") else 1)


def work_on(store: str, folder: Path, attempt: int) -> None:
    """Have two workers do tasks from a store, and kill the first."""
    with serving(folder / "data") as bridge:
        broker = bridge.url.replace("http", "queuebell", 1)
        with opened(broker, folder / "shop", store=store, account=ACCOUNT) as shop:
            tasks = shop.tasks
            with shop.worker("prefork", 2) as first:
                later = tasks.add.apply_async((3, 4), countdown=2)
                held = tasks.hold.delay("long", tasks.LEASE_S + 1)
                tasks.never.delay()
                for task in (tasks.again, tasks.retried):
                    task.delay().get(timeout=PATIENCE_S)
                assert later.get(timeout=PATIENCE_S) == 7
                held.get(timeout=PATIENCE_S)
                lost = tasks.hold.delay("lost", 1)
                while not shop.lines("begins lost"):
                    assert first.poll() is None
                os.killpg(first.pid, signal.SIGKILL)
            with shop.worker("prefork", 1, "--prefetch-multiplier", "4") as second:
                lost.get(timeout=PATIENCE_S)
                for number in range(4):
                    tasks.hold.delay(f"last {number}", 2)
                while not shop.lines("begins last"):
                    assert second.poll() is None
                second.send_signal(signal.SIGTERM)
                assert second.wait(PATIENCE_S) == 0
            with BlockingStore(store) as left:
                received = left.receive(f"{ACCOUNT}/celery", 32).messages
            assert [message.dequeue_count for message in received] == 3 * [attempt], "what waited is back"
            counts = [len(shop.lines(*words.split())) for words in ("add", "begins long", "begins lost", "ends lost")]
            assert counts == [1, 1, 2, 1]
            assert shop.lines("again") == ["again False", "again True"]
            assert shop.lines("retried") == ["retried 0", "retried 1"]
            said = perform("queue", "get", store, f"{ACCOUNT}/celery-poison", "--json").stdout
            assert b"rejected by the worker" in said


@pytest.mark.rest
def test_a_worker_that_starts_learns_what_was_revoked(shop: Shop) -> None:
    """From the others, so that a task for later stays revoked when all workers are replaced."""
    with shop.worker("prefork") as first:
        shop.tasks.add.apply_async((9, 9), countdown=8).revoke()
        shop.tasks.add.delay(1, 1).get(timeout=PATIENCE_S)
        with shop.worker("prefork"):
            first.send_signal(signal.SIGTERM)
            assert first.wait(PATIENCE_S) == 0
            while shop.state()["depth"] != {"visible": 0, "invisible": 0}:
                assert shop.state()["sessions"]
    assert shop.lines("add") == ["add 1 1"]


@pytest.mark.system
async def test_what_users_report_happens_on_redis(tmp_path: Path) -> None:
    """Beside Celery's own transport: a long task and one for later begin twice, and idle workers ask each second."""
    async with RedisServer(tmp_path / "redis") as server:
        with opened(server.url(), tmp_path / "shop") as shop, shop.worker("prefork"), shop.worker("prefork"):
            shop.tasks.add.apply_async((3, 4), countdown=3 * shop.tasks.LEASE_S)
            await until(lambda: len(shop.lines("add 3 4")) > 1, "the task for later runs twice", PATIENCE_S)
            shop.tasks.hold.delay("long", 3 * shop.tasks.LEASE_S)
            await until(lambda: len(shop.lines("begins long")) > 1, "the long task begins twice", PATIENCE_S)
            asked = asks(server.url())
            await until(lambda: asks(server.url()) > asked + 2, "idle workers ask", PATIENCE_S)


@pytest.mark.rest
async def test_what_users_report_happens_on_sqs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside Celery's own transport, with moto: nobody answers a ping, and a long task begins twice."""
    give_keys(monkeypatch)
    with moto() as server, opened(server.url.replace("http://", "sqs://test:test@"), tmp_path / "shop") as shop:
        with shop.worker("prefork"), shop.worker("prefork"):
            shop.tasks.hold.delay("long", 3 * shop.tasks.LEASE_S)
            await until(lambda: len(shop.lines("begins long")) > 1, "the long task begins twice", PATIENCE_S)
            assert shop.tasks.app.control.ping(timeout=3.0) == []


@pytest.mark.system
async def test_what_users_report_happens_on_azure(tmp_path: Path) -> None:
    """Beside Celery's own transport, with Azurite: the task of a worker that is killed is in no queue any more."""
    with azurite_queue(tmp_path, "--skipApiVersionCheck") as server:
        broker = f"azurestoragequeues://{KEY}@{server.url}/{ACCOUNT}"
        with opened(broker, tmp_path / "shop") as shop, shop.worker("prefork") as worker:
            shop.tasks.hold.delay("long", PATIENCE_S)
            await until(lambda: shop.lines("begins long"), "it begins", PATIENCE_S)
            os.killpg(worker.pid, signal.SIGKILL)
        place = connection_string(server.url)
        with QueueClient.from_connection_string(place, "celery", api_version=API_VERSION) as queue:
            assert queue.get_queue_properties().approximate_message_count == 0


def asks(url: str) -> int:
    """Return how often Redis was asked for a message."""
    with redis.Redis.from_url(url) as client:
        return int(client.info("commandstats")["cmdstat_brpop"]["calls"])
