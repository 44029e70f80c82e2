"""Handle the messages of a queue with a Python function, or with any command.

A function is named MODULE:FUNCTION and gets a message. A command is run by /bin/sh for each message, with the body on
standard input and QUEUEBELL_ID, QUEUEBELL_QUEUE and QUEUEBELL_ATTEMPT set, and QUEUEBELL_BURIAL (JSON) on a dead
letter. Exit code 0 deletes the message, 75 retries it, 100 dead-letters it, 101 replays it, and any other fails.
SIGTERM and SIGINT stop in order, a second one at once; the exit code is 1 if handlers were abandoned or all hung.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from queuebell.bridge.brokers.address import with_prefix
from queuebell.bridge.contract.address import is_http
from queuebell.bridge.contract.errors import ConfigurationError, HandlersStuck
from queuebell.bridge.contract.partitioning import expand
from queuebell.command.listen_settings import ListenSettings, load, pool_of, retry_of
from queuebell.listeners.handler import kind_of
from queuebell.listeners.session.opening import PULL_ONLY, PullOnly, check_store
from queuebell.listeners.work.command import Command
from queuebell.listeners.work.lifecycle import importing
from queuebell.listeners.work.retry import RetryPolicy

if TYPE_CHECKING:
    from queuebell.listeners.listener import Listener

log = logging.getLogger("queuebell.listener")

UNENDED: Final = 1
"""The exit code where a handler did not end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``listen``."""
    parser.add_argument("store", metavar="STORE", help="where the messages wait")
    parser.add_argument(
        "queue",
        metavar="QUEUE",
        help="ACCOUNT/QUEUE[:PARTITIONS], or several: A,B",
    )
    parser.add_argument("handler", metavar="MODULE:FUNCTION", nargs="?")
    parser.add_argument("--exec", metavar="CMD", dest="command", help="run this for each message instead")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Declare what can be set about a listener, by whichever command runs one (`ListenSettings`)."""
    retry = RetryPolicy()
    for option, operand, text in (
        ("--bridge", "URL", "sends wakes (QUEUEBELL_BRIDGE; default STORE)"),
        ("--pull-only", "", "poll with back-off, without a bridge"),
        ("--config", "FILE", "TOML file with a table [listener]"),
        ("--name", "NAME", "shown in status (default: host and process)"),
        ("--batch", "N", "per receive (default 32; PostgreSQL up to 256)"),
        ("--concurrency", "N", "concurrent handlers of each queue (default 32)"),
        ("--pool", "N", "instead: handlers of all queues together"),
        ("--pool-weight", "QUEUE=N,..", "share while others have work (default 1)"),
        ("--pool-priority", "QUEUE=N,..", "queues with 0 (default) are served first"),
        ("--pool-reserved", "QUEUE=N,..", "slots reserved for this queue (default 0)"),
        ("--pool-limit", "QUEUE=N,..", "most slots of a queue (default: the pool)"),
        ("--visibility-timeout", "S", "seconds of a lease, renewed (default 30)"),
        ("--max-attempts", "N", f"attempts, 0 for no end (default {retry.attempts})"),
        ("--retry-first", "S", f"seconds before the first retry (default {retry.first_s:g})"),
        ("--retry-factor", "X", f"growth of the pauses (default {retry.factor:g})"),
        ("--retry-ceiling", "S", f"longest pause in seconds (default {retry.ceiling_s:g})"),
        ("--retry-jitter", "PART", f"spread of the pauses, 0 to 1 (default {retry.jitter:g})"),
        ("--retry-transient", "NAME=N,..", "for transient failures: first=5,attempts=20"),
        ("--poison-queue", "ACCOUNT/QUEUE", "default QUEUE-poison"),
        ("--handler-timeout", "S", "seconds until it is cancelled (default never)"),
        ("--end-when-stuck", "", "exit with 1 for a restart if all slots hang"),
        ("--claim-check", "URL", "blob store of large bodies (default: none)"),
        ("--ledger", "URL", "table store, to complete messages once"),
        ("--grace", "S", "seconds a stop waits for handlers (default 20)"),
        ("--metrics", "HOST:PORT", "serve /metrics for Prometheus (default: none)"),
        ("--insecure-public", "", "serve metrics on a public address"),
        ("--log-format", "FORM", "plain (default) or json"),
        ("--log-level", "LEVEL", "debug, info (default), warning or error"),
    ):
        if operand:
            parser.add_argument(option, metavar=operand, help=text)
        elif option == "--pull-only":
            parser.add_argument(option, action="store_true", help=text)
        else:
            parser.add_argument(option, action="store_const", const=True, help=text)


def run(args: argparse.Namespace) -> int:
    """Listen until a signal, and return 0; exit with 1 if a handler has to be abandoned."""
    settings = load(args.config, options=vars(args))
    check_store(args.store)
    queues = args.queue.split(",")
    pool_of(settings, expand(queues))  # refused before anything is opened
    retry_of(settings)
    if (args.handler is None) == (args.command is None):
        raise ConfigurationError("name either MODULE:FUNCTION or --exec CMD")
    handler: Callable[..., Any]
    if args.command is not None:
        if not args.command.strip():
            raise ConfigurationError("--exec is empty: a shell would end with 0, and each message would be deleted")
        handler = Command(args.command)
    else:
        handler = load_function(args.handler)
    from queuebell.bridge.observe.logs import configure

    configure(settings.log_format, settings.log_level)
    listen(args.store, queues, handler, settings, pull_only=args.pull_only)
    return 0


def listen(
    store: str, queues: list[str], handler: Callable[..., Any], settings: ListenSettings, *, pull_only: bool
) -> None:
    """Listen until a signal; exit with 1 if a handler has to be abandoned."""
    bridge: str | PullOnly | None = PULL_ONLY if pull_only else settings.bridge
    if isinstance(bridge, str):
        bridge = with_prefix(bridge, settings.prefix)
    elif bridge is None and not is_http(store):
        raise ConfigurationError(
            "bridge: this store has none; name one with --bridge URL, or give --pull-only to poll without one"
        )
    asyncio.run(_until_told(store, queues, handler, bridge, settings))


async def _until_told(
    url: str, queues: list[str], handler: Callable[..., Any], bridge: str | PullOnly | None, settings: ListenSettings
) -> None:
    """Listen; exit from within the loop if a handler hangs, because closing the loop would wait for it."""
    threads = CountedThreads()
    asyncio.get_running_loop().set_default_executor(threads)
    try:
        unended = await _listen(url, queues, handler, bridge, settings)
    except HandlersStuck as stuck:
        log.error("the process ends for its supervisor to restart it: %s", stuck)
        leave(UNENDED)
    unended += await threads.settle()
    if unended:
        log.error("the process ends although %d calls of a handler are still running", unended)
        leave(UNENDED)


async def _listen(
    url: str, queues: list[str], handler: Callable[..., Any], bridge: str | PullOnly | None, settings: ListenSettings
) -> int:
    """Listen until a signal, and return how many calls of the handler do not end."""
    from queuebell.bridge.queues import open_store
    from queuebell.listeners.listener import Listener

    store = open_store(url)
    try:
        listener = Listener(
            store,
            queues if len(queues) > 1 else queues[0],
            handler,
            bridge=bridge,
            name=settings.name,
            batch=settings.batch,
            concurrency=settings.concurrency,
            pool=pool_of(settings, expand(queues)),
            visibility_timeout=settings.visibility_timeout,
            retry=retry_of(settings),
            poison_queue=settings.poison_queue,
            handler_timeout=settings.handler_timeout,
            end_when_stuck=settings.end_when_stuck,
            claim_check=settings.claim_check,
            ledger=settings.ledger,
            grace=settings.grace,
            handle_signals=True,
            handler_name=handler.name if isinstance(handler, Command) else None,
        )
        async with _port(settings, listener):
            await listener.run()
        log.info("%s: stopped", listener.name)
    finally:
        await store.close()
    return listener.unended()


def _port(settings: ListenSettings, listener: Listener[Any]) -> AbstractAsyncContextManager[object]:
    if settings.metrics is None:
        return contextlib.nullcontext()
    from queuebell.listeners.running import collector
    from queuebell.listeners.work.metrics_port import MetricsPort

    return MetricsPort(settings.metrics, collector(listener), insecure_public=settings.insecure_public)


def load_function(spec: str) -> Callable[..., Any]:
    """Import ``MODULE:FUNCTION``, the module also from the current directory; raises `ConfigurationError`."""
    module_name, colon, path = spec.partition(":")
    if not colon or not module_name or not path:
        raise ConfigurationError("a handler is MODULE:FUNCTION, for example orders:handle")
    # A console script has its own directory on the path, not the current one.
    here = os.getcwd()  # noqa: PTH109 - a text is what sys.path holds
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with importing(module_name):
            value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise ConfigurationError(f"module {module_name} needs {error.name}, which is not installed") from error
        raise ConfigurationError(f"there is no module {module_name}, neither here nor installed") from None
    for part in path.split("."):
        value = getattr(value, part, None)
        if value is None:
            raise ConfigurationError(f"module {module_name} has no {path}")
    if not callable(value):
        raise ConfigurationError(f"{spec} is not a function")
    function: Callable[..., Any] = value
    try:
        kind_of(function)
    except TypeError as unfit:
        raise ConfigurationError(f"{spec}: {unfit}") from None
    return function


SETTLE_S: Final = 1.0
FLUSH_S: Final = 2.0
"""How long to wait for output to be flushed: a handler may hang in the middle of a write."""


class CountedThreads(ThreadPoolExecutor):
    """The event loop's executor, which knows how many calls of `asyncio.to_thread` still run."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="queuebell-thread")
        self._running: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in a thread."""
        future = super().submit(fn, *args, **kwargs)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def settle(self) -> int:
        """Return how many calls still run after a moment; a cancelled one may be about to end."""
        running = [asyncio.wrap_future(future) for future in tuple(self._running)]
        if not running:
            return 0
        _, left = await asyncio.wait(running, timeout=SETTLE_S)
        return len(left)


def leave(code: int) -> NoReturn:
    """End the process now: flush output and logs, but do not wait for threads as Python would.

    For commands only: a library must not end the program it is part of.
    """
    flushing = threading.Thread(target=_flush, name="queuebell-flush", daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)
    os._exit(code)


def _flush() -> None:
    for flush in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone
            flush()
