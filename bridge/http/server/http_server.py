"""A web server of one bridge: its listening sockets, its connections, its start and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self, cast

from bridge.http.server.accepting import Acceptor, Tls
from bridge.http.server.answer import Answer
from bridge.http.server.connection import Connection, ConnectionServer
from bridge.http.server.problem import Refusal
from bridge.http.server.quiet import QuietLog
from bridge.http.server.settings import WebSettings, check_settings
from bridge.http.server.sockets import default_connections, listen, local_url

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse


class HttpServer:
    """One server on one port; an async context manager. What it answers is for a class of its own to say.

    ``tls`` makes it HTTPS. Raises `ConfigurationError` when made with settings that are not acceptable, above all an
    address that others can reach without ``insecure_public``. The bridge is started and stopped by whoever made it.
    """

    name: ClassVar[str]
    """The setting that asks for it."""
    log: ClassVar[logging.Logger]
    fault: ClassVar[str] = "unexpected error in a request"
    """What the log says of a fault of our own."""
    connection: ClassVar[type[Connection]] = Connection
    _serve: Callable[[BaseRequest], Awaitable[Answer | StreamResponse]]
    """Answers one request; what it raises, `_refused` tells."""

    def __init__(self, settings: WebSettings, *, boot: str | None, tls: Tls = None) -> None:
        check_settings(settings)
        self.settings = settings
        self._boot = boot
        self._tls = tls
        self._quiet: QuietLog | None = None
        self._server: ConnectionServer | None = None
        self._listening: list[Acceptor] = []
        self._port = 0

    @property
    def address(self) -> str:
        """Where it is to listen, as it was set."""
        return f"{self.settings.host}:{self.settings.port}"

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        return self._port

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it, without a trailing slash."""
        return local_url("http" if self._tls is None else "https", self.settings.host, self._port)

    @property
    def accept_pauses(self) -> int:
        """How often no new connection could be taken, for want of files."""
        return sum(each.pauses for each in self._listening)

    @property
    def quiet(self) -> QuietLog:
        """Where lines go that a flood of bad requests would repeat, once started."""
        assert self._quiet is not None
        return self._quiet

    @property
    def connections(self) -> ConnectionServer:
        """Its connections and what they share, while it is started."""
        assert self._server is not None
        return self._server

    async def start(self) -> None:
        """Listen; raises `OSError` where the address or port cannot be had."""
        if self._server is not None:
            raise RuntimeError(f"{self.name}: this server was already started")
        loop = asyncio.get_running_loop()
        self._quiet = QuietLog(self.log, loop.time)
        limit = self.settings.connections or default_connections()
        server = ConnectionServer(
            self._handle,
            connection=self.connection,
            settings=self.settings,
            connections=limit,
            boot=self._boot,
            quiet=self._quiet,
            loop=loop,
        )
        self._prepare(server)
        self._listening, self._port = await listen(
            server,
            self.settings.host,
            self.settings.port,
            self._tls,
            # A quarter, so that those who got through have the others.
            handshakes=max(4, limit // 4),
            handshakes_per_address=self.settings.connections_per_address,
        )
        self._server = server

    async def stop(self) -> None:
        """Stop listening, let requests under way end, and close all connections.

        Takes at most ``shutdown_timeout`` and a fraction of a second, whatever is open; sessions should have been
        told to go by the bridge before. May be called twice.
        """
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        server = self._server
        if server is not None:
            await server.stop(self.settings.shutdown_timeout)
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _prepare(self, server: ConnectionServer) -> None:
        """Make ready to serve, before anybody can connect."""

    def _refused(self, request: BaseRequest, error: Exception) -> Answer:
        """Make the answer that tells why a request was not served; `_failed` is for what nobody foresaw."""
        raise NotImplementedError

    def _failed(self, error: Exception) -> Refusal:
        """Log a fault of our own, and return what its sender is told."""
        self.quiet.fault(self.fault, error)
        return Refusal("internal", "the request could not be served", close=True)

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        try:
            return cast("StreamResponse", await self._serve(request))
        except ConnectionError:
            # The peer went away; the connection knows what to do.
            raise
        except Exception as error:  # noqa: BLE001 - every fault is told and logged; a connection must not die silently
            return cast("StreamResponse", self._refused(request, error))
