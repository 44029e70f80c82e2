"""Wakes over Server-Sent Events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from queuebell.bridge.contract.event import CloudQueueWorkDetected
from tests.support.web import Client, Served, request, serving


class Event(NamedTuple):
    """One event off a stream."""

    kind: str
    id: str
    data: Any

    @property
    def gen(self) -> int:
        return int(self.id.partition(":")[2])


class Stream:
    """A client of one stream; undoes the chunks by itself."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.status = 0
        self.headers: dict[str, str] = {}
        self.comments = 0
        self.retry: int | None = None
        self._text = b""

    async def open(self, path: str, **headers: str) -> None:
        await self.client.send(request("GET", path, **headers))
        async with asyncio.timeout(100):
            head = (await self.client.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(head[0].split(" ")[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}

    async def block(self) -> list[str] | None:
        """The lines up to the next blank one; None at the end of the stream."""
        while b"\n\n" not in self._text:
            async with asyncio.timeout(200):
                if "chunked" in self.headers.get("transfer-encoding", ""):
                    size = int(await self.client.reader.readuntil(b"\r\n"), 16)
                    part = (await self.client.reader.readexactly(size + 2))[:-2]
                else:
                    part = await self.client.reader.read(65_536)
            if not part:
                return None
            self._text += part
        block, _, self._text = self._text.partition(b"\n\n")
        return block.decode().split("\n")

    async def event(self) -> Event | None:
        """The next event; comments are counted on the way."""
        while (lines := await self.block()) is not None:
            fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            self.comments += any(line.startswith(":") for line in lines)
            if "retry" in fields:
                self.retry = int(fields["retry"])
            if "event" in fields:
                return Event(fields["event"], fields["id"], json.loads(fields["data"]))
        return None

    async def wake(self) -> Event:
        event = await self.event()
        assert event.kind == "wake"
        return event


@contextlib.asynccontextmanager
async def stream(served: Served, path: str, **headers: str) -> AsyncIterator[Stream]:
    """A stream that is open: its first comment was read, so wakes from now on are heard."""
    async with served.client() as client:
        opened = Stream(client)
        await opened.open(path, **headers)
        if opened.status == 200:
            assert await opened.block() == [":"]
        yield opened


def mark(served: Served, queue: str = "billing/orders", size: int = 1, trace: str | None = None) -> int:
    """Trigger, and return the generation."""
    account, name = queue.split("/")
    served.bridge.trigger([CloudQueueWorkDetected(account, name, size, traceparent=trace)], bus="http")
    return served.bridge.newest(queue)[0]


@pytest.mark.parametrize(
    "last", ["0" * 32 + ":5", "nonsense", "{boot}", "{boot}:", "{boot}:-1", "{boot}:1e3", "{boot}:" + "9" * 40, "é"]
)
async def test_s22_an_unknown_resume_point_is_a_gap(last: str, served: Served) -> None:
    """Another boot, or none of ours: said in band, with an id to go on from, and wakes follow."""
    gen = mark(served)
    last = last.format(boot=served.bridge.boot)
    async with stream(served, "/v1/wakes?queue=billing/orders", Last_Event_ID=last) as events:
        event = await events.event()
        assert (event.kind, event.id) == ("gap", f"{served.bridge.boot}:{gen}")
        assert event.data == {"type": "gap", "boot": served.bridge.boot, "queues": ["billing/orders"]}
        newer = mark(served)
        assert (await events.wake()).gen == newer


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "bad_parameter"),
        ("?queue=", "bad_queue_reference"),
        ("?queue=orders", "bad_queue_reference"),
        ("?queue=a/b&queue=a/*", "bad_queue_reference"),
        ("?queue=a/b%0aevent:%20x", "bad_queue_reference"),
        ("?queue=a/b/c", "bad_queue_reference"),
        ("?queue=%ff", "bad_parameter"),
        ("?" + "&".join(f"queue=a/{n}" for n in range(101)), "too_many_items"),
        ("?" + "&".join("x" for _ in range(300)), "bad_parameter"),
    ],
)
async def test_s5_s14_a_stream_of_nothing_or_of_what_cannot_be_is_refused(query: str, code: str) -> None:
    """400, and nothing is opened."""
    async with serving(uri_bytes=4096) as served:
        reply = await served.ask("GET", f"/v1/wakes{query}")
        assert (reply.status, reply.code) == (400, code)
        assert (await served.ask("GET", "/v1/listeners")).json == {"listeners": []}


async def test_other_methods_and_origins(served: Served) -> None:
    """HEAD tells the type; POST is 405; a page elsewhere is refused, and no CORS header lets it in (S15, S16)."""
    head = await served.ask("HEAD", "/v1/wakes?queue=a/b")
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
    assert (await served.ask("POST", "/v1/wakes?queue=a/b")).status == 405
    reply = await served.ask("GET", "/v1/wakes?queue=a/b", Origin="http://evil.example")
    assert (reply.status, reply.code) == (403, "forbidden_origin")
    assert not any(name.startswith("access-control") for name in reply.headers)


async def test_a_silent_stream_has_comments_and_a_loud_one_has_none() -> None:
    """Proxies close what is silent; the period is the longest silence."""
    async with serving(stream_comment=0.05) as served, stream(served, "/v1/wakes?queue=a/b") as events:
        assert await events.block() == [":"]
        assert await events.block() == [":"]
        mark(served, "a/b")
        assert (await events.wake()).data["queue"] == "a/b"
    async with serving() as served, stream(served, "/v1/wakes?queue=a/b") as events:
        for _ in range(20):
            mark(served, "a/b")
            await events.wake()
        assert events.comments == 0


async def test_a_draining_bridge_ends_its_streams_by_itself() -> None:
    async with serving(stream_comment=0.05) as served, stream(served, "/v1/wakes?queue=a/b") as events:
        served.bridge.draining = True
        assert await events.event() is None
        served.bridge.draining = False


async def test_s11_a_reader_that_takes_nothing_is_cut_off() -> None:
    """After `write_timeout`; until then it costs its slots."""
    async with serving(write_timeout=0.2) as served, stopped(served, "/v1/wakes?queue=a/b"):
        async with asyncio.timeout(200):
            while (await served.ask("GET", "/v1/listeners")).json["listeners"]:
                for _ in range(100):
                    mark(served, "a/b")
                    await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def stopped(served: Served, path: str) -> AsyncIterator[socket.socket]:
    """A client that asks for a stream with the smallest buffer there is, and reads nothing."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", served.server.port))
        await loop.sock_sendall(sock, request("GET", path))
        async with asyncio.timeout(100):
            await loop.sock_recv(sock, 1)
        yield sock
