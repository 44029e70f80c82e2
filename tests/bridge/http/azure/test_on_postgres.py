"""The Azure endpoint whose queues are in PostgreSQL: the same SDK, the same answers, and the same wakes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import AccessPolicy, CorsRule, QueueServiceClient

from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from bridge.service.bridge import Bridge
from bridge.triggers.attachment import Attachments, BusSettings
from tests.bridge.http.azure import test_sdk, test_server
from tests.bridge.http.azure.test_sdk import with_sdk
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.support.azure import ACCOUNT, Front, fault, serving_azure
from tests.support.brokers import NatsServer
from tests.support.processes import PATIENCE_S, until

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


@contextlib.asynccontextmanager
async def two(url: str, folder: Path) -> AsyncIterator[list[Front]]:
    """Two bridges of a cluster, each with an endpoint, on one database."""
    await init(url, notify=True)
    async with contextlib.AsyncExitStack() as stack:
        nats = await stack.enter_async_context(NatsServer(folder))
        fronts: list[Front] = []
        for place in range(2):
            engine = PostgresStore(url)
            bridge = await stack.enter_async_context(Bridge(store=engine))
            buses = await stack.enter_async_context(
                Attachments(
                    bridge, nats=[f"nats://127.0.0.1:{nats.port}"], postgres=[url], ours={url: engine.puts_by},
                    settings=BusSettings(cluster={"name": "c", "address": f"{place}"}),
                )
            )  # fmt: skip
            checks = [buses.buses["nats"].check, buses.databases["postgres"].check]
            await until(lambda checks=checks: all(check()[0] for check in checks), "it hears both", PATIENCE_S)
            fronts.append(await stack.enter_async_context(serving_azure(bridge)))
        yield fronts


def marks(front: Front) -> int:
    state = front.bridge.describe(f"{ACCOUNT}/orders")
    return 0 if state is None else state.triggers


async def test_a_message_passes_from_one_bridge_to_the_other(url: str, tmp_path: Path) -> None:
    """Leased at one it is hidden at both, and its newest receipt is good at both; an older one is at none."""
    async with two(url, tmp_path) as (one, other):
        assert (await one.ask("PUT", "/orders")).status == 201
        assert (await other.ask("PUT", "/orders")).status == 204, "it is there already"
        put = await one.put("orders", "a")
        (held,) = await other.get("orders", "?visibilitytimeout=600")
        assert (held.id, held.text, held.count) == (put.id, "a", 1)
        assert await one.get("orders") == await other.get("orders") == []
        assert await one.get("orders", "?peekonly=true") == []

        # Renewed with another body at the bridge that did not lease it: the receipt before is void at both.
        path = f"/orders/messages/{held.id}?popreceipt={{}}&visibilitytimeout={{}}"
        renewed = await one.ask("PUT", path.format(quote(held.receipt, safe=""), 600))
        assert renewed.status == 204
        for front in (one, other):
            assert fault(await front.delete("orders", held)) == (400, "PopReceiptMismatch")
        newest = renewed.headers["x-ms-popreceipt"]
        assert await other.get("orders") == []

        # Made visible at once at one: given out at the other, and both bridges' workers hear of it.
        before = marks(one), marks(other)
        assert (await other.ask("PUT", path.format(quote(newest, safe=""), 0))).status == 204
        await until(lambda: marks(one) > before[0] and marks(other) > before[1], "both have heard", PATIENCE_S)
        (again,) = await one.get("orders", "?visibilitytimeout=600")
        assert (again.text, again.count) == ("a", 2)
        assert (await other.delete("orders", again)).status == 204
        assert fault(await one.delete("orders", again)) == (404, "MessageNotFound")


async def test_a_put_at_one_is_one_mark_at_each_and_a_delay_holds_at_both(url: str, tmp_path: Path) -> None:
    """What is put for later is given out by neither before; the put's own receipt is good at the other bridge."""
    async with two(url, tmp_path) as (one, other):
        await one.ask("PUT", "/orders")
        later = await one.put("orders", "later", "?visibilitytimeout=600")
        await one.put("orders", "now")
        await until(lambda: marks(one) == 2 == marks(other), "each is marked at both", PATIENCE_S)
        assert [message.text for message in await other.get("orders", "?numofmessages=32")] == ["now"]
        assert await one.get("orders", "?numofmessages=32") == []
        assert (await other.delete("orders", later)).status == 204
        reply = await one.ask("GET", "/orders?comp=metadata")
        assert reply.headers["x-ms-approximate-messages-count"] == "1"
        assert (await other.ask("DELETE", "/orders")).status == 204
        assert fault(await one.ask("GET", "/orders/messages")) == (404, "QueueNotFound")
