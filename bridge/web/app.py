"""The web server of one bridge: listening sockets, routes, start and stop."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from bridge.web.answer import Answer
from bridge.web.answer_room import AnswerRoom
from bridge.web.connection import ConnectionServer
from bridge.web.explain import ExplainRoutes
from bridge.web.guard import Guard
from bridge.web.health import HealthRoutes
from bridge.web.ingress import TriggerIngress
from bridge.web.problem import Refusal
from bridge.web.queues import QueueRoutes
from bridge.web.quiet import QuietLog
from bridge.web.routes import Routes
from bridge.web.served import ServedBridge
from bridge.web.settings import WebSettings, check_settings
from bridge.web.sockets import default_connections, listen, local_url
from bridge.web.sse import EventStreams
from bridge.web.state import Rows, StateRoutes

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, Request, StreamResponse

    from bridge.service import Bridge


logger = logging.getLogger("queuebell.web")


class WebServer:
    """Serves a bridge over HTTP; an async context manager.

    Raises `ConfigurationError` when made with settings that are not acceptable, above all an address that others
    can reach without ``insecure_public``. The bridge is started and stopped by whoever made it.
    """

    def __init__(self, bridge: ServedBridge, settings: WebSettings | None = None) -> None:
        self.settings = settings or WebSettings()
        check_settings(self.settings)
        self._bridge = bridge
        self.plain: list[Rows] = []
        """What tells of plain subscribers elsewhere (webhooks, subjects), for ``GET /v1/listeners``; set it before
        `start`."""
        self.subjects: list[Rows] = []
        """What tells of subjects and topics that carry wakes, for ``explain``; set it before `start`."""
        self._streams: EventStreams | None = None
        self._server: ConnectionServer | None = None
        self._listening: list[asyncio.Server] = []
        self._port = 0

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        return self._port

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the server, without a trailing slash."""
        return local_url("http", self.settings.host, self._port)

    async def start(self) -> None:
        """Listen; raises `OSError` where the address or port cannot be had."""
        if self._server is not None:
            raise RuntimeError("the web server was started already")
        loop = asyncio.get_running_loop()
        quiet = QuietLog(logger, loop.time)
        guard = Guard(self.settings, loop.time)
        routes = Routes(guard, quiet)
        TriggerIngress(self._bridge, guard).add_to(routes)
        unread = AnswerRoom(loop.time)
        QueueRoutes(self._bridge, guard, unread.fits).add_to(routes)
        streams = EventStreams(self._bridge, self.settings)
        streams.add_to(routes)
        plain = (streams.rows, *self.plain)
        StateRoutes(self._bridge, plain).add_to(routes)
        ExplainRoutes(self._bridge, plain, self.subjects).add_to(routes)
        HealthRoutes(self._bridge).add_to(routes)
        routes.add("GET", "/v1/sessions", self._session)
        server = ConnectionServer(
            routes.handle,
            settings=self.settings,
            connections=self.settings.connections or default_connections(),
            boot=self._bridge.boot,
            quiet=quiet,
            loop=loop,
            gate=self._bridge.gate,
            unread=unread,
        )
        self._listening, self._port = await listen(server, self.settings.host, self.settings.port)
        self._server = server
        self._streams = streams

    async def stop(self) -> None:
        """Stop listening, let requests under way end, and close all connections.

        Takes at most ``shutdown_timeout`` and a fraction of a second, whatever is open; sessions should have been
        told to go by the bridge before. May be called twice.
        """
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        if self._streams is not None:
            self._streams.close()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(self.settings.shutdown_timeout)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _session(self, request: BaseRequest, _: str) -> StreamResponse | Answer:
        if self._bridge.draining:
            raise Refusal("draining", "the bridge is stopping", close=True)
        # Imported late: only a server that is asked for sessions needs the channel.
        from bridge.channels.websocket import serve_session

        # Our requests are aiohttp's base class, which is all that its WebSockets use.
        return await serve_session(cast("Request", request), cast("Bridge", self._bridge))
