"""A served bridge on a free port, and a client that speaks bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.queues.base import QueueStore
from queuebell.bridge.service.bridge import Bridge

JSON = "application/json"


class Reply(NamedTuple):
    """One answer off the wire; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a problem, after checking that it is a whole and consistent one."""
        assert self.headers["content-type"] == "application/problem+json"
        problem = self.json
        assert set(problem) == {"title", "status", "detail", "code"}
        assert problem["status"] == self.status
        assert problem["title"] and problem["detail"]
        return str(problem["code"])


class Client:
    """One connection that sends whatever it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def reply(self, *, head_only: bool = False) -> Reply:
        """Read one answer; fails if none comes."""
        async with asyncio.timeout(100):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
            length = 0 if head_only else int(headers.get("content-length", 0))
            body = await self.reader.readexactly(length)
        return Reply(int(lines[0].split(" ")[1]), headers, body)

    async def rest(self) -> bytes:
        """Read until the server closes; fails if it does not."""
        async with asyncio.timeout(100):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Served:
    """A bridge and its web server."""

    def __init__(self, bridge: Bridge, server: WebServer) -> None:
        self.bridge = bridge
        self.server = server

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port, **options))
        try:
            yield client
        finally:
            await client.close()

    async def ask(
        self, method: str, path: str, body: bytes | None = None, *, media: str | None = None, **headers: str
    ) -> Reply:
        """Send one request over a connection of its own and return the answer."""
        async with self.client() as client:
            await client.send(request(method, path, body, media=media, **headers))
            return await client.reply(head_only=method == "HEAD")

    async def ask_raw(self, data: bytes) -> Reply:
        """Send these bytes and return the answer."""
        async with self.client() as client:
            await client.send(data)
            return await client.reply()

    async def trigger(self, value: object) -> Reply:
        """Post a trigger."""
        return await self.ask("POST", "/v1/triggers", json.dumps(value).encode(), media=JSON)

    async def call(self, verb: str, value: object, queue: str = "billing/orders") -> Reply:
        """Post JSON to a verb of a queue."""
        return await self.ask("POST", f"/v1/queues/{queue}/{verb}", json.dumps(value).encode(), media=JSON)


def request(method: str, path: str, body: bytes | None = None, *, media: str | None = None, **headers: str) -> bytes:
    """Put a request together; underscores of header names become hyphens."""
    lines = [f"{method} {path} HTTP/1.1"]
    if "Host" not in headers:
        lines.append("Host: 127.0.0.1")
    if media is not None:
        lines.append(f"Content-Type: {media}")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


@contextlib.asynccontextmanager
async def serving(
    *,
    store: QueueStore | None = None,
    access: AccessWatch | None = None,
    tls: ssl.SSLContext | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve a bridge in memory, or on the engine of a ``store``, on a free port."""
    async with Bridge(store=store) as bridge:
        set_up = WebSettings(**{"port": 0, "shutdown_timeout": 0.2, **settings})
        async with WebServer(bridge, set_up, access=access, tls=tls) as server:
            yield Served(bridge, server)
