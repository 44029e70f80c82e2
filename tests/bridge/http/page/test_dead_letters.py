"""What was buried, over HTTP: shown, put back, discarded."""

from __future__ import annotations

import asyncio
import datetime
import json
import pathlib
from typing import Any

import pytest

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.contract.burial import Attempt, Burial, write_burial
from queuebell.bridge.contract.errors import StoreUnavailable
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.embedded.store import MemoryStore
from tests.support.access import written
from tests.support.web import JSON, Served, serving

# Private: `_dead_letters`: how a run stands.

NOW = datetime.datetime.now(datetime.UTC)
POISON = "pay/orders-poison"


async def bury(served: Served, *reasons: str, queue: str = "pay/orders", text: bytes | None = None) -> None:
    """Bury a message for each reason."""
    for number, reason in enumerate(reasons):
        burial = Burial(queue, str(number), NOW, NOW, reason, 5, trace="worker.py", history=(Attempt(1, NOW, "first"),))
        body = write_burial(burial, b"order %d" % number if text is None else text, 65_536)
        assert body is not None
        await served.bridge.store.put(POISON, [NewMessage(body)])


async def post(served: Served, what: str, value: object = None, **headers: str) -> Any:
    """Begin a run."""
    body = None if value is None else json.dumps(value).encode()
    path = f"/v1/queues/{POISON}/{what}"
    return await served.ask("POST", path, body, media=None if body is None else JSON, **headers)


async def ended(served: Served) -> Any:
    """Wait for the end of the run of the queue, and return how it stands."""
    routes = served.server._dead_letters
    assert routes is not None
    async with asyncio.timeout(100):
        while (run := routes.run_of(POISON)) is None or run.running:
            assert (await served.ask("GET", "/livez")).status == 200
    return run


async def bodies(served: Served, queue: str) -> list[bytes]:
    """The bodies of a queue, as they stand there."""
    return [message.body for message in await served.bridge.store.peek(queue)]


async def test_those_in_a_store_that_the_bridge_reads_are_shown_and_go_back_there(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers' store comes first, and a put there marks its queue; one that fails says so, and is not asked on."""
    theirs = MemoryStore(served.bridge.boot)
    served.server.beside.append(served.bridge.serve_alongside(theirs))
    burial = Burial("pay/orders", "7", NOW, NOW, "no such customer", 5)
    body = write_burial(burial, b"order 7", 65_536)
    assert body is not None
    await theirs.put(POISON, [NewMessage(body, headers={"tenant": "t1"}), NewMessage("plain")])
    (one, _) = (await served.ask("GET", f"/v1/queues/{POISON}/buried")).json["messages"]
    assert (one["body"], one["burial"]["reason"], one["headers"]) == ("order 7", burial.reason, {"tenant": "t1"})
    await bury(served, "in the bridge's own")
    served.bridge.scheduler.pending.open("pay/orders", 0.0).store = "postgres"
    answer = await served.ask("GET", f"/v1/queues/{POISON}/buried?reason=customer")
    assert (len(answer.json["messages"]), answer.json["looked"]) == (1, 2)
    assert (await post(served, "replay", {"ids": [one["id"]]})).status == 202
    assert (await ended(served)).moved == 1
    (back,) = await theirs.peek("pay/orders")
    assert (back.body.rpartition(b"\n")[2], back.headers) == (b"order 7", {"tenant": "t1"})
    assert served.bridge.scheduler.pending.by_queue["pay/orders"].dirty
    assert (await post(served, "discard")).status == 202
    assert (await ended(served)).moved == 1
    assert [len(await store.peek(POISON)) for store in (theirs, served.bridge.store)] == [0, 1]

    async def fails(*_: object) -> None:
        raise StoreUnavailable("the database is away")

    await served.bridge.store.delete(POISON)
    monkeypatch.setattr(theirs, "peek", fails)
    answer = await served.ask("GET", f"/v1/queues/{POISON}/buried")
    assert (answer.status, "cannot read: the database is away" in answer.json["detail"]) == (404, True)
    assert [task for task in asyncio.all_tasks() if task.get_name() == "ask the store again"] == []


@pytest.mark.parametrize("what", ["replay", "discard"])
@pytest.mark.parametrize("raw", [b"{", b'{"ids":["\xff"]}', b'{"reason":"\\ud800"}'])
async def test_what_is_no_json_does_nothing(served: Served, what: str, raw: bytes) -> None:
    await bury(served, "a")
    answer = await served.ask("POST", f"/v1/queues/{POISON}/{what}", raw, media="application/json")
    assert (answer.status, answer.code) == (400, "bad_json")
    assert len(await bodies(served, POISON)) == 1


async def test_one_run_at_a_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is refused while the first lasts; the end of the bridge gives back what was not moved yet."""
    await bury(served, *["a"] * 40)
    reached, go = asyncio.Event(), asyncio.Event()
    put = served.bridge.store.put

    async def slow(*arguments: Any, **named: Any) -> Any:
        reached.set()
        await go.wait()
        return await put(*arguments, **named)

    monkeypatch.setattr(served.bridge.store, "put", slow)
    assert (await post(served, "replay")).status == 202
    await reached.wait()
    second = await post(served, "discard")
    assert (second.status, second.code) == (409, "conflict")
    shown = await served.ask("GET", f"/v1/queues/{POISON}/buried")
    assert (shown.json["run"]["what"], shown.json["run"]["running"]) == ("replayed", True)
    stopping = asyncio.create_task(served.server.stop(), name="stop")
    await asyncio.sleep(0)
    go.set()
    await stopping
    depth = await served.bridge.store.depth(POISON)
    assert depth is not None
    assert (depth.visible, depth.invisible, len(await bodies(served, "pay/orders"))) == (8, 0, 32)


LEFT: list[tuple[dict[str, list[str]] | None, int]] = [
    (None, 32), ({"put": ["*"]}, 32), ({"take": [POISON]}, 32), ({"take": [POISON], "put": ["*"]}, 40),
]  # fmt: skip


@pytest.mark.parametrize(("grants", "moved"), LEFT)
async def test_a_run_ends_with_the_grant_that_began_it(
    grants: dict[str, list[str]] | None, moved: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is revoked, or less is granted, while the first batch is put: that is finished, and no other follows."""
    path = tmp_path / "access.json"
    secrets = written(path, {"chief": {"take": [POISON], "put": ["pay/orders"]}})
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        await bury(served, *["a"] * 40)
        reached, go = asyncio.Event(), asyncio.Event()
        put = served.bridge.store.put

        async def slow(*arguments: Any, **named: Any) -> Any:
            reached.set()
            await go.wait()
            return await put(*arguments, **named)

        monkeypatch.setattr(served.bridge.store, "put", slow)
        assert (await post(served, "replay", Authorization=f"Bearer {secrets['chief']}")).status == 202
        await reached.wait()
        kept = {} if grants is None else {"chief": grants}
        access_file.change(path, lambda old: type(old)(principals=kept, keys=old.keys if kept else ()))
        watch.check()
        go.set()
        run = await ended(served)
        assert (run.moved, run.running) == (moved, False)
        assert run.why == ("'put' is not granted on pay/orders" if run.stay else "")
        monkeypatch.setattr(served.bridge.store, "put", put)
        depth = await served.bridge.store.depth(POISON)
        assert depth is not None
        assert (depth.visible, depth.invisible) == (40 - moved, 0)
