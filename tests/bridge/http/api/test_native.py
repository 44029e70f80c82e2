"""The queue service's JSON API over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.web import JSON, Served, request, serving

QUEUE = "/v1/queues/billing/orders"


async def put(served: Served, *bodies: str, **fields: Any) -> list[dict[str, Any]]:
    """Put these bodies and return their receipts."""
    reply = await served.call("messages", {"messages": [{"body": body, **fields} for body in bodies]})
    assert reply.status == 201
    receipts: list[dict[str, Any]] = reply.json["messages"]
    return receipts


async def take(served: Served, **fields: Any) -> dict[str, Any]:
    """Receive and return the answer."""
    reply = await served.call("receive", fields)
    assert reply.status == 200
    answer: dict[str, Any] = reply.json
    return answer


async def test_pause_and_resume(served: Served) -> None:
    """Both answer 204, also when repeated; the queue says whether it is paused."""
    await put(served, "a")
    assert (await served.ask("GET", QUEUE)).json["paused"] is False
    for verb, paused, visible in (
        ("pause", True, 0),
        ("pause", True, 0),
        ("resume", False, 1),
        ("resume", False, 1),
    ):
        reply = await served.ask("POST", f"{QUEUE}/{verb}")
        assert (reply.status, reply.body) == (204, b"")
        assert not {"content-type", "content-length"} & reply.headers.keys()
        state = (await served.ask("GET", QUEUE)).json
        assert (state["paused"], state["dirty"]) == (paused, not paused)
        assert state["depth"] == {"visible": visible, "invisible": 1 - visible}
    assert (await served.call("pause", {})).status == 204
    assert await take(served) == {
        "messages": [],
        "depth": {"visible": 0, "invisible": 1},
        "next_visible_in_ms": None,
        "next_delayed_in_ms": None,
    }
    assert len((await served.ask("GET", QUEUE + "/peek")).json["messages"]) == 1
    await served.ask("DELETE", QUEUE)
    await put(served, "b")
    assert (await served.ask("GET", QUEUE)).json["paused"] is False


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_pausing_what_does_not_exist(verb: str, served: Served) -> None:
    """A faulty request is told its fault first; then the queue's absence, and no queue is made."""
    for body, media, status, code in (
        (b"{", JSON, 400, "bad_json"),
        (b"[]", JSON, 400, "bad_parameter"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (None, None, 404, "queue_not_found"),
        (b"{}", JSON, 404, "queue_not_found"),
    ):
        reply = await served.ask("POST", f"{QUEUE}/{verb}", body, media=media)
        assert (reply.status, reply.code) == (status, code)
    reply = await served.ask("POST", f"/v1/queues/billing/a.b/{verb}")
    assert (reply.status, reply.code) == (400, "bad_queue_reference")
    reply = await served.ask("GET", f"{QUEUE}/{verb}")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert (await served.ask("GET", QUEUE)).status == 404


@pytest.mark.parametrize(
    ("verb", "body", "status", "code"),
    [
        ("messages", b"", 400, "bad_json"),
        ("messages", b"[", 400, "bad_json"),
        ("messages", b'{"messages":[{"body":"\xff"}]}', 400, "bad_json"),
        ("messages", b'{"messages":[{"body":"\\ud800"}]}', 400, "bad_json"),
        ("messages", b'{"x":' + b"[" * 100_000, 400, "bad_json"),
        ("messages", b"[]", 400, "bad_parameter"),
        ("messages", b"{}", 400, "bad_parameter"),
        ("messages", b'{"messages":[]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":1}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","body_base64":"YQ=="}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body_base64":"YQ"}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body_base64":"Y\\nQ="}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","ttl_s":0}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","ttl_s":-2}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","visible_after_ms":-1}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","visible_after_ms":604800001}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","visible_after_ms":1.5}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","ttl_s":' + b"9" * 50 + b"}]}", 400, "bad_parameter"),
        ("messages", json.dumps({"messages": [{"body": "a"}] * 33}).encode(), 400, "too_many_items"),
        ("messages", json.dumps({"messages": [{"body": "a" * 65_537}]}).encode(), 413, "message_too_large"),
        ("messages", json.dumps({"messages": [{"body": "ä" * 32_769}]}, ensure_ascii=False).encode(), 413,
         "message_too_large"),
        ("messages", b'{"messages":[{"body":"a","headers":null}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","headers":{"a":7}}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a"},{"body":"b","headers":{"a b":"c"}}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","headers":{"Nats-Msg-Id":"c"}}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","headers":{"a":"b\\r\\nc: d"}}]}', 400, "bad_parameter"),
        ("messages", b'{"messages":[{"body":"a","headers":{"a":"\\u0000"}}]}', 400, "bad_parameter"),
        ("messages", json.dumps({"messages": [{"body": "a", "headers": {"a": "x" * 8192}}]}).encode(), 413,
         "message_too_large"),
        ("receive", b'{"max":33}', 400, "bad_parameter"),
        ("receive", b'{"max":true}', 400, "bad_parameter"),
        ("receive", b'{"max":"1"}', 400, "bad_parameter"),
        ("receive", b'{"visibility_timeout_s":0}', 400, "bad_parameter"),
        ("receive", b'{"visibility_timeout_s":604801}', 400, "bad_parameter"),
        ("receive", b'{"visibility_timeout_s":1e9}', 400, "bad_parameter"),
        ("receive", b"nul", 400, "bad_json"),
        ("receive", b"null", 400, "bad_parameter"),
        ("receive", b" " * 65_537, 413, "too_large"),
        ("settle", b"", 400, "bad_json"),
        ("settle", b'{"delete":[{"id":"a"}]}', 400, "bad_parameter"),
        ("settle", b'{"delete":{}}', 400, "bad_parameter"),
        ("settle", b'{"release":[{"id":"a","pop_receipt":"b","after_ms":-1}]}', 400, "bad_parameter"),
        ("settle", b'{"extend":[{"id":"a","pop_receipt":"b"}]}', 400, "bad_parameter"),
        ("settle", b'{"extend":[{"id":"a","pop_receipt":"b","visibility_timeout_s":0}]}', 400, "bad_parameter"),
        ("settle", json.dumps({"delete": [{"id": "a", "pop_receipt": "b"}] * 20,
                               "release": [{"id": "a", "pop_receipt": "b"}] * 33}).encode(), 400, "too_many_items"),
    ],
)  # fmt: skip
async def test_s8_a_faulty_request_is_told_its_fault(
    verb: str, body: bytes, status: int, code: str, served: Served
) -> None:
    """And leaves nothing behind: all or nothing."""
    await served.ask("PUT", QUEUE)
    reply = await served.ask("POST", f"{QUEUE}/{verb}", body, media=JSON)
    assert (reply.status, reply.code) == (status, code)
    assert (await served.ask("GET", QUEUE)).json["depth"] == {"visible": 0, "invisible": 0}


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v1/queues/a/b/peek?max=0", "bad_parameter"),
        ("GET", "/v1/queues/a/b/peek?max=33", "bad_parameter"),
        ("GET", "/v1/queues/a/b/peek?max=%FF", "bad_parameter"),
        ("GET", "/v1/queues?limit=0", "bad_parameter"),
        ("GET", "/v1/queues?limit=1001", "bad_parameter"),
        ("GET", "/v1/queues?prefix=%00", "bad_parameter"),
        ("GET", "/v1/queues?after=" + "a" * 162, "bad_parameter"),
        ("PUT", "/v1/queues/a/" + "b" * 81, "bad_queue_reference"),
        ("PUT", "/v1/queues/a/b.c", "bad_queue_reference"),
        ("PUT", "/v1/queues/a/b%0a", "bad_queue_reference"),
        ("PUT", "/v1/queues/-a/b", "bad_queue_reference"),
        ("PUT", "/v1/queues/%C3%A4/b", "bad_queue_reference"),
    ],
)
async def test_faulty_addresses(method: str, path: str, code: str, served: Served) -> None:
    """Numbers, names and parts of names."""
    reply = await served.ask(method, path)
    assert (reply.status, reply.code) == (400, code)


async def test_other_content_types_for_json_calls_are_415(served: Served) -> None:
    """Only a put takes anything."""
    for verb in ("receive", "settle"):
        for media in ("text/plain", None):
            reply = await served.ask("POST", f"{QUEUE}/{verb}", b"{}", media=media)
            assert (reply.status, reply.code) == (415, "unsupported_media_type")
    assert (await served.ask("PUT", QUEUE, b"{}", media="text/plain")).status == 415


async def test_metadata_is_bounded(served: Served) -> None:
    """Text to text, 8 KiB."""
    for metadata in ({"a": 1}, {"a": None}, [], {"a": "x" * 9000}):
        reply = await served.ask("PUT", QUEUE, json.dumps({"metadata": metadata}).encode(), media=JSON)
        assert (reply.status, reply.code) == (400, "bad_parameter")
    assert (await served.ask("GET", QUEUE)).status == 404


ONE = {"storage_account": "billing", "queue_name": "orders", "payload_size": 3}


@pytest.mark.parametrize(
    "query",
    ["?size=0", "?size=-1", "?size=", "?size=1e3", "?size=1_0", "?size=%F0%9D%9F%91", "?size=1000001", "?size=%ff"],
)
async def test_a_size_out_of_range_is_refused(query: str, served: Served) -> None:
    """Only decimal digits are a number."""
    reply = await served.ask("POST", f"/v1/triggers/billing/orders{query}")
    assert (reply.status, reply.code) == (400, "bad_parameter")


async def test_a_body_on_the_address_form_is_refused(served: Served) -> None:
    """Whoever sends one means the other route."""
    reply = await served.ask("POST", "/v1/triggers/billing/orders", b"{}", media=JSON)
    assert (reply.status, reply.code) == (400, "bad_trigger")


async def test_s6_sizes(served: Served) -> None:
    """64 KiB an event, 1 MiB a request: announced, chunked, and on the edge."""
    big = {**ONE, "filler": "x" * 65_536}
    reply = await served.trigger(big)
    assert (reply.status, reply.code) == (413, "too_large")
    reply = await served.trigger([ONE, big])
    assert (reply.status, reply.code) == (413, "too_large")
    edge = json.dumps({**ONE, "filler": ""}).encode()
    edge = edge[:-2] + b"x" * (65_536 - len(edge)) + edge[-2:]
    assert (await served.ask("POST", "/v1/triggers", edge, media=JSON)).status == 202
    async with served.client() as client:
        head = request("POST", "/v1/triggers", media=JSON, Content_Length=str(1024 * 1024 + 1))
        await client.send(head)
        reply = await client.reply()
        assert (reply.status, reply.code, reply.headers["connection"]) == (413, "too_large", "close")
    async with served.client() as client:
        await client.send(request("POST", "/v1/triggers", media=JSON, Transfer_Encoding="chunked"))
        for _ in range(17):
            await client.send(b"10000\r\n" + b" " * 65_536 + b"\r\n")
        reply = await client.reply()
        assert (reply.status, reply.code) == (413, "too_large")


async def test_expect_100_continue_is_answered_before_the_body(served: Served) -> None:
    """curl waits a second for it otherwise; what would be refused anyway is refused instead."""
    body = json.dumps(ONE).encode()
    head = request("POST", "/v1/triggers", media=JSON, Content_Length=str(len(body)), Expect="100-continue")
    async with served.client() as client:
        await client.send(head)
        async with asyncio.timeout(50):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.reply()).status == 202
    async with served.client() as client:
        await client.send(request("POST", "/v1/triggers", media="a/b", Content_Length="5", Expect="100-continue"))
        assert (await client.reply()).status == 415
    async with served.client() as client:
        await client.send(request("POST", "/v1/triggers", media=JSON, Content_Length="5", Expect="a-pony"))
        assert (await client.reply()).status == 417


async def test_s23_draining_refuses_new_work_only(served: Served) -> None:
    """503 with Retry-After for triggers and puts; receive and settle go on, so that workers can finish."""
    await served.call("messages", {"messages": [{"body": "x"}]})
    served.bridge.draining = True
    for reply in (
        await served.trigger(ONE),
        await served.ask("POST", "/v1/triggers/billing/orders"),
        await served.call("messages", {"messages": [{"body": "x"}]}),
        await served.ask("GET", "/v1/sessions"),
    ):
        assert (reply.status, reply.code) == (503, "draining")
        assert int(reply.headers["retry-after"]) >= 1
    assert len((await served.call("receive", {})).json["messages"]) == 1
    assert (await served.ask("GET", "/readyz")).status == 503
    served.bridge.draining = False


async def test_s13_past_its_rate_a_trigger_is_429_and_marked_all_the_same() -> None:
    """I8: a trigger is merged, never dropped."""
    async with serving(requests_per_second=0.001, request_burst=2) as served:
        assert [(await served.trigger(ONE)).status for _ in range(2)] == [202, 202]
        before = served.bridge.bell.ledger.find("billing/orders")
        assert before is not None
        generation = before.gen
        reply = await served.trigger([{**ONE, "queue_name": "third"}, ONE])
        assert (reply.status, reply.code) == (429, "too_many_requests")
        assert int(reply.headers["retry-after"]) >= 1
        assert before.gen > generation
        # A new name costs memory: it comes within the rate, and its sender tries again.
        assert served.bridge.describe("billing/third") is None
        put = await served.call("messages", {"messages": [{"body": "x"}]})
        assert (put.status, put.code) == (429, "too_many_requests")
        assert (await served.ask("GET", "/livez")).status == 200
