"""``PUT /v1/queues/{account}/{queue}/messages/{id}``: a put that a client may send as often as it likes."""

from __future__ import annotations

import asyncio
import json

import pytest

from bridge.observe.facts import Fact, Triggered
from tests.support.web import JSON, Served, serving

QUEUE = "/v1/queues/billing/orders"
ID = QUEUE + "/messages/order-7"


@pytest.mark.usefixtures("parser")
async def test_the_first_is_201_and_every_other_204(served: Served) -> None:
    """With the answer of a POST and the address; also once the message was handled, and the worker sees the id."""
    made = await served.ask("PUT", ID, b"seven")
    assert (made.status, made.headers["location"]) == (201, ID)
    (receipt,) = made.json["messages"]
    assert set(receipt) == {"id", "pop_receipt", "visible_in_ms"}
    again = await served.ask("PUT", ID, b"seven")
    assert (again.status, again.body) == (204, b"")
    (seen,) = (await served.ask("GET", QUEUE + "/peek")).json["messages"]
    assert (seen["id"], seen["key"]) == (receipt["id"], "order-7")
    (message,) = (await served.call("receive", {})).json["messages"]
    assert (message["body"], message["key"]) == ("seven", "order-7")
    await served.call("settle", {"delete": [{"id": message["id"], "pop_receipt": message["pop_receipt"]}]})
    assert (await served.ask("PUT", ID, b"seven")).status == 204
    assert (await served.call("receive", {})).json["messages"] == []


async def test_another_body_is_a_conflict(served: Served) -> None:
    """A silent 204 would lose it."""
    await served.ask("PUT", ID, b"seven")
    reply = await served.ask("PUT", ID, b"eight")
    assert (reply.status, reply.code) == (409, "message_conflict")
    assert "another body was put under this id" in reply.json["detail"]
    strange = await served.ask("PUT", f"{QUEUE}/messages/-", b"nine")
    assert strange.json["detail"].startswith("an id is 1 to 128 of ")
    (message,) = (await served.call("receive", {})).json["messages"]
    assert message["body"] == "seven"


@pytest.mark.parametrize("media", [None, JSON, "text/plain", "application/octet-stream"])
async def test_the_body_is_the_message_whatever_its_type(media: str | None) -> None:
    """Also JSON that looks as a POST would have it: the path names one message, and the body is it."""
    raw = json.dumps({"messages": [{"body": "x"}]}).encode()
    async with serving() as served:
        assert (await served.ask("PUT", ID, raw, media=media)).status == 201
        (message,) = (await served.call("receive", {})).json["messages"]
        assert message["body"].encode() == raw


async def test_a_message_in_json_has_headers_too(served: Served) -> None:
    """By its own media type alone; what the query says counts before what stands there, and the limits are a POST's."""
    media = "Application/vnd.queuebell.message+json; charset=utf-8"
    said = {"body_base64": "/w==", "headers": {"Trace": "grün"}, "visible_after_ms": 60_000, "ttl_s": 60}
    raw = json.dumps(said).encode()
    assert (await served.ask("PUT", ID + "?visible_after_ms=0", raw, media=media)).status == 201
    assert (await served.ask("PUT", ID, b"\xff", media="text/plain")).status == 204
    (message,) = (await served.call("receive", {})).json["messages"]
    assert (message["body_base64"], message["headers"]) == ("/w==", {"trace": "grün"})
    assert message["expires_at"] is not None
    reply = await served.ask("PUT", QUEUE + "/messages/later?ttl_s=-1", raw, media=media)
    assert reply.json["messages"][0]["visible_in_ms"] == 60_000
    for wrong, status, code in (
        (b"", 400, "bad_json"),
        (b"{}", 400, "bad_parameter"),
        (b'{"body":"x","headers":{"a":"\\n"}}', 400, "bad_parameter"),
        (b'{"body":"x","headers":{"a":"' + b"x" * 8192 + b'"}}', 413, "message_too_large"),
        (b'{"body":"' + b"x" * 65_537 + b'"}', 413, "message_too_large"),
        (b" " * (3 * 1024 * 1024 + 1), 413, "message_too_large"),
    ):
        refused = await served.ask("PUT", QUEUE + "/messages/wrong", wrong, media=media)
        assert (refused.status, refused.code) == (status, code)
    assert (await served.ask("GET", QUEUE)).json["depth"] == {"visible": 0, "invisible": 2}


async def test_delay_and_time_to_live_are_in_the_query(served: Served) -> None:
    """As in a POST's fields; what is out of range is refused and makes no queue."""
    reply = await served.ask("PUT", ID + "?visible_after_ms=60000&ttl_s=-1", b"x")
    assert reply.json["messages"][0]["visible_in_ms"] == 60_000
    assert (await served.ask("PUT", QUEUE + "/messages/other?ttl_s=60", b"")).status == 201
    (message,) = (await served.call("receive", {})).json["messages"]
    assert message["expires_at"] is not None
    for query in ("visible_after_ms=-1", "visible_after_ms=x", "ttl_s=0", "visible_after_ms=604800001"):
        bad = await served.ask("PUT", f"/v1/queues/billing/none/messages/a?{query}", b"x")
        assert (bad.status, bad.code) == (400, "bad_parameter")
    assert (await served.ask("GET", "/v1/queues/billing/none")).status == 404


@pytest.mark.parametrize(("method", "path"), [("POST", "/messages"), ("PUT", "/messages/order-7")])
async def test_a_put_may_ask_for_a_queue_that_is_there(method: str, path: str, served: Served) -> None:
    """``create=false``: 404 and nothing made, for JSON and for bytes; any other word is refused."""
    for body in (b"x", b'{"messages": [{"body": "x"}]}'):
        missing = await served.ask(method, f"{QUEUE}{path}?create=false", body)
        assert (missing.status, missing.code) == (404, "queue_not_found")
    for word in ("", "no", "False", "0"):
        bad = await served.ask(method, f"{QUEUE}{path}?create={word}", b"x")
        assert (bad.status, bad.code) == (400, "bad_parameter")
    assert (await served.ask("GET", QUEUE)).status == 404
    await served.ask("PUT", QUEUE, b"")
    assert (await served.ask(method, f"{QUEUE}{path}?create=false", b"x")).status == 201
    assert (await served.ask(method, f"{QUEUE}{path}?create=true", b"x")).status == (201 if method == "POST" else 204)


async def test_how_long_the_oldest_has_waited(served: Served) -> None:
    """It stands in the state of a queue: null where nothing is visible."""
    await served.ask("PUT", QUEUE, b"")
    assert (await served.ask("GET", QUEUE)).json["oldest_ms"] is None
    await served.ask("PUT", ID, b"x")
    assert (await served.ask("GET", QUEUE)).json["oldest_ms"] >= 0
    await served.call("receive", {})
    assert (await served.ask("GET", QUEUE)).json["oldest_ms"] is None


@pytest.mark.parametrize(
    "id_",
    ["", "%", "%4", "%zz", "a%", "a%2Fb", "a%2fb", "..", "%2E%2E", "-a", "a%20b", "a%00", "%C3%A4", "%FF", "x" * 129],
)
async def test_an_id_out_of_form_is_refused(id_: str, served: Served) -> None:
    """Clearly, and without repeating it."""
    reply = await served.ask("PUT", f"{QUEUE}/messages/{id_}", b"x")
    assert (reply.status, reply.code) == (400, "bad_parameter")
    assert "128" in reply.json["detail"]
    assert not id_ or len(id_) < 5 or id_ not in reply.body.decode()
    assert (await served.ask("GET", QUEUE)).status == 404


async def test_an_id_may_be_percent_encoded(served: Served) -> None:
    """What an encoding client sends is the same id."""
    assert (await served.ask("PUT", f"{QUEUE}/messages/a%40b%3A1%7e", b"x")).headers["location"].endswith("/a@b:1~")
    assert (await served.ask("PUT", f"{QUEUE}/messages/a@b:1~", b"x")).status == 204


async def test_other_methods_and_longer_paths(served: Served) -> None:
    """There is nothing to GET here, and nothing below."""
    reply = await served.ask("GET", ID)
    assert (reply.status, reply.code, reply.headers["allow"]) == (405, "method_not_allowed", "PUT")
    assert (await served.ask("PUT", ID + "/more", b"x")).code == "not_found"
    assert (await served.ask("PUT", QUEUE + "/elsewhere/a", b"x")).code == "not_found"
    assert (await served.ask("PUT", QUEUE + "//a", b"x")).code == "not_found"


async def test_a_body_over_the_limit_is_told_as_such(served: Served) -> None:
    """Before it is read where its length says so, after it where it does not."""
    assert (await served.ask("PUT", ID, b"x" * 65_537)).code == "message_too_large"
    assert (await served.ask("PUT", ID, b"x" * 65_536)).status == 201
    chunks = b"10000\r\n" + b"x" * 65_536 + b"\r\n1\r\nx\r\n0\r\n\r\n"
    head = f"PUT {QUEUE}/messages/c HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await served.ask_raw(head.encode() + chunks)).code == "message_too_large"


async def test_of_many_at_once_one_is_201(served: Served) -> None:
    """Over connections of their own."""
    replies = await asyncio.gather(*(served.ask("PUT", ID, b"x") for _ in range(30)))
    assert sorted(reply.status for reply in replies) == [201] + [204] * 29


async def test_only_the_first_rings() -> None:
    """A 204 is no trigger."""
    facts: list[Fact] = []
    async with serving() as served:
        served.bridge.observe(facts.append)
        for _ in range(3):
            await served.ask("PUT", ID, b"x")
        await served.ask("PUT", ID, b"y")
    assert [fact.size for fact in facts if isinstance(fact, Triggered)] == [1]


async def test_a_stopping_bridge_takes_none(served: Served) -> None:
    """Also one that it knows: whether it does is not looked at any more."""
    await served.ask("PUT", ID, b"x")
    served.bridge.drain()
    reply = await served.ask("PUT", ID, b"x")
    assert (reply.status, reply.code) == (503, "draining")


async def test_how_many_are_remembered_is_shown(served: Served) -> None:
    """In the metrics."""
    await served.ask("PUT", ID, b"x")
    await served.ask("PUT", ID + "1", b"x")
    assert b"queuebell_put_keys 2.0" in (await served.ask("GET", "/metrics")).body


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("method", "path", "named"),
    [
        ("PUT", ID + "?ttl=3", "only create and visible_after_ms and ttl_s"),
        ("PUT", ID + "?ttl_s=3&ttl=3", "only create and visible_after_ms and ttl_s"),
        ("POST", QUEUE + "/messages?ttl_s=3", "only create"),
    ],
)
async def test_a_parameter_that_is_not_known_is_refused(method: str, path: str, named: str, served: Served) -> None:
    """A misspelt one would be a message that lives for ever; what is known is named, what was given is not."""
    reply = await served.ask(method, path, b"x", media="text/plain")
    assert (reply.status, reply.code) == (400, "bad_parameter")
    assert reply.json["detail"].endswith(f" {named}")
    assert (await served.ask("GET", QUEUE)).status == 404


async def test_without_a_body_it_is_an_empty_message(served: Served) -> None:
    """By both ways in that take the message as it is."""
    assert (await served.ask("PUT", ID)).status == 201
    assert (await served.ask("POST", QUEUE + "/messages")).status == 201
    seen = (await served.ask("GET", QUEUE + "/peek")).json["messages"]
    assert [message["body"] for message in seen] == ["", ""]
