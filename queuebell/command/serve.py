"""Run the bridge and its queue service until SIGTERM or SIGINT.

Once it is ready, it prints one line with its address on standard output; logs go to standard error. Every option can
also be set in the configuration file or as QUEUEBELL_<OPTION> in the environment; the command line wins. Addresses with
passwords belong in the environment. --nats, --mqtt, --postgres and --azure-relay may be repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from queuebell.bridge.contract.bounds import OWN_IN_WORDS, in_words
from queuebell.bridge.contract.errors import ConfigurationError, StoreError, StoreUnavailable
from queuebell.settings import Settings, load, parse_listen, reached_at

if TYPE_CHECKING:
    from queuebell.bridge.brokers.embedded.server import EmbeddedNats
    from queuebell.bridge.http.server.http_server import HttpServer
    from queuebell.bridge.keda.server import KedaServer
    from queuebell.bridge.service.bridge import Bridge

log = logging.getLogger("queuebell.bridge")


_OPTIONS: Final = (
    ("--config", "FILE", "TOML file (default: $QUEUEBELL_CONFIG, or none)"),
    ("--listen", "HOST:PORT", "default 127.0.0.1:8470; port 0 takes a free one"),
    ("--data", "DIR", "default ./queuebell-data"),
    ("--store", "URL", "keep queues in PostgreSQL, Redis or JetStream"),
    ("--nats", "URL", "sessions, triggers there; 'embedded' runs one"),
    ("--mqtt", "URL", "triggers and sessions there"),
    ("--postgres", "URL", "triggers from NOTIFY there"),
    ("--cluster", "NAME", "share the work with bridges on the same NATS"),
    ("--prefix", "TOKEN", "first token of subjects (default queuebell)"),
    ("--ready-requires", "NAMES", "buses /readyz needs: nats,mqtt (default all)"),
    ("--azure-queue", "HOST:PORT", "serve Azure Queue Storage's REST API there"),
    ("--azure-cert", "FILE", "PEM certificates of the Azure endpoint"),
    ("--azure-key", "FILE", "PEM private key of the Azure endpoint"),
    ("--azure-relay", "HOST:PORT=URL", "pass on to an Azure endpoint; puts are triggers"),
    ("--keda", "HOST:PORT", "serve KEDA's external scaler (gRPC) there"),
    ("--keda-cert", "FILE", "its PEM certificates (default: --tls-cert)"),
    ("--keda-key", "FILE", "its PEM private key (default: --tls-key)"),
    ("--keda-client-ca", "FILE", "PEM authorities: require KEDA's certificate"),
    ("--allowed-hosts", "NAMES", "more names for the Host header, with commas"),
    ("--insecure-public", "", "allow a public address without keys or TLS"),
    ("--auth", "", "require a key ('queuebell key create')"),
    ("--access", "FILE", "keys, grants (default: access.json in --data)"),
    ("--trust-brokers", "", "with --auth: brokers decide about their clients"),
    ("--tls-cert", "FILE", "PEM certificates, for HTTPS"),
    ("--tls-key", "FILE", "PEM private key"),
    ("--tls-client-ca", "FILE", "PEM authorities of client certificates"),
    ("--tls-client", "MODE", "certificates: optional (default) or required"),
    ("--synchronous", "MODE", "NORMAL may lose the last puts in a power cut"),
    ("--put-window-s", "S", "how long ids of puts are known (default 600)"),
    ("--put-waiting-bytes", "N", "bytes of waiting puts; above it 429 (64 MiB)"),
    ("--put-wait-ms", "MS", "longest wait of a put; above it 429 (400)"),
    ("--log-format", "FORM", "plain (default) or json"),
    ("--log-level", "LEVEL", "debug, info (default), warning or error"),
)
"""Each with its operand, or none, and one line of help."""
_REPEATABLE: Final = frozenset({"--nats", "--mqtt", "--postgres", "--azure-relay"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``serve``."""
    for option, operand, text in _OPTIONS:
        if not operand:
            parser.add_argument(option, action="store_const", const=True, help=text)
        else:
            action = "append" if option in _REPEATABLE else "store"
            parser.add_argument(option, metavar=operand, action=action, help=text)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal, and return 0."""
    settings = load(args.config, options=vars(args))
    parse_listen(settings.listen)
    from queuebell.bridge.observe.logs import configure

    configure(settings.log_format, settings.log_level)
    _raise_file_limit()
    return asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    from queuebell.bridge.brokers.embedded.server import EmbeddedNats

    embedded = EmbeddedNats.from_urls(settings.nats)
    if embedded is None:
        return await _bridge(settings, None)
    # It starts first and stops last: the bridge's goodbye still has to reach its listeners.
    async with embedded:
        return await _bridge(msgspec.structs.replace(settings, nats=embedded.resolve(settings.nats)), embedded)


async def _bridge(settings: Settings, embedded: EmbeddedNats | None) -> int:
    from queuebell.assembly import assemble
    from queuebell.bridge.observe.logs import FactLog
    from queuebell.bridge.service.clocks import LoopWatch

    host, _ = parse_listen(settings.listen)
    stop = _Stop()
    stop.listen()
    service, web, doors, webhooks, brokers, keda, watches = assemble(settings, embedded)
    service.observe(FactLog())
    try:
        await service.start()
    except OSError as error:
        raise ConfigurationError(f"data: cannot use {settings.data}: {error.strerror or error}") from None
    except StoreUnavailable as error:
        # For a client this is "unreachable"; here it is the bridge's own file.
        raise StoreError(f"data: {settings.data}: {error}") from None
    try:
        try:
            await web.start()
        except OSError as error:
            raise OSError(f"cannot listen on {settings.listen}: {error.strerror or error}") from None
        try:
            for door in doors:
                await _open(door)
            await webhooks.start((host, web.port))
            await brokers.start()
            if keda is not None:
                await _open(keda)
            async with LoopWatch(service), contextlib.AsyncExitStack() as looking:
                for watch in watches:
                    await looking.enter_async_context(watch)
                _collect_seldom()
                url = reached_at(settings, web.port)
                print(f"queuebell ready on {url}", flush=True)
                log.info("ready", extra={"url": url, "data": settings.data, "boot": service.boot})
                _tell_promises(service)
                await stop.wait()
            # In this order: no new work, sessions sent to other bridges, connections, then the file.
            await service.leave()
        finally:
            if keda is not None:
                await keda.stop()
            # Closing the brokers sends what is queued for the sessions.
            await brokers.stop()
            await webhooks.stop()
            for door in reversed(doors):
                await door.stop()
            await web.stop()
    finally:
        await service.stop()
    log.info("stopped")
    return 0


def _collect_seldom() -> None:
    """Run the garbage collector every 10,000 objects instead of 700, and freeze what exists now.

    Requests leave no cycles, but with the default the collector ran thousands of times a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


async def _open(door: HttpServer | KedaServer) -> None:
    try:
        await door.start()
    except OSError as error:
        raise OSError(f"{door.name}: cannot listen on {door.address}: {error.strerror or error}") from None
    log.info("%s on %s", door.name, door.url, extra={"url": door.url})


def _tell_promises(service: Bridge) -> None:
    """Log the bound and the cost of each rule, own queues first."""
    if not service.keeps_queues:
        log.info("this bridge keeps no queues of its own: it wakes for those in other stores")
    elif service.own is None:
        log.info("queues of this service are in %s, as in other stores", service.store)
    else:
        log.info("queues of this service: %s", OWN_IN_WORDS)
    for match, numbers in service.scheduler.dispatch.tuning.each():
        promised = numbers.bound()
        log.info(
            "queues %s in other stores: %s",
            match,
            in_words(promised, sweeps=numbers.sweep_s > 0),
            extra={"bound_s": promised.bound_s, "receives_an_hour": promised.receives_most},
        )
    if not service.suspends.noticed:
        log.info(
            "this system has no clock that notices a suspend; after one, messages in other stores wait for a sweep"
        )


class _Stop:
    """The first signal stops in order; the second ends the process at once."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal, number)

    async def wait(self) -> None:
        await self._asked.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._asked.is_set():
            log.warning("stopping at once", extra={"signal": number.name})
            sys.stderr.flush()
            # Nothing acknowledged is lost: the file also survives a kill -9.
            os._exit(128 + number)
        log.info("stopping; a second signal stops at once", extra={"signal": number.name})
        self._asked.set()


def _raise_file_limit() -> None:
    """Raise the limit of open files to the system's maximum: each session needs one."""
    try:
        import resource
    except ImportError:  # Windows has none
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS reports "unlimited" and then refuses it
            log.debug("the file limit stays at %d: %s", soft, error)
