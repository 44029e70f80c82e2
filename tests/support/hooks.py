"""Targets for webhooks on free ports, and webhooks that may reach them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web
from cloudevents.core.bindings import http as sdk
from standardwebhooks import Webhook

from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.http.webhooks.settings import WebhookSettings
from queuebell.bridge.http.webhooks.shell import Webhooks
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.service.state.answers import ListenerState

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Got:
    """One request as it came in."""

    def __init__(self, request: web.BaseRequest, body: bytes) -> None:
        self.method = request.method
        self.path = request.path
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        self.body = body

    def verify(self) -> dict[str, Any]:
        """Check signature and form with the official libraries; the wake is returned."""
        Webhook(SECRET).verify(self.body, self.headers)
        event = sdk.from_http_event(sdk.HTTPMessage({"content-type": self.headers["content-type"]}, self.body))
        data = event.get_data()
        assert isinstance(data, dict)
        assert event.get_id() == self.headers["webhook-id"] == f"{data['boot']}:{data['gen']}"
        assert event.get_subject() == data["queue"]
        return data


class Receiver:
    """A target on a free port: it consents and takes everything, unless told otherwise."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.consent: dict[str, str] = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "*"}
        self.consent_status = 200
        self.answer: Answer = self._taken
        self.port = 0
        self._arrived = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def posts(self) -> list[Got]:
        return [got for got in self.got if got.method == "POST"]

    async def until(self, count: int, method: str = "POST") -> list[Got]:
        """Wait for so many requests, and return them."""
        async with asyncio.timeout(200):
            while len(found := [got for got in self.got if got.method == method]) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return found

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.got.append(Got(request, await request.read()))
        self._arrived.set()
        if request.method == "OPTIONS":
            return web.Response(status=self.consent_status, headers=self.consent)
        return await self.answer(request)

    async def _taken(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=204)


@contextlib.asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    runner = web.ServerRunner(web.Server(made.serve), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()


def hook(url: str, queue: str = "a/b", **options: Any) -> WebhookSettings:
    """An entry that may reach a test's own target."""
    return WebhookSettings(
        url=url, queue=queue, **{"secret": SECRET, "allow_private": True, "allow_http": True, **options}
    )


@contextlib.asynccontextmanager
async def hooked(
    *entries: WebhookSettings, own: tuple[str, int] | None = None, **options: Any
) -> AsyncIterator[tuple[Bridge, Webhooks]]:
    async with Bridge() as bridge:
        webhooks = Webhooks(bridge, entries, draw=lambda: 0.0, **options)
        await webhooks.start(own)
        try:
            yield bridge, webhooks
        finally:
            await webhooks.stop()
            await webhooks.stop()


def mark(bridge: Bridge, queue: str = "a/b", size: int = 1, trace: str | None = None) -> int:
    account, name = queue.split("/")
    bridge.trigger([CloudQueueWorkDetected(account, name, size, traceparent=trace)], bus="test")
    return bridge.newest(queue)[0]


async def state(webhooks: Webhooks, wanted: str) -> ListenerState:
    """Wait until the first endpoint is in a state, and return its row."""
    async with asyncio.timeout(200):
        while (row := webhooks.rows()[0]).state != wanted:
            await asyncio.sleep(0.01)
    return row
