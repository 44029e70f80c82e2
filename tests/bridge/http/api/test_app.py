"""Start and stop, health and state, sizes, draining."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from aiohttp.web import HTTPBadRequest, RequestPayloadError

from queuebell.bridge.contract.errors import (
    BadInput,
    BadQueueReference,
    Closed,
    ConfigurationError,
    Overloaded,
    QueuebellError,
    QueueNotFound,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from queuebell.bridge.contract.wire import Drain, Hello, Subscription
from queuebell.bridge.http.api import queues
from queuebell.bridge.http.api.routes import Unread, refusal_of
from queuebell.bridge.queues.embedded import engine
from queuebell.bridge.queues.http.store import MESSAGE_TYPE
from tests.support.web import JSON, Served, request, serving


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ZeroDivisionError, 500, "internal"),
        (ConfigurationError, 500, "internal"),
        (ConnectionRefusedError, 500, "internal"),
        (StoreDamaged, 503, "storage_unavailable"),
    ],
)
async def test_a_fault_of_our_own_is_told_without_detail(
    error: type[Exception],
    status: int,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    served: Served,
) -> None:
    """The traceback goes to the log, not to the client, who learns at most that the store failed."""

    def broken(*_: object) -> None:
        raise error("secret")

    monkeypatch.setattr(served.bridge, "describe", broken)
    reply = await served.ask("GET", "/v1/queues/a/b")
    assert (reply.status, reply.code) == (status, code)
    assert ("connection" in reply.headers) is not issubclass(error, QueuebellError)
    assert b"secret" not in reply.body
    assert error.__name__ in caplog.text


@pytest.mark.parametrize(
    ("error", "code", "status", "retry_after", "detail"),
    [
        (BadInput("bad_json", "said"), "bad_json", 400, None, "said"),
        (BadInput("too_many_requests", "said"), "too_many_requests", 429, 1, "said"),
        (BadInput("of our own", "said"), "of our own", 400, None, "said"),
        (BadQueueReference("said"), "bad_queue_reference", 400, None, "said"),
        (QueueNotFound("hidden"), "queue_not_found", 404, None, "no such queue"),
        (StoreFull("hidden"), "storage_full", 507, 5, "storage is full"),
        (UnknownOutcome("hidden"), "internal", 500, None, "may have been carried out"),
        (Unsupported("said"), "unsupported", 501, None, "said"),
        (Closed("hidden"), "draining", 503, 1, "stopping"),
        (Overloaded("said"), "too_many_requests", 429, 1, "said"),
        (Overloaded("said", 0.0), "too_many_requests", 429, 1, "said"),
        (Overloaded("said", 2.1), "too_many_requests", 429, 3, "said"),
        (Unread("said"), "too_many_requests", 503, 2, "said"),
        (StoreUnavailable("hidden"), "storage_unavailable", 503, 1, "cannot do that now"),
        (RequestPayloadError("hidden"), "bad_parameter", 400, None, "malformed"),
        (HTTPBadRequest(text="hidden"), "bad_parameter", 400, None, "handshake"),
    ],
)
def test_what_is_told_of_an_error(
    error: Exception, code: str, status: int, retry_after: int | None, detail: str
) -> None:
    """Its code, its status and when to come again; its own words only where they are ours, and for its sender."""
    told = refusal_of(error)
    assert told is not None
    assert (told.code, told.status, told.retry_after) == (code, status, retry_after)
    assert detail in told.detail and "hidden" not in told.detail
    assert told.close is isinstance(error, RequestPayloadError), "what follows a malformed body is no request"


async def test_s32_a_bridge_is_no_target_of_a_webhook(served: Served) -> None:
    """Or a webhook that puts on a queue with a webhook would go round for ever."""
    for path in ("/v1/triggers", "/v1/queues/a/b/messages"):
        reply = await served.ask("POST", path, b"{}", media=JSON, Queuebell_Hop="1")
        assert (reply.status, reply.code) == (403, "forbidden_origin")


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


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/v1/queues?limit=x", None, "bad_parameter"),
        ("GET", "/v1/queues?limit=1001", None, "bad_parameter"),
        ("PUT", "/v1/queues/a/b/messages/%ff", b"x", "bad_parameter"),
        ("PUT", "/v1/queues/a/b/messages/a%2fb", b"x", "bad_parameter"),
        ("POST", "/v1/queues/a/b/messages", b'{"messages": [{"body": "\xff"}]}', "bad_json"),
        ("POST", "/v1/queues/a/b/messages", b"{", "bad_json"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_its_code(
    method: str, path: str, body: bytes | None, code: str, served: Served
) -> None:
    reply = await served.ask(method, path, body, media=JSON)
    assert (reply.status, reply.code) == (400, code)


async def test_a_name_may_be_encoded_in_part_and_a_list_has_them_all(served: Served) -> None:
    for path in ("/v1/queues/bil%6cing/orders", "/v1/queues/billing/m%61il", "/v1/queues/shop/cart"):
        assert (await served.ask("PUT", path)).status == 201
    assert (await served.ask("GET", "/v1/queues")).json["queues"] == ["billing/mail", "billing/orders", "shop/cart"]
    assert (await served.ask("GET", "/v1/queues?prefix=billing/o")).json["queues"] == ["billing/orders"]
    assert (await served.ask("GET", "/v1/queues?after=billing/orders")).json["queues"] == ["shop/cart"]


@pytest.mark.parametrize(("ttl", "expires"), [("", False), ("?ttl_s=60", True), ("?ttl_s=-1", False)])
async def test_a_put_under_an_id_expires_when_it_says(ttl: str, expires: bool, served: Served) -> None:
    assert (await served.ask("PUT", f"/v1/queues/a/b/messages/one{ttl}", b"x")).status == 201
    (message,) = (await served.ask("GET", "/v1/queues/a/b/peek")).json["messages"]
    assert (message["key"], message["expires_at"] is not None) == ("one", expires)


async def test_messages_are_shown_by_their_state(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait, are delayed and are leased, page by page, and each by its id; pages that find little go on."""
    monkeypatch.setattr(engine, "_BROWSED_MAX", 3)
    items = [{"body": f"now {number}"} for number in range(5)]
    items += [{"body": f"later {number}", "visible_after_ms": 60_000 + number} for number in range(5)]
    await served.ask("POST", "/v1/queues/a/b/messages", json.dumps({"messages": items}).encode(), media=JSON)
    await served.ask("PUT", "/v1/queues/a/b/messages/order-17?visible_after_ms=90000", b"seventeen")
    await served.ask("POST", "/v1/queues/a/b/receive", b'{"max": 2}', media=JSON)
    found: dict[str, list[str]] = {}
    for state in ("waiting", "later", "running"):
        after: str | None = ""
        while after is not None:
            reply = await served.ask("GET", f"/v1/queues/a/b/peek?state={state}&max=2&after={after}")
            assert reply.status == 200 and len(reply.json["messages"]) <= 2
            for message in reply.json["messages"]:
                found.setdefault(state, []).append(message["body"])
                alone = (await served.ask("GET", f"/v1/queues/a/b/messages/{message['id']}")).json
                assert (alone["id"], alone["state"], alone["body"]) == (message["id"], state, message["body"])
                assert ("visible_in_ms" in alone) == ("visible_in_ms" in message) == (state != "waiting")
                assert "pop_receipt" not in alone
            after = reply.json.get("next")
    later = [f"later {number}" for number in range(5)]
    waiting = [f"now {number}" for number in (2, 3, 4)]
    assert found == {"waiting": waiting, "later": [*later, "seventeen"], "running": ["now 0", "now 1"]}
    newest = (await served.ask("GET", "/v1/queues/a/b/peek?newest=true&max=1")).json["messages"]
    assert [message["body"] for message in newest] == ["now 4"]
    assert (await served.ask("GET", "/v1/queues/a/b/messages/order-17")).json["body"] == "seventeen"
    for target, code in (
        ("a/b/messages/order-18", "message_not_found"),
        ("a/none/messages/order-17", "queue_not_found"),
        ("a/none/peek?state=later", "queue_not_found"),
        ("a/b/messages/%20", "bad_parameter"),
        ("a/b/peek?state=gone", "bad_parameter"),
        ("a/b/peek?newest=yes", "bad_parameter"),
        ("a/b/peek?after=1", "bad_parameter"),
    ):
        assert (await served.ask("GET", f"/v1/queues/{target}")).code == code, target


async def test_one_message_is_discarded_unless_a_worker_has_it(served: Served) -> None:
    for key, delay in (("waits", 0), ("late", 60_000), ("leased", 0)):
        await served.ask("PUT", f"/v1/queues/a/b/messages/{key}?visible_after_ms={delay}", b"x")
    await served.ask("POST", "/v1/queues/a/b/receive", b'{"max": 1}', media=JSON)
    assert (await served.ask("DELETE", "/v1/queues/a/b/messages/waits")).code == "conflict"
    for key in ("late", "leased"):
        assert (await served.ask("DELETE", f"/v1/queues/a/b/messages/{key}")).status == 204
    for target, code in (("late", "message_not_found"), ("waits?x=1", "bad_parameter"), ("%20", "bad_parameter")):
        assert (await served.ask("DELETE", f"/v1/queues/a/b/messages/{target}")).code == code
    assert (await served.ask("DELETE", "/v1/queues/a/none/messages/late")).code == "queue_not_found"
    (waits,) = (await served.ask("GET", "/v1/queues/a/b/peek?state=running")).json["messages"]
    await served.ask("PUT", f"/v1/queues/a/b/messages/{waits['id']}", b"x")
    for query, code in (("", "bad_parameter"), ("?by=key", "bad_parameter"), ("?by=id", "conflict")):
        assert (await served.ask("DELETE", f"/v1/queues/a/b/messages/{waits['id']}{query}")).code == code
    await served.ask("DELETE", "/v1/queues/a/b/messages")
    await served.ask("PUT", "/v1/queues/a/b/messages/0000000000000099", b"x")
    gone = await served.ask("DELETE", "/v1/queues/a/b/messages/0000000000000099?by=id")
    assert gone.code == "message_not_found"
    assert (await served.ask("GET", "/v1/queues/a/b")).json["depth"] == {"visible": 1, "invisible": 0}


async def test_the_query_of_a_put_hides_no_fault_of_its_body(served: Served) -> None:
    for item, status in (("-1", 400), ("5", 201)):
        body = b'{"body": "x", "visible_after_ms": %s}' % item.encode()
        target = f"/v1/queues/a/b/messages/n{item}?visible_after_ms=367"
        assert (await served.ask("PUT", target, body, media=MESSAGE_TYPE)).status == status


async def test_a_queue_has_a_history(served: Served) -> None:
    """What was put and received, and what somebody did to it; only of queues that the bridge knows."""
    await served.ask("POST", "/v1/queues/a/b/messages", b"x", media="text/plain")
    await served.ask("POST", "/v1/queues/a/b/receive", b'{"max": 1}', media=JSON)
    for action in ("pause", "resume"):
        await served.ask("POST", f"/v1/queues/a/b/{action}")
    await served.ask("DELETE", "/v1/queues/a/b/messages")
    for span, step_s in (("5m", 5), ("1h", 60), ("1d", 900), ("7d", 3600)):
        past = (await served.ask("GET", f"/v1/queues/a/b/history?span={span}")).json
        assert (past["span"], past["step_s"]) == (span, step_s)
        assert sum(row.get("put", 0) for row in past["rows"]) == sum(row["receives"] for row in past["rows"]) == 1
        assert [mark["what"] for mark in past["marks"]] == ["bridge started", "paused", "resumed", "emptied"]
    for target, code in (("a/none/history", "queue_not_found"), ("a/b/history?span=2h", "bad_parameter")):
        assert (await served.ask("GET", f"/v1/queues/{target}")).code == code


async def test_a_queue_is_watched(served: Served) -> None:
    await served.ask("PUT", "/v1/queues/a/b/messages/one", b"x")
    assert (await served.ask("GET", "/v1/queues/a/b/events")).json["events"] == []
    await served.ask("PUT", "/v1/queues/a/b/messages/two", b"x")
    await served.ask("DELETE", "/v1/queues/a/b/messages/two")
    found = (await served.ask("GET", "/v1/queues/a/b/events?after=0")).json
    assert [(each["n"], each["what"]) for each in found["events"]] == [(1, "put"), (2, "discarded")]
    assert (await served.ask("GET", "/v1/queues/a/b/events?id=two")).json["events"] == found["events"]
    leased = (await served.ask("POST", "/v1/queues/a/b/receive", b"{}", media=JSON)).json["messages"][0]["id"]
    for name in ("one", leased):
        (event,) = (await served.ask("GET", f"/v1/queues/a/b/events?id={name}")).json["events"]
        assert (event["what"], event["id"]) == ("received", leased)
    for number in range(10):
        await served.ask("PUT", f"/v1/queues/a/w{number}")
        reply = await served.ask("GET", f"/v1/queues/a/w{number}/events")
    assert reply.code == "too_many_requests"
    for target, code in (("none/events", "queue_not_found"), ("b/events?after=x", "bad_parameter")):
        assert (await served.ask("GET", f"/v1/queues/a/{target}")).code == code


async def test_only_a_worker_that_knows_how_is_drained(served: Served) -> None:
    """One of an older version would connect again, and a scaler ends by itself."""
    kinds: tuple[dict[str, Any], ...] = ({}, {"kind": "scaler"}, {"drains": True})
    for number, more in enumerate(kinds):
        link = await served.bridge.local_channel().connect()
        link.send(Hello(f"{number}" * 32, "one", [Subscription("a/b", 1, own=True)], **more))
    for number, code in ((0, "conflict"), (1, "conflict"), (3, "not_found")):
        reply = await served.ask("POST", f"/v1/listeners/drain?instance={f'{number}' * 32}")
        assert reply.code == code
    assert (await served.ask("POST", f"/v1/listeners/drain?instance={'2' * 32}")).status == 204
    while not isinstance(frame := await link.receive(), Drain):
        assert frame is not None
    assert frame.worker


async def test_messages_are_searched(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """By body, key, header and id, page by page, a bounded number of them a call."""
    monkeypatch.setattr(queues, "SEARCHED_MAX", 64)
    for start in range(0, 200, 20):
        items = [
            {"body": f"order {number}", "headers": {"tenant": "acme" if number % 7 == 0 else "other"}}
            for number in range(start, start + 20)
        ]
        await served.ask("POST", "/v1/queues/a/b/messages", json.dumps({"messages": items}).encode(), media=JSON)
    await served.ask("PUT", "/v1/queues/a/b/messages/key-199", b"\xff\x00by key")
    for text, found in (
        ("order%2019", [19, *range(190, 200)]),
        ("acme", [number for number in range(200) if number % 7 == 0]),
        ("key-19", [None]),
        ("%C3%BF", []),
        (f"{201:016x}", [None]),
    ):
        seen, after, calls = [], "", 0
        while after is not None:
            reply = (await served.ask("GET", f"/v1/queues/a/b/peek?contains={text}&max=5&after={after}")).json
            calls += 1
            assert len(reply["messages"]) <= 5
            seen += [message.get("body") for message in reply["messages"]]
            after = reply.get("next")
        assert seen == [None if number is None else f"order {number}" for number in found], text
        assert calls <= 4 + len(found) // 5 + 1
    assert (await served.ask("GET", f"/v1/queues/a/b/peek?contains={'x' * 201}")).code == "bad_parameter"


async def test_large_messages_are_shown_in_several_answers(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "PEEK_BYTES_MAX", 150_000)
    for number in range(4):
        await served.ask("PUT", f"/v1/queues/a/b/messages/n-{number}?visible_after_ms=60000", b"x" * 60_000)
    keys, after = [], ""
    while after is not None:
        answer = (await served.ask("GET", f"/v1/queues/a/b/peek?state=later&after={after}")).json
        assert len(answer["messages"]) == 2
        keys += [message["key"] for message in answer["messages"]]
        after = answer.get("next")
    assert keys == [f"n-{number}" for number in range(4)]


async def test_as_many_triggers_are_accepted_as_were_sent(served: Served) -> None:
    event = {"specversion": "1.0", "type": "CloudQueueWorkDetected", "source": "/s", "subject": "a/b"}
    for media, sent in (
        (JSON, [{"storage_account": "a", "queue_name": name} for name in "bcd"]),
        ("application/cloudevents-batch+json", [{**event, "id": id_} for id_ in "123"]),
    ):
        reply = await served.ask("POST", "/v1/triggers", json.dumps(sent).encode(), media=media)
        assert (reply.status, reply.json) == (202, {"accepted": 3})
    assert (await served.ask("POST", "/v1/triggers/a/b?size=2", b"")).json == {"accepted": 1}
    assert (await served.ask("POST", "/v1/triggers/a/b", b"x")).code == "bad_trigger"


async def test_a_bridge_that_is_not_ready_says_when_to_ask_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "retry-after" not in (await served.ask("GET", "/readyz")).headers
    broken = msgspec.structs.replace(served.bridge.readiness(), ready=False)
    monkeypatch.setattr(served.bridge, "readiness", lambda: broken)
    reply = await served.ask("GET", "/readyz")
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")


async def test_findings_name_work_without_a_worker(served: Served) -> None:
    await served.ask("POST", "/v1/queues/a/b/messages", b"x")
    assert [row["queue"] for row in (await served.ask("GET", "/v1/findings")).json["unattended"]] == ["a/b"]
