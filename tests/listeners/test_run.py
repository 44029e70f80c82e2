"""A program that calls `run` says what it waits for, in the log that it has, or in one of ours where it has none."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import msgspec
import pytest

from queuebell.bridge import BlockingStore, Bridge
from queuebell.bridge.queues.base import BODY_BYTES_MAX, NewMessage
from queuebell.listeners import PULL_ONLY, Bury, Done, Failure, Listener, Message, Retry, run
from queuebell.listeners.scaling.actuators.output import WAITING_BYTES, Output
from queuebell.listeners.testing import run_once
from queuebell.testing import Rehearsal
from tests.conformance.headers import LARGEST
from tests.listeners.rig import POISON, QUEUE
from tests.support.processes import ROOT, environment

# Private: `_size`: released memory, visible nowhere else.

PROGRAM = """
import asyncio, logging, sys
from queuebell.listeners import PULL_ONLY, Listener, run

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


class Handler:
    """Does with each message what is said, and remembers body and headers."""

    def __init__(self, *outcomes: Exception) -> None:
        self.outcomes = list(outcomes)
        self.seen: list[tuple[bytes, dict[str, str]]] = []

    async def __call__(self, message: Message) -> None:
        self.seen.append((message.body, dict(message.headers)))
        if self.outcomes:
            raise self.outcomes.pop(0)


@pytest.mark.parametrize("headers", LARGEST, ids=["line", "many", "unicode"])
def test_the_largest_headers_and_body_are_buried_whole(headers: dict[str, str]) -> None:
    """Where the facts do not fit beside the body the headers are there all the same: they count by themselves."""
    with Rehearsal() as rehearsal:
        rehearsal.listen(QUEUE, Handler(Bury("no")))
        rehearsal.put(QUEUE, NewMessage(b"\xff" * BODY_BYTES_MAX, headers=headers))
        rehearsal.run_until_idle()
        (message,) = rehearsal.waiting(POISON)
        assert (message.headers, rehearsal.buried(QUEUE) != []) == (headers, message.body[:1] != b"\xff")


LINE = "x" * 1023 + "\n"
LINES = 2 * WAITING_BYTES // len(LINE)


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """A pipe; who closes one of its ends puts -1 there."""
    ends = [*os.pipe()]
    yield ends
    for end in ends:
        if end >= 0:
            os.close(end)


def read(pipe: list[int], until: str) -> str:
    """Read until something was said."""
    said = b""
    while until.encode() not in said:
        said += os.read(pipe[0], 65_536)
    return said.decode()


def test_our_own_lines_are_bounded_too(pipe: list[int]) -> None:
    """A log that nobody reads takes no memory without end."""
    output = Output(pipe[1])
    for _ in range(4 * LINES):
        output.write(LINE)
    assert len(read(pipe, "nobody read them in time")) < 3 * WAITING_BYTES


def test_a_reader_who_is_gone_keeps_nobody(pipe: list[int]) -> None:
    """What is written then is lost, and the end of the process waits for none of it."""
    output = Output(pipe[1])
    os.close(pipe[0])
    pipe[0] = -1
    output.pass_on("lost\n")
    output.drain()
    output.flush()
    assert output._size == 0


class Order(msgspec.Struct):
    number: int


async def test_plain_batch_and_typed_handlers_run_too() -> None:

    def plain(message: Message) -> None:
        assert message.value == Order(7)

    async def many(messages: list[Message]) -> list[Retry]:
        return [Retry(1) for _ in messages]

    assert await run_once(plain, b'{"number": 7}', payload=Order) == Done()
    assert isinstance(await run_once(plain, b"{", payload=Order), Bury)
    assert isinstance(await run_once(many, b"x"), Retry)


async def test_a_handler_with_checkpoints_runs_without_a_ledger() -> None:
    """It finds the progress that the test gives, and its checkpoints are checked and forgotten."""

    async def resume(message: Message) -> None:
        assert message.progress == b"3"
        await message.checkpoint("4")

    def too_large(message: Message) -> None:
        message.checkpoint_from_thread(b"x" * 32_769)

    assert await run_once(resume, b"x", progress=b"3") == Done()
    refused = await run_once(too_large, b"x", max_attempts=1)
    assert isinstance(refused, Bury)
    assert "32768" in refused.reason


async def test_a_rule_for_classes_of_failure_can_be_tried() -> None:
    """What it calls permanent is buried at the first attempt."""

    async def handle(message: Message) -> None:
        raise ValueError("no such customer")

    permanent = await run_once(handle, b"x", failures=lambda error: Failure.PERMANENT)
    assert isinstance(permanent, Bury)


PROGRAM_TYPES = """
import msgspec
from queuebell import Listener, Message, NewMessage, open_store

class Order(msgspec.Struct):
    cents: int

async def charge(message: Message[Order]) -> None:
    reveal_type(message.value)

def insert(messages: list[Message[Order]]) -> None:
    reveal_type(messages[0].value)

async def ship(message: Message) -> None:
    reveal_type(message.value)

async def main(words: list[str], mixed: list[str | bytes | NewMessage]) -> None:
    reveal_type(Listener("http://127.0.0.1:8470", "billing/orders", charge, payload=Order))
    reveal_type(Listener("http://127.0.0.1:8470", "billing/orders", insert, payload=Order))
    reveal_type(Listener("http://127.0.0.1:8470", "billing/orders", ship))
    async with open_store("http://127.0.0.1:8470") as store:
        await store.put("billing/orders", words)
        await store.put("billing/orders", mixed)
        await store.put("billing/orders", [NewMessage("text", ttl_s=60)])
"""


@pytest.mark.rest
def test_the_value_of_a_message_is_of_the_payload_type(tmp_path: pathlib.Path) -> None:
    """In single and batch handlers, under --strict; a bare `Message` holds anything, and a put takes what it says."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM_TYPES)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", program.name],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    revealed = [line.split('"')[1] for line in checked.stdout.splitlines() if "Revealed type" in line]
    assert revealed == [
        *("program.Order", "program.Order", "Any"),
        *(
            "queuebell.listeners.listener.Listener[program.Order]",
            "queuebell.listeners.listener.Listener[program.Order]",
        ),
        "queuebell.listeners.listener.Listener[Any]",
    ]
