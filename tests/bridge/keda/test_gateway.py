"""The way in to KEDA's port: bytes pass it unchanged, nothing piles up in it, and each half ends with the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import socket
from collections.abc import AsyncIterator

import pytest

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.http.server.sockets import listen
from queuebell.bridge.keda import gateway as gate
from queuebell.bridge.keda.gateway import Gateway
from queuebell.bridge.queues.base import NewMessage
from tests.support.access import written
from tests.support.keda import QUEUE, Deaf, Keda, compiled, scaling
from tests.support.processes import PATIENCE_S
from tests.support.web import Client

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def gated() -> AsyncIterator[tuple[Gateway, int, asyncio.Queue[Streams]]]:
    """A gate before a server that only takes connections; yields its port too, and what the server took."""
    taken: asyncio.Queue[Streams] = asyncio.Queue()
    inner = await asyncio.start_server(lambda *streams: taken.put_nowait(streams), "127.0.0.1", 0)
    made = Gateway()
    port = await made.start(lambda make: listen(make, "127.0.0.1", 0), inner.sockets[0].getsockname()[1])
    try:
        yield made, port, taken
    finally:
        await made.stop()
        while not taken.empty():
            taken.get_nowait()[1].close()
        inner.close()


async def until(gate: Gateway, connections: int) -> None:
    """Wait until so many are open."""
    async with asyncio.timeout(PATIENCE_S):
        while gate.connections != connections:
            await asyncio.sleep(0.005)


async def test_what_is_not_read_is_not_read_here_either() -> None:
    """A client that sends faster than grpcio reads is stopped by its own socket, and every byte arrives later."""
    async with gated() as (_, port, taken):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            reader, writer = await taken.get()
            block, sent, blocked = os.urandom(65_536), 0, 0
            while blocked < 300:
                assert sent < 100_000_000
                try:
                    sent += client.send(block)
                    blocked = 0
                except BlockingIOError:
                    blocked += 1
                    await asyncio.sleep(0)
            client.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(PATIENCE_S):
                assert len(await reader.read()) == sent
            writer.close()


async def test_where_nothing_listens_beneath_the_client_is_let_go() -> None:
    """It comes again, as it would to a bridge that restarts."""
    async with gated() as (made, port, _):
        made.inner = 1
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        await until(made, 0)


async def test_a_stop_ends_what_is_open() -> None:
    async with gated() as (made, port, _):
        open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(made, 3)
        await made.stop()
        for reader, writer in open_ones:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        assert made.connections == 0


async def stranger(port: int, sender: str, first: bytes) -> Client:
    """Connect from this address, and send this."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port, local_addr=(sender, 0)))
    client.writer.write(first)
    return client


async def test_a_connection_with_an_admitted_call_makes_no_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Where all are such, the bridge lets nobody else in, and the streams go on."""
    monkeypatch.setattr(gate, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(gate, "SILENT_S", 1000.0)
    secret = written(tmp_path / "access.json", {"keda": {"look": ["*"]}})["keda"]
    async with (
        AccessWatch(tmp_path / "access.json") as watch,
        scaling(access=watch) as (bridge, server),
        Keda.to(server) as keda,
    ):
        stream = keda.stream(apiKeyFromEnv=secret)
        assert (await stream.read()).result is False
        late = await stranger(server.port, "127.0.0.2", b"")
        await late.rest()
        await bridge.store.put(QUEUE, [NewMessage(b"x")])
        assert (await stream.read()).result is True
        stream.cancel()
        await late.close()


async def test_without_keys_strangers_who_call_do_not_keep_keda_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their calls are admitted as KEDA's are, so that they prove nothing: who has most connections makes room."""
    monkeypatch.setattr(gate, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(gate, "PER_SENDER_MAX", 2)
    async with scaling() as (_, server), contextlib.AsyncExitStack() as stack:
        for number in range(4):
            deaf = await Deaf.to(server.port, f"127.0.0.{2 + number // 2}")
            deaf.open(compiled()[0].ScaledObjectRef(scalerMetadata={"queue": QUEUE}).SerializeToString())
            stack.callback(deaf.close)
        async with asyncio.timeout(PATIENCE_S):
            while len(server.rows()) < 4:
                await asyncio.sleep(0.005)
        async with Keda.to(server) as keda:
            assert await keda.active() is False
