"""Signals: all listeners of a process stop at the first and hurry at the second; a server's are its own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.services.signal_program import QUEUES
from tests.support.processes import Processes, Program

TERM, INT = signal.SIGTERM, signal.SIGINT
HEARD = "a second signal stops at once"
PROGRAM = Path(__file__).with_name("signal_program.py")

TOLD = [(form, *told) for form in ("alone", "gather", "pool", "bridge", "together") for told in ((TERM, 1), (INT, 2))]


async def started(processes: Processes, *words: str, queues: tuple[str, ...] = QUEUES) -> Program:
    """Start a program whose handlers are all at work."""
    program: Program = await processes.start(sys.executable, str(PROGRAM), *words)
    for queue in queues:
        await program.line(f"start {queue}")
    return program


@pytest.mark.parametrize("form, number, times", [*TOLD, ("gather", INT, 1), ("gather", TERM, 2)])
async def test_all_listeners_of_a_process_hear_the_signal(
    processes: Processes, form: str, number: signal.Signals, times: int
) -> None:
    """The first has all finish what they began; at the second they give it up. The program ends in good order."""
    program = await started(processes, form)
    names = ["stopping"] if form == "alone" else [f"{queue}: stopping" for queue in QUEUES]
    program.signal(number)
    for name in names:
        await program.complains(name, HEARD)
    if times == 1:
        program.tell("go")
    else:
        program.signal(number)
    assert await program.ended() == 0, program.errors
    for queue in QUEUES:
        assert ("done" if times == 1 else "cancelled") + f" {queue}" in program.lines
    assert program.lines[-1] == "ended"
    assert "Traceback" not in program.errors


@pytest.mark.parametrize("number", [TERM, INT])
@pytest.mark.parametrize("form", ["aiohttp_server", "captured_server"])
async def test_a_server_keeps_its_signals(processes: Processes, form: str, number: signal.Signals) -> None:
    program = await started(processes, form, queues=QUEUES[:1])
    program.signal(number)
    await program.line("cleaned")
    code = await program.ended()
    assert HEARD not in program.errors
    assert f"done {QUEUES[0]}" in program.lines
    if form == "aiohttp_server":
        assert (code, program.lines[-1]) == (0, "ended")
    else:
        assert code == -number  # it raises at its end what it had heard, and nobody has it then


async def test_a_listener_told_to_takes_the_signals_of_a_server(processes: Processes) -> None:
    """`handle_signals=True` hears them as well."""
    program = await started(processes, "aiohttp_server", "told", queues=QUEUES[:1])
    program.signal(TERM)
    await program.complains(f"{QUEUES[0]}: stopping", HEARD)
    program.tell("go")
    assert await program.ended() in (0, -TERM), program.errors
    assert f"done {QUEUES[0]}" in program.lines


@pytest.mark.parametrize("number", [TERM, INT])
async def test_a_program_that_waits_for_no_listener_hears_its_signal_too(
    processes: Processes, number: signal.Signals
) -> None:
    """A server without handlers of its own ends by the signal, once its listener has finished what it began."""
    program = await started(processes, "plain_server", queues=QUEUES[:1])
    program.signal(number)
    await program.complains(HEARD)
    program.tell("go")
    code = await program.ended()
    assert f"done {QUEUES[0]}" in program.lines
    assert ("cleaned" in program.lines) == (number is INT)
    assert code == -number


@pytest.mark.parametrize("number", [TERM, INT])
@pytest.mark.parametrize("form", ["notebook", "untaken", "abandoned"])
async def test_signals_that_are_nobodys_business_here(processes: Processes, form: str, number: signal.Signals) -> None:
    """In a notebook, where told not to, and in a loop that runs no more, no listener takes or swallows them."""
    program = await started(processes, form, queues=QUEUES[: 1 if form == "abandoned" else 2])
    if form == "abandoned":
        await program.line("left")
    program.signal(number)
    code = await program.ended()
    assert HEARD not in program.errors
    if number is TERM:
        assert code == -TERM
    elif form == "untaken":
        assert code == -INT
    else:
        assert (code, program.lines[-1]) == (0, "ended")
        assert "interrupted" in program.lines


async def test_a_child_forked_off_a_worker_ends_by_its_signal(processes: Processes) -> None:
    """The signal of a child is its own: it ends by it, and its parent's listener goes on."""
    program = await started(processes, "forked", queues=QUEUES[:1])
    await program.line(f"child {-TERM}")
    assert HEARD not in program.errors
    program.signal(TERM)
    await program.complains(HEARD)
    program.tell("go")
    assert await program.ended() == 0, program.errors
