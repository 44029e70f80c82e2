"""`lifespan` under uvicorn, as a process: its signals, its exit code, and what of the work comes to an end."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.support.processes import Processes, Program, Service

QUEUE = "billing/orders"
WEB = """
import asyncio, sys
import uvicorn
from fastapi import FastAPI
from queuebell.listeners import Listener, Message, lifespan

def say(line):
    print(line, flush=True)

async def handler(message: Message) -> None:
    say(f"start {message.text()}")
    await asyncio.to_thread(sys.stdin.readline)
    say(f"done {message.text()}")

working = Listener(sys.argv[1], "billing/orders", handler, name="web", grace=600)
uvicorn.run(FastAPI(lifespan=lifespan(working)), host="127.0.0.1", port=0)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_handler_finishes_after_the_servers_signal(processes: Processes, number: signal.Signals) -> None:
    """Nothing is lost and nothing begins anew; the exit is that of uvicorn, which raises its signal at the end."""
    service: Service = await processes.serve()
    program: Program = await processes.start(sys.executable, "-c", WEB, service.url)
    await service.has_listeners(1)
    assert await service.put(QUEUE, "one") == 201
    await program.line("start one")
    program.signal(number)
    await program.complains("Waiting for application shutdown")
    assert await service.put(QUEUE, "two") == 201
    program.tell("go")
    assert await program.ended() in (-number, 0), program.errors
    assert [line for line in program.lines if "HTTP" not in line] == ["start one", "done one"]
    assert "Application shutdown complete" in program.errors
    assert "Traceback" not in program.errors.partition("Finished server process")[0]
    assert (await service.queue(QUEUE))["depth"] == {"visible": 1, "invisible": 0}
