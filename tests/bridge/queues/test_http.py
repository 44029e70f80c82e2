"""The store over HTTP: what it adds to the promise, and how it tells failures apart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    Overloaded,
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.queues import open_store
from bridge.queues.base import NewMessage, Settled
from bridge.queues.http import HttpStore, normalised
from bridge.queues.side_by_side import apart, outcomes, side_by_side
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


def answering(status: str, body: bytes = b"{}") -> Serve:
    """Answer every request so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()

    return serve


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


class TestSideBySide:
    async def test_a_cancelled_caller_takes_its_requests_along(self) -> None:
        """No request outlives the call that it is part of."""
        begun = asyncio.Event()
        ended: list[str] = []

        async def waits() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

        task = asyncio.create_task(side_by_side("test", (waits(),)), name="caller")
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled"]


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

    async def test_a_defect_is_raised(self) -> None:
        """What is no error of a store is nobody's outcome."""

        async def breaks() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await apart("test", (breaks, asyncio.Event().wait))


class TestOutcomes:
    @pytest.mark.parametrize(
        ("failure", "code", "open_"),
        [
            (StoreUnavailable("busy"), "storage_unavailable", True),
            (Overloaded("busy"), "storage_unavailable", True),
            (StoreError("refused"), "storage_unavailable", True),
            (UnknownOutcome("lost"), "unknown_outcome", True),
            (QueueNotFound("gone"), "message_not_found", False),
            (BadInput("message_too_large", "no"), "message_too_large", False),
        ],
    )
    def test_a_failure_beside_others_is_the_outcome_of_its_item(
        self, failure: QueuebellError, code: str, open_: bool
    ) -> None:
        """By a code that is stable, and says whether it is to be tried again."""
        done, refused = Settled(True, "r2"), Settled(False, code="pop_receipt_mismatch")
        first, failed, last = outcomes([done, failure, refused])
        assert (first, last) == (done, refused)
        assert (failed.ok, failed.code, failed.open) == (False, code, open_)
        assert not first.open and not last.open
        other = UnknownOutcome("x") if not isinstance(failure, UnknownOutcome) else StoreUnavailable("x")
        assert outcomes([failure, other])[0] == failed, "two ways to fail are none of the store as a whole"
