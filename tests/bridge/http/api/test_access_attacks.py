"""What strangers and former holders of keys try at a bridge that asks for them."""

from __future__ import annotations

import asyncio
import pathlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from bridge.core.admission import Ticket
from bridge.core.keys import AccessList, without
from bridge.http.server.overload.shed import Shed
from bridge.http.server.tls import Certificates
from bridge.observe.facts import AccessRefused
from bridge.service.access import access_file
from bridge.service.access.watch import AccessWatch
from tests.support.access import written
from tests.support.certificates import write_self_signed
from tests.support.web import JSON, Served, request, serving

GRANTS = {"producer": {"put": ["a/x"], "ring": ["a/x"]}, "worker": {"take": ["a/x"]}}
PUT = "/v1/queues/a/x/messages"


@pytest_asyncio.fixture
async def guarded(tmp_path: pathlib.Path) -> AsyncIterator[tuple[Served, dict[str, str], pathlib.Path]]:
    """A bridge that asks for keys."""
    path = tmp_path / "access.json"
    secrets = written(path, GRANTS)
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        yield served, secrets, path


def bearer(secret: str) -> dict[str, Any]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {secret}"}


async def test_the_puts_of_strangers_take_no_place(
    guarded: tuple[Served, dict[str, str], pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate hears of a put on its arrival only where its key is somebody's: a flood of wrong keys delays nobody."""
    served, secrets, _ = guarded
    given: list[bool] = []
    look = Shed.look

    def noted(self: Shed, data: bytes) -> Ticket | bytes | None:
        found = look(self, data)
        given.append(isinstance(found, Ticket))
        return found

    monkeypatch.setattr(Shed, "look", noted)
    wrong: list[dict[str, Any]] = [
        {},
        bearer("qb_" + "f" * 64),
        bearer("x.y.z"),
        {"Authorization": secrets["producer"]},
    ]
    for headers in wrong:
        answer = await served.ask("POST", PUT, b"x" * 1000, media="text/plain", **headers)
        assert answer.code == "unauthenticated"
    two = request("POST", PUT, b"x", media="text/plain", **bearer("qb_" + "f" * 64))
    two = two.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer " + secrets["producer"].encode() + b"\r\n\r\n")
    assert (await served.ask_raw(two)).code == "unauthenticated"
    in_body = b"\r\nAuthorization: Bearer " + secrets["producer"].encode() + b"\r\n"
    assert (await served.ask("POST", PUT, in_body, media="text/plain")).code == "unauthenticated"
    assert not any(given)
    assert served.bridge.gate.rule.bytes == 0
    answer = await served.ask("POST", PUT, b"x", media="text/plain", **bearer(secrets["producer"]))
    assert answer.status == 201
    assert given[-1]


@pytest.mark.parametrize("path", [PUT, PUT + "/k-1", "/v1/triggers"])
async def test_a_body_that_is_on_its_way_when_its_key_is_revoked(
    path: str, guarded: tuple[Served, dict[str, str], pathlib.Path]
) -> None:
    """It is refused, however long its sender keeps it open: nothing of a revoked key is accepted a second later."""
    served, secrets, file = guarded
    method = "PUT" if path.endswith("k-1") else "POST"
    media = JSON if path == "/v1/triggers" else "text/plain"
    whole = request(method, path, b"x" * 10, media=media, **bearer(secrets["producer"]))
    async with served.client() as client:
        await client.send(whole[:-9])
        # What was sent first is being read when this one is answered.
        assert (await served.ask("GET", "/livez")).status == 200
        access_file.change(file, lambda found: without(found, "producer")[0])
        refused = await client.reply()
    assert (refused.status, refused.code) == (401, "unauthenticated")
    assert served.bridge.describe("a/x") is None
    assert served.bridge.gate.rule.bytes == 0


async def test_the_slow_bodies_of_others_go_on(guarded: tuple[Served, dict[str, str], pathlib.Path]) -> None:
    """Somebody else's revocation, or a grant that stands, ends nothing."""
    served, secrets, file = guarded

    def other(found: AccessList) -> AccessList:
        return without(found, "worker")[0]

    whole = request("POST", PUT, b"x" * 10, media="text/plain", **bearer(secrets["producer"]))
    async with served.client() as client:
        await client.send(whole[:-9])
        access_file.change(file, other)
        async with asyncio.timeout(100):
            while (await served.ask("POST", "/v1/queues/a/x/receive", **bearer(secrets["worker"]))).status != 401:
                await asyncio.sleep(0.01)
        await client.send(whole[-9:])
        assert (await client.reply()).status == 201


@pytest.mark.parametrize(
    "target",
    [
        "/v1/queues/a%2Fy/x/receive",
        "/v1/queues/a/%78%2Fy/receive",
        "/v1/queues/a/%79/receive",
        "/v1/queues/%61/y/receive",
        "/v1/queues/a/x%00/receive",
        "/v1/queues/a/x/../y/receive",
        "/v1/queues/a/x%2F..%2Fy/receive",
        "/v1/queues/a/y/receive?queue=a/x",
        "/v1/queues/a/y/receive#/v1/queues/a/x/receive",
        "/v1/queues/a/x;/../y/receive",
        "//v1/queues/a/x/receive",
        "/V1/queues/a/x/receive",
        "http://127.0.0.1/v1/queues/a/y/receive",
        "http://127.0.0.1/v1/queues/a/%79/receive",
        "http://127.0.0.1?/v1/queues/a/x/receive",
        "HTTP://127.0.0.1/v1/queues/a/y/receive",
        "/livez/../v1/queues/a/y/receive",
        "/v1/queues/a/y/receive/",
    ],
)
async def test_no_spelling_of_a_queue_gets_past_the_check(
    target: str, guarded: tuple[Served, dict[str, str], pathlib.Path]
) -> None:
    """What is checked is what is served, however the address is written; a/y is not granted and is never given out."""
    served, secrets, _ = guarded
    await served.bridge.store.put("a/y", [b"secret"])
    answer = await served.ask("POST", target, b"{}", media=JSON, **bearer(secrets["worker"]))
    assert answer.status in (400, 403, 404, 405, 421), answer
    assert b"secret" not in answer.body
    depth = await served.bridge.store.depth("a/y")
    assert depth is not None
    assert depth.visible == 1


async def test_a_granted_queue_written_with_percent_signs_is_granted(
    guarded: tuple[Served, dict[str, str], pathlib.Path],
) -> None:
    """The other side of the same: the decoded name is what counts."""
    served, secrets, _ = guarded
    await served.bridge.store.put("a/x", [b"m"])
    answer = await served.ask("POST", "/v1/queues/%61/%78/receive", b"{}", media=JSON, **bearer(secrets["worker"]))
    assert answer.status == 200
    assert b'"m"' in answer.body


async def test_who_may_not_look_cannot_tell_what_is_there(
    guarded: tuple[Served, dict[str, str], pathlib.Path],
) -> None:
    """The answer about a queue that is not granted is the same whether it exists or not, byte by byte but its name."""
    served, secrets, _ = guarded
    await served.bridge.store.put("a/y", [b"m"])
    for method, suffix in (
        ("GET", ""),
        ("GET", "/peek"),
        ("GET", "/explain"),
        ("PUT", ""),
        ("DELETE", ""),
        ("POST", "/receive"),
        ("POST", "/settle"),
        ("POST", "/pause"),
        ("POST", "/messages?create=false"),
        ("PUT", "/messages/k?create=false"),
    ):
        there, not_there = [
            await served.ask(method, f"/v1/queues/a/{name}{suffix}", b"{}", media=JSON, **bearer(secret))
            for name, secret in (("y", secrets["producer"]), ("z", secrets["producer"]))
        ]
        assert (there.status, there.body) == (403, not_there.body.replace(b"a/z", b"a/y")), suffix
    listing = await served.ask("GET", "/v1/queues", **bearer(secrets["worker"]))
    assert listing.status == 403
    for path in ("/readyz", "/livez", "/healthz"):
        assert b"a/y" not in (await served.ask("GET", path)).body


async def test_a_stranger_cannot_have_a_large_body_read(
    guarded: tuple[Served, dict[str, str], pathlib.Path],
) -> None:
    """It is refused by its head, with or without a length, and no room for bodies is taken."""
    served, _, _ = guarded
    for head in (
        b"Content-Length: 3000000",
        b"Transfer-Encoding: chunked",
        b"Content-Length: 3000000\r\nExpect: 100-continue",
    ):
        async with served.client() as client:
            await client.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % (PUT.encode(), head))
            answer = await client.reply()
            assert (answer.code, answer.headers["connection"]) == ("unauthenticated", "close")
            await client.rest()
    assert served.bridge.gate.rule.bytes == 0


async def test_the_key_stands_in_no_answer_log_or_metric(
    guarded: tuple[Served, dict[str, str], pathlib.Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither one that is granted nor one that is wrong; no address of a request is written to the log (S17)."""
    served, secrets, _ = guarded
    canary = "qb_" + "c" * 64
    caplog.set_level("DEBUG")
    for secret in (canary, secrets["worker"]):
        for target in ("/metrics", f"/metrics?access_token={secret}", "/v1/queues/a/x"):
            answer = await served.ask("GET", target, **bearer(secret))
            assert secret.encode() not in answer.body
    metrics = served.bridge.metrics.render()
    for secret in (canary, secrets["worker"]):
        assert secret not in caplog.text
        assert secret.encode() not in metrics


@pytest.mark.parametrize("clients_show_one", [False, True])
async def test_who_never_ends_a_handshake_takes_a_quarter(clients_show_one: bool, tmp_path: pathlib.Path) -> None:
    """Connections that say nothing before TLS stands are counted and bounded; whoever speaks is served beside them."""
    cert, key = write_self_signed(tmp_path)
    certificates = Certificates(str(cert), str(key), "tls", str(cert) if clients_show_one else None)
    async with serving(tls=certificates.current, connections=40) as served:
        silent = [await asyncio.open_connection("127.0.0.1", served.server.port) for _ in range(30)]
        try:
            async with asyncio.timeout(100):
                turned_away = [reader for reader, _ in silent[10:]]
                for reader in turned_away:
                    try:
                        assert await reader.read() == b""
                    except ConnectionError:
                        pass
        finally:
            for _, writer in silent:
                writer.close()
        trusting = ssl.create_default_context(cafile=str(cert))
        async with asyncio.timeout(100):
            while True:
                try:
                    async with served.client(ssl=trusting) as client:
                        await client.send(request("GET", "/livez"))
                        assert (await client.reply()).status == 200
                        break
                except (ConnectionError, ssl.SSLError):
                    await asyncio.sleep(0.01)


async def test_a_queue_too_many_in_a_hello_is_told_as_any_refusal_is(
    guarded: tuple[Served, dict[str, str], pathlib.Path],
) -> None:
    """It is counted, and the log says whose it was; over a broker it is so as well."""
    served, secrets, _ = guarded
    told: list[AccessRefused] = []
    served.bridge.observe(lambda fact: told.append(fact) if isinstance(fact, AccessRefused) else None)
    hello = {"type": "hello", "instance": "1" * 32, "listener": "l", "queues": [{"queue": "a/y", "capacity": 1}]}
    async with aiohttp.ClientSession(headers=bearer(secrets["worker"])) as client:
        async with client.ws_connect(f"{served.server.url}/v1/sessions", protocols=("queuebell.v1",)) as session:
            await session.send_json(hello)
            assert (await session.receive_json())["code"] == "forbidden"
    assert [(each.reason, each.principal, each.verb, each.queue, each.address) for each in told] == [
        ("forbidden", "worker", "take", "a/y", "127.0.0.1")
    ]
    rejected = served.bridge.bell.rejections.recent(served.bridge.now())
    assert [(each.queue, each.listener, each.code) for each in rejected] == [("a/y", "l", "forbidden")]
