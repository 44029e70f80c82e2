"""A server that answers as a test says, over HTTP or over wires, and can hang up instead of answering."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from queuebell.bridge.contract.calls import CARRIES, WINDOW, decode_call, encode_answer
from queuebell.bridge.contract.wire import SUBPROTOCOL, Ready, encode_frame


class HangUp(Exception):
    """Raised by an answering function: the connection is dropped after the request was read."""


Answering = Callable[[web.Request, bytes], web.Response]


class ScriptedServer:
    """One server on a free port; an async context manager. ``asked`` holds method and path of every request.

    With ``wire`` it opens wires and is asked over them; else it opens none, or has ``sessions`` answered as well.
    """

    def __init__(self, answering: Answering, *, wire: bool = False, sessions: bool = False) -> None:
        self._answering = answering
        self._wire = wire
        self._sessions = sessions
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

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/sessions" and not self._sessions:
            return await self._calls(request) if self._wire else web.Response(status=404)
        body = await request.read()
        self.asked.append((request.method, request.path))
        try:
            return self._answering(request, body)
        except HangUp:
            request.transport.abort()
            return web.Response()

    async def _calls(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,))
        await socket.prepare(request)
        await socket.send_str(encode_frame(Ready(WINDOW, None, [CARRIES])).decode())
        async for message in socket:
            call = decode_call(message.data)
            assert call is not None
            asked = make_mocked_request(call.method, call.target, {"Content-Type": call.media})
            self.asked.append((asked.method, asked.path))
            try:
                answer = self._answering(asked, call.body)
            except HangUp:
                assert request.transport is not None
                request.transport.abort()
                break
            lines = "".join(f"{name}: {value}\n" for name, value in answer.headers.items())
            body = answer.body if isinstance(answer.body, bytes) else b""
            await socket.send_bytes(encode_answer(call.n, answer.status, lines.encode(), body))
        return socket
