"""The load on one store: puts, receives and deletes, one message a call.

``python -m bench.storeload FOLDER CALLERS SECONDS`` (bench.role).
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable

from bench.role import obey
from queuebell.bridge.queues.base import Claim, NewMessage, Settlement
from queuebell.bridge.queues.embedded.sqlite import SqliteStore

QUEUE = "bench/store"
BODY = b"%0100d" % 1


async def through_store(folder: str, callers: int, seconds: float) -> dict[str, float]:
    """Call the store, ``callers`` at once, ``seconds`` for each kind of call."""
    store = SqliteStore(f"{folder}/store.db")
    await store.open()
    claims: list[Claim] = []

    async def put() -> bool:
        await store.put(QUEUE, [NewMessage(BODY)])
        return True

    async def get() -> bool:
        received = await store.receive(QUEUE, 1, 600)
        claims.extend(Claim(message.id, message.pop_receipt) for message in received.messages)
        return bool(received.messages)

    async def delete() -> bool:
        if not claims:
            return False
        await store.settle(QUEUE, Settlement(delete=[claims.pop()]))
        return True

    rates = {
        "put": await _run(put, callers, seconds),
        "get": await _run(get, callers, seconds),
        "delete": await _run(delete, callers, seconds),
    }
    await store.close()
    return rates


async def _run(call: Callable[[], Awaitable[bool]], callers: int, seconds: float) -> float:
    begun = time.monotonic()
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.monotonic() < begun + seconds and await call():
            done += 1

    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / (time.monotonic() - begun)


async def bare(folder: str, seconds: float) -> dict[str, float]:
    """Loop over sqlite3 itself."""
    db = sqlite3.connect(f"{folder}/bare.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, body BLOB NOT NULL, visible_at INTEGER NOT NULL)")
    db.execute("CREATE INDEX due ON message (visible_at, id)")
    taken: list[int] = []

    def put() -> bool:
        db.execute("INSERT INTO message (body, visible_at) VALUES (?, 0)", (BODY,))
        return True

    def get() -> bool:
        rows = db.execute(
            "UPDATE message SET visible_at = 1 << 60 WHERE id = (SELECT id FROM message WHERE visible_at <= ?"
            " ORDER BY visible_at, id LIMIT 1) RETURNING id, body",
            (time.time_ns(),),
        ).fetchall()
        taken.extend(row[0] for row in rows)
        return bool(rows)

    def delete() -> bool:
        if not taken:
            return False
        db.execute("DELETE FROM message WHERE id = ?", (taken.pop(),))
        return True

    rates = {}
    for name, call in (("put", put), ("get", get), ("delete", delete)):
        begun = time.monotonic()
        done = 0
        while time.monotonic() < begun + seconds and call():
            done += 1
        rates[name] = done / (time.monotonic() - begun)
    db.close()
    return rates


async def main(folder: str, callers: str, seconds: str) -> None:
    """Load, and say how it went."""
    many = int(callers)
    rates = await through_store(folder, many, float(seconds)) if many else await bare(folder, float(seconds))
    await obey({}, **rates)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
