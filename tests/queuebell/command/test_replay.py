"""`queuebell queue replay`: what was buried goes back, once, and nothing is lost whatever happens meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from bridge.contract.burial import Burial, read_burial, write_burial
from bridge.contract.errors import StoreUnavailable, UnknownOutcome
from bridge.producer import replaying
from bridge.queues.base import (
    Capabilities,
    Claim,
    Depth,
    NewMessage,
    PutReceipt,
    Received,
    Settled,
    Settlement,
    Settling,
)
from bridge.queues.embedded.memory import MemoryStore
from bridge.storage.blobs.files import FileBlobs
from bridge.storage.claim_check import ClaimCheck
from queuebell.command import replay
from tests.support.command import Serving, serving

NOW = datetime.datetime.now(datetime.UTC)
BURIAL = Burial("pay/orders", "17", NOW, NOW, "ValueError: no", 5)
_names = itertools.count()


def grave(body: bytes, **facts: Any) -> bytes:
    travels = write_burial(msgspec.structs.replace(BURIAL, **facts), body, 65_536)
    assert travels is not None
    return travels


class Store(MemoryStore):
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
    bridge.client("queue", "replay", "pay/nothing-poison", code=1)
    bridge.client("queue", "replay", "pay/orders-poison", "--max", "0", code=2)
    bridge.client("queue", "replay", "pay/orders-poison:4", code=2)


def test_a_replay_tells_a_named_bridge(bridge: Serving) -> None:
    """For a store elsewhere --bridge names who is to be told; here both are one, so that two triggers are counted."""
    bridge.client("queue", "put", "told/q-poison", "x")
    bridge.client("queue", "replay", "told/q-poison", "--bridge", bridge.url, "--after", "0.001")
    queue, poison = json.loads(bridge.client("status", "told/q", "--json"))["queues"]
    assert queue["triggers"] >= 2
    assert (queue["queue"], poison["queue"]) == ("told/q", "told/q-poison")


def test_export_and_import_keep_the_facts(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """What is exported is the message as it stands, facts and all, also where its body is no text."""
    files = [tmp_path / name for name in ("a", "b")]
    bodies = [grave(b"text"), grave(b"\x00\xff")]
    for file, body in zip(files, bodies, strict=True):
        file.write_bytes(body)
    bridge.client("queue", "put", "kept/q-poison", "--file", str(files[0]), "--file", str(files[1]))
    lines = bridge.client("queue", "export", "kept/q-poison", "--delete")
    bridge.client("queue", "import", "again/q-poison", stdin=lines.encode())
    again = [json.loads(line) for line in bridge.client("queue", "export", "again/q-poison").splitlines()]
    assert [line["body"].encode() for line in again] == bodies
    shown = [
        json.loads(line)
        for line in bridge.client("queue", "get", "again/q-poison", "--max", "2", "--json").split("\n")[:2]
    ]
    assert (shown[0]["body"], shown[1]["body_base64"]) == ("text", "AP8=")
    assert [line["burial"]["reason"] for line in shown] == ["ValueError: no"] * 2


async def test_facts_go_along_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    """By default a listener of ours opens them; --plain puts the body alone, --to puts it elsewhere."""
    store = Store()
    for words, queue, body in [
        ((), "pay/orders", grave(b"a")),
        (("--plain",), "pay/orders", b"a"),
        (("--to", "other"), "pay/other", grave(b"a")),
        (("--to", "else/where"), "else/where", grave(b"a")),
    ]:
        await store.bury(grave(b"a"))
        assert await run(store, *words) == 0
        assert await store.bodies(queue) == [body]
        assert await store.bodies("pay/orders-poison") == []
        await store.clear(queue)
        first, sum_ = told(capsys)
        assert (first["to"], first["reason"], sum_["replayed"]) == (queue, "ValueError: no", 1)


async def test_some_of_many(capsys: pytest.CaptureFixture[str]) -> None:
    """--id and --max choose; all others are there afterwards, visible at once."""
    store = Store()
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


async def test_what_cannot_go_anywhere_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """Another account is entered only by --to, whatever the facts say; the exit code tells that something stays."""
    store = Store()
    forged = grave(b"x", queue="bank/transfers")
    await store.bury(forged, grave(b"fine"))
    assert await run(store) == 1
    assert await store.bodies("bank/transfers") == []
    assert await store.bodies("pay/orders") == [grave(b"fine")]
    assert await store.bodies("pay/orders-poison") == [forged]
    assert "account" in told(capsys)[0]["stays"]
    assert await run(store, "--to", "bank/transfers") == 0
    assert await store.bodies("bank/transfers") == [forged]
    await store.bury(b"bare", queue="pay/graves")
    assert await run(store, queue="pay/graves") == 1
    assert await run(store, "--to", "graves", queue="pay/graves") == 1
    assert await store.bodies("pay/graves") == [b"bare"]


class Hasty(Store):
    """A store with a worker that fails at once whatever is put back, and buries it again."""

    failures = 0

    def again(self, receipt: PutReceipt) -> bytes:
        return grave(b"again", id=receipt.id)

    async def put(self, queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
        receipts = await super().put(queue, messages)
        if queue == "pay/orders":
            for receipt in receipts:
                self.failures += 1
                assert self.failures < 100, "it would never end"
                await self.bury(self.again(receipt))
        return receipts


class Bare(Hasty):
    """One whose worker tells no facts."""

    def again(self, receipt: PutReceipt) -> bytes:
        return b"again"


class Rough(Hasty):
    """One whose count is far too high."""

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, exact_depth=False)

    async def depth(self, queue: str) -> Any:
        depth = await super().depth(queue)
        return depth and msgspec.structs.replace(depth, visible=depth.visible + 1000)


@pytest.mark.parametrize("kind", [Hasty, Bare, Rough])
async def test_a_worker_that_fails_at_once_is_fed_once(kind: type[Hasty]) -> None:
    """What was buried after the command began is left alone, whether the store counts exactly or not."""
    store = kind()
    await store.bury(*[grave(b"%d" % number) for number in range(40 - 8)])
    assert await run(store) == 0
    assert store.failures == 32
    depth = await MemoryStore.depth(store, "pay/orders-poison")
    assert (depth.visible, depth.invisible) == (32, 0)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), UnknownOutcome("no answer")])
async def test_a_put_that_fails_deletes_nothing(error: Exception) -> None:
    """The messages are given back at once, and the error is told."""
    store = Store()
    await store.bury(grave(b"a"), grave(b"b"))

    async def fail() -> None:
        raise error

    store.putting.append(fail)
    with pytest.raises(type(error)):
        await run(store)
    assert len(await store.bodies("pay/orders-poison")) == 2
    assert await store.bodies("pay/orders") == []
    assert ("may have been put" in "".join(getattr(error, "__notes__", ()))) == isinstance(error, UnknownOutcome)


async def test_a_delete_that_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The message is in both places then, and the sum says so."""
    store = Store()
    await store.bury(grave(b"a"))

    async def fail() -> None:
        raise StoreUnavailable("away")

    store.settling.append(fail)
    with pytest.raises(StoreUnavailable):
        await run(store)
    assert await store.bodies("pay/orders") == [grave(b"a")]
    assert told(capsys)[-1]["twice"] == 1


async def test_a_delete_that_fails_beside_others_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Only that one may be handled twice; the command says that the store failed, and leaves no other leased."""
    store = Store()
    ids = await store.bury(grave(b"a"), grave(b"b"), grave(b"c"))
    away = Settled(False, code="storage_unavailable")
    settle = store.settle

    async def failing(queue: str, settlement: Settlement) -> Settling:
        if not settlement.delete:
            return await settle(queue, settlement)
        there = [claim for claim in settlement.delete if claim.id != ids[1]]
        done = iter((await settle(queue, Settlement(delete=there))).delete)
        return Settling([away if claim.id == ids[1] else next(done) for claim in settlement.delete], [], [])

    store.settle = failing  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="1 of 3 messages could not be settled: storage_unavailable"):
        await run(store)
    assert told(capsys)[-1]["twice"] == 1
    assert await store.depth("pay/orders-poison") == Depth(0, 1)


@pytest.mark.parametrize("where", ["putting", "settling"])
async def test_an_interrupt_finishes_the_batch_under_way(where: str) -> None:
    """Interrupted between put and delete, or before: each message is in one place, and none is left leased."""
    store = Store()
    await store.bury(*[grave(b"%d" % number) for number in range(32)])
    await store.bury(*[grave(b"%d" % number) for number in range(32, 50)])
    reached, go = asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        reached.set()
        await go.wait()

    getattr(store, where).append(pause)
    running = asyncio.create_task(run(store), name="replay")
    await reached.wait()
    running.cancel()
    await asyncio.sleep(0)
    go.set()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()
    here, there = await store.depth("pay/orders-poison"), await store.depth("pay/orders")
    assert (here.visible, here.invisible, there.visible) == (18, 0, 32)


async def test_what_stays_keeps_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the run takes, what was set aside is not taken again."""
    store, extended = Store(), []
    ids = await store.bury(*[grave(b"%d" % number) for number in range(32)])
    ids += await store.bury(grave(b"last"))
    settle, receive, now = store.settle, store.receive, [0.0]

    async def watched(queue: str, settlement: Settlement) -> Settling:
        extended.extend(settlement.extend)
        return await settle(queue, settlement)

    async def slow(*arguments: Any, **named: Any) -> Received:
        now[0] += replaying.LEASE_S * 0.6
        return await receive(*arguments, **named)

    store.settle, store.receive = watched, slow  # type: ignore[method-assign]
    monkeypatch.setattr(replay, "monotonic", lambda: now[0])
    assert await run(store, "--id", ids[-1]) == 0
    assert len(extended) == 32 + 33  # each time that more than half of a lease was gone
    assert len(await store.bodies("pay/orders-poison")) == 32


async def test_a_lease_that_all_share_is_not_lengthened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one long lease makes all of the queue long (JetStream), it asks for what listeners do, and renews."""
    asked: list[float] = []
    now = [0.0]

    class Shared(Store):
        capabilities = Capabilities(own_leases=False)

        async def receive(self, queue: str, limit: int = 1, visibility_s: float = 30.0, **named: Any) -> Received:
            asked.append(visibility_s)
            return await super().receive(queue, limit, visibility_s, **named)

        async def settle(self, queue: str, settlement: Settlement) -> Settling:
            asked.extend(item.visibility_s for item in settlement.extend)
            return await super().settle(queue, settlement)

    store = Shared()
    await store.bury(grave(b"1", queue="pay/a"), grave(b"2", queue="pay/b"))

    async def slow() -> None:
        now[0] += 16.0

    store.putting.append(slow)
    monkeypatch.setattr(replay, "monotonic", lambda: now[0])
    assert await run(store) == 0
    assert asked == [30.0, 30.0]  # a receive, and the second message while the first was put
    assert (await store.bodies("pay/a"), await store.bodies("pay/b")) == (
        [grave(b"1", queue="pay/a")],
        [grave(b"2", queue="pay/b")],
    )


async def test_leases_are_renewed_while_bodies_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each body may take long: none of a batch is lost while another is made ready."""
    store, now = Store(), [0.0]
    await store.bury(grave(b"1"), grave(b"2"), grave(b"3"))
    settle, target, extended = store.settle, replaying.replay_target, list[float]()

    def slow(*arguments: Any) -> str:
        now[0] += replaying.LEASE_S * 0.6
        return target(*arguments)

    async def watched(queue: str, settlement: Settlement) -> Settling:
        extended.extend(now[0] for _ in settlement.extend)
        return await settle(queue, settlement)

    store.settle = watched  # type: ignore[method-assign]
    monkeypatch.setattr(replaying, "replay_target", slow)
    monkeypatch.setattr(replay, "monotonic", lambda: now[0])
    assert await run(store) == 0
    assert extended == [pytest.approx(replaying.LEASE_S * 0.6 * times) for times in (1, 1, 1, 2, 2, 2, 3, 3, 3)]
    assert len(await store.bodies("pay/orders")) == 3


async def test_what_was_lost_meanwhile_is_not_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one message is put, the lease of the next one ends and somebody else settles it: it is his."""
    store, now = Store(), [0.0]
    await store.bury(grave(b"1", queue="pay/a"), grave(b"2", queue="pay/b"))
    receive = store.receive
    held: list[Claim] = []

    async def noted(*arguments: Any, **named: Any) -> Received:
        received = await receive(*arguments, **named)
        held.extend(Claim(message.id, message.pop_receipt) for message in received.messages)
        return received

    async def slow() -> None:
        now[0] += replaying.LEASE_S * 0.6
        await MemoryStore.settle(store, "pay/orders-poison", Settlement(delete=held[1:]))

    store.receive = noted  # type: ignore[method-assign]
    store.putting.append(slow)
    monkeypatch.setattr(replay, "monotonic", lambda: now[0])
    assert await run(store) == 0
    assert (await store.bodies("pay/a"), await store.bodies("pay/b")) == ([grave(b"1", queue="pay/a")], [])


async def test_bodies_that_were_put_aside(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Back to where it failed a claim goes as it stands; elsewhere it needs a blob of its own, and the old one goes."""
    store, url = Store(), f"file://{tmp_path}/blobs"
    large = b"n" * 100_000
    async with ClaimCheck(url) as check:

        async def bury() -> None:
            aside = await check.put_aside("pay/orders-poison", NewMessage(large), 65_536)
            await store.bury(grave(aside.body))

        await bury()
        assert await run(store) == 0
        (back,) = await store.bodies("pay/orders")
        assert await check.fetch(read_burial(back)[1]) == large
        await check.drop(back)
        await bury()
        assert await run(store, "--to", "other") == 1
        assert "--claim-check" in told(capsys)[-2]["stays"]
        assert await store.bodies("pay/other") == []
        assert await run(store, "--to", "other", "--claim-check", url) == 0
        (there,) = await store.bodies("pay/other")
        burial, claim = read_burial(there)
        assert burial == BURIAL
        assert await check.fetch(claim) == large
        assert len(await FileBlobs(str(tmp_path / "blobs")).blobs("")) == 1


async def test_facts_that_were_put_aside_with_their_body(tmp_path: pathlib.Path) -> None:
    """With the blob store named they are seen, and --plain leaves them behind; the blob goes with them."""
    store, url = Store(), f"file://{tmp_path}/blobs"
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
