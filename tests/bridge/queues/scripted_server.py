"""An HTTP server that answers as a test says, counts what it was asked, and can hang up instead of answering."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web


class HangUp(Exception):
    """Raised by an answering function: the connection is dropped after the request was read."""


Answering = Callable[[web.Request, bytes], web.Response]


class ScriptedServer:
    """One server on a free port; an async context manager. ``asked`` holds method and path of every request."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self.asked: list[tuple[str, str]] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(self._application(), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        return application

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked.append((request.method, request.path))
        try:
            return self._answering(request, body)
        except HangUp:
            request.transport.abort()
            return web.Response()
