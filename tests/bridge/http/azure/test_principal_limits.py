"""What an account's principal may use at the Azure endpoint, counted with what it uses at the bridge's own port.

====================  ==============================================================
limit                 here
====================  ==============================================================
requests_per_second   every signed request
puts_per_second       PutMessage
queues                CreateQueue
waiting_bytes         PutMessage
connections           has neither sessions nor streams
====================  ==============================================================

Past it the answer is 503 ``ServerBusy`` with ``Retry-After``: at 429 clients of the service give up, which is asked of
the real one at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import LinearRetry, QueueServiceClient

from bridge.core.keys import with_terms
from bridge.core.limits import REFUSALS_AT_ONCE, Refusals
from bridge.http.server.settings import WebSettings
from bridge.observe.facts import AccessRefused, Fact
from bridge.service.access import access_file
from bridge.service.access.watch import AccessWatch
from bridge.service.bridge import Bridge
from tests.support.access import written
from tests.support.azure import ACCOUNT, Front, connection_string, fault, message, serving_azure, signed_headers
from tests.support.web import Client, Reply, Served, WebServer

MIB = 1024 * 1024
MINE = f"{ACCOUNT}/*"


class Limited:
    """Both doors of a bridge, one principal behind them, and a time that the test moves."""

    def __init__(self, front: Front, served: Served, watch: AccessWatch, path: pathlib.Path, secret: str) -> None:
        self.front = front
        self.watch = watch
        self.now = 1000.0
        self.told: list[Fact] = []
        self._served = served
        self._path = path
        self._secret = secret
        watch.clock = lambda: self.now
        front.bridge.observe(self.told.append)

    def limit(self, **limits: float) -> None:
        """Write these limits into the file, and have the bridge see it."""
        given = {name: str(value) for name, value in limits.items()}
        access_file.change(self._path, lambda found: with_terms(found, "p", {}, limits=given))
        self.watch.look()

    async def put(self, queue: str = "que") -> Reply:
        """Put a message here."""
        return await self.front.ask("POST", f"/{queue}/messages", message("m"))

    async def native(self, method: str, path: str, body: bytes | None = None) -> Reply:
        """Ask at the bridge's own port."""
        return await self._served.ask(method, path, body, media="", Authorization=f"Bearer {self._secret}")

    def refusals(self) -> list[tuple[str, str, str]]:
        """What was told of refusals."""
        return [(each.principal, each.verb, each.queue) for each in self.told if isinstance(each, AccessRefused)]


@pytest_asyncio.fixture
async def limited(tmp_path: pathlib.Path) -> AsyncIterator[Limited]:
    """What `Limited` says."""
    path = tmp_path / "access.json"
    secret = written(path, {"p": {verb: [MINE] for verb in ("put", "take", "look", "manage")}})["p"]
    async with contextlib.AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(Bridge())
        watch = await stack.enter_async_context(AccessWatch(path))
        await bridge.store.create(f"{ACCOUNT}/que")
        web = WebServer(bridge, WebSettings(port=0, shutdown_timeout=0.2), access=watch)
        await stack.enter_async_context(web)
        front = await stack.enter_async_context(serving_azure(bridge, access=watch, principal="p"))
        yield Limited(front, Served(bridge, web), watch, path, secret)


def busy(reply: Reply) -> str | None:
    """Return what a refusal of this kind tells to wait, None for another answer."""
    return reply.headers["retry-after"] if reply.status == 503 and fault(reply) == (503, "ServerBusy") else None


async def test_requests_of_both_doors_are_one_rate(limited: Limited) -> None:
    """Whatever is asked for; a signature that does not fit counts against nobody."""
    limited.limit(requests_per_second=3)
    assert {(await limited.front.ask("GET", "/que/messages", sign=False)).status for _ in range(5)} == {401}
    assert (await limited.front.ask("GET", "/que?comp=metadata")).status == 200
    assert (await limited.native("GET", "/v1/queues")).status == 200
    assert (await limited.put()).status == 201
    limited.told.clear()
    assert busy(await limited.front.ask("GET", "/que/messages")) == "1"
    assert busy(await limited.front.ask("GET", "?comp=list")) == "1"
    assert (await limited.native("GET", "/v1/queues")).code == "too_many_requests"
    assert limited.refusals() == [("p", "take", f"{ACCOUNT}/que"), ("p", "look", ""), ("p", "look", "")]
    limited.now += 1
    assert (await limited.front.ask("GET", "/que/messages")).status == 200


async def test_puts_of_both_doors_are_one_rate(limited: Limited) -> None:
    """Nothing else is past it, nothing of a refused put is there, and a body that has come costs no connection."""
    limited.limit(puts_per_second=2)
    assert (await limited.put()).status == 201
    assert (await limited.native("POST", f"/v1/queues/{ACCOUNT}/que/messages", b"m")).status == 201
    assert busy(await limited.put()) == "1"
    assert len(await limited.front.get("que", "?numofmessages=32")) == 2
    limited.now += 0.5
    target = f"/{ACCOUNT}/que/messages"
    lines = [f"POST {target} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(message('m'))}"]
    signed = signed_headers("POST", target, message("m"), {}, limited.front.wall())
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in signed.items())]).encode() + b"\r\n\r\n"
    async with connected(limited) as client:
        told = []
        for _ in range(2):
            await client.send(head + message("m"))
            told.append(await client.reply())
        assert [each.status for each in told] == [201, 503]
        assert "connection" not in told[1].headers
        await client.send(head)
        assert (await client.reply()).headers["connection"] == "close", "its body is not waited for"
        await client.rest()


@contextlib.asynccontextmanager
async def connected(limited: Limited) -> AsyncIterator[Client]:
    """A connection to the endpoint."""
    client = Client(*await asyncio.open_connection("127.0.0.1", limited.front.server.port))
    try:
        yield client
    finally:
        await client.close()


async def test_queues_made_at_both_doors(limited: Limited) -> None:
    """Past it none is made; one that stands is answered as ever, and so is the poison queue of one that does."""
    limited.limit(queues=2)
    assert (await limited.front.ask("PUT", "/two")).status == 201
    assert busy(await limited.front.ask("PUT", "/three")) == "60"
    assert (await limited.native("PUT", f"/v1/queues/{ACCOUNT}/three")).code == "too_many_requests"
    assert (await limited.front.ask("PUT", "/two")).status == 204
    assert (await limited.front.ask("PUT", "/two-poison")).status == 201
    assert limited.refusals() == [("p", "manage", f"{ACCOUNT}/three")] * 2
    for name in ("two-poison", "two"):
        assert (await limited.front.ask("DELETE", f"/{name}")).status == 204
    done = await asyncio.gather(*(limited.front.ask("PUT", f"/new{number}") for number in range(4)))
    assert sorted(each.status for each in done) == [201, 503, 503, 503]


@pytest.mark.parametrize("query", ["", "?timeout=30"])
async def test_bytes_that_wait(limited: Limited, query: str) -> None:
    """From before a body is read until its put is answered or given up, with those of the other door."""
    limited.limit(waiting_bytes=8 * MIB)
    mine = limited.watch.principal("p")
    assert mine is not None
    used = limited.watch.allowance(mine)
    size = len(message("m"))
    used.hold(8 * MIB - size)
    target = f"/{ACCOUNT}/que/messages{query}"
    signed = signed_headers("POST", target, message("m"), {}, limited.front.wall())
    lines = [f"POST {target} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {size}", "Expect: 100-continue"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in signed.items())]).encode() + b"\r\n\r\n"
    async with connected(limited) as first:
        await first.send(head)
        assert (await first.reply()).status == 100
        assert busy(await limited.front.ask("POST", f"/que/messages{query}", message("m"))) == "1"
        await first.send(message("m"))
        assert (await first.reply()).status == 201
    async with connected(limited) as second:
        await second.send(head)
        assert (await second.reply()).status == 100
    async with asyncio.timeout(100):
        while used.waiting_bytes > 8 * MIB - size:
            await asyncio.sleep(0.01)
    assert (await limited.front.ask("POST", f"/que/messages{query}", message("m"))).status == 201
    assert used.waiting_bytes == 8 * MIB - size
    assert limited.refusals() == [("p", "put", f"{ACCOUNT}/que")]


@pytest.mark.parametrize("kind", ["no signature", "past the rate"])
async def test_a_flood_of_refusals_waits(limited: Limited, kind: str) -> None:
    """Past a few they are answered later, as at the other door, and nobody else is."""
    limited.watch.refusals = Refusals(per_second=0.001, held_s_max=1000.0)
    limited.limit(puts_per_second=1)
    target = f"/{ACCOUNT}/que/messages"
    signed = {} if kind == "no signature" else signed_headers("POST", target, b"", {}, limited.front.wall())
    lines = [f"POST {target} HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 0"]
    one = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in signed.items())]).encode() + b"\r\n\r\n"
    async with connected(limited) as client:
        await client.send(one * 1000)
        told = [(await client.reply()).status for _ in range(REFUSALS_AT_ONCE + (kind == "past the rate"))]
        assert set(told[1:]) == {401 if kind == "no signature" else 503}
        async with connected(limited) as another:
            # One more on each: whichever was judged first, neither is answered now.
            await another.send(one)
            for each in (client, another):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await each.reply()
            assert (await limited.front.ask("GET", "/que?comp=metadata")).status == 200


async def test_the_sdk_tries_again_until_it_is_let_in(limited: Limited) -> None:
    """By its own policy for 503: each message is put once, in spite of the refusals between them."""
    limited.limit(puts_per_second=1)

    def passes(fact: Fact) -> None:
        if isinstance(fact, AccessRefused):
            limited.now += 0.5

    limited.front.bridge.observe(passes)

    def work(policy: Any) -> None:
        text = connection_string(limited.front.server.port)
        with QueueServiceClient.from_connection_string(text, retry_policy=policy) as sdk:
            queue = sdk.get_queue_client("que")
            for number in range(5):
                queue.send_message(str(number))

    await asyncio.to_thread(work, LinearRetry(backoff=0, retry_total=5, random_jitter_range=0))
    assert [each.text for each in await limited.front.get("que", "?numofmessages=32")] == list("01234")
    assert len(limited.refusals()) == 8
    with pytest.raises(HttpResponseError) as told:
        await asyncio.to_thread(work, LinearRetry(backoff=0, retry_total=0, random_jitter_range=0))
    assert (told.value.status_code, told.value.error_code) == (503, "ServerBusy")


async def test_the_sdk_gives_up_at_429() -> None:
    """Which is why this endpoint says 503, as the service does."""
    asked = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"</QueueMessage>")
        writer.write(
            b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        text = connection_string(server.sockets[0].getsockname()[1])

        def work() -> None:
            policy: Any = LinearRetry(backoff=0, retry_total=5, random_jitter_range=0)
            with QueueServiceClient.from_connection_string(text, retry_policy=policy) as sdk:
                sdk.get_queue_client("que").send_message("m")

        with pytest.raises(HttpResponseError) as told:
            await asyncio.to_thread(work)
        assert (told.value.status_code, asked) == (429, 1)
