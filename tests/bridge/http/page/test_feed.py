"""What the page is told, over the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import Hello, ListenerHeartbeat, More, QueueBeat, Running, Started, Subscription
from bridge.http.page import feed, shown
from bridge.http.page.shown import FILES
from bridge.queues.base import NewMessage
from bridge.service import overview
from bridge.service.access import access_file
from bridge.service.access.watch import AccessWatch
from bridge.service.state import ListenerState
from tests.bridge.http.api.test_sse import Stream, stopped
from tests.support.access import written
from tests.support.processes import PATIENCE_S
from tests.support.web import Served, serving

QUEUE = "billing/orders"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view as often as the loop allows: what is shown is what matters, not the second between."""
    monkeypatch.setattr(feed, "PERIOD_S", 0.01)


class View:
    """One reader of a view."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    async def next(self) -> Any:
        """The next view; None at the end of the stream."""
        while (block := await self.stream.block()) is not None:
            for line in block:
                if line.startswith("data: "):
                    return json.loads(line[6:])
        return None


@contextlib.asynccontextmanager
async def watching(served: Served, path: str, **headers: str) -> AsyncIterator[View]:
    """Open one view."""
    async with served.client() as client:
        stream = Stream(client)
        await stream.open(path, **headers)
        assert stream.status == 200
        yield View(stream)


async def test_a_view_follows_the_queue(served: Served) -> None:
    """The first view stands at once, and the next one knows what happened since."""
    async with watching(served, "/v1/watch") as view, watching(served, f"/v1/queues/{QUEUE}/watch") as one:
        first = await view.next()
        assert (first["rows"], first["found"], first["totals"]["queues"]) == ([], 0, 0)
        assert first["bridge"]["boot"] == served.bridge.boot
        assert len(first["bridge"]["latency"]["wake"]) == len(first["bridge"]["bounds"]) + 1
        nothing = {"row": None, "state": None, "explained": None, "run": None}
        assert await one.next() == {**nothing, "running": [], "buses": {}, "triggered_ms": None}
        await served.bridge.store.put(QUEUE, [NewMessage(b"a"), NewMessage(b"b")])
        while not (rows := (await view.next())["rows"]):
            pass
        (row,) = rows
        assert (row["queue"], row["visible"], row["triggers"], row["listeners"]) == (QUEUE, 2, 1, 0)
        assert "no listener is subscribed" in row["trouble"]
        while (told := await one.next())["row"] is None:
            pass
        assert told["row"]["visible"] == 2
        assert told["explained"]["outcome"] == "no_session"
        assert (told["buses"], told["running"], told["triggered_ms"] >= 0) == ({"store": 1}, [], True)


async def test_nothing_is_asked_of_the_store(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many look, a queue is neither received from nor counted, peeked at nor described."""
    await served.bridge.store.put(QUEUE, [NewMessage(b"a")])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the store was asked")

    for name in ("receive", "depth", "peek", "oldest_ms", "exists", "queues", "settle"):
        monkeypatch.setattr(served.bridge.store, name, refuse)
    paths = ("/v1/watch", "/v1/watch/listeners", "/v1/watch/bridge", f"/v1/queues/{QUEUE}/watch")
    async with contextlib.AsyncExitStack() as stack:
        views = [await stack.enter_async_context(watching(served, path)) for path in paths * 3]
        for view in views * 2:
            assert await view.next() is not None
    assert served.bridge.describe(QUEUE).receives.total == 0  # type: ignore[union-attr]


async def test_rows_are_found_sorted_and_bounded(served: Served) -> None:
    """A hundred rows a view, whatever there is, and the sums are of all."""
    for number in range(130):
        served.bridge.trigger([CloudQueueWorkDetected("many", f"q{number:03}", 1)], bus="local")
    await served.bridge.store.put("many/zz", [NewMessage(b"")] * 5)
    async with watching(served, "/v1/watch?sort=name") as view:
        told = await view.next()
        assert [told["found"], len(told["rows"]), told["rows"][0]["queue"]] == [131, 100, "many/q000"]
        assert (told["totals"]["queues"], told["totals"]["visible"]) == (131, 5)
    async with watching(served, "/v1/watch?sort=waiting&filter=Z") as view:
        assert [row["queue"] for row in (await view.next())["rows"]] == ["many/zz"]
    async with watching(served, "/v1/watch?first=100&sort=name") as view:
        assert len((await view.next())["rows"]) == 31


WRONG = ["sort=speed", "first=-1", "first=x", "filter=" + "x" * 201, "view=1", "first=99999999"]


@pytest.mark.parametrize("query", WRONG)
@pytest.mark.parametrize("path", ["/v1/watch", "/v1/watch/listeners"])
async def test_a_query_that_is_none_is_refused(served: Served, path: str, query: str) -> None:
    """Said by its code, and nothing of what was sent stands in the answer."""
    answer = await served.ask("GET", f"{path}?{query}")
    assert (answer.status, answer.code) == (400, "bad_parameter")
    assert query.partition("=")[2] not in answer.json["detail"]


async def test_what_was_buried_is_no_trouble_of_its_own(served: Served) -> None:
    """A poison queue has no listener, as it should: what is in it stands with the queue where it failed."""
    for queue in (QUEUE, QUEUE + "-poison"):
        await served.bridge.store.put(queue, [NewMessage(b"a")])
    async with watching(served, "/v1/watch?sort=name") as view:
        told = await view.next()
        assert [(row["queue"], row["buried"], row["trouble"] is None) for row in told["rows"]] == [
            (QUEUE, 1, False),
            (QUEUE + "-poison", None, True),
        ]
        assert (told["totals"]["troubled"], told["totals"]["buried"]) == (1, 1)


async def test_a_handler_that_hangs_is_named(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who handles which message, for how long; it is trouble where work waits for it, and gone with its session."""
    link = await served.bridge.local_channel().connect()
    link.send(Hello(instance="a" * 32, listener="one", queues=[Subscription(QUEUE, 1)]))
    await link.receive()
    async with watching(served, f"/v1/queues/{QUEUE}/watch") as one:
        told = await one.next()
        assert (told["triggered_ms"], told["buses"], told["run"]) == (None, {}, None)
    served.bridge.trigger([CloudQueueWorkDetected("billing", "orders", 1)], bus="local")
    link.send(Started(QUEUE, served.bridge.boot, served.bridge.bell.ledger.newest_gen))
    link.send(More(QUEUE, 3))
    link.send(ListenerHeartbeat(1, {QUEUE: QueueBeat(free=0)}, running={QUEUE: Running("m1", 125_000, 2)}))
    async with watching(served, f"/v1/queues/{QUEUE}/watch") as one, watching(served, "/v1/watch") as view:
        while not (told := await one.next())["running"]:
            pass
        assert told["running"][0] | {"ms": 0} == {
            "listener": "one", "instance": "a" * 32, "id": "m1", "attempt": 2, "ms": 0,
        }  # fmt: skip
        assert told["running"][0]["ms"] >= 125_000
        words = "one has handled message m1 for 2 min, work waits, and nobody has room: does it hang?"
        assert told["row"]["trouble"] == words
        while not (listed := await view.next())["totals"]["troubled"]:
            pass
        assert (listed["rows"][0]["trouble"], listed["rows"][0]["running_ms"] >= 125_000) == (words, True)
        await link.close()
        while (await one.next())["running"]:
            pass


async def test_work_that_nobody_told_of_is_trouble_for_a_while(served: Served) -> None:
    """In words, with how often and when; ten minutes later it is only counted."""
    served.bridge.trigger([CloudQueueWorkDetected("billing", "orders", 1)], bus="local")
    debt = served.bridge.bell.ledger.debts[QUEUE]
    served.bridge.bell.ledger.settle(debt)
    debt.unannounced, debt.unannounced_at = 3, served.bridge.now() - 7
    async with watching(served, "/v1/watch") as view:
        (row,) = (await view.next())["rows"]
        assert row["trouble"].startswith("work was found 3 times that no trigger had told of, last 7 s ago: does every")
        debt.unannounced_at -= 600
        while (await view.next())["rows"][0]["trouble"]:
            pass


async def test_how_much_was_buried_is_told_who_may_look_there(tmp_path: pathlib.Path) -> None:
    """The queue alone says nothing of its poison queue, in no view and no order."""
    path = tmp_path / "access.json"
    secrets = written(path, {"clerk": {"look": ["a/x", "a/y"]}, "chief": {"look": ["*"]}})
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        for queue in ("a/x", "a/y", "a/y-poison"):
            await served.bridge.store.put(queue, [NewMessage(b"")])
        for name, buried, order in (("clerk", None, ["a/x", "a/y"]), ("chief", 1, ["a/y", "a/x", "a/y-poison"])):
            headers = {"Authorization": f"Bearer {secrets[name]}"}
            async with watching(served, "/v1/watch?sort=buried", **headers) as view:
                told = await view.next()
                assert [row["queue"] for row in told["rows"]] == order
                assert {row["queue"]: row["buried"] for row in told["rows"]}["a/y"] == buried
                assert told["totals"]["buried"] == (buried or 0)
            async with watching(served, "/v1/queues/a/y/watch", **headers) as one:
                told = await one.next()
                assert {told[part]["buried"] for part in ("row", "state")} == {buried}
                assert told["explained"].get("buried") in {None, buried}


async def test_each_view_names_its_edition(served: Served) -> None:
    """A page that belongs to another can load itself anew; it is another with any change of a file."""
    async with served.client() as client:
        stream = Stream(client)
        await stream.open("/v1/watch")
        while not (block := await stream.block()) or f"id: {shown.edition().decode()}" not in block:
            assert block is not None
    shown.edition.cache_clear()
    before, real = shown.edition(), shown.content
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shown, "content", lambda name: real(name) + b" ")
        shown.edition.cache_clear()
        assert shown.edition() != before
    shown.edition.cache_clear()


async def test_of_ten_thousand_listeners_a_hundred_are_described(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in trouble first, then by name; a name finds any of them."""
    channel = served.bridge.local_channel()
    links = [await channel.connect() for _ in range(130)]
    for number, link in enumerate(links):
        link.send(Hello(instance=f"{number:032x}", listener=f"w{number:03}", queues=[Subscription(QUEUE, 1)]))
    described: list[str] = []
    real = overview.listener

    def counted(*given: Any) -> ListenerState:
        described.append(given[1].listener)
        return real(*given)

    monkeypatch.setattr(overview, "listener", counted)
    links[77].send(ListenerHeartbeat(1, {QUEUE: QueueBeat(failing_ms=5000)}))
    async with watching(served, "/v1/watch/listeners") as view:
        told = await view.next()
        assert (told["found"], len(told["rows"]), len(described)) == (130, 100, 100)
        assert [row["listener"] for row in told["rows"][:3]] == ["w077", "w000", "w001"]
    async with watching(served, "/v1/watch/listeners?sort=name&filter=w12") as view:
        assert [row["listener"] for row in (await view.next())["rows"]] == [f"w12{digit}" for digit in range(10)]
    for link in links:
        await link.close()


async def test_listeners_are_found_by_their_queues(served: Served) -> None:
    """By their own names and by those of their queues."""
    link = await served.bridge.local_channel().connect()
    link.send(Hello(instance="a" * 32, listener="one", queues=[Subscription(QUEUE, 4)]))
    await link.receive()
    async with watching(served, "/v1/watch/listeners?filter=ORDERS") as view:
        (row,) = (await view.next())["rows"]
        assert (row["listener"], row["queues"][0]["free"]) == ("one", 4)
    async with watching(served, "/v1/watch/listeners?filter=other") as view:
        assert (await view.next())["found"] == 0
    await link.close()


async def test_each_sees_what_is_granted(tmp_path: pathlib.Path) -> None:
    """Who may look at one queue sees that one, and nothing of the bridge; the view ends with the grant."""
    path = tmp_path / "access.json"
    grants = {"clerk": {"look": ["a/x"]}, "operator": {"look": ["*"], "operate": ["*"]}}
    secrets = written(path, grants)
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        for queue in ("a/x", "a/y"):
            await served.bridge.store.put(queue, [NewMessage(b"")])
        clerk, operator = ({"Authorization": f"Bearer {secrets[name]}"} for name in ("clerk", "operator"))
        async with watching(served, "/v1/watch", **clerk) as view:
            told = await view.next()
            assert [row["queue"] for row in told["rows"]] == ["a/x"]
            assert told["totals"]["queues"] == 1
            assert "bridge" not in told
            access_file.change(path, lambda found: type(found)())
            watch.look()
            while await view.next() is not None:
                pass
        secrets = written(path, grants)
        watch.look()
        operator = {"Authorization": f"Bearer {secrets['operator']}"}
        async with watching(served, "/v1/watch", **operator) as view:
            told = await view.next()
            assert (told["totals"]["queues"], told["bridge"]["ready"]) == (2, True)


async def test_an_open_view_shows_what_is_granted_now(tmp_path: pathlib.Path) -> None:
    """A reader who may look at less than before sees less from then on, and nothing of the bridge."""
    path = tmp_path / "access.json"
    secrets = written(path, {"clerk": {"look": ["a/x", "a/y"], "operate": ["*"]}})
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        for queue in ("a/x", "a/y"):
            await served.bridge.store.put(queue, [NewMessage(b"")])
        async with watching(served, "/v1/watch", Authorization=f"Bearer {secrets['clerk']}") as view:
            assert (await view.next())["totals"]["queues"] == 2
            access_file.change(path, lambda old: type(old)(principals={"clerk": {"look": ["a/x"]}}, keys=old.keys))
            watch.look()
            async with asyncio.timeout(PATIENCE_S):
                while (told := await view.next())["totals"]["queues"] == 2:
                    pass
            assert [row["queue"] for row in told["rows"]] == ["a/x"]
            assert "bridge" not in told


async def test_who_does_not_read_holds_nobody_up(served: Served) -> None:
    """It is not written to until it has taken what was; others go on being told, and so is it once it reads."""
    for number in range(100):
        served.bridge.trigger([CloudQueueWorkDetected("many", f"q{number:03}", 1)], bus="local")
    loop = asyncio.get_running_loop()
    path = "/v1/watch?sort=name"
    async with stopped(served, path) as still, watching(served, path) as other:
        wires = {each.transport.get_extra_info("peername"): each.transport for each in served.server.connections.open}
        slow = wires[still.getsockname()]
        async with asyncio.timeout(PATIENCE_S):
            while not (waits := slow.get_write_buffer_size()):
                await other.next()
        for _ in range(5):
            assert await other.next() is not None
        assert slow.get_write_buffer_size() <= waits
        served.bridge.trigger([CloudQueueWorkDetected("a", "newest", 1)], bus="local")
        tail = b""
        async with asyncio.timeout(PATIENCE_S):
            while b"a/newest" not in tail:
                tail = tail[-100:] + await loop.sock_recv(still, 65_536)


async def test_each_reader_has_its_own_view(served: Served) -> None:
    """Also in later rounds, whatever others look at meanwhile."""
    links = [await served.bridge.local_channel().connect() for _ in range(2)]
    for link, name in zip(links, ("one", "two"), strict=True):
        link.send(Hello(instance=name[0] * 32, listener=name, queues=[Subscription(f"a/{name}", 1)]))
        await link.receive()
    seen: dict[str, object] = {
        "/v1/watch?filter=one": ["a/one"],
        "/v1/watch?filter=two": ["a/two"],
        "/v1/watch/listeners?filter=one": ["one"],
        "/v1/watch/listeners?filter=two": ["two"],
        "/v1/queues/a/one/watch": "a/one",
        "/v1/queues/a/two/watch": "a/two",
        "/v1/watch/bridge": served.bridge.boot,
    }

    def shows(told: Any) -> object:
        if "rows" in told:
            return [row.get("queue") or row["listener"] for row in told["rows"]]
        return told["row"]["queue"] if "row" in told else told["boot"]

    async with contextlib.AsyncExitStack() as stack:
        views = {path: await stack.enter_async_context(watching(served, path)) for path in seen}
        for _ in range(4):
            assert {path: shows(await view.next()) for path, view in views.items()} == seen
    for link in links:
        await link.close()


async def test_views_have_a_limit_and_head_opens_none() -> None:
    """One more is told to come again in a while."""
    async with serving(streams=1) as served, watching(served, "/v1/watch"):
        for path in ("/v1/watch", "/v1/watch/bridge", "/v1/watch/listeners", "/v1/queues/a/b/watch"):
            more, head = [await served.ask(method, path) for method in ("GET", "HEAD")]
            assert (more.status, more.body[:7], more.headers["connection"]) == (200, b"retry: ", "close")
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")


async def test_a_stopping_bridge_ends_views(served: Served) -> None:
    """The page comes again by itself."""
    async with watching(served, "/v1/watch") as view:
        await view.next()
        await served.server.stop()
        while await view.next() is not None:
            pass


@pytest.mark.parametrize("path", list(FILES))
async def test_the_files_are_strict(served: Served, path: str) -> None:
    """Small, and under a policy by which nothing but them runs or is loaded."""
    answer = await served.ask("GET", path)
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["content-type"] == FILES[path][1]
    assert b"http://" not in answer.body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in answer.body
    assert b"innerHTML" not in answer.body


async def test_the_page_is_small(served: Served) -> None:
    """All of it: 150 KB at most."""
    sizes = [len((await served.ask("GET", path)).body) for path in FILES]
    assert sum(sizes) < 150_000
