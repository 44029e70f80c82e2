"""The queue service's JSON API over HTTP."""

from __future__ import annotations

import json

from tests.support.web import JSON, Served, request, serving

ONE = {"storage_account": "billing", "queue_name": "orders", "payload_size": 3}


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
        before = served.bridge.scheduler.pending.find("billing/orders")
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
