"""Several listeners as one program, or within the application of a web server: they start and end together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.observe.logs import configure
from queuebell.listeners.listener import Listener
from queuebell.listeners.work.lifecycle import StopSignals, refuse_in_import, tell_server

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from queuebell.listeners.work.metrics_port import MetricsPort

log = logging.getLogger("queuebell.listener")

Made = Listener[Any] | AbstractAsyncContextManager[Any]
Part = Made | Callable[[], Made]


def collector(*listeners: Listener) -> Collector:
    """Return the Prometheus collector of these listeners' handlers, for a registry of ``prometheus_client``.

    A program with its own ``/metrics`` registers it there, once for all its listeners, and collects on the
    listeners' loop. The names begin with ``queuebell_listener_`` and counters with the start of each listener.
    """
    from queuebell.bridge.observe.families import JobFamilies

    return JobFamilies("queuebell_listener", lambda: (row for each in listeners for row in each.jobs()))


def run(listener: Listener, *others: Listener, metrics: str | None = None, insecure_public: bool = False) -> None:
    """Run listeners in their own event loop, until SIGTERM or Ctrl-C has them all stop; a second one at once.

    Where one breaks the others stop in order, and its error is raised. A program that has configured no logging by
    then gets that of ``queuebell listen``, lines on standard error: else a worker that waits would look like one that
    hangs. With ``metrics``, HOST:PORT, Prometheus finds at ``/metrics`` there what `collector` gives for all of them;
    port 0 is a free one, which the log names, and an address that others reach needs ``insecure_public``.

    Raises `ConfigurationError` where it cannot listen there, and in a module that `queuebell listen` imports for its
    handler: call it below ``if __name__ == "__main__":``. Raises `RuntimeError` in a coroutine, where a loop runs:
    there it is ``await listener.run()``.
    """
    refuse_in_import()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(
            "run() starts an event loop, and one runs here already: `await listener.run()` in a "
            "coroutine, lifespan=lifespan(listener) in a web application"
        )
    if not log.hasHandlers():
        configure()
    listeners = (listener, *others)
    port: MetricsPort | None = None
    if metrics is not None:
        from queuebell.listeners.work.metrics_port import MetricsPort

        port = MetricsPort(metrics, collector(*listeners), insecure_public=insecure_public)
    asyncio.run(_signalled(listeners, port))


def lifespan(*parts: Part, **named: Part) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """Return a lifespan that runs listeners within a web application: ``FastAPI(lifespan=lifespan(Listener(...)))``.

    Starlette takes it too, and aiohttp in its ``cleanup_ctx``. A lifespan of your own enters it with
    ``async with lifespan(...)(app):``. A part is a `Listener`, or what is entered by ``async with`` (a store, a
    `Publisher`, a `Bridge`), or a function that makes one of them, as an application needs that starts more than once.
    All others are open before the first listener starts, and until the last one has stopped. What parts with a name
    give when they are entered, or such a listener itself, has that name in the lifespan's state (``request.state``).

    The start fails with the error of a listener that cannot work. Signals are the server's. At the end the listeners
    stop as by `Listener.stop`, each within its grace. Where one breaks meanwhile it is logged, the others stop in
    order, the server is stopped by SIGTERM if it handles that, and the error is raised at the end.

    Raises `TypeError` for a part that is none of these, and `BadInput` for a listener with ``handle_signals=True``.
    """
    given: list[tuple[str | None, Any]] = [*((None, part) for part in parts), *named.items()]
    if not given:
        raise TypeError("lifespan: is given the listeners to run, as in lifespan(Listener(...))")
    once = [_checked(part) for _, part in given if not _makes(part)]
    started = False

    @contextlib.asynccontextmanager
    async def running(app: Any) -> AsyncIterator[Any]:
        nonlocal started
        if started and once:
            raise BadInput(
                "bad_parameter",
                "lifespan: this application starts a second time, and a listener, or a store that was closed, works"
                " only once. Nothing was started. Pass functions that make each part at every start, as in"
                " lifespan(lambda: Listener(...), store=lambda: open_store(...))",
            )
        started = True
        made = [(name, _checked(part() if _makes(part) else part)) for name, part in given]
        state: dict[str, Any] = {}
        async with contextlib.AsyncExitStack() as opened:
            for name, part in made:
                value = part if isinstance(part, Listener) else await opened.enter_async_context(part)
                if name is not None:
                    state[name] = value
            await opened.enter_async_context(_served([part for _, part in made if isinstance(part, Listener)]))
            # A server without lifespan state gets none.
            yield state or None

    return running


def _makes(part: Any) -> bool:
    """Return whether a part is a function (or a class) that makes one, and not one itself."""
    return callable(part) and not isinstance(part, AbstractAsyncContextManager)


def _checked(part: Any) -> Any:
    if isinstance(part, Listener):
        if part.handle_signals:
            raise BadInput(
                "bad_parameter", f"lifespan: the signals are the server's; {part.name} cannot have handle_signals=True"
            )
        part.handle_signals = False
    elif not isinstance(part, AbstractAsyncContextManager):
        raise TypeError(f"lifespan: a part is a Listener or has `async with`, or is a function for one, not {part!r}")
    return part


async def _signalled(listeners: tuple[Listener, ...], port: MetricsPort | None) -> None:
    def signalled(count: int) -> None:
        for each in listeners:
            each.signalled(count)

    with StopSignals(signalled, take=True):
        async with port or contextlib.nullcontext(), _together(listeners) as tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)


@contextlib.asynccontextmanager
async def _served(listeners: Sequence[Listener]) -> AsyncIterator[None]:
    """Run listeners around a server's life: in once all listen, out once all have stopped."""
    if not listeners:
        yield
        return
    async with _together(listeners) as tasks:
        for each, task in zip(listeners, tasks, strict=True):
            if not await each.started():
                await asyncio.wait([task])
                task.result()
        watching = asyncio.create_task(_watch(listeners, tasks), name="watch the listeners")
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])


@contextlib.asynccontextmanager
async def _together(listeners: Sequence[Listener]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run listeners around the block; after it all stop in order, and the error of one that failed is raised."""
    tasks = [asyncio.create_task(each.run(), name=f"listener[{each.name}]") for each in listeners]
    try:
        yield tasks
    finally:
        try:
            await asyncio.gather(*(each.stop() for each in listeners))
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
    for task in tasks:
        task.result()


async def _watch(listeners: Sequence[Listener], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Stop a server whose listener failed: one that ends is restarted, one that only answers is not."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    ended = [(each, task) for each, task in zip(listeners, tasks, strict=True) if task.done() and not task.cancelled()]
    broken = [(each, error) for each, task in ended if (error := task.exception()) is not None]
    for each, error in broken:
        queues = ", ".join(each.queues)
        log.error("%s: failed, and handles no more messages of %s: %s", each.name, queues, error, exc_info=error)
    if broken:
        await asyncio.gather(*(each.stop() for each in listeners))
        if not tell_server():
            log.error("the application has no listeners any more; fix the cause and restart it")
