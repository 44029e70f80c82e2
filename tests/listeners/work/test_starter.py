"""What a worker's environment says of the socket to its scaler, and what a worker says to systemd."""

from __future__ import annotations

import os
import pathlib
import socket

import pytest

from listeners.work import starter
from listeners.work.starter import NOTIFY, STARTED_FOR, SYSTEMD, VARIABLE, Link, Starter, inherited, notified, ticket
from tests.support.processes import PATIENCE_S


def test_the_socket_is_found_as_long_as_it_is_that_one() -> None:
    """A descriptor that was closed, or is another file by now, is none."""
    ours, theirs = socket.socketpair()
    other, another = socket.socketpair()
    with ours, theirs, other, another:
        fd = theirs.fileno()
        told = {VARIABLE: ticket(fd)}
        assert inherited(told) == fd
        os.dup2(other.fileno(), fd)
        assert inherited(told) is None
    assert inherited(told) is None


@pytest.mark.parametrize("text", ["", "3", "x:y", "3:", ":5", "-1:5", "99999:1"])
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


@pytest.mark.parametrize(("queues", "said"), [(["a/slip"], True), (["a/slip", "a/wanted"], False), ([], False)])
def test_a_worker_of_another_queue_says_so(
    queues: list[str],
    said: bool,
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
    text = "this worker was started for a/wanted and listens to a/slip: nobody takes from there"
    assert told == ([text] if said else [])
