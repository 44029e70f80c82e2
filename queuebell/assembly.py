"""A bridge with everything that its settings ask for, put together and not started.

`queuebell serve` starts it; `queuebell check` only looks whether it can be put together, so that what is checked is
what is served.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import ssl
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from bridge.brokers.extras import install
from bridge.contract.errors import ConfigurationError
from bridge.http.api.app import WebServer
from bridge.http.azure.accounts import read_accounts
from bridge.http.azure.auth import SignatureAuthorizer
from bridge.http.azure.front import AzureFront
from bridge.http.azure.records import JsonRecords
from bridge.http.azure.relay.endpoint import read_endpoint
from bridge.http.azure.relay.server import RelayServer, relay_settings
from bridge.http.azure.server import AzureServer, front_settings, load_tls
from bridge.http.server.http_server import HttpServer
from bridge.http.server.settings import WebSettings, is_loopback
from bridge.http.webhooks.shell import Webhooks
from bridge.service.bridge import Bridge, BridgeSettings
from bridge.triggers.attachment import Attachments, BusSettings
from queuebell.settings import Settings, parse_listen

if TYPE_CHECKING:
    from bridge.brokers.embedded.server import EmbeddedNats


class Assembly(NamedTuple):
    """The parts, to be started in this order and stopped in the other."""

    service: Bridge
    web: WebServer
    doors: tuple[HttpServer, ...]
    webhooks: Webhooks
    brokers: Attachments


def assemble(settings: Settings, embedded: EmbeddedNats | None = None, *, in_memory: bool = False) -> Assembly:
    """Put a bridge together; ``settings.nats`` names no ``embedded`` server any more.

    ``in_memory`` leaves the data file alone. Raises `ConfigurationError` that names the key.
    """
    host, port = parse_listen(settings.listen)
    service = Bridge(
        None if in_memory else settings.data,
        settings=BridgeSettings(
            periods=settings.periods(),
            synchronous=settings.synchronous,
            put_window_s=settings.put_window_s,
            put_waiting_bytes=settings.put_waiting_bytes,
            put_wait_ms=settings.put_wait_ms,
        ),
    )
    web = WebServer(
        service,
        WebSettings(
            host=host,
            port=port,
            allowed_hosts=settings.allowed_hosts,
            insecure_public=settings.insecure_public,
            connections=settings.connections,
            connections_per_address=settings.connections_per_address,
            requests_per_second=settings.requests_per_second,
            request_burst=settings.request_burst,
        ),
    )
    webhooks = Webhooks(service, settings.webhook)
    web.plain.append(webhooks.rows)
    clients = (
        ("nats", settings.nats, "nats"),
        ("mqtt", settings.mqtt, "paho"),
        ("postgres", settings.postgres, "asyncpg"),
    )
    for key, urls, package in clients:
        if urls and importlib.util.find_spec(package) is None:
            raise ConfigurationError(f"{key}: its client is not installed: {install(key)}")
    brokers = Attachments(
        service,
        nats=settings.nats,
        mqtt=settings.mqtt,
        postgres=settings.postgres,
        settings=BusSettings(
            prefix=settings.prefix, republish=settings.republish, ready_requires=settings.ready_requires
        ),
    )
    web.subjects.append(brokers.subjects)
    if embedded is not None:
        # Whether that bus works is for its own check to say; this one says where the server is.
        service.add_check("nats-server", embedded.check, required=settings.ready_requires is None)
    doors = (*_doors(settings, service, web.settings, in_memory), *_relays(settings, service, web.settings))
    service.metrics.watch(
        "queuebell_accept_pauses",
        "Times that no new connection could be taken, for want of files",
        lambda: web.accept_pauses + sum(door.accept_pauses for door in doors),
    )
    return Assembly(service, web, doors, webhooks, brokers)


def _doors(settings: Settings, service: Bridge, shared: WebSettings, in_memory: bool) -> Iterator[HttpServer]:
    """Make the further servers that were asked for; ``shared`` are the settings of the bridge's own."""
    if settings.azure_queue is None:
        for key, value in (("azure_cert", settings.azure_cert), ("azure_key", settings.azure_key)):
            if value is not None:
                raise ConfigurationError(f"{key}: is for the Azure Queue endpoint, which azure_queue asks for")
        return
    host, port = parse_listen(settings.azure_queue, "azure_queue")
    tls = None
    if settings.azure_cert is not None or settings.azure_key is not None:
        tls = _tls(settings.azure_cert, settings.azure_key)
    records = JsonRecords(None if in_memory else pathlib.Path(settings.data) / "azure.json", service.store.made)
    front = AzureFront(
        service.store,
        SignatureAuthorizer(
            # The emulator's key is known to everybody: beyond this machine it would be none.
            read_accounts(settings.azure_account, os.environ, emulator=is_loopback(host)),
            records.policies,
        ),
        records,
        wall=time.time,
        draining=lambda: service.draining,
        gate=service.gate,
    )
    yield AzureServer(front, front_settings(shared, host, port), boot=service.boot, tls=tls)


def _relays(settings: Settings, service: Bridge, shared: WebSettings) -> Iterator[HttpServer]:
    """Make a relay for each endpoint that was named."""
    for text in settings.azure_relay:
        listen, _, url = text.partition("=")
        host, port = parse_listen(listen, "azure_relay")
        limits = relay_settings(shared, host, port)
        yield RelayServer(service, read_endpoint(url), limits, keep_host=settings.azure_relay_keep_host)


def _tls(cert: str | None, key: str | None) -> ssl.SSLContext:
    for name, value in (("azure_cert", cert), ("azure_key", key)):
        if value is None:
            raise ConfigurationError(f"{name}: HTTPS needs both a certificate (azure_cert) and a key (azure_key)")
    try:
        return load_tls(str(cert), str(key))
    except (OSError, ValueError) as error:  # `ssl.SSLError` is the former; the latter is for what cannot be a path
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"azure_cert: cannot use {cert!r} with {key!r}: {reason}") from None


def check_data(settings: Settings) -> None:
    """Raise `ConfigurationError` where the data directory cannot be written or made; nothing is written."""
    path = pathlib.Path(settings.data).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise ConfigurationError(f"data: {path} is no directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigurationError(f"data: {path} cannot be written by this user")
