"""The queue service's JSON API over HTTP."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from tests.support.web import JSON, Served

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z").fullmatch
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


async def test_a_message_goes_in_and_comes_out(served: Served) -> None:
    """Put, receive, delete, with exactly the fields that are promised."""
    (receipt,) = await put(served, "héllo")
    assert set(receipt) == {"id", "pop_receipt", "visible_in_ms"}
    assert receipt["visible_in_ms"] == 0
    answer = await take(served)
    assert set(answer) == {"messages", "depth", "next_visible_in_ms", "next_delayed_in_ms"}
    (message,) = answer["messages"]
    assert set(message) == {"id", "pop_receipt", "body", "dequeue_count", "inserted_at", "expires_at"}
    assert (message["id"], message["body"], message["dequeue_count"]) == (receipt["id"], "héllo", 1)
    assert message["expires_at"] is None
    assert TIME(message["inserted_at"])
    assert answer["depth"] == {"visible": 0, "invisible": 1}
    assert 0 < answer["next_visible_in_ms"] <= 31_000
    assert answer["next_delayed_in_ms"] is None, "a lease is no delay"
    claim = {"id": message["id"], "pop_receipt": message["pop_receipt"]}
    settled = (await served.call("settle", {"delete": [claim, claim]})).json
    assert settled == {
        "delete": [{"ok": True}, {"ok": False, "code": "message_not_found"}],
        "release": [],
        "extend": [],
    }
    empty = await take(served)
    assert empty == {
        "messages": [],
        "depth": {"visible": 0, "invisible": 0},
        "next_visible_in_ms": None,
        "next_delayed_in_ms": None,
    }


@pytest.mark.parametrize("body", [b"", b"text", "ünï".encode(), b"\xff\x00", b"\x00", bytes(range(256))])
async def test_any_body_comes_back_as_it_was_put(body: bytes, served: Served) -> None:
    """As text where it is UTF-8, else in base64, whichever way it was put."""
    in_json = {"messages": [{"body_base64": base64.b64encode(body).decode()}]}
    assert (await served.call("messages", in_json)).status == 201
    raw = await served.ask("POST", QUEUE + "/messages", body, media="application/octet-stream")
    assert raw.status == 201
    for message in (await take(served, max=2))["messages"]:
        if "body" in message:
            assert message["body"].encode() == body
        else:
            assert base64.b64decode(message["body_base64"]) == body
            with pytest.raises(UnicodeDecodeError):
                body.decode()


async def test_every_other_content_type_is_one_raw_message(served: Served) -> None:
    """Also none at all; a web form's JSON is not looked into."""
    for media in ("text/plain", "application/x-www-form-urlencoded", "application/xml; a=b", None):
        reply = await served.ask("POST", QUEUE + "/messages", b'{"messages": []}', media=media)
        assert (reply.status, len(reply.json["messages"])) == (201, 1)
    assert {m["body"] for m in (await take(served, max=32))["messages"]} == {'{"messages": []}'}


async def test_a_put_is_its_own_trigger(served: Served) -> None:
    """The number put is the trigger's payload size, and the queue is made."""
    await put(served, "a", "b", "c")
    state = (await served.ask("GET", QUEUE)).json
    assert set(state) == {
        "queue", "exists", "paused", "depth", "depth_age_ms", "depth_at_least", "gen", "dirty", "sessions", "wakes",
        "receives", "wake_sources", "triggers", "unattended", "oldest_ms", "jobs", "unannounced",
        "leased", "delayed", "buried", "buried_age_ms", "untold",
    }  # fmt: skip
    assert (state["queue"], state["exists"], state["dirty"]) == ("billing/orders", True, True)
    assert state["depth"] == {"visible": 3, "invisible": 0}
    assert state["receives"] == {"total": 0, "empty": 0}
    await served.ask("GET", QUEUE + "/peek")
    assert (await served.ask("GET", QUEUE)).json["receives"] == {"total": 0, "empty": 0}
    await take(served, max=32)
    await take(served)
    assert (await served.ask("GET", QUEUE)).json["receives"] == {"total": 2, "empty": 1}


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


async def test_headers_are_said_where_there_are_some(served: Served) -> None:
    """As they were put, names in lower case; in a receive and in a peek, and absent from all other messages."""
    headers = {"Trace": "<b>\u202egrün", "empty": "", "full": "x" * 8000}
    assert (
        await served.call("messages", {"messages": [{"body": "a", "headers": headers}, {"body": "b"}]})
    ).status == 201
    wanted = {"trace": headers["Trace"], "empty": "", "full": headers["full"]}
    for reply in (await served.ask("GET", QUEUE + "/peek"), await served.call("receive", {"max": 2})):
        one, other = reply.json["messages"]
        assert one["headers"] == wanted
        assert "headers" not in other


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


async def test_release_and_extend(served: Served) -> None:
    """A release makes visible at once or later; an extension gives a new receipt and perhaps a new body."""
    await put(served, "a", "b")
    one, two = (await take(served, max=2))["messages"]
    claims = [{"id": m["id"], "pop_receipt": m["pop_receipt"]} for m in (one, two)]
    reply = await served.call(
        "settle",
        {
            "release": [{**claims[0], "after_ms": 60_000}],
            "extend": [{**claims[1], "visibility_timeout_s": 60, "body": "changed"}],
        },
    )
    answer = reply.json
    assert answer["release"][0]["ok"] is True
    extended = answer["extend"][0]
    assert extended["ok"] is True
    assert extended["pop_receipt"] != two["pop_receipt"]
    stale = (await served.call("settle", {"delete": [claims[1]]})).json
    assert stale["delete"] == [{"ok": False, "code": "pop_receipt_mismatch"}]
    again = {"id": two["id"], "pop_receipt": extended["pop_receipt"], "after_ms": 0}
    assert (await served.call("settle", {"release": [again]})).json["release"][0]["ok"] is True
    (message,) = (await take(served, max=32))["messages"]
    assert (message["body"], message["dequeue_count"]) == ("changed", 2)


async def test_delays_and_time_to_live(served: Served) -> None:
    """``visible_after_ms`` hides, ``ttl_s`` ends, -1 never does."""
    (receipt,) = await put(served, "later", visible_after_ms=60_000)
    assert 59_000 < receipt["visible_in_ms"] <= 60_001
    answer = await take(served)
    assert answer["messages"] == []
    assert answer["depth"] == {"visible": 0, "invisible": 1}
    assert 0 < answer["next_visible_in_ms"] <= 60_001
    await put(served, "mortal", ttl_s=100)
    await put(served, "immortal", ttl_s=-1)
    mortal, immortal = (await take(served, max=2))["messages"]
    assert TIME(mortal["expires_at"])
    assert immortal["expires_at"] is None


async def test_peek_takes_nothing(served: Served) -> None:
    """And shows no receipt."""
    await put(served, "a", "b", "c")
    for path in ("/peek", "/peek?max=2"):
        messages = (await served.ask("GET", QUEUE + path)).json["messages"]
        assert [m["body"] for m in messages] == ["a", "b", "c"][: 3 if path == "/peek" else 2]
        assert set(messages[0]) == {"id", "body", "dequeue_count", "inserted_at", "expires_at"}
    assert len((await take(served, max=32))["messages"]) == 3


async def test_queues_are_made_listed_and_removed(served: Served) -> None:
    """PUT is 201 once and 204 then; DELETE is 204 whether or not it stood; pages follow ``next``."""
    names = [f"billing/q{n}" for n in range(5)]
    for name in (*names, "other/x"):
        assert (await served.ask("PUT", f"/v1/queues/{name}")).status == 201
    assert (await served.ask("PUT", f"/v1/queues/{names[0]}", b'{"metadata":{"a":"b"}}', media=JSON)).status == 204
    assert (await served.ask("GET", "/v1/queues")).json == {"queues": [*names, "other/x"], "next": None}
    seen: list[str] = []
    after = ""
    while after is not None:
        page = (await served.ask("GET", f"/v1/queues?prefix=billing/&limit=2&after={after}")).json
        seen += page["queues"]
        after = page["next"]
    assert seen == names
    exact = (await served.ask("GET", "/v1/queues?prefix=billing/&limit=5")).json
    assert (len(exact["queues"]), exact["next"]) == (5, None)
    for _ in range(2):
        reply = await served.ask("DELETE", "/v1/queues/other/x")
        assert (reply.status, reply.body) == (204, b"")
    assert "other/x" not in (await served.ask("GET", "/v1/queues")).json["queues"]


async def test_clear_empties_and_keeps_the_queue(served: Served) -> None:
    """DELETE of its messages."""
    await put(served, "a", "b")
    assert (await served.ask("DELETE", QUEUE + "/messages")).status == 204
    assert (await take(served))["depth"] == {"visible": 0, "invisible": 0}


async def test_an_unknown_queue_is_404_but_its_request_is_checked_first(served: Served) -> None:
    """A listener takes it for an empty receive; a faulty request is a fault all the same."""
    for reply in (
        await served.call("receive", {}),
        await served.call("settle", {}),
        await served.ask("GET", QUEUE + "/peek"),
        await served.ask("GET", QUEUE),
        await served.ask("DELETE", QUEUE + "/messages"),
    ):
        assert (reply.status, reply.code) == (404, "queue_not_found")
    for reply in (
        await served.call("receive", {"max": 0}),
        await served.call("settle", {"delete": [{"id": 1}]}),
        await served.ask("GET", QUEUE + "/peek?max=x"),
    ):
        assert (reply.status, reply.code) == (400, "bad_parameter")


async def test_a_receive_without_a_body_has_the_defaults(served: Served) -> None:
    """``curl -X POST .../receive``."""
    await put(served, "a", "b")
    reply = await served.ask("POST", QUEUE + "/receive")
    assert len(reply.json["messages"]) == 1


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
    ("call", "body", "known"),
    [
        ("POST receive", {"limit": 8}, ": max, visibility_timeout_s, wake_source"),
        ("POST messages", {"messages": [{"body": "a"}], "ttl": 5}, ": messages"),
        (
            "POST messages",
            {"messages": [{"body": "a", "ttl": 5}]},
            r" at $.messages[0].*: body, body_base64, visible_a",
        ),
        ("PUT messages/one", {"body": "a", "ttl": 5}, ": body, body_base64, visible_after_ms, ttl_s, headers"),
        ("POST settle", {"deletes": []}, ": delete, release, extend"),
        ("POST settle", {"delete": [{"id": "a", "pop_receipt": "b", "c": 1}]}, " at $.delete[0].*: id, pop_receipt"),
        ("POST settle", {"release": [{"id": "a", "pop_receipt": "b", "after": 1}]}, r" at $.release[0].*after_ms, unc"),
        (
            "POST settle",
            {"extend": [{"id": "a", "pop_receipt": "b", "visibility_timeout_s": 5, "x": 1}]},
            "extend[0].*",
        ),
        ("PUT ", {"meta": {}}, ": metadata"),
        ("POST pause", {"for_s": 60}, ": none"),
        ("POST resume", {"for_s": 60}, ": none"),
        ("POST replay", {"id": "a"}, ": ids, reason, max"),
        ("POST discard", {"id": "a"}, ": ids, reason, max"),
    ],
)
async def test_an_unknown_field_is_answered_with_the_known_ones(
    call: str, body: dict[str, Any], known: str, served: Served
) -> None:
    """A misspelt field would otherwise be a default: `{"limit": 8}` would take one message. It names no value."""
    await put(served, "here")
    method, _, path = call.partition(" ")
    media = "application/vnd.queuebell.message+json" if path == "messages/one" else JSON
    reply = await served.ask(method, f"{QUEUE}/{path}".rstrip("/"), json.dumps(body).encode(), media=media)
    assert (reply.status, reply.code) == (400, "bad_parameter")
    assert re.search("unknown field.*" + re.escape(known).replace(r"\.\*", ".*"), reply.json["detail"]), reply.json
    assert (await served.ask("GET", QUEUE)).json["depth"] == {"visible": 1, "invisible": 0}


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


async def test_three_mib_is_the_limit_of_a_put(served: Served) -> None:
    """A full batch fits in base64; one byte more than 3 MiB is told 413 before it is read."""
    full = {"messages": [{"body_base64": base64.b64encode(b"\xff" * 65_536).decode()}] * 32}
    assert (await served.call("messages", full)).status == 201
    async with served.client() as client:
        await client.send(
            f"POST {QUEUE}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
            f"Content-Length: {3 * 1024 * 1024 + 1}\r\n\r\n".encode()
        )
        reply = await client.reply()
        assert (reply.status, reply.code) == (413, "too_large")
    raw = await served.ask("POST", QUEUE + "/messages", b"x" * 65_537, media="text/plain")
    assert (raw.status, raw.code) == (413, "message_too_large")
