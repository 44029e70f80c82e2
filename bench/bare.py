"""Bare aiohttp servers to measure beside: one that decodes, one that holds WebSockets and sends to all of them.

``python -m bench.bare`` (bench.role).
"""

from __future__ import annotations

import asyncio
import itertools

import msgspec
from aiohttp import WSMsgType, web

from bench.machine import raise_file_limit
from bench.role import obey
from queuebell.bridge.contract.event import CloudQueueWorkDetected

_decode = msgspec.json.Decoder(CloudQueueWorkDetected).decode
_beat = msgspec.json.Decoder(dict[str, object]).decode
_sockets: dict[web.WebSocketResponse, None] = {}
_gens = itertools.count(1)


async def triggers(request: web.Request) -> web.Response:
    """Decode, and say so."""
    _decode(await request.read())
    return web.Response(status=202, body=b'{"accepted":1}', content_type="application/json")


async def sessions(request: web.Request) -> web.WebSocketResponse:
    """Hold a WebSocket, and answer each text with one."""
    socket = web.WebSocketResponse(protocols=("queuebell.v2",), compress=False, max_msg_size=65536)
    await socket.prepare(request)
    _sockets[socket] = None
    while True:
        message = await socket.receive()
        if message.type is not WSMsgType.TEXT:
            del _sockets[socket]
            return socket
        kind = _beat(message.data)["type"]
        await socket.send_str('{"type":"welcome","heartbeat_ms":5000}' if kind == "hello" else '{"type":"heartbeat"}')


async def fan_out(request: web.Request) -> web.Response:
    """Decode, and send every WebSocket a wake, one after the other."""
    event = _decode(await request.read())
    wake = {
        "type": "wake",
        "queue": event.queue,
        "boot": "0" * 32,
        "gen": next(_gens),
        "reason": "trigger",
        "size": event.payload_size,
        "age_ms": 0,
    }
    text = msgspec.json.encode(wake).decode()
    for socket in list(_sockets):
        await socket.send_str(text)
    return web.Response(status=202, body=b'{"accepted":1}', content_type="application/json")


async def main() -> None:
    """Serve until the bench has no more to say."""
    raise_file_limit()
    app = web.Application()
    app.add_routes(
        [
            web.post("/v1/triggers", triggers),
            web.post("/v1/fan_out", fan_out),
            web.get("/v1/sessions", sessions),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    await obey({}, url=f"http://127.0.0.1:{runner.addresses[0][1]}")
    # Ten thousand closing handshakes are nobody's figure.


if __name__ == "__main__":
    asyncio.run(main())
