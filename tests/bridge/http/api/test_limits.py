"""What a principal may use, asked on each way in: within it, past it, and again after ``Retry-After``.

====================  =================  ==================  =========================
limit                 native HTTP        WebSocket session   server-sent events
====================  =================  ==================  =========================
requests_per_second   refused unread     frames, later       no stream
puts_per_second       put, put once      puts come by HTTP   puts come by HTTP
connections           not counted        counted             counted, with the sessions
queues                put, once, create  makes none          makes none
waiting_bytes         put, put once      puts come by HTTP   puts come by HTTP
====================  =================  ==================  =========================
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import secrets
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.keys import AccessList, new_key, with_terms
from queuebell.bridge.access.limits import REFUSALS_AT_ONCE, Refusals
from queuebell.bridge.observe.facts import AccessRefused
from queuebell.bridge.queues.base import QueueStore
from tests.support.access import NOW, secret_of, written
from tests.support.web import JSON, Reply, Served, request, serving

MIB = 1024 * 1024
EVERYTHING = {verb: ["a/*"] for verb in ("ring", "put", "take", "look", "manage")}


HELLO = {"type": "hello", "listener": "l", "queues": []}


class Limited:
    """A bridge, two principals with all grants, two keys of the first, and a time that the test moves."""

    def __init__(self, served: Served, watch: AccessWatch, path: pathlib.Path, secrets: dict[str, str]) -> None:
        self.served = served
        self.secrets = secrets
        self.now = 1000.0
        self.watch = watch
        self._path = path
        watch.clock = lambda: self.now

    def limit(self, **limits: float) -> None:
        """Write these limits of the first into the file, and have the bridge see it."""
        given = {name: str(value) for name, value in limits.items()}
        access_file.change(self._path, lambda found: with_terms(found, "greedy", {}, limits=given))
        self.watch.check()

    async def ask(
        self, method: str, path: str, body: bytes | None = None, who: str = "greedy", media: str = JSON
    ) -> Reply:
        """Ask with a key."""
        return await self.served.ask(method, path, body, media=media, Authorization=f"Bearer {self.secrets[who]}")

    async def put(self, queue: str = "a/x", count: int = 1, who: str = "greedy") -> Reply:
        """Put some messages."""
        body = json.dumps({"messages": [{"body": "x"}] * count}).encode()
        return await self.ask("POST", f"/v1/queues/{queue}/messages", body, who)

    @contextlib.asynccontextmanager
    async def session(self, who: str = "greedy") -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a session that is not closed in order, but cut off."""
        headers = {"Authorization": f"Bearer {self.secrets[who]}"}
        async with aiohttp.ClientSession(headers=headers) as client:
            session = await client.ws_connect(f"{self.served.server.url}/v1/sessions", protocols=("queuebell.v2",))
            assert (await session.receive_json())["type"] == "ready"
            yield session

    @contextlib.asynccontextmanager
    async def open(self, kind: str, who: str = "greedy") -> AsyncIterator[tuple[object, object]]:
        """Open a session or a stream, and give its status and what it was told to wait."""
        headers = {"Authorization": f"Bearer {self.secrets[who]}"}
        url = self.served.server.url
        async with aiohttp.ClientSession(headers=headers) as client:
            if kind == "stream":
                async with client.get(f"{url}/v1/wakes?queue=a/x") as answer:
                    yield answer.status, answer.headers.get("Retry-After")
                return
            async with self.session(who) as session:
                await session.send_json({**HELLO, "instance": secrets.token_hex(16)})
                frame = await session.receive_json()
                welcomed = frame["type"] == "welcome"
                yield (200, None) if welcomed else (frame["code"], frame["retry_after_s"])


@contextlib.asynccontextmanager
async def limiting(path: pathlib.Path, store: QueueStore | None = None) -> AsyncIterator[Limited]:
    """What `Limited` says, with the access file at this path, and on the engine of a ``store``."""
    secrets = written(path, {"greedy": EVERYTHING, "other": EVERYTHING})

    def second(found: AccessList) -> AccessList:
        made, secrets["second"] = new_key(found, "greedy", chance=secret_of(99), now=NOW)
        return made

    access_file.change(path, second)
    async with AccessWatch(path) as watch, serving(store=store, access=watch) as served:
        yield Limited(served, watch, path, secrets)


@pytest_asyncio.fixture
async def limited(tmp_path: pathlib.Path) -> AsyncIterator[Limited]:
    """The same with a bridge in memory."""
    async with limiting(tmp_path / "access.json") as limited:
        yield limited


async def test_requests_a_second_over_http(limited: Limited) -> None:
    """Refused with 429 and the seconds to wait; both keys share it, nobody else does, and then it goes on."""
    refused: list[AccessRefused] = []
    limited.served.bridge.observe(lambda fact: refused.append(fact) if isinstance(fact, AccessRefused) else None)
    assert [(await limited.ask("GET", "/v1/queues")).status for _ in range(20)] == [200] * 20
    limited.limit(requests_per_second=2)
    told = [await limited.ask("GET", "/v1/queues", who=who) for who in ("greedy", "second", "greedy", "second")]
    assert [each.status for each in told] == [200, 200, 429, 429]
    assert (told[2].code, told[2].headers["retry-after"]) == ("too_many_requests", "1")
    assert refused == [AccessRefused("limit", "greedy", "look", "", "127.0.0.1")] * 2
    assert (await limited.ask("GET", "/v1/queues", who="other")).status == 200
    limited.now += 1
    assert (await limited.ask("GET", "/v1/queues", who="second")).status == 200
    limited.limit(requests_per_second=1000)
    assert {(await limited.put()).status for _ in range(30)} == {201}
    text = limited.served.bridge.metrics.render().decode()
    assert 'queuebell_refusals_total{reason="limit"} 2.0' in text


async def test_puts_a_second(limited: Limited) -> None:
    """Messages count, by whatever call; other requests do not, and nothing of a refused put is there."""
    limited.limit(puts_per_second=3)
    assert (await limited.put(count=2)).status == 201
    assert (await limited.ask("PUT", "/v1/queues/a/x/messages/k", b"x", media="text/plain")).status == 201
    refused = [await limited.put(who="second"), await limited.ask("PUT", "/v1/queues/a/x/messages/m", b"x")]
    assert [(each.code, each.headers["retry-after"]) for each in refused] == [("too_many_requests", "1")] * 2
    assert (await limited.ask("GET", "/v1/queues/a/x")).json["depth"]["visible"] == 3
    assert (await limited.put(who="other")).status == 201
    limited.now += 1
    assert (await limited.put(count=32)).status == 201
    later = await limited.put()
    assert (later.code, later.headers["retry-after"]) == ("too_many_requests", "10")
    limited.now += 10
    assert (await limited.put()).status == 201


async def test_frames_past_the_rate_are_read_later(limited: Limited) -> None:
    """All of them are answered in the end, and nobody else waits."""

    async def beats(session: aiohttp.ClientWebSocketResponse, count: int) -> None:
        for number in range(count):
            await session.send_json({"type": "heartbeat", "stamp": number})

    async with limited.session() as mine, limited.session("other") as others:
        for session in (mine, others):
            await session.send_json({**HELLO, "instance": secrets.token_hex(16)})
            assert (await session.receive_json())["type"] == "welcome"
        limited.watch.clock = time.monotonic
        limited.limit(requests_per_second=500)
        await beats(mine, 800)
        assert [(await mine.receive_json())["echo"] for _ in range(800)] == list(range(800))
        limited.limit(requests_per_second=0.001)
        # What came in one piece is all taken, and what comes after it waits for all of that.
        await beats(mine, 1)
        assert (await mine.receive_json())["echo"] == 0
        await beats(mine, 1)
        await beats(others, 3)
        assert [(await others.receive_json())["echo"] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await mine.receive()


@pytest.mark.parametrize("kind", ["session", "stream"])
@pytest.mark.parametrize("beside", ["session", "stream"])
async def test_connections(limited: Limited, kind: str, beside: str) -> None:
    """Sessions and streams of both keys together; one that ends makes room, and requests are no part of it."""
    async with limited.open(beside, "second") as first:
        limited.limit(connections=1)
        assert first[0] == 200
        async with limited.open(kind) as refused, limited.open(kind, "other") as others:
            assert (refused, others[0]) == ((429, "5") if kind == "stream" else ("too_many_requests", 5), 200)
        assert (await limited.ask("GET", "/v1/queues")).status == 200
    async with asyncio.timeout(100):
        while True:
            async with limited.open(kind) as again:
                if again[0] == 200:
                    return
            await asyncio.sleep(0.01)


async def test_queues(limited: Limited) -> None:
    """Counted are those that it may put in or manage, whoever made them, but for poison queues of those that are."""
    assert (await limited.put("a/one", who="other")).status == 201
    limited.limit(queues=2)
    assert (await limited.put("a/two")).status == 201
    for answer in (
        await limited.put("a/three"),
        await limited.ask("PUT", "/v1/queues/a/three"),
        await limited.ask("PUT", "/v1/queues/a/three/messages/k", b"x", "second"),
        await limited.put("a/three-poison"),
    ):
        assert (answer.code, answer.headers["retry-after"]) == ("too_many_requests", "60")
        assert answer.json["detail"] == "this principal may have at most 2 queues"
    assert (await limited.put("a/two")).status == 201
    assert (await limited.put("a/two-poison")).status == 201
    assert (await limited.ask("PUT", "/v1/queues/a/one")).status == 204
    assert (await limited.ask("POST", "/v1/queues/a/three/messages?create=false", b"x", media="")).status == 404
    limited.limit(queues=3)
    assert (await limited.put("a/four", who="other")).status == 201
    for name in ("two", "two-poison"):
        assert (await limited.ask("DELETE", f"/v1/queues/a/{name}")).status == 204
    done = await asyncio.gather(*(limited.put(f"a/new{number}") for number in range(5)))
    assert sorted(each.status for each in done) == [201, 429, 429, 429, 429]
    assert {each.status for each in await asyncio.gather(*(limited.put("a/one") for _ in range(5)))} == {201}


async def test_bytes_that_wait(limited: Limited) -> None:
    """From before a body is read until its put is answered, and not for what is refused or given up."""
    limited.limit(waiting_bytes=8 * MIB)
    head = {"Authorization": f"Bearer {limited.secrets['greedy']}", "Content-Type": "application/json"}
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(limited.served.client()) for _ in range(3)]
        for client in clients[:2]:
            await client.send(
                request("POST", "/v1/queues/a/x/messages", Content_Length=str(3 * MIB), Expect="100-continue", **head)
            )
            assert (await client.reply()).status == 100
        await clients[2].send(
            request("POST", "/v1/queues/a/x/messages", Content_Length=str(3 * MIB), Expect="100-continue", **head)
        )
        refused = await clients[2].reply()
        assert (refused.code, refused.headers["retry-after"]) == ("too_many_requests", "1")
        assert (await limited.put(who="second")).status == 201
        await clients[0].close()
        async with asyncio.timeout(100):
            while (await limited.ask("PUT", "/v1/queues/a/x/messages/k", bytes(64), media="")).status != 201:
                pass
        await clients[1].send(b'{"messages":[{"body":"' + b"x" * 1000 + b'"}]}' + b" " * (3 * MIB - 1026))
        assert (await clients[1].reply()).status == 201
    assert (await limited.put()).status == 201


@pytest.mark.parametrize("held", [1000.0, 0.002])
@pytest.mark.parametrize("kind", ["wrong key", "past the rate", "triggers"])
async def test_a_flood_of_refusals_waits(
    kind: str, held: float, limited: Limited, caplog: pytest.LogCaptureFixture
) -> None:
    """Past a few, each holds its own connection, unread, and nobody else's; then it is answered as any other is.

    What is held is no put that waits, and nothing is left of it when its peer goes.
    """
    limited.watch.refusals = Refusals(per_second=1 / held, held_s_max=held)
    limited.limit(requests_per_second=1)
    secret = "qb_wrong" if kind == "wrong key" else limited.secrets["greedy"]
    path = "/v1/triggers/a/x" if kind == "triggers" else "/v1/queues/a/x/messages"
    status = 401 if kind == "wrong key" else 429
    one = request("POST", path, b"" if kind == "triggers" else b"x", Authorization=f"Bearer {secret}")
    async with limited.served.client() as flooding, contextlib.AsyncExitStack() as stack:
        await flooding.send(one * 1000)
        told = [(await flooding.reply()).status for _ in range(REFUSALS_AT_ONCE + (held < 1) * 800)]
        assert told.count(status) >= len(told) - 1
        if held > 1:
            clients = [await stack.enter_async_context(limited.served.client()) for _ in range(20)]
            for client in clients:
                await client.send(one)
        assert (await limited.put(who="other")).status == 201
        assert limited.served.bridge.gate.rule.waiting == 0
    async with asyncio.timeout(100):
        while held < 1 and limited.served.server.connections.open:
            await asyncio.sleep(0.01)
    assert "unexpected error in a request" not in caplog.text


QUEUE = "/v1/queues/billing/orders"
ID = QUEUE + "/messages/order-7"


async def test_a_body_over_the_limit_is_told_as_such(served: Served) -> None:
    """Before it is read where its length says so, after it where it does not."""
    assert (await served.ask("PUT", ID, b"x" * 65_537)).code == "message_too_large"
    assert (await served.ask("PUT", ID, b"x" * 65_536)).status == 201
    chunks = b"10000\r\n" + b"x" * 65_536 + b"\r\n1\r\nx\r\n0\r\n\r\n"
    head = f"PUT {QUEUE}/messages/c HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await served.ask_raw(head.encode() + chunks)).code == "message_too_large"


async def test_a_stopping_bridge_takes_none(served: Served) -> None:
    await served.ask("PUT", ID, b"x")
    served.bridge.drain()
    reply = await served.ask("PUT", ID, b"x")
    assert (reply.status, reply.code) == (503, "draining")
