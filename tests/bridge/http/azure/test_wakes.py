"""A put through the Azure endpoint rings the bell: listeners of the own service need no other trigger."""

from __future__ import annotations

import asyncio

from azure.storage.queue.aio import QueueClient

from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.service.bridge import Bridge
from listeners import Listener
from tests.support.azure import ACCOUNT, connection_string, serving_azure


async def test_an_sdk_put_wakes_a_listener_elsewhere() -> None:
    """The producer knows the SDK and its connection string only; the worker hears over its session, and handles."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message: object) -> None:
        await heard.put(message.text())  # type: ignore[attr-defined]

    async with (
        Bridge() as bridge,
        WebServer(bridge, WebSettings(port=0, shutdown_timeout=0.2)) as web,
        serving_azure(bridge) as front,
    ):
        queue = QueueClient.from_connection_string(connection_string(front.server.port), "orders", retry_total=0)
        async with queue, asyncio.timeout(200):
            await queue.create_queue()
            listener = Listener(web.url, f"{ACCOUNT}/orders", handle, bridge=web.url, handle_signals=False)
            running = asyncio.create_task(listener.run(), name="listener")
            for number in range(3):
                await queue.send_message(f"order {number}")
                assert await heard.get() == f"order {number}"
            described = bridge.describe(f"{ACCOUNT}/orders")
            assert described is not None
            await listener.stop()
            await running
            properties = await queue.get_queue_properties()
    assert properties.approximate_message_count == 0
    assert described.wakes


async def test_a_release_and_a_delay_ring_as_well() -> None:
    """An update to 0 s, and a message whose delay ends, rise for the listener without a trigger."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message: object) -> None:
        await heard.put(message.text())  # type: ignore[attr-defined]

    async with Bridge() as bridge, serving_azure(bridge) as front:
        await front.ask("PUT", "/orders")
        await front.put("orders", "held")
        (held,) = await front.get("orders", "?visibilitytimeout=600")
        await front.put("orders", "delayed", "?visibilitytimeout=1")
        listener = Listener(bridge, f"{ACCOUNT}/orders", handle, bridge=bridge, handle_signals=False)
        running = asyncio.create_task(listener.run(), name="listener")
        async with asyncio.timeout(200):
            assert await heard.get() == "delayed"
            path = f"/orders/messages/{held.id}?popreceipt={held.receipt}&visibilitytimeout=0"
            assert (await front.ask("PUT", path)).status == 204
            assert await heard.get() == "held"
            await listener.stop()
            await running
