"""Start and stop, health and state."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

from bridge.contract.errors import ConfigurationError, QueuebellError, StoreDamaged
from bridge.contract.wire import SUBPROTOCOL
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.http.server.sockets import bind
from bridge.service.bridge import Bridge
from tests.support.web import Served, request, serving


async def test_a_taken_port_is_an_oserror(served: Served) -> None:
    """The command makes one clear line of it."""
    async with Bridge() as bridge:
        second = WebServer(bridge, WebSettings(port=served.server.port))
        with pytest.raises(OSError, match="in use"):
            await second.start()
        await second.stop()


async def test_localhost_listens_on_all_its_addresses_at_one_port() -> None:
    """Also with port 0, where each address alone would get its own."""
    async with serving(host="localhost") as served:
        assert served.server.url == f"http://localhost:{served.server.port}"
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(each) for each in await bind("localhost", 0)]
        assert len({each.getsockname()[1] for each in bound}) == 1


async def test_stop_ends_though_connections_are_open() -> None:
    """Idle ones at once, sessions after the time-out; a request under way gets its answer."""
    bridge = Bridge()
    await bridge.start()
    server = WebServer(bridge, WebSettings(port=0, shutdown_timeout=0.2))
    await server.start()
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as http:
        async with http.get(server.url + "/livez") as reply:
            assert reply.status == 200
        async with http.ws_connect(server.url + "/v1/sessions", protocols=[SUBPROTOCOL]) as ws:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request("POST", "/v1/triggers/a/b", Content_Length="1"))
            await writer.drain()
            while not any(c.parsed and c.busy and not c.upgraded for c in server.connections.open):
                await asyncio.sleep(0)
            begun = loop.time()
            stopping = asyncio.create_task(server.stop(), name="stop")
            await asyncio.sleep(0)
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"x")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400")
            await stopping
            assert loop.time() - begun < 20.0
            assert (await ws.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
            writer.close()
    await server.stop()
    await bridge.stop()


async def test_health_readiness_and_metrics(served: Served) -> None:
    """What supervisors and scrapers ask."""
    assert (await served.ask("GET", "/livez")).status == 200
    assert (await served.ask("GET", "/healthz")).status == 200
    ready = await served.ask("GET", "/readyz")
    assert (ready.status, ready.json["ready"]) == (200, True)
    assert all({"ok", "detail"} <= set(check) for check in ready.json["checks"].values())
    await served.ask("POST", "/v1/triggers/a/b")
    metrics = await served.ask("GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert b'queuebell_triggers_total{bus="http"} 1.0' in metrics.body
    assert (await served.ask("GET", "/v1/listeners")).json == {"listeners": []}


async def test_readyz_is_503_while_the_store_is_broken(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    """And every other route goes on."""
    monkeypatch.setattr(served.bridge.store, "failure", lambda: "disk I/O error")
    reply = await served.ask("GET", "/readyz")
    assert (reply.status, reply.json["ready"]) == (503, False)
    assert (await served.ask("GET", "/livez")).status == 200


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


async def test_a_session_is_served_and_listed() -> None:
    """The route hands over to the channel."""
    async with serving() as served, aiohttp.ClientSession() as http:
        async with http.ws_connect(served.server.url + "/v1/sessions", protocols=[SUBPROTOCOL]) as ws:
            await ws.send_json(
                {"type": "hello", "instance": "0" * 32, "listener": "me", "queues": [{"queue": "a/b", "capacity": 1}]}
            )
            assert (await ws.receive_json())["type"] == "welcome"
            listeners = (await served.ask("GET", "/v1/listeners")).json["listeners"]
            assert [listener["listener"] for listener in listeners] == ["me"]
