"""The relay: requests pass through as they came, puts trigger the bridge, and nothing is tried twice."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec
import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.queue import QueueServiceClient, generate_queue_sas

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.keys import with_terms
from queuebell.bridge.access.limits import Refusals
from queuebell.bridge.contract.errors import BadInput, ConfigurationError
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.http.azure.relay import (
    AccountLimits,
    RelayedPut,
    RelayServer,
    put_of,
    read_endpoint,
    relay_settings,
)
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.observe.facts import Fact
from queuebell.bridge.service.bridge import Bridge
from tests.support.access import written
from tests.support.azure import ACCOUNT, KEY, connection_string, fault, serving_azure
from tests.support.web import Client, Reply

PUT = b"POST /acme/orders/messages HTTP/1.1\r\nHost: relay\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = PUT.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked").replace(b"hello", b"5\r\nhello\r\n0\r\n\r\n")
CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"
Script = Callable[["ServerEndpoint", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FakeBridge:
    """The part of a bridge that a relay needs; keeps the triggers."""

    boot = "0" * 32
    draining = False

    def __init__(self) -> None:
        self.triggers: list[tuple[str, int]] = []
        self.refuses: BadInput | None = None

    def trigger(self, events: Sequence[CloudQueueWorkDetected], *, bus: str) -> int:
        """Take triggers."""
        assert bus == "azure-relay"
        if self.refuses is not None:
            raise self.refuses
        self.triggers += [(event.queue, event.not_before_ms) for event in events]
        return len(events)


class ServerEndpoint:
    """An endpoint that does as its script says and keeps the bytes of every connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.port = 0
        self.requests: list[bytes] = []
        self.asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._script(self, reader, writer)
        writer.close()

    async def request(self, reader: asyncio.StreamReader, length: int | None = None) -> bytes:
        """Read one request: its head, and a body of ``length`` (by default what the head says)."""
        head = await reader.readuntil(b"\r\n\r\n")
        if length is None:
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        self.requests.append(head + await reader.readexactly(length))
        self.asked.set()
        return self.requests[-1]


class Relayed:
    """A relay before an endpoint."""

    def __init__(self, fake: FakeBridge, server: RelayServer, endpoint: ServerEndpoint) -> None:
        self.fake = fake
        self.server = server
        self.endpoint = endpoint

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Open a connection to the relay."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port))
        try:
            yield client
        finally:
            await client.close()

    async def ask(self, data: bytes, *, head_only: bool = False) -> Reply:
        """Send these bytes and return the answer."""
        async with self.client() as client:
            await client.send(data)
            return await client.reply(head_only=head_only)


@contextlib.asynccontextmanager
async def relay(port: int, bridge: Any, *, account: str | None = None, **options: Any) -> AsyncIterator[RelayServer]:
    """A relay before a port of this machine; ``account`` is that of its host name."""
    settings = relay_settings(
        WebSettings(shutdown_timeout=0.2, body_timeout=0.2, allowed_hosts=("relay", "a", "example")), "127.0.0.1", 0
    )
    endpoint = msgspec.structs.replace(read_endpoint(f"http://127.0.0.1:{port}"), account=account)
    async with RelayServer(cast(Bridge, bridge), endpoint, settings, **options) as server:
        yield server


@contextlib.asynccontextmanager
async def before(script: Script | bytes, **options: Any) -> AsyncIterator[Relayed]:
    """A relay before an endpoint that does what the script says; bytes answer every request."""

    async def answering(endpoint: ServerEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await endpoint.request(reader)
            writer.write(cast(bytes, script))
            await writer.drain()

    endpoint = ServerEndpoint(answering if isinstance(script, bytes) else script)
    listening = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    endpoint.port = listening.sockets[0].getsockname()[1]
    fake = FakeBridge()
    try:
        async with relay(endpoint.port, fake, **options) as server:
            yield Relayed(fake, server, endpoint)
    finally:
        listening.close()


async def test_host_can_be_kept() -> None:
    async with before(CREATED, keep_host=True) as relayed:
        await relayed.ask(PUT)
        assert b"\r\nHost: relay\r\n" in relayed.endpoint.requests[0]
        host = b"Host: Other.queue.example:10001\r\n"
        await relayed.ask(PUT.replace(b"Host: relay\r\n", host).replace(b"/acme", b"", 1))
        assert host in relayed.endpoint.requests[1]
        assert relayed.fake.triggers == [("acme/orders", 0), ("other/orders", 0)]


async def test_a_client_that_waits_to_be_asked_for_its_body() -> None:
    """The relay itself says to go on, and asks the endpoint for no such word."""
    async with before(CREATED) as relayed, relayed.client() as client:
        head, _, body = PUT.partition(b"\r\n\r\n")
        await client.send(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.reply()).status == 201
        assert b"Expect" not in relayed.endpoint.requests[0]


async def test_an_endpoint_that_is_silent() -> None:
    """504 after the longest silence, and the bell rings, for the put may have been carried out."""

    async def script(endpoint: ServerEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await endpoint.request(reader)
        await reader.read()

    async with before(script, silence_s=0.05) as relayed:
        assert fault(await relayed.ask(PUT)) == (504, "OperationTimedOut")
        assert relayed.fake.triggers == [("acme/orders", 0), ("acme/orders", 31_000)]


async def test_a_body_that_never_comes_whole() -> None:
    """408, and no bell: half a request puts nothing."""

    async def script(endpoint: ServerEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with before(script) as relayed:
        reply = await relayed.ask(PUT[:-2])
        assert fault(reply) == (408, "OperationTimedOut")
        assert relayed.fake.triggers == []


async def test_a_refusal_before_the_body_passes() -> None:
    """The answer goes back at once, and the connection ends, for the rest of the body stands before what follows."""

    async def script(endpoint: ServerEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with before(script) as relayed, relayed.client() as client:
        await client.send(PUT.replace(b"Content-Length: 5", b"Content-Length: 500"))
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        assert relayed.fake.triggers == []


async def test_an_answer_that_breaks_off_breaks_off() -> None:
    """Its reader must not take the half for the whole; the put that it was about has triggers."""

    async def script(endpoint: ServerEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await endpoint.request(reader)
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\nhalf")
        await writer.drain()

    async with before(script) as relayed, relayed.client() as client:
        await client.send(PUT)
        await client.reader.readuntil(b"\r\n\r\n")
        assert await client.rest() in (b"", b"half")
        assert relayed.fake.triggers == [("acme/orders", 0)]


async def test_stopping_in_the_middle_of_a_put_rings() -> None:
    """A request that is cut off by the stop may have been carried out."""

    async def script(endpoint: ServerEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await endpoint.request(reader)
        await reader.read()

    async with before(script) as relayed, relayed.client() as client:
        await client.send(PUT)
        await relayed.endpoint.asked.wait()
        await relayed.server.stop()
        assert relayed.fake.triggers == [("acme/orders", 0), ("acme/orders", 31_000)]


async def test_a_bridge_that_stops_takes_no_puts() -> None:
    """They would ring nothing; everything else still passes."""
    async with before(CREATED) as relayed:
        relayed.fake.draining = True
        reply = await relayed.ask(PUT)
        assert fault(reply) == (503, "ServerBusy")
        assert reply.headers["retry-after"] == "1"
        assert relayed.endpoint.requests == []
        assert (await relayed.ask(b"GET /acme/orders/messages HTTP/1.1\r\nHost: a\r\n\r\n")).status == 201


async def test_a_bell_that_cannot_ring_fails_no_put(caplog: pytest.LogCaptureFixture) -> None:
    """The answer is the endpoint's (P4), and the log says what finds the message."""
    async with before(CREATED) as relayed:
        relayed.fake.refuses = BadInput("too_many_queues", "there are too many queues")
        assert (await relayed.ask(PUT)).status == 201
    assert "a sweep will find the message" in caplog.text


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /" + b"a" * 8190 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX-\xff: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \xff\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /acme/orders/messages#/more HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (CHUNKED.replace(b"chunked", b"gzip, chunked"), 400),
        (CHUNKED.replace(b"chunked", b"gzip\r\nTransfer-Encoding: chunked"), 400),
    ],
)
async def test_what_cannot_be_passed_on(raw: bytes, status: int) -> None:
    """It is refused in the service's own form, and the endpoint hears nothing of it."""
    async with before(CREATED) as relayed:
        reply = await relayed.ask(raw)
        assert fault(reply)[0] == status
        assert relayed.endpoint.requests == []


async def test_the_sdk_at_a_relay_before_our_own_endpoint() -> None:
    """Signatures of keys and of shared access hold, errors pass, and each put marks its queue here."""

    def work(port: int) -> None:
        with QueueServiceClient.from_connection_string(connection_string(port), retry_total=0) as sdk:
            queue = sdk.create_queue("orders", metadata={"team": "billing"})
            queue.send_message("one & <two>")
            held = queue.receive_message(visibility_timeout=60)
            assert held.content == "one & <two>"
            queue.update_message(held, visibility_timeout=0)
            with pytest.raises(ResourceNotFoundError):
                sdk.get_queue_client("missing").send_message("x")
            token = generate_queue_sas(ACCOUNT, "orders", KEY, permission="r", expiry="2999-01-01")
            with sdk.get_queue_client("orders").from_queue_url(
                f"http://127.0.0.1:{port}/{ACCOUNT}/orders", credential=token, retry_total=0
            ) as reader:
                assert [message.content for message in reader.peek_messages()] == ["one & <two>"]
                with pytest.raises(HttpResponseError, match="AuthorizationPermissionMismatch"):
                    reader.send_message("x")

    async with Bridge() as here, serving_azure() as front, relay(front.server.port, here) as server:
        await asyncio.to_thread(work, server.port)
        described = here.describe(f"{ACCOUNT}/orders")
        assert (described.triggers, described.dirty) == (2, True)
        assert here.describe(f"{ACCOUNT}/missing") is None


class Used:
    """The rates of an account's principal before the relay, and a time that the test moves."""

    def __init__(self, path: pathlib.Path, **limits: float) -> None:
        written(path, {"team": {"put": ["acme/*"]}, "acme": {"put": ["acme/*"]}})
        given = {name: str(value) for name, value in limits.items()}
        access_file.change(path, lambda found: with_terms(found, "team", {}, limits=given))
        self.now = 1000.0
        self.told: list[Fact] = []
        self.watch = AccessWatch(path, clock=lambda: self.now)
        self.limits = AccountLimits(self.watch, {"acme": "team"}, self.told.append)


async def test_requests_are_within_the_rate_of_their_accounts_principal(tmp_path: pathlib.Path) -> None:
    """Of every kind, and past it a body is not waited for; what names no queue is passed on."""
    used = Used(tmp_path / "access.json", requests_per_second=1)
    look = b"GET /acme/orders?comp=metadata HTTP/1.1\r\nHost: relay\r\n\r\n"
    async with before(CREATED, limits=used.limits) as relayed:
        assert [(await relayed.ask(look)).status for _ in range(2)] == [201, 503]
        cut = await relayed.ask(PUT.replace(b"Content-Length: 5", b"Content-Length: 9"))
        assert (cut.status, cut.headers["connection"]) == (503, "close")
        assert (await relayed.ask(look.replace(b"orders", b"%FF"))).status == 201


@pytest.mark.parametrize("method", [b"POST", b"OPTIONS"])
async def test_who_proves_nothing_uses_up_nothing(method: bytes, tmp_path: pathlib.Path) -> None:
    """A signature that the endpoint refuses counts against nobody, and neither does what needs none."""
    used = Used(tmp_path / "access.json", requests_per_second=1, puts_per_second=1)
    answer = CREATED if method == b"OPTIONS" else CREATED.replace(b"201 Created", b"403 Forbidden")
    async with before(answer, limits=used.limits) as relayed:
        told = [(await relayed.ask(PUT.replace(b"POST", method))).status for _ in range(5)]
        assert set(told) == {201 if method == b"OPTIONS" else 403}
    assert used.told == []


async def test_a_flood_past_the_rate_waits(tmp_path: pathlib.Path) -> None:
    """Past a few refusals they are answered later, and those of other accounts are passed on."""
    used = Used(tmp_path / "access.json", puts_per_second=1)
    used.watch.refusals = Refusals(per_second=0.001, at_once=2, held_s_max=1000.0)
    async with before(CREATED, limits=used.limits) as relayed, relayed.client() as client:
        await client.send(PUT * 10)
        assert [(await client.reply()).status for _ in range(3)] == [201, 503, 503]
        assert (await relayed.ask(PUT.replace(b"acme", b"other"))).status == 201
        assert len(used.told) == 3, "the next one waits"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "acme.queue.core.windows.net",
        "ftp://acme.queue.core.windows.net",
        "http://127.0.0.1:10001/devstoreaccount1",
        "http://127.0.0.1:10001?sig=x",
        "http://user@127.0.0.1",
        "http://127.0.0.1:x",
        "http://a b",
        "http://[::1",
        "http://",
    ],
)
def test_what_is_no_endpoint(url: str) -> None:
    """The refusal names the key and says why a path cannot be."""
    with pytest.raises(ConfigurationError, match="azure_relay"):
        read_endpoint(url)


PATH = "localhost"
HOST = "acme.queue.localhost"


@pytest.mark.parametrize(
    ("method", "target", "host", "ring"),
    [
        ("POST", "/acme/orders/messages", PATH, RelayedPut("acme", "orders")),
        ("POST", "/acme-secondary/orders/messages/", PATH, RelayedPut("acme", "orders")),
        ("POST", "/orders/messages?VisibilityTimeout=30&messagettl=-1", HOST, RelayedPut("acme", "orders", 30)),
        ("POST", "/%61cme/orders/Messages?visibilitytimeout=0&timeout=5", PATH, RelayedPut("acme", "orders", 0, 5)),
        ("POST", "/orders/messages?visibilitytimeout=x&timeout=999", HOST, RelayedPut("acme", "orders", 0, 30)),
        ("POST", "/orders/messages?visibilitytimeout=999999999999", HOST, RelayedPut("acme", "orders", 0)),
        ("PUT", "/orders/messages/1?popreceipt=a&visibilitytimeout=0", HOST, RelayedPut("acme", "orders")),
        ("PUT", "/orders/messages/1?popreceipt=a&visibilitytimeout=30", HOST, None),
        ("PUT", "/orders/messages/1?popreceipt=a", HOST, None),
        ("PUT", "/orders/messages?visibilitytimeout=0", HOST, None),
        ("PUT", "/orders", HOST, None),
        ("GET", "/orders/messages", HOST, None),
        ("DELETE", "/orders/messages/1?popreceipt=a&visibilitytimeout=0", HOST, None),
        ("POST", "/orders/messages/1", HOST, None),
        ("POST", "/acme/orders/messages/1/2", PATH, None),
        ("POST", "/Not-A-Name/messages", HOST, None),
        ("POST", "/a.b/orders/messages", PATH, None),
        ("POST", "/", PATH, None),
        ("POST", "/%ff/orders/messages", PATH, None),
    ],
)
def test_puts_and_releases_ring(method: str, target: str, host: str, ring: RelayedPut | None) -> None:
    """A put, and an update that makes a message visible at once; nothing else."""
    assert put_of(method, target, host) == ring
