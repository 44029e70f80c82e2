"""What a worker's environment says of the socket to its scaler, and what a worker says to systemd."""

from __future__ import annotations

import asyncio
import functools
import os
import pathlib
import queue
import signal
import socket
import types

import pytest

import listeners.listener
from listeners.handler import Message
from listeners.work import starter
from listeners.work.starter import (
    LOOK_S,
    NOTIFY,
    STARTED_FOR,
    STARTER_GONE,
    SYSTEMD,
    VARIABLE,
    Link,
    Starter,
    inherited,
    notified,
    ticket,
)
from tests.listeners.rig import QUEUE, Store, listening
from tests.support.processes import PATIENCE_S
from tests.support.sim_loop import pass_time, simulated


def test_the_socket_is_found_as_long_as_it_is_that_one() -> None:
    """A descriptor that was closed, or is another file by now, is none."""
    ours, theirs = socket.socketpair()
    other, another = socket.socketpair()
    with ours, theirs, other, another:
        fd = theirs.fileno()
        told = {VARIABLE: ticket(fd, 2.5)}
        assert inherited(told) == (fd, 2.5)
        assert inherited({VARIABLE: ticket(fd, -1)}) == (fd, 0.0)
        os.dup2(other.fileno(), fd)
        assert inherited(told) is None
    assert inherited(told) is None


@pytest.mark.parametrize("text", ["", "3", "x:y", "3:", ":5", "-1:5:1", "99999:1:1", "0:1:x", "9" * 30 + ":1:1"])
def test_anything_else_is_none(text: str) -> None:
    """And nobody is bothered with it."""
    assert inherited({VARIABLE: text}) is None
    assert inherited({}) is None


def test_systemd_is_told_only_by_who_was_started_for_a_scaler() -> None:
    """Another service of that kind says for itself when it is ready."""
    path = {NOTIFY: "/run/systemd/notify"}
    assert notified({**path, VARIABLE: SYSTEMD}) == "/run/systemd/notify"
    assert notified({NOTIFY: "@abstract", VARIABLE: SYSTEMD}) == "\0abstract"
    for told in (path, {VARIABLE: SYSTEMD}, {NOTIFY: "", VARIABLE: SYSTEMD}, {NOTIFY: "vsock:2:1", VARIABLE: SYSTEMD}):
        assert notified(told) is None
    assert inherited({VARIABLE: SYSTEMD}) is None


@pytest.mark.parametrize(("grace", "waits"), [(1.0, 1.0), (3600.0, 2.0)])
@simulated
async def test_a_worker_stops_before_its_scaler_kills_it(
    grace: float, waits: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long its own grace: killed, it would end no command that it runs, and give no message back."""
    link = Link()
    link.grace = 2.5
    monkeypatch.setattr(link, "join", lambda member: True)
    monkeypatch.setattr(listeners.listener, "Starter", functools.partial(Starter, link=link))
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
        link, held = Link(), [0, 0]
        one = Starter(lambda: held[0], link)
        assert not os.get_inheritable(ours.detach())
        assert (signal.getsignal(STARTER_GONE) is stands) == (stands is signal.SIG_IGN)
        other = Starter(lambda: held[1], link)
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
        await pass_time(2.5 * LOOK_S)
        held[0] = 0
        await pass_time(LOOK_S)
        with pytest.raises(BlockingIOError):
            scaler.recv(64)
        held[1] = 0
        await pass_time(LOOK_S)
        assert scaler.recv(64) == b"idle\n"
        one.took()
        assert scaler.recv(64) == b"busy\n"
        one.close()
        await pass_time(2 * LOOK_S)
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


async def test_a_unit_is_ready_with_its_session_and_says_how_often_it_was_busy(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By READY=1 and STATUS= of sd_notify, one datagram each; where nobody reads any more it works on."""
    link = Link()
    monkeypatch.setattr(starter, "LOOK_S", 0.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE_S)
        monkeypatch.setenv(VARIABLE, SYSTEMD)
        monkeypatch.setenv(NOTIFY, str(tmp_path / "notify"))
        held = 0
        worker = Starter(lambda: held, link)
        worker.ready()
        assert [systemd.recv(64), systemd.recv(64)] == [b"READY=1\n", b"STATUS=idle 0\n"]
        for spell in (1, 2):
            worker.took()
            assert systemd.recv(64) == b"STATUS=busy %d\n" % spell
            worker._look()
            assert systemd.recv(64) == b"STATUS=idle %d\n" % spell
        (tmp_path / "notify").rename(tmp_path / "away")
        worker.close()
    assert link._socket is not None
    link._socket.close()


def test_a_unit_without_the_socket_works_all_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once; systemd will end it for it is never ready."""
    monkeypatch.setenv(VARIABLE, SYSTEMD)
    monkeypatch.setenv(NOTIFY, str(tmp_path / "nobody"))
    Starter(lambda: 0, Link()).ready()
    assert "systemd cannot be told" in caplog.text


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
        link = Link()
        Starter(lambda: 0, link, lambda: queues).ready()
        assert link._socket is not None
        link._socket.close()
    told = [record.getMessage() for record in caplog.records if "started for" in record.getMessage()]
    text = f"this worker was started for a/wanted and listens to {said}: nobody takes from there"
    assert told == ([text] if said else [])
