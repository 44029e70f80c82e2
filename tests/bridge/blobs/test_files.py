"""Blobs as files: what a disk does to them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from bridge.blobs import open_blobs
from bridge.blobs.files import FileBlobs
from bridge.contract.errors import ConfigurationError, StoreFull, StoreUnavailable


@pytest.mark.asyncio
async def test_half_a_blob_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails before its end leaves the old blob, no new one, and nothing behind."""
    store = FileBlobs(tmp_path)
    await store.put("a/b", b"old")

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, "fsync", broken)
    for name in ("a/b", "a/c"):
        with pytest.raises(StoreUnavailable, match="broken disk"):
            await store.put(name, b"new")
    monkeypatch.undo()
    assert await store.get("a/b") == b"old"
    assert [blob.name for blob in await store.blobs()] == ["a/b"]
    assert list((tmp_path / ".incoming").iterdir()) == []


@pytest.mark.asyncio
async def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room is an error of its own, retryable once there is."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull, match="make room"):
        await FileBlobs(tmp_path).put("a", b"x")


@pytest.mark.asyncio
async def test_what_a_crash_left_half_written_goes_after_a_day(tmp_path: Path) -> None:
    """Young halves may still be written to; old ones are removed by a listing and never listed."""
    store = FileBlobs(tmp_path)
    incoming = tmp_path / ".incoming"
    incoming.mkdir()
    old, young = incoming / "old", incoming / "young"
    for half in (old, young):
        half.write_bytes(b"half")
    long_ago = old.stat().st_mtime - 86_401
    os.utime(old, (long_ago, long_ago))
    assert await store.blobs() == []
    assert list(incoming.iterdir()) == [young]


@pytest.mark.asyncio
async def test_a_stranger_s_file_is_no_blob(tmp_path: Path) -> None:
    """A file whose name no blob has is not listed, so that a listing can go on after it."""
    store = FileBlobs(tmp_path)
    await store.put("a/b", b"x")
    (tmp_path / "a" / "notes.txt").write_text("theirs")
    assert [blob.name for blob in await store.blobs()] == ["a/b"]


@pytest.mark.asyncio
async def test_age_is_the_files(tmp_path: Path) -> None:
    """The age in a listing is since the file was written."""
    store = FileBlobs(tmp_path)
    await store.put("a", b"x")
    written = (tmp_path / "a").stat().st_mtime
    os.utime(tmp_path / "a", (written - 5000, written - 5000))
    (blob,) = await store.blobs()
    assert 5000 <= blob.age_s < 5060


@pytest.mark.asyncio
async def test_names_are_flushed_with_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new folder up to the root is flushed, or a loss of power could take the blob with its folder."""
    flushed: list[str] = []

    def note(folder: Path) -> None:
        flushed.append(folder.relative_to(tmp_path).as_posix())

    monkeypatch.setattr("bridge.blobs.files._flush_folder", note)
    store = FileBlobs(tmp_path)
    await store.put("a/b/c", b"x")
    assert sorted(flushed) == [".", "a", "a/b"]
    flushed.clear()
    await store.put("a/b/d", b"x")
    assert flushed == ["a/b"]


@pytest.mark.asyncio
async def test_a_url_opens_a_directory(tmp_path: Path) -> None:
    """An absolute path after three slashes, escapes and all."""
    store: Any = open_blobs(f"file://{tmp_path}/with%20space")
    assert store.root == tmp_path / "with space"


@pytest.mark.parametrize("url", ["file://host/x", "file:///", "file:", "ftp://secret@x", "blobs", ""])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    """With what would be right, and without the URL, which may hold a secret."""
    with pytest.raises(ConfigurationError) as refused:
        open_blobs(url)
    assert "secret" not in str(refused.value)
