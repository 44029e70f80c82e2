"""The room set aside for a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.contract.errors import StoreFull
from bridge.queue import NewMessage
from bridge.queues.calls import Committer
from bridge.queues.reserve import Reserve
from bridge.queues.sqlite import SqliteStore


def test_held_given_up_and_held_again(tmp_path: Path) -> None:
    """It takes its whole size on the disk, and is short from when it was given up until it is made again."""
    path = tmp_path / "queue.db.reserve"
    reserve = Reserve(path, 1 << 20)
    assert not reserve.give_up()
    assert reserve.hold()
    assert path.stat().st_size == 1 << 20
    assert reserve.give_up()
    assert reserve.short
    assert not path.exists()
    assert reserve.hold()
    assert not reserve.short


@pytest.mark.asyncio
async def test_while_it_is_short_only_puts_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages can be taken and deleted while there is no room for it; puts are refused until there is."""
    store = SqliteStore(tmp_path / "queue.db", boot="a" * 32)
    await store.open()
    await store.put("a/q", [NewMessage(b"before")])
    room = False
    hold = Reserve.hold
    monkeypatch.setattr(Reserve, "hold", lambda self: room and hold(self))
    reserves: list[Reserve] = []
    attempt = Committer._attempt

    def watched(self: Committer, calls: object) -> object:
        if self._reserve is not None and self._reserve not in reserves:
            reserves.append(self._reserve)
            self._reserve.give_up()
        return attempt(self, calls)  # type: ignore[arg-type]

    monkeypatch.setattr(Committer, "_attempt", watched)
    with pytest.raises(StoreFull):
        await store.put("a/q", [NewMessage(b"no room")])
    assert [message.body for message in (await store.receive("a/q", 32)).messages] == [b"before"]
    room = True
    await store.put("a/q", [NewMessage(b"after")])
    assert [message.body for message in (await store.receive("a/q", 32)).messages] == [b"after"]
    await store.close()
