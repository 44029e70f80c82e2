"""`queuebell serve` as a process: readiness, ownership, damage, signals."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import threading

import pytest

from tests.support.command import perform, serving


def test_it_says_where_it_is_and_stops_in_order(tmp_path: pathlib.Path) -> None:
    """One line on standard output, logs on standard error, exit code 0 after SIGTERM, and the data is kept."""
    with serving(tmp_path / "data") as bridge:
        assert bridge.client("queue", "put", "a/q", "kept") == "a/q: put 1\n"
        code, log = bridge.stop()
        assert code == 0
        assert "ready" in log
        assert "stopped" in log
    with serving(tmp_path / "data", "--log-format", "json") as bridge:
        assert bridge.client("queue", "get", "a/q") == "kept\n"
        bridge.process.send_signal(signal.SIGINT)
        out, err = bridge.process.communicate(timeout=200)
        assert (bridge.process.returncode, out) == (0, b"")
        assert [json.loads(line)["message"] for line in err.splitlines()][-1] == "stopped"


def test_environment_and_file_are_settings_too(tmp_path: pathlib.Path) -> None:
    """The file's level is hidden by the environment's, and the option's listen by nothing."""
    file = tmp_path / "queuebell.toml"
    file.write_text('listen = "127.0.0.1:1"\nlog_level = "error"\nlog_format = "json"\n')
    env = {"QUEUEBELL_CONFIG": str(file), "QUEUEBELL_LOG_LEVEL": "info"}
    with serving(tmp_path / "data", env=env) as bridge:
        _, log = bridge.stop()
    assert json.loads(log.splitlines()[0])["message"] == "ready"


def test_a_second_bridge_on_the_same_data_is_refused(tmp_path: pathlib.Path) -> None:
    """Exit code 73 and one line; the first goes on."""
    with serving(tmp_path / "data") as bridge:
        done = perform("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), code=73)
        assert len(done.stderr.decode().strip().splitlines()) == 1
        assert "owned by" in done.stderr.decode()
        assert bridge.client("queue", "put", "a/q", "x") == "a/q: put 1\n"


def test_a_taken_port_is_one_clear_line(tmp_path: pathlib.Path) -> None:
    """Exit code 1, the address named, and the data file is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = perform("serve", "--listen", address, "--data", str(tmp_path / "data"), code=1)
    assert f"cannot listen on {address}" in done.stderr.decode().strip().splitlines()[-1]
    assert "Traceback" not in done.stderr.decode()
    with serving(tmp_path / "data"):
        pass


@pytest.mark.parametrize("content", [b"this is no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: pathlib.Path, content: bytes) -> None:
    """Exit code 1 and one line; nothing is written into what is not ours."""
    (tmp_path / "queue.db").write_bytes(content)
    done = perform("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), code=1)
    assert "Traceback" not in done.stderr.decode()
    assert "queue.db" in done.stderr.decode()
    assert (tmp_path / "queue.db").read_bytes() == content


def test_data_that_cannot_be_a_directory_is_refused(tmp_path: pathlib.Path) -> None:
    """A path that leads through a file is one clear line."""
    (tmp_path / "file").write_text("x")
    done = perform("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "file" / "data"), code=None)
    assert done.returncode in {1, 78}
    assert "Traceback" not in done.stderr.decode()
    assert len(done.stderr.decode().strip().splitlines()) == 1


def test_a_second_signal_ends_it_at_once(tmp_path: pathlib.Path) -> None:
    """While the first stop waits for a request under way, a second signal ends the process."""
    with serving(tmp_path / "data") as bridge:
        assert bridge.process.stderr is not None
        stopping = threading.Event()

        def watch() -> None:
            assert bridge.process.stderr is not None
            for line in bridge.process.stderr:
                if b"stopping; a second signal" in line:
                    stopping.set()
                    return

        thread = threading.Thread(target=watch)
        thread.start()
        port = int(bridge.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            # A request whose body is still to come keeps the orderly stop waiting.
            slow.sendall(b"POST /v1/triggers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            slow.sendall(b"Content-Length: 100\r\n\r\n{")
            assert bridge.client("queue", "put", "a/q", "x") == "a/q: put 1\n"
            os.kill(bridge.pid, signal.SIGSTOP)
            os.kill(bridge.pid, signal.SIGTERM)
            os.kill(bridge.pid, signal.SIGCONT)
            assert stopping.wait(200)
            os.kill(bridge.pid, signal.SIGINT)
            assert bridge.process.wait(200) == 128 + signal.SIGINT
        thread.join()
    with serving(tmp_path / "data") as bridge:
        assert bridge.client("queue", "get", "a/q") == "x\n"


def test_acknowledged_messages_survive_kill_9(tmp_path: pathlib.Path) -> None:
    """What the command said was put is there after the bridge was killed."""
    with serving(tmp_path / "data") as bridge:
        bridge.client("queue", "put", "a/q", *[f"m{n}" for n in range(50)])
        bridge.process.kill()
        bridge.process.wait(200)
    with serving(tmp_path / "data") as bridge:
        assert bridge.client("queue", "depth", "a/q") == "a/q: 50 visible, 0 invisible\n"
