"""Checks whether the brokers and stores of a configuration can be reached: connects to each once, as `serve` would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import QueuebellError
from queuebell.settings import Settings

STORE: Final = "store"
WITHIN_S: Final = 10.0
"""How long one of them may take; all are tried at the same time."""


class Reached(msgspec.Struct, frozen=True):
    """The result for one of them; ``name`` is that of `/readyz`."""

    name: str
    ok: bool
    detail: str
    ms: int


async def reach(settings: Settings, done: Callable[[int, int], object]) -> list[Reached]:
    """Try all at the same time, and call ``done`` with the number finished and the total after each.

    A bus carries a message to its sender, a store lists one queue: nothing is changed. Servers that start with the
    bridge (``embedded``) are left out.
    """
    asked = _asked(settings)
    reached: list[Reached] = []

    async def one(name: str, ask: Callable[[], Awaitable[str]]) -> Reached:
        result = await _reached(name, ask)
        reached.append(result)
        done(len(reached), len(asked))
        return result

    return list(await asyncio.gather(*(one(name, ask) for name, ask in asked.items())))


async def _reached(name: str, ask: Callable[[], Awaitable[str]]) -> Reached:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(WITHIN_S):
            ok, detail = True, await ask()
    except TimeoutError:
        ok, detail = False, f"no answer within {WITHIN_S:g} s"
    except QueuebellError as error:
        ok, detail = False, str(error)
    return Reached(name, ok, detail, round(1000 * (loop.time() - began)))


def _asked(settings: Settings) -> dict[str, Callable[[], Awaitable[str]]]:
    from queuebell.assembly import SERVED
    from queuebell.bridge.brokers.embedded.server import EmbeddedNats

    asked: dict[str, Callable[[], Awaitable[str]]] = {}
    for kind, urls in (("nats", settings.nats), ("mqtt", settings.mqtt), ("postgres", settings.postgres)):
        ask = _database if kind == "postgres" else _broker
        for number, url in enumerate(urls, 1):
            # `/readyz` counts them all, the embedded one too.
            if EmbeddedNats.from_urls([url]) is None:
                asked[kind if number == 1 else f"{kind}-{number}"] = lambda ask=ask, url=url: ask(url, settings.prefix)  # type: ignore[misc]
    if settings.store.partition(":")[0].lower() in SERVED:
        asked[STORE] = lambda: _engine(settings.store)
    return asked


def without_session(url: str) -> str:
    """Return an address that names no MQTT client or session: those are the running bridge's, and would end it."""
    where, mark, query = url.partition("?")
    kept = [each for each in query.split("&") if each.partition("=")[0] not in ("client_id", "session")]
    return where + mark * bool(kept and query) + "&".join(kept)


async def _broker(url: str, prefix: str) -> str:
    from queuebell.bridge.brokers import open_broker
    from queuebell.bridge.brokers.address import take_prefix

    given, own = take_prefix(url)
    broker = open_broker(without_session(given), name="queuebell-check", prefix=prefix if given == url else own)
    try:
        await broker.connect()
        return f"{broker.address}: a message to ourselves took {1000 * await broker.probe():.1f} ms"
    finally:
        await broker.close()


async def _database(url: str, _: str) -> str:
    from queuebell.bridge.brokers.address import take_prefix
    from queuebell.bridge.brokers.postgres.broker import PostgresBroker

    line = PostgresBroker(take_prefix(url)[0])
    try:
        await line.connect()
        return f"{line.address}: a notification to ourselves took {1000 * await line.probe():.1f} ms"
    finally:
        await line.close()


async def _engine(url: str) -> str:
    from queuebell.bridge.queues import open_store

    store = open_store(url)
    try:
        await store.queues(limit=1)
        return f"{store}: it answers"
    finally:
        await store.close()
