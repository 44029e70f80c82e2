"""Triggers by NOTIFY: what a payload means, what is answered, and what a broken connection costs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from bridge.brokers.postgres.access import PostgresAccess
from bridge.brokers.postgres.line import INBOX, PostgresLine
from bridge.contract.errors import BadInput, BusUnavailable, Closed, ConfigurationError
from bridge.contract.event import CloudQueueWorkDetected, check_event
from bridge.observe.facts import Fact, TriggerRefused
from bridge.producer.buses import open_bus
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.voice import speak
from bridge.service.bridge import Bridge
from bridge.triggers.attachment import Attachments, BusSettings
from bridge.triggers.postgres import Notifications
from tests.support.postgres import PostgresServer, execute, running
from tests.support.processes import until

ORDERS = CloudQueueWorkDetected("billing", "orders", 3)


class Line:
    """A connection to a database that a test speaks through."""

    def __init__(self) -> None:
        self.channels: dict[str, Callable[[str], object]] = {}
        self.said: list[tuple[str, str]] = []

    async def listen_to(self, channel: str, hear: Callable[[str], object]) -> None:
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


class Promising:
    """Keeps what it is told of puts and promises."""

    def __init__(self) -> None:
        self.puts: list[str] = []
        self.said: list[tuple[str, str, bool]] = []

    def put(self, queue: str) -> None:
        self.puts.append(queue)

    def told(self, queue: str, by: str, promised: bool) -> None:
        self.said.append((queue, by, promised))


class Desk:
    """Notifications whose payloads a test says one by one."""

    def __init__(self) -> None:
        self.bridge = Marks()
        self.line = Line()
        self.promising = Promising()
        self.notifications = Notifications(
            self.bridge, "postgres", "queuebell", self.bridge.facts.append, self.promising
        )

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


async def test_a_payload_is_a_name_or_a_trigger() -> None:
    """What a person types and what the trigger function says mark the same queue."""
    desk = Desk()
    assert await desk.say("billing/orders", trigger(payload_size=7)) == ["billing/orders"] * 2
    assert [event.payload_size for event in desk.bridge.marked] == [1, 7]
    assert await desk.say(trigger(not_before_ms=500)) == ["billing/orders"]
    assert desk.bridge.marked[-1].not_before_ms == 500
    assert desk.line.said == []
    assert desk.promising.puts == ["billing/orders"] * 2, (
        "a bare name is a person's, or a bridge's that has promised to look"
    )


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
    """Nothing that anybody notifies stops what comes after it."""
    desk = Desk()
    assert await desk.say(payload, "billing/next") == ["billing/next"]
    assert len(desk.refused()) == 1


async def test_the_answer_comes_after_the_mark() -> None:
    """An inbox hears of each trigger that was marked, and of one that never can be; no other channel is spoken to."""
    desk = Desk()
    inbox = INBOX + "f" * 32
    asked = [trigger(reply=inbox, ask=n) for n in (1, 2)]
    assert len(await desk.say(*asked)) == 2
    assert sorted(desk.line.said) == [(inbox, "1"), (inbox, "2")]
    await desk.say(trigger(reply=inbox, ask=3, payload_size=0), trigger(reply="queuebell", ask=4))
    assert desk.line.said[2:] == [(inbox, "3")]


async def test_answers_do_not_outlive_their_connection() -> None:
    """What is owed when the connection goes is forgotten: who asked asks again."""
    desk = Desk()
    await desk.notifications.attach(desk.line)  # type: ignore[arg-type]
    desk.line.channels["queuebell"](trigger(reply=INBOX + "f" * 32, ask=1))
    await asyncio.sleep(0)
    desk.notifications.detach()
    await asyncio.sleep(0)
    assert desk.line.said == []


def test_a_prefix_that_is_no_channel_is_refused() -> None:
    """Too long for a channel is told before anything connects."""
    with pytest.raises(ConfigurationError):
        Attachments(Bridge(), postgres=["mysql://x/y"])
    with pytest.raises(ConfigurationError, match="63"):
        Attachments(Bridge(), postgres=["postgres://x/y?prefix=" + "p" * 64])


def test_a_database_can_be_left_out_of_readiness() -> None:
    """It has a name among the buses that `/readyz` asks."""
    bridge = Bridge()
    url = "postgres://localhost/jobs"
    Attachments(bridge, postgres=[url, url], settings=BusSettings(ready_requires=("postgres-2",)))
    assert {"postgres", "postgres-2"} <= bridge.readiness().checks.keys()


# -- a real server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


async def heard(bridge: Bridge) -> None:
    """Wait until the bridge listens."""
    await until(lambda: bridge.readiness().ready, "the bridge listens")


@pytest.mark.system
async def test_a_plain_insert_rings(server: PostgresServer) -> None:
    """With the trigger function in place every way of putting is a trigger, and a rollback is none."""
    url = server.url(search_path="rings")
    await init(url, notify=True)
    async with Bridge() as bridge, Attachments(bridge, postgres=[server.url()]):
        await heard(bridge)
        await execute(
            url, "INSERT INTO queuebell_messages (queue, text) SELECT 'a/many', '' FROM generate_series(1, 9)"
        )
        await until(lambda: bridge.describe("a/many"), "an INSERT of many is heard")
        rolled_back = "BEGIN PERFORM queuebell_put('a/rolled', 'x'::text); RAISE 'no'; EXCEPTION WHEN OTHERS THEN END"
        await execute(url, f"DO $$ {rolled_back} $$")
        await execute(url, "SELECT queuebell_put('a/function', 'x'::text)")
        await until(lambda: bridge.describe("a/function"), "the function is heard")
        assert not bridge.describe("a/rolled")
        await init(url, notify=False)
        await execute(url, "SELECT queuebell_put('a/silent', 'x'::text)")
        await execute(url, "NOTIFY queuebell, 'a/spoken'")
        await until(lambda: bridge.describe("a/spoken"), "a person is heard")
        assert not bridge.describe("a/silent")


def puts(bridge: Bridge) -> tuple[bool, str]:
    """How `/readyz` says that plain puts stand."""
    check = bridge.readiness().checks["postgres puts"]
    return bool(check.ok), str(check.detail)


@pytest.mark.system
async def test_puts_that_ring_nobody_are_told_and_heal(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Absent, dropped, disabled, half, of another version or another channel, and made later: each is seen and said."""
    monkeypatch.setattr("bridge.triggers.postgres.LOOK_S", 0.02)
    caplog.set_level(logging.INFO, "queuebell.bridge")
    url = server.url(search_path="told")
    await init(url)
    async with Bridge() as bridge, Attachments(bridge, postgres=[url]):
        await heard(bridge)
        assert not puts(bridge)[0]
        assert "no trigger function" in caplog.text
        assert "schema told" in puts(bridge)[1]
        await execute(server.url(), "NOTIFY queuebell, 'a/orders'")
        await until(lambda: bridge.describe("a/orders"), "what is said is heard all the same")
        for fault, word in (
            (None, ""),
            ("DROP FUNCTION queuebell_notify_put() CASCADE", "at queuebell_messages"),
            ("DROP TRIGGER queuebell_notify ON queuebell_queues", "at queuebell_queues"),
            ("ALTER TABLE queuebell_messages DISABLE TRIGGER queuebell_notify", "at queuebell_messages"),
            (speak("elsewhere"), "the channel elsewhere"),
            (speak("queuebell").replace("RETURN NULL", "RETURN  NULL"), "another version"),
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
            assert "mended" in "".join(record.getMessage() for record in caplog.records[lines:])
        await execute(url, "SELECT queuebell_put('a/ringing', 'x')")
        await until(lambda: bridge.describe("a/ringing"), "and a plain put rings")
        await init(url, notify=False)
        await until(lambda: "asked for" in puts(bridge)[1], "silence that is meant")
        assert puts(bridge)[0]


@pytest.mark.system
async def test_a_server_that_runs_out_of_connections_is_told(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the last one is taken the bridge warns once, and says so as long as it is true."""
    monkeypatch.setattr("bridge.triggers.postgres.LOOK_S", 0.02)
    caplog.set_level(logging.INFO, "queuebell.bridge")
    many: list[Any] = []
    async with Bridge() as bridge, Attachments(bridge, postgres=[server.url()]):
        await heard(bridge)
        assert bridge.readiness().checks["postgres connections"].ok
        many += [await PostgresAccess(server.url()).connect() for _ in range(48)]
        await until(lambda: not bridge.readiness().checks["postgres connections"].ok, "few are left")
        assert bridge.readiness().ready
        for connection in many:
            await connection.close()
        await until(lambda: bridge.readiness().checks["postgres connections"].ok, "there is room again")
    told = [record.levelname for record in caplog.records if "connections are in use" in record.getMessage()]
    assert told == ["WARNING", "INFO"]


@pytest.mark.system
async def test_a_database_without_queues_lacks_nothing(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers may come by NOTIFY alone; tables that come later without a voice are told."""
    monkeypatch.setattr("bridge.triggers.postgres.LOOK_S", 0.02)
    url = server.url(search_path="later")
    async with Bridge() as bridge, Attachments(bridge, postgres=[url]):
        await heard(bridge)
        assert puts(bridge)[0]
        assert "no tables" in puts(bridge)[1]
        await init(url)
        await until(lambda: not puts(bridge)[0], "the tables are seen")


@pytest.mark.system
async def test_a_resumed_queue_rings_and_a_delay_is_a_timer(server: PostgresServer) -> None:
    """A resume wakes as a put does; a delayed put is due when it is due, and not before."""
    url = server.url(search_path="resumes")
    await init(url, notify=True)
    async with Bridge() as bridge, Attachments(bridge, postgres=[server.url()]):
        await heard(bridge)
        await execute(url, "SELECT queuebell_put('a/later', 'x'::text, '1 hour')")
        await until(lambda: bridge.describe("a/later"), "the delayed put is heard")
        assert not getattr(bridge.describe("a/later"), "dirty", True)
        await execute(url, "INSERT INTO queuebell_queues (name, paused) VALUES ('a/paused', true)")
        await execute(url, "UPDATE queuebell_queues SET paused = false")
        await until(lambda: getattr(bridge.describe("a/paused"), "dirty", False), "the resume is heard")


@pytest.mark.system
async def test_a_connection_lost_is_a_gap(server: PostgresServer) -> None:
    """What was notified while nobody listened is made good by a look, once the bridge listens again."""
    async with Bridge() as bridge, Attachments(bridge, postgres=[server.url()]):
        await heard(bridge)
        await execute(server.url(), "NOTIFY queuebell, 'a/orders'")
        await until(lambda: bridge.describe("a/orders"), "the first is heard")
        before = bridge.newest("a/orders")
        await execute(
            server.url(),
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'queuebell' AND pid <> pg_backend_pid()",
        )
        await until(lambda: bridge.newest("a/orders") != before, "the gap is marked")


@pytest.mark.system
async def test_a_publish_is_acknowledged_after_the_mark(server: PostgresServer) -> None:
    """What `publish` returned from is marked; two at once do not get in each other's way."""
    bus = open_bus(server.url())
    try:
        async with Bridge() as bridge, Attachments(bridge, postgres=[server.url()]):
            await heard(bridge)
            await bus.publish([ORDERS])
            assert getattr(bridge.describe("billing/orders"), "triggers", 0) == 1
            many = [CloudQueueWorkDetected("billing", f"q{n}") for n in range(300)]
            await asyncio.gather(bus.publish(many), bus.publish([ORDERS]), bus.publish([ORDERS]))
            assert all(bridge.describe(event.queue) for event in many)
            with pytest.raises(BadInput):
                await bus.publish([CloudQueueWorkDetected("billing", "orders", id="x" * 8000)])
    finally:
        await bus.close()
    with pytest.raises(Closed):
        await bus.publish([ORDERS])


@pytest.mark.system
async def test_a_publish_that_nobody_hears_is_told(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bridge a publish fails, and so does one without a server."""
    monkeypatch.setattr("bridge.producer.buses.postgres.ANSWER_S", 0.05)
    bus = open_bus(server.url())
    try:
        with pytest.raises(BusUnavailable, match="no bridge"):
            await bus.publish([ORDERS])
    finally:
        await bus.close()
    bus = open_bus("postgres://postgres@127.0.0.1:1/postgres")
    try:
        with pytest.raises(BusUnavailable, match="no connection"):
            await bus.publish([ORDERS])
    finally:
        await bus.close()


@pytest.mark.system
async def test_a_line_that_hangs_is_found_out(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe comes back through the server, and fails when the server hangs; so do the words of one that is closed."""
    line = PostgresLine(server.url())
    await line.connect()
    try:
        assert await line.probe() > 0
        server.pause()
        monkeypatch.setattr("bridge.brokers.postgres.line.PROBE_S", 0.2)
        try:
            with pytest.raises(BusUnavailable):
                await line.probe()
        finally:
            server.resume()
    finally:
        await line.close()
        await line.close()
    assert await line.broken()
    with pytest.raises(BusUnavailable):
        await line.notify([("x", "y")])
