"""A crew: bridges of one cluster on one PostgreSQL and one NATS, and workers that note when they handle what."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

import nats
from nats.aio.client import Client

from bench.servers import database
from bench.stage import Child, Stage, free_port
from queuebell.bridge.core.cluster.members import rank
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.listeners import Listener, Message

WITHIN_S: Final = 90.0
LOOK_S: Final = 0.02


class Crew:
    """One or several bridges, the workers of each queue, and what each message's wait was."""

    def __init__(self, stage: Stage, nats_url: str, url: str, prefix: str) -> None:
        self.prefix = prefix
        self.store = PostgresStore(url)
        self.broker: Client
        self.addresses: list[str] = []
        self.told = 0
        """Covers and abilities that the bridges said to each other."""
        self._stage = stage
        self._nats_url = nats_url
        self._url = url
        self._bridges: list[Child] = []
        self._handled: dict[str, asyncio.Event] = {}
        self._waits: dict[str, float] = {}
        self._running: list[tuple[Listener, asyncio.Task[None]]] = []
        self._numbers = itertools.count(1)

    @classmethod
    async def gather(
        cls, stage: Stage, server: str, nats_url: str, name: str, bridges: int, *, notify: bool = False
    ) -> Crew:
        """Start so many bridges, which take turns where there are several."""
        url = await database(server, name)
        await init(url, notify=notify)
        crew = cls(stage, nats_url, url, name)
        crew.broker = await nats.connect(nats_url, allow_reconnect=False)
        for place in range(bridges):
            crew.addresses.append(f"http://127.0.0.1:{free_port()}")
            crew._bridges.append(await crew._start(place, turns=bridges > 1))

        async def count(_: Any) -> None:
            crew.told += 1

        for kind in ("covered", "able"):
            await crew.broker.subscribe(f"{name}.cluster.{kind}", cb=count)
        return crew

    async def _start(self, place: int, *, turns: bool) -> Child:
        data = self._stage.data(f"{self.prefix}-{place}")
        (data / "q.toml").write_text("sweep_s = 0\n")
        options = ["--listen", self.addresses[place].removeprefix("http://"), "--store", self._url]
        options += ["--nats", f"{self._nats_url}?prefix={self.prefix}", *(["--cluster", "bench"] if turns else [])]
        child, _ = await self._stage.bridge(data, *options, "--config", str(data / "q.toml"))
        return child

    async def kill(self, place: int) -> None:
        """End a bridge at once."""
        self._bridges[place].process.kill()
        await self._bridges[place].process.wait()

    async def leave(self, place: int) -> None:
        """Have a bridge end in order."""
        await self._bridges[place].stop()

    async def begin_again(self, place: int) -> None:
        """Start a bridge that ended, where it was."""
        self._bridges[place] = await self._start(place, turns=True)

    async def hire(self, queue: str, places: Sequence[int]) -> Listener:
        """Run a worker of one queue, with the first of these bridges that answers."""
        addresses = [self.addresses[place] for place in places]
        listener = Listener(self.store, queue, self._handle, bridge=addresses, handle_signals=False)
        task = asyncio.create_task(listener.run(), name=f"worker of {queue}")
        self._running.append((listener, task))
        return listener

    async def calm(self) -> None:
        """Wait until all bridges know each other and all workers have a session."""
        async with asyncio.timeout(WITHIN_S):
            while not all(listener.state().session for listener, _ in self._running):
                await asyncio.sleep(LOOK_S)
            while min([await asyncio.to_thread(members, url) for url in self.addresses]) < len(self.addresses):
                await asyncio.sleep(LOOK_S)

    async def order(self, queue: str) -> list[int]:
        """Return the places of the bridges in the order of a queue."""
        boots = [await asyncio.to_thread(boot, url) for url in self.addresses]
        return sorted(range(len(boots)), key=lambda place: -rank(queue, boots[place]))

    async def _handle(self, message: Message) -> None:
        began, name = message.text().split(maxsplit=1)
        self._waits[name] = time.monotonic() - float(began)
        self._handled[name].set()

    def expect(self) -> tuple[str, str]:
        """Return the name of one more message, and the body that it is put with now."""
        name = str(next(self._numbers))
        self._handled[name] = asyncio.Event()
        return name, f"{time.monotonic()} {name}"

    async def put(self, queue: str, *, named: bool) -> str:
        """Put one message, publish it to all bridges, and return its name."""
        name, body = self.expect()
        await self.store.put(queue, [body])
        await self.ring(queue, name if named else None)
        return name

    async def ring(self, queue: str, name: str | None) -> None:
        """Publish a trigger to all bridges."""
        account, _, rest = queue.partition("/")
        said = {"storage_account": account, "queue_name": rest, "payload_size": 1}
        if name is not None:
            said |= {"id": name, "source": "bench"}
        await self.broker.publish(f"{self.prefix}.trigger.{account}.{rest}", json.dumps(said).encode())

    async def handled(self, name: str) -> float:
        """Wait until a message is handled, and return how long it took since before its put."""
        async with asyncio.timeout(WITHIN_S):
            await self._handled[name].wait()
        return self._waits[name]

    def receives(self, queue: str) -> int:
        """Return the receives of a queue's workers so far."""
        return sum(
            state.queues[queue].total_receives
            for listener, _ in self._running
            if queue in (state := listener.state()).queues
        )

    async def dismiss(self) -> None:
        """End the workers and the bridges."""
        await asyncio.gather(*(listener.stop() for listener, _ in self._running))
        await asyncio.gather(*(task for _, task in self._running))
        for child in self._bridges:
            await child.stop()
        await self.broker.close()
        await self.store.close()


def members(url: str) -> int:
    """Return how many members a bridge knows, itself included; 1 for one that is alone."""
    seen = _asked(url)
    return 1 if seen is None or seen["alone"] else len(seen["members"])


def boot(url: str) -> str:
    """Return the boot of the bridge there."""
    seen = _asked(url)
    assert seen is not None
    return str(next((member["boot"] for member in seen["members"] if member["me"]), ""))


def _asked(url: str) -> Any:
    try:
        with urllib.request.urlopen(f"{url}/v1/cluster", timeout=10) as answer:
            return json.loads(answer.read())
    except urllib.error.URLError:
        return None
