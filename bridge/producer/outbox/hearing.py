"""Hears NOTIFY on a connection of PostgreSQL's drivers, without asking: asyncpg, and psycopg 3 of either kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from bridge.contract.errors import Unsupported
from bridge.producer.outbox.statements import CHANNEL

LISTEN = f"LISTEN {CHANNEL}"


@asynccontextmanager
async def hearing(driver: Any, ring: Callable[[], None]) -> AsyncIterator[asyncio.Future[None]]:
    """Call ``ring`` for whatever comes in, and give what is done once the connection is lost.

    On the connection `LISTEN` was committed, and nobody else uses it. Raises `Unsupported` for an unknown driver.
    """
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[None] = loop.create_future()

    def lose(*_: object) -> None:
        if not lost.done():
            lost.set_result(None)

    kind = type(driver).__module__.partition(".")[0]
    if kind == "asyncpg":
        driver.add_termination_listener(lose)
        await driver.add_listener(CHANNEL, lambda *_: ring())
        yield lost
        return
    if kind != "psycopg":
        raise Unsupported(f"{kind}: this driver does not support LISTEN; asyncpg and psycopg 3 do")
    socket = driver.fileno()

    def readable() -> None:
        try:
            driver.pgconn.consume_input()
            while driver.pgconn.notifies():
                pass
        except Exception:  # noqa: BLE001 - whatever the driver raises, nothing more is heard here
            loop.remove_reader(socket)
            lose()
        ring()

    loop.add_reader(socket, readable)
    try:
        yield lost
    finally:
        loop.remove_reader(socket)
