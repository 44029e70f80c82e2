"""What an endpoint is owed and what is told of it, in virtual time; the courier is played by hand."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.contract.wire import Wake
from bridge.http.webhooks.rules import RATE_PER_MINUTE, Outcome
from bridge.http.webhooks.settings import check_webhooks
from bridge.http.webhooks.shell import Endpoint
from bridge.service.state import ListenerState, Subscribed
from tests.support.hooks import hook
from tests.support.sim_loop import pass_time, simulated

GOOD, BUSY, GONE = Outcome(204), Outcome(503, "it answered 503"), Outcome(410, "it answered 410")


class Played:
    """A courier, the wakes that it was given and when, and an endpoint that has it."""

    def __init__(self, *outcomes: Outcome | Exception) -> None:
        self.outcomes = deque(outcomes)
        self.took: list[tuple[float, int]] = []
        self.rate: float | None = None
        self.closed = False
        self._began = asyncio.get_running_loop().time()
        (checked,) = check_webhooks([hook("https://hooks.example.com:8443/way?secret=1")])
        bridge: Any = SimpleNamespace(newest=lambda queue: (1, True))
        self.endpoint = Endpoint(checked, self, lambda: 0.0, bridge)  # type: ignore[arg-type]

    async def deliver(self, wake: Wake) -> Outcome:
        """Do what the test says."""
        self.took.append((round(asyncio.get_running_loop().time() - self._began, 2), wake.gen))
        outcome = self.outcomes.popleft() if self.outcomes else GOOD
        if isinstance(outcome, Exception):
            raise outcome
        await asyncio.sleep(0)
        return outcome

    async def close(self) -> None:
        """Note it."""
        self.closed = True

    def offer(self, gen: int) -> None:
        """Have a wake delivered."""
        self.endpoint.offer(Wake("a/b", "b" * 32, gen, "trigger", 1, 0))

    def row(self, **differs: Any) -> ListenerState:
        """What is to be told."""
        name = "https://hooks.example.com:8443"
        plain: dict[str, Any] = {"state": "ok", "detail": "", "delivered": 0, "failures": 0, "dropped": 0}
        queues = [Subscribed(queue="a/b")]
        return ListenerState(listener=name, channel="webhook", queues=queues, **{**plain, "pending": False, **differs})


@simulated
async def test_what_is_told_while_an_endpoint_breaks_heals_and_goes(caplog: pytest.LogCaptureFixture) -> None:
    """One line as it breaks, heals and goes for good; a fault of our own is an attempt that failed."""
    caplog.set_level(logging.INFO, "queuebell.webhook")
    played = Played(GOOD, BUSY, ZeroDivisionError(), GOOD, GONE)
    running = asyncio.create_task(played.endpoint.run(), name="webhook")
    assert played.endpoint.row() == played.row()
    await pass_time(5)
    assert played.took == []
    played.offer(1)
    assert played.endpoint.row() == played.row(pending=True)
    await pass_time(0.1)
    assert played.endpoint.row() == played.row(delivered=1)
    played.offer(2)
    await pass_time(1)
    told = played.endpoint.row()
    assert told == played.row(state="failing", detail="it answered 503", delivered=1, failures=1, pending=True)
    while len(played.took) < 3:
        await pass_time(0.1)
    assert played.endpoint.row().detail == "internal fault"
    await pass_time(60)
    assert played.endpoint.row() == played.row(delivered=2)
    played.offer(3)
    await pass_time(10)
    assert running.done() and played.closed
    assert played.endpoint.row() == played.row(state="disabled", detail="it answered 410", delivered=2, failures=1)
    assert [gen for _, gen in played.took] == [1, 2, 2, 2, 3]
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        ("WARNING", "webhook: it answered 503; it is tried again, at longer and longer intervals"),
        ("ERROR", "webhook: an attempt failed by a fault of its own"),
        ("INFO", "webhook: delivers again"),
        ("WARNING", "webhook: the endpoint answered 410 and is left alone from now on"),
    ]
    assert {getattr(record, "endpoint", "") for record in caplog.records} == {"https://hooks.example.com:8443"}
    assert {getattr(record, "queue", "a/b") for record in caplog.records} == {"a/b"}
    assert caplog.records[1].exc_info


@simulated
async def test_s29_the_rate_that_was_granted_is_kept() -> None:
    """From the first answer on; a grant of more than was asked for changes nothing."""
    for rate, pause in ((30.0, 2.0), (60_000.0, 60 / RATE_PER_MINUTE), (None, 60 / RATE_PER_MINUTE)):
        played = Played()
        played.rate = rate
        running = asyncio.create_task(played.endpoint.run(), name="webhook")
        for gen in range(1000):
            played.offer(gen)
            await pass_time(0.01)
        running.cancel()
        await asyncio.wait([running])
        assert played.closed
        times = [when for when, _ in played.took]
        gaps = [after - before for before, after in itertools.pairwise(times[1:])]
        assert len(gaps) > 1
        assert gaps == pytest.approx([pause] * len(gaps), abs=0.02), rate
