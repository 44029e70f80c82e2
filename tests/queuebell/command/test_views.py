"""How a bridge's stream of views is read."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web

from bridge.service.overview import OneQueue
from queuebell.command.views import Views


@pytest.mark.parametrize("beside", ["", "id: 7\n", ": a remark\nid: 7\nevent: message\n"])
async def test_a_view_is_read_whatever_stands_beside_it(beside: str) -> None:
    """The number of an event, a remark, or nothing; each view is told."""
    heard: asyncio.Future[OneQueue] = asyncio.get_running_loop().create_future()

    async def tell(_: web.Request) -> web.StreamResponse:
        body = f'{beside}data: {{"row":null,"triggered_ms":5}}\n\n'
        return web.Response(text=body, content_type="text/event-stream")

    app = web.Application()
    app.router.add_get("/view", tell)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with Views(f"http://127.0.0.1:{runner.addresses[0][1]}") as views:
            following = asyncio.create_task(
                views.follow("/view", OneQueue, lambda _, view: heard.done() or heard.set_result(view), lambda _: None)
            )
            done, _ = await asyncio.wait([heard, following], timeout=10, return_when=asyncio.FIRST_COMPLETED)
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
        assert heard in done and heard.result().triggered_ms == 5
    finally:
        await runner.cleanup()
