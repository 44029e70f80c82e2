"""The Azure endpoint off the wire: statuses, headers, codes, and what no SDK would send."""

from __future__ import annotations

import base64
import hashlib
import re
from urllib.parse import quote

import pytest

from queuebell.bridge.http.azure.exchange import message_id
from queuebell.bridge.queues.base import NewMessage
from tests.support.azure import ACCOUNT, Front, fault, message, serving_azure, signed_headers
from tests.support.certificates import self_signed

pytestmark = pytest.mark.usefixtures("parser")

NO_MESSAGE = message_id("f" * 16)
TOO_LARGE = (413, "RequestBodyTooLarge")


async def test_statuses_of_a_queues_life(front: Front) -> None:
    """201, 204 for the same metadata, 409 for other, 204 for the end, 404 after it; in the history, like a clear."""
    for more, status in (({}, 201), ({}, 204), ({"x_ms_meta_a": "b"}, 409)):
        reply = await front.ask("PUT", "/orders", **more)
        assert reply.status == status
    assert fault(reply) == (409, "QueueAlreadyExists")
    await front.put("orders", "x")
    assert (await front.ask("DELETE", "/orders/messages")).status == 204
    assert (await front.ask("DELETE", "/orders")).status == 204
    assert fault(await front.ask("DELETE", "/orders")) == (404, "QueueNotFound")
    marks = front.bridge.history.read(f"{ACCOUNT}/orders", "5m").marks
    assert [mark.what for mark in marks] == ["bridge started", "emptied", "deleted"]
    for method, path, body in (
        ("GET", "/orders?comp=metadata", b""),
        ("PUT", "/orders?comp=metadata", b""),
        ("GET", "/orders?comp=acl", b""),
        ("PUT", "/orders?comp=acl", b""),
        ("GET", "/orders/messages", b""),
        ("GET", "/orders/messages?peekonly=true", b""),
        ("POST", "/orders/messages", message("x")),
        ("DELETE", "/orders/messages", b""),
        ("DELETE", f"/orders/messages/{NO_MESSAGE}?popreceipt=x", b""),
        ("PUT", f"/orders/messages/{NO_MESSAGE}?popreceipt=x&visibilitytimeout=0", message("x")),
    ):
        assert fault(await front.ask(method, path, body)) == (404, "QueueNotFound"), path
    assert await front.bridge.store.queues() == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/orders/messages?numofmessages=0", 400, "OutOfRangeQueryParameterValue"),
        ("GET", "/orders/messages?numofmessages=33", 400, "OutOfRangeQueryParameterValue"),
        ("GET", "/orders/messages?numofmessages=x", 400, "InvalidQueryParameterValue"),
        ("GET", "/orders/messages?numofmessages=%D9%A3", 400, "InvalidQueryParameterValue"),
        ("GET", "/orders/messages?visibilitytimeout=0", 400, "OutOfRangeQueryParameterValue"),
        ("GET", "/orders/messages?visibilitytimeout=604801", 400, "OutOfRangeQueryParameterValue"),
        ("GET", "/orders/messages?peekonly=true&numofmessages=33", 400, "OutOfRangeQueryParameterValue"),
        ("GET", "/orders/messages?peekonly=true&visibilitytimeout=9", 400, "UnsupportedQueryParameter"),
        ("GET", "/orders/messages?timeout=x", 400, "InvalidQueryParameterValue"),
        ("GET", "/orders/messages?comp=other", 400, "InvalidQueryParameterValue"),
        ("POST", "/orders/messages?messagettl=0", 400, "OutOfRangeQueryParameterValue"),
        ("POST", "/orders/messages?visibilitytimeout=604801", 400, "OutOfRangeQueryParameterValue"),
        ("POST", "/orders/messages?visibilitytimeout=10&messagettl=10", 400, "OutOfRangeQueryParameterValue"),
        ("POST", "/orders/messages", 400, "InvalidXmlDocument"),
        ("PUT", f"/orders/messages/{NO_MESSAGE}?visibilitytimeout=1", 400, "MissingRequiredQueryParameter"),
        ("PUT", f"/orders/messages/{NO_MESSAGE}?popreceipt=x", 400, "MissingRequiredQueryParameter"),
        ("PUT", f"/orders/messages/{NO_MESSAGE}?popreceipt=x&visibilitytimeout=1", 404, "MessageNotFound"),
        ("DELETE", f"/orders/messages/{NO_MESSAGE}", 400, "MissingRequiredQueryParameter"),
        ("DELETE", f"/orders/messages/{NO_MESSAGE}?popreceipt=x", 404, "MessageNotFound"),
        ("DELETE", "/orders/messages/no-id?popreceipt=x", 404, "MessageNotFound"),
        ("PATCH", "/orders/messages", 405, "UnsupportedHttpVerb"),
        ("GET", "/orders", 405, "UnsupportedHttpVerb"),
        ("GET", "/orders?comp=other", 400, "InvalidQueryParameterValue"),
        ("GET", "", 400, "MissingRequiredQueryParameter"),
        ("GET", "?comp=list&maxresults=5001", 400, "OutOfRangeQueryParameterValue"),
        ("GET", "?comp=list&include=other", 400, "InvalidQueryParameterValue"),
        ("GET", "?comp=list&marker=elsewhere", 400, "InvalidMarker"),
        ("GET", "?restype=service&comp=stats", 400, "InvalidQueryParameterValue"),
        ("OPTIONS", "/orders", 400, "InvalidHeaderValue"),
    ],
)
async def test_what_is_refused(method: str, path: str, status: int, code: str, front: Front) -> None:
    """Each with the status and the code of the service, and nothing changed."""
    await front.ask("PUT", "/orders")
    assert fault(await front.ask(method, path)) == (status, code)
    assert await front.get("orders") == []


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"])
async def test_conditions_are_not_ignored(header: str, front: Front) -> None:
    """The service has no conditional operation on queues; a client that counts on one is told."""
    await front.ask("PUT", "/orders")
    reply = await front.ask("GET", "/orders?comp=metadata", **{header.replace("-", "_"): '"etag"'})
    assert fault(reply) == (400, "ConditionHeadersNotSupported")


async def test_digest_of_a_body(front: Front) -> None:
    """A Content-MD5 that is right, wrong, or none at all."""
    await front.ask("PUT", "/orders")
    body = message("x")
    for given, expected in (
        (hashlib.md5(body).digest(), 201),
        (hashlib.md5(b"y").digest(), "Md5Mismatch"),
        (b"short", "InvalidMd5"),
    ):
        reply = await front.ask("POST", "/orders/messages", body, Content_MD5=base64.b64encode(given).decode())
        assert reply.status == 201 if expected == 201 else fault(reply) == (400, expected)
    assert len(await front.get("orders", "?numofmessages=32")) == 1


async def test_sizes(front: Front) -> None:
    """65,536 bytes of text whatever their escapes; one more, or a body past all bounds, is refused."""
    await front.ask("PUT", "/orders")
    text = "&" * 65_536
    raw = b"<QueueMessage><MessageText>" + b"&amp;" * 65_536 + b"</MessageText></QueueMessage>"
    assert (await front.ask("POST", "/orders/messages", raw)).status == 201
    (held,) = await front.get("orders")
    assert held.text == text
    for body in (message("x" * 65_537), message("\u00e9" * 32_769), b"x" * 500_000):
        reply = await front.ask("POST", "/orders/messages", body)
        assert fault(reply) == TOO_LARGE
        assert b"<MaxLimit>65536</MaxLimit>" in reply.body
    path = f"/orders/messages/{held.id}?popreceipt={held.receipt}&visibilitytimeout=5"
    assert fault(await front.ask("PUT", path, message("x" * 65_537))) == TOO_LARGE


async def test_an_update_answers_in_headers(front: Front) -> None:
    """204 with the new receipt and the time; a body is optional, and without one the text stays."""
    await front.ask("PUT", "/orders")
    await front.put("orders", "kept")
    (held,) = await front.get("orders")
    path = f"/orders/messages/{held.id}?popreceipt={quote(held.receipt)}&visibilitytimeout=0"
    reply = await front.ask("PUT", path)
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["x-ms-time-next-visible"].endswith(" GMT")
    (again,) = await front.get("orders")
    assert (again.text, again.count) == ("kept", 2)
    assert again.receipt != reply.headers["x-ms-popreceipt"] != held.receipt
    assert fault(await front.ask("PUT", path)) == (400, "PopReceiptMismatch")


async def test_old_versions_answer_as_they_did(front: Front) -> None:
    """Before 2016-05-31 a put has no body in its answer; before 2017-07-29 a week is the longest life."""
    await front.ask("PUT", "/orders")
    reply = await front.ask("POST", "/orders/messages", message("x"), x_ms_version="2015-12-11")
    assert (reply.status, reply.body) == (201, b"")
    reply = await front.ask("POST", "/orders/messages?messagettl=-1", message("x"), x_ms_version="2016-05-31")
    assert fault(reply) == (400, "OutOfRangeQueryParameterValue")
    reply = await front.ask("PUT", "/orders", x_ms_version="2099-01-01")
    assert fault(reply) == (400, "InvalidHeaderValue")


async def test_only_names_of_this_door_are_listed(front: Front) -> None:
    """Queues of other accounts, or with names that Azure has not, are left out, and pages go on past them."""
    for name in ("devstoreaccount1/Big_One", "devstoreaccount1/aaa", "devstoreaccount1/bbb", "other/ccc"):
        await front.bridge.store.create(name)
    first = await front.ask("GET", "?comp=list&maxresults=1")
    marker = re.search(b"<NextMarker>(.*)</NextMarker>", first.body)
    second = await front.ask("GET", f"?comp=list&maxresults=1&marker={quote(marker[1].decode())}")
    names = [re.findall(b"<Name>(.*?)</Name>", page.body) for page in (first, second)]
    assert names == [[b"aaa"], [b"bbb"]]
    assert b"<NextMarker />" in second.body
    assert re.findall(b"<Name>", (await front.ask("GET", "?comp=list&prefix=%C3%A9")).body) == []


async def test_a_life_of_any_length(front: Front) -> None:
    """Every positive number of seconds is taken; what is longer than the store counts lives until it is deleted."""
    await front.ask("PUT", "/orders")
    for life in (1, 604_801, 2**31, 2**53 - 1):
        reply = await front.ask("POST", f"/orders/messages?messagettl={life}", message("x"))
        assert reply.status == 201
        assert (b"9999" in reply.body) == (life > 2**30)
    for life in (0, -2):
        reply = await front.ask("POST", f"/orders/messages?messagettl={life}", message("x"))
        assert fault(reply) == (400, "OutOfRangeQueryParameterValue")


async def test_much_metadata_comes_back(front: Front) -> None:
    """Eight kilobytes of headers are allowed here; more is told as such."""
    more = {f"x_ms_meta_k{number}": "v" * 700 for number in range(11)}
    assert (await front.ask("PUT", "/orders", **more)).status == 201
    reply = await front.ask("GET", "/orders?comp=metadata")
    assert sum(name.startswith("x-ms-meta-") for name in reply.headers) == 11
    reply = await front.ask("PUT", "/orders?comp=metadata", **more, x_ms_meta_more="v" * 700)
    assert fault(reply) == (400, "MetadataTooLarge")


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /devstoreaccount1 HTTP/1.1\r\nHost: 127.0.0.1\r\nbad header\r\n\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET /devstoreaccount1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX : 1\r\n\r\n",
        b"GET /devstoreaccount1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX: \0\r\n\r\n",
        b"GET /devstoreaccount1 HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /devstoreaccount1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: +3\r\n\r\nabc",
        b"POST /devstoreaccount1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"POST /devstoreaccount1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n",
        b"POST /devstoreaccount1 HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_malformed_requests_are_told_in_xml(data: bytes, front: Front) -> None:
    status, _ = fault(await front.send(data))
    assert 400 <= status < 500
    assert (await front.ask("PUT", "/orders")).status == 201


async def test_draining_takes_no_puts(front: Front) -> None:
    """While the bridge stops a put is refused for another try; what is held can be deleted."""
    await front.ask("PUT", "/orders")
    await front.put("orders", "x")
    (held,) = await front.get("orders")
    front.bridge.draining = True
    reply = await front.ask("POST", "/orders/messages", message("y"))
    assert fault(reply) == (503, "ServerBusy")
    assert reply.headers["retry-after"] == "1"
    assert (await front.delete("orders", held)).status == 204


async def test_a_timeout_asked_for_ends_the_wait(monkeypatch: pytest.MonkeyPatch, front: Front) -> None:
    """The client's own time-out is kept by the server, which says that the outcome is unknown."""
    await front.ask("PUT", "/orders")

    async def late(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(front.bridge.store, "clear", late)
    assert fault(await front.ask("DELETE", "/orders/messages?timeout=5")) == (500, "OperationTimedOut")


async def test_https(tmp_path_factory: pytest.TempPathFactory) -> None:
    server, client = self_signed(tmp_path_factory.mktemp("tls"))
    async with serving_azure(tls=server) as front:
        assert front.server.url.startswith("https://")
        reply = await front.send(b"GET /devstoreaccount1/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", tls=client)
        assert fault(reply) == (400, "OutOfRangeInput")


async def test_puts_of_both_doors_meet(front: Front) -> None:
    """What the native interface put is received here, and the other way round."""
    store = front.bridge.store
    await store.put("devstoreaccount1/orders", [NewMessage(b"native")])
    assert [held.text for held in await front.get("orders")] == ["native"]
    await front.put("orders", "azure")
    (held,) = (await store.receive("devstoreaccount1/orders")).messages
    assert held.body == b"azure"


def request(front: Front, method: str, path: str, body: bytes = b"") -> bytes:
    target = f"/{ACCOUNT}{path}"
    lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{front.server.port}"]
    lines += [f"{name}: {value}" for name, value in signed_headers(method, target, body, {}, front.wall()).items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
