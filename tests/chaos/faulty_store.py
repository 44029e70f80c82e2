"""A queue service that fails on demand: an HTTP server in front of a real one, which carries requests and answers."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from tests.support.processes import Service

EMPTY = b'{"messages": [], "depth": {"visible": 0, "invisible": 0}, "next_visible_in_ms": null}'
PASSED_ON = ("Content-Type", "Authorization")
KEPT = ("Content-Type", "Queuebell-Boot", "Queuebell-Able", "Retry-After")


class FaultyStore:
    """Stands at ``url`` for ``service``; an async context manager. Faults hold for calls of the kind ``on``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.url = ""
        self.on = ("messages", "receive", "settle")
        """The last part of the paths that are hit."""
        self.script: list[int | str] = []
        """What becomes of the next calls, one each: a status; ``lose`` carries it out and drops the connection;
        ``hang`` carries it out and never answers; ``empty`` says that there is nothing, without asking."""
        self.forever: int | str | None = None
        """What becomes of all calls once the script is over."""
        self.answering = asyncio.Event()
        """Cleared: calls are carried out, and their answers wait."""
        self.answering.set()
        self.held = asyncio.Event()
        """Set while an answer waits."""
        self.hits = 0
        self._closing = asyncio.Event()
        self._client: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        app = web.Application(client_max_size=1 << 22)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None and self._client is not None
        self._closing.set()
        self.answering.set()
        await self._runner.cleanup()
        await self._client.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fate: int | str | None = None
        if request.path.rpartition("/")[2] in self.on:
            fate = self.script.pop(0) if self.script else self.forever
        if fate is not None:
            self.hits += 1
        if isinstance(fate, int):
            return web.Response(status=fate, headers={"Retry-After": "1"})
        if fate == "empty":
            return web.Response(body=EMPTY, content_type="application/json")
        answer = await self._carry(request, body)
        if fate == "lose":
            request.transport.abort()
        elif fate == "hang":
            await self._closing.wait()
        elif not self.answering.is_set():
            self.held.set()
            await self.answering.wait()
        return answer

    async def _carry(self, request: web.Request, body: bytes) -> web.Response:
        assert self._client is not None
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        url = self._service.url + request.path_qs
        async with self._client.request(request.method, url, data=body, headers=headers) as answer:
            kept = {name: answer.headers[name] for name in KEPT if name in answer.headers}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)
