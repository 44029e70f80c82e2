"""The AsyncAPI file says what goes over buses, sessions and channels of wakes: held against codecs and live ones."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import aiohttp
import jsonschema_rs
import msgspec
import pytest

from queuebell.bridge.brokers import SCHEMES
from queuebell.bridge.contract.cloudevents import decode_mqtt, decode_nats
from queuebell.bridge.contract.cluster import ClusterMessage, decode_cluster_message, encode_cluster_message
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.framing import encode_down, encode_up, read_stamp
from queuebell.bridge.contract.wire import DownFrame, UpFrame, WireFrame, decode_down, decode_up, encode_frame
from queuebell.bridge.service import bridge as service
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from queuebell.bridge.triggers.cluster import _SUBJECTS
from queuebell.bridge.triggers.postgres import Notifications
from queuebell.bridge.triggers.promises import PromiseKeeper
from tests.reference import asyncapi
from tests.reference.asyncapi import BOOT, QUEUE, TRIGGER, WORKER
from tests.reference.exchange import Document
from tests.reference.test_openapi import references
from tests.support.memory_broker import SERVERS, MemoryServer
from tests.support.processes import until
from tests.support.web import request, serving

DOCUMENT = Document(asyncapi.described())
CHANNELS = DOCUMENT.document["channels"]
MESSAGES = DOCUMENT.document["components"]["messages"]


def examples(name: str) -> list[Any]:
    return [each["payload"] for each in MESSAGES[name]["examples"]]


def check(channel: str, payload: bytes) -> None:
    text = payload.decode()
    value = json.loads(text) if text.startswith("{") else text
    reasons = []
    for message in CHANNELS[channel]["messages"].values():
        payload = DOCUMENT.resolve(message)["payload"]
        if not payload and isinstance(value, dict):
            continue  # what may be anything is told by its headers
        try:
            return DOCUMENT.validate(payload, value)
        except AssertionError as error:
            reasons.append(str(error))
    raise AssertionError(f"{channel}: {text}: {reasons}")


def channel_of(server: str, topic: tuple[str, ...]) -> str:
    """Name the one channel of the file that has this topic."""
    separator = "." if server == "nats" else "/"
    found = [
        name
        for name, channel in CHANNELS.items()
        if channel["servers"] == [{"$ref": f"#/servers/{server}"}]
        and re.fullmatch(re.sub(r"\\{\w+\\}", "[^./]+", re.escape(channel["address"])), separator.join(topic))
    ]
    assert len(found) == 1, (server, topic, found)
    return found[0]


def test_it_is_whole() -> None:
    """References lead somewhere, tokens of addresses are parameters, operations and messages are all used."""
    document = DOCUMENT.document
    for reference in references(document):
        DOCUMENT.resolve({"$ref": reference})
    for name, channel in CHANNELS.items():
        assert channel["messages"], name
        assert set(re.findall(r"\{(\w+)\}", channel["address"])) == set(channel.get("parameters", {})), name
    used = {reference.rpartition("/")[2] for reference in references(document)}
    assert set(MESSAGES) <= used
    assert set(document["components"]["schemas"]) <= used
    assert set(document["servers"]) <= used
    operated = {operation["channel"]["$ref"].rpartition("/")[2] for operation in document["operations"].values()}
    assert operated == set(CHANNELS)
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})


def test_frames_are_those_of_the_code() -> None:
    """Every type of frame stands on its channel, and no other."""
    for channel, union, but in (
        ("sessionUp", UpFrame, set()),
        ("sessionDown", DownFrame | WireFrame, set()),
        ("natsSessionUp", UpFrame, {"Hello"}),
        ("mqttSessionDown", DownFrame, set()),
    ):
        named = {name.removesuffix("OverBroker").replace("Goodbye", "Bye") for name in CHANNELS[channel]["messages"]}
        assert named == {frame.__name__ for frame in get_args(union)} - but


def test_examples_of_frames_go_through_the_codec() -> None:
    """Decoded and encoded each is what it was, alone and as it is over brokers."""
    for frames, decode in ((asyncapi.UP, decode_up), (asyncapi.DOWN, decode_down)):
        for frame in frames:
            for example in examples(frame.__name__):
                decoded = decode(json.dumps(example))
                assert type(decoded) is frame
                assert json.loads(encode_frame(decoded)) == example
                if frames is asyncapi.UP:
                    raw = encode_up(decoded, WORKER, 1, to=BOOT)
                else:
                    raw = encode_down(decoded, WORKER, 1, BOOT)
                assert read_stamp(raw).instance == WORKER
                name = "Goodbye" if frames is asyncapi.DOWN and frame.__name__ == "Bye" else frame.__name__
                DOCUMENT.validate(MESSAGES[f"{name}OverBroker"]["payload"], json.loads(raw))


def test_words_between_bridges_are_those_of_the_code() -> None:
    """Every type stands on the one channel, each with its subject; decoded and encoded an example is what it was."""
    channel = CHANNELS["natsCluster"]
    assert set(channel["messages"]) == {word.__name__ for word in get_args(ClusterMessage)}
    assert set(channel["parameters"]["word"]["enum"]) == set(_SUBJECTS.values())
    for word in get_args(ClusterMessage):
        for example in examples(word.__name__):
            decoded = decode_cluster_message(json.dumps(example).encode())
            assert type(decoded) is word
            assert json.loads(encode_cluster_message(decoded)) == example


HELLO, *_ = asyncapi.EXAMPLES["Hello"]
BEAT, *_ = asyncapi.EXAMPLES["ListenerHeartbeat"]
WRONG = [
    ("Hello", {**HELLO, "instance": "a1"}),
    ("Hello", {**HELLO, "listener": "x" * 257}),
    ("Hello", {**HELLO, "queues": [{"queue": "orders", "capacity": 1}]}),
    ("Hello", {**HELLO, "queues": [{"queue": QUEUE, "capacity": 1_000_001}]}),
    ("Hello", {**HELLO, "queues": [{"queue": QUEUE, "capacity": 1, "store": "no hex"}]}),
    ("Hello", {**HELLO, "queues": [{"queue": f"a/q{n}", "capacity": 1} for n in range(1001)]}),
    ("Started", {"type": "started", "queue": QUEUE, "boot": BOOT, "gen": -1}),
    ("EmptyReceive", {"type": "cover", "queue": QUEUE, "boot": BOOT, "gen": 1, "age_ms": "1"}),
    ("More", {"type": "more", "queue": QUEUE, "depth": -1}),
    ("Room", {"type": "room", "queue": QUEUE, "free": 1_000_001}),
    ("ListenerHeartbeat", {**BEAT, "queues": {QUEUE: {"receives": {"trigger": [1]}}}}),
    ("Bye", {"type": "bye", "leases": {"orders": [1]}}),
]


@pytest.mark.parametrize(("name", "frame"), WRONG, ids=range(len(WRONG)))
def test_what_the_codec_refuses_the_schema_refuses(name: str, frame: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        decode_up(json.dumps(frame))
    with pytest.raises(AssertionError):
        DOCUMENT.validate(MESSAGES[name]["payload"], frame)


def test_examples_of_triggers_are_read() -> None:
    plain = CloudQueueWorkDetected(**TRIGGER)
    assert decode_nats(None, json.dumps(TRIGGER).encode(), QUEUE) == [plain]
    (event,) = examples("CloudEventTrigger")
    media = MESSAGES["CloudEventTrigger"]["contentType"]
    marked = CloudQueueWorkDetected("billing", "orders", id="17", source="/shop")
    assert decode_nats({"content-type": media}, json.dumps(event).encode(), QUEUE) == [marked]
    assert decode_mqtt(media, {}, json.dumps(event).encode(), QUEUE) == [marked]
    described = MESSAGES["BinaryCloudEventTrigger"]["headers"]
    headers = {name: event[name.removeprefix("ce-")] for name in described["required"]}
    DOCUMENT.validate(described, headers)
    assert decode_nats(headers, b"order 17", QUEUE) == [marked]
    assert decode_mqtt("text/plain", {name[3:]: text for name, text in headers.items()}, b"order 17", QUEUE) == [marked]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, MemoryServer]]:
    """Let ``nats://nats`` and ``mqtt://mqtt`` be brokers in memory."""
    for name in ("nats", "mqtt"):
        monkeypatch.setitem(SCHEMES, name, ("tests.support.memory_broker", "NamedBroker"))
    monkeypatch.setattr("tests.support.memory_broker.SERVERS", SERVERS)
    SERVERS.clear()
    SERVERS.update(nats=MemoryServer("nats"), mqtt=MemoryServer("mqtt"))
    yield SERVERS
    SERVERS.clear()


async def rest() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("server", ["nats", "mqtt"])
async def test_what_goes_over_a_broker_is_in_it(server: str, brokers: dict[str, MemoryServer]) -> None:
    """A session, triggers of each kind, a wake, a trigger of another bridge's, an error and a farewell."""
    log = brokers[server].log
    async with Bridge() as bridge, Attachments(bridge, nats=["nats://nats"], mqtt=["mqtt://mqtt"]):
        await rest()
        heard = {
            channel_of(server, tuple("billing" if token == "*" else token for token in pattern))
            for pattern, _, _ in brokers[server].connections[0].subscriptions
        }
        assert heard == {
            operation["channel"]["$ref"].rpartition("/")[2]
            for operation in DOCUMENT.document["operations"].values()
            if operation["action"] == "receive" and server in operation["channel"]["$ref"]
        } - {"natsCluster"}
        assert brokers[server].deliver(("queuebell", "hello"), json.dumps(examples("HelloOverBroker")[0]).encode())
        await rest()
        for name in ("Trigger", "EmptyTrigger", "CloudEventTrigger"):
            payload = examples(name)[0]
            raw = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
            brokers[server].deliver(("queuebell", "trigger", "billing", "orders"), raw)
            await rest()
        # What another bridge would be told: it came by HTTP.
        bridge.trigger([CloudQueueWorkDetected("billing", "invoices", 2)], bus="http")
        await rest()
        up = ("queuebell", "session", WORKER, "up")
        beat = {**BEAT, "instance": WORKER, "seq": 2}
        for raw in (json.dumps(beat).encode(), json.dumps({"type": "bye", "instance": WORKER, "seq": 3}).encode()):
            brokers[server].deliver(up, raw)
            await rest()
        brokers[server].deliver(up, json.dumps({**beat, "seq": 4}).encode())
        await rest()
        state = bridge.describe(QUEUE)
        assert state is not None and state.triggers == 3
    seen = set()
    for topic, payload in log:
        channel = channel_of(server, topic)
        check(channel, payload)
        seen.add((channel, json.loads(payload).get("type") if payload[:1] == b"{" else None))
    assert {
        (f"{server}SessionDown", "welcome"),
        (f"{server}SessionDown", "wake"),
        (f"{server}SessionDown", "heartbeat"),
        (f"{server}SessionDown", "bye"),
        (f"{server}SessionDown", "error"),
        (f"{server}Wakes", "wake"),
    } <= seen
    assert any(b'"via"' in payload for _, payload in log)


async def test_what_bridges_say_to_each_other_is_in_it(
    brokers: dict[str, MemoryServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From two that meet to one that leaves, with a worker at one of them that finds its queue empty."""
    monkeypatch.setattr(service, "TELL_S", 0.01)
    taking_turns = BusSettings(cluster={"name": "shop"})
    async with Bridge() as staying, Attachments(staying, nats=["nats://nats"], settings=taking_turns):
        async with Bridge() as leaving, Attachments(leaving, nats=["nats://nats"], settings=taking_turns):
            await until(
                lambda: staying.coordinator.members.peers and leaving.coordinator.members.peers, "they know each other"
            )
            broker = brokers["nats"]
            broker.deliver(("queuebell", "hello"), json.dumps(examples("HelloOverBroker")[0]).encode())
            await rest()
            staying.trigger([CloudQueueWorkDetected("billing", "orders")], bus="http")
            await rest()
            gen = max(json.loads(raw)["gen"] for topic, raw in broker.log if topic[-1] == "down" and b'"wake"' in raw)
            for seq, boot in enumerate((staying.boot, leaving.boot), 2):
                cover = {"type": "cover", "queue": QUEUE, "boot": boot, "gen": gen, "age_ms": 0}
                stamp = {"instance": WORKER, "seq": seq, "to": boot}
                broker.deliver(("queuebell", "session", WORKER, "up"), json.dumps(cover | stamp).encode())
            staying.history.mark("paused", "operator", QUEUE)
            told = {"covered", "sent", "past"}
            await until(lambda: told <= {topic[-1] for topic, _ in broker.log}, "the receive and the wake are told of")
    said = set()
    for topic, payload in brokers["nats"].log:
        if topic[1] == "cluster":
            assert channel_of("nats", topic) == "natsCluster"
            check("natsCluster", payload)
            assert json.loads(payload)["type"] == topic[2]
            said.add(topic[2])
    assert said >= {"member", "able", "covered", "sent", "past"}


async def test_what_goes_over_a_web_socket_is_in_it() -> None:
    """From hello to the error that ends it, with a message carried inside a wake."""
    heard: list[str] = []
    async with serving() as served, aiohttp.ClientSession() as client:
        async with client.ws_connect(f"{served.server.url}/v1/sessions", protocols=["queuebell.v2"]) as session:

            async def hear(kind: str) -> dict[str, Any]:
                async with asyncio.timeout(100):
                    while True:
                        text = await session.receive_str()
                        check("sessionDown", text.encode())
                        frame = json.loads(text)
                        heard.append(frame["type"])
                        if frame["type"] == kind:
                            return frame

            await session.send_json(examples("Hello")[1])
            await hear("welcome")
            await served.call("messages", {"messages": [{"body": "order 17"}]})
            wake = await hear("wake")
            assert wake["messages"][0]["body"] == "order 17"
            await session.send_json({"type": "started", "queue": QUEUE, "boot": wake["boot"], "gen": wake["gen"]})
            await session.send_json(examples("ListenerHeartbeat")[0])
            assert (await hear("heartbeat"))["echo"] == 5000
            served.bridge.drain()
            await hear("drain")
            await session.send_json({"type": "started"})
            await hear("error")
            await hear("ended")
    assert heard[:2] == ["ready", "welcome"]


async def test_what_an_event_stream_sends_is_in_it() -> None:
    """A gap for an id that is not known, and a wake after a put."""
    async with serving() as served, served.client() as client:
        await client.send(request("GET", f"/v1/wakes?queue={QUEUE}", Last_Event_ID="unknown"))
        text = b""
        for until in (b"event: gap", b"event: wake"):
            if until == b"event: wake":
                await served.call("messages", {"messages": [{"body": "order 17"}]})
            async with asyncio.timeout(100):
                while until not in text or not text.endswith(b"\n\n\r\n"):
                    text += await client.reader.read(65_536)
    events = re.findall(rb"id: ([0-9a-f]{32}:\d+)\nevent: (\w+)\ndata: (.*)\n\n", text)
    assert [kind for _, kind, _ in events] == [b"gap", b"wake"]
    for _, kind, data in events:
        DOCUMENT.validate(MESSAGES[f"Streamed{kind.decode().title()}"]["payload"], json.loads(data))


async def test_what_a_database_notifies_is_heard() -> None:
    """The name of a queue alone, a trigger, one that wants to be told, and what a bridge promises."""
    async with Bridge() as bridge:
        keeper = PromiseKeeper("postgres", "queuebell", BOOT)
        notifications = Notifications(bridge, "postgres", "queuebell", keeper)
        for name in CHANNELS["notifications"]["messages"]:
            (payload,) = examples(name)
            notifications.on_notify(payload if isinstance(payload, str) else json.dumps(payload))
            await rest()
        keeper.stop()
        state = bridge.describe(QUEUE)
    assert state is not None and state.triggers == 4


def test_the_check_can_fail() -> None:
    with pytest.raises(AssertionError):
        check("sessionDown", msgspec.json.encode(examples("Hello")[0]))
