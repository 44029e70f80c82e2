"""What `queuebell key nats` and `key mqtt` print, on real servers: what is granted works, one topic more does not."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge import Bridge, Publisher
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.broker_grants import BRIDGE_USER
from queuebell.bridge.brokers import open_broker
from queuebell.bridge.brokers.base import Broker, Incoming, Topic
from queuebell.bridge.contract.errors import BusUnavailable
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.queues import open_store
from queuebell.bridge.service.bridge import BridgeSettings
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from queuebell.listeners import Listener, Message
from tests.support.access import written
from tests.support.brokers import Mosquitto, NatsServer
from tests.support.command import perform
from tests.support.processes import until

PREFIX = "site7"
PRINCIPALS = {
    "producer": {"ring": ["billing/orders", "shop/*", "parts/boxes:3"]},
    "worker": {"take": ["billing/orders"]},
    "looker": {"look": ["billing/orders", "shop/*", "parts/boxes:3"]},
    "all": {"ring": ["*"], "take": ["*"], "look": ["*"]},
    "putter": {"put": ["*"]},
}
Address = Callable[[str], str]
SERVERS = ["nats", pytest.param("mqtt", marks=pytest.mark.system)]


def printed(folder: Path, kind: str) -> str:
    """What the command prints for these principals."""
    return perform("key", kind, "--data", str(folder), "--prefix", PREFIX).stdout.decode()


@asynccontextmanager
async def server(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Address]:
    """Run a server as printed; return who connects by which address."""
    rules = printed(folder, kind)
    users = [BRIDGE_USER, *(name for name in PRINCIPALS if name != "putter")]
    if kind == "nats":
        for name in users:
            monkeypatch.setenv("NATS_PASSWORD_" + name.upper().replace("-", "_"), f'"1-{name}"')
        (folder / "queuebell.conf").write_text(rules)
        async with NatsServer(folder, extra='include "queuebell.conf"') as nats:
            yield lambda name: f"nats://{name}:1-{name}@127.0.0.1:{nats.port}?inbox=_INBOX.{name}&prefix={PREFIX}"
        return
    for name in users:
        first = ["-c"] if name == BRIDGE_USER else []
        made = await asyncio.create_subprocess_exec(
            shutil.which("mosquitto_passwd") or "mosquitto_passwd", "-b", *first, str(folder / "passwords"), name,
            f"1-{name}", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert await made.wait() == 0
    (folder / "acl").write_text(rules)
    extra = f"allow_anonymous false\nacl_file {folder / 'acl'}\npassword_file {folder / 'passwords'}"
    async with Mosquitto(folder, extra=extra) as mosquitto:
        yield lambda name: f"mqtt://{name}:1-{name}@127.0.0.1:{mosquitto.port}?prefix={PREFIX}"


@asynccontextmanager
async def connected(address: str, hear: Callable[[Incoming], None], *patterns: Topic) -> AsyncIterator[Broker]:
    """A connection of a user that hears these patterns, or would."""
    broker = open_broker(address.replace(f"?prefix={PREFIX}", "").replace(f"&prefix={PREFIX}", ""), prefix=PREFIX)
    await broker.connect()
    try:
        for pattern in patterns:
            await broker.subscribe(pattern, hear)
        yield broker
    finally:
        await broker.close()


HELLO, UP, DOWN = ("hello",), ("session", "1" * 32, "up"), ("session", "1" * 32, "down")
TRIGGERS = {
    name: ("trigger", *name.split("/"))
    for name in ("billing/orders", "billing/other", "shop/a", "parts/boxes-p0", "parts/boxes-p2", "parts/boxes")
}
WAKES = {name: ("wake", *topic[1:]) for name, topic in TRIGGERS.items()}
COVERED = {"billing/orders", "shop/a", "parts/boxes-p0", "parts/boxes-p2"}
MAY_PUBLISH = {
    "producer": {TRIGGERS[name] for name in COVERED},
    "worker": {HELLO, UP},
    "looker": set(),
    "all": {HELLO, UP, *TRIGGERS.values()},
    BRIDGE_USER: {DOWN, *TRIGGERS.values(), *WAKES.values()},
}
MAY_HEAR = {
    "producer": set(),
    "worker": {DOWN},
    "looker": {WAKES[name] for name in COVERED},
    "all": {DOWN, *WAKES.values()},
    BRIDGE_USER: {HELLO, UP, *TRIGGERS.values()},
}
EVERY = [HELLO, UP, DOWN, *TRIGGERS.values(), *WAKES.values()]


@pytest.mark.parametrize("kind", SERVERS)
async def test_what_is_granted_works_and_one_topic_more_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user speaks and listens on every topic; only what the table says arrives."""
    written(tmp_path / "access.json", PRINCIPALS)
    async with server(kind, tmp_path, monkeypatch) as address:
        for speaker, granted in MAY_PUBLISH.items():
            for hearer, heard_by in MAY_HEAR.items():
                heard: set[Topic] = set()
                both = {topic for topic in EVERY if topic in granted and topic in heard_by}

                def hear(incoming: Incoming, heard: set[Topic] = heard) -> None:
                    heard.add(incoming.topic[1:])

                async with connected(address(hearer), hear) as ears, connected(address(speaker), hear) as mouth:
                    for topic in EVERY:
                        try:
                            await ears.subscribe((PREFIX, *topic), hear)
                        except BusUnavailable:
                            assert topic not in heard_by, (hearer, topic)
                        else:
                            # mosquitto grants any subscription, and delivers what may be read.
                            assert topic in heard_by or kind == "mqtt", (hearer, topic)
                    for topic in EVERY:
                        mouth.publish((PREFIX, *topic), b"x")
                    await mouth.barrier()
                    await ears.barrier()
                    assert heard == both, (speaker, hearer)


@pytest.mark.parametrize("kind", SERVERS)
async def test_nobody_without_a_user(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "access.json", PRINCIPALS)
    async with server(kind, tmp_path, monkeypatch) as address:
        good = address("worker")
        for wrong in (good.replace("worker:1-worker@", ""), good.replace("1-worker", "1-all"), address("putter")):
            with pytest.raises(Exception, match=r"(?i)authorization|rejected with reason"):
                async with connected(wrong, lambda _: None):
                    pass


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_bridge_a_worker_and_a_producer_each_with_its_user(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a trigger to a handler, by the broker alone, with keys; a plain subscriber hears the wake."""
    secrets = written(tmp_path / "access.json", PRINCIPALS)
    handled: asyncio.Queue[bytes] = asyncio.Queue()
    wakes: asyncio.Queue[Topic] = asyncio.Queue()

    async def handle(message: Message[Any]) -> None:
        await handled.put(message.body)

    async with (
        server(kind, tmp_path, monkeypatch) as address,
        AccessWatch(tmp_path / "access.json") as watch,
        Bridge(settings=BridgeSettings(periods=Periods(sweep_s=0))) as bridge,
        Attachments(bridge, **{kind: [address(BRIDGE_USER)]}, access=watch, settings=BusSettings(prefix=PREFIX)),
    ):
        await until(lambda: bridge.readiness().ready, "the bridge is on the broker")
        store = open_store(f"memory:{tmp_path}{kind}")
        worker = Listener(store, "billing/orders", handle, bridge=address("worker"), api_key=secrets["worker"])
        stranger = Listener(store, "billing/other", handle, bridge=address("worker"), api_key=secrets["worker"])
        running = [asyncio.create_task(each.run(), name="worker") for each in (worker, stranger)]
        await until(lambda: worker.state().session, "a session")
        async with (
            connected(address("looker"), lambda incoming: wakes.put_nowait(incoming.topic)) as ears,
            Publisher(address("producer")) as publisher,
        ):
            await ears.subscribe((PREFIX, "wake", "billing", "orders"), lambda told: wakes.put_nowait(told.topic))
            for number in range(3):
                await store.put("billing/orders", [b"%d" % number])
                await publisher.publish("billing", "orders")
                assert await handled.get() == b"%d" % number
            assert (await wakes.get())[2:] == ("billing", "orders")
        async with connected(address("producer"), lambda _: None) as producer:
            # Answered after the mark: the bridge may answer whom it hears.
            await producer.request((PREFIX, "trigger", "billing", "orders"), b"")
        assert not stranger.state().session
        assert [each.queues for each in bridge.listeners()] != []
        for each in (worker, stranger):
            await each.stop()
        await asyncio.wait(running)
        bridge.end_sessions()
        await store.close()
