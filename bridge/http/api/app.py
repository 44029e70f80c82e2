"""The web server of one bridge: its routes, its sessions and its event streams."""

from __future__ import annotations

import asyncio
import functools
import importlib.resources
import logging
from typing import TYPE_CHECKING

from queuebell.bridge.contract.calls import CARRIES, SERVICE_ABLE_HEADER
from queuebell.bridge.contract.errors import STATUS_BY_CODE, QueuebellError
from queuebell.bridge.http.api.queues import QueueRoutes
from queuebell.bridge.http.api.routes import Routes, refusal_of
from queuebell.bridge.http.api.sse import EventStreams
from queuebell.bridge.http.api.state import Rows, StateRoutes, Subjects
from queuebell.bridge.http.api.triggers import TriggerRoutes
from queuebell.bridge.http.page.assets import PageRoutes
from queuebell.bridge.http.page.dead_letters import DeadLetterRoutes
from queuebell.bridge.http.page.feed import Feed
from queuebell.bridge.http.page.login import LoginRoutes
from queuebell.bridge.http.server.answer import Answer, Refusal, refuse
from queuebell.bridge.http.server.authorizer import Authorizer
from queuebell.bridge.http.server.connection import ConnectionServer
from queuebell.bridge.http.server.guard import Guard
from queuebell.bridge.http.server.http_server import HttpServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.http.server.sockets import Tls
from queuebell.bridge.http.wire import Wires
from queuebell.bridge.queues.served import ServedStore

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from queuebell.bridge.access.access_watch import AccessWatch
    from queuebell.bridge.service.bridge import Bridge


class WebServer(HttpServer):
    """Serves a bridge over HTTP; with ``access`` only to its principals."""

    name = "listen"
    log = logging.getLogger("queuebell.web")

    def __init__(
        self,
        bridge: Bridge,
        settings: WebSettings | None = None,
        *,
        access: AccessWatch | None = None,
        tls: Tls = None,
    ) -> None:
        super().__init__(settings or WebSettings(), boot=bridge.named_boot, tls=tls)
        self._bridge = bridge
        self._authorizer = Authorizer(access, bridge.emit)
        self.plain: list[Rows] = []
        """Return further plain subscribers (webhooks, subjects) for ``GET /v1/listeners``; set before `start`."""
        self.subjects: list[Subjects] = []
        """Return subjects and topics that carry wakes, for ``explain``; set before `start`."""
        self.beside: list[ServedStore] = []
        """Stores of workers whose dead letters are shown too; set before `start`, closed by `stop`."""
        self._streams: EventStreams | None = None
        self._feed: Feed | None = None
        self._dead_letters: DeadLetterRoutes | None = None
        self.wires: Wires | None = None

    async def stop(self) -> None:
        """End the event streams and wires, and the server after them."""
        if self.wires is not None:
            self.wires.stop()
        for answers in (self._streams, self._feed):
            if answers is not None:
                answers.close()
        if self._dead_letters is not None:
            await self._dead_letters.stop()
        for store in self.beside:
            await store.close()
        await super().stop()

    def _prepare(self, server: ConnectionServer) -> None:
        server.fixed_headers += f"{SERVICE_ABLE_HEADER}: {CARRIES}\r\n".encode("ascii")
        guard = Guard(self.settings, asyncio.get_running_loop().time, "http" if self._tls is None else "https")
        authorizer = self._authorizer
        routes = Routes(guard, authorizer)
        TriggerRoutes(self._bridge, guard, authorizer).add_to(routes)
        QueueRoutes(self._bridge, guard, authorizer, server.unread).add_to(routes)
        streams = self._streams = EventStreams(self._bridge, self.settings, authorizer)
        streams.add_to(routes)
        plain = (streams.rows, *self.plain)
        StateRoutes(self._bridge, plain, self.subjects).add_to(routes)
        dead_letters = self._dead_letters = DeadLetterRoutes(self._bridge, authorizer, self.beside)
        dead_letters.add_to(routes)
        feed = self._feed = Feed(self._bridge, self.settings, authorizer, plain, self.subjects, dead_letters.run_of)
        feed.add_to(routes)
        PageRoutes().add_to(routes)
        LoginRoutes(authorizer.access, self._bridge.emit).add_to(routes)
        wires = self.wires = Wires(self._bridge, routes, authorizer, self._error_answer)
        wires.add_to(routes)
        routes.add("GET", "/openapi.json", None, self.describe)
        self._serve = routes.serve

    def _refused(self, request: BaseRequest, error: Exception) -> Answer:
        return self._error_answer(error)

    def _error_answer(self, error: Exception) -> Answer:
        refusal = refusal_of(error)
        if refusal is None:
            refusal = self._failed(error)
            if isinstance(error, QueuebellError):
                code = error.code if error.code in STATUS_BY_CODE else "internal"
                refusal = Refusal(code, refusal.detail)
        return refuse(refusal)

    async def describe(self, request: BaseRequest, _: str) -> Answer:
        """Return this description."""
        return Answer(200, _description())


@functools.cache
def _description() -> bytes:
    return (importlib.resources.files(__package__) / "openapi.json").read_bytes()
