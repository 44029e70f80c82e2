"""Bodies stored as blobs and fetched back, and blobs without a claim."""

from __future__ import annotations

import asyncio
import base64
import itertools
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from queuebell.bridge.contract.claim import BadClaim, is_claim, read_claim
from queuebell.bridge.contract.errors import (
    BadInput,
    BlobNotFound,
    ConfigurationError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import Capabilities, NewMessage
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.storage.blobs import base as blobs_base
from queuebell.bridge.storage.blobs import open_blobs
from queuebell.bridge.storage.blobs.memory import MemoryBlobs
from queuebell.bridge.storage.blobs.s3 import S3Blobs
from queuebell.bridge.storage.claim_check import ClaimCheck, Swept
from queuebell.bridge.storage.tables import base as tables_base
from queuebell.bridge.storage.tables import open_table
from tests.support.buses import RecordingBus
from tests.support.processes import PATIENCE_S

QUEUE, POISON = "billing/orders", "billing/orders-poison"
LARGE = b"order " * 50_000
DAY = 86_400.0


class Clock:
    """A clock that the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Blobs(MemoryBlobs):
    """Blobs that can be made to fail: ``fault`` is raised by the next put, after it was done if ``late``."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(uuid.uuid4().hex, clock=clock or Clock())
        self.fault: Exception | None = None
        self.faults_from = 1
        self.puts = 0

    async def put(self, name: str, data: bytes) -> None:
        self.puts += 1
        if self.fault is not None and self.puts >= self.faults_from:
            raise self.fault
        await super().put(name, data)

    async def names(self) -> list[str]:
        return [blob.name for blob in await self.blobs()]


def check_of(blobs: MemoryBlobs, **options: Any) -> ClaimCheck:
    numbers = itertools.count()
    return ClaimCheck(blobs, token=lambda: f"{next(numbers):032x}", **options)


async def aside(check: ClaimCheck, body: bytes, **options: Any) -> bytes:
    return (await check.put_aside(QUEUE, NewMessage(body, **options), 64 * 1024)).body


async def test_a_small_body_travels_as_it_is() -> None:
    blobs = Blobs()
    check = check_of(blobs)
    body = b"x" * (64 * 1024)
    assert await aside(check, body) is body
    assert await check.fetch(body) is body
    await check.drop(body)
    assert await blobs.blobs() == []


async def test_an_own_limit_is_below_the_stores() -> None:
    """A lower limit counts; a higher one than the store's does not."""
    assert is_claim(await aside(check_of(Blobs(), limit=10), b"x" * 11))
    assert is_claim(await aside(check_of(Blobs(), limit=10**9), LARGE))
    with pytest.raises(BadInput):
        check_of(Blobs(), limit=-1)


async def test_a_body_beyond_all_bounds_is_refused() -> None:
    """At a put, and by the size in a claim: nothing is unpacked above the limit."""
    with pytest.raises(BadInput, match="at most 1000 bytes"):
        await aside(check_of(Blobs(), body_max=1000, limit=0), b"x" * 1001)
    blobs = Blobs()
    travels = await aside(check_of(blobs), LARGE)
    with pytest.raises(BadClaim, match="limit of 1000"):
        await check_of(blobs, body_max=1000).fetch(travels)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-20],
        lambda data: b"x" + data,
        lambda data: zlib.compress(LARGE + b"x"),
        lambda data: zlib.compress(b"X" + LARGE[1:]),
        lambda data: b"",
    ],
)
async def test_a_damaged_blob_is_refused(damage: Callable[[bytes], bytes]) -> None:
    """Cut, overwritten or exchanged: the body is not returned."""
    blobs = Blobs()
    check = check_of(blobs)
    travels = await aside(check, LARGE)
    name = read_claim(travels).blob
    await blobs.put(name, damage(await blobs.get(name)))
    with pytest.raises(BadClaim, match="damaged"):
        await check.fetch(travels)


async def test_a_claim_without_its_blob_says_so() -> None:
    """A drop removes the blob: later reads of the claim fail, and a second drop succeeds."""
    check = check_of(Blobs())
    travels = await aside(check, LARGE)
    await check.drop(travels)
    await check.drop(travels)
    await check.drop(b"queuebell-claim:nonsense")
    for call in (check.fetch(travels), check.copy(travels, POISON)):
        with pytest.raises(BlobNotFound):
            await call


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), UnknownOutcome("no answer"), StoreFull("full")])
async def test_a_blob_store_that_fails_puts_nothing(fault: Exception) -> None:
    """No message without its body: the put fails with a known outcome, and the first body's blob is removed."""
    blobs, bus = Blobs(), RecordingBus()
    blobs.fault, blobs.faults_from = fault, 2
    async with MemoryStore(uuid.uuid4().hex) as store, Publisher(bus) as publisher:
        queue = PublishingQueue(store, publisher, claim_check=check_of(blobs))
        with pytest.raises((StoreUnavailable, StoreFull)) as failed:
            await queue.put(QUEUE, [LARGE, LARGE])
        assert not isinstance(failed.value, UnknownOutcome)
        assert await store.depth(QUEUE) is None
    assert await blobs.names() == []
    assert bus.taken == []


class Site:
    """A queue, its blobs and one clock for both."""

    def __init__(self, kind: type[MemoryStore] = MemoryStore) -> None:
        self.clock = Clock()
        self.blobs = Blobs(self.clock)
        self.check = check_of(self.blobs)
        self.store = kind(uuid.uuid4().hex, clock=self.clock)

    async def put(self, queue: str = QUEUE, **options: Any) -> bytes:
        message = await self.check.put_aside(queue, NewMessage(LARGE, **options), 1024, self.store)
        await self.store.put(queue, [message])
        return message.body

    async def orphan(self, queue: str = QUEUE, **options: Any) -> str:
        """Write a blob without putting its message, as a crash would."""
        message = await self.check.put_aside(queue, NewMessage(LARGE, **options), 1024, self.store)
        return read_claim(message.body).blob

    async def sweep(self, queue: str = QUEUE, **options: Any) -> Swept:
        return await self.check.sweep(self.store, queue, **options)


async def test_a_claim_that_was_moved_between_partitions_and_their_poison_queue_counts() -> None:
    """All partitions share a poison queue; a replayed message returns to one of them, and its blob stays."""
    site = Site()
    partitions = [f"{QUEUE}-p{number}" for number in range(12)]
    for origin, goal in ((partitions[3], POISON), (POISON, partitions[11]), (POISON, f"{QUEUE}-plus")):
        await site.store.put(goal, [await site.check.put_aside(origin, NewMessage(LARGE), 1024)])
    site.clock.now += 8 * DAY
    assert await site.sweep(partitions[3]) == Swept(referenced=1)
    assert await site.sweep(POISON) == Swept(removed=1, referenced=1), "a name that only begins alike is no partition"
    await site.store.receive(partitions[11])
    assert await site.sweep(POISON) == Swept(unknown=1)


class Approximate(MemoryStore):
    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, exact_depth=False)


async def test_a_rough_count_proves_nothing() -> None:
    """Where counts are approximate, blobs stay until a week after their time to live."""
    site = Site(Approximate)
    await site.orphan()
    await site.orphan(ttl_s=int(DAY))
    site.clock.now += 8 * DAY
    assert await site.sweep() == Swept(unknown=2)
    site.clock.now += 1
    assert await site.sweep() == Swept(removed=1, unknown=1)


async def test_a_stranger_s_blob_is_left_alone() -> None:
    site = Site()
    await site.blobs.put(f"{QUEUE}/mine", b"x")
    site.clock.now += 100 * DAY
    assert await site.sweep() == Swept()
    assert await site.blobs.names() == [f"{QUEUE}/mine"]


@pytest.mark.parametrize("age", [0, 3599, -1, float("nan")])
async def test_a_sweep_of_young_blobs_is_refused(age: float) -> None:
    """A put under way already has its blob: the least age is an hour."""
    site = Site()
    with pytest.raises(BadInput):
        await site.sweep(older_than=age)


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://files", "httpx://files"])
def test_an_endpoint_of_s3_is_an_address_of_http(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="http:// or https://"):
        S3Blobs(f"s3://invoices?endpoint={endpoint}")
    for good in ("", "?endpoint=http://localhost:9000", "?endpoint=https://files.example", "?region=eu-central-1"):
        S3Blobs(f"s3://invoices{good}")


KEY = base64.b64encode(b"key").decode()


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[int]:
    """Yield a port where requests are read and never answered."""
    held: set[asyncio.StreamWriter] = set()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.add(writer)
        while await reader.read(65536):
            pass

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for writer in held:
        writer.transport.abort()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit calls to less than the libraries' own time-outs."""
    for base in (blobs_base, tables_base):
        monkeypatch.setattr(base, "CALL_S", 0.2)
        monkeypatch.setattr(base, "LISTING_S", 0.2)


@pytest.fixture
def account(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the silent server as Amazon's and Azure's service in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    at = f"http://127.0.0.1:{silent}/name"
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING",
        f"DefaultEndpointsProtocol=http;AccountName=name;AccountKey={KEY};BlobEndpoint={at};TableEndpoint={at};"
        f"QueueEndpoint={at};",
    )


BLOB_CALLS: dict[str, Callable[[Any], Coroutine[Any, Any, object]]] = {
    "put": lambda store: store.put("a/b", bytes(100_000)),
    "get": lambda store: store.get("a/b"),
    "delete": lambda store: store.delete("a/b"),
    "list": lambda store: store.blobs(),
}
TABLE_CALLS: dict[str, Callable[[Any], Coroutine[Any, Any, object]]] = {
    "insert": lambda store: store.insert("p", "r", b""),
    "get": lambda store: store.get("p", "r"),
    "replace": lambda store: store.replace("p", "r", b"", "7"),
    "delete": lambda store: store.delete("p", "r", "7"),
    "list": lambda store: store.entities("p"),
}


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("call", BLOB_CALLS)
@pytest.mark.parametrize("url", ["s3://invoices?region=eu-west-1&endpoint=http://127.0.0.1:{}", "azure:"])
async def test_a_blob_store_that_never_answers_ends_each_call(silent: int, url: str, call: str) -> None:
    """An S3 put waits for ``100 Continue``, which no time-out of the library counts."""
    async with asyncio.timeout(PATIENCE_S), open_blobs(url.format(silent)) as store:
        with pytest.raises(UnknownOutcome, match="no answer within"):
            await BLOB_CALLS[call](store)


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("call", TABLE_CALLS)
@pytest.mark.parametrize(
    "url",
    [
        "azure:",
        "postgres://u:p@127.0.0.1:{}/d",
    ],
)
async def test_a_table_store_that_never_answers_ends_each_call(silent: int, url: str, call: str) -> None:
    async with asyncio.timeout(PATIENCE_S), open_table(url.format(silent)) as store:
        with pytest.raises(UnknownOutcome, match="no answer within"):
            await TABLE_CALLS[call](store)
