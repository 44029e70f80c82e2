"""Builds a bridge and its servers from the settings, without starting them.

`queuebell serve` starts what it built; `queuebell check` only builds, so that both check the same.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import pathlib
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from queuebell.bridge.access.access_file import FileWatch
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.brokers.address import take_prefix
from queuebell.bridge.brokers.extras import install
from queuebell.bridge.brokers.postgres.access import SCHEMES, PostgresAccess
from queuebell.bridge.contract.address import is_http, is_loopback
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.azure.accounts import principals_of, read_accounts
from queuebell.bridge.http.azure.auth import AccountPrincipals, SignatureAuthorizer
from queuebell.bridge.http.azure.front import AzureFront
from queuebell.bridge.http.azure.records import JsonRecords, NoRecords
from queuebell.bridge.http.azure.relay import AccountLimits, RelayServer, read_endpoint, relay_settings
from queuebell.bridge.http.azure.server import AzureServer, front_settings
from queuebell.bridge.http.server.http_server import HttpServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.http.server.sockets import listen
from queuebell.bridge.http.server.tls import Certificates
from queuebell.bridge.http.webhooks.settings import name_of_all
from queuebell.bridge.http.webhooks.shell import Webhooks
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import QueueStore
from queuebell.bridge.queues.embedded.file import CLOSE, messages_in, open_to_others
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.bridge.queues.served import Described
from queuebell.bridge.service.bridge import Bridge, BridgeSettings
from queuebell.bridge.service.shared_store import NoStore
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from queuebell.settings import Settings, parse_listen

if TYPE_CHECKING:
    from queuebell.bridge.brokers.embedded.server import EmbeddedNats
    from queuebell.bridge.keda.server import KedaServer

log = logging.getLogger("queuebell.store")

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}").fullmatch

SERVED: Final = (*SCHEMES, "redis", "rediss", "nats", "tls")
"""The schemes of the stores that bridges can share."""


class Assembly(NamedTuple):
    """The parts, to be started in this order and stopped in reverse."""

    service: Bridge
    web: WebServer
    doors: tuple[HttpServer, ...]
    webhooks: Webhooks
    brokers: Attachments
    keda: KedaServer | None
    watches: tuple[FileWatch, ...]
    """Files that are read again when they change."""


def assemble(settings: Settings, embedded: EmbeddedNats | None = None, *, in_memory: bool = False) -> Assembly:
    """Build a bridge; any ``embedded`` server in ``settings.nats`` is already replaced by its address.

    With ``in_memory`` the data file is not opened. Raises `ConfigurationError` that names the key.
    """
    host, port = parse_listen(settings.listen)
    engine = _engine(settings, in_memory)
    service = Bridge(
        None if in_memory else settings.data,
        store=engine,
        settings=BridgeSettings(
            periods=settings.periods(),
            synchronous=settings.synchronous,
            put_window_s=settings.put_window_s,
            put_waiting_bytes=settings.put_waiting_bytes,
            put_wait_ms=settings.put_wait_ms,
        ),
    )
    access = _access(settings)
    if access is not None and not in_memory and (exposed := open_to_others(pathlib.Path(settings.data))):
        log.warning("data: %s: %s; close it to them: %s", settings.data, exposed, CLOSE.format(settings.data))
    certificates = _own_certificates(settings)
    web = WebServer(
        service,
        WebSettings(
            host=host,
            port=port,
            allowed_hosts=settings.allowed_hosts,
            origins=() if access is None or access.login is None else (access.login.origin,),
            insecure_public=settings.insecure_public,
            guarded=access is not None and certificates is not None,
            connections=settings.connections,
            connections_per_address=settings.connections_per_address,
            requests_per_second=settings.requests_per_second,
            request_burst=settings.request_burst,
        ),
        access=access,
        tls=None if certificates is None else certificates.current,
    )
    webhooks = Webhooks(service, settings.webhook)
    web.plain.append(webhooks.rows)
    engines = _engines(settings, engine)
    clients = (
        ("nats", settings.nats, "nats"),
        ("mqtt", settings.mqtt, "paho"),
        (
            "postgres",
            databases := [*dict.fromkeys((*settings.postgres, *engines))],
            "asyncpg",
        ),
    )
    for key, urls, package in clients:
        if urls and importlib.util.find_spec(package) is None:
            raise ConfigurationError(f"{key}: its client is not installed: {install(key)}")
    brokers = Attachments(
        service,
        nats=settings.nats,
        mqtt=settings.mqtt,
        postgres=databases,
        ours=engines,
        settings=BusSettings(
            prefix=settings.prefix,
            cluster=_cluster(settings, service, embedded=embedded is not None),
            republish=settings.republish,
            ready_requires=settings.ready_requires,
            trusted=access is None or settings.trust_brokers,
        ),
        access=access,
    )
    web.subjects.append(brokers.subjects)
    web.beside += (
        service.serve_alongside(open_store(take_prefix(url)[0])) for url in settings.postgres if url not in engines
    )
    if embedded is not None:
        # The bus has its own check; this one reports where the server is.
        service.add_check("nats-server", embedded.check, required=settings.ready_requires is None)
    endpoint = None if settings.azure_queue is None else _certificates(settings.azure_cert, settings.azure_key, "azure")
    doors = (
        *_doors(settings, service, engine, web.settings, in_memory, endpoint, access),
        *_relays(settings, service, web.settings, access),
    )
    service.metrics.watch(
        "queuebell_accept_pauses",
        "Times that no connection was accepted because no file descriptor was free",
        lambda: web.accept_pauses + sum(door.accept_pauses for door in doors),
    )
    keda, keda_tls = _keda(settings, service, access)
    if keda is not None:
        web.plain.append(keda.rows)
    watches = tuple(each for each in (access, certificates, endpoint, keda_tls) if each is not None)
    return Assembly(service, web, doors, webhooks, brokers, keda, watches)


def _cluster(settings: Settings, service: Bridge, *, embedded: bool) -> dict[str, str | None] | None:
    """Return what this bridge tells the others of its cluster."""
    if settings.cluster is None:
        return None
    if not _NAME(settings.cluster):
        raise ConfigurationError("cluster: a name is 1 to 63 letters, digits, - and _")
    if embedded or any(url.partition(":")[0] == "embedded" for url in settings.nats):
        raise ConfigurationError(
            "cluster: an embedded NATS server belongs to this bridge alone; name a server that all members reach"
        )
    return {
        "name": settings.cluster,
        "address": _reached_at(settings.listen),
        "version": importlib.metadata.version("queuebell"),
        "store": service.store.fingerprint("cluster/engine"),  # also without a store, so that members without one agree
        "webhooks": name_of_all(settings.webhook),
    }


def _reached_at(listen: str) -> str:
    """Return the bridge's address for others; one that listens on all addresses gives its host name."""
    host, port = parse_listen(listen)
    return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "::", "") else listen  # noqa: S104


def _engine(settings: Settings, in_memory: bool) -> QueueStore | None:
    """Open the shared store of the settings; None for the bridge's own file. It connects later."""
    if is_http(settings.store):  # a bridge's address is for client commands
        if settings.cluster is None:
            return None
        _refuse_own_messages(settings, "cluster", "without --cluster", in_memory)
        return NoStore()
    scheme = settings.store.partition(":")[0].lower()
    if scheme not in SERVED:
        raise ConfigurationError(
            "store: a bridge keeps its queues in postgres://, redis:// or nats://, or without --store in a file;"
            " workers use queues in other stores by their own address, and producers tell the bridge of puts there"
        )
    # JetStream has no ids to remember.
    engine = open_store(
        settings.store, **({} if scheme in ("nats", "tls") else {"put_window_s": settings.put_window_s})
    )
    _refuse_own_messages(settings, "store", "without --store", in_memory)
    return engine


def _refuse_own_messages(settings: Settings, key: str, without: str, in_memory: bool) -> None:
    """Refuse a setting with which messages in the bridge's own file would not be served."""
    file = pathlib.Path(settings.data) / "queue.db"
    count = 0 if in_memory else messages_in(file)
    if count:
        raise ConfigurationError(
            f"{key}: {file} holds {count} messages that would not be served: start the bridge {without} and move them"
            " ('queuebell queue export --delete --file FILE' there, 'queuebell queue import --file FILE' here), or name"
            " another --data"
        )


def _engines(settings: Settings, engine: QueueStore | None) -> dict[str, Callable[[int], bool]]:
    """Return the addresses of the store's database, whose NOTIFY tells of other bridges' puts.

    Each comes with a function that recognizes this bridge's own puts by their process id.
    """
    if not isinstance(engine, PostgresStore):
        return {}
    options = ("pool_size",)
    place = PostgresAccess(settings.store, options=options).place
    same = [url for url in settings.postgres if PostgresAccess(take_prefix(url)[0], options=options).place == place]
    return dict.fromkeys(same or [settings.store], engine.puts_by)


def _certificates(cert: str | None, key: str | None, name: str) -> Certificates | None:
    return None if cert is None and key is None else Certificates(cert, key, name)


def _own_certificates(settings: Settings) -> Certificates | None:
    """Read the certificates of the bridge's own port, and the authorities for those of its clients."""
    client_ca, client = settings.tls_client_ca, settings.tls_client
    if client is not None and client_ca is None:
        raise ConfigurationError(
            "tls_client: needs tls_client_ca, the file of the authorities that sign client certificates"
        )
    if client_ca is None:
        return _certificates(settings.tls_cert, settings.tls_key, "tls")
    if not settings.auth:
        raise ConfigurationError("tls_client_ca: has no effect without auth = true (--auth)")
    return Certificates(settings.tls_cert, settings.tls_key, "tls", client_ca, required=client == "required")


def _access(settings: Settings) -> AccessWatch | None:
    """Read the access file, with auth."""
    if not settings.auth:
        if settings.access is not None:
            raise ConfigurationError("access: has no effect without auth = true (--auth)")
        if settings.issuer:
            raise ConfigurationError("issuer: has no effect without auth = true (--auth)")
        if settings.trust_brokers:
            raise ConfigurationError("trust_brokers: has no effect without auth = true (--auth)")
        return None
    file = settings.access_file()
    if not file.exists():
        raise ConfigurationError(
            f"access: {file} does not exist, and with auth every request would be refused; create a key:"
            f" queuebell key create NAME --access {file} --allow put=billing/* --allow ring=billing/*"
        )
    return AccessWatch(file, issuers=settings.issuer)


def _doors(
    settings: Settings,
    service: Bridge,
    engine: QueueStore | None,
    shared: WebSettings,
    in_memory: bool,
    certificates: Certificates | None,
    access: AccessWatch | None,
) -> Iterator[HttpServer]:
    """Build the server of the Azure endpoint, if it is configured; ``shared`` are the web settings of the bridge."""
    if settings.azure_queue is None:
        for key, value in (("azure_cert", settings.azure_cert), ("azure_key", settings.azure_key)):
            if value is not None:
                raise ConfigurationError(
                    f"{key}: has no effect without azure_queue, the address of the Azure Queue endpoint"
                )
        return
    host, port = parse_listen(settings.azure_queue, "azure_queue")
    tls = None if certificates is None else certificates.context
    # TLS of the bridge's own port does not protect this one.
    shared = msgspec.structs.replace(shared, guarded=settings.auth and tls is not None)
    if isinstance(engine, NoStore):
        raise ConfigurationError(
            "azure_queue: with --cluster it needs a store that all members reach: name it with --store URL (azure_relay"
            " needs none)"
        )
    if engine is not None and not isinstance(engine, Described):
        raise ConfigurationError(f"azure_queue: {service.store} does not tell what the Azure endpoint has to answer")
    records = (
        NoRecords()
        if engine is not None
        else JsonRecords(None if in_memory else pathlib.Path(settings.data) / "azure.json", service.store.number)
    )
    front = AzureFront(
        service.store,
        SignatureAuthorizer(
            # The emulator's key is public: it is accepted on this machine only, and not with auth.
            read_accounts(
                settings.azure_account,
                os.environ,
                emulator=is_loopback(host) and not settings.auth,
                secret=settings.auth,
            ),
            records.policies,
        ),
        records,
        wall=time.time,
        draining=lambda: service.draining,
        gate=service.gate,
        principals=None
        if access is None
        else AccountPrincipals(access, principals_of(settings.azure_account), service.emit),
        history=service.history,
    )
    yield AzureServer(front, front_settings(shared, host, port), boot=service.named_boot, tls=tls)


def _relays(
    settings: Settings, service: Bridge, shared: WebSettings, access: AccessWatch | None
) -> Iterator[HttpServer]:
    """Build a relay for each ``azure_relay``."""
    used = None if access is None else AccountLimits(access, principals_of(settings.azure_account), service.emit)
    for text in settings.azure_relay:
        listen, _, url = text.partition("=")
        host, port = parse_listen(listen, "azure_relay")
        limits = relay_settings(shared, host, port)
        yield RelayServer(service, read_endpoint(url), limits, keep_host=settings.azure_relay_keep_host, limits=used)


def _keda(
    settings: Settings, service: Bridge, access: AccessWatch | None
) -> tuple[KedaServer | None, Certificates | None]:
    """Build KEDA's server and its certificates, if ``keda`` is configured."""
    if settings.keda is None:
        for name in ("keda_cert", "keda_key", "keda_client_ca", "keda_store"):
            if getattr(settings, name):
                raise ConfigurationError(f"{name}: has no effect without keda (--keda HOST:PORT)")
        return None, None
    host, port = parse_listen(settings.keda, "keda")
    try:
        from queuebell.bridge.keda.server import KedaServer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        raise ConfigurationError(f"keda: its packages are not installed: {install('keda')}") from None
    client_ca = settings.keda_client_ca or (settings.tls_client_ca if settings.tls_client == "required" else None)
    if settings.keda_client_ca is not None and access is None:
        raise ConfigurationError("keda_client_ca: has no effect without auth = true (--auth)")
    cert, key = settings.keda_cert, settings.keda_key
    if cert is None and key is None:
        cert, key = settings.tls_cert, settings.tls_key
    wanted = cert or key or client_ca
    tls = Certificates(cert, key, "keda", client_ca, required=True, alpn=["h2"]) if wanted else None
    if not (is_loopback(host) or settings.insecure_public or (access is not None and tls is not None)):
        raise ConfigurationError(
            "keda: a public address needs authentication and TLS (--auth, --keda-cert, --keda-key);"
            " --insecure-public (insecure_public = true) listens there without them"
        )
    stores: dict[str, QueueStore] = {}
    for each in settings.keda_store:
        if each.name in stores:
            raise ConfigurationError(f"keda_store: name: {each.name} is used twice")
        if each.url.partition(":")[0] in ("memory", "sqlite"):
            raise ConfigurationError("keda_store: url: must be a store that other processes reach too")
        stores[each.name] = open_store(each.url)
    context = None if tls is None else tls.current
    return KedaServer(service, host, port, listen=listen, tls=context, stores=stores, access=access), tls


def check_data(settings: Settings) -> None:
    """Raise `ConfigurationError` if the data directory can be neither written nor created; writes nothing."""
    path = pathlib.Path(settings.data).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise ConfigurationError(f"data: {path} is not a directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigurationError(f"data: {path} is not writable for this user")
