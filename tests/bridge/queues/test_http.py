"""The store over HTTP: what it adds to the promise, and how it tells failures apart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from queuebell.bridge.contract.errors import BadInput, UnknownOutcome, Unsupported
from queuebell.bridge.queues.base import NewMessage, digest_of
from queuebell.bridge.queues.http.store import HttpStore, normalised
from queuebell.bridge.queues.side_by_side import apart
from tests.support.sim_loop import pass_time, simulated

QUEUE = "billing/orders"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def scripted(serve: Serve) -> AsyncIterator[str]:
    """Serve HTTP by hand, to fail in ways that our own server does not."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def connected(url: str, **options: float) -> AsyncIterator[HttpStore]:
    store = HttpStore(url, **options)
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("call", ["receive", "peek", "create", "delete", "clear", "depth", "put"])
async def test_l6_a_dropped_connection_is_an_unknown_outcome_and_never_repeated(call: str) -> None:
    """aiohttp's client repeats GET, PUT and DELETE after a kept connection was dropped before the answer."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One good answer keeps the connection; the next request gets none.
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"queues":[]}')
        requests.append(await reader.readuntil(b"\r\n\r\n"))

    async with scripted(serve) as url, connected(url) as store:
        await store.queues()
        arguments = {"put": ([NewMessage(b"x")],)}.get(call, ())
        with pytest.raises(UnknownOutcome):
            await getattr(store, call)(QUEUE, *arguments)
        assert len(requests) == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://localhost:8470", "http://127.0.0.1:8470/", True),
        ("http://a:8470,b:8470", "http://b:8470,a:8470", True),
        ("http://a:8470", "http://b:8470", False),
        ("http://a:8470", "http://a:8471", False),
        ("http://a:8470", "https://a:8470", False),
        ("http://localhost:8470", "http://a:8470", False),
        ("http://[::1]:8470", "http://localhost:8470", False),
    ],
)
def test_two_addresses_are_of_one_bridge_or_not(one: str, other: str, same: bool) -> None:
    """Bridges that take two addresses for one, or one for two, send wakes to the wrong workers."""
    assert (normalised(one) == normalised(other)) is same


async def test_what_it_was_opened_with_and_what_it_refuses() -> None:
    """A listener on it uses its key; nothing is asked of the address for a put that cannot be."""
    async with HttpStore("http://127.0.0.1:1", api_key="secret") as store:
        assert store.api_key == "secret"
        body: Any = 5
        with pytest.raises(BadInput) as refused:
            await store.put(QUEUE, [NewMessage(body)])
        assert refused.value.code == "bad_parameter"
        with pytest.raises(Unsupported):
            await store.put_once(QUEUE, "one", b"x", connection=object())


def test_a_digest_is_the_same_in_all_versions() -> None:
    assert digest_of("a", "b") == "7e18f737311b2dc3b2f269dd78396b03"


class TestApart:
    @simulated
    async def test_a_request_that_hangs_does_not_hold_up_the_answers(self) -> None:
        """It ends before the whole call may, and nobody knows what it did."""
        began = asyncio.get_running_loop().time()

        async def hangs() -> int:
            await pass_time(1e6)
            return 1

        async def ends() -> int:
            return 2

        hung, ended = await apart("test", (hangs, ends))
        assert isinstance(hung, UnknownOutcome) and ended == 2
        assert asyncio.get_running_loop().time() - began == 8
