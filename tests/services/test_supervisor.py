"""The supervisor pattern with real processes: what is buried is compensated or replayed, and never lost."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from tests.support.processes import Processes, Program, Service, until

QUEUE = "billing/orders"
POISON = f"{QUEUE}-poison"


async def started(processes: Processes, module: str, bridge: Service, queue: str, *words: str) -> Program:
    program: Program = await processes.start(
        sys.executable, "-m", f"tests.services.{module}", bridge.url, queue, *words
    )
    await program.line('"up"')
    return program


def events(program: Program, kind: str) -> list[dict[str, Any]]:
    return [event for event in map(json.loads, program.lines) if event["event"] == kind]


async def test_one_is_compensated_and_another_replayed(processes: Processes) -> None:
    """The worker fails both; the supervisor wakes without polling, and the one that it replays then succeeds."""
    bridge = await processes.serve()
    worker = await started(processes, "failing_worker", bridge, QUEUE)
    supervisor = await started(processes, "supervisor", bridge, POISON)
    await bridge.has_listeners(2)
    assert await bridge.put(QUEUE, "fine", "hopeless", "later") == 201
    await worker.line('"done"', "later")
    await supervisor.line('"compensated"', "hopeless")
    for queue in (QUEUE, POISON):
        await bridge.is_drained(queue)
    assert Counter(event["text"] for event in events(worker, "start")) == {"fine": 1, "hopeless": 1, "later": 3}
    (replaying,) = events(supervisor, "replaying")
    assert (replaying["failure"], replaying["listener"], replaying["error"]) == ("exhausted", "worker", "RuntimeError")
    (compensated,) = events(supervisor, "compensated")
    assert (compensated["failure"], compensated["text"]) == ("poisoned", "hopeless")
    assert [await program.stop() for program in (worker, supervisor)] == [0, 0]


async def test_killed_between_put_and_delete(processes: Processes) -> None:
    """The replay that a supervisor died in the middle of may be done twice, and is done."""
    bridge = await processes.serve()
    worker = await started(processes, "failing_worker", bridge, QUEUE)
    victim = await started(processes, "supervisor", bridge, POISON, "hold")
    await bridge.has_listeners(2)
    assert await bridge.put(QUEUE, "later") == 201
    await victim.line("about to delete")
    await victim.kill()
    await worker.line('"done"', "later")
    depth = (await bridge.queue(POISON))["depth"]
    assert depth["visible"] + depth["invisible"] == 1
    await started(processes, "supervisor", bridge, POISON)
    await until(lambda: len(events(worker, "done")) == 2, "it came twice")
    for queue in (QUEUE, POISON):
        await bridge.is_drained(queue)
    assert {event["text"] for event in events(worker, "done")} == {"later"}


async def test_the_command_replays_what_nobody_supervised(processes: Processes) -> None:
    """Without a supervisor the messages wait, and `queuebell queue replay` brings them back to the worker."""
    bridge = await processes.serve()
    worker = await started(processes, "failing_worker", bridge, QUEUE)
    assert await bridge.put(QUEUE, "later 1", "later 2") == 201

    async def buried() -> bool:
        return (await bridge.queue(POISON)).get("depth") == {"visible": 2, "invisible": 0}

    await until(buried, "both are buried")
    command = ("-m", "queuebell", "queue", "replay", POISON, "--store", bridge.url)
    replaying = await processes.start(sys.executable, *command)
    assert await replaying.ended() == 0
    await until(lambda: len(events(worker, "done")) == 2, "both are done")
    await bridge.is_drained(POISON)
    assert len(replaying.lines) == 2
    assert "replayed 2" in replaying.errors
