"""The Python SDK, unchanged, as producer and consumer at the Azure endpoint."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.exceptions import (
    HttpResponseError,
)
from azure.storage.queue import (
    AccessPolicy,
    QueueClient,
    QueueServiceClient,
)
from azure.storage.queue.aio import QueueServiceClient as AioServiceClient

from tests.support.azure import ACCOUNT, KEY, Front, connection_string, serving_azure

CREDENTIAL = {"account_name": ACCOUNT, "account_key": KEY}


async def with_sdk(front: Front, work: Callable[[QueueServiceClient], Any]) -> Any:
    """Run blocking work of the SDK in a thread, without any retry that could hide a fault."""

    def run() -> Any:
        with QueueServiceClient.from_connection_string(connection_string(front.server.port), retry_total=0) as sdk:
            return work(sdk)

    return await asyncio.to_thread(run)


async def test_the_second_endpoint() -> None:
    """Statistics and reads by either way in which the SDK addresses a second endpoint."""

    def run(port: int) -> None:
        second = f"127.0.0.1:{port}/devstoreaccount1-secondary"
        with QueueServiceClient.from_connection_string(
            connection_string(port), secondary_hostname=second, retry_total=0
        ) as sdk:
            sdk.create_queue("orders").send_message("x")
            assert sdk.get_service_stats()["geo_replication"]["status"] == "live"
            sdk.location_mode = "secondary"
            assert [queue.name for queue in sdk.list_queues()] == ["orders"]
        with QueueClient(f"http://{second}", "orders", credential=CREDENTIAL, retry_total=0) as queue:
            assert [message.content for message in queue.peek_messages()] == ["x"]
            with pytest.raises(HttpResponseError) as refused:
                queue.send_message("y")
            assert refused.value.status_code == 403

    async with serving_azure() as front:
        await asyncio.to_thread(run, front.server.port)


async def test_policies_and_metadata_come_back_as_they_were_set(front: Front) -> None:

    def run(sdk: QueueServiceClient) -> None:
        queue = sdk.create_queue("orders", metadata={"team": "billing"})
        sdk.create_queue("mail")
        start = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
        expiry = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
        queue.set_queue_access_policy({"readers": AccessPolicy("r", expiry, start)})
        (policy,) = queue.get_queue_access_policy().values()
        assert (policy.permission, policy.start[:19], policy.expiry[:19]) == (
            "r", "2026-11-01T00:00:00", "2030-01-02T03:04:05",
        )  # fmt: skip
        listed = {each.name: each.metadata or {} for each in sdk.list_queues(include_metadata=True)}
        assert listed == {"mail": {}, "orders": {"team": "billing"}}
        assert {each.name: each.metadata for each in sdk.list_queues()} == {"mail": None, "orders": None}

    await with_sdk(front, run)


async def test_the_asynchronous_sdk(front: Front) -> None:
    """The same from the SDK's own asyncio half, with every page of a receive."""
    sdk = AioServiceClient.from_connection_string(connection_string(front.server.port), retry_total=0)
    async with sdk:
        queue = await sdk.create_queue("orders")
        async with queue:
            for number in range(40):
                await queue.send_message(str(number))
            taken = [int(message.content) async for message in queue.receive_messages(messages_per_page=32)]
            assert sorted(taken) == list(range(40))
            properties = await queue.get_queue_properties()
            assert properties.approximate_message_count == 40
            assert [each.name async for each in sdk.list_queues()] == ["orders"]
            await queue.delete_queue()
