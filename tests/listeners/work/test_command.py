"""`--exec`: what a command is given, what its exit code says, and that nothing of it outlives its message."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import pathlib
import signal

import msgspec
import pytest

from bridge.contract.burial import Burial
from listeners.handler import Bury, Kind, Message, Replay, Retry, kind_of
from listeners.work.command import Command, CommandFailed
from tests.support.processes import PATIENCE_S

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def message(body: bytes = b"hello") -> Message:
    return Message("m1", "billing/orders", body, 3, NOW)


def test_it_is_an_async_handler() -> None:
    """A listener awaits it instead of giving it a thread."""
    assert kind_of(Command("true")) == Kind.ASYNC


async def test_it_gets_body_and_names(tmp_path: pathlib.Path) -> None:
    """The body is on standard input, byte for byte; id, queue and attempt are in the environment."""
    body = bytes(range(256)) * 256
    await Command(f'cat > {tmp_path}/body; echo "$QUEUEBELL_ID $QUEUEBELL_QUEUE $QUEUEBELL_ATTEMPT" > {tmp_path}/env')(
        message(body)
    )
    assert (tmp_path / "body").read_bytes() == body
    assert (tmp_path / "env").read_text() == "m1 billing/orders 3\n"


async def test_it_gets_the_facts_of_a_burial(tmp_path: pathlib.Path) -> None:
    """As JSON in the environment, where the message was buried, and not at all elsewhere."""
    buried = msgspec.structs.replace(message(), burial=Burial("billing/orders", "17", NOW, NOW, "no 'such' thing", 5))
    for one in (buried, message()):
        await Command(f'echo "$QUEUEBELL_BURIAL" >> {tmp_path}/facts')(one)
    facts, nothing = (tmp_path / "facts").read_text().splitlines()
    assert (json.loads(facts)["reason"], json.loads(facts)["attempts"]) == ("no 'such' thing", 5)
    assert nothing == ""


async def test_a_command_that_reads_nothing_is_fine() -> None:
    """A body larger than a pipe, left unread, is no failure."""
    await Command("exec true")(message(b"x" * 65_536))


async def test_what_a_command_leaves_running_does_not_hold_its_message(tmp_path: pathlib.Path) -> None:
    """A process in the background that keeps the body's pipe, and does not read it, keeps nobody waiting."""
    line = f"exec 3<&0; sleep 1000 <&3 3<&- & echo $! > {tmp_path}/pid; exit 75"
    try:
        with pytest.raises(Retry):
            async with asyncio.timeout(PATIENCE_S):
                await Command(line)(message(b"x" * 1_000_000))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("line", "outcome", "words"),
    [
        ("exit 75", Retry, r"Retry\(after=None\)"),
        ("exit 100", Bury, "100"),
        ("exit 101", Replay, r"Replay\("),
        ("exit 1", CommandFailed, "exit code 1"),
        ("exit 255", CommandFailed, "exit code 255"),
        ("no-such-command-here 2>/dev/null", CommandFailed, "exit code 127"),
        ("kill -TERM $$", CommandFailed, "SIGTERM"),
    ],
)
async def test_exit_codes_are_outcomes(line: str, outcome: type[Exception], words: str) -> None:
    """75 is Retry, 100 Bury, 101 Replay, and everything else but 0 a failed attempt."""
    with pytest.raises(outcome, match=words):
        await Command(line)(message())


async def test_cancelling_kills_the_whole_group(tmp_path: pathlib.Path) -> None:
    """A grandchild in the background is killed with the shell: the pipe it holds open ends."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    started, ended = asyncio.Event(), asyncio.Event()

    def readable() -> None:
        if os.read(reading, 100):
            started.set()
        elif started.is_set():
            ended.set()

    loop = asyncio.get_running_loop()
    task = asyncio.create_task(Command(f"exec 3> {fifo}; sleep 1000 & echo up >&3; wait")(message()), name="command")
    loop.add_reader(reading, readable)
    try:
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await ended.wait()
    finally:
        loop.remove_reader(reading)
        os.close(reading)
