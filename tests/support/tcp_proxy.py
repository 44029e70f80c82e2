"""A TCP proxy for tests: slow, cut, deaf, or one byte at a time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import TracebackType
from typing import Self


class Way:
    """What happens to bytes in one direction."""

    def __init__(self) -> None:
        self.latency_s = 0.0
        self.one_byte = False
        self.swallow = False
        self.drop = 0
        """How many of the next bytes vanish."""
        self.passed = 0
        self.flowing = asyncio.Event()
        """Cleared: nothing is read any more, so that the sender's buffers fill."""
        self.flowing.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self.flowing.wait()
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            if self.swallow:
                continue
            if self.drop:
                kept = data[self.drop :]
                self.drop -= len(data) - len(kept)
                data = kept
            self.passed += len(data)
            if self.one_byte:
                for at in range(len(data)):
                    writer.write(data[at : at + 1])
                    await asyncio.sleep(0)
            else:
                writer.write(data)
            await writer.drain()


class TcpProxy:
    """Listens on a free port of loopback and carries to ``port``; an async context manager."""

    def __init__(self, port: int) -> None:
        self.target = port
        """Where new connections lead."""
        self.port = 0
        self.up = Way()
        self.down = Way()
        self.refusing = False
        self._listening: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._targets: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        # Not asyncio's server: what that has accepted belongs to nobody until its task has begun, and a peer that
        # connects again and again leaves such a socket behind when the test ends just then.
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listening is not None
        asyncio.get_running_loop().remove_reader(self._listening)
        self._listening.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def black_hole(self) -> None:
        """Let every byte vanish in both directions, with all connections open."""
        self.up.swallow = self.down.swallow = True

    def freeze(self) -> None:
        """Read nothing any more in both directions, with all connections open."""
        self.up.flowing.clear()
        self.down.flowing.clear()

    def heal(self) -> None:
        """Carry again."""
        for way in (self.up, self.down):
            way.swallow = False
            way.flowing.set()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in self._clients | self._targets:
            writer.transport.abort()

    def half_open(self) -> None:
        """End the broker's side of all connections and leave the client's open, where nothing arrives any more."""
        self.black_hole()
        for writer in self._targets:
            writer.transport.abort()

    def say(self, words: bytes) -> None:
        """Say something to all clients in the broker's name."""
        for writer in self._clients:
            writer.write(words)

    def _accept(self, listening: socket.socket) -> None:
        try:
            client, _ = listening.accept()
        except OSError:
            return  # it went away again
        client.setblocking(False)
        task = asyncio.create_task(self._serve(client), name="proxy connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: client.close())  # a task that was cancelled before it began has no finally

    async def _serve(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        self._clients.add(writer)
        try:
            if not self.refusing:
                await self._connect(reader, writer)
        except OSError:
            pass  # the target is not there: the client's connection ends, and that says it
        finally:
            self._clients.discard(writer)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target = await asyncio.open_connection("127.0.0.1", self.target)
        self._targets.add(target)
        ways = [
            asyncio.create_task(self._way(self.up, reader, target), name="proxy up"),
            asyncio.create_task(self._way(self.down, target_reader, writer), name="proxy down"),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if self.up.swallow or self.down.swallow:
                await asyncio.wait(ways)  # half-open: the other side never hears of it
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            self._targets.discard(target)
            target.transport.abort()

    @staticmethod
    async def _way(way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await way.carry(reader, writer)
