"""What the page is told, over the wire."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.contract.wire import Hello, ListenerHeartbeat, QueueBeat, Subscription
from queuebell.bridge.http.page import feed
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.service.state import overview
from queuebell.bridge.service.state.answers import ListenerState
from tests.bridge.http.api.test_sse import Stream
from tests.support.access import written
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
        assert (told["found"], len(told["rows"])) == (130, 100)
        # For each view: there is one a second, and a busy machine may take that long to read the first.
        assert described and len(described) % 100 == 0
        assert [row["listener"] for row in told["rows"][:3]] == ["w077", "w000", "w001"]
    async with watching(served, "/v1/watch/listeners?sort=name&filter=w12") as view:
        assert [row["listener"] for row in (await view.next())["rows"]] == [f"w12{digit}" for digit in range(10)]
    for link in links:
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
            watch.check()
            while await view.next() is not None:
                pass
        secrets = written(path, grants)
        watch.check()
        operator = {"Authorization": f"Bearer {secrets['operator']}"}
        async with watching(served, "/v1/watch", **operator) as view:
            told = await view.next()
            assert (told["totals"]["queues"], told["bridge"]["ready"]) == (2, True)
