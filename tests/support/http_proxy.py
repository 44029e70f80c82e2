"""An HTTP proxy for tests that refuses single requests, or breaks their connections before or after the answer."""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import ClientSession, DummyCookieJar, web
from yarl import URL

SINGLE = {"connection", "content-encoding", "content-length", "date", "keep-alive", "server", "transfer-encoding"}
ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Fault(enum.Enum):
    """What becomes of one request."""

    REFUSED = "503, and nothing was done"
    UNHEARD = "the connection breaks before the request has come"
    UNANSWERED = "the connection breaks after it was carried out"


class Faults:
    """What becomes of the requests that count, in the order in which they come; later ones go well."""

    def __init__(self) -> None:
        self.planned: list[Fault | None] = []
        self.asked = self.met = 0

    def take(self) -> Fault | None:
        """Return what becomes of the next one."""
        self.asked += 1
        fault = self.planned.pop(0) if self.planned else None
        self.met += fault is not None
        return fault


class HttpProxy:
    """Carries requests to ``target``, those that ``counts`` says as ``faults`` plans; an async context manager."""

    def __init__(self, target: str, faults: Faults, counts: Callable[[web.BaseRequest], bool]) -> None:
        self._target = target.rstrip("/")
        self._faults = faults
        self._counts = counts
        self.port = 0

    async def __aenter__(self) -> Self:
        # A server of its own, no catch-all route: what is asked travels on to the letter.
        self._runner = web.ServerRunner(web.Server(self._pass_on), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._session = ClientSession(auto_decompress=False, cookie_jar=DummyCookieJar(), skip_auto_headers=ADDED)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _pass_on(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        fault = self._faults.take() if self._counts(request) else None
        if fault is Fault.REFUSED:
            return web.Response(status=503)
        if fault is Fault.UNHEARD:
            return _broken(request)
        to = URL(self._target + request.raw_path, encoded=True)
        headers = request.headers
        async with self._session.request(request.method, to, headers=headers, data=body or None) as answer:
            content = await answer.read()
        if fault is Fault.UNANSWERED:
            return _broken(request)
        kept = [(name, text) for name, text in answer.headers.items() if name.lower() not in SINGLE]
        return web.Response(status=answer.status, body=content, headers=kept)


def _broken(request: web.BaseRequest) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
