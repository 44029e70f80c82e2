"""The client's wires: which users share one, how calls end with it, and when HTTP is used instead.

Other tests that use the wire by default:

| with | in |
|---|---|
| every promise of a queue store | conformance/test_queues.py: TestHttpStore, and without a wire |
| an engine behind one bridge and behind two | conformance/test_served.py |
| several addresses, failover, refusals | bridge/queues/test_http_many.py, queuebell/test_many_addresses.py |
| triggers, publishers, outboxes | bridge/producer/test_buses.py, conformance/test_outboxes.py |
| BlockingStore, taskiq, Django | bridge/producer, queuebell/frameworks |
| keys, grants, limits, TLS | bridge/http: test_wire.py, api/test_limits.py, queuebell/command/test_serve.py |
| processes that are killed, bridges that drain | services, chaos |
| a client in another language | bridge/http/client.cjs |
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import hashlib
import pathlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.brokers import wire as wires
from queuebell.bridge.brokers.wire import Wire
from queuebell.bridge.contract.calls import CALL_BYTES_MAX, WINDOW, decode_call, encode_answer
from queuebell.bridge.contract.errors import Closed, NotAllowed, StoreUnavailable, UnknownOutcome
from queuebell.bridge.contract.wire import Goaway, Hello, Ready, Welcome, encode_frame
from queuebell.bridge.http.wire import _BINARY as BINARY
from queuebell.bridge.http.wire import ws_frame
from queuebell.bridge.queues.base import Claim, NewMessage, Settlement
from queuebell.bridge.queues.embedded.store import EmbeddedStore
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.listeners.session.websocket import WebSocketChannel
from tests.bridge.queues.scripted_server import ScriptedServer
from tests.bridge.queues.test_http_many import hanging_up, refusing, strange, well
from tests.support.access import written
from tests.support.processes import environment
from tests.support.web import Served, serving

# Private: `_send_call`, `_transport`: where a wire is cut; `_BINARY`: its frames; `_of_loops`: what the client keeps.

QUEUE = "billing/orders"
PATIENCE_S = 60
PUT = b'{"messages": [{"id": "1", "pop_receipt": "p", "visible_in_ms": 0}]}'
HELLO = Hello("a" * 32, "test", [])


def open_at(served: Served) -> int:
    """Return how many wires the bridge has."""
    assert served.server.wires is not None
    return len(served.server.wires.open)


async def until(true: Callable[[], bool], served: Served) -> None:
    """Wait for something at the bridge."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            assert (await served.ask("GET", "/livez")).status == 200


async def test_a_process_has_one_wire_to_its_bridge(served: Served) -> None:
    """Stores and a session share it; a second session has its own, and a wire ends with its last user."""
    one, two = HttpStore(served.server.url), HttpStore(served.server.url)
    await asyncio.gather(*(store.put(QUEUE, [b"x"]) for store in (one, two) * 5))
    channels = [WebSocketChannel(served.server.url) for _ in range(2)]
    first = await channels[0].connect()
    assert open_at(served) == 1
    second = await channels[1].connect()
    assert open_at(served) == 2
    for link in (first, second):
        link.send(HELLO if link is first else Hello("b" * 32, "test", []))
        assert isinstance(await link.receive(), Welcome)
    await one.close()
    await one.close()
    assert (await two.depth(QUEUE)).visible == 10  # type: ignore[union-attr]
    await second.close()
    await until(lambda: len(served.bridge.listeners()) == 1, served)
    third = await channels[1].connect()
    third.send(Hello("c" * 32, "test", []))
    assert isinstance(await third.receive(), Welcome)
    await first.close()
    # The session ended; its wire has calls to carry.
    assert (await two.depth(QUEUE)).visible == 10  # type: ignore[union-attr]
    await two.close()
    for channel in channels:
        await channel.close()
    await until(lambda: open_at(served) == 0, served)


async def test_closing_fails_the_calls_of_ones_own(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of other users on the same wire continue."""
    go = asyncio.Event()
    real = EmbeddedStore.receive

    async def receive(*given: Any, **options: Any) -> Any:
        await go.wait()
        return await real(*given, **options)

    monkeypatch.setattr(EmbeddedStore, "receive", receive)
    one, two = HttpStore(served.server.url), HttpStore(served.server.url)
    await one.put(QUEUE, [b"x"])
    calls = [asyncio.create_task(store.receive(QUEUE), name="receive") for store in (one, two)]
    (end,) = served.server.wires.open  # type: ignore[union-attr]
    await until(lambda: len(end.calls) == 2, served)
    await one.close()
    with pytest.raises(Closed):
        await calls[0]
    with pytest.raises(Closed):
        await one.put(QUEUE, [b"x"])
    go.set()
    await calls[1]
    await two.close()


async def test_a_window_of_calls_and_settlements_before_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bridge never has more calls than its window; others wait here, except settlements."""
    go, most = asyncio.Event(), 0
    real = EmbeddedStore.receive

    async def receive(*given: Any, **options: Any) -> Any:
        nonlocal most
        (end,) = served.server.wires.open  # type: ignore[union-attr]
        most = max(most, len(end.calls))
        await go.wait()
        return await real(*given, **options)

    monkeypatch.setattr(EmbeddedStore, "receive", receive)
    async with HttpStore(served.server.url) as store:
        (receipt,) = await store.put(QUEUE, [b"x"])
        calls = [asyncio.create_task(store.receive(QUEUE), name="receive") for _ in range(3 * WINDOW)]
        (end,) = served.server.wires.open  # type: ignore[union-attr]
        await until(lambda: len(end.calls) == WINDOW, served)
        cancelled = calls.pop()
        cancelled.cancel()
        settled = await store.settle(QUEUE, Settlement(delete=[Claim(receipt.id, receipt.pop_receipt)]))
        assert settled.delete[0].ok and len(end.calls) == WINDOW
        go.set()
        await asyncio.gather(*calls)
        assert most <= WINDOW and cancelled.cancelled()


Speaking = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def bridge(speak: Speaking) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve wires: call ``speak`` after the handshake; yields the address and the heads of requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            heads.append(head)
            if b"/v1/sessions" in head:
                key = head.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
                accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
                writer.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Protocol: queuebell.v2\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
                )
                await speak(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()


async def called(reader: asyncio.StreamReader) -> int:
    """Read one frame of a client, and return the number of the call in it."""
    _, length = await reader.readexactly(2)
    length &= 0x7F
    if length >= 126:
        length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
    mask, masked = await reader.readexactly(4), await reader.readexactly(length)
    call = decode_call(bytes(byte ^ mask[place % 4] for place, byte in enumerate(masked)))
    assert call is not None
    return call.n


READY = ws_frame(encode_frame(Ready(WINDOW, "b" * 32, ["headers"])))
ANSWER = ws_frame(encode_answer(1, 201, b"", PUT), BINARY)


async def test_a_wire_that_ends_at_any_byte() -> None:
    """A put without a whole answer has an unknown outcome, and nothing is sent twice."""
    for cut in range(len(ANSWER) + 1):
        sent = 0

        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: int = cut) -> None:
            nonlocal sent
            writer.write(READY)
            await called(reader)
            sent += 1
            writer.write(ANSWER[:cut])
            await writer.drain()

        async with bridge(speak) as (url, heads), HttpStore(url) as store:
            if cut == len(ANSWER):
                assert [each.id for each in await store.put(QUEUE, [b"x"])] == ["1"]
            else:
                with pytest.raises(UnknownOutcome, match="did not answer"):
                    await store.put(QUEUE, [b"x"])
            assert (sent, len(heads)) == (1, 1)


async def test_a_call_that_is_cut_at_any_byte_is_done_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that is repeated under one key until it is answered is stored once, wherever the wire was cut."""
    real, cuts = Wire._send_call, iter(range(200))

    def cutting(wire: Wire, sent: object) -> None:
        cut = next(cuts, None)
        transport = wire._transport
        assert transport is not None
        if cut is None or sent.method != "PUT":  # type: ignore[attr-defined]
            real(wire, sent)  # type: ignore[arg-type]
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire, "_transport", Cut(transport, cut))
            real(wire, sent)  # type: ignore[arg-type]
        transport.close()

    monkeypatch.setattr(Wire, "_send_call", cutting)
    tries = 0
    async with HttpStore(served.server.url) as store:
        for key in ("one", "two"):
            done = False
            while not done:
                tries += 1
                try:
                    await store.put_once(QUEUE, key, b"x")
                    done = tries > 180
                except UnknownOutcome:
                    pass
        assert tries > 180 and (await store.depth(QUEUE)).visible == 2  # type: ignore[union-attr]


class Cut:
    """A transport on which only so many bytes leave."""

    def __init__(self, transport: asyncio.Transport, size: int) -> None:
        self._transport = transport
        self._size = size

    def write(self, data: bytes) -> None:
        self._transport.write(data[: self._size])

    def is_closing(self) -> bool:
        return self._transport.is_closing()


async def test_a_wire_that_ends_before_it_is_ready_is_http() -> None:
    for cut in range(len(READY)):

        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: int = cut) -> None:
            writer.write(READY[:cut])
            await writer.drain()

        async with bridge(speak) as (url, heads), HttpStore(url) as store:
            with pytest.raises(UnknownOutcome):
                await store.put(QUEUE, [b"x"])
            assert [b"/messages" in head for head in heads] == [False, True]


async def test_an_answer_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call has an unknown outcome; a wire without any answer is closed, one that answers others is kept."""
    answering = False

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(READY)
        while True:
            n = await called(reader)
            if answering and n != 2:
                writer.write(ws_frame(encode_answer(n, 201, b"", PUT), BINARY))

    async with bridge(speak) as (url, heads), HttpStore(url, timeout=0.05) as store:
        with pytest.raises(UnknownOutcome, match="time-out"):
            await store.put(QUEUE, [b"x"])
        answering = True
        await store.put(QUEUE, [b"x"])
        assert len(heads) == 2
        late = asyncio.create_task(store.put(QUEUE, [b"x"]), name="put")
        await asyncio.sleep(0)
        await store.put(QUEUE, [b"x"])
        with pytest.raises(UnknownOutcome, match="time-out"):
            await late
        await store.put(QUEUE, [b"x"])
        assert len(heads) == 2


async def test_a_bridge_that_goes_says_what_it_did() -> None:
    """Later calls were not carried out and go to another bridge; earlier ones are answered."""

    async def leaving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(READY)
        first, _ = await called(reader), await called(reader)
        writer.write(ws_frame(encode_frame(Goaway(first))))
        writer.write(ws_frame(encode_answer(first, 201, b"", PUT), BINARY))
        await reader.read()

    async with bridge(leaving) as (url, heads), HttpStore(url) as store:
        done, not_done = await asyncio.gather(*(store.put(QUEUE, [b"x"]) for _ in range(2)), return_exceptions=True)
        assert isinstance(done, list) and isinstance(not_done, StoreUnavailable)
        assert len(heads) == 1
    async with bridge(leaving) as (url, _), serving() as other:
        async with HttpStore(f"{url},{other.server.url}", draw=lambda: 0.999) as store:
            await asyncio.gather(*(store.put(QUEUE, [b"x"]) for _ in range(2)))
        depth = await other.bridge.store.depth(QUEUE)
        assert depth is not None and depth.visible == 1


@pytest.mark.parametrize(
    ("status", "code"), [(503, "draining"), (429, "too_many_requests"), (404, ""), (400, "bad_parameter")]
)
async def test_where_no_wire_is_opened_http_is_used(status: int, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def answer(request: web.Request, body: bytes) -> web.Response:
        refused = strange if not code else refusing(status, code)
        return (refused if request.path == "/v1/sessions" else well)(request, body)

    async with ScriptedServer(answer, sessions=True) as server, HttpStore(server.url) as store:
        loop = asyncio.get_running_loop()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + now)
        for _ in range(3):
            await store.put(QUEUE, [b"x"])
        assert [path for _, path in server.asked].count("/v1/sessions") == 1
        now += wires.WITHOUT_S
        await store.put(QUEUE, [b"x"])
        assert [path for _, path in server.asked].count("/v1/sessions") == 2


async def test_a_key_that_is_refused_raises_and_is_tried_again() -> None:
    answers = {"now": refusing(401, "unauthenticated")}
    async with ScriptedServer(lambda *given: answers["now"](*given), sessions=True) as server:
        async with HttpStore(server.url) as store:
            for _ in range(2):
                with pytest.raises(NotAllowed):
                    await store.put(QUEUE, [b"x"])
            assert server.asked == [("GET", "/v1/sessions")] * 2
    async with ScriptedServer(hanging_up, sessions=True) as server, HttpStore(server.url) as store:
        with pytest.raises(UnknownOutcome):
            await store.put(QUEUE, [b"x"])


async def test_each_key_has_its_wire(tmp_path: pathlib.Path) -> None:
    """A key that rotates gets a new one, and the old one ends when it is idle."""
    secrets = written(tmp_path / "access.json", {"one": {"put": ["*"]}, "two": {"put": ["*"], "look": ["*"]}})
    key = secrets["one"]
    async with AccessWatch(tmp_path / "access.json") as watch, serving(access=watch) as served:
        async with HttpStore(served.server.url, api_key=lambda: key) as store:
            await store.put(QUEUE, [b"x"])
            with pytest.raises(NotAllowed):
                await store.depth(QUEUE)
            assert open_at(served) == 1
            key = secrets["two"]
            assert (await store.depth(QUEUE)).visible == 1  # type: ignore[union-attr]
            assert open_at(served) == 2
        await until(lambda: open_at(served) == 0, served)


async def test_an_idle_wire_ends_and_the_next_call_opens_another(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires, "IDLE_S", 0.05)
    async with HttpStore(served.server.url) as store:
        await store.put(QUEUE, [b"x"])
        await until(lambda: open_at(served) == 0, served)
        channel = WebSocketChannel(served.server.url)
        link = await channel.connect()
        link.send(HELLO)
        assert isinstance(await link.receive(), Welcome)
        waiting = asyncio.create_task(link.receive(), name="receive")
        await asyncio.wait([waiting], timeout=0.09)
        assert open_at(served) == 1
        await store.put(QUEUE, [b"x"])
        waiting.cancel()
        await channel.close()


async def test_large_calls_go_over_http(served: Served) -> None:
    async with HttpStore(served.server.url) as store:
        await store.put(QUEUE, [NewMessage(b"x" * 60_000)] * 2)
        assert open_at(served) == 0
        received = await store.receive(QUEUE, 2)
        assert open_at(served) == 1 and [len(message.body) for message in received.messages] == [60_000] * 2
        assert CALL_BYTES_MAX < 2 * 60_000


LIGHT = """
import asyncio, sys
from queuebell import open_store

async def main():
    store = open_store(sys.argv[1])
    await store.put("billing/orders", [b"x"])
    await store.close()
    print("aiohttp" in sys.modules)

asyncio.run(main())
"""


async def test_a_put_loads_no_aiohttp(served: Served) -> None:
    """The import would take most of the time of a first put."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LIGHT, served.server.url, stdout=asyncio.subprocess.PIPE, env=environment()
    )
    out, _ = await process.communicate()
    assert (out.decode().strip(), process.returncode) == ("False", 0)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Open wires, and answer nothing."""
    writer.write(READY)
    await reader.read()


async def test_calls_that_wait_in_vain_end_and_cost_nothing_more() -> None:
    """The outcome of a call that was never sent is known, and no due timer is left."""
    async with bridge(silent) as (url, _), HttpStore(url) as store, HttpStore(url, timeout=0.05) as short:
        calls = [asyncio.create_task(store.put(QUEUE, [b"x"]), name="put") for _ in range(WINDOW)]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable):
            await short.put(QUEUE, [b"x"])
        loop = asyncio.get_running_loop()
        timers = [each for each in loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
        assert timers and min(each.when() for each in timers) > loop.time() + 1
        await store.close()
        told = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in told} == {Closed}


async def test_what_was_not_sent_when_the_bridge_closes_was_not_done(caplog: pytest.LogCaptureFixture) -> None:
    """An answer and the end arrive together: waiting calls are not sent after the end."""

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(READY)
        for _ in range(WINDOW):
            await called(reader)
        writer.write(ANSWER + b"\x88\x02\x03\xf4")
        await reader.read()

    async with bridge(closing) as (url, _), HttpStore(url) as store:
        puts = [store.put(QUEUE, [b"x"]) for _ in range(WINDOW + 5)]
        told = await asyncio.gather(*puts, return_exceptions=True)
    kinds = [type(each) for each in told]
    assert (kinds.count(list), kinds.count(UnknownOutcome), kinds.count(StoreUnavailable)) == (1, WINDOW - 1, 5)
    assert not caplog.records


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.0 400 Bad Request\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nno",
        b"",
    ],
    ids=["a firewall", "HTTP/1.0", "nothing"],
)
async def test_proxies_that_let_no_websocket_through(answer: bytes) -> None:
    """HTTP is used; without any answer the first call times out."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/v1/sessions" in head:
                writer.write(answer)
                await reader.read()
            else:
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(PUT), PUT))
                await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with HttpStore(url, timeout=5 if answer else 0.05) as store:
        if not answer:
            with pytest.raises(StoreUnavailable, match="time-out"):
                await store.put(QUEUE, [b"x"])
        assert [each.id for each in await store.put(QUEUE, [b"x"])] == ["1"]
    server.close()


async def test_closing_ends_a_call_that_waits_for_its_wire() -> None:
    begun = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    store = HttpStore(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=1000)
    put = asyncio.create_task(store.put(QUEUE, [b"x"]), name="put")
    await begun.wait()
    await store.close()
    with pytest.raises(Closed):
        await put
    server.close()


def test_a_loop_that_ended_is_freed() -> None:
    """A program that runs a loop for each job must not keep all of them."""

    async def job() -> None:
        async with serving() as served, HttpStore(served.server.url) as store:
            await store.put(QUEUE, [b"x"])

    for _ in range(3):
        asyncio.run(job())
    gc.collect()
    assert not [loop for loop in wires._of_loops if loop.is_closed()]
