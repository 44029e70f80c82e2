"""The floor: what a careful engineer would write to wake a worker, without any of the protocol.

An aiohttp server takes a POST, commits it to SQLite (WAL, ``synchronous=FULL``) in a writer thread, sends one
WebSocket frame to the worker, which receives by POST and calls its callback. No merging, no ownership, no liveness,
no leases that end, no recovery: the least that has the same parts and the same durability.

``python -m bench.floor serve FOLDER``, ``work URL``, ``put URL``: each a process of its own (bench.role).
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from bench.hop import Stamps, put_in_turn
from bench.role import obey


class Item(msgspec.Struct):
    body: str
    id: int = 0


class Ask(msgspec.Struct):
    max: int


class Done(msgspec.Struct):
    ids: list[int]


_item = msgspec.json.Decoder(Item).decode
_items = msgspec.json.Decoder(list[Item]).decode
_ask = msgspec.json.Decoder(Ask).decode
_done = msgspec.json.Decoder(Done).decode
_encode = msgspec.json.encode


class Table:
    """The queue's table; all calls come from one thread."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, body TEXT NOT NULL, taken INTEGER NOT NULL)")
        self.db.execute("CREATE INDEX waiting ON message (id) WHERE taken = 0")

    def insert(self, body: str) -> int:
        return int(self.db.execute("INSERT INTO message (body, taken) VALUES (?, 0)", (body,)).lastrowid or 0)

    def take(self, limit: int) -> list[Item]:
        rows = self.db.execute(
            "UPDATE message SET taken = 1 WHERE id IN (SELECT id FROM message WHERE taken = 0 ORDER BY id LIMIT ?)"
            " RETURNING id, body",
            (limit,),
        ).fetchall()
        return [Item(body, number) for number, body in rows]

    def delete(self, ids: list[int]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany("DELETE FROM message WHERE id = ?", [(number,) for number in ids])
        self.db.execute("COMMIT")


class Server:
    """The server's process."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._thread = ThreadPoolExecutor(1)
        self._workers: set[web.WebSocketResponse] = set()
        self.app = web.Application()
        self.app.add_routes(
            [
                web.post("/put", self._put),
                web.post("/receive", self._receive),
                web.post("/delete", self._delete),
                web.get("/session", self._session),
            ]
        )

    async def _put(self, request: web.Request) -> web.Response:
        item = _item(await request.read())
        number = await asyncio.get_running_loop().run_in_executor(self._thread, self._table.insert, item.body)
        for worker in self._workers:
            await worker.send_bytes(b'{"wake":true}')
        return _json(_encode({"id": number}))

    async def _receive(self, request: web.Request) -> web.Response:
        ask = _ask(await request.read())
        items = await asyncio.get_running_loop().run_in_executor(self._thread, self._table.take, ask.max)
        return _json(_encode(items))

    async def _delete(self, request: web.Request) -> web.Response:
        done = _done(await request.read())
        await asyncio.get_running_loop().run_in_executor(self._thread, self._table.delete, done.ids)
        return _json(b"{}")

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        self._workers.add(socket)
        try:
            async for _ in socket:
                pass
        finally:
            self._workers.discard(socket)
        return socket


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


async def serve(folder: str) -> None:
    """Serve until the bench has no more to say."""
    runner = web.AppRunner(Server(Table(Path(folder) / "floor.db")).app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await obey({}, url=f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()


async def work(url: str) -> None:
    """Wait for wakes; on each receive, call back, delete."""
    stamps = Stamps()

    def callback(body: str) -> None:
        stamps.seen(body)

    async def drain(client: aiohttp.ClientSession) -> None:
        async with client.post(url + "/receive", data=b'{"max":32}') as answer:
            items = _items(await answer.read())
        for item in items:
            callback(item.body)
        if items:
            async with client.post(url + "/delete", data=_encode(Done([item.id for item in items]))) as answer:
                await answer.read()

    async with aiohttp.ClientSession() as client, client.ws_connect(url + "/session", compress=0) as socket:

        async def listen() -> None:
            async for _ in socket:
                await drain(client)

        listening = asyncio.create_task(listen(), name="listen")
        await obey({"take": stamps.take})
        listening.cancel()


async def put(url: str) -> None:
    """Put one message at a time."""
    async with aiohttp.ClientSession() as client:

        async def one(body: str) -> None:
            async with client.post(url + "/put", data=_encode(Item(body))) as answer:
                await answer.read()

        await obey({"put": put_in_turn(one)})


if __name__ == "__main__":
    asyncio.run({"serve": serve, "work": work, "put": put}[sys.argv[1]](sys.argv[2]))
