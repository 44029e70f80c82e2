"""The Azure endpoint whose queues are in PostgreSQL: the same SDK, the same answers, and the same wakes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import AccessPolicy, CorsRule, QueueServiceClient

from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.bridge.service.bridge import Bridge
from tests.bridge.http.azure.test_sdk import with_sdk
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.support.azure import Front, serving_azure

__all__ = ["schema", "server", "url"]

pytestmark = pytest.mark.system


@contextlib.asynccontextmanager
async def on_postgres(url: str) -> AsyncIterator[Front]:
    """Serve the queues of a database."""
    await init(url)
    async with Bridge(store=PostgresStore(url)) as bridge, serving_azure(bridge) as front:
        yield front


async def test_what_would_stand_in_a_file_of_one_bridge_is_refused(url: str) -> None:
    """Service properties and stored access policies: 501, and nothing is kept."""

    def work(sdk: QueueServiceClient) -> None:
        queue = sdk.create_queue("orders")
        for change in (
            lambda: sdk.set_service_properties(cors=[CorsRule(["*"], ["GET"])]),
            lambda: queue.set_queue_access_policy({"all": AccessPolicy(permission="r")}),
        ):
            with pytest.raises(HttpResponseError) as refused:
                change()
            assert refused.value.status_code == 501
        assert queue.get_queue_access_policy() == {}
        assert not sdk.get_service_properties()["cors"]

    async with on_postgres(url) as front:
        await with_sdk(front, work)
