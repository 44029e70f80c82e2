"""Host, Origin, methods, routes, encodings: what every request has to pass (S5 to S19)."""

from __future__ import annotations

import gzip
import json
import pathlib
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.limits import BURST_MAX, RATE_MAX, RATE_MIN
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.answer import Answer
from queuebell.bridge.http.server.settings import WebSettings, check_settings
from queuebell.bridge.service.bridge import Bridge
from tests.support.access import written
from tests.support.web import JSON, Served, request, serving

PERIODS = ("header_timeout", "body_timeout", "write_timeout", "keepalive_timeout", "stream_comment")
ROUTES = [
    ("POST", "/v1/triggers"),
    ("POST", "/v1/triggers/a/b"),
    ("GET", "/v1/sessions"),
    ("GET", "/v1/listeners"),
    ("GET", "/v1/queues"),
    ("GET", "/v1/queues/a/b"),
    ("PUT", "/v1/queues/a/b"),
    ("DELETE", "/v1/queues/a/b"),
    ("POST", "/v1/queues/a/b/messages"),
    ("DELETE", "/v1/queues/a/b/messages"),
    ("POST", "/v1/queues/a/b/receive"),
    ("POST", "/v1/queues/a/b/settle"),
    ("GET", "/v1/queues/a/b/peek"),
    ("GET", "/livez"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/"),
    ("GET", "/nowhere"),
    ("OPTIONS", "/v1/triggers"),
]


async def test_an_absolute_target_agrees_with_host(served: Served) -> None:
    """RFC 9112 3.2.2: it is to be accepted, but is no way around the check of Host."""
    assert (await served.ask("GET", "http://localhost/livez", Host="localhost")).status == 200
    reply = await served.ask("GET", "http://evil.example/livez", Host="localhost")
    assert (reply.status, reply.code, reply.headers["connection"]) == (421, "unknown_host", "close")
    assert (await served.ask("GET", "http://evil.example/livez", Host="evil.example")).status == 421


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"port": -1}, {"port": 0}),
        ({"port": 65536}, {"port": 65535}),
        *(({f"{key}": value}, {f"{key}": 0.001}) for key in PERIODS for value in (0.0, -1.0, float("nan"))),
        ({"connections": 0}, {"connections": 1}),
        *(
            ({"requests_per_second": rate}, {"requests_per_second": fine})
            for rate, fine in ((RATE_MIN / 2, RATE_MIN), (RATE_MAX * 2, RATE_MAX), (float("nan"), 1.0))
        ),
        *(
            ({"requests_per_second": 1.0, "request_burst": burst}, {"requests_per_second": 1.0, "request_burst": fine})
            for burst, fine in ((0, 1), (BURST_MAX + 1, BURST_MAX))
        ),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_key(wrong: dict[str, Any], right: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"^({'|'.join((*wrong, 'listen'))}): "):
        check_settings(WebSettings(**wrong))
    check_settings(WebSettings(**right))


async def test_a_name_below_localhost_is_this_machine(served: Served) -> None:
    """Browsers and resolvers take every such name there (RFC 6761)."""
    assert (await served.ask("GET", "/livez", Host="bridge.localhost")).status == 200
    assert (await served.ask("GET", "/livez", Host="localhost.example")).status == 421


async def test_an_answer_without_content_has_no_length(served: Served) -> None:
    """RFC 9110 8.6; a proxy may refuse it."""
    reply = await served.ask("DELETE", "/v1/queues/a/b")
    assert reply.status == 204 and not {"content-length", "content-type"} & set(reply.headers)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"POST /v1/triggers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", 415, "unsupported_media_type"),
        (b"GET /%b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n" % (b"x" * 9000), 414, "uri_too_long"),
        (
            b"POST /v1/triggers HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            501,
            "unsupported_media_type",
        ),
    ],
)
async def test_a_refusal_before_the_body_ends_the_connection(
    sent: bytes, status: int, code: str, served: Served
) -> None:
    """What follows would be read as the next request."""
    reply = await served.ask_raw(sent)
    assert (reply.status, reply.code, reply.headers["connection"]) == (status, code, "close")


async def test_a_wrong_key_before_the_body_ends_the_connection(tmp_path: pathlib.Path) -> None:
    written(tmp_path / "access.json", {"shop": {"put": ["a/*"]}})
    head = request("POST", "/v1/queues/a/b/messages", b"x" * 9, Authorization="Bearer x")[:-9]
    async with AccessWatch(tmp_path / "access.json") as watch, serving(access=watch) as served:
        reply = await served.ask_raw(head)
    assert (reply.status, reply.code, reply.headers["connection"]) == (401, "unauthenticated", "close")


def test_the_date_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    dates = []
    for moment in (1_800_000_000.0, 1_800_000_000.9, 1_800_000_001.0):
        monkeypatch.setattr("time.time", lambda now=moment: now)
        (line,) = [line for line in Answer(200).encode(b"").split(b"\r\n") if line.startswith(b"Date: ")]
        dates.append(parsedate_to_datetime(line[6:].decode()).timestamp())
    assert dates == [1_800_000_000.0, 1_800_000_000.0, 1_800_000_001.0]


async def test_a_public_address_can_be_insisted_on() -> None:
    async with serving(host="0.0.0.0", insecure_public=True) as served:
        assert served.server.url.startswith("http://127.0.0.1:")
        assert (await served.ask("GET", "/livez")).status == 200


async def test_s18_a_wrong_method_is_405_with_allow(served: Served) -> None:
    for method, path, allow in (
        ("GET", "/v1/triggers", "POST"),
        ("TRACE", "/v1/triggers", "POST"),
        ("OPTIONS", "/v1/triggers/a/b", "POST"),
        ("PATCH", "/v1/queues/a/b", "DELETE, GET, HEAD, PUT"),
        ("GET", "/v1/queues/a/b/messages", "DELETE, POST"),
        ("GET", "/v1/queues/a/b/receive", "POST"),
        ("POST", "/livez", "GET, HEAD"),
        ("POST", "/v1/sessions", "GET"),
        ("PURGE", "/metrics", "GET, HEAD"),
    ):
        reply = await served.ask(method, path)
        assert (reply.status, reply.code, reply.headers["allow"]) == (405, "method_not_allowed", allow)
    assert (await served.ask("OPTIONS", "*")).status == 404
    assert (await served.ask("CONNECT", "localhost:80")).status in (400, 404)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity", "x"])
async def test_s7_an_encoded_body_is_415_and_never_inflated(encoding: str, parser: str, served: Served) -> None:
    body = gzip.compress(json.dumps({"storage_account": "a", "queue_name": "b"}).encode())
    reply = await served.ask("POST", "/v1/triggers", body, media=JSON, Content_Encoding=encoding)
    assert (reply.status, reply.code, reply.headers["connection"]) == (415, "unsupported_media_type", "close")


async def test_every_answer_tells_the_boot_and_forbids_guessing(served: Served) -> None:
    replies = [await served.ask(method, path) for method, path in ROUTES]
    replies.append(await served.ask_raw(b"nonsense\r\n\r\n"))
    for reply in replies:
        assert reply.headers["queuebell-boot"] == served.bridge.boot
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "server" not in reply.headers


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org"])
async def test_a_public_address_is_refused_without_authentication(host: str) -> None:
    """Only ``insecure_public`` listens where others reach it (S41)."""
    with pytest.raises(ConfigurationError, match="insecure"):
        WebServer(Bridge(), WebSettings(host=host))
