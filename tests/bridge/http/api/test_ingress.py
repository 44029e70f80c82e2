"""Triggers over HTTP."""

from __future__ import annotations

import asyncio
import json

import pytest

from bridge.observe.facts import Fact, PutRefused
from tests.support.web import JSON, Served, request, serving

ONE = {"storage_account": "billing", "queue_name": "orders", "payload_size": 3}


async def test_a_trigger_is_marked_before_it_is_acknowledged(served: Served) -> None:
    """B1: when the 202 is out, the queue is dirty."""
    reply = await served.trigger(ONE)
    assert (reply.status, reply.json) == (202, {"accepted": 1})
    assert reply.headers["content-type"] == JSON
    described = (await served.ask("GET", "/v1/queues/billing/orders")).json
    assert described["triggers"] == 1
    assert described["dirty"] is True


async def test_an_array_is_all_or_nothing(served: Served) -> None:
    """One bad trigger refuses the thousand, and none of them is marked."""
    assert (await served.trigger([ONE] * 1000)).json == {"accepted": 1000}
    refused = await served.trigger([{**ONE, "queue_name": "other"}, {**ONE, "payload_size": 0}])
    assert (refused.status, refused.code) == (400, "bad_trigger")
    assert (await served.ask("GET", "/v1/queues/billing/other")).status == 404
    too_many = await served.trigger([ONE] * 1001)
    assert (too_many.status, too_many.code) == (400, "too_many_items")


async def test_an_empty_array_is_none_accepted(served: Served) -> None:
    """An empty batch is fine."""
    reply = await served.trigger([])
    assert (reply.status, reply.json) == (202, {"accepted": 0})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "bad_json"),
        (b"{", "bad_json"),
        (b"\xff", "bad_json"),
        (b'{"storage_account": "a\xff", "queue_name": "b"}', "bad_json"),
        (b"NaN", "bad_json"),
        (b"{} {}", "bad_json"),
        (b"{}", "bad_trigger"),
        (b"3", "bad_trigger"),
        (b'{"storage_account": "a", "queue_name": 1}', "bad_trigger"),
        (b'{"storage_account": "a", "queue_name": "b", "payload_size": true}', "bad_trigger"),
        (b'{"storage_account": "a", "queue_name": "b", "payload_size": 1.5}', "bad_trigger"),
        (b'{"storage_account": "a", "queue_name": "b", "payload_size": NaN}', "bad_json"),
        (b'{"storage_account": "a", "queue_name": "b", "payload_size": 1000001}', "bad_trigger"),
        (b'{"storage_account": "a", "queue_name": "b", "payload_size": ' + b"9" * 400 + b"}", "bad_trigger"),
        (b'{"storage_account": "a", "queue_name": "b", "not_before_ms": 604800001}', "bad_trigger"),
        (b'{"storage_account": "a", "queue_name": "b", "not_before_ms": -1}', "bad_trigger"),
        (b'{"storage_account": "a", "queue_name": "b", "id": "x\\r\\ny"}', "bad_trigger"),
        (b'{"storage_account": "a", "queue_name": "b\\n"}', "bad_queue_reference"),
        (b'{"storage_account": "a", "queue_name": "*"}', "bad_queue_reference"),
        (b'{"storage_account": "a.b", "queue_name": ">"}', "bad_queue_reference"),
        (b'{"storage_account": "", "queue_name": "b"}', "bad_queue_reference"),
        (b'{"x": ' + b"[" * 2000 + b"]" * 2000 + b"}", "bad_json"),
    ],
)
async def test_s8_a_faulty_trigger_is_told_its_fault(body: bytes, code: str) -> None:
    """S5, S8, S21: each fault has its code, and the connection stays good."""
    async with serving() as served, served.client() as client:
        await client.send(request("POST", "/v1/triggers", body, media=JSON))
        reply = await client.reply()
        assert (reply.status, reply.code) == (400, code)
        await client.send(request("GET", "/livez"))
        assert (await client.reply()).status == 200


async def test_unknown_fields_are_ignored_and_the_last_of_equal_keys_counts(served: Served) -> None:
    """A producer may be newer than the bridge."""
    body = b'{"storage_account":"a","queue_name":"x","queue_name":"b","new":{"deep":[1]}}'
    assert (await served.ask("POST", "/v1/triggers", body, media=JSON)).status == 202
    assert (await served.ask("GET", "/v1/queues/a/b")).json["triggers"] == 1
    assert (await served.ask("GET", "/v1/queues/a/x")).status == 404


@pytest.mark.parametrize("media", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
async def test_s8_another_content_type_is_415(media: str | None, served: Served) -> None:
    """A web form cannot make a trigger: its types are refused."""
    reply = await served.ask("POST", "/v1/triggers", json.dumps(ONE).encode(), media=media)
    assert (reply.status, reply.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize("media", ["application/json; charset=utf-8", "Application/JSON", "application/json ; x=y"])
async def test_parameters_and_case_of_the_content_type_do_not_matter(media: str, served: Served) -> None:
    """RFC 9110 8.3.1."""
    assert (await served.ask("POST", "/v1/triggers", json.dumps(ONE).encode(), media=media)).status == 202


@pytest.mark.parametrize(("query", "size"), [("", 1), ("?size=3", 3), ("?size=1000000", 1_000_000), ("?x=y", 1)])
async def test_a_trigger_can_be_all_address(query: str, size: int, served: Served) -> None:
    """``curl -X POST .../billing/orders?size=3``, whatever Content-Type curl says."""
    seen: list[int] = []
    trigger = served.bridge.trigger
    served.bridge.trigger = lambda events, *, bus, redelivered=False: (  # type: ignore[method-assign]
        seen.append(events[0].payload_size) or trigger(events, bus=bus)  # type: ignore[func-returns-value]
    )
    reply = await served.ask("POST", f"/v1/triggers/billing/orders{query}", b"", media="text/weird")
    assert (reply.status, reply.json) == (202, {"accepted": 1})
    assert seen == [size]


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


@pytest.mark.parametrize(
    "path", ["/v1/triggers/a./b", "/v1/triggers/a/b%0a", "/v1/triggers/../b", "/v1/triggers/a/%2F", "/v1/triggers//b"]
)
async def test_s5_names_that_are_no_tokens_are_refused(path: str, served: Served) -> None:
    """Before any subject is built of them."""
    reply = await served.ask("POST", path)
    assert (reply.status, reply.code) == (400, "bad_queue_reference")


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


async def test_a_chunked_trigger_is_taken() -> None:
    """Clients that stream do not say how long it will be."""
    async with serving() as served, served.client() as client:
        body = json.dumps(ONE).encode()
        await client.send(request("POST", "/v1/triggers", media=JSON, Transfer_Encoding="chunked"))
        for part in (body[:10], body[10:]):
            await client.send(b"%x\r\n%b\r\n" % (len(part), part))
        await client.send(b"0\r\n\r\n")
        assert (await client.reply()).json == {"accepted": 1}
        await client.send(request("GET", "/livez"))
        assert (await client.reply()).status == 200


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


async def test_s13_past_its_rate_the_queue_service_refuses_and_closes_only_what_is_unread() -> None:
    """Of puts it is counted; within the rate each call is served."""
    facts: list[Fact] = []
    puts = [("POST", "/messages"), ("PUT", "/messages/one")]
    async with serving(requests_per_second=0.001, request_burst=3) as served, served.client() as client:
        served.bridge.observe(facts.append)
        for method, path in (*puts, ("GET", "")):
            await client.send(request(method, f"/v1/queues/a/b{path}", b"x" if path else None))
            assert (await client.reply()).status in (200, 201)
        for method, path in (("GET", ""), *puts):
            await client.send(request(method, f"/v1/queues/a/b{path}"))
            reply = await client.reply()
            assert (reply.status, reply.code) == (429, "too_many_requests")
            assert int(reply.headers["retry-after"]) >= 1 and "connection" not in reply.headers
        await client.send(request("POST", "/v1/queues/a/b/messages", Content_Length="1"))
        assert (await client.reply()).headers["connection"] == "close"
    assert [fact.reason for fact in facts if isinstance(fact, PutRefused)] == ["rate"] * 3
