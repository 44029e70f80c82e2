"""`queuebell queue export` and other looks cost no attempt, and one that is killed keeps little, and not for long."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from queuebell.bridge.contract.burial import Burial, read_burial, write_burial
from queuebell.bridge.contract.errors import BadInput, StoreUnavailable, Unsupported
from queuebell.bridge.queues.base import (
    Capabilities,
    NewMessage,
    PutReceipt,
    Received,
    Release,
    Settled,
    Settlement,
    Settling,
)
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.queues.sqs.store import SqsStore
from queuebell.bridge.storage.blobs.files import FileBlobs
from queuebell.bridge.storage.claim_check import ClaimCheck
from queuebell.command import queue_transfer, replay
from tests.support.command import Serving, perform, serving

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


HOLDING = {"ordered": False}


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


def store() -> MemoryStore:
    return MemoryStore(f"once-{next(_names)}")


async def export_import_once(given: MemoryStore, file: pathlib.Path) -> None:
    assert await queue_transfer.export(given, argparse.Namespace(queue=QUEUE, file=str(file), delete=True)) == 0


async def import_(given: MemoryStore, file: pathlib.Path, **more: object) -> None:
    args = argparse.Namespace(
        **{"queue": QUEUE, "file": str(file), "once": True, "partitions": None, "bridge": None} | more
    )
    assert await queue_transfer.import_(given, args) == 0


async def bodies(given: MemoryStore) -> list[bytes]:
    return [message.body for message in await given.peek(QUEUE)]


@pytest.mark.parametrize(("there", "kept"), [(b'{"body": "' + b"x" * 600_000, []), (b'{"body": "only"}', ["only"])])
async def test_a_last_line_is_kept_where_it_is_a_message(tmp_path: pathlib.Path, there: bytes, kept: list[str]) -> None:
    """One that was cut off is none, however long it is."""
    file = tmp_path / "lines"
    file.write_bytes(there)
    async with store() as one:
        await one.put(QUEUE, ["a"])
        await export_import_once(one, file)
    assert [json.loads(line)["body"] for line in file.read_text().splitlines()] == [*kept, "a"]


async def test_lines_written_by_hand_are_each_for_themselves(tmp_path: pathlib.Path) -> None:
    """Equal bodies without an id are as many messages, and no more when they are imported again."""
    file = tmp_path / "lines"
    file.write_text('{"body": "x"}\n{"body": "x"}\n\n{"body": "y", "key": "own"}\n')
    async with store() as one:
        for _ in range(2):
            await import_(one, file)
            assert sorted(await bodies(one)) == [b"x", b"x", b"y"]
        assert await one.put_once(QUEUE, "own", NewMessage("y")) is None, "its own id is kept"


async def test_once_is_refused_where_it_cannot_be(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For partitions, and by a store that puts nothing once: nothing is put."""
    file = tmp_path / "lines"
    file.write_text('{"body": "x"}\n')
    async with store() as one:
        with pytest.raises(BadInput, match="one partition"):
            await import_(one, file, partitions=object())
        monkeypatch.setattr(type(one), "capabilities", SqsStore.capabilities)
        with pytest.raises(Unsupported):
            await import_(one, file)
        assert not await one.exists(QUEUE)


async def test_a_message_that_expires_in_a_thousand_years_never_does(tmp_path: pathlib.Path) -> None:
    """Some stores write so that a message never expires; no store takes it as a time to live."""
    file = tmp_path / "lines"
    file.write_text('{"body": "x", "expires_at": "9999-12-31T23:59:59Z"}\n')
    async with store() as one:
        await import_(one, file)
        assert [message.expires_at for message in await one.peek(QUEUE)] == [None]


NOW = datetime.datetime.now(datetime.UTC)
BURIAL = Burial("pay/orders", "17", NOW, NOW, "ValueError: no", 5)


def grave(body: bytes, **facts: Any) -> bytes:
    travels = write_burial(msgspec.structs.replace(BURIAL, **facts), body, 65_536)
    assert travels is not None
    return travels


class StoreReplay(MemoryStore):
    """A store in memory whose calls the test may stand in for."""

    def __init__(self) -> None:
        super().__init__(f"replay-{next(_names)}")
        self.putting: list[Any] = []
        self.settling: list[Any] = []

    async def put(self, queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
        if self.putting:
            await self.putting.pop(0)()
        return await super().put(queue, messages)

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        if self.settling and settlement.delete:
            await self.settling.pop(0)()
        return await super().settle(queue, settlement)

    async def bodies(self, queue: str) -> list[bytes]:
        return [message.body for message in await self.peek(queue)] if await self.depth(queue) else []

    async def bury(self, *bodies: bytes, queue: str = "pay/orders-poison") -> list[str]:
        return [receipt.id for receipt in await super().put(queue, [NewMessage(body) for body in bodies])]


async def run(store: Any, *words: str, queue: str = "pay/orders-poison") -> int:
    parser = argparse.ArgumentParser()
    replay.add_arguments(parser)
    args = parser.parse_args(words)
    args.queue, args.json, args.bridge, args.config = queue, True, None, None
    return await replay.run(store, args)


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One bridge for this file; each test has a queue of its own."""
    with serving(tmp_path_factory.mktemp("data")) as started:
        yield started


def test_the_command_puts_back_what_was_buried(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """First it only shows; then it moves all, says where each went, and what is shown of them is their own body."""
    file = tmp_path / "grave"
    file.write_bytes(grave(b"seven\nlines", reason="bad\n\x1b[31m"))
    bridge.client("queue", "put", "pay/orders-poison", "bare", "--file", str(file))
    assert bridge.client("queue", "peek", "pay/orders-poison") == "bare\nseven\nlines\n"
    lines = [json.loads(line) for line in bridge.client("queue", "peek", "pay/orders-poison", "--json").splitlines()]
    assert (lines[1]["body"], lines[1]["burial"]["attempts"], "burial" in lines[0]) == ("seven\nlines", 5, False)
    listed = bridge.client("queue", "replay", "pay/orders-poison", "--dry-run")
    assert listed.splitlines()[0].split() == ["id", "to", "attempts", "age", "s", "reason"]
    assert listed.splitlines()[2].split()[1:3] == ["pay/orders", "5"]
    assert "\x1b" not in listed
    assert bridge.client("queue", "depth", "pay/orders-poison") == "pay/orders-poison: 2 visible, 0 invisible\n"
    said = bridge.client("queue", "replay", "pay/orders-poison")
    assert [line.split(" as ")[0].split(": ")[1] for line in said.splitlines()] == ["to pay/orders"] * 2
    assert bridge.client("queue", "depth", "pay/orders-poison") == "pay/orders-poison: 0 visible, 0 invisible\n"
    assert bridge.client("queue", "get", "pay/orders", "--max", "9") == "bare\nseven\nlines\n"
    meant = perform("queue", "replay", "pay/orders", "--store", bridge.url, code=2).stderr
    assert b"pay/orders has no messages; its dead letters are in pay/orders-poison" in meant
    bridge.client("queue", "replay", "pay/nothing-poison", code=1)
    bridge.client("queue", "replay", "pay/orders-poison", "--max", "0", code=2)
    bridge.client("queue", "replay", "pay/orders-poison:4", code=2)


def test_a_replay_tells_a_named_bridge(bridge: Serving) -> None:
    """For a store elsewhere --bridge names who is to be told; here both are one, so that two triggers are counted."""
    bridge.client("queue", "put", "told/q-poison", "x")
    bridge.client("queue", "replay", "told/q-poison", "--bridge", bridge.url, "--delay", "0.001")
    queue, poison = json.loads(bridge.client("status", "told/q", "--json"))["queues"]
    assert queue["triggers"] >= 2
    assert (queue["queue"], poison["queue"]) == ("told/q", "told/q-poison")


async def test_some_of_many(capsys: pytest.CaptureFixture[str]) -> None:
    """--id and --max choose; all others are there afterwards, visible at once."""
    store = StoreReplay()
    ids = await store.bury(*[grave(b"%d" % number) for number in range(20)])
    ids += await store.bury(*[grave(b"%d" % number) for number in range(20, 40)])
    assert await run(store, "--id", ids[33], "--id", ids[2]) == 0
    assert [read_burial(body)[1] for body in await store.bodies("pay/orders")] == [b"2", b"33"]
    depth = await store.depth("pay/orders-poison")
    assert (depth.visible, depth.invisible) == (38, 0)
    assert await run(store, "--max", "3") == 0
    assert len(await store.bodies("pay/orders")) == 5
    capsys.readouterr()
    assert await run(store, "--id", "no-such") == 1
    assert told(capsys)[-1]["not_found"] == ["no-such"]
    assert await run(store, "--dry-run", "--id", ids[7]) == 0
    (line,) = told(capsys)
    assert (line["id"], line["to"], line["attempts"]) == (ids[7], "pay/orders", 5)


async def test_a_delete_that_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The message is in both places then, and the sum says so."""
    store = StoreReplay()
    await store.bury(grave(b"a"))

    async def fail() -> None:
        raise StoreUnavailable("away")

    store.settling.append(fail)
    with pytest.raises(StoreUnavailable):
        await run(store)
    assert await store.bodies("pay/orders") == [grave(b"a")]
    assert told(capsys)[-1]["twice"] == 1


async def test_facts_that_were_put_aside_with_their_body(tmp_path: pathlib.Path) -> None:
    """With the blob store named they are seen, and --plain leaves them behind; the blob goes with them."""
    store, url = StoreReplay(), f"file://{tmp_path}/blobs"
    body = b"n" * 65_000
    whole = write_burial(msgspec.structs.replace(BURIAL, trace="t" * 4000), body, 1 << 20)
    assert whole is not None
    async with ClaimCheck(url) as check:
        aside = await check.put_aside("pay/orders-poison", NewMessage(whole), 65_536)
        await store.bury(aside.body)
        assert await run(store, "--plain") == 1
        assert await run(store, "--plain", "--claim-check", url) == 0
        assert await store.bodies("pay/orders") == [body]
        assert await FileBlobs(str(tmp_path / "blobs")).blobs("") == []
