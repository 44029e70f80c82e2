"""The relay before Azurite: the SDK's requests pass, and its puts wake a listener on that very queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.queue import (
    AccessPolicy,
    QueueServiceClient,
    generate_queue_sas,
)

from bridge import open_store
from bridge.core.settings import Periods
from bridge.http.azure.relay.endpoint import read_endpoint
from bridge.http.azure.relay.server import RelayServer, relay_settings
from bridge.http.server.settings import WebSettings
from bridge.observe.facts import Fact, Woken
from bridge.service.bridge import Bridge, BridgeSettings
from listeners import Listener
from tests.support import azurite
from tests.support.azurite import ACCOUNT, API_VERSION, KEY, connection_string
from tests.support.background_server import BackgroundServer

pytestmark = pytest.mark.system

system = azurite.system


def before(bridge: Bridge, url: str) -> RelayServer:
    """A relay on a free port before an endpoint."""
    settings = relay_settings(WebSettings(shutdown_timeout=0.2), "127.0.0.1", 0)
    return RelayServer(bridge, read_endpoint(url), settings)


async def with_sdk(url: str, work: Callable[[QueueServiceClient], Any]) -> Any:
    """Run blocking work of the SDK in a thread, with one try for each request."""

    def run() -> Any:
        with QueueServiceClient.from_connection_string(
            connection_string(url), retry_total=0, api_version=API_VERSION
        ) as sdk:
            return work(sdk)

    return await asyncio.to_thread(run)


async def test_every_kind_of_request_passes(system: BackgroundServer) -> None:
    """Keys, shared access, stored policies, metadata, errors: Azurite checks each signature, and answers as ever."""

    def work(sdk: QueueServiceClient) -> None:
        queue = sdk.create_queue("passing", metadata={"team": "billing"})
        assert [found.name for found in sdk.list_queues(name_starts_with="passing")] == ["passing"]
        assert queue.get_queue_properties().metadata == {"team": "billing"}
        sent = queue.send_message("x" * 60_000, visibility_timeout=0, time_to_live=-1)
        held = queue.receive_message(visibility_timeout=60)
        assert (held.id, held.content) == (sent.id, "x" * 60_000)
        queue.update_message(held, content="two", visibility_timeout=0)
        with pytest.raises(HttpResponseError):
            queue.delete_message(held)
        queue.set_queue_access_policy({"reader": AccessPolicy("r", "2999-01-01T00:00:00Z", "2020-01-01T00:00:00Z")})
        token = generate_queue_sas(ACCOUNT, "passing", KEY, policy_id="reader")
        with type(queue).from_queue_url(
            f"{sdk.url}passing" if sdk.url.endswith("/") else f"{sdk.url}/passing",
            credential=token,
            retry_total=0,
            api_version=API_VERSION,
        ) as reader:
            assert [message.content for message in reader.peek_messages()] == ["two"]
            with pytest.raises(HttpResponseError):
                reader.send_message("no")
        with pytest.raises(ResourceNotFoundError):
            sdk.get_queue_client("missing").send_message("x")
        queue.clear_messages()
        queue.delete_queue()

    async with Bridge() as bridge, before(bridge, system.url) as relay:
        await with_sdk(relay.url, work)
        described = bridge.describe(f"{ACCOUNT}/passing")
        # The put and the release; neither the refused ones nor any other request.
        assert described.triggers == 2
        assert bridge.describe(f"{ACCOUNT}/missing") is None


async def test_a_put_wakes_a_listener(system: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sweep, no poll: the worker at Azurite hears of what a producer put through the relay, at once or when due."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(system.url))
    handled: asyncio.Queue[str] = asyncio.Queue()
    reasons: list[str] = []

    async def handle(message: Any) -> None:
        handled.put_nowait(message.text())

    def note(fact: Fact) -> None:
        if isinstance(fact, Woken):
            reasons.append(fact.reason)

    quiet = BridgeSettings(periods=Periods(sweep_s=0))
    async with Bridge(settings=quiet) as bridge, before(bridge, system.url) as relay:
        bridge.observe(note)
        await with_sdk(relay.url, lambda sdk: sdk.create_queue("waking"))
        store = open_store(f"azure:?encoding=text&api_version={API_VERSION}")
        listener = Listener(store, f"{ACCOUNT}/waking", handle, bridge=bridge, handle_signals=False)
        running = asyncio.create_task(listener.run())
        try:
            async with asyncio.timeout(300):
                await with_sdk(relay.url, lambda sdk: sdk.get_queue_client("waking").send_message("now"))
                assert await handled.get() == "now"
                await with_sdk(
                    relay.url, lambda sdk: sdk.get_queue_client("waking").send_message("soon", visibility_timeout=1)
                )
                assert await handled.get() == "soon"
                assert "due" in reasons
        finally:
            await listener.stop()
            await running
            await store.close()
