"""What a worker's environment says of the socket to its scaler, and what a worker says to systemd."""

from __future__ import annotations

import asyncio
import datetime
import functools
import os
import pathlib
import queue
import signal
import socket
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queuebell.listeners import listener as listener_module
from queuebell.listeners.handler import Bury, Message, Replay, Retry
from queuebell.listeners.work import starter
from queuebell.listeners.work.command import Command, CommandFailed
from queuebell.listeners.work.invoke import NAME, HandlerThreads
from queuebell.listeners.work.lifecycle import SIGNALS, StopSignals
from queuebell.listeners.work.starter import (
    CHECK_S,
    NOTIFY,
    STARTED_FOR,
    STARTER_GONE,
    SYSTEMD,
    VARIABLE,
    ScalerLink,
    WorkerStatus,
    ticket,
)
from tests.listeners.rig import QUEUE, Store, listening
from tests.support.processes import PATIENCE_S
from tests.support.sim_loop import pass_time, simulated

# Private: `_socket`: the test closes it.


@pytest.mark.parametrize(("grace", "waits"), [(1.0, 1.0), (3600.0, 2.0)])
@simulated
async def test_a_worker_stops_before_its_scaler_kills_it(
    grace: float, waits: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long its own grace: killed, it would end no command that it runs, and give no message back."""
    link = ScalerLink()
    link.grace = 2.5
    monkeypatch.setattr(link, "join", lambda member: True)
    monkeypatch.setattr(listener_module, "WorkerStatus", functools.partial(WorkerStatus, link=link))
    began, ended = asyncio.Event(), list[float]()

    async def handle(_: Message) -> None:
        began.set()
        try:
            await pass_time(1e6)
        finally:
            ended.append(asyncio.get_running_loop().time())

    store = Store()
    await store.fill(b"long")
    async with listening(store, handle, grace=grace):
        await began.wait()
        stops = asyncio.get_running_loop().time()
    assert ended == [pytest.approx(stops + waits)]
    assert [(each.body, each.dequeue_count) for each in await store.peek(QUEUE, 8)] == [(b"long", 0)]
    assert ("a grace of 3600 s is cut to 2 s" in caplog.text) == (grace > waits)


@pytest.mark.parametrize("stands", [signal.SIG_DFL, signal.SIG_IGN])
@simulated
async def test_a_worker_says_how_it_stands_until_its_scaler_is_gone(
    stands: signal.Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready with the last of its listeners, busy with the first; then its group ends, as the scaler would end it."""
    sent, slept = queue.SimpleQueue[tuple[int, int]](), list[float]()
    monkeypatch.setattr(os, "killpg", lambda group, number: sent.put((group, number)))
    monkeypatch.setattr(starter, "time", types.SimpleNamespace(sleep=slept.append))
    scaler, ours = socket.socketpair()
    before = signal.signal(STARTER_GONE, stands)
    try:
        scaler.setblocking(False)
        os.set_inheritable(ours.fileno(), True)
        monkeypatch.setenv(VARIABLE, ticket(ours.fileno(), 2.5))
        link, held = ScalerLink(), [0, 0]
        one = WorkerStatus(lambda: held[0], link)
        assert not os.get_inheritable(ours.detach())
        assert (signal.getsignal(STARTER_GONE) is stands) == (stands is signal.SIG_IGN)
        other = WorkerStatus(lambda: held[1], link)
        one.ready()
        with pytest.raises(BlockingIOError):
            scaler.recv(64)
        other.ready()
        assert scaler.recv(64) == b"ready\nidle\n"
        held[:] = 1, 1
        one.took()
        other.took()
        one.took()
        assert scaler.recv(64) == b"busy\n"
        await pass_time(2.5 * CHECK_S)
        held[0] = 0
        await pass_time(CHECK_S)
        with pytest.raises(BlockingIOError):
            scaler.recv(64)
        held[1] = 0
        await pass_time(CHECK_S)
        assert scaler.recv(64) == b"idle\n"
        one.took()
        assert scaler.recv(64) == b"busy\n"
        one.close()
        await pass_time(2 * CHECK_S)
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: 1)
            assert not link.join(one)
        scaler.send(b"anything")
        assert sent.empty()
        scaler.close()
        assert [sent.get(timeout=PATIENCE_S) for _ in range(2)] == [(0, signal.SIGTERM), (0, signal.SIGKILL)]
        assert slept == [2.5]
        other.took()
        other.close()
        assert link._socket is not None
        link._socket.close()
    finally:
        signal.signal(STARTER_GONE, before)
        scaler.close()


def test_a_unit_without_the_socket_works_all_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once; systemd will end it for it is never ready."""
    monkeypatch.setenv(VARIABLE, SYSTEMD)
    monkeypatch.setenv(NOTIFY, str(tmp_path / "nobody"))
    WorkerStatus(lambda: 0, ScalerLink()).ready()
    assert "this worker cannot report to systemd" in caplog.text


@pytest.mark.parametrize(
    ("queues", "said"),
    [
        (["a/slip"], "a/slip"),
        ([f"a/{letter}" for letter in "lkjihgfedcba"], ", ".join(f"a/{letter}" for letter in "abcdefghij")),
        (["a/slip", "a/wanted"], None),
        ([], None),
    ],
)
def test_a_worker_of_another_queue_says_so(
    queues: list[str],
    said: str | None,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """To its scaler it looks like one that finds nothing to do: both names stand in its log, and so in the scaler's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        monkeypatch.setenv(VARIABLE, SYSTEMD)
        monkeypatch.setenv(NOTIFY, str(tmp_path / "notify"))
        monkeypatch.setenv(STARTED_FOR, "a/wanted")
        link = ScalerLink()
        WorkerStatus(lambda: 0, link, lambda: queues).ready()
        assert link._socket is not None
        link._socket.close()
    told = [record.getMessage() for record in caplog.records if "started for" in record.getMessage()]
    text = f"this worker was started for a/wanted but listens to {said}: it receives nothing from the first queue"
    assert told == ([text] if said else [])


TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Yield what a program's own handler hears; it has no signal yet, and all stand afterwards as before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(TERM, signal.SIG_DFL)
    signal.signal(INT, signal.default_int_handler)
    yield []
    for number, handler in before.items():
        signal.signal(number, handler)


def own(heard: list[int]) -> Callable[[int, object], None]:
    """Return a handler of the program's own."""
    return lambda number, frame: heard.append(number)


async def told(count: list[int]) -> list[int]:
    """Return what a member has been told, once the loop had a turn."""
    await asyncio.sleep(0)
    return count


@pytest.mark.parametrize("handled", [True, False])
def test_a_program_that_waits_for_no_listener_gets_the_signal_after_them(handled: bool, heard: list[int]) -> None:
    """Once the last of them has left; where they are waited for it has heard by their end."""
    mine = list[int]()

    async def listen() -> None:
        with StopSignals(mine.append, take=True):
            while not mine:
                await asyncio.sleep(0)

    async def story() -> None:
        signal.signal(INT, own(heard))
        listening = [asyncio.create_task(listen()) for _ in range(2)]
        await asyncio.sleep(0)
        if handled:
            gathered = asyncio.gather(*listening)
        signal.raise_signal(INT)
        while not all(task.done() for task in listening):
            await asyncio.sleep(0)
        if handled:
            await gathered
        await asyncio.sleep(0)

    asyncio.run(story())
    assert (mine, heard) == ([1, 1], [] if handled else [INT])


def test_a_loop_that_nobody_waits_for_takes_no_signal(heard: list[int]) -> None:
    """A notebook's runs for ever; told to, a listener has them there too."""
    loop = asyncio.new_event_loop()
    taken, members = list[bool](), list[Any]()

    def enter() -> None:
        for take in (None, True):
            members.append(StopSignals(int, take=take))
            members[-1].__enter__()
            taken.append(signal.getsignal(TERM) is not signal.SIG_DFL)
        loop.stop()

    loop.call_soon(enter)
    loop.run_forever()
    assert taken == [False, True]
    for member in members:
        member.__exit__(None, None, None)
    loop.close()
    assert signal.getsignal(TERM) is signal.SIG_DFL


@pytest.mark.parametrize("forked", [True, False])
def test_a_process_that_was_forked_off_and_a_loop_that_was_left_hear_nothing(
    forked: bool, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, members = list[int](), list[Any]()
    signal.signal(TERM, own(heard))

    async def story() -> None:
        members.append(StopSignals(mine.append, take=True))
        members[0].__enter__()
        if forked:
            monkeypatch.setattr(os, "getpid", lambda: 1)
            signal.raise_signal(TERM)
            await asyncio.sleep(0)

    asyncio.run(story())
    if not forked:
        signal.raise_signal(TERM)
    assert (mine, heard) == ([], [TERM])
    signal.raise_signal(TERM)
    assert heard == [TERM, TERM]
    loop = asyncio.new_event_loop()
    loop.call_soon(members[0].__exit__, None, None, None)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def ended(threads: HandlerThreads) -> None:
    """Close them, and wait until none is left."""
    threads.close()
    for thread in [each for each in threading.enumerate() if each.name.startswith(NAME)]:
        thread.join(PATIENCE_S)


def test_a_free_thread_is_used_again_and_a_failure_frees_it_too() -> None:
    """One call after the other needs one thread, whether they return, raise or were cancelled before they ran."""
    threads, names = HandlerThreads(4), set[str]()

    def fail() -> None:
        names.add(threading.current_thread().name)
        raise LookupError("no such order")

    for _ in range(3):
        assert threads.submit(lambda: names.add(threading.current_thread().name)).result(PATIENCE_S) is None
        with pytest.raises(LookupError, match="no such order"):
            threads.submit(fail).result(PATIENCE_S)
    assert names == {f"{NAME}_1"} and threads.running == 0
    go = threading.Event()
    held = [threads.submit(lambda: go.wait(PATIENCE_S)) for _ in range(4)]
    waiting = threads.submit(lambda: names.add("too late"))
    assert waiting.cancel()
    go.set()
    assert [each.result(PATIENCE_S) for each in held] == [True] * 4
    assert threads.submit(lambda: 7).result(PATIENCE_S) == 7
    ended(threads)
    assert threads.running == 0 and "too late" not in names


NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def message(body: bytes = b"hello") -> Message:
    return Message("m1", "billing/orders", body, 3, NOW)


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


async def test_a_command_need_not_read_its_input() -> None:
    """A body that no pipe holds, of which it reads nothing, a part or all: asyncio has nothing to complain of."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    lines = ["true", "exec 0<&-; sleep 0.002", "head -c 70000 >/dev/null", "cat >/dev/null"] * 8
    async with asyncio.TaskGroup() as calls:
        for line in lines:
            calls.create_task(Command(line)(message(b"x" * 300_000)), name=line)
    assert complaints == []


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
