"""The store over HTTP: what it adds to the promise, and how it tells failures apart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bridge.contract.errors import (
    BadInput,
    Closed,
    ConfigurationError,
    Overloaded,
    QueueNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.queues import open_store
from bridge.queues.base import Claim, Extend, NewMessage, Release, Settlement
from bridge.queues.http import HttpStore, normalised
from tests.support.web import serving

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


def answering(status: str, body: bytes = b"{}") -> Serve:
    """Answer every request so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()

    return serve


async def test_it_learns_the_boot_of_the_queue_service() -> None:
    """Every answer tells the boot, refusals too: by it a listener knows its bridge's own queues (O0)."""
    async with serving() as served, connected(served.server.url) as store:
        assert store.boot is None
        with pytest.raises(QueueNotFound):
            await store.receive(QUEUE)
        assert store.boot == served.bridge.boot
        await store.put(QUEUE, [NewMessage(b"x")])
        assert (await store.receive(QUEUE)).boot == served.bridge.boot


async def test_leases_are_whole_seconds_rounded_up() -> None:
    """The wire knows integers from 1; a shorter lease would end early."""
    async with serving() as served, connected(served.server.url) as store:
        await store.put(QUEUE, [NewMessage(b"x"), NewMessage(b"y")])
        received = await store.receive(QUEUE, 1, 0.2)
        assert received.next_visible_in_ms is not None
        assert 500 < received.next_visible_in_ms <= 1001
        (message,) = received.messages
        extend = Extend(message.id, message.pop_receipt, 9.3, b"z")
        settled = await store.settle(QUEUE, Settlement(extend=[extend]))
        assert settled.extend[0].ok
        empty = await store.receive(QUEUE, 32)
        assert empty.next_visible_in_ms is not None
        assert 9000 < empty.next_visible_in_ms <= 10_001


@pytest.mark.parametrize("create", [True, False])
async def test_a_put_under_a_key_keeps_its_delay_and_its_end(create: bool) -> None:
    """Whether or not the queue must exist: both go as parameters of one address."""
    async with serving() as served, connected(served.server.url) as store:
        await store.put(QUEUE, [NewMessage(b"first")])
        await store.put_once(QUEUE, "k", NewMessage(b"later", visible_after_ms=60_000, ttl_s=120), create=create)
        received = await store.receive(QUEUE, 32)
        assert [message.body for message in received.messages] == [b"first"]
        if not create:
            with pytest.raises(QueueNotFound):
                await store.put_once("billing/none", "k", NewMessage(b"x", visible_after_ms=60_000), create=False)


async def test_a_large_batch_passes() -> None:
    """32 messages of 64 KiB, as text that JSON leaves alone and as bytes."""
    async with serving() as served, connected(served.server.url) as store:
        for body in (b"x" * 65_536, b"\xff" * 65_536):
            await store.put(QUEUE, [NewMessage(body)] * 32)
            received = await store.receive(QUEUE, 32)
            assert [m.body for m in received.messages] == [body] * 32


async def test_a_long_listing_is_read_page_by_page() -> None:
    """The service gives a thousand at a time."""
    async with serving() as served, connected(served.server.url) as store:
        names = sorted(f"a/q{n}" for n in range(1005))
        for name in names:
            await served.bridge.store.create(name)
        assert await store.queues("a/", "", 10_000) == names
        assert await store.queues("a/", names[2], 2) == names[3:5]


async def test_nobody_listening_is_unavailable() -> None:
    """Nothing was sent, so nothing happened."""
    async with serving() as served:
        url = served.server.url
    async with connected(url) as store:
        with pytest.raises(StoreUnavailable) as told:
            await store.receive(QUEUE)
        assert not isinstance(told.value, UnknownOutcome)


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


async def test_no_answer_within_r_is_an_unknown_outcome() -> None:
    """The request may be carried out yet."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with scripted(serve) as url, connected(url, timeout=0.05) as store:
        with pytest.raises(UnknownOutcome):
            await store.receive(QUEUE)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        ("404 Not Found", b'{"code":"queue_not_found"}', QueueNotFound),
        ("400 Bad Request", b'{"code":"bad_parameter","detail":"x"}', BadInput),
        ("413 Too Large", b'{"code":"message_too_large"}', BadInput),
        ("507 Full", b'{"code":"storage_full"}', StoreFull),
        ("503 Unavailable", b'{"code":"draining"}', StoreUnavailable),
        ("429 Too Many", b"", Overloaded),
        ("429 Too Many\r\nRetry-After: soon", b"", Overloaded),
        ("409 Conflict", b'{"code":"message_conflict"}', BadInput),
        ("409 Conflict", b"", ConfigurationError),
        ("403 Forbidden", b'{"code":"forbidden_origin"}', StoreError),
        ("500 Internal", b'{"code":"internal"}', UnknownOutcome),
        ("502 Bad Gateway", b"<html>", UnknownOutcome),
        ("504 Gateway Timeout", b"<html>", UnknownOutcome),
        ("404 Not Found", b"<html>", ConfigurationError),
        ("421 Misdirected", b'{"code":"unknown_host"}', StoreError),
        ("302 Found", b"", ConfigurationError),
        ("200 OK", b"<html>", ConfigurationError),
        ("200 OK", b'{"messages":[{"id":"a"}]}', UnknownOutcome),
    ],
)
async def test_answers_become_the_errors_of_the_tree(status: str, body: bytes, error: type[Exception]) -> None:
    """Also those of proxies and of servers that are something else."""
    async with scripted(answering(status, body)) as url, connected(url) as store:
        with pytest.raises(error) as told:
            await store.receive(QUEUE)
        if error is StoreUnavailable:
            assert not isinstance(told.value, UnknownOutcome)
        if error is StoreError:
            assert type(told.value) is StoreError
        if error is ConfigurationError:
            assert str(told.value).startswith(f"{url}: this is not a Queuebell queue service")


async def test_the_address_of_another_server_is_told_as_that() -> None:
    """Our own endpoint for Azure's SDKs among them, which names its boot as well: that counts for nothing."""
    refused = "400 Bad Request\r\nQueuebell-Boot: b1", b"<Error><Code>InvalidUri</Code></Error>"
    async with scripted(answering(*refused)) as url, connected(url) as store:
        with pytest.raises(ConfigurationError, match=f"^{url}: this is not a Queuebell queue service: it answers 400"):
            await store.receive(QUEUE)
        assert store.boot is None


async def test_an_address_that_has_worked_is_no_mistake() -> None:
    """A proxy's own page ends nobody's worker, for what stands there may change back."""
    answers = [
        b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"queues":[]}',
        b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)

    async with scripted(serve) as url, connected(url) as store:
        assert await store.queues() == []
        with pytest.raises(StoreError, match="not a Queuebell queue service"):
            await store.queues()


async def test_arguments_are_checked_before_anything_is_sent() -> None:
    """What JSON cannot carry faithfully is refused here, the rest by the service."""
    async with serving() as served, connected(served.server.url) as store:
        await store.create(QUEUE)
        for bad in (0, -1, float("nan"), float("inf"), 604_801, True, "1"):
            with pytest.raises(BadInput):
                await store.receive(QUEUE, 1, bad)  # type: ignore[arg-type]
        for limit in (0, 33):
            with pytest.raises(BadInput):
                await store.receive(QUEUE, limit)
        with pytest.raises(BadInput):
            await store.put(QUEUE, [])
        with pytest.raises(BadInput):
            await store.put("no reference", [NewMessage(b"x")])
        with pytest.raises(BadInput):
            await store.settle(QUEUE, Settlement(release=[Release("a", "b", -1)]))
        settled = await store.settle(QUEUE, Settlement(delete=[Claim("a", "b")]))
        assert (settled.delete[0].ok, settled.delete[0].code) == (False, "message_not_found")


async def test_close_ends_calls_and_may_be_repeated() -> None:
    """Used after it, the store says so."""
    async with serving() as served:
        store = HttpStore(served.server.url)
        await store.create(QUEUE)
        await store.close()
        await store.close()
        with pytest.raises(Closed):
            await store.receive(QUEUE)


async def test_addresses() -> None:
    """One fingerprint for every way to write an address, another for every other queue; no secrets, no paths astray."""
    same = ["http://127.0.0.1:8470", "http://localhost:8470/", "HTTP://LOCALHOST:8470"]
    assert {normalised(url) for url in same} == {"http://127.0.0.1:8470"}
    store = open_store(same[0])
    assert isinstance(store, HttpStore)
    print_one = store.fingerprint(QUEUE)
    assert {HttpStore(url).fingerprint(QUEUE) for url in same} == {print_one}
    assert len(print_one) == 32
    assert int(print_one, 16) >= 0
    assert HttpStore("http://127.0.0.1:8471").fingerprint(QUEUE) != print_one != store.fingerprint("billing/other")
    assert normalised("https://Queues.Example") == "https://queues.example:443"
    assert normalised("http://[::1]:80") == "http://[::1]:80"
    for bad in ("http://", "ftp://a", "http://a:x", "http://u:p@a", "http://a?x", "http://a#x", "a", "http://[::1"):
        with pytest.raises(ConfigurationError):
            HttpStore(bad)


async def test_a_body_that_is_no_message_is_refused_before_anything_is_sent() -> None:
    """With a word on what a put takes, whatever stands in the list or instead of it."""
    async with connected("http://127.0.0.1:9") as store:
        for wrong in (b"x", "x", NewMessage(b"x")):
            with pytest.raises(BadInput, match=r"put\(queue, \['\.\.\.'\]\)"):
                await store.put(QUEUE, wrong)  # type: ignore[arg-type]
        for wrong in ([{"body": "x"}], [3]):
            with pytest.raises(BadInput, match="bytes, or text"):
                await store.put(QUEUE, wrong)  # type: ignore[list-item]
