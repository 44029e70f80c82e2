"""A scaler beside everything else; workers are listeners of this process where no process is shown.

| beside a scaler | what holds | shown by |
|---|---|---|
| each store elsewhere | from zero and back; where counts prove nothing one worker looks | `on_every_store` |
| several bridges, keys, wrong clocks | no run loses anything | `simulation/test_scalers.py` |
| bridge, store, worker, scaler killed | at each step nothing is lost, nobody left | `chaos/scaled.py` |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge import Bridge, Publisher
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.service.bridge import BridgeSettings
from queuebell.listeners import Listener, Message, Scaler
from tests.conformance.test_workers import Place, sqs, stores
from tests.support.inline_workers import Inline
from tests.support.processes import until

QUEUE = "billing/orders"
QUIET: dict[str, Any] = {"settings": BridgeSettings(periods=Periods(sweep_s=0))}
"""Only what is told is found."""


class Work:
    """What handlers were given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def handle(self, message: Message) -> None:
        """Note it, unless it is one that always fails."""
        if message.text() == "bad":
            raise ValueError("this message always fails")
        self.texts.append(f"{message.queue.partition('/')[2]} {message.text()}")

    async def has(self, *texts: str, queue: str = "orders") -> None:
        """Wait until these were handled."""
        await until(lambda: {f"{queue} {text}" for text in texts} <= set(self.texts), f"{texts} are handled")


@asynccontextmanager
async def scaled(
    store: Any, bridge: Any, make: Callable[[], Listener], queue: str = QUEUE, **options: Any
) -> AsyncIterator[tuple[Inline, Scaler]]:
    """Run a scaler whose workers are made here."""
    actuator = Inline(make)
    scaler = Scaler(store, queue, actuator, bridge=bridge, handle_signals=False, **{"idle": 0.1, **options})
    running = asyncio.create_task(scaler.run(), name="scaler")
    try:
        yield actuator, scaler
    finally:
        await scaler.stop()
        await asyncio.wait([running])
        running.result()
        assert actuator.running() == []


def workers(store: Any, bridge: Any, work: Work, queue: Any = QUEUE, **options: Any) -> Callable[[], Listener]:
    """Return what makes a worker."""
    return lambda: Listener(store, queue, work.handle, bridge=bridge, handle_signals=False, **options)


@stores(at_length=sqs)
async def test_on_every_store(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From nobody to a handler and back; a count that proves nothing has one look for what was said before."""
    work = Work()
    async with place(tmp_path, monkeypatch) as url, Bridge(**QUIET) as bridge, open_store(url) as store:
        async with (
            Publisher(bridge) as publisher,
            scaled(url, bridge, workers(url, bridge, work)) as (actuator, scaler),
        ):
            await until(lambda: (state := scaler.state()) and state.mode == "push", "a session")
            await PublishingQueue(store, publisher).put(QUEUE, [NewMessage(b"one")])
            await work.has("one")
            await actuator.until(lambda: not actuator.running())
            await PublishingQueue(store, publisher).put(QUEUE, [NewMessage(b"two")])
            await work.has("two")
            await actuator.until(lambda: not actuator.running())
            # That its worker has looked a scaler hears with the next heartbeat. Where a count of 0 proves nothing, and
            # a worker ends before that, another one looks.
            proves = store.capabilities.exact_depth or store.capabilities.zero_depth
            assert actuator.most <= (1 if proves else 2) and actuator.busy_ends == 0
            depth = await store.depth(QUEUE)
            assert depth is not None and depth.visible + depth.invisible == 0
