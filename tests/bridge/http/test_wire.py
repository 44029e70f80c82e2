"""WebSockets of clients: frames as bytes (RFC 6455 5.2), calls, sessions beside them, and both ends under load."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import pathlib
import shutil
import struct
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.keys import with_terms, without
from queuebell.bridge.access.limits import Refusals
from queuebell.bridge.contract.calls import CALL_BYTES_MAX, WINDOW, decode_answer, encode_call, settles
from queuebell.bridge.contract.wire import Hello, Subscription, encode_frame
from queuebell.bridge.http import wire as wires
from queuebell.bridge.http.api.queues import QueueRoutes
from queuebell.bridge.http.server.answer import Answer
from queuebell.bridge.http.wire import SETTLE_BYTES_MAX, ws_frame
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.embedded.store import EmbeddedStore
from tests.support.access import written
from tests.support.processes import ROOT, environment
from tests.support.web import JSON, Client, Reply, Served, request, serving

TEXT, BINARY, CLOSE = 1, 2, 8
FINAL, COMPRESSED, MASKED = 0x80, 0x40, 0x80
HELLO_FRAME = encode_frame(Hello("a" * 32, "one", [Subscription("a/x", 4)]))


def frame(payload: bytes, first: int = FINAL | TEXT) -> bytes:
    """One frame as a client sends it (RFC 6455 5.2); of a mask of zeros."""
    size = len(payload)
    length = bytes((MASKED | size,)) if size < 126 else struct.pack("!BQ", MASKED | 127, size)
    return bytes((first,)) + length + bytes(4) + payload


async def shaken(client: Client, **more: str) -> Reply:
    """The answer to a handshake."""
    head: dict[str, Any] = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": base64.b64encode(b"k" * 16).decode(),
        "Sec_WebSocket_Protocol": "queuebell.v2",
    }
    await client.send(request("GET", "/v1/sessions", **{**head, **more}))
    return await client.reply(head_only=True)


async def heard(client: Client) -> tuple[list[dict[str, Any]], int | None]:
    """The frames of a session until its end, and the code that it was closed with."""
    frames: list[dict[str, Any]] = []
    async with asyncio.timeout(100):
        while True:
            try:
                first, length = await client.reader.readexactly(2)
                if length >= 126:
                    form = "!H" if length == 126 else "!Q"
                    (length,) = struct.unpack(form, await client.reader.readexactly(struct.calcsize(form)))
                payload = await client.reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return frames, None
            assert not first & COMPRESSED
            if first & 0x0F == CLOSE:
                return frames, struct.unpack("!H", payload[:2])[0]
            frames.append(json.loads(payload))


LONG = frame(json.dumps({"type": "of a time to come", "x": "y" * 300}).encode())


@pytest.mark.parametrize("step", [1, 5, 1 << 20])
async def test_frames_with_masks_pass_in_any_pieces(served: Served, step: int) -> None:
    async with served.client() as client:
        assert (await shaken(client)).status == 101
        short = json.dumps({"type": "of a time to come", "x": "y" * 200}).encode()
        middle = bytes((FINAL | TEXT, MASKED | 126)) + struct.pack("!H", len(short)) + bytes(4) + short
        sent = frame(HELLO_FRAME) + middle + LONG + frame(b"") + frame(struct.pack("!H", 1000), FINAL | CLOSE)
        for place in range(0, len(sent), step):
            await client.send(sent[place : place + step])
        frames, code = await heard(client)
        kinds = [each["type"] for each in frames if each["type"] != "wake"]
        assert kinds == ["ready", "welcome", "error", "ended"]
        assert code == 1000


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65535, b"\x81\x7e\xff\xff"),
        (65536, b"\x81\x7f" + struct.pack("!Q", 65536)),
    ],
)
def test_a_frame_names_its_size_in_the_shortest_form(size: int, head: bytes) -> None:
    """RFC 6455 5.2: in 7, 16 or 64 bits."""
    assert ws_frame(b"x" * size) == head + b"x" * size


# Private: `_last`, `_settle_bytes`: how far the bridge has got; `_response`: bytes that
# the client library would not send.

QUEUE = "/v1/queues/billing/orders"
PUT = b'{"messages": [{"body": "x"}]}'
HELLO = {"type": "hello", "instance": "1" * 32, "listener": "l", "queues": [{"queue": "billing/orders", "capacity": 1}]}
PATIENCE_S = 60


class Peer:
    """A client's end of a wire that sends whatever it is told."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.n = 0
        self.frames: list[dict[str, Any]] = []

    async def send(self, method: str, target: str, body: bytes = b"", media: str = JSON) -> int:
        """Send a call, and return its number."""
        self.n += 1
        await self.socket.send_bytes(encode_call(self.n, method, target, body, media))
        return self.n

    async def answer(self) -> tuple[int, int, Any, dict[str, str]]:
        """Wait for the next answer: number, status, body and headers; what else comes is kept."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = await self.socket.receive()
                if message.type is aiohttp.WSMsgType.TEXT:
                    self.frames.append(json.loads(message.data))
                    continue
                assert message.type is aiohttp.WSMsgType.BINARY, message
                answer = decode_answer(message.data)
                assert answer is not None
                return answer.n, answer.status, json.loads(answer.body or b"null"), answer.headers

    async def call(self, method: str, target: str, body: bytes = b"", media: str = JSON) -> tuple[int, Any]:
        """Send a call, and return status and body of its answer."""
        n = await self.send(method, target, body, media)
        number, status, told, _ = await self.answer()
        assert number == n
        return status, told

    async def frame(self, kind: str) -> dict[str, Any]:
        """Wait for a frame of the session or of the wire."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for frame in self.frames:
                    if frame["type"] == kind:
                        self.frames.remove(frame)
                        return frame
                self.frames.append(await self.socket.receive_json())

    async def closed(self) -> int | None:
        """Wait for the end, and return the code that it was closed with."""
        async with asyncio.timeout(PATIENCE_S):
            async for message in self.socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    self.frames.append(json.loads(message.data))
        return self.socket.close_code


@contextlib.asynccontextmanager
async def wire(served: Served, secret: str | None = None) -> AsyncIterator[Peer]:
    """Open a wire."""
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession(headers=headers) as client:
        async with client.ws_connect(f"{served.server.url}/v1/sessions", protocols=("queuebell.v2",)) as socket:
            peer = Peer(socket)
            ready = await peer.frame("ready")
            assert (ready["window"], ready["boot"], ready["able"]) == (WINDOW, served.bridge.boot, ["headers"])
            yield peer


BIG = json.dumps({"messages": [{"body": "x"}] * 33}).encode()
REFUSED: list[tuple[str, str, bytes, str]] = [
    ("GET", "/v1/nothing", b"", JSON),
    ("PATCH", QUEUE, b"", JSON),
    ("POST", f"{QUEUE}/receive", b"{", JSON),
    ("POST", f"{QUEUE}/receive", b'{"max": 99}', JSON),
    ("POST", f"{QUEUE}/receive", b'{"max": 1}', "text/plain"),
    ("POST", f"{QUEUE}/messages", b'{"messages": []}', JSON),
    ("POST", f"{QUEUE}/messages", BIG, JSON),
    ("POST", f"{QUEUE}/messages?creat=false", PUT, JSON),
    ("POST", f"{QUEUE}/messages?create=false", PUT, JSON),
    ("POST", "/v1/queues/bil.ling/orders/messages", PUT, JSON),
    ("PUT", f"{QUEUE}/messages/%2f", b"x", "text/plain"),
    ("GET", f"{QUEUE}/peek?max=0", b"", JSON),
    ("GET", f"{QUEUE}/peek", b"", JSON),
    ("POST", f"{QUEUE}/settle", b"{}", "text/plain"),
    ("POST", f"{QUEUE}/settle", b"[]", JSON),
    ("DELETE", f"{QUEUE}/messages", b"", JSON),
    ("GET", QUEUE, b"", JSON),
    ("GET", "/v1/queues?limit=0", b"", JSON),
    ("POST", "/v1/triggers", b"{}", JSON),
    ("POST", "/v1/triggers/billing/orders?size=x", b"", JSON),
    ("GET", f"{QUEUE}/explain", b"", JSON),
]


async def test_each_refusal_over_http_has_its_twin() -> None:
    """Status, code and words are the same, and the wire goes on."""
    async with serving() as served, wire(served) as peer:
        for method, target, body, media in REFUSED:
            over_http = await served.ask(method, target, body or None, media=media if body else None)
            assert over_http.status >= 400, target
            assert await peer.call(method, target, body, media) == (over_http.status, over_http.json)
        assert (await peer.call("POST", f"{QUEUE}/messages", PUT))[0] == 201


async def test_what_lasts_or_is_for_people_has_no_call(served: Served) -> None:
    """Streams, pages and sessions are HTTP's alone; a method that has no call is refused with those that have."""
    async with wire(served) as peer:
        for target in ("/", "/v1/wakes?queue=a/x", "/v1/watch", "/v1/sessions", "/metrics", "/v1/login", "/page.js"):
            status, told = await peer.call("GET", target)
            assert (status, told["code"]) == (404, "not_found"), target
        assert (await peer.call("HEAD", QUEUE))[0] == 405


async def test_calls_and_session_leave_each_other_alone(served: Served) -> None:
    """A session that is refused or leaves ends no call, and a new one may begin; a bad call ends no session."""
    async with wire(served) as peer:
        await peer.socket.send_str("{")
        assert (await peer.frame("error"))["code"] == "bad_json"
        assert (await peer.frame("ended"))["code"] == 1008
        assert (await peer.call("POST", f"{QUEUE}/messages", PUT))[0] == 201
        await peer.socket.send_json(HELLO)
        await peer.frame("welcome")
        assert (await peer.call("GET", "/v1/nothing"))[0] == 404
        await peer.socket.send_json({"type": "heartbeat", "stamp": 5})
        assert (await peer.frame("heartbeat"))["echo"] == 5
        await peer.socket.send_json({"type": "bye"})
        await peer.frame("bye")
        await peer.frame("ended")
        assert served.bridge.listeners() == []
        # Late frames of that session are nobody's.
        await peer.socket.send_json({"type": "heartbeat", "stamp": 6})
        await peer.socket.send_json(HELLO)
        await peer.frame("welcome")
        assert [frame for frame in peer.frames if frame["type"] == "error"] == []
        assert (await peer.call("GET", QUEUE))[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"", b"\x00\xff", b"1", b"1 GET", b"1 GET /v1/queues", b"x GET /v1/queues\n\n", b"-1 GET /v1/queues\n\n",
        b"99999999999999999 GET /v1/queues\n\n", b"1 get /v1/queues\n\n", b"1 GET v1/queues\n\n",
        b"1 GET /v1/que ues\n\n", b"1 GET /v1/queues\nno header\n\n", b"1 GET /" + b"x" * 2048 + b"\n\n",
        b"1 GET /v1/queues\r\n\r\n",
    ],
)  # fmt: skip
async def test_a_head_that_cannot_be_read_closes_the_wire(served: Served, sent: bytes) -> None:
    """There is no number to answer it by; nobody else notices."""
    async with wire(served) as peer, wire(served) as other:
        await peer.socket.send_bytes(sent)
        assert await peer.closed() == 1008
        assert (await other.call("GET", "/v1/queues"))[0] == 200


async def test_headers_that_do_not_count_are_ignored(served: Served) -> None:
    """Clients send some out of habit; the content type counts however it is written."""
    async with wire(served) as peer:
        put = f"1 PUT {QUEUE}/messages/k\nuser-agent: x y\nContent-Type: text/plain\n\nbody"
        await peer.socket.send_bytes(put.encode())
        assert (await peer.answer())[:2] == (1, 201)
    (message,) = (await served.bridge.store.receive("billing/orders")).messages
    assert message.body == b"body"


async def test_a_call_as_text_is_told_so(served: Served) -> None:
    async with wire(served) as peer:
        await peer.socket.send_str("1 GET /v1/queues\n\n")
        error = await peer.frame("error")
        assert error["code"] == "bad_parameter" and "calls are binary" in error["message"]
        assert (await peer.call("GET", "/v1/queues"))[0] == 200


@pytest.mark.parametrize("again", [1, 0])
async def test_numbers_rise(served: Served, again: int) -> None:
    """One that is repeated or falls could not be told from the other."""
    async with wire(served) as peer:
        assert (await peer.call("GET", "/v1/queues"))[0] == 200
        await peer.socket.send_bytes(encode_call(again, "GET", "/v1/queues", b""))
        assert await peer.closed() == 1008


async def test_sizes(served: Served) -> None:
    """A body over the limit is refused; a message that is far too long closes the wire, as does bad UTF-8 in a text."""
    async with wire(served) as peer:
        status, told = await peer.call("PUT", f"{QUEUE}/messages/k", b"x" * (CALL_BYTES_MAX + 1), "text/plain")
        assert (status, told["code"]) == (413, "too_large")
        assert (await peer.call("PUT", f"{QUEUE}/messages/k", b"x" * CALL_BYTES_MAX, "text/plain"))[0] == 201
        await peer.socket.send_bytes(b"x" * 5 * CALL_BYTES_MAX)
        assert await peer.closed() == 1009
    async with wire(served) as peer:
        await peer.socket.send_frame(b"\xff", aiohttp.WSMsgType.TEXT)
        assert await peer.closed() == 1007
    for opcode in (3, 7, 11, 15):
        async with wire(served) as peer:
            transport = peer.socket.get_extra_info("socket")
            assert transport is not None
            peer.socket._response.connection.transport.write(struct.pack("!BB4x", 0x80 | opcode, 0x80))  # type: ignore[union-attr]
            assert await peer.closed() == 1002


class Standing:
    """Has every receive of a served bridge wait until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = asyncio.Event()
        self.begun = 0
        self.raises: BaseException | None = None
        real = EmbeddedStore.receive

        async def receive(*given: Any, **options: Any) -> Any:
            self.begun += 1
            await self.go.wait()
            if self.raises is not None:
                raise self.raises
            return await real(*given, **options)

        monkeypatch.setattr(EmbeddedStore, "receive", receive)


async def test_the_window(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past it calls are refused, far past it the wire is closed; settlements are outside, and every call has one end.

    Answers come in the order in which they are ready.
    """
    standing = Standing(monkeypatch)
    await served.bridge.store.put("billing/orders", [NewMessage(b"x")])
    async with wire(served) as peer, wire(served) as other:
        for _ in range(WINDOW):
            await peer.send("POST", f"{QUEUE}/receive")
        refused = await peer.send("GET", QUEUE)
        number, status, told, headers = await peer.answer()
        assert (number, status, told["code"], headers["retry-after"]) == (refused, 429, "too_many_requests", "1")
        settled = await peer.send("POST", f"{QUEUE}/settle", b'{"delete": []}')
        assert (await peer.answer())[:2] == (settled, 200)
        assert (await other.call("GET", QUEUE))[0] == 200
        standing.go.set()
        answers = [await peer.answer() for _ in range(WINDOW)]
        assert sorted(n for n, *_ in answers) == list(range(1, WINDOW + 1))
        assert {status for _, status, *_ in answers} == {200}
        assert (await peer.call("GET", QUEUE))[0] == 200
        standing.go.clear()
        for _ in range(2 * WINDOW + 1):
            await peer.send("POST", f"{QUEUE}/receive")
        assert await peer.closed() == 1008
        assert (await other.call("GET", QUEUE))[0] == 200
        standing.go.set()


async def test_too_many_bytes_of_settlements_close_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number has no limit, and what they keep in memory has."""
    go = asyncio.Event()

    async def settle(*_: object) -> Answer:
        await go.wait()
        return Answer(200, b"{}")

    monkeypatch.setattr(QueueRoutes, "settle", settle)
    async with serving() as served, wire(served) as peer:
        body = b"x" * CALL_BYTES_MAX
        for _ in range(SETTLE_BYTES_MAX // CALL_BYTES_MAX + 1):
            await peer.send("POST", f"{QUEUE}/settle", body)
        assert await peer.closed() == 1008
        go.set()


@pytest.mark.parametrize("error", [RuntimeError("a defect"), asyncio.CancelledError()])
async def test_a_defect_and_a_cancelled_call_are_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """With 500, for nobody knows what was done; the next call is served."""
    standing = Standing(monkeypatch)
    standing.raises = error
    async with wire(served) as peer:
        standing.go.set()
        status, told = await peer.call("POST", f"{QUEUE}/receive")
        assert (status, told["code"]) == (500, "internal")
        assert (await peer.call("GET", "/v1/queues"))[0] == 200


@contextlib.asynccontextmanager
async def stalled(served: Served) -> AsyncIterator[tuple[Client, wires.Wire]]:
    """A client that does not read the answers of its eight calls, and the bridge's end of its wire."""
    await served.bridge.store.put("billing/orders", [NewMessage(b"x" * 60_000)] * 32)
    async with served.client(limit=1000) as client:
        assert (await shaken(client)).status == 101
        for number in range(1, 9):
            await client.send(frame(encode_call(number, "GET", f"{QUEUE}/peek", b""), FINAL | BINARY))
        (end,) = served.server.wires.open  # type: ignore[union-attr]
        async with asyncio.timeout(PATIENCE_S):
            while end.writable() or end.calls:
                assert (await served.ask("GET", "/livez")).status == 200
        yield client, end


async def test_calls_wait_while_answers_are_not_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above `UNSENT_MAX` they are not carried out, so that no answer delays a wake; settlements are."""
    monkeypatch.setattr(wires, "UNSENT_MAX", 1000)
    async with stalled(served) as (client, end):
        await client.send(frame(encode_call(9, "GET", QUEUE, b""), FINAL | BINARY))
        settling = encode_call(10, "POST", f"{QUEUE}/settle", b'{"delete": [{"id": "a", "pop_receipt": "b"}]}')
        await client.send(frame(settling, FINAL | BINARY))
        async with asyncio.timeout(PATIENCE_S):
            while end._last < 10 or end._settle_bytes:
                assert (await served.ask("GET", "/livez")).status == 200
        assert [call.n for call in end.waiting] == [9]
        answered = []
        async with asyncio.timeout(PATIENCE_S):
            while len(answered) < 10:
                first, length = await client.reader.readexactly(2)
                if length >= 126:
                    form = "!H" if length == 126 else "!Q"
                    (length,) = struct.unpack(form, await client.reader.readexactly(struct.calcsize(form)))
                payload = await client.reader.readexactly(length)
                if first == FINAL | BINARY:
                    answer = decode_answer(payload)
                    assert answer is not None and answer.status == 200
                    answered.append(answer.n)
        assert sorted(answered) == list(range(1, 11))


async def test_an_orderly_end_says_how_far_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came is answered, what comes is not carried out, and then the wire is closed."""
    standing = Standing(monkeypatch)
    async with serving(shutdown_timeout=30.0) as served, wire(served) as peer, wire(served) as idle:
        last = await peer.send("POST", f"{QUEUE}/receive")
        while not standing.begun:
            assert (await served.ask("GET", "/livez")).status == 200
        stopping = asyncio.create_task(served.server.stop(), name="stop")
        assert (await peer.frame("goaway"))["last"] == last
        assert (await idle.frame("goaway"))["last"] == -1
        assert await idle.closed() == 1012
        await peer.send("PUT", f"{QUEUE}/messages/late", b"x", "text/plain")
        standing.go.set()
        assert (await peer.answer())[:2] == (last, 404)
        assert await peer.closed() == 1012
        await stopping
        assert await served.bridge.store.queues("", "", 10) == []


async def test_a_stopping_bridge_takes_no_wires_and_no_puts(served: Served) -> None:
    async with wire(served) as peer:
        await served.bridge.store.put("billing/orders", [NewMessage(b"x")])
        served.bridge.drain()
        status, told = await peer.call("POST", f"{QUEUE}/messages", PUT)
        assert (status, told["code"]) == (503, "draining")
        assert (await peer.call("POST", f"{QUEUE}/receive"))[0] == 200
        await peer.socket.send_json(HELLO)
        assert (await peer.frame("error"))["code"] == "draining"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with wire(served):
                pass
        assert refused.value.status == 503


async def test_a_wire_that_carries_nothing_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a session is not, and one without a hello is no session that is late."""
    monkeypatch.setattr(wires, "IDLE_S", 0.05)
    async with wire(served) as idle, wire(served) as peer:
        await peer.socket.send_json(HELLO)
        await peer.frame("welcome")
        assert await idle.closed() == 1000
        assert (await peer.call("GET", "/v1/queues"))[0] == 200


async def test_an_older_client_is_told_so(served: Served) -> None:
    head = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec_WebSocket_Protocol": "queuebell.v1",
    }  # fmt: skip
    reply = await served.ask_raw(request("GET", "/v1/sessions", **head))
    assert (reply.status, reply.code) == (400, "bad_parameter")
    assert "older version; upgrade it" in reply.json["detail"]


ALL = {"put": ["billing/*"], "take": ["billing/*"]}
LESS = {"put": ["billing/*"], "take": ["other/*"]}


async def test_a_key_is_judged_for_each_call(tmp_path: pathlib.Path) -> None:
    """One that loses a grant is refused from the next call on, and one that is void ends the wire."""
    path = tmp_path / "access.json"
    secrets = written(path, {"one": ALL, "two": {"put": ["billing/*"]}})
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        async with wire(served, secrets["one"]) as one, wire(served, secrets["two"]) as two:
            assert (await one.call("POST", f"{QUEUE}/receive"))[0] == 404
            status, told = await two.call("POST", f"{QUEUE}/receive")
            assert (status, told["code"]) == (403, "forbidden")
            assert (await two.call("POST", f"{QUEUE}/messages", PUT))[0] == 201
            await two.socket.send_json(HELLO)
            assert (await two.frame("error"))["code"] == "forbidden"
            assert (await two.frame("ended"))["code"] == 4403
            await one.socket.send_json(HELLO)
            await one.frame("welcome")
            access_file.change(path, lambda found: with_terms(found, "one", LESS, limits={}))
            watch.check()
            assert (await one.frame("ended"))["code"] == 4403
            assert (await one.call("POST", f"{QUEUE}/receive"))[0] == 403
            assert (await one.call("POST", f"{QUEUE}/messages", PUT))[0] == 201
            access_file.change(path, lambda found: with_terms(found, "one", ALL, limits={}))
            watch.check()
            assert (await one.call("POST", f"{QUEUE}/receive"))[0] == 200
            access_file.change(path, lambda found: without(found, "one")[0])
            watch.check()
            assert await one.closed() == 4401
            assert (await two.call("POST", f"{QUEUE}/messages", PUT))[0] == 201


async def test_a_session_that_is_refused_is_told_why(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "access.json"
    secrets = written(path, {"one": ALL})
    access_file.change(path, lambda found: with_terms(found, "one", {}, limits={"connections": 1}))
    hello = {
        "type": "hello",
        "instance": "a" * 32,
        "listener": "l",
        "queues": [{"queue": "billing/orders", "capacity": 1}],
    }
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        async with wire(served, secrets["one"]) as one, wire(served, secrets["one"]) as two:
            await two.socket.send_str(json.dumps({"type": "room", "queue": "billing/orders", "free": 1}))
            assert (await two.frame("error"))["code"] == "bad_parameter"
            assert (await two.frame("ended"))["code"] == 1008
            for peer in (one, two):
                await peer.socket.send_str(json.dumps(hello))
            assert await one.frame("welcome")
            error = await two.frame("error")
            assert (error["code"], error["retry_after_s"] > 0) == ("too_many_requests", True)
            ended = await two.frame("ended")
            assert (ended["code"], ended["reason"]) == (1013, "too_many_requests")
            assert (await two.call("POST", f"{QUEUE}/messages", PUT))[0] == 201
            (listener,) = served.bridge.listeners()
            assert listener.listener == "l"


@pytest.mark.system
async def test_a_client_in_another_language(served: Served) -> None:
    """Node with a plain WebSocket library, written from the docs, puts, receives and settles."""
    node = shutil.which("node")
    assert node, "no node"
    process = await asyncio.create_subprocess_exec(
        node,
        str(pathlib.Path(__file__).with_name("client.cjs")),
        served.server.url,
        "billing/orders",
        stdout=asyncio.subprocess.PIPE,
        env=environment(NODE_PATH=str(ROOT / ".ci" / "node" / "node_modules")),
    )
    async with asyncio.timeout(PATIENCE_S):
        told, _ = await process.communicate()
    assert json.loads(told) == {
        "puts": [201, 201, 201],
        "bodies": ["order 1", "order 2", "order 3"],
        "deleted": [True, True, True],
        "left": {"visible": 0, "invisible": 0},
        "refused": [400, "bad_parameter"],
    }


def test_what_a_settlement_is() -> None:
    assert settles("POST", "/v1/queues/a/b/settle")
    for method, target in (
        ("GET", "/v1/queues/a/settle"), ("POST", "/v1/queues/a/b/receive?x=/settle"), ("PUT", "/v1/queues/a/b/settle"),
        ("POST", "/v1/queues/a/b/c/settle"), ("POST", "/v1/queues/a/settle"),
    ):  # fmt: skip
        assert not settles(method, target), target


async def test_refusals_that_are_held_keep_no_place(tmp_path: pathlib.Path) -> None:
    """A process whose bad calls are answered late has its good ones answered all the same."""
    path = tmp_path / "access.json"
    secrets = written(path, {"one": {"put": ["billing/*"]}})
    async with AccessWatch(path) as watch, serving(access=watch, shutdown_timeout=0.2) as served:
        watch.refusals = Refusals(per_second=1e-3, held_s_max=1000.0)
        async with wire(served, secrets["one"]) as peer:
            for _ in range(8):
                for _ in range(WINDOW // 2):
                    await peer.send("POST", "/v1/queues/other/x/messages", PUT)
                good = await peer.send("POST", f"{QUEUE}/messages", PUT)
                answers = {}
                while good not in answers:
                    n, status, *_ = await peer.answer()
                    answers[n] = status
                assert answers.pop(good) == 201 and set(answers.values()) <= {403}


async def test_a_peer_that_reads_nothing_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settlements have no window, and their answers would be kept for ever."""
    monkeypatch.setattr(wires, "WRITE_BUFFER_ABORT", 10_000)
    await served.bridge.store.put("billing/orders", [NewMessage(b"x")])
    async with served.client(limit=1000) as client:
        assert (await shaken(client)).status == 101
        (end,) = served.server.wires.open  # type: ignore[union-attr]
        number = 0
        async with asyncio.timeout(PATIENCE_S):
            while not end.connection.transport.is_closing():
                for _ in range(100):
                    number += 1
                    await client.send(frame(encode_call(number, "POST", f"{QUEUE}/settle", b"{}"), FINAL | BINARY))
                if end.connection.transport is None:
                    break


async def test_what_waits_when_a_wire_is_closed_is_not_done(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key may be void: what had not begun by then never begins."""
    monkeypatch.setattr(wires, "UNSENT_MAX", 1000)
    async with stalled(served) as (client, end):
        put = frame(encode_call(9, "PUT", "/v1/queues/a/late/messages/k", b"x", "text/plain"), FINAL | BINARY)
        await client.send(put)
        async with asyncio.timeout(PATIENCE_S):
            while not end.waiting:
                assert (await served.ask("GET", "/livez")).status == 200
        end.close(4401, "the key was revoked or has expired")
        assert await client.rest()
    assert await served.bridge.store.depth("a/late") is None
