"""Blobs as files: faults of disks and mounts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from queuebell.bridge.contract.errors import BlobNotFound, ConfigurationError, StoreFull, StoreUnavailable
from queuebell.bridge.storage.blobs import open_blobs
from queuebell.bridge.storage.blobs.files import MARKER, FileBlobs


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


async def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull, match="free some space"):
        await FileBlobs(tmp_path).put("a", b"x")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
async def test_a_folder_without_the_right_is_a_wrong_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Another mount would not help: every call names the folder and the remedy."""
    store = FileBlobs(tmp_path)
    await store.put("a/b", b"x")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "not permitted")

    for owner, name in ((Path, "open"), (Path, "read_bytes"), (Path, "unlink"), (os, "walk")):
        monkeypatch.setattr(owner, name, refuse)
    for call in (store.get("a/b"), store.delete("a/b"), store.put("a/d", b"y"), store.blobs()):
        with pytest.raises(ConfigurationError, match=r"not permitted.*read and write permission") as refused:
            await call
        assert str(tmp_path) in str(refused.value)
        assert type(refused.value) is ConfigurationError  # a listener waits for this one, and buries nothing


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


@pytest.mark.parametrize("made", [False, True])
async def test_a_folder_that_was_never_used_says_what_to_do(tmp_path: Path, made: bool) -> None:
    """A reader cannot tell an empty folder from a missing mount; a mark made by hand confirms it."""
    root = tmp_path / "mount"
    if made:
        root.mkdir()
    store = FileBlobs(root)
    assert await store.blobs() == []
    with pytest.raises(StoreUnavailable, match=f"mount it, .* create the file {MARKER}"):
        await store.get("a/b")
    assert list(tmp_path.rglob("*")) == [root] * made
    root.mkdir(exist_ok=True)
    (root / MARKER).touch()
    with pytest.raises(BlobNotFound):
        await store.get("a/b")


async def test_a_put_whose_mount_goes_away_under_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be below the mount, where no reader finds it: no message is put for it."""
    store = FileBlobs(tmp_path)
    await store.put("a/b", b"x")

    def vanish(descriptor: int) -> None:
        (tmp_path / MARKER).unlink(missing_ok=True)

    monkeypatch.setattr(os, "fsync", vanish)
    with pytest.raises(StoreUnavailable, match="mount it again"):
        await store.put("a/c", b"y")


@pytest.mark.parametrize("url", ["file://host/x", "file:///", "file:", "ftp://secret@x", "blobs", ""])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    """The error says what is valid, and does not show the URL, which may hold a secret."""
    with pytest.raises(ConfigurationError) as refused:
        open_blobs(url)
    assert "secret" not in str(refused.value)
