"""The Python SDK, unchanged, as producer and consumer at the Azure endpoint."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.storage.queue import (
    AccessPolicy,
    BinaryBase64DecodePolicy,
    BinaryBase64EncodePolicy,
    CorsRule,
    QueueClient,
    QueueServiceClient,
    TextBase64DecodePolicy,
    TextBase64EncodePolicy,
)
from azure.storage.queue.aio import QueueServiceClient as AioServiceClient

from bridge.queues.base import NewMessage
from tests.support.azure import ACCOUNT, KEY, Front, connection_string, serving_azure

CREDENTIAL = {"account_name": ACCOUNT, "account_key": KEY}


async def with_sdk(front: Front, work: Callable[[QueueServiceClient], Any]) -> Any:
    """Run blocking work of the SDK in a thread, without any retry that could hide a fault."""

    def run() -> Any:
        with QueueServiceClient.from_connection_string(connection_string(front.server.port), retry_total=0) as sdk:
            return work(sdk)

    return await asyncio.to_thread(run)


async def test_the_way_of_a_message() -> None:
    """Create, send, peek, receive, update, delete: each says what the documents say."""

    def work(sdk: QueueServiceClient) -> None:
        queue = sdk.create_queue("orders", metadata={"Team": "billing"})
        sent = queue.send_message("one")
        assert sent.inserted_on is not None
        assert (sent.expires_on - sent.inserted_on).total_seconds() == pytest.approx(7 * 86_400, abs=1)
        (peeked,) = queue.peek_messages(5)
        assert (peeked.id, peeked.content, peeked.dequeue_count, peeked.pop_receipt) == (sent.id, "one", 0, None)
        held = queue.receive_message(visibility_timeout=60)
        assert (held.id, held.content, held.dequeue_count) == (sent.id, "one", 1)
        assert (held.next_visible_on - held.inserted_on).total_seconds() == pytest.approx(60, abs=3)
        assert queue.receive_message() is None
        updated = queue.update_message(held, content="two", visibility_timeout=0)
        assert updated.pop_receipt != held.pop_receipt
        again = queue.receive_message()
        assert (again.id, again.content, again.dequeue_count) == (sent.id, "two", 2)
        with pytest.raises(HttpResponseError) as refused:
            queue.delete_message(held)
        assert (refused.value.status_code, refused.value.error_code) == (400, "PopReceiptMismatch")
        queue.delete_message(again)
        with pytest.raises(ResourceNotFoundError) as gone:
            queue.delete_message(again)
        assert gone.value.error_code == "MessageNotFound"

    async with serving_azure() as front:
        await with_sdk(front, work)


async def test_headers_are_kept_and_not_shown() -> None:
    """A message that was put with headers is one like any here, and an update of its body leaves them with it."""

    def work(sdk: QueueServiceClient) -> None:
        queue = sdk.get_queue_client("orders")
        held = queue.receive_message(visibility_timeout=60)
        assert held.content == "one"
        queue.update_message(held, content="two", visibility_timeout=0)

    async with serving_azure() as front:
        reference = f"{ACCOUNT}/orders"
        await front.bridge.store.put(reference, [NewMessage("one", headers={"a": "b"})])
        await with_sdk(front, work)
        (message,) = await front.bridge.store.peek(reference)
        assert (message.body, message.headers) == (b"two", {"a": "b"})


async def test_queues_and_metadata() -> None:
    """List with pages and prefix, metadata and the count, create twice, delete."""

    def work(sdk: QueueServiceClient) -> None:
        for name in ("alpha", "beta-1", "beta-2", "gamma"):
            sdk.create_queue(name, metadata={"name": name})
        assert [queue.name for queue in sdk.list_queues(results_per_page=1)] == ["alpha", "beta-1", "beta-2", "gamma"]
        found = list(sdk.list_queues(name_starts_with="beta", include_metadata=True))
        assert [(queue.name, queue.metadata) for queue in found] == [
            ("beta-1", {"name": "beta-1"}),
            ("beta-2", {"name": "beta-2"}),
        ]
        queue = sdk.get_queue_client("alpha")
        queue.send_message("visible")
        queue.send_message("delayed", visibility_timeout=100)
        assert queue.get_queue_properties().approximate_message_count == 2
        queue.set_queue_metadata({"other": "x"})
        assert queue.get_queue_properties().metadata == {"other": "x"}
        with pytest.raises(ResourceExistsError):
            sdk.create_queue("alpha")
        queue.clear_messages()
        assert queue.get_queue_properties().approximate_message_count == 0
        sdk.delete_queue("alpha")
        with pytest.raises(ResourceNotFoundError) as gone:
            queue.send_message("lost")
        assert gone.value.error_code == "QueueNotFound"

    async with serving_azure() as front:
        await with_sdk(front, work)


async def test_encodings_and_sizes() -> None:
    """Plain text, base64 text and binary come back whole; 65,536 bytes after encoding is the limit."""

    def work(sdk: QueueServiceClient) -> None:
        sdk.create_queue("plain").send_message("<a> & \"b\" 'c' ]]> \u00e9\U0001f514\n\tend ")
        got = sdk.get_queue_client("plain").receive_message()
        assert got.content == "<a> & \"b\" 'c' ]]> \u00e9\U0001f514\n\tend "
        text = sdk.get_queue_client(
            "plain", message_encode_policy=TextBase64EncodePolicy(), message_decode_policy=TextBase64DecodePolicy()
        )
        text.send_message("line\r\nline")
        got = text.receive_message()
        assert got.content == "line\r\nline"
        binary = sdk.get_queue_client(
            "plain", message_encode_policy=BinaryBase64EncodePolicy(), message_decode_policy=BinaryBase64DecodePolicy()
        )
        binary.send_message(bytes(range(256)) * 192)
        got = binary.receive_message()
        assert got.content == bytes(range(256)) * 192
        plain = sdk.get_queue_client("plain")
        plain.send_message("x" * 65_536)
        with pytest.raises(HttpResponseError) as refused:
            plain.send_message("x" * 65_537)
        assert refused.value.error_code == "RequestBodyTooLarge"

    async with serving_azure() as front:
        await with_sdk(front, work)


async def test_what_the_native_interface_put() -> None:
    """Text is shown as it is; what XML cannot hold is shown in base64."""
    bodies = [b"plain", b"\xff\x00", b"nul \0 is no XML"]

    def work(sdk: QueueServiceClient) -> list[str]:
        queue = sdk.get_queue_client("native")
        return [message.content for message in queue.receive_messages(messages_per_page=32)]

    from bridge.queues.base import NewMessage

    async with serving_azure() as front:
        await front.bridge.store.put("devstoreaccount1/native", [NewMessage(body) for body in bodies])
        shown = await with_sdk(front, work)
    assert shown == ["plain", *(base64.b64encode(body).decode() for body in bodies[1:])]


async def test_time_to_live() -> None:
    """Never, and longer than a week, are kept as such; a delay beyond the life is refused."""

    def work(sdk: QueueServiceClient) -> None:
        queue = sdk.create_queue("lives")
        never = queue.send_message("x", time_to_live=-1)
        assert never.expires_on.year == 9999
        long = queue.send_message("x", time_to_live=1_000_000)
        assert (long.expires_on - long.inserted_on).total_seconds() == pytest.approx(1_000_000, abs=1)
        for body, life in ((b"0", 0), (b"-2", -2)):
            with pytest.raises(HttpResponseError) as refused:
                queue.send_message(body.decode(), time_to_live=life)
            assert refused.value.error_code == "OutOfRangeQueryParameterValue"
        with pytest.raises(HttpResponseError):
            queue.send_message("x", time_to_live=10, visibility_timeout=10)

    async with serving_azure() as front:
        await with_sdk(front, work)


async def test_properties_and_policies() -> None:
    """Service properties and access policies are set and come back; the count of rules is the service's."""

    def work(sdk: QueueServiceClient) -> None:
        rule = CorsRule(["https://example.org"], ["GET"], max_age_in_seconds=60)
        sdk.set_service_properties(cors=[rule])
        found = sdk.get_service_properties()["cors"]
        assert [each.allowed_origins for each in found] == ["https://example.org"]
        queue = sdk.create_queue("guarded")
        queue.set_queue_access_policy({"readers": AccessPolicy("r", expiry="2030-01-01T00:00:00Z")})
        policies = queue.get_queue_access_policy()
        assert set(policies) == {"readers"}
        assert policies["readers"].permission == "r"

    async with serving_azure() as front:
        await with_sdk(front, work)


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


async def test_another_key_is_refused() -> None:
    """A request that another key signed is a failed authentication, not a missing queue."""

    def run(port: int) -> None:
        key = base64.b64encode(b"another key of the same length!!").decode()
        with QueueServiceClient(
            f"http://127.0.0.1:{port}/devstoreaccount1",
            credential={"account_name": "devstoreaccount1", "account_key": key},
            retry_total=0,
        ) as sdk:
            with pytest.raises(ClientAuthenticationError) as refused:
                sdk.create_queue("orders")
            assert refused.value.error_code == "AuthenticationFailed"

    async with serving_azure() as front:
        await asyncio.to_thread(run, front.server.port)
        assert await front.bridge.store.queues() == []


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
