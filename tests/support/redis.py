"""A real Redis server for tests, on a port of its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.brokers import RealBroker

if TYPE_CHECKING:
    from redis.asyncio import Redis


class RedisServer(RealBroker):
    """redis-server with an append-only file; ``extra`` is more of its configuration."""

    kind = "redis-server"

    def __init__(self, folder: Path, *, extra: str = "") -> None:
        super().__init__(folder, extra=extra)
        self.password = ""

    def url(self, database: int = 0, **options: str) -> str:
        """The address of a database on this server."""
        query = "&".join(f"{key}={value}" for key, value in options.items())
        who = f":{self.password}@" if self.password else ""
        return f"redis://{who}127.0.0.1:{self.port}/{database}" + (f"?{query}" if query else "")

    def command(self) -> list[str]:
        config = self.folder / "redis.conf"
        config.write_text(
            f'bind 127.0.0.1\nport {self.port}\ndir "{self.store}"\nsave ""\n'
            f"appendonly yes\nappendfsync always\n{self.extra}\n"
        )
        binary = shutil.which("redis-server")
        assert binary, "no redis-server: see .ci/packages"
        return [binary, str(config)]

    async def _answers(self, port: int) -> bool:
        if not await super()._answers(port):
            return False
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"PING\r\n")
            # It listens before it has read its data. To a port of TLS this is no beginning, and ends the connection.
            return not (await reader.readline()).startswith(b"-LOADING")
        except ConnectionError:
            return True
        finally:
            writer.transport.abort()

    @asynccontextmanager
    async def stranger(self, database: int = 0) -> AsyncIterator[Redis]:
        """A client that knows nothing of Queuebell."""
        from redis.asyncio import Redis

        client: Any = Redis.from_url(self.url(database), decode_responses=True)
        try:
            yield client
        finally:
            await client.aclose()
