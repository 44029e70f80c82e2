"""The bare wire: what a wake over one WebSocket costs, without any of the protocol.

An aiohttp server takes a message as a binary frame, commits it to SQLite (WAL, ``synchronous=FULL``) in a writer
thread, sends it to the worker as a frame and answers the producer with another. The worker calls its callback, and has
the message deleted by a frame. No leases, no recovery, no checks: the least that has the same processes and durability.

``python -m bench.bare_wire serve FOLDER``, ``work URL``, ``put URL``: each a process of its own (bench.role).
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
from aiohttp import web

from bench.floor import Table
from bench.hop import Stamps, put_in_turn
from bench.role import obey


class Server:
    """The server's process."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._thread = ThreadPoolExecutor(1)
        self._workers: set[web.WebSocketResponse] = set()
        self.app = web.Application()
        self.app.add_routes([web.get("/put", self._put), web.get("/work", self._work)])

    async def _put(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        async for message in socket:
            body = message.data
            number = await asyncio.get_running_loop().run_in_executor(self._thread, self._table.insert, body.decode())
            for worker in self._workers:
                await worker.send_bytes(b"%d %b" % (number, body))
            await socket.send_bytes(b"%d" % number)
        return socket

    async def _work(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        self._workers.add(socket)
        try:
            async for message in socket:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._table.delete, [int(message.data)])
        finally:
            self._workers.discard(socket)
        return socket


async def serve(folder: str) -> None:
    """Serve until the bench has no more to say."""
    runner = web.AppRunner(Server(Table(Path(folder) / "wire.db")).app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await obey({}, url=f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()


async def work(url: str) -> None:
    """Call back for each message, and have it deleted."""
    stamps = Stamps()
    async with aiohttp.ClientSession() as client, client.ws_connect(url + "/work", compress=0) as socket:

        async def listen() -> None:
            async for message in socket:
                number, _, body = message.data.partition(b" ")
                stamps.seen(body)
                await socket.send_bytes(number)

        listening = asyncio.create_task(listen(), name="listen")
        await obey({"take": stamps.take})
        listening.cancel()


async def put(url: str) -> None:
    """Put one message at a time."""
    async with aiohttp.ClientSession() as client, client.ws_connect(url + "/put", compress=0) as socket:

        async def one(body: str) -> None:
            await socket.send_bytes(body.encode())
            await socket.receive()

        await obey({"put": put_in_turn(one)})


if __name__ == "__main__":
    asyncio.run({"serve": serve, "work": work, "put": put}[sys.argv[1]](sys.argv[2]))
