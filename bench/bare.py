"""Bare aiohttp servers to measure beside: one that only decodes, one that only holds WebSockets.

``python -m bench.bare`` (bench.role).
"""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import WSMsgType, web

from bench.machine import raise_file_limit
from bench.role import obey
from bridge.contract.event import CloudQueueWorkDetected

_decode = msgspec.json.Decoder(CloudQueueWorkDetected).decode
_beat = msgspec.json.Decoder(dict[str, object]).decode


async def triggers(request: web.Request) -> web.Response:
    """Decode, and say so."""
    _decode(await request.read())
    return web.Response(status=202, body=b'{"accepted":1}', content_type="application/json")


async def sessions(request: web.Request) -> web.WebSocketResponse:
    """Hold a WebSocket, and answer each text with one."""
    socket = web.WebSocketResponse(protocols=("queuebell.v1",), compress=False, max_msg_size=65536)
    await socket.prepare(request)
    while True:
        message = await socket.receive()
        if message.type is not WSMsgType.TEXT:
            return socket
        kind = _beat(message.data)["type"]
        await socket.send_str('{"type":"welcome","heartbeat_ms":5000}' if kind == "hello" else '{"type":"heartbeat"}')


async def main() -> None:
    """Serve until the bench has no more to say."""
    raise_file_limit()
    app = web.Application()
    app.add_routes([web.post("/v1/triggers", triggers), web.get("/v1/sessions", sessions)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    await obey({}, url=f"http://127.0.0.1:{runner.addresses[0][1]}")
    # Ten thousand closing handshakes are nobody's figure.


if __name__ == "__main__":
    asyncio.run(main())
