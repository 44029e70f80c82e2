"""Calls to blob stores and table stores end in their time, whoever does not answer."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio

from bridge import ClaimCheck, NewMessage
from bridge.contract.errors import StoreUnavailable, UnknownOutcome
from bridge.storage.blobs import base as blobs_base
from bridge.storage.blobs import open_blobs
from bridge.storage.tables import base as tables_base
from bridge.storage.tables import open_table
from bridge.storage.within import within
from tests.support.processes import PATIENCE_S
from tests.support.sim_loop import pass_time, simulated

KEY = base64.b64encode(b"key").decode()


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[int]:
    """Give a port where connections are accepted, requests are read, and nothing is answered."""
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
    """Give calls a moment, and nothing that the libraries' own time-outs would end."""
    for base in (blobs_base, tables_base):
        monkeypatch.setattr(base, "CALL_S", 0.2)
        monkeypatch.setattr(base, "LISTING_S", 0.2)


@pytest.fixture
def account(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the environment name the silent server for Amazon's services and Azure's."""
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
@pytest.mark.parametrize("url", ["azure:", "postgres://u:p@127.0.0.1:{}/d", "nats://127.0.0.1:{}"])
async def test_a_table_store_that_never_answers_ends_each_call(silent: int, url: str, call: str) -> None:
    """Also while it connects."""
    async with asyncio.timeout(PATIENCE_S), open_table(url.format(silent)) as store:
        with pytest.raises(UnknownOutcome, match="no answer within"):
            await TABLE_CALLS[call](store)


@pytest.mark.usefixtures("account")
async def test_a_put_with_a_claim_check_ends_where_s3_never_answers(silent: int) -> None:
    """The producer learns that no message was put, and that another try may do."""
    url = f"s3://invoices?region=eu-west-1&endpoint=http://127.0.0.1:{silent}"
    async with asyncio.timeout(PATIENCE_S), ClaimCheck(url) as check:
        with pytest.raises(StoreUnavailable, match=r"the body could not be put aside: .* no answer within") as failed:
            await check.put_aside("billing/orders", NewMessage(bytes(100_000)), 1000)
        assert not isinstance(failed.value, UnknownOutcome)


@simulated
async def test_a_time_out_of_the_store_itself_is_its_own() -> None:
    """Only the end of the time given is said to be that; a cancellation passes."""
    with pytest.raises(TimeoutError, match="theirs"):
        async with within(5.0, "the store"):
            raise TimeoutError("theirs")
    waiting = asyncio.create_task(_wait(), name="waiting")
    await pass_time(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


async def _wait() -> None:
    async with within(5.0, "the store"):
        await pass_time(100)
