"""What was buried, over HTTP: shown, put back, discarded."""

from __future__ import annotations

import asyncio
import datetime
import json
import pathlib
import zlib
from typing import Any

import msgspec
import pytest

from bridge.contract.burial import Attempt, Burial, write_burial
from bridge.contract.errors import StoreUnavailable
from bridge.contract.event import CloudQueueWorkDetected
from bridge.http.page import graves
from bridge.queues.base import Claim, NewMessage, Settlement
from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.http import HttpStore
from bridge.service.access import access_file
from bridge.service.access.watch import AccessWatch
from tests.bridge.http.page.test_feed import watching
from tests.support.access import written
from tests.support.web import JSON, Served, serving

NOW = datetime.datetime.now(datetime.UTC)
POISON = "pay/orders-poison"
MARKUP = "<script>alert(1)</script> \u202e"
HOSTILE = "<img src=x onerror=alert(1)> \u202e \x07 price"


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
    routes = served.server._graves
    assert routes is not None
    tasks = [task for task, _, _ in routes._under_way.values()]
    if tasks:
        await asyncio.wait(tasks, timeout=100)
    return routes.run_of(POISON)


async def bodies(served: Served, queue: str) -> list[bytes]:
    """The bodies of a queue, as they stand there."""
    return [message.body for message in await served.bridge.store.peek(queue)]


async def test_headers_are_shown_and_put_back(served: Served) -> None:
    """Of each message its own, in JSON as they were put; a run leaves none of them behind."""
    await served.bridge.store.put(POISON, [NewMessage("one", headers={"Markup": HOSTILE.replace("\x07", "")})])
    await bury(served, "no")
    answer = await served.ask("GET", f"/v1/queues/{POISON}/buried")
    wanted = {"markup": HOSTILE.replace("\x07", "")}
    assert [message["headers"] for message in answer.json["messages"]] == [wanted, {}]
    assert (await post(served, "replay")).status == 202
    await ended(served)
    assert [message.headers for message in await served.bridge.store.peek("pay/orders")] == [wanted, {}]


async def test_shown_with_its_facts(served: Served) -> None:
    """Each says why, where it failed and how often; what is no burial says nothing of itself, and is shown too."""
    await bury(served, HOSTILE)
    await served.bridge.store.put(POISON, [NewMessage(b"\xff\xfe" + b"x" * 10_000, headers={"tenant": MARKUP})])
    answer = await served.ask("GET", f"/v1/queues/{POISON}/buried")
    one, other = answer.json["messages"]
    assert one["burial"]["queue"] == "pay/orders"
    assert "<img" in one["burial"]["reason"]
    assert (one["body"], one["size"], one["burial"]["attempts"]) == ("order 0", 7, 5)
    assert (other["burial"], other["size"], len(other["body"])) == (None, 10_002, graves.SHOWN)
    assert (one["headers"], other["headers"]) == ({}, {"tenant": MARKUP})
    missing = await served.ask("GET", "/v1/queues/pay/none/buried")
    assert (missing.status, missing.code) == (404, "queue_not_found")


async def test_where_they_are_in_another_store(served: Served) -> None:
    """A worker that takes from elsewhere told of three: whoever wants to see them learns what asks that store."""
    served.bridge.trigger([CloudQueueWorkDetected("pay", "orders-poison", 3)], bus="http")
    served.bridge.bell.ledger.open("pay/orders", 0.0).store = "postgres"
    for method, what in (("GET", "buried"), ("POST", "replay"), ("POST", "discard")):
        answer = await served.ask(method, f"/v1/queues/{POISON}/{what}")
        assert (answer.status, answer.code) == (404, "queue_not_found")
        for words in ("(postgres)", f"queuebell queue peek {POISON} --json --store URL", "replay"):
            assert words in answer.json["detail"]


async def test_those_in_a_store_that_the_bridge_reads_are_shown_and_go_back_there(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers' store comes first, and a put there marks its queue; one that fails says so, and is not asked on."""
    theirs = MemoryStore(served.bridge.boot)
    served.server.beside.append(served.bridge.beside(theirs))
    burial = Burial("pay/orders", "7", NOW, NOW, "no such customer", 5)
    body = write_burial(burial, b"order 7", 65_536)
    assert body is not None
    await theirs.put(POISON, [NewMessage(body, headers={"tenant": "t1"}), NewMessage("plain")])
    (one, _) = (await served.ask("GET", f"/v1/queues/{POISON}/buried")).json["messages"]
    assert (one["body"], one["burial"]["reason"], one["headers"]) == ("order 7", burial.reason, {"tenant": "t1"})
    await bury(served, "in the bridge's own")
    served.bridge.bell.ledger.open("pay/orders", 0.0).store = "postgres"
    answer = await served.ask("GET", f"/v1/queues/{POISON}/buried?reason=customer")
    assert (len(answer.json["messages"]), answer.json["looked"]) == (1, 2)
    assert (await post(served, "replay", {"ids": [one["id"]]})).status == 202
    assert (await ended(served)).moved == 1
    (back,) = await theirs.peek("pay/orders")
    assert (back.body.rpartition(b"\n")[2], back.headers) == (b"order 7", {"tenant": "t1"})
    assert served.bridge.bell.ledger.debts["pay/orders"].dirty
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


@pytest.mark.parametrize("newest", [False, True])
async def test_all_are_met_page_by_page(served: Served, newest: bool) -> None:
    """Each once, in order, however many were put at once; what goes meanwhile is neither met twice nor in the way."""
    for start in range(0, 90, 30):
        await served.bridge.store.put(POISON, [NewMessage(b"%d" % number) for number in range(start, start + 30)])
    met: list[int] = []
    after: str | None = ""
    while after is not None:
        path = f"/v1/queues/{POISON}/buried?newest={str(newest).lower()}&after={after}"
        answer = (await served.ask("GET", path)).json
        assert answer["whole"] is True
        met += [int(each["body"]) for each in answer["messages"]]
        after = answer["next"]
        if len(met) == 32:
            (first, *_) = (await served.bridge.store.receive(POISON)).messages
            await served.bridge.store.settle(POISON, Settlement(delete=[Claim(first.id, first.pop_receipt)]))
    assert met == sorted(range(90), reverse=newest)[: 89 if newest else 90]


@pytest.mark.parametrize("newest", [False, True])
async def test_a_page_costs_the_same_wherever_it_stands(served: Served, newest: bool) -> None:
    """In steps of the database: what stands before it is not walked over."""
    own = served.bridge.own
    assert own is not None
    for _ in range(300):
        await own.put(POISON, [NewMessage(b"x")] * 32)
        await asyncio.sleep(0.001)  # else one millisecond has many of them
    engine = own._engine()
    assert engine is not None
    steps: list[int] = []
    engine.state.connection.set_progress_handler(lambda: steps.append(10), 10)
    costs, after = [], ""
    while after is not None:
        steps.clear()
        _, after = await own.browse(POISON, after=after, newest=newest)
        costs.append(sum(steps))
    engine.state.connection.set_progress_handler(None, 0)
    assert len(costs) == 300
    assert max(costs) < 3 * max(costs[:3])


async def test_those_of_a_reason_are_looked_for_a_part_at_a_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request looks at so many and says where to go on, whether it found any or none."""
    monkeypatch.setattr(graves, "SEARCHED_MAX", 64)
    for _ in range(5):
        await served.bridge.store.put(POISON, [NewMessage(b"x")] * 32)
    await bury(served, "no price", "too big")
    after: str | None = ""
    looked: list[int] = []
    found: list[str] = []
    while after is not None:
        answer = (await served.ask("GET", f"/v1/queues/{POISON}/buried?reason=price&after={after}")).json
        looked.append(answer["looked"])
        found += [each["burial"]["reason"] for each in answer["messages"]]
        after = answer["next"]
    assert (looked, found) == ([64, 64, 34], ["no price"])
    assert answer["whole"] is True, "nothing follows, however many there were"


@pytest.mark.parametrize(
    "query", ["after=x", "after=1", "after=-1.2", "after=" + "1" * 41, "newest=2", "max=5", "reason=" + "x" * 1001]
)
async def test_a_place_that_is_none_is_refused(served: Served, query: str) -> None:
    """By its code, and nothing of it is repeated."""
    await bury(served, "a")
    answer = await served.ask("GET", f"/v1/queues/{POISON}/buried?{query}")
    assert (answer.status, answer.code) == (400, "bad_parameter")


async def test_of_an_engine_the_first_are_shown() -> None:
    """An engine tells no places: that there may be more is said, and asking on is refused as not supported."""
    async with serving() as behind, serving(store=HttpStore(behind.server.url)) as served:
        for put, shown, whole in ((31, 31, True), (32, 32, False)):
            await served.bridge.store.put(POISON, [NewMessage(b"x")] * put)
            answer = (await served.ask("GET", f"/v1/queues/{POISON}/buried")).json
            assert (len(answer["messages"]), answer["next"], answer["whole"]) == (shown, None, whole)
        for more in ("after=1.2", "newest=true"):
            refused = await served.ask("GET", f"/v1/queues/{POISON}/buried?{more}")
            assert (refused.status, refused.code) == (501, "unsupported")


async def test_those_of_a_reason_go_back(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """The chosen are where they failed, with their facts; the others are as they were, not even counted."""
    caplog.set_level("INFO", "queuebell.web")
    await bury(served, "too big", "no such customer", "too big", HOSTILE)
    begun = await post(served, "replay", {"reason": "too big"})
    assert begun.status == 202
    assert begun.json == {"what": "replayed", "running": True, "moved": 0, "stay": 0, "twice": 0, "error": ""}
    run = await ended(served)
    assert (run.moved, run.stay, run.twice, run.error, run.running) == (2, 0, 0, "", False)
    assert f"{POISON}: replayed 2, 0 stay" in [record.getMessage() for record in caplog.records]
    async with watching(served, f"/v1/queues/{POISON}/watch") as view:
        assert (await view.next())["run"] == msgspec.to_builtins(run)
    back = await bodies(served, "pay/orders")
    assert [body.rpartition(b"\n")[2] for body in back] == [b"order 0", b"order 2"]
    depth = await served.bridge.store.depth(POISON)
    assert depth is not None
    assert (depth.visible, depth.invisible) == (2, 0)
    assert {each.dequeue_count for each in await served.bridge.store.peek(POISON)} == {0}


async def test_discarded_are_gone(served: Served) -> None:
    """One by its id, or all; nothing is put anywhere."""
    await bury(served, "a", "b", "c")
    first = (await served.bridge.store.peek(POISON))[0]
    assert (await post(served, "discard", {"ids": [first.id]})).status == 202
    assert (await ended(served)).moved == 1
    assert len(await bodies(served, POISON)) == 2
    assert (await post(served, "discard")).status == 202
    assert (await ended(served)).moved == 2
    assert await bodies(served, POISON) == []
    assert await served.bridge.store.depth("pay/orders") is None


SLIPS: list[object] = [
    {"reasons": "x"}, {"ids": "17"}, {"ids": [1]}, {"max": 0}, {"reason": "x" * 1001}, [], {"ids": ["x"] * 1001},
]  # fmt: skip


@pytest.mark.parametrize("value", SLIPS)
@pytest.mark.parametrize("what", ["replay", "discard"])
async def test_a_slip_does_nothing(served: Served, what: str, value: object) -> None:
    """What is misspelt must not mean all of them."""
    await bury(served, "a")
    answer = await post(served, what, value)
    assert (answer.status, answer.code) == (400, "bad_parameter")
    assert len(await bodies(served, POISON)) == 1


@pytest.mark.parametrize("what", ["replay", "discard"])
@pytest.mark.parametrize("raw", [b"{", b'{"ids":["\xff"]}', b'{"reason":"\\ud800"}'])
async def test_what_is_no_json_does_nothing(served: Served, what: str, raw: bytes) -> None:
    """It is refused as such, and no failure of the bridge."""
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
    stopping = asyncio.create_task(served.server.stop(), name="stop")
    await asyncio.sleep(0)
    go.set()
    await stopping
    depth = await served.bridge.store.depth(POISON)
    assert depth is not None
    assert (depth.visible, depth.invisible, len(await bodies(served, "pay/orders"))) == (8, 0, 32)


async def test_a_run_that_is_cancelled_before_its_first_step_keeps_no_other_from_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is shown, and the next run begins."""
    await bury(served, "no")

    def stillborn(*given: Any, **named: Any) -> asyncio.Task[Any]:
        task = made(*given, **named)
        if named.get("name") == f"graves[{POISON}]":
            task.cancel()
        return task

    made = asyncio.create_task
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "create_task", stillborn)
        assert (await post(served, "replay")).status == 202
    run = await ended(served)
    assert (run.running, run.moved, "what is left stays" in run.error) == (False, 0, True)
    assert (await post(served, "replay")).status == 202
    assert (await ended(served)).moved == 1


async def test_a_store_that_fails_is_told(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run ends, says why, and all of its messages are there still; another may be begun."""
    caplog.set_level("INFO", "queuebell.web")
    await bury(served, "a", "b")

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is full")

    put = served.bridge.store.put
    monkeypatch.setattr(served.bridge.store, "put", away)
    await post(served, "replay")
    run = await ended(served)
    assert (run.running, run.moved, run.error) == (False, 0, "the disk is full")
    assert caplog.messages[-1] == f"{POISON}: replayed 0, {run.stay} stay; the disk is full"
    assert len(await bodies(served, POISON)) == 2
    monkeypatch.setattr(served.bridge.store, "put", put)
    await post(served, "replay")
    assert (await ended(served)).moved == 2


async def test_nobody_puts_by_a_replay_where_it_may_not(tmp_path: pathlib.Path) -> None:
    """Who may take from the poison queue only can discard; what it puts back stays where it was."""
    path = tmp_path / "access.json"
    secrets = written(path, {"clerk": {"take": [POISON]}, "chief": {"take": [POISON], "put": ["pay/orders"]}})
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        await bury(served, "a", "b")
        assert (await post(served, "replay", Authorization=f"Bearer {secrets['clerk']}")).status == 202
        run = await ended(served)
        assert (run.moved, run.stay) == (0, 2)
        assert (await post(served, "replay", Authorization=f"Bearer {secrets['chief']}")).status == 202
        assert (await ended(served)).moved == 2


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
        watch.look()
        go.set()
        run = await ended(served)
        assert (run.moved, run.running) == (moved, False)
        monkeypatch.setattr(served.bridge.store, "put", put)
        depth = await served.bridge.store.depth(POISON)
        assert depth is not None
        assert (depth.visible, depth.invisible) == (40 - moved, 0)


async def test_a_bomb_costs_what_is_shown_of_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search inflates nothing, a run next to nothing; a page inflates beginnings, one message a turn of the loop."""
    for _ in range(4):
        await bury(served, *["no"] * 16, text=bytes(1 << 20))
    inflated: list[tuple[int, int]] = []
    unpacking, turn, over = zlib.decompressobj, 0, False

    class Counted:
        def decompress(self, data: bytes, most: int) -> bytes:
            out = unpacking().decompress(data, most)
            inflated.append((turn, len(out)))
            return out

    def turned() -> None:
        nonlocal turn
        turn += 1
        if not over:
            asyncio.get_running_loop().call_soon(turned)

    monkeypatch.setattr(zlib, "decompressobj", Counted)
    searched = (await served.ask("GET", f"/v1/queues/{POISON}/buried?reason=price")).json
    assert (searched["looked"], searched["messages"], inflated) == (64, [], [])
    turned()
    shown = (await served.ask("GET", f"/v1/queues/{POISON}/buried")).json
    over = True
    assert [(each["size"], len(each["body"])) for each in shown["messages"]] == [(1 << 20, graves.SHOWN)] * 32
    assert len({when for when, _ in inflated}) == len(inflated) == 32
    assert max(size for _, size in inflated) <= 4 * graves.SHOWN + 1
    inflated.clear()
    assert (await post(served, "discard", {"reason": "price"})).status == 202
    assert (await ended(served)).moved == 0
    assert (await post(served, "replay", {"reason": "no"})).status == 202
    assert (await ended(served)).moved == 64
    assert sum(size for _, size in inflated) < 1 << 20, "less for all of them than one body has"


async def test_the_newest_runs_are_kept(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of runs that ended so many are remembered, the newest of each queue; the one longest ago is forgotten first."""
    monkeypatch.setattr(graves, "_RUNS_MAX", 2)
    routes = served.server._graves
    assert routes is not None

    async def discard(queue: str) -> None:
        await served.bridge.store.put(queue, ["x"])
        assert (await served.ask("POST", f"/v1/queues/{queue}/discard")).status == 202
        await asyncio.wait([task for task, _, _ in routes._under_way.values()], timeout=100)

    for queue in ("a/one", "a/two", "a/one", "a/three"):
        await discard(queue)
    kept = [queue for queue in ("a/one", "a/two", "a/three") if routes.run_of(queue) is not None]
    assert kept == ["a/one", "a/three"]
    run = routes.run_of("a/one")
    assert run is not None and (run.what, run.running, run.moved) == ("discarded", False, 1)
