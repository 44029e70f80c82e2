"""Triggers from a broker: what is marked, what is refused, and what is answered when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from queuebell.bridge.brokers.base import Incoming, Topic
from queuebell.bridge.brokers.postgres.broker import PostgresBroker
from queuebell.bridge.contract.errors import BadInput, BusUnavailable
from queuebell.bridge.contract.event import CloudQueueWorkDetected, check_event
from queuebell.bridge.observe.facts import AccessRefused, Fact, TriggerRefused
from queuebell.bridge.triggers.intake import BATCH_MAX, Intake
from queuebell.bridge.triggers.postgres import CHECK_EVERY_S, CONNECTIONS, DatabaseChecks
from tests.support.memory_broker import MemoryServer
from tests.support.sim_loop import elapse, simulated

TOPIC: Topic = ("queuebell", "trigger", "billing", "orders")
BODY = {"storage_account": "billing", "queue_name": "orders"}


class Marks:
    """A bridge that keeps what it is told, and refuses when told to."""

    boot = "b" * 32

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.emit = self.facts.append
        self.marked: list[CloudQueueWorkDetected] = []
        self.redelivered: list[bool] = []
        self.calls = 0
        self.counts = 0
        self.refusing: str | None = None
        self.refused_queue = ""

    def trigger(
        self,
        events: Sequence[CloudQueueWorkDetected],
        *,
        bus: str,
        redelivered: bool = False,
        counts: Sequence[int] | None = None,
    ) -> int:
        self.calls += 1
        for event in events:
            check_event(event)
            if self.refusing and self.refused_queue in event.queue:
                raise BadInput(self.refusing, "refused")
        self.counts += len(events) if counts is None else sum(counts)
        self.marked += events
        self.redelivered += [redelivered] * len(events)
        return len(events)


class Desk:
    """An intake whose messages a test hands in one by one."""

    def __init__(self, kind: str = "nats") -> None:
        self.bridge = Marks()
        self.server = MemoryServer(kind)
        self.intake = Intake(self.bridge, kind, "queuebell")
        self.acknowledged = 0

    async def open(self) -> Desk:
        self.broker = self.server.broker()
        await self.broker.connect()
        await self.intake.attach(self.broker)
        return self

    async def hear(self, payload: bytes = b"", topic: Topic = TOPIC, **more: object) -> list[CloudQueueWorkDetected]:
        before = len(self.bridge.marked)
        self.intake.on_message(Incoming(topic, payload, acknowledge=self.count_acknowledged, **more))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        return self.bridge.marked[before:]

    def count_acknowledged(self) -> None:
        self.acknowledged += 1

    @property
    def refused(self) -> list[str]:
        return [fact.code for fact in self.bridge.facts if isinstance(fact, TriggerRefused)]


@pytest.mark.parametrize(
    "payload, code",
    [
        (b'{"storage_account": "billing", "queue_name": "others"}', "bad_trigger"),
        (b'[{"storage_account": "billing", "queue_name": "others"}]', "bad_trigger"),
        (b'{"queue_name": "orders"}', "bad_trigger"),
        (b'{"storage_account": "billing", "queue_name": "orders", "payload_size": 0}', "bad_trigger"),
        (b'{"storage_account": "billing", "queue_name": "orders", "payload_size": true}', "bad_trigger"),
        (b'{"storage_account": "billing", "queue_name": "orders", "not_before_ms": -1}', "bad_trigger"),
        (b'{"storage_account": "billing", "queue_name": "orders", "id": "a\\nb"}', "bad_trigger"),
        (b"not json", "bad_json"),
        (b"\xff\xfe", "bad_json"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "bad_json"),
        (b'{"storage_account": "billing", "queue_name": "orders", "id": "' + b"x" * 70_000 + b'"}', "too_large"),
    ],
)
async def test_what_is_no_trigger_is_refused_counted_and_done_with(payload: bytes, code: str) -> None:
    """Acknowledged, or the broker would redeliver it forever; not answered, because nothing was marked."""
    desk = await Desk().open()
    assert await desk.hear(payload, reply_to=("_INBOX", "1")) == []
    assert desk.refused == [code]
    assert desk.acknowledged == 1
    assert not desk.server.log


async def test_an_answer_is_never_a_trigger() -> None:
    """An inbox under the own prefix gets no answer."""
    desk = await Desk().open()
    await desk.hear(reply_to=TOPIC)
    assert not desk.server.log


async def test_a_flood_of_equal_triggers_is_marked_as_it_comes_and_counted_each() -> None:
    """Sizes add up and all are answered; triggers with an id or a due time do not merge (B13, B2)."""
    desk = await Desk().open()
    for _ in range(BATCH_MAX * 2):
        desk.intake.on_message(Incoming(TOPIC, b"", reply_to=("_INBOX", "1")))
    assert desk.bridge.calls == 2
    assert desk.bridge.counts == BATCH_MAX * 2
    assert [event.payload_size for event in desk.bridge.marked] == [BATCH_MAX, BATCH_MAX]
    assert len(desk.server.log) == BATCH_MAX * 2
    desk.bridge.marked.clear()
    for more in ({"id": "1", "source": "s"}, {"not_before_ms": 5}):
        for _ in range(2):
            desk.intake.on_message(Incoming(TOPIC, msgspec.json.encode({**BODY, **more})))
    await asyncio.sleep(0)
    assert [event.payload_size for event in desk.bridge.marked] == [1, 1, 1, 1]


@pytest.mark.parametrize(("topic", "queue"), [(TOPIC, "billing/orders"), (("queuebell", "trigger", "billing"), "")])
async def test_on_a_bus_that_is_not_trusted_triggers_are_counted_and_nothing_more(topic: Topic, queue: str) -> None:
    """Their sender is unknown: nothing is marked, acknowledged or answered."""
    desk = Desk()
    broker = desk.server.broker()
    await broker.connect()
    await Intake(desk.bridge, "nats", "queuebell", trusted=False).attach(broker)
    desk.intake.reject(Incoming(topic, b"", acknowledge=desk.count_acknowledged))
    assert desk.bridge.facts == [AccessRefused("unauthenticated", "", "ring", queue, "nats")]
    broker.publish(TOPIC, b"")
    await asyncio.sleep(0)
    assert desk.bridge.facts[1:] in ([], [AccessRefused("unauthenticated", "", "ring", "billing/orders", "nats")])
    assert (desk.bridge.marked, desk.acknowledged) == ([], 0)
    await broker.close()


@pytest.mark.parametrize("kind", ["nats", "mqtt"])
async def test_headers_that_describe_no_event_leave_the_topic_to_say_it(kind: str) -> None:
    """An empty body with other headers is one trigger of the topic's queue."""
    desk = await Desk(kind).open()
    assert await desk.hear(headers={"tenant": "acme"}) == [CloudQueueWorkDetected("billing", "orders", 1)]
    assert desk.acknowledged == 1


class Line:
    """A connection that notes when it was asked whether puts send triggers, and how many connections are left."""

    search_path: str | None = None

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.rooms: list[float] = []
        self.broken = False

    async def ask(self, query: str, *_: object) -> list[dict[str, Any]]:
        (self.rooms if query == CONNECTIONS else self.asked).append(asyncio.get_running_loop().time())
        if self.broken:
            raise BusUnavailable("gone")
        return [{"used": 1, "most": 100}] if query == CONNECTIONS else []


def as_line(line: Line) -> PostgresBroker:
    return cast(PostgresBroker, line)


@simulated
async def test_a_connection_that_breaks_is_not_asked_again() -> None:
    """The next one is asked immediately; until then the last result stays."""
    line = Line()
    checks = DatabaseChecks("db", "queuebell", lambda: None)
    assert checks.puts() == (True, "not checked yet")
    await checks.attach(as_line(line))
    seen = checks.puts()
    line.broken = True
    await elapse(20 * CHECK_EVERY_S)
    assert len(line.asked) == 2 and checks.puts() == seen
    other = Line()
    await checks.attach(as_line(other))
    assert len(other.asked) == 1
    checks.detach()
