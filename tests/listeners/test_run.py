"""A program that calls `run` says what it waits for, in the log that it has, or in one of ours where it has none."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from bridge import Bridge
from listeners import Listener, Message, run
from tests.support.processes import ROOT, environment

PROGRAM = """
import asyncio, logging, sys
from listeners import PULL_ONLY, Listener, run

if "own" in sys.argv:
    logging.basicConfig(level=logging.INFO, format="own: %(message)s")
if "quiet" in sys.argv:
    logging.basicConfig(level=logging.WARNING)

class Worker(Listener):
    async def started(self):
        await super().started()
        await self.stop()

    async def run(self):
        ending = asyncio.create_task(self.started())
        await super().run()
        await ending

run(Worker("memory:x", "billing/orders", print, bridge=PULL_ONLY, name="w"))
"""


@pytest.mark.parametrize(
    ("form", "begins", "lines"),
    [("none", "20", 1), ("own", "own: w: listens to billing/orders; store ", 1), ("quiet", "", 0)],
)
def test_a_worker_says_what_it_listens_to(form: str, begins: str, lines: int) -> None:
    """On standard error, once; a program that has chosen how it logs is left as it is."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, form],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert ran.stdout == ""
    assert ran.stderr.startswith(begins)
    assert ran.stderr.count("w: listens to billing/orders; store memory:x") == lines


async def test_run_within_a_loop_says_what_to_call_there() -> None:
    """And leaves no coroutine behind that nobody awaits; the listener can still be run."""

    async def handle(_: Message) -> None:
        """Never called."""

    async with Bridge() as bridge:
        listener = Listener(bridge, "billing/orders", handle)
        with pytest.raises(RuntimeError, match=r"await listener\.run\(\)"):
            run(listener)
        running = asyncio.create_task(listener.run(), name="listener")
        await listener.started()
        await listener.stop()
        await running
