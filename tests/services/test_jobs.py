"""Known numbers of messages, handled by real workers, stand exactly in the metrics of bridges and workers."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.command import perform
from tests.support.processes import Processes, Program, Service, until
from tests.support.redis import RedisServer

QUEUE = "billing/orders"
HANDLERS = """
from queuebell import Bury, Retry

def handle(message):
    text = message.text()
    if text == "bury":
        raise Bury("as it says")
    if text == "hopeless" or (text == "fail" and message.attempt == 1):
        raise ValueError(text)
    if text == "retry" and message.attempt == 1:
        raise Retry(0.1)
"""
SCRIPT = ["done"] * 9 + ["retry"] * 4 + ["fail"] * 3 + ["bury"] * 2 + ["hopeless"]
HANDLED = {"done": 16, "retried": 4, "failed": 4, "buried": 3}
FAILED = {"ValueError": 5, "poisoned": 2}


def counted(text: str, prefix: str) -> dict[str, dict[str, float]]:
    """Return handled by outcome, failures by class, and how many times were measured."""
    found: dict[str, dict[str, float]] = {"handled": {}, "failures": {}, "times": {}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name, labels = sample.name.removeprefix(prefix), sample.labels
            if labels.get("queue") != QUEUE:
                continue
            if name in ("_handled_total", "_failures_total"):
                kind, label = ("handled", "outcome") if name == "_handled_total" else ("failures", "class")
                found[kind][labels[label]] = found[kind].get(labels[label], 0) + sample.value
            elif name in ("_handling_seconds_count", "_waiting_seconds_count"):
                found["times"][name] = sample.value
    return found


async def text_of(bridge: Service, url: str) -> str:
    async with bridge.asking.get(url) as answer:
        assert answer.status == 200
        return await answer.text()


async def shows(bridge: Service, url: str, prefix: str, handled: dict[str, int]) -> dict[str, dict[str, float]]:
    """Wait until these outcomes stand there, and return all."""

    async def there() -> dict[str, dict[str, float]] | None:
        found = counted(await text_of(bridge, url), prefix)
        return found if found["handled"] == handled else None

    return dict(await until(there, f"{url} shows {handled}"))


async def worker(processes: Processes, *words: str) -> Program:
    (processes.folder / "jobs.py").write_text(HANDLERS)
    program: Program = await processes.start(sys.executable, "-m", "queuebell", "listen", *words, role="worker")
    return program


async def port_of(program: Program) -> str:
    """Return where a worker says that its metrics are."""
    await program.complains("metrics are at http://")
    found = re.search(r"metrics are at (http://\S+)", program.errors)
    assert found is not None
    return found[1]


async def test_bridge_and_worker_show_exactly_what_was_done(processes: Processes) -> None:
    """Each outcome and each class, once; after the worker has gone they stay, and another one adds to them."""
    bridge = await processes.serve()
    options = (bridge.url, QUEUE, "jobs:handle", "--max-attempts", "2", "--retry-first", "0.1")
    first = await worker(processes, *options, "--metrics", "127.0.0.1:0")
    assert await bridge.put(QUEUE, *SCRIPT) == 201
    attempts, metrics = sum(HANDLED.values()), f"{bridge.url}/metrics"
    times = {"_handling_seconds_count": attempts, "_waiting_seconds_count": len(SCRIPT)}
    expected = {"handled": HANDLED, "failures": FAILED, "times": times}
    assert await shows(bridge, await port_of(first), "queuebell_listener", HANDLED) == expected
    assert await first.stop() == 0
    assert counted(await text_of(bridge, metrics), "queuebell") == expected, "told before it left"
    second = await worker(processes, *options)
    assert await bridge.put(QUEUE, "done", "done") == 201
    await bridge.is_drained(QUEUE)
    assert await second.stop() == 0
    more = {**HANDLED, "done": HANDLED["done"] + 2}
    assert counted(await text_of(bridge, metrics), "queuebell")["handled"] == more
    told = await asyncio.to_thread(perform, "status", QUEUE, "--bridge", bridge.url)
    assert f"{QUEUE}: jobs:handle: 18 done" in told.stdout.decode()
    state = await bridge.queue(QUEUE)
    assert state["jobs"]["jobs:handle"]["outcomes"] == more


@pytest.mark.system
async def test_of_two_bridges_each_shows_its_own_part(processes: Processes) -> None:
    """A worker that moves when its bridge stops tells the next one what came after, and nothing twice."""
    async with RedisServer(processes.folder / "redis") as redis:
        serve = [processes.serve("--store", redis.url(), data=name, heartbeat_s="0.2") for name in ("a", "b")]
        bridges = [await each for each in serve]
        addresses = ",".join(bridge.url for bridge in bridges)
        program = await worker(processes, redis.url(), QUEUE, "jobs:handle", "--bridge", addresses)

        async def with_whom() -> Service | None:
            for bridge in bridges:
                _, state = await bridge.ask("/v1/listeners")
                if state["listeners"]:
                    return bridge
            return None

        first = await until(with_whom, "the worker has a session")
        (second,) = [bridge for bridge in bridges if bridge is not first]
        assert await second.put(QUEUE, "done", "done", "done") == 201
        await shows(first, f"{first.url}/metrics", "queuebell", {"done": 3})
        assert counted(await text_of(second, f"{second.url}/metrics"), "queuebell")["handled"] == {}
        assert await first.stop() == 0
        assert await second.put(QUEUE, "done", "bury") == 201
        await shows(second, f"{second.url}/metrics", "queuebell", {"done": 1, "buried": 1})
        assert await program.stop() == 0
        found = counted(await text_of(second, f"{second.url}/metrics"), "queuebell")
        assert (found["handled"], found["failures"]) == ({"done": 1, "buried": 1}, {"poisoned": 1})
