"""Triggers by NOTIFY: what a payload means, what is answered, and what a broken connection costs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from queuebell.bridge.brokers.postgres.access import PostgresAccess
from queuebell.bridge.brokers.postgres.broker import INBOX
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.event import CloudQueueWorkDetected, check_event
from queuebell.bridge.observe.facts import Fact, TriggerRefused
from queuebell.bridge.queues.postgres.schema import init, notify_script
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from queuebell.bridge.triggers.postgres import Notifications
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.support.postgres import PostgresServer, execute, running
from tests.support.processes import until


class ClusterLink:
    """A connection to a database that a test speaks through."""

    def __init__(self) -> None:
        self.channels: dict[str, Callable[[str], object]] = {}
        self.said: list[tuple[str, str]] = []

    async def listen(self, channel: str, hear: Callable[[str], object]) -> None:
        self.channels[channel] = hear

    async def notify(self, said: Sequence[tuple[str, str]]) -> None:
        await asyncio.sleep(0)
        self.said += said


class Marks:
    """A bridge that keeps what it is told."""

    boot = "b" * 32

    def __init__(self) -> None:
        self.marked: list[CloudQueueWorkDetected] = []
        self.facts: list[Fact] = []
        self.emit = self.facts.append

    def trigger(
        self,
        events: Sequence[CloudQueueWorkDetected],
        *,
        bus: str,
        redelivered: bool = False,
        counts: Sequence[int] | None = None,
    ) -> int:
        for event in events:
            check_event(event)
        self.marked += events
        return len(events)


class Keeper:
    """Keeps what it is told of puts and promises."""

    def __init__(self) -> None:
        self.puts: list[str] = []
        self.said: list[tuple[str, str, bool]] = []

    def on_put(self, queue: str) -> None:
        self.puts.append(queue)

    def on_report(self, queue: str, by: str, promised: bool) -> None:
        self.said.append((queue, by, promised))


class Desk:
    """Notifications whose payloads a test says one by one."""

    def __init__(self) -> None:
        self.bridge = Marks()
        self.line = ClusterLink()
        self.keeper = Keeper()
        self.notifications = Notifications(self.bridge, "postgres", "queuebell", self.keeper)

    async def say(self, *payloads: str) -> list[str]:
        """Say payloads and return which queues were marked."""
        await self.notifications.attach(self.line)  # type: ignore[arg-type]
        before = len(self.bridge.marked)
        for payload in payloads:
            self.line.channels["queuebell"](payload)
        for _ in range(5):
            await asyncio.sleep(0)
        return [event.queue for event in self.bridge.marked[before:]]

    def refused(self) -> list[str]:
        return [fact.code for fact in self.bridge.facts if isinstance(fact, TriggerRefused)]


def trigger(**more: object) -> str:
    return msgspec.json.encode({"storage_account": "billing", "queue_name": "orders", **more}).decode()


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "billing",
        "a/b/c",
        "bil ling/orders",
        "{",
        "{}",
        '{"storage_account": 1}',
        trigger(payload_size=0),
        "[]",
        "\x00/é",
    ],
)
async def test_what_is_no_trigger_is_refused_and_counted(payload: str) -> None:
    desk = Desk()
    assert await desk.say(payload, "billing/next") == ["billing/next"]
    assert len(desk.refused()) == 1


async def test_answers_do_not_outlive_their_connection() -> None:
    """Pending answers are dropped with the connection: the producer repeats its request."""
    desk = Desk()
    await desk.notifications.attach(desk.line)  # type: ignore[arg-type]
    desk.line.channels["queuebell"](trigger(reply=INBOX + "f" * 32, ask=1))
    await asyncio.sleep(0)
    desk.notifications.detach()
    await asyncio.sleep(0)
    assert desk.line.said == []


def test_a_prefix_that_is_no_channel_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Attachments(Bridge(), postgres=["mysql://x/y"])
    with pytest.raises(ConfigurationError, match="63"):
        Attachments(Bridge(), postgres=["postgres://x/y?prefix=" + "p" * 64])


def test_a_database_can_be_left_out_of_readiness() -> None:
    bridge = Bridge()
    url = "postgres://localhost/jobs"
    Attachments(bridge, postgres=[url, url], settings=BusSettings(ready_requires=("postgres-2",)))
    assert {"postgres", "postgres-2"} <= bridge.readiness().checks.keys()


# -- a real server
@pytest.fixture(scope="module")
def server_postgres() -> Iterator[PostgresServer]:
    with running() as server_postgres:
        yield server_postgres


async def heard(bridge: Bridge) -> None:
    """Wait until the bridge listens."""
    await until(lambda: bridge.readiness().ready, "the bridge listens")


def puts(bridge: Bridge) -> tuple[bool, str]:
    """How `/readyz` says that plain puts stand."""
    check = bridge.readiness().checks["postgres puts"]
    return bool(check.ok), str(check.detail)


@pytest.mark.system
async def test_puts_that_ring_nobody_are_told_and_heal(
    server_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The trigger function is absent, dropped, disabled, partial, of another version or channel, or created later."""
    monkeypatch.setattr("queuebell.bridge.triggers.postgres.CHECK_EVERY_S", 0.02)
    caplog.set_level(logging.INFO, "queuebell.bridge")
    url = server_postgres.url(search_path="told")
    await init(url)
    async with Bridge() as bridge, Attachments(bridge, postgres=[url]):
        await heard(bridge)
        assert not puts(bridge)[0]
        assert "no trigger function" in caplog.text
        assert "schema told" in puts(bridge)[1]
        await execute(server_postgres.url(), "NOTIFY queuebell, 'a/orders'")
        await until(lambda: bridge.describe("a/orders"), "what is said is heard all the same")
        for fault, word in (
            (None, ""),
            ("DROP FUNCTION queuebell_notify_put() CASCADE", "at queuebell_messages"),
            ("DROP TRIGGER queuebell_notify ON queuebell_queues", "at queuebell_queues"),
            ("ALTER TABLE queuebell_messages DISABLE TRIGGER queuebell_notify", "at queuebell_messages"),
            (notify_script("elsewhere"), "the channel elsewhere"),
            (notify_script("queuebell").replace("RETURN NULL", "RETURN  NULL"), "another version"),
        ):
            if fault is not None:
                connection = await PostgresAccess(url).connect()
                await connection.execute(fault)
                await connection.close()
                await until(lambda: not puts(bridge)[0], f"seen: {fault}")
                assert word in puts(bridge)[1]
            assert bridge.readiness().ready, "what is published by other ways is heard"
            before, lines = bridge.newest("a/orders"), len(caplog.records)
            await init(url, notify=True)
            await until(lambda: puts(bridge)[0], f"healed: {fault}")
            assert bridge.newest("a/orders") != before, "what was put meanwhile is looked for"
            assert "fixed: plain puts" in "".join(record.getMessage() for record in caplog.records[lines:])
        await execute(url, "SELECT queuebell_put('a/ringing', 'x')")
        await until(lambda: bridge.describe("a/ringing"), "and a plain put rings")
        await init(url, notify=False)
        await until(lambda: "as configured" in puts(bridge)[1], "silence that is meant")
        assert puts(bridge)[0]


@pytest.mark.system
async def test_a_server_that_runs_out_of_connections_is_told(
    server_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bridge warns once before the last connection is taken, and reports it while it lasts."""
    monkeypatch.setattr("queuebell.bridge.triggers.postgres.CHECK_EVERY_S", 0.02)
    caplog.set_level(logging.INFO, "queuebell.bridge")
    many: list[Any] = []
    async with Bridge() as bridge, Attachments(bridge, postgres=[server_postgres.url()]):
        await heard(bridge)
        assert bridge.readiness().checks["postgres connections"].ok
        many += [await PostgresAccess(server_postgres.url()).connect() for _ in range(48)]
        await until(lambda: not bridge.readiness().checks["postgres connections"].ok, "few are left")
        assert bridge.readiness().ready
        for connection in many:
            await connection.close()
        await until(lambda: bridge.readiness().checks["postgres connections"].ok, "there is room again")
    told = [record.levelname for record in caplog.records if "connections are in use" in record.getMessage()]
    assert told == ["WARNING", "INFO"]


__all__ = ["schema", "server", "url"]
QUEUE = "billing/orders"


@contextlib.asynccontextmanager
async def on_database(url: str) -> AsyncIterator[Bridge]:
    """A bridge whose queues are there, which hears what is put there."""
    engine = PostgresStore(url)
    async with Bridge(store=engine) as bridge, Attachments(bridge, postgres=[url], ours={url: engine.puts_by}) as buses:
        await until(lambda: buses.databases["postgres"].check()[0], "the bridge listens")
        yield bridge


def triggers(bridge: Bridge, queue: str = QUEUE) -> int:
    state = bridge.describe(queue)
    return 0 if state is None else state.triggers


@pytest.mark.system
async def test_a_bridge_marks_its_own_put_once_and_another_hears_it(url: str) -> None:
    """Notifications arrive in the order of the commits, so the last one proves that no other came twice."""
    await init(url, notify=True)
    async with on_database(url) as one, on_database(url) as two:
        for number in range(10):
            await one.store.put(QUEUE, [f"{number}"])
        await two.store.put(QUEUE, ["of the other"])
        await one.store.pause(QUEUE)
        await one.store.pause(QUEUE, paused=False)
        await execute(url, "SELECT queuebell_put('billing/last', 'x'::text)")
        await until(lambda: triggers(one, "billing/last") and triggers(two, "billing/last"), "both hear a plain put")
        assert (triggers(one), triggers(two)) == (12, 12)
