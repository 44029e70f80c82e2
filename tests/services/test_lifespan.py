"""`lifespan` under uvicorn, as processes: its signals, its exit codes, and what of the work comes to an end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.support.processes import Processes, Program, Service

PROGRAM = Path(__file__).with_name("web_program.py")
QUEUE = "billing/orders"


async def web(processes: Processes, form: str, bridge: str) -> Program:
    """Start the application."""
    program: Program = await processes.start(sys.executable, str(PROGRAM), form, bridge)
    return program


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_handler_finishes_after_the_servers_signal(processes: Processes, number: signal.Signals) -> None:
    """Nothing is lost and nothing begins anew; the exit is that of uvicorn, which raises its signal at the end."""
    service: Service = await processes.serve()
    program = await web(processes, "good", service.url)
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


async def test_a_listener_that_cannot_work_fails_the_servers_start(processes: Processes) -> None:
    """With uvicorn's exit code for it, and the line that says what is wrong."""
    service: Service = await processes.serve()
    program = await web(processes, "refused", service.url)
    assert await program.ended() == 3
    assert "ConfigurationError: bridge" in program.errors
    assert "Application startup failed. Exiting." in program.errors
    await service.has_listeners(0)


async def test_a_server_ends_once_its_listener_broke(processes: Processes) -> None:
    """As by SIGTERM: whoever started it starts it again. The log says which listener, and why."""
    service: Service = await processes.serve()
    program = await web(processes, "breaks", service.url)
    await service.has_listeners(1)
    assert await service.put(QUEUE, *"xyz") == 201
    assert await program.ended() == -signal.SIGTERM
    assert "web: broke, and handles no more of billing/orders: no such rule" in program.errors
    assert "Finished server process" in program.errors
