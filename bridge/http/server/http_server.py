"""A web server of one bridge: its listening sockets, its connections, its start and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self, cast

from queuebell.bridge.http.server.answer import Answer, Refusal
from queuebell.bridge.http.server.connection import Connection, ConnectionServer
from queuebell.bridge.http.server.settings import WebSettings, check_settings
from queuebell.bridge.http.server.sockets import Acceptor, QuietLog, Tls, default_connections, listen, local_url

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse


class HttpServer:
    """One server on one port; an async context manager. Subclasses define the answers.

    ``tls`` makes it HTTPS. Raises `ConfigurationError` for invalid settings, above all an address that other
    machines can reach without ``insecure_public``. The bridge is started and stopped separately.
    """

    name: ClassVar[str]
    """The setting that enables it."""
    log: ClassVar[logging.Logger]
    fault: ClassVar[str] = "unexpected error in a request"
    """The log line of an internal error."""
    connection: ClassVar[type[Connection]] = Connection
    _serve: Callable[[BaseRequest], Awaitable[Answer | StreamResponse]]
    """Answers one request; `_refused` answers what it raises."""

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
        """The configured address."""
        return f"{self.settings.host}:{self.settings.port}"

    @property
    def port(self) -> int:
        """The port, once started."""
        return self._port

    @property
    def url(self) -> str:
        """The URL for clients on this machine, without a trailing slash."""
        return local_url("http" if self._tls is None else "https", self.settings.host, self._port)

    @property
    def accept_pauses(self) -> int:
        """How often accepting was paused because no file was free."""
        return sum(each.pauses for each in self._listening)

    @property
    def quiet(self) -> QuietLog:
        """The log for lines that a flood of bad requests would repeat, once started."""
        assert self._quiet is not None
        return self._quiet

    @property
    def connections(self) -> ConnectionServer:
        """The connections and what they share, while it is started."""
        assert self._server is not None
        return self._server

    async def start(self) -> None:
        """Listen; raises `OSError` if the address or port is not available."""
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
            # A quarter: handshakes must not take the places of open connections.
            handshakes=max(4, limit // 4),
            handshakes_per_address=self.settings.connections_per_address,
        )
        self._server = server

    async def stop(self) -> None:
        """Stop listening, let requests under way end, and close all connections.

        Takes at most ``shutdown_timeout`` and a fraction of a second. The bridge should close its sessions first.
        May be called twice.
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
        """Prepare to serve, before the first connection."""

    def _refused(self, request: BaseRequest, error: Exception) -> Answer:
        """Return the answer for an error; unexpected ones go to `_failed`."""
        raise NotImplementedError

    def _failed(self, error: Exception) -> Refusal:
        """Log an internal error, and return its refusal."""
        self.quiet.fault(self.fault, error)
        return Refusal("internal", "the request could not be served", close=True)

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        try:
            return cast("StreamResponse", await self._serve(request))
        except ConnectionError:
            # The peer is gone; the connection handles that.
            raise
        except Exception as error:  # noqa: BLE001 - every error is logged and answered
            return cast("StreamResponse", self._refused(request, error))
