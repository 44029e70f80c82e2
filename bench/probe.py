"""A lone producer and a lone listener in one process: triggers at an even pace, and when their wakes are heard.

The triggers go out over the broker, the wakes come in by a WebSocket session. Each of the probed queues has one
trigger at a time on its way, so that no wake can answer two; what was due is never put off because something before it
was slow. ``python -m bench.probe BROKER BRIDGE`` (bench.role).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time

import aiohttp

from bench.rawpublish import Wire
from bench.role import obey

QUEUES = 200
MARKER = "marker"
WITHIN_S = 60.0


class Probe:
    """One session, and what it waits for."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._due: dict[str, float] = {}
        self._gens: dict[str, int] = {}
        self._taken: list[float] = []
        self._marked = 0.0
        self._more = asyncio.Event()
        self.standing = asyncio.Event()

    async def listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Take what the bridge says."""
        names = [MARKER, *(f"probe{number}" for number in range(QUEUES))]
        queues = [{"queue": f"bench/{name}", "capacity": 1} for name in names]
        hello = {"type": "hello", "instance": secrets.token_hex(16), "listener": "probe", "queues": queues}
        await socket.send_json(hello)
        async for message in socket:
            now = time.monotonic()
            frame = json.loads(message.data)
            if frame["type"] == "welcome":
                self.standing.set()
                continue
            if frame["type"] != "wake" or frame["gen"] <= self._gens.get(frame["queue"], 0):
                continue
            self._gens[frame["queue"]] = frame["gen"]
            await socket.send_json(
                {"type": "started", "queue": frame["queue"], "boot": frame["boot"], "gen": frame["gen"]}
            )
            await socket.send_json(
                {"type": "cover", "queue": frame["queue"], "boot": frame["boot"], "gen": frame["gen"], "age_ms": 0}
            )
            due = self._due.pop(frame["queue"], None)
            if due is not None:
                self._taken.append((now - due) * 1000)
                self._marked = now
                self._more.set()

    async def beat(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Stay alive."""
        while True:
            await asyncio.sleep(4)
            await socket.send_json({"type": "heartbeat", "stamp": 1})

    async def run(self, messages: int, pace_ms: float) -> list[float]:
        """Send triggers at a pace, and return the milliseconds to each wake."""
        self._taken = []
        begun = time.monotonic()
        for number in range(messages):
            due = begun + number * pace_ms / 1000
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            name = f"probe{number % QUEUES}"
            if f"bench/{name}" in self._due:
                raise RuntimeError("a wake took longer than all the probed queues have turns")
            await self._send(name, due)
        await self._heard(messages)
        return self._taken

    async def mark(self) -> float:
        """Send one trigger behind all others, and return when its wake was heard."""
        self._taken = []
        await self._send(MARKER, time.monotonic())
        await self._heard(1)
        return self._marked

    async def _send(self, name: str, due: float) -> None:
        self._due[f"bench/{name}"] = due
        await self._wire.write(self._wire.encode(["queuebell", "trigger", "bench", name], b""))

    async def _heard(self, count: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while len(self._taken) < count:
                self._more.clear()
                await self._more.wait()


async def main(broker: str, bridge: str) -> None:
    """Do what is asked for."""
    wire = Wire(broker)
    await wire.open()
    probe = Probe(wire)
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(bridge + "/v1/sessions", protocols=("queuebell.v2",), compress=0) as socket,
    ):
        tasks = [asyncio.create_task(probe.listen(socket), name="listen")]
        tasks.append(asyncio.create_task(probe.beat(socket), name="beat"))
        async with asyncio.timeout(10):
            await probe.standing.wait()
        await obey({"run": probe.run, "mark": probe.mark})
        for task in tasks:
            task.cancel()
    await wire.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
