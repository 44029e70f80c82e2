"""What of the SQS store the conformance suite does not ask: names, bodies, refusals, and that nothing is sent twice."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from queuebell.bridge.contract.errors import (
    BadQueueReference,
    ConfigurationError,
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import (
    Claim,
    NewMessage,
    Release,
    Settlement,
)
from queuebell.bridge.queues.sqs.errors import queue_meaning
from queuebell.bridge.queues.sqs.store import IN_FLIGHT_MAX, SqsAddress, SqsStore
from tests.bridge.queues.scripted_server import ScriptedServer
from tests.support.moto import KEYS, give_keys

QUEUE = "shop/orders"
ACCOUNT = "sqs://eu-central-1?account=shop"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    give_keys(monkeypatch)


@given(st.text("ab_-", max_size=8), st.sampled_from(["sqs://eu-central-1", "sqs://eu-central-1/a-", ACCOUNT]))
def test_a_name_has_a_reference_that_leads_back_or_none(name: str, url: str) -> None:
    where = SqsAddress(url)
    reference = where.reference(name)
    assert reference is None or where.name(reference) == name


def test_one_account_keeps_names_as_they_are() -> None:
    where = SqsAddress("sqs://eu-central-1?account=shop")
    assert where.name("shop/orders") == "orders"
    assert where.reference("any_queue-7") == "shop/any_queue-7"
    with pytest.raises(BadQueueReference, match="the reference has another"):
        where.name("other/orders")


def test_names_have_a_limit() -> None:
    """A name that SQS has no room for is refused as a reference."""
    where = SqsAddress("sqs://eu-central-1")
    assert len(where.name(f"a/{'q' * 78}")) == 80
    with pytest.raises(BadQueueReference, match="at most 80 characters"):
        where.name(f"a/{'q' * 79}")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        *(
            (f"sqs://{place}", "an address of SQS is sqs://REGION")
            for place in ("", "EU", "e", "user:s3cret@eu-central-1")
        ),
        *((f"sqs://eu-central-1/{rest}", "an address of SQS is sqs://REGION") for rest in ("a/b", "a.fifo", "a#b")),
        ("sqs://[eu-central-1", "the address is malformed"),
        ("sqs://eu-central-1?secret=s3cret", "1 unknown options; those of sqs:// are account, endpoint, wait"),
        ("sqs://eu-central-1?secret=&other=", "2 unknown options"),
        *(
            (f"sqs://eu-central-1?wait={wait}", "wait is the seconds of a long poll, 1 to 20")
            for wait in ("0", "21", "²", "")
        ),
        ("sqs://eu-central-1?endpoint=ftp://s3cret", "endpoint must start with http:// or https://"),
        ("sqs://eu-central-1?account=a.b", "account must be the account of a queue reference"),
    ],
)
def test_addresses_that_are_none(url: str, says: str) -> None:
    """A malformed address is a mistake of the configuration, and is not repeated."""
    with pytest.raises(ConfigurationError, match=f"^store: {re.escape(says)}") as refused:
        open_store(url)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("code", "status", "kind", "said"),
    [
        *((code, 400, QueueNotFound, "there is no such queue") for code in ("QueueDoesNotExist", "A.NonExistentQueue")),
        *(
            (code, 400, StoreUnavailable, f"temporarily unavailable: {code}")
            for code in ("SlowDown", "Throttling", "KmsThrottled")
        ),
        *(("Any", status, StoreUnavailable, "temporarily unavailable: Any") for status in (429, 503)),
        ("", 503, StoreUnavailable, "temporarily unavailable: 503"),
        *(("Any", status, UnknownOutcome, "the service failed: Any") for status in (500, 599)),
        ("Any", 499, StoreError, "rejected: Any; nothing was changed. Check credentials and policy for sqs:X orders"),
        ("", 400, StoreError, "rejected: 400; nothing was changed. Check credentials and policy for sqs:X orders"),
        (
            "ExpiredToken", 403, ConfigurationError,
            "the service rejects the credentials: ExpiredToken; check the access key, its secret and its token",
        ),
    ],
)  # fmt: skip
def test_what_an_error_means(code: str, status: int, kind: type[QueuebellError], said: str) -> None:
    """Its class says whether another try is worth it, and its text what the service said."""
    answer = {"Error": {"Code": code, "Message": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = queue_meaning(ClientError(answer, "ReceiveMessage"), "sqs:X orders", accepted_before=False)
    assert (type(error), str(error)) == (kind, f"sqs: {said}")


def told(code: str, status: int = 400, detail: str | None = None) -> web.Response:
    """An error as the service words it."""
    return web.json_response({"__type": f"com.amazonaws.sqs#{code}", "message": detail or code}, status=status)


def service(**answers: Callable[[dict[str, Any]], Any]) -> ScriptedServer:
    """A server that answers operations, and knows where the queue is; ``asked`` is kept by the operation's name."""

    def answering(request: web.Request, body: bytes) -> web.Response:
        operation = request.headers["X-Amz-Target"].rpartition(".")[2]
        server.asked[-1] = ("POST", operation)
        if operation == "GetQueueUrl" and operation not in answers:
            return web.json_response({"QueueUrl": f"{server.url}/1/shop-orders"})
        answer = answers[operation](json.loads(body))
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    server = ScriptedServer(answering)
    return server


def store_at(server: ScriptedServer) -> SqsStore:
    return SqsStore(f"sqs://eu-central-1?endpoint={server.url}")


def message(id_: str, receipt: str) -> dict[str, Any]:
    """A message as the service gives it out."""
    attributes = {"SentTimestamp": "1700000000123", "ApproximateReceiveCount": "3"}
    return {"MessageId": id_, "ReceiptHandle": receipt, "Body": "hi", "Attributes": attributes}


def counts(visible: int, leased: int, delayed: int = 0) -> Callable[[dict[str, Any]], Any]:
    attributes = {
        "ApproximateNumberOfMessages": str(visible),
        "ApproximateNumberOfMessagesNotVisible": str(leased),
        "ApproximateNumberOfMessagesDelayed": str(delayed),
    }
    return lambda _: {"Attributes": attributes}


class TestRequests:
    async def test_two_calls_of_a_queue_that_is_gone(self) -> None:
        async with service(PurgeQueue=lambda _: told("QueueDoesNotExist")) as server, store_at(server) as store:
            found = await asyncio.gather(store.clear(QUEUE), store.clear(QUEUE), return_exceptions=True)
            assert [type(one) for one in found] == [QueueNotFound] * 2
            server.asked.clear()
            with pytest.raises(QueueNotFound):
                await store.clear(QUEUE)
            assert server.asked == [("POST", "GetQueueUrl"), ("POST", "PurgeQueue")]

    async def test_what_a_policy_lacks_is_named(self) -> None:
        """The action as a policy writes it, and the queue as SQS calls it."""
        for refused, action in (("GetQueueUrl", "GetQueueUrl"), ("DeleteMessageBatch", "DeleteMessage")):
            answers = {refused: lambda _: told("AccessDenied", 403)}
            async with service(**answers) as server, store_at(server) as store:
                with pytest.raises(StoreError, match=f"policy for sqs:{action} shop-orders$"):
                    await store.settle(QUEUE, Settlement(delete=[Claim("1", "r")]))

    async def test_over_the_limit_is_blocked(self) -> None:
        """At the limit of leased messages an answer proves nothing, be the limit told as an error or counted (L8)."""
        async with service(ReceiveMessage=lambda _: told("OverLimit", 403)) as server, store_at(server) as store:
            assert (await store.receive(QUEUE)).blocked
        server = service(ReceiveMessage=lambda _: {}, GetQueueAttributes=counts(5, IN_FLIGHT_MAX))
        async with server, store_at(server) as store:
            received = await store.receive(QUEUE)
            assert received.blocked and received.messages == []

    async def test_a_put_that_stands_in_part(self) -> None:
        """Where some messages were put the outcome is unknown; where none was, it is not."""
        done = {"Id": "0", "MessageId": "m", "MD5OfMessageBody": "9dd4e461268c8034f5c8564e155c67a6"}
        failed = {"Id": "1", "SenderFault": False, "Code": "InternalFailure"}
        refused = [{"Id": id_, "SenderFault": True, "Code": code} for id_, code in ("0B", "1A")]
        full = [{**done, "Id": str(number)} for number in range(10)]
        answers = iter(
            [
                {"Successful": [done], "Failed": [failed]}, {"Failed": [failed]}, {"Failed": refused},
                {"Successful": full}, {"Failed": [failed]},
            ]
        )  # fmt: skip
        async with service(SendMessageBatch=lambda _: next(answers)) as server, store_at(server) as store:
            part = "sqs: 1 of 2 messages of a request were put: InternalFailure"
            none, refusal = (
                "sqs: nothing was put: InternalFailure",
                "sqs: a message was rejected: A, B; nothing was put",
            )
            for said in (part, none, refusal):
                with pytest.raises(StoreError) as wrong:
                    await store.put(QUEUE, [NewMessage(b"x"), NewMessage(b"y")])
                assert str(wrong.value) == said
                assert wrong.value.retryable is (said != refusal)
                assert isinstance(wrong.value, UnknownOutcome) is (said == part)
            with pytest.raises(UnknownOutcome, match="some of 11 messages were put, then: sqs: nothing was put"):
                await store.put(QUEUE, [NewMessage(b"x")] * 11)

    async def test_a_release_too_long_after_the_receive_is_refused_alone(self) -> None:
        """SQS holds a message for 12 hours from its receive: the item fails by its own code."""
        failed = {"Id": "0", "SenderFault": True, "Code": "InvalidParameterValue"}
        server = service(ChangeMessageVisibilityBatch=lambda _: {"Failed": [failed]})
        async with server, store_at(server) as store:
            settling = await store.settle(QUEUE, Settlement(release=[Release("m", "r", 39_600_000)]))
            assert settling.release[0].code == "bad_parameter"

    async def test_what_fails_at_the_service_is_open_alone(self) -> None:
        """Of a batch, and of several: the others are answered; where all fail so, it is the outcome of the call."""
        fault = {"SenderFault": False, "Code": "InternalError"}
        busy = iter([{"Failed": [{**fault, "Id": "1"}]}, told("ServiceUnavailable", 503)])
        claims = [Claim(f"m{number}", f"r{number}") for number in range(12)]
        async with service(DeleteMessageBatch=lambda _: next(busy)) as server, store_at(server) as store:
            outcomes = (await store.settle(QUEUE, Settlement(delete=claims))).delete
            codes = [one.code for one in outcomes]
            assert sorted(map(str, codes)) == ["None"] * 9 + ["storage_unavailable"] * 2 + ["unknown_outcome"]
        failed = {"Failed": [{**fault, "Id": "0"}]}
        async with service(DeleteMessageBatch=lambda _: failed) as server, store_at(server) as store:
            with pytest.raises(UnknownOutcome):
                await store.settle(QUEUE, Settlement(delete=claims[:1]))

    async def test_without_credentials_it_says_so(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A machine that has none is told what to set, and nothing is sent."""
        for name in KEYS:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        async with service() as server, store_at(server) as store:
            with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID"):
                await store.receive(QUEUE)
            assert server.asked == []
