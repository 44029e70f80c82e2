"""A bridge with many listeners in one process, for tests of what is shown of them: prints its address, and serves."""

from __future__ import annotations

import asyncio
import sys

from bridge.contract.wire import Hello, Subscription
from bridge.core.settings import Periods
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.service.bridge import Bridge, BridgeSettings


async def main(count: int) -> None:
    """Have so many listen, each to a queue of its own, and serve until the process is ended."""
    settings = BridgeSettings(periods=Periods(heartbeat_s=3600.0, slack_s=7200.0))
    async with Bridge(settings=settings) as bridge, WebServer(bridge, WebSettings(port=0)) as server:
        channel = bridge.local_channel()
        links = [await channel.connect() for _ in range(count)]
        for number, link in enumerate(links):
            name = f"worker {number:05} <b>bold</b>"
            link.send(Hello(f"{number:032x}", name, [Subscription(f"many/q{number:05}", 4)]))
        while len(bridge.bell.sessions) < count:
            await asyncio.sleep(0)
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
