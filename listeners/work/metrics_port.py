"""The port at which a worker shows its metrics to Prometheus."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from queuebell.bridge.contract.address import is_loopback
from queuebell.bridge.contract.errors import ConfigurationError

log = logging.getLogger("queuebell.listener")

PATH: Final = "/metrics"


class MetricsPort:
    """Answers ``GET /metrics`` with what ``collector`` gives, while it is entered.

    ``address`` is HOST:PORT, port 0 a free one. It serves on the loop, next to the handlers. Clients that reach it can
    read names of queues, handlers and exceptions, and change nothing. So it takes a loopback address only, or any with
    ``insecure_public``. Raises `ConfigurationError`, also where the port is taken.
    """

    def __init__(self, address: str, collector: Collector, *, insecure_public: bool = False) -> None:
        host, colon, port = address.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ConfigurationError("metrics: is HOST:PORT, for example 127.0.0.1:9464; port 0 is a free one")
        self._host, self._port = host.removeprefix("[").removesuffix("]"), int(port)
        if not (insecure_public or is_loopback(self._host)):
            raise ConfigurationError(
                "metrics: every client that reaches that address can read the names of queues, handlers and exceptions;"
                " --insecure-public (insecure_public = true) listens there anyway"
            )
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it is read, once it is open."""
        assert self._runner is not None
        host, port = self._runner.addresses[0][:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"

    async def __aenter__(self) -> MetricsPort:
        app = web.Application()
        app.router.add_get(PATH, self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigurationError(
                f"metrics: cannot listen on {self._host}:{self._port}: {error.strerror or error}; several workers of"
                " one machine need a port each, or 0 for a free one"
            ) from error
        self._runner = runner
        log.info("metrics are at %s", self.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        # A page whose name leads here after it was loaded must not read it: its requests bear that name.
        if is_loopback(self._host) and not is_loopback(request.url.host or ""):
            raise web.HTTPForbidden(text="metrics are shown under the name of this machine alone")
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
