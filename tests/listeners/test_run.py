"""A program that calls `run` says what it waits for, in the log that it has, or in one of ours where it has none."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from bridge import BlockingStore, Bridge, ConfigurationError
from listeners import PULL_ONLY, Listener, Message, run
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


def test_run_shows_metrics_of_all_its_listeners_at_one_port(caplog: pytest.LogCaptureFixture) -> None:
    """While they run, where the log says; each queue stands there, and nothing does after the end."""
    queues, seen = ("billing/orders", "billing/refunds"), list[str]()

    def handle(message: Message) -> None:
        url = re.findall(r"metrics are at (\S+)", caplog.text)[-1]
        with urllib.request.urlopen(url, timeout=300) as answer:
            seen.append(answer.read().decode())
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with BlockingStore("memory:run-metrics") as store, caplog.at_level("INFO", "queuebell"):
        for queue in queues:
            store.put(queue, ["one"])
        workers = [Listener("memory:run-metrics", queue, handle, bridge=PULL_ONLY) for queue in queues]
        run(*workers, metrics="127.0.0.1:0")
    assert len(seen) == 2
    for queue in queues:
        # Which handler began first is chance, and each sees its own call run.
        running = f'queuebell_listener_in_flight{{handler="{__name__}:'
        assert any(running in text and f'queue="{queue}"}} 1.0' in text for text in seen)
    url = re.findall(r"metrics are at (\S+)", caplog.text)[-1]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=300)


def test_run_starts_nothing_where_its_port_is_taken() -> None:
    """The error says so, and no listener has listened."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = Listener("memory:run-taken", "billing/orders", print, bridge=PULL_ONLY)
        with pytest.raises(ConfigurationError, match="metrics: cannot listen on"):
            run(listener, metrics=f"127.0.0.1:{taken.getsockname()[1]}")
        assert not listener.state().queues
