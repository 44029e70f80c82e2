"""Overload is answered 429 before memory is gone, and nothing that was acknowledged is lost by it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queuebell.bridge.access.put_gate import PUT_BYTES, SLOW_AFTER_S, PutGate
from queuebell.bridge.contract.errors import Overloaded
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server import body
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.service.bridge import Bridge, BridgeSettings
from tests.support.azure import ACCOUNT, Front, fault, message, serving_azure, signed_headers
from tests.support.web import Client, Reply, Served, request
from tests.support.writers import standing

# Private: `_reading_pause`, `_reading_pause_ended`: which connections are not read, and an end to that before its time.

QUEUE = "/v1/queues/billing/orders"
BODY = b"x" * 1000
TAKEN = len(BODY) + PUT_BYTES


class Paused:
    """A served bridge whose writer can be made to stand still before it commits, and whose gate's clock can jump."""

    def __init__(self, bridge: Bridge, go: threading.Event) -> None:
        self.bridge = bridge
        self.rule = bridge.gate.rule
        self._go = go
        self._go.set()
        self._ahead = 0.0
        bridge.gate = PutGate(self.rule, lambda: bridge.now() + self._ahead, bridge.metrics)
        server = WebServer(bridge, WebSettings(port=0, shutdown_timeout=0.2))
        self.served = Served(bridge, server)

    def pause(self) -> None:
        """Commit nothing from now on."""
        self._go.clear()

    def resume(self) -> None:
        """Commit again."""
        self._go.set()

    def later(self, seconds: float) -> None:
        """Make time pass for those that wait."""
        self._ahead += seconds

    async def put(self, number: int, body: bytes = BODY) -> Reply:
        """Put one message; the rule's bound is checked at each answer."""
        reply = await self.served.ask("PUT", f"{QUEUE}/messages/m{number}", body)
        assert self.rule.bytes <= self.rule.bytes_max
        return reply

    async def until_waiting(self, count: int) -> None:
        """Wait until so many puts wait for the store, by asking for what does not pass the gate."""
        while self.rule.waiting < count:
            assert (await self.served.ask("GET", "/livez")).status == 200


@contextlib.asynccontextmanager
async def pausing(tmp_path: Path, **settings: int) -> AsyncIterator[Paused]:
    bridge = Bridge(tmp_path, settings=BridgeSettings(**settings))
    with standing() as go:
        paused = Paused(bridge, go)
        async with bridge, paused.served.server:
            try:
                yield paused
            finally:
                paused.resume()


async def test_a_store_that_is_behind_refuses_puts_and_nothing_else(tmp_path: Path) -> None:
    """By both doors, until it is through; receives and settlements wait their turn."""
    async with pausing(tmp_path, put_wait_ms=400) as paused, serving_azure(paused.bridge) as front:
        assert (await front.ask("PUT", "/orders")).status == 201
        held = (await paused.put(0)).json["messages"][0]
        paused.pause()
        waiting = asyncio.create_task(paused.put(1), name="put")
        await paused.until_waiting(1)
        paused.later(2.5)
        refused = await paused.served.call("messages", {"messages": [{"body": "x"}]})
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "too_many_requests", "3")
        assert (await paused.put(2)).status == 429
        busy = await front.ask("POST", "/orders/messages", message("x"))
        assert (fault(busy), busy.headers["retry-after"]) == ((503, "ServerBusy"), "3")
        async with HttpStore(paused.served.server.url) as store:
            with pytest.raises(Overloaded) as answered:
                await store.put("billing/orders", [NewMessage(b"x")])
        assert answered.value.retry_after == 3.0
        await told(paused, waiting=1)
        calls = [
            asyncio.create_task(paused.served.call("receive", {}), name="call"),
            asyncio.create_task(paused.served.call("settle", {"delete": [claim_of(held)]}), name="call"),
            asyncio.create_task(front.ask("GET", "/orders/messages"), name="call"),
        ]
        paused.resume()
        assert [reply.status for reply in await asyncio.gather(*calls)] == [200, 200, 200]
        assert (await waiting).status == 201
        # The newest answer took long, but nobody waits any more.
        assert (await paused.put(2)).status == 201
        assert (await front.ask("POST", "/orders/messages", message("x"))).status == 201
        paused.later(10.0)
        ready = (await paused.served.ask("GET", "/readyz")).json
        assert ready["checks"]["intake"]["detail"] == "triggers are accepted"


def claim_of(receipt: dict[str, str]) -> dict[str, str]:
    """Return the claim that a put's receipt gives."""
    return {"id": receipt["id"], "pop_receipt": receipt["pop_receipt"]}


async def told(paused: Paused, *, waiting: int) -> None:
    """Check that state and metrics say what is going on, and that the bridge is ready all the same."""
    ready = await paused.served.ask("GET", "/readyz")
    assert ready.status == 200
    intake = ready.json["checks"]["intake"]
    assert intake["ok"]
    # Time passes by itself as well: 2.5 s on a machine that has nothing else to do.
    said = f"puts were rejected with 429 in the last 5 s; now {waiting} wait for the store, for about 2[.][5-9] s"
    assert re.search(said, intake["detail"])
    metrics = (await paused.served.ask("GET", "/metrics")).body.decode()
    assert 'queuebell_puts_refused_total{reason="wait"} 4.0' in metrics


async def test_whoever_was_refused_is_not_read_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a flood would be answered instead of carried out; other connections are served, and this one later."""
    monkeypatch.setattr(body, "READING_PAUSE_S", 1000.0)
    async with pausing(tmp_path, put_wait_ms=400) as paused, paused.served.client() as client:
        paused.pause()
        waiting = asyncio.create_task(paused.put(1), name="put")
        await paused.until_waiting(1)
        paused.later(2.5)
        await client.send(request("PUT", QUEUE + "/messages/a", BODY))
        assert (await client.reply()).status == 429
        await client.send(request("GET", "/livez"))
        resting = [each for each in paused.served.server.connections.open if each._reading_pause is not None]
        assert len(resting) == 1 and (await paused.served.ask("GET", "/livez")).status == 200
        for each in resting:
            each._reading_pause_ended()
        assert (await client.reply()).status == 200
        paused.resume()
        assert (await waiting).status == 201


async def test_slow_senders_keep_nobody_out(tmp_path: Path) -> None:
    """Bodies that do not come take half of the room, do not count as waiting, and give it back when they break off.

    Of those that came too slowly for a while the oldest gives way, at whichever door it is.
    """
    bound = 4 * TAKEN
    async with pausing(tmp_path, put_waiting_bytes=bound, put_wait_ms=400) as paused:
        head = request("PUT", QUEUE + "/messages/a", Content_Length="1000")
        async with contextlib.AsyncExitStack() as stack:
            front = await stack.enter_async_context(serving_azure(paused.bridge))
            await front.ask("PUT", "/orders")
            slow = [await stack.enter_async_context(paused.served.client()) for _ in range(2)]
            for client in slow:
                await client.send(head + b"x")
            while paused.rule.bytes < 2 * TAKEN:
                await paused.served.ask("GET", "/livez")
            client = await stack.enter_async_context(paused.served.client())
            await client.send(head)
            assert (await client.reply()).status == 429
            assert (await paused.put(1)).status == 201
            paused.later(SLOW_AFTER_S)
            azure = await stack.enter_async_context(azure_client(front))
            await azure.send(azure_put(front)[:-1])
            left = await slow[0].reply()
            assert (left.status, left.code, left.headers["retry-after"]) == (429, "too_many_requests", "1")
            assert left.headers["connection"] == "close"
            paused.later(SLOW_AFTER_S)
            client = await stack.enter_async_context(paused.served.client())
            await client.send(head)
            assert (await slow[1].reply()).status == 429
            paused.later(SLOW_AFTER_S)
            last = await stack.enter_async_context(paused.served.client())
            await last.send(head)
            busy = await azure.reply()
            assert (fault(busy), busy.headers["retry-after"]) == ((503, "ServerBusy"), "1")
            await last.send(BODY)
            assert (await last.reply()).status == 201
            # One that comes fast enough stays.
            assert paused.rule.bytes == TAKEN
        while paused.rule.bytes:
            await paused.served.ask("GET", "/livez")


def azure_put(front: Front) -> bytes:
    """Return the bytes of a put at the Azure endpoint."""
    body, target = message("x"), f"/{ACCOUNT}/orders/messages"
    signed = signed_headers("POST", target, body, {}, front.wall())
    return request("POST", target, body, **{name.replace("-", "_"): value for name, value in signed.items()})


@contextlib.asynccontextmanager
async def azure_client(front: Front) -> AsyncIterator[Client]:
    """Open a connection to the Azure endpoint."""
    client = Client(*await asyncio.open_connection("127.0.0.1", front.server.port))
    try:
        yield client
    finally:
        await client.close()
