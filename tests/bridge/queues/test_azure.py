"""What of the Azure store the conformance suite does not ask: addresses, encodings, and that nothing is sent twice."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from aiohttp import web

from queuebell.bridge.contract.errors import (
    BadInput,
    BadQueueReference,
    ConfigurationError,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.azure.account import EMULATOR, VARIABLE, AzureAccount
from queuebell.bridge.queues.azure.store import AzureAddress, AzureStore, Encoding
from queuebell.bridge.queues.base import Claim, NewMessage, Release, Settlement
from tests.bridge.queues.scripted_server import HangUp, ScriptedServer
from tests.support.azurite import connection_string
from tests.support.processes import free_port

QUEUE = "devstoreaccount1/orders"
CLOUD = "DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=czNjcmV0;EndpointSuffix=core.windows.net"


def address(url: str, **variables: str) -> AzureAddress:
    return AzureAddress(url, variables)


def test_connection_strings_come_from_the_environment() -> None:
    """One has no name, others have theirs in capitals; the emulator's short form is known; no secret is shown."""
    where = address("azure:", AZURE_STORAGE_CONNECTION_STRING=CLOUD)
    assert (where.account, where.endpoint) == ("shop", "https://shop.queue.core.windows.net")
    assert "czNjcmV0" not in repr(where)
    where = address("azure:second-one", AZURE_STORAGE_CONNECTION_STRING_SECOND_ONE="UseDevelopmentStorage=true")
    assert where.connection_string == EMULATOR
    assert where.endpoint == "http://127.0.0.1:10001/devstoreaccount1"
    where = address("azure:", **{VARIABLE: "QueueEndpoint=https://a1.queue.example/;SharedAccessSignature=sv=1&sig=x"})
    assert (where.account, where.endpoint) == ("a1", "https://a1.queue.example")


@pytest.mark.parametrize(
    "url",
    [
        "azure:", "azure:other", "azure://host", "azure:a/b", "azure:x?encoding=utf8", "azure:x?api_version=new",
        "azure:x?sig=s3cret", "azure:x?account=a.b", "azure:empty",
    ],
)  # fmt: skip
def test_addresses_that_are_none(url: str) -> None:
    """A missing variable or a strange option is a mistake of the configuration, and is not repeated."""
    with pytest.raises(ConfigurationError) as refused:
        address(url, AZURE_STORAGE_CONNECTION_STRING_X=CLOUD, AZURE_STORAGE_CONNECTION_STRING_EMPTY="Key=s3cret")
    assert "s3cret" not in str(refused.value)


def test_the_account_is_the_storage_account_or_what_the_address_calls_it() -> None:
    """References of another account are refused, for their queues are elsewhere."""
    where = address("azure:", AZURE_STORAGE_CONNECTION_STRING=CLOUD)
    assert where.name("shop/orders") == "orders"
    with pytest.raises(BadQueueReference):
        where.name("billing/orders")
    where = address("azure:?account=billing", AZURE_STORAGE_CONNECTION_STRING=CLOUD)
    assert where.name("billing/orders") == "orders"


@pytest.mark.parametrize("queue", ["ab", "a" * 64, "Orders", "or_ders", "or--ders", "orders-"])
def test_azures_own_rules_for_names(queue: str) -> None:
    """What Azure refuses as a queue's name is refused before anything is sent."""
    where = address("azure:", AZURE_STORAGE_CONNECTION_STRING=CLOUD)
    with pytest.raises(BadQueueReference):
        where.name(f"shop/{queue}")


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [("base64", b"hi", "aGk="), ("auto", b"\xff\x00", "/wA="), ("text", "grün & <b>".encode(), "grün & <b>")],
)
def test_encodings_both_ways(kind: str, body: bytes, text: str) -> None:
    encoding = Encoding(kind)
    encoding.check(body)
    assert encoding.written(body) == text
    assert encoding.read(text, "id") == body


@pytest.mark.parametrize("text", ["<not base64 & xml>", "abc", "YWJj YWJj", "grün", "YWJj\n"])
def test_plain_text_is_never_decoded_to_garbage(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """What is not strictly base64 is given as it stands; base64 alone says so, where auto expects it."""
    with caplog.at_level(logging.WARNING, "queuebell.store"):
        assert Encoding("auto").read(text, "id") == text.encode()
        assert caplog.messages == []
        assert Encoding("base64").read(text, "id") == text.encode()
        assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        ("base64", b"x" * 49_153, "message_too_large"), ("text", b"x" * 65_537, "message_too_large"),
        ("text", b"\xff", "bad_parameter"), ("text", b"\x00", "bad_parameter"),
    ],
)  # fmt: skip
def test_bodies_that_do_not_fit(kind: str, body: bytes, code: str) -> None:
    """The service counts what is written; text holds no other bytes."""
    with pytest.raises(BadInput) as refused:
        Encoding(kind).check(body)
    assert refused.value.code == code


def messages(*ids: str) -> str:
    """An answer of the service to a put or a receive."""
    when = "Fri, 20 Nov 2026 12:00:00 GMT"
    one = (
        "<QueueMessage><MessageId>{}</MessageId><InsertionTime>{when}</InsertionTime><ExpirationTime>{when}"
        "</ExpirationTime><PopReceipt>r</PopReceipt><TimeNextVisible>{when}</TimeNextVisible><DequeueCount>1"
        "</DequeueCount><MessageText>aGk=</MessageText></QueueMessage>"
    )
    listed = "".join(one.format(id_, when=when) for id_ in ids)
    return f'<?xml version="1.0" encoding="utf-8"?><QueueMessagesList>{listed}</QueueMessagesList>'


def xml(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/xml")


def fault(status: int, code: str, detail: str = "d") -> web.Response:
    return web.Response(
        text=f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message>"
        f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail></Error>",
        status=status, content_type="application/xml", headers={"x-ms-error-code": code},
    )  # fmt: skip


@pytest.fixture
def store_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], AzureStore]:
    def made(url: str) -> AzureStore:
        monkeypatch.setenv(VARIABLE, connection_string(url))
        store = open_store("azure:")
        assert isinstance(store, AzureStore)
        return store

    return made


StoreAt = Callable[[str], AzureStore]


class TestRequests:
    @pytest.mark.parametrize("call", ["receive", "put", "settle"])
    async def test_a_request_without_an_answer_is_not_repeated(self, store_at: StoreAt, call: str) -> None:
        """GET, POST, PUT and DELETE are sent once, whatever SDK and HTTP client would do (L6)."""

        def hang_up(request: web.Request, _: bytes) -> web.Response:
            raise HangUp

        async with ScriptedServer(hang_up) as server, store_at(server.url) as store:
            calls = {
                "receive": [store.receive(QUEUE)],
                "put": [store.put(QUEUE, [NewMessage(b"x")])],
                "settle": [
                    store.settle(QUEUE, Settlement(delete=[Claim("m", "r")])),
                    store.settle(QUEUE, Settlement(release=[Release("m", "r")])),
                ],
            }
            for number, question in enumerate(calls[call], 1):
                with pytest.raises(UnknownOutcome):
                    await question
                assert len(server.asked) == number
            for others in calls.values():
                for question in others:
                    question.close()

    async def test_a_busy_service_is_asked_once(self, store_at: StoreAt) -> None:
        """503 is told and not retried below; 500 leaves the outcome open; 403 is no reason to try again."""
        answers = iter([fault(503, "ServerBusy"), fault(500, "OperationTimedOut"), fault(403, "AuthorizationFailure")])
        async with ScriptedServer(lambda *_: next(answers)) as server, store_at(server.url) as store:
            with pytest.raises(StoreUnavailable) as busy:
                await store.receive(QUEUE)
            assert not isinstance(busy.value, UnknownOutcome)
            with pytest.raises(UnknownOutcome):
                await store.receive(QUEUE)
            with pytest.raises(StoreError) as refused:
                await store.receive(QUEUE)
            assert not refused.value.retryable
            assert len(server.asked) == 3

    async def test_a_key_that_is_wrong_is_a_mistake_of_the_configuration(self, store_at: StoreAt) -> None:
        """Not where the key has worked before, nor where the service says that the time is what is wrong."""
        old = "Request date header too old: 'Fri, 20 Nov 2026 12:00:00 GMT'"
        answers = iter(
            [
                fault(403, "AuthenticationFailed", old), fault(403, "AuthenticationFailed"),
                xml(messages("m1")), fault(403, "AuthenticationFailed"),
            ]
        )  # fmt: skip
        async with ScriptedServer(lambda *_: next(answers)) as server, store_at(server.url) as store:
            with pytest.raises(StoreError, match="clock is wrong"):
                await store.receive(QUEUE)
            with pytest.raises(
                ConfigurationError, match="rejects the credentials: AuthenticationFailed; check AccountKey"
            ):
                await store.receive(QUEUE)
            await store.receive(QUEUE)
            with pytest.raises(StoreError, match="rejects the credentials"):
                await store.receive(QUEUE)

    async def test_a_version_that_the_service_does_not_know_is_told_with_its_remedy(self, store_at: StoreAt) -> None:
        answer = fault(400, "InvalidHeaderValue")
        async with ScriptedServer(lambda *_: answer) as server, store_at(server.url) as store:
            with pytest.raises(ConfigurationError, match="InvalidHeaderValue") as refused:
                await store.receive(QUEUE)
            remedy = str(refused.value).rpartition("as in ")[2]
            assert remedy == "azure:?api_version=2025-11-05"
            assert isinstance(open_store(remedy), AzureStore)

    async def test_a_put_that_stands_in_part(self, store_at: StoreAt) -> None:
        """Messages go one by one: where a later one fails, the outcome of the put is unknown."""
        answers = iter([xml(messages("m1"), 201), fault(503, "ServerBusy")])
        async with ScriptedServer(lambda *_: next(answers)) as server, store_at(server.url) as store:
            with pytest.raises(UnknownOutcome):
                await store.put(QUEUE, [NewMessage(b"x"), NewMessage(b"y"), NewMessage(b"z")])
            assert len(server.asked) == 2

    async def test_nobody_there(self, store_at: StoreAt) -> None:
        """An address where nobody listens is told as such; nothing was sent."""
        async with store_at(f"http://127.0.0.1:{free_port()}") as store:
            with pytest.raises(StoreUnavailable) as unreachable:
                await store.receive(QUEUE)
            assert not isinstance(unreachable.value, UnknownOutcome)


def account(url: str, **environment: str) -> AzureAccount:
    return AzureAccount(url, "claim_check", "container", "bodies", environment)
