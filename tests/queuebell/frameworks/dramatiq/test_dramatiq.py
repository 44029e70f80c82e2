"""The broker for Dramatiq: settlements, delays, refusals, and workers of Dramatiq's own command."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound

from queuebell.bridge.contract.errors import BadInput, BadQueueReference
from queuebell.bridge.producer.blocking import BlockingStore
from queuebell.frameworks.dramatiq import QueuebellBroker
from tests.support.command import ROOT, Serving, environment, serving
from tests.support.moto import give_keys, moto
from tests.support.processes import PATIENCE_S, free_port

SHOP = "tests.queuebell.frameworks.dramatiq.shop"


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("dramatiq")) as running:
        yield running


@pytest.fixture
def account() -> str:
    return f"a{uuid.uuid4().hex[:8]}"


@pytest.fixture
def broker(bridge: Serving, account: str) -> Iterator[Any]:
    """A broker with an account and the queue ``orders``, and no retries."""
    found = QueuebellBroker(bridge.url, account=account, middleware=[])
    found.declare_queue("orders")
    yield found
    found.close()


@pytest.fixture
def store(bridge: Serving) -> Iterator[BlockingStore]:
    with BlockingStore(bridge.url) as found:
        yield found


def message(*args: object, queue: str = "orders", **options: object) -> Any:
    return dramatiq.Message(queue_name=queue, actor_name="charge", args=args, kwargs={}, options=options)


def depth(store: BlockingStore, queue: str) -> tuple[int | None, int | None]:
    found = store.depth(queue)
    assert found is not None
    return found.visible, found.invisible


def test_a_message_is_settled_in_each_way(broker: Any, store: BlockingStore, account: str) -> None:
    """Acknowledged, returned without an attempt, dead-lettered; and returned by a consumer that is closed."""
    for number in range(4):
        broker.enqueue(message(number))
    consumer = broker.consume("orders", prefetch=2, timeout=PATIENCE_S * 1000)
    first, second = next(consumer), next(consumer)
    assert depth(store, f"{account}/orders") == (2, 2), "no more than the prefetch"
    consumer.ack(first)
    consumer.requeue([second])
    third = next(consumer)
    consumer.nack(third)
    consumer.close()
    left = store.peek(f"{account}/orders")
    assert len(left) == 2 and {each.dequeue_count for each in left} == {0}
    (buried,) = store.peek(f"{account}/orders-poison")
    assert b"rejected by the worker" in buried.body
    broker.flush_all()
    assert depth(store, f"{account}/orders") == (0, 0)
    broker.join("orders")
    assert next(broker.consume("orders", timeout=1)) is None


def test_a_delayed_message_waits_in_the_store(broker: Any, store: BlockingStore, account: str) -> None:
    consumer = broker.consume("orders", timeout=100)
    broker.enqueue(message("later"), delay=3_600_000)
    early = message("early", eta=int(time.time() * 1000) + 3_600_000)
    store.put(f"{account}/orders", [early.encode()])
    until = time.monotonic() + PATIENCE_S
    while store.peek(f"{account}/orders") or depth(store, f"{account}/orders") != (0, 2):
        assert next(consumer) is None and time.monotonic() < until
    with pytest.raises(QueueJoinTimeout):
        broker.join("orders", timeout=200)
    broker.enqueue(message("soon"), delay=300)
    while (found := next(consumer)) is None:
        assert time.monotonic() < until
    assert found.args == ("soon",)
    consumer.close()


def test_a_large_message_is_put_aside(bridge: Serving, account: str, tmp_path: Path) -> None:
    found = QueuebellBroker(bridge.url, account=account, middleware=[], claim_check=tmp_path.as_uri())
    with contextlib.closing(found):
        found.declare_queue("orders")
        found.enqueue(message("x" * 200_000))
        consumer = found.consume("orders", timeout=int(PATIENCE_S * 1000))
        got = next(consumer)
        assert got.args == ("x" * 200_000,)
        consumer.ack(got)
        found.join("orders")
        consumer.close()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".queuebell-blobs"]


def test_what_cannot_be_is_refused_with_a_reason(broker: Any, store: BlockingStore, account: str) -> None:
    """An unknown queue, too large a message, a wrong account, a store that is away; a foreign message is kept."""
    for call in (broker.consume, broker.flush, broker.join):
        with pytest.raises(QueueNotFound):
            call("other")
    with pytest.raises(QueueNotFound):
        broker.enqueue(message(queue="other"))
    with pytest.raises(BadInput, match="nothing was put"):
        broker.enqueue(message("x" * 70_000))
    with pytest.raises(BadQueueReference):
        QueuebellBroker("http://127.0.0.1:1", account="a/b")
    away: Any = QueuebellBroker(f"http://127.0.0.1:{free_port()}")
    away.declare_queue("orders")
    with pytest.raises(ConnectionClosed):
        away.enqueue(message(1))
    away.close()
    store.put(f"{account}/orders", ["order 17"])
    consumer, until = broker.consume("orders", timeout=100), time.monotonic() + PATIENCE_S
    while not store.exists(f"{account}/orders-poison"):
        assert next(consumer) is None and time.monotonic() < until
    (buried,) = store.peek(f"{account}/orders-poison")
    assert b"not a Dramatiq message" in buried.body
    consumer.close()


@contextlib.contextmanager
def worker(place: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = (sys.executable, "-m", "dramatiq", "--processes", "1", "--threads", "4", SHOP)
    process = subprocess.Popen(command, cwd=ROOT, env=environment(place), start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("kind", ["embedded", "sqs"])
def test_workers_of_dramatiq(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, later, beyond the lease, retried and dead-lettered; told to stop, and killed with work in hand."""
    give_keys(monkeypatch)
    with serving(tmp_path / "data") as bridge, contextlib.ExitStack() as opened:
        where = bridge.url
        if kind == "sqs":
            where = f"sqs://eu-central-1?endpoint={opened.enter_context(moto()).url}"
        store = opened.enter_context(BlockingStore(where))
        place = {"STORE": where, "BRIDGE": bridge.url, "FOLDER": str(tmp_path)}
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        shop: Any = importlib.reload(importlib.import_module(SHOP))

        def written(*lines: str) -> bool:
            with contextlib.suppress(FileNotFoundError):
                return set(lines) <= set((tmp_path / "lines").read_text().splitlines())
            return False

        def wait(*lines: str) -> None:
            until = time.monotonic() + PATIENCE_S
            while not written(*lines):
                assert process.poll() is None and time.monotonic() < until

        with worker(place) as process:
            shop.add.send_with_options(args=(3, 4), delay=1500)
            shop.add.send(1, 2)
            shop.hold.send("long", shop.LEASE_S + 1)
            shop.fails.send()
            wait("add 3", "add 7", "begins long", "ends long", "fails")
            shop.hold.send("last", 3)
            wait("begins last")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            assert written("ends last")
        lines = (tmp_path / "lines").read_text().splitlines()
        assert [lines.count(line) for line in ("begins long", "ends long", "fails", "begins last")] == [1, 1, 2, 1]
        (buried,) = store.receive("dramatiq/default-poison").messages
        assert b"rejected by the worker: ValueError: no price" in buried.body
        with worker(place) as process:
            shop.hold.send("killed", 1)
            wait("begins killed")
            os.killpg(process.pid, signal.SIGKILL)
        with worker(place) as process:
            wait("ends killed")
        assert (tmp_path / "lines").read_text().count("begins killed") == 2
        shop.broker.close()
