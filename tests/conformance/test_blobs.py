"""Every blob store of this project answers the same questions."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from bridge.contract.errors import BlobNotFound, StoreError, StoreUnavailable
from bridge.storage.blobs import open_blobs
from bridge.storage.blobs.base import BlobStore
from bridge.storage.blobs.files import FileBlobs
from bridge.storage.blobs.memory import MemoryBlobs
from tests.conformance.blob import BlobStoreConformance
from tests.support.azurite import API_VERSION
from tests.support.azurite_storage import azurite, connection_string
from tests.support.background_server import BackgroundServer
from tests.support.moto import give_keys, moto
from tests.support.processes import free_port


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
    """The same questions to S3 as moto plays it, below a prefix of a bucket of its own."""

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
        """What has no blob's name, or is not below the prefix, is left out, and the page is filled all the same."""
        await store.put("m", b"x")
        async with aiohttp.ClientSession() as http:
            for key in ("kept/here/a.txt", "kept/here/b.txt", "kept/elsewhere", "m"):
                async with http.put(f"{server.url}/{bucket}/{key}", data=b"theirs") as answer:
                    assert answer.status == 200
        assert [blob.name for blob in await store.blobs(limit=1)] == ["m"]
        assert [blob.name for blob in await store.blobs()] == ["m"]

    async def test_a_missing_bucket_is_no_missing_blob(self, server: BackgroundServer) -> None:
        """It says what to look at; nobody takes the bodies for lost."""
        async with open_blobs(f"s3://nobody-made-it?region=us-east-1&endpoint={server.url}") as store:
            for call in (store.get("a"), store.put("a", b""), store.blobs()):
                with pytest.raises(StoreError, match="bucket") as refused:
                    await call
                assert not isinstance(refused.value, BlobNotFound)

    async def test_a_server_that_is_away_is_unavailable(self) -> None:
        """Nothing was sent: it is known that nothing happened."""
        async with open_blobs(f"s3://bodies?region=us-east-1&endpoint=http://127.0.0.1:{free_port()}") as store:
            with pytest.raises(StoreUnavailable):
                await store.put("a", b"")


@pytest.fixture(scope="module")
def blob_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    with azurite("blob", tmp_path_factory.mktemp("azurite-blob")) as server:
        yield server


@pytest.mark.system
class TestAzureBlobs(BlobStoreConformance):
    """The same questions to Azurite; each test has a container of its own."""

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
        """Nobody takes the bodies for lost."""
        async with open_blobs(f"azure:?container=nobody-made-it&api_version={API_VERSION}") as missing:
            for call in (missing.get("a"), missing.put("a", b""), missing.delete("a"), missing.blobs()):
                with pytest.raises(StoreError, match="ContainerNotFound") as refused:
                    await call
                assert not isinstance(refused.value, BlobNotFound)
