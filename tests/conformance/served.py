"""Two bridges on one engine, and a client that asks them in turns, as one behind a load balancer does."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from queuebell.bridge.contract.calls import JSON
from queuebell.bridge.contract.errors import Closed
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.queues.base import QueueStore
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.service.bridge import Bridge

# Private: `_engines`: what each store learned from its bridge.


class Turns(HttpStore):
    """The queue services of several bridges as one: each request goes to the next of them."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(urls[0])
        self._stores = [HttpStore(url) for url in urls]
        self.asked = [0 for _ in urls]
        """How many requests each bridge was sent."""

    async def _request(
        self,
        method: str,
        path: str,
        raw: bytes = b"",
        media: str = JSON,
        *,
        repeatable: bool = False,
        carries: str = "",
    ) -> tuple[int, bytes]:
        if self._closed:
            raise Closed("the store is closed")
        turn = sum(self.asked) % len(self._stores)
        self.asked[turn] += 1
        store = self._stores[turn]
        try:
            return await store._request(method, path, raw, media, repeatable=repeatable, carries=carries)
        finally:
            self.boot = store.boot
            self._engines.update(store._engines)
            self.capabilities = store.capabilities if store._engines else self.capabilities

    async def close(self) -> None:
        await super().close()
        for store in self._stores:
            await store.close()


@contextlib.asynccontextmanager
async def served(engine: Callable[[], QueueStore], bridges: int = 2) -> AsyncIterator[list[str]]:
    """Serve an engine at so many bridges, each with a store of its own for it, and give their addresses."""
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for _ in range(bridges):
            bridge = await stack.enter_async_context(Bridge(store=engine()))
            urls.append((await stack.enter_async_context(WebServer(bridge, WebSettings(port=0)))).url)
        yield urls
