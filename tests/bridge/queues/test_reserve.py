"""The room set aside for a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from queuebell.bridge.queues.embedded.file import Reserve


class FullDisk:
    """A disk on which no file can be given its bytes while there is no ``room``."""

    def __init__(self) -> None:
        self.room = True
        self._real = os.posix_fallocate

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        if not self.room:
            # A part of it is there all the same, as where the last bytes of a real disk are taken first.
            os.pwrite(descriptor, b"0" * 4096, offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._real(descriptor, offset, size)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    """A disk with room until the test takes it."""
    disk = FullDisk()
    monkeypatch.setattr(os, "posix_fallocate", disk.allocate)
    return disk


def test_held_given_up_and_held_again(tmp_path: Path) -> None:
    """It takes its whole size on the disk, and is short from when it was given up until it is made again."""
    path = tmp_path / "queue.db.reserve"
    reserve = Reserve(path, 1 << 20)
    assert not reserve.release()
    assert reserve.hold()
    assert path.stat().st_size == 1 << 20
    assert reserve.release()
    assert reserve.short
    assert path.stat().st_size == 0
    assert not reserve.release(), "there is nothing left to give"
    assert reserve.hold()
    assert path.stat().st_size == 1 << 20
    assert not reserve.short


def test_no_room_from_the_start_is_said(tmp_path: Path, full_disk: FullDisk, caplog: pytest.LogCaptureFixture) -> None:
    """A disk that is too small for it from the start does without, says so, and leaves no file that means more."""
    full_disk.room = False
    path = tmp_path / "queue.db.reserve"
    reserve = Reserve(path, 24 << 20)
    assert not reserve.hold()
    assert not reserve.short
    assert not path.exists()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no space for a reserve of 24 MiB" in caplog.text
