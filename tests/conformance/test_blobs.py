"""The promise of a blob store, asked of each."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from queuebell.bridge.contract.errors import (
    BadInput,
    BlobNotFound,
    Closed,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.storage.blobs import open_blobs
from queuebell.bridge.storage.blobs.base import BlobStore
from queuebell.bridge.storage.blobs.files import FileBlobs
from queuebell.bridge.storage.blobs.memory import MemoryBlobs
from tests.support.azurite import API_VERSION
from tests.support.azurite_storage import azurite, connection_string
from tests.support.background_server import BackgroundServer
from tests.support.moto import give_keys, moto
from tests.support.processes import free_port

BAD_NAMES = ["", "/", "a/", "/a", "a//b", "..", "a/../b", ".a", "a/.b", "a b", "a\n", "ä", "a" * 81, "/".join("a" * 9)]


class BlobStoreConformance:
    """Subclasses give the fixture ``store``: an empty one."""

    async def test_what_was_put_is_got(self, store: BlobStore) -> None:
        """Bytes come back unchanged, empty ones and all 256 values included."""
        for name, data in (("a", b""), ("b/c", bytes(range(256))), ("b/d", os.urandom(300_000))):
            await store.put(name, data)
            assert await store.get(name) == data

    async def test_a_blob_is_replaced_whole(self, store: BlobStore) -> None:
        """A second put of the same name leaves nothing of the first."""
        await store.put("a/b", b"long" * 1000)
        await store.put("a/b", b"short")
        assert await store.get("a/b") == b"short"
        assert [(blob.name, blob.size) for blob in await store.blobs()] == [("a/b", 5)]

    async def test_what_is_not_there_is_not_found(self, store: BlobStore) -> None:
        """A read fails; a removal succeeds, once and again."""
        await store.put("a", b"x")
        with pytest.raises(BlobNotFound, match="nothing/here"):
            await store.get("nothing/here")
        await store.delete("nothing/here")
        await store.delete("a")
        await store.delete("a")
        with pytest.raises(BlobNotFound):
            await store.get("a")

    async def test_a_listing_is_in_order_and_goes_on(self, store: BlobStore) -> None:
        """By prefix of whole tokens, page after page, each blob once."""
        names = ["p/b-1", "p/b/1", "p/b/2", "p/b2/1", "p/c", "q/a"]
        for name in names:
            await store.put(name, name.encode())
        assert [blob.name for blob in await store.blobs()] == sorted(names)
        assert [blob.name for blob in await store.blobs("p/b/")] == ["p/b/1", "p/b/2"]
        assert await store.blobs("p/b/1/") == []
        assert await store.blobs("none/") == []
        pages, after = [], ""
        while page := await store.blobs("p/", after, 2):
            assert len(page) <= 2
            pages += [blob.name for blob in page]
            after = page[-1].name
        assert pages == [name for name in sorted(names) if name.startswith("p/")]

    async def test_a_listing_tells_size_and_age(self, store: BlobStore) -> None:
        """Age counts from the last write and is never negative."""
        await store.put("a", b"12345")
        (blob,) = await store.blobs()
        assert blob.size == 5
        assert 0 <= blob.age_s < 60

    async def test_many_writers_leave_whole_blobs(self, store: BlobStore) -> None:
        """Puts of one name at the same time: one of them wins, whole.

        A server may fail a put that another overtook (moto does): the outcome is unknown, and no blob is mixed.
        """
        datas = [bytes([number]) * 50_000 for number in range(8)]
        puts = (store.put("same", data) for data in datas)
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert None in outcomes
        assert all(outcome is None or isinstance(outcome, UnknownOutcome) for outcome in outcomes)
        assert await store.get("same") in datas

    @pytest.mark.parametrize("name", BAD_NAMES)
    async def test_a_bad_name_is_refused(self, store: BlobStore, name: str) -> None:
        """A name cannot leave its place, or mean something else in another store."""
        for call in (store.put(name, b"x"), store.get(name), store.delete(name)):
            with pytest.raises(BadInput):
                await call
        assert await store.blobs() == []

    @pytest.mark.parametrize(("prefix", "after", "limit"), [("a", "", 1), ("../", "", 1), ("", "..", 1), ("", "", 0)])
    async def test_a_bad_listing_is_refused(self, store: BlobStore, prefix: str, after: str, limit: int) -> None:
        """A prefix of half a token, an invalid name, or no limit."""
        with pytest.raises(BadInput):
            await store.blobs(prefix, after, limit)

    async def test_only_bytes_are_put(self, store: BlobStore) -> None:
        with pytest.raises(BadInput):
            await store.put("a", "text")  # type: ignore[arg-type]

    async def test_a_closed_store_refuses(self, store: BlobStore) -> None:
        await store.close()
        await store.close()
        for call in (store.put("a", b""), store.get("a"), store.delete("a"), store.blobs()):
            with pytest.raises(Closed):
                await call


class TestMemoryBlobs(BlobStoreConformance):
    @pytest_asyncio.fixture
    async def store(self) -> AsyncIterator[BlobStore]:
        async with MemoryBlobs(uuid.uuid4().hex) as store:
            yield store


class TestFileBlobs(BlobStoreConformance):
    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[BlobStore]:
        async with FileBlobs(tmp_path / "blobs") as store:
            yield store


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    with moto() as server:
        yield server


class TestS3Blobs(BlobStoreConformance):
    """S3 as moto simulates it, below a prefix of a bucket of its own."""

    @pytest.fixture(autouse=True)
    def credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        give_keys(monkeypatch)

    @pytest_asyncio.fixture
    async def bucket(self, server: BackgroundServer) -> str:
        bucket = f"bodies-{uuid.uuid4().hex}"
        async with aiohttp.ClientSession() as http, http.put(f"{server.url}/{bucket}") as answer:
            assert answer.status == 200
        return bucket

    @pytest_asyncio.fixture
    async def store(self, server: BackgroundServer, bucket: str) -> AsyncIterator[BlobStore]:
        async with open_blobs(f"s3://{bucket}/kept/here?region=us-east-1&endpoint={server.url}") as store:
            yield store

    async def test_a_stranger_s_object_is_no_blob(
        self, store: BlobStore, server: BackgroundServer, bucket: str
    ) -> None:
        """Objects without a valid name or below another prefix are left out, and the page is still filled."""
        await store.put("m", b"x")
        async with aiohttp.ClientSession() as http:
            for key in ("kept/here/a.txt", "kept/here/b.txt", "kept/elsewhere", "m"):
                async with http.put(f"{server.url}/{bucket}/{key}", data=b"theirs") as answer:
                    assert answer.status == 200
        assert [blob.name for blob in await store.blobs(limit=1)] == ["m"]
        assert [blob.name for blob in await store.blobs()] == ["m"]

    async def test_a_missing_bucket_is_no_missing_blob(self, server: BackgroundServer) -> None:
        """The error names the bucket; no body counts as lost."""
        async with open_blobs(f"s3://nobody-made-it?region=us-east-1&endpoint={server.url}") as store:
            for call in (store.get("a"), store.put("a", b""), store.blobs()):
                with pytest.raises(StoreError, match="bucket") as refused:
                    await call
                assert not isinstance(refused.value, BlobNotFound)

    async def test_a_server_that_is_away_is_unavailable(self) -> None:
        async with open_blobs(f"s3://bodies?region=us-east-1&endpoint=http://127.0.0.1:{free_port()}") as store:
            with pytest.raises(StoreUnavailable):
                await store.put("a", b"")


@pytest.fixture(scope="module")
def blob_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    with azurite("blob", tmp_path_factory.mktemp("azurite-blob")) as server:
        yield server


@pytest.mark.system
class TestAzureBlobs(BlobStoreConformance):
    """Azurite; each test has a container of its own."""

    @pytest_asyncio.fixture
    async def store(self, blob_service: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BlobStore]:
        from azure.storage.blob.aio import ContainerClient

        text, container = connection_string("blob", blob_service.url), f"bodies-{uuid.uuid4().hex}"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        async with ContainerClient.from_connection_string(text, container, api_version=API_VERSION) as client:
            await client.create_container()
        async with open_blobs(f"azure:?container={container}&api_version={API_VERSION}") as store:
            yield store

    async def test_a_missing_container_is_no_missing_blob(self, store: BlobStore) -> None:
        async with open_blobs(f"azure:?container=nobody-made-it&api_version={API_VERSION}") as missing:
            for call in (missing.get("a"), missing.put("a", b""), missing.delete("a"), missing.blobs()):
                with pytest.raises(StoreError, match="ContainerNotFound") as refused:
                    await call
                assert not isinstance(refused.value, BlobNotFound)
