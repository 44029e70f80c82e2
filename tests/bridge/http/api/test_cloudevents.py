"""CloudEvents over HTTP: POST /v1/triggers."""

from __future__ import annotations

import json

import pytest
from cloudevents.core.bindings import http as sdk
from cloudevents.core.v1.event import CloudEvent

from tests.support.web import JSON, Served, serving

DATA = {"storage_account": "billing", "queue_name": "orders", "payload_size": 3}
EVENT = {"specversion": "1.0", "type": "CloudQueueWorkDetected", "source": "/shop", "subject": "billing/orders"}
STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"


@pytest.mark.parametrize("write", [sdk.to_structured_event, sdk.to_binary_event], ids=["structured", "binary"])
async def test_what_the_official_sdk_sends_is_taken(write: object) -> None:
    """Both modes; marked before the 202 (B1)."""
    event = CloudEvent(attributes={**EVENT, "id": "1", "datacontenttype": JSON}, data=DATA)
    message = write(event)  # type: ignore[operator]
    headers = {name: value for name, value in message.headers.items() if name != "content-type"}
    async with serving() as served:
        media = message.headers["content-type"]
        reply = await served.ask("POST", "/v1/triggers", message.body, media=media, **headers)
        assert (reply.status, reply.json) == (202, {"accepted": 1})
        described = served.bridge.describe("billing/orders")
        assert described.dirty is True


async def test_a_batch_is_all_or_nothing() -> None:
    """Of a thousand and one none is marked; an empty batch is fine; a trigger told twice counts twice."""
    one = {**EVENT, "id": "1", "data": DATA}
    async with serving() as served:

        async def post(value: object) -> tuple[int, object]:
            reply = await served.ask("POST", "/v1/triggers", json.dumps(value).encode(), media=BATCH)
            return reply.status, reply.json if reply.status == 202 else reply.code

        assert await post([]) == (202, {"accepted": 0})
        assert await post([one] * 1001) == (400, "too_many_items")
        assert await post([one, {**one, "id": ""}]) == (400, "bad_trigger")
        assert served.bridge.describe("billing/orders") is None
        assert await post([one] * 1000) == (202, {"accepted": 1000})


async def test_b13_one_event_by_http_and_another_bus_is_one_mark() -> None:
    """The attributes source and id are those of the trigger."""
    body = json.dumps({**EVENT, "id": "1", "data": DATA}).encode()
    async with serving() as served:
        assert (await served.ask("POST", "/v1/triggers", body, media=STRUCTURED)).status == 202
        gen = served.bridge.newest("billing/orders")[0]
        plain = {**DATA, "id": "1", "source": "/shop"}
        from bridge.contract.event import decode_events

        served.bridge.trigger(decode_events(json.dumps(plain).encode()), bus="nats")
        assert served.bridge.newest("billing/orders")[0] == gen
        served.bridge.trigger(decode_events(json.dumps({**plain, "id": "2"}).encode()), bus="nats")
        assert served.bridge.newest("billing/orders")[0] > gen


@pytest.mark.parametrize(
    ("media", "headers", "body", "status", "code"),
    [
        ("text/plain", {}, b"{}", 415, "unsupported_media_type"),
        (None, {}, b"{}", 415, "unsupported_media_type"),
        ("text/plain", {"ce-specversion": "1.0"}, b"{}", 400, "bad_trigger"),
        (None, {"ce-specversion": "1.0"}, b"{}", 400, "bad_trigger"),
        (None, {}, b"", 415, "unsupported_media_type"),
        ("application/cloudevents+avro", {}, b"x", 415, "unsupported_media_type"),
        (JSON, {"ce-specversion": "1.0"}, b"{}", 400, "bad_trigger"),
        (STRUCTURED, {}, b"{", 400, "bad_json"),
        (STRUCTURED, {}, b"{" + b" " * 65_536 + b"}", 413, "too_large"),
        (
            JSON,
            {**{f"ce-{name}": value for name, value in EVENT.items()}, "ce-id": "%C0%A0"},
            json.dumps(DATA).encode(),
            400,
            "bad_trigger",
        ),
    ],
)
async def test_s8_faults_have_their_codes(
    media: str | None, headers: dict[str, str], body: bytes, status: int, code: str, served: Served
) -> None:
    """415 for what is neither JSON nor a format of ours, also with attributes around it."""
    reply = await served.ask("POST", "/v1/triggers", body, media=media, **headers)
    assert (reply.status, reply.code) == (status, code)


async def test_a_binary_event_may_be_all_headers() -> None:
    """Without data there is no content type to ask for; the subject names the queue."""
    headers = {f"ce-{name}": value for name, value in {**EVENT, "id": "1"}.items()}
    async with serving() as served:
        assert (await served.ask("POST", "/v1/triggers", **headers)).json == {"accepted": 1}


@pytest.mark.parametrize(
    ("media", "body"),
    [("text/plain", b"order 17"), ("application/octet-stream", bytes(range(256))), (None, b"x"), (JSON, b"{")],
)
async def test_a_binary_event_rings_whatever_its_data_is(media: str | None, body: bytes) -> None:
    """The subject names the queue, and the data is the sender's own."""
    headers = {f"ce-{name}": value for name, value in {**EVENT, "id": "1"}.items()}
    async with serving() as served:
        assert (await served.ask("POST", "/v1/triggers", body, media=media, **headers)).json == {"accepted": 1}
        described = served.bridge.describe("billing/orders")
        assert described.dirty is True


async def test_s32_a_bridge_is_no_target_of_a_webhook(served: Served) -> None:
    """Or a webhook that puts on a queue with a webhook would go round for ever."""
    for path in ("/v1/triggers", "/v1/queues/a/b/messages"):
        reply = await served.ask("POST", path, b"{}", media=JSON, Queuebell_Hop="1")
        assert (reply.status, reply.code) == (403, "forbidden_origin")
