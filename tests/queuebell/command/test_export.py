"""`queuebell queue export` and other looks cost no attempt, and one that is killed keeps little, and not for long."""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bridge.contract.errors import StoreUnavailable
from bridge.queues.base import Capabilities, Depth, NewMessage, Received, Release, Settled, Settlement, Settling
from bridge.queues.embedded.memory import MemoryStore
from queuebell.command import queue_transfer, replay

QUEUE = "pay/orders"
_names = itertools.count()


class Store(MemoryStore):
    """A store in memory that notes the leases asked for, and may be less able.

    Its clock goes on by 10 ms each time that it is asked: by a real one, a quick machine puts a hundred messages and
    takes a page of them within one tick.
    """

    def __init__(self, clock: Callable[[], float] | None = None, **less: bool) -> None:
        super().__init__(f"export-{next(_names)}", clock=clock or itertools.count(1.0, 0.01).__next__)
        self.leases: list[float] = []
        self.extended = 0
        self.released: list[Release] = []
        self.most_held = 0
        self._less = less

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, **self._less)

    async def receive(self, queue: str, limit: int = 1, visibility_s: float = 30.0, **named: Any) -> Received:
        self.leases.append(visibility_s)
        received = await super().receive(queue, limit, visibility_s, **named)
        self.most_held = max(self.most_held, received.depth.invisible)
        return received

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        self.extended += len(settlement.extend)
        self.released += settlement.release
        return await super().settle(queue, settlement)

    async def fill(self, count: int) -> None:
        for start in range(0, count, 32):
            await self.put(QUEUE, [NewMessage(b"%d" % number) for number in range(start, min(count, start + 32))])

    async def standing(self) -> list[tuple[str, int]]:  # type: ignore[override]
        return [(message.body.decode(), message.dequeue_count) for message in await self.peek(QUEUE)]


async def export(store: Any, file: pathlib.Path, *, delete: bool = False) -> list[str]:
    args = argparse.Namespace(queue=QUEUE, file=str(file), delete=delete)
    assert await queue_transfer.export(store, args) == 0
    return [json.loads(line)["body"] for line in file.read_text().splitlines()]


PASSING: dict[str, bool] = {}
HOLDING = {"ordered": False}
COUNTING = {"uncounted_release": False}
SHARED = {"ordered": False, "own_leases": False}


@pytest.mark.parametrize("less", [PASSING, HOLDING, SHARED], ids=str)
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100])
@pytest.mark.parametrize("ticking", [True, False])
async def test_an_export_costs_no_attempt(
    less: dict[str, bool], count: int, ticking: bool, tmp_path: pathlib.Path
) -> None:
    """However often, each message is written once, and all stay as they were; also within one tick of the clock."""
    store = Store(**less) if ticking else Store(clock=lambda: 1.0, **less)
    await store.create(QUEUE)
    await store.fill(count)
    for _ in range(5):
        found = await export(store, tmp_path / "lines")
        assert sorted(found, key=int) == [str(number) for number in range(count)]
        lines = (tmp_path / "lines").read_text().splitlines()
        assert [json.loads(line)["dequeue_count"] for line in lines] == [0] * count
    depth = await store.depth(QUEUE)
    assert (depth.visible, depth.invisible) == (count, 0)
    received = (await store.receive(QUEUE, 32, 30.0)).messages
    assert {message.dequeue_count for message in received} <= {1}
    assert [message.body for message in received] == [b"%d" % number for number in range(min(count, 32))]


async def test_a_killed_export_keeps_one_page_for_a_minute(tmp_path: pathlib.Path) -> None:
    """Each page is given back before the next is taken, and before it is written."""
    store = Store()
    await store.fill(100)
    await export(store, tmp_path / "lines")
    assert store.most_held <= 32
    assert set(store.leases) == {60.0}


@pytest.mark.parametrize(("less", "lease"), [(HOLDING, 60.0), (SHARED, 30.0)], ids=str)
async def test_what_has_to_be_held_is_held_in_short_leases(
    less: dict[str, bool], lease: float, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an order what was given back would come again and again: it is held, and renewed while it takes long."""
    store, now = Store(**less), [0.0]
    await store.fill(64)
    receive = store.receive

    async def slow(*arguments: Any, **named: Any) -> Received:
        now[0] += lease * 0.6
        return await receive(*arguments, **named)

    store.receive = slow  # type: ignore[method-assign]
    monkeypatch.setattr(queue_transfer, "monotonic", lambda: now[0])
    assert len(await export(store, tmp_path / "lines")) == 64
    assert set(store.leases) == {lease}
    assert store.extended == 32 + 64
    assert {release.uncounted for release in store.released} == {True}


async def test_a_store_that_counts_all_is_said_to(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is handed out once and no more, and the cost is told."""
    store = Store(**COUNTING)
    await store.fill(40)
    assert len(await export(store, tmp_path / "lines")) == 40
    assert {count for _, count in await store.standing()} == {1}
    assert "takes none back" in capsys.readouterr().err
    assert {release.uncounted for release in store.released} == {False}


async def test_what_is_put_meanwhile_does_not_keep_an_export(tmp_path: pathlib.Path) -> None:
    """A producer that never rests: the export ends with what was there when it began."""
    store = Store()
    await store.fill(40)
    receive = store.receive

    async def and_more(*arguments: Any, **named: Any) -> Received:
        received = await receive(*arguments, **named)
        await store.put(QUEUE, [NewMessage(b"1000")] * 8)
        return received

    store.receive = and_more  # type: ignore[method-assign]
    found = await export(store, tmp_path / "lines")
    assert {str(number) for number in range(40)} <= set(found)
    assert len(store.leases) < 6


@pytest.mark.parametrize("less", [PASSING, HOLDING, COUNTING], ids=str)
async def test_an_export_may_delete(less: dict[str, bool], tmp_path: pathlib.Path) -> None:
    """What is written is gone, page by page, and nothing else is held."""
    store = Store(**less)
    await store.fill(70)
    assert len(await export(store, tmp_path / "lines", delete=True)) == 70
    depth = await store.depth(QUEUE)
    assert (depth.visible, depth.invisible, store.most_held) == (0, 0, 32)


async def test_an_export_that_breaks_gives_its_page_back(tmp_path: pathlib.Path) -> None:
    """The disk is full, or the reader gone: nothing stays leased, nothing is counted."""
    store = Store(**HOLDING)
    await store.fill(3)
    with pytest.raises(OSError):
        await export(store, tmp_path)  # a folder
    assert await store.standing() == [("0", 0), ("1", 0), ("2", 0)]


async def test_a_get_that_keeps_is_a_look(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """What it leaves comes back when the lease ends, and no earlier, without having cost an attempt."""
    store = Store()
    await store.fill(2)
    args = argparse.Namespace(
        queue=QUEUE, max=9, visibility_s=30.0, keep=True, json=False, partitions=None, delete=False
    )
    assert await queue_transfer.get(store, args) == 0
    assert capsysbinary.readouterr().out == b"0\n1\n"
    depth = await store.depth(QUEUE)
    assert (depth.visible, depth.invisible) == (0, 2)
    assert [(item.after_ms, item.uncounted) for item in store.released] == [(30_000, True)] * 2


@pytest.mark.parametrize("less", [{}, COUNTING], ids=str)
async def test_a_replay_that_looks_through_a_queue_costs_no_attempt(less: dict[str, bool]) -> None:
    """What is not to be replayed is given back as it was, where the store can."""
    store = Store(**less)
    await store.fill(3)

    async def look(*words: str) -> None:
        parser = argparse.ArgumentParser()
        replay.add_arguments(parser)
        args = parser.parse_args(words)
        args.queue, args.json, args.bridge, args.config = QUEUE, True, None, None
        assert await replay.run(store, args) == 1

    for _ in range(5):
        await look("--id", "0" * 16)
    assert {count for _, count in await store.standing()} == {5 if less else 0}


@pytest.mark.parametrize("kind", ["delete", "release", "extend"])
async def test_what_is_left_open_is_neither_success_nor_forgotten(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A delete or release that the store could not do ends the command so; a renewal is tried again by the next."""
    store, now, failed = Store(**HOLDING), [0.0], []
    await store.fill(96)
    receive, settle = store.receive, store.settle

    async def slow(*arguments: Any, **named: Any) -> Received:
        now[0] += 20.0
        return await receive(*arguments, **named)

    async def failing(queue: str, settlement: Settlement) -> Settling:
        items = getattr(settlement, kind)
        if failed or not items:
            return await settle(queue, settlement)
        failed.append(items[0].id)
        settling = await settle(queue, msgspec.structs.replace(settlement, **{kind: items[1:]}))
        away = Settled(False, code="storage_unavailable")
        return msgspec.structs.replace(settling, **{kind: [away, *getattr(settling, kind)]})

    store.receive, store.settle = slow, failing  # type: ignore[method-assign]
    monkeypatch.setattr(queue_transfer, "monotonic", lambda: now[0])
    if kind == "extend":
        assert len(await export(store, tmp_path / "lines")) == 96
        assert {item.id for item in store.released} >= set(failed)
    else:
        with pytest.raises(StoreUnavailable, match=r"1 of \d+ messages could not be settled: storage_unavailable"):
            await export(store, tmp_path / "lines", delete=kind == "delete")
    assert len(failed) == 1
    assert "leases ended" not in capsys.readouterr().err
    depth = await store.depth(QUEUE)
    assert depth.invisible == (1 if kind == "release" else 0)


class StillCounted(Store):
    """A store that counts what was given back as leased for a while, as JetStream does."""

    async def depth(self, queue: str) -> Depth | None:
        depth = await super().depth(queue)
        given_back = min(len(self.released), 0 if depth is None else depth.visible)
        return None if depth is None else Depth(depth.visible - given_back, depth.invisible + given_back)


@pytest.mark.parametrize("kind", [Store, StillCounted])
@pytest.mark.parametrize("leased", [0, 2])
async def test_what_was_exported_is_not_said_to_be_left_out(
    kind: type[Store], leased: int, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what others held is, in the first export and in one right after it."""
    async with kind(ordered=False) as store:
        await store.fill(3 + leased)
        if leased:
            await store.receive(QUEUE, leased, 1000.0)
        for _ in range(2):
            assert len(await export(store, tmp_path / "lines")) == 3
            left_out = "; 2 are leased or delayed and were left out" if leased else ""
            assert capsys.readouterr().err.splitlines()[-1] == f"{QUEUE}: exported 3{left_out}"
