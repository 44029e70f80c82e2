"""The Azure endpoint whose queues are in PostgreSQL: the same SDK, the same answers, and the same wakes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import AccessPolicy, CorsRule, QueueServiceClient

from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from bridge.service.bridge import Bridge
from tests.bridge.http.azure import test_sdk, test_server
from tests.bridge.http.azure.test_sdk import with_sdk
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.support.azure import ACCOUNT, Front, serving_azure

__all__ = ["schema", "server", "url"]

pytestmark = pytest.mark.system


@contextlib.asynccontextmanager
async def on_postgres(url: str) -> AsyncIterator[Front]:
    """Serve the queues of a database."""
    await init(url)
    async with Bridge(store=PostgresStore(url)) as bridge, serving_azure(bridge) as front:
        yield front


@pytest.mark.parametrize(
    "asked",
    [
        test_sdk.test_the_way_of_a_message,
        test_sdk.test_queues_and_metadata,
        test_sdk.test_encodings_and_sizes,
        test_sdk.test_what_the_native_interface_put,
        test_sdk.test_time_to_live,
        test_sdk.test_the_second_endpoint,
        test_sdk.test_another_key_is_refused,
    ],
)
async def test_the_sdk_finds_the_same(
    asked: Callable[[], Awaitable[None]], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question of the SDK's tests has the answer that the bridge's own queues give."""
    monkeypatch.setattr(test_sdk, "serving_azure", lambda: on_postgres(url))
    await asked()


@pytest.mark.parametrize(
    "asked",
    [
        test_sdk.test_the_asynchronous_sdk,
        test_server.test_statuses_of_a_queues_life,
        test_server.test_sizes,
        test_server.test_an_update_answers_in_headers,
        test_server.test_old_versions_answer_as_they_did,
        test_server.test_only_names_of_this_door_are_listed,
        test_server.test_a_life_of_any_length,
        test_server.test_much_metadata_comes_back,
        test_server.test_draining_takes_no_puts,
        test_server.test_puts_of_both_doors_meet,
    ],
)
async def test_the_wire_says_the_same(asked: Callable[[Front], Awaitable[None]], url: str) -> None:
    """Statuses, headers and bodies of requests that no SDK made."""
    async with on_postgres(url) as front:
        await asked(front)


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


async def test_puts_and_what_is_made_visible_again_are_marked(url: str) -> None:
    """Nobody else would tell the bridge's workers of them."""

    def work(sdk: QueueServiceClient) -> None:
        queue = sdk.create_queue("orders")
        queue.send_message("one")
        held = queue.receive_message()
        queue.update_message(held, visibility_timeout=0)

    async with on_postgres(url) as front:
        await with_sdk(front, work)
        state = front.bridge.describe(f"{ACCOUNT}/orders")
        assert state is not None and state.triggers == 2
