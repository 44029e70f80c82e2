"""Workers that exist only while there is work: a real bridge, `queuebell scale`, and Python workers."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import shlex
import signal
import socket
import sys
from typing import Any

import pytest

from tests.support.command import perform
from tests.support.processes import PATIENCE_S, Processes, Program, Service, environment, lives, until
from tests.support.systemctl import Systemctl

QUEUE = "billing/orders"
WORKER = """
import os, pathlib, sys, time
from queuebell import Listener, run

def handle(message):
    with open("handled", "a") as file:
        print(message.text(), message.attempt, os.getpid(), file=file, flush=True)
    while message.text() == "stay" and message.attempt == 1:
        time.sleep(0.05)

run(Listener(sys.argv[1], "billing/orders", handle, visibility_timeout=2, grace=1, concurrency=1))
"""


class Scaled:
    """A scaler of one queue, and what its workers wrote."""

    def __init__(self, bridge: Service, scaler: Program, folder: pathlib.Path) -> None:
        self.bridge, self.scaler, self._folder = bridge, scaler, folder

    @property
    def handled(self) -> list[list[str]]:
        """Text, attempt and process of each start of a handler."""
        file = self._folder / "handled"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    async def until_handled(self, *texts: str) -> None:
        """Wait until handlers have begun on these."""
        await until(lambda: {line[0] for line in self.handled} >= set(texts), f"{texts} are handled", 60.0)

    async def until_gone(self, pid: int) -> None:
        """Wait until a process has ended."""
        await until(lambda: not lives(pid), f"process {pid} has ended", 30.0)

    async def explains(self, *words: str) -> None:
        """Wait until `queuebell explain` says these: the next heartbeat tells the bridge."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                told = await asyncio.to_thread(perform, "explain", QUEUE, "--bridge", self.bridge.url)
                if all(word in told.stdout.decode() for word in words):
                    return

    async def row(self) -> dict[str, Any]:
        """Return what the bridge says of the scaler."""
        _, answer = await self.bridge.ask("/v1/listeners")
        (row,) = [row for row in answer["listeners"] if row["kind"] == "scaler"]
        return dict(row["queues"][0]["processes"] or {}) | {"sessions": len(answer["listeners"])}


async def scale(processes: Processes, *options: str, command: tuple[str, ...] = ()) -> Scaled:
    """Start a bridge and a scaler, and wait until the bridge knows it."""
    bridge = await processes.serve()
    (processes.folder / "worker.py").write_text(WORKER)
    worker = command or (sys.executable, "worker.py", bridge.url)
    line = [sys.executable, "-m", "queuebell", "scale", bridge.url, QUEUE, "--max", "3", *options, "--", *worker]
    scaler = await processes.start(*line, name="scaler")
    await bridge.has_listeners(1)
    return Scaled(bridge, scaler, processes.folder)


async def test_from_zero_and_back(processes: Processes) -> None:
    """A put starts a worker, which handles it; idle, it ends, and a queue without workers is not received from."""
    scaled = await scale(processes, "--idle", "1")
    await scaled.bridge.put(QUEUE, "first")
    await scaled.until_handled("first")
    pid = int(scaled.handled[0][2])
    await scaled.scaler.complains(f"worker {pid} ended", "(idle for 1 s): exit code 0")
    await scaled.until_gone(pid)
    await scaled.bridge.is_drained(QUEUE)
    receives = await scaled.bridge.receives(QUEUE)
    await scaled.bridge.put(QUEUE, "second")
    await scaled.until_handled("second")
    assert int(scaled.handled[-1][2]) != pid
    assert [line[:2] for line in scaled.handled] == [["first", "1"], ["second", "1"]]
    assert await scaled.bridge.receives(QUEUE) > receives
    assert await scaled.scaler.stop() == 0
    await scaled.until_gone(int(scaled.handled[-1][2]))


STUBBORN = "import asyncio, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)" + WORKER.replace(
    "run(Listener(", "asyncio.run(Listener("
).replace("concurrency=1))", "concurrency=1, handle_signals=False).run())")


@pytest.mark.parametrize("shell", ["", "{}; true"], ids=["alone", "grandchild"])
async def test_a_worker_that_ignores_sigterm_does_not_outlive_a_killed_scaler(processes: Processes, shell: str) -> None:
    """It takes work while it lives: its whole group is killed after the grace, a shell's grandchild too."""
    (processes.folder / "stubborn.py").write_text(STUBBORN)
    bridge = await processes.serve()
    words = [sys.executable, "stubborn.py", bridge.url]
    command = ["/bin/sh", "-c", shell.format(" ".join(words))] if shell else words
    line = [sys.executable, "-m", "queuebell", "scale", bridge.url, QUEUE, "--max", "1", "--grace", "1"]
    scaler = await processes.start(*line, "--", *command, name="scaler")
    scaled = Scaled(bridge, scaler, processes.folder)
    await bridge.put(QUEUE, "first")
    await scaled.until_handled("first")
    scaler.signal(signal.SIGKILL)
    await scaler.ended()
    await scaled.until_gone(int(scaled.handled[0][2]))


async def test_a_worker_behind_a_shell_stops_in_order(processes: Processes) -> None:
    """The shell ends at the SIGTERM; the worker that it leaves finishes its message within the grace."""
    (processes.folder / "slow.py").write_text(
        WORKER.replace('while message.text() == "stay"', 'while not os.path.exists("go")')
        .replace(" and message.attempt == 1:", ":")
        .replace("time.sleep(0.05)", "time.sleep(0.05)\n    pathlib.Path('done').touch()")
        .replace("grace=1", "grace=20")
    )
    bridge = await processes.serve()
    worker = f"{sys.executable} slow.py {bridge.url}; true"
    line = [sys.executable, "-m", "queuebell", "scale", bridge.url, QUEUE, "--max", "1", "--", "/bin/sh", "-c", worker]
    scaler = await processes.start(*line, name="scaler")
    scaled = Scaled(bridge, scaler, processes.folder)
    await bridge.put(QUEUE, "first")
    await scaled.until_handled("first")
    shell = int(re.findall(r"orders\[(\d+)\]|1 worker starts .*: (\d+): ", scaler.errors)[0][1])
    scaler.signal(signal.SIGTERM)
    await scaled.until_gone(shell)
    (processes.folder / "go").touch()
    await scaler.ended()
    assert (processes.folder / "done").exists()
    await bridge.is_drained(QUEUE)


@pytest.mark.parametrize("shell", ["exec {}", "{}; true"], ids=["alone", "grandchild"])
async def test_not_even_one_that_hangs_before_its_listener_runs(processes: Processes, shell: str) -> None:
    """Nobody waits there for the end of that socket: the kernel ends it, and the guard what a shell has left."""
    program = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
    command = ("/bin/sh", "-c", shell.format(shlex.join([sys.executable, "-c", program])))
    scaled = await scale(processes, "--min", "1", "--grace", "1", command=command)
    (pid,) = await until(lambda: re.findall(r"pid (\d+)", scaled.scaler.errors), "it runs")
    assert lives(int(pid))
    scaled.scaler.signal(signal.SIGKILL)
    await scaled.scaler.ended()
    await scaled.until_gone(int(pid))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("./no-such-program",), ("no worker could be started: there is no program ./no-such-program here",)),
        ((sys.executable, "-c", "import sys; sys.exit('no database')"), ("exit code 1: no database",)),
        (("/bin/sh", "-c", "sleep 600 &"), ("a worker must stay in the foreground",)),
        ((sys.executable, "-c", "import time; time.sleep(600)"), ("(not ready within 1 s)", "ended by SIGTERM")),
    ],
    ids=["not there", "ends at once", "forks away", "says no hello"],
)
async def test_a_command_that_is_no_worker(
    processes: Processes, command: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """S47: A line that says what is wrong, a back-off, and the message waits."""
    scaled = await scale(processes, "--start-timeout", "1", command=command)
    await scaled.bridge.put(QUEUE, "patient")
    await scaled.scaler.complains(*words)
    await scaled.scaler.complains("next worker start in")
    state = await scaled.bridge.queue(QUEUE)
    assert state["depth"] == {"visible": 1, "invisible": 0}
    if "no database" in words[0]:
        await scaled.explains("1 worker wanted, 0 ready", "the last worker failed: exit code 1: no database")
    assert await scaled.scaler.stop() == 0


async def test_a_file_of_queues_is_read_anew_at_sighup(processes: Processes) -> None:
    """A larger minimum counts at once; one that cannot be read changes nothing."""
    bridge = await processes.serve()
    (processes.folder / "worker.py").write_text(WORKER)
    file = processes.folder / "scale.toml"
    table = (
        f'[[scale]]\nstore = "{bridge.url}"\nqueue = "{QUEUE}"\ncommand = "{sys.executable} worker.py {bridge.url}"\n'
    )
    file.write_text(table)
    scaler = await processes.start(sys.executable, "-m", "queuebell", "scale", "--config", str(file), name="scaler")
    await bridge.has_listeners(1)
    file.write_text(table + "min = 9\n")
    scaler.signal(signal.SIGHUP)
    await scaler.complains(f"SIGHUP: nothing was changed: {file}: [[scale]] 1: min is from 0 to max, which is 8")
    file.write_text(table + "min = 1\n")
    scaler.signal(signal.SIGHUP)
    await scaler.complains("SIGHUP: 1 queue is scaled now")
    await bridge.has_listeners(2)
    assert await scaler.stop() == 0


async def test_a_command_hears_a_new_number_after_the_0_of_the_one_before(processes: Processes) -> None:
    """At SIGHUP, where another scaler takes over: two that speak at once would leave the number to chance."""
    bridge = await processes.serve()
    told, file = processes.folder / "told", processes.folder / "scale.toml"
    command = ["/bin/sh", "-c", f"echo {{}} >> {told}"]
    table = f'[[scale]]\nstore = "{bridge.url}"\nqueue = "{QUEUE}"\nactuator = "exec"\ncommand = {command}\nmin = 2\n'
    file.write_text(table)
    scaler = await processes.start(sys.executable, "-m", "queuebell", "scale", "--config", str(file), name="scaler")
    await until(lambda: told.exists() and told.read_text() == "2\n", "it is told 2")
    file.write_text(f'{table}name = "another"\nmax = 3\n')
    scaler.signal(signal.SIGHUP)
    await until(lambda: told.read_text().split() == ["2", "0", "2"], "it is told 0, and then 2")
    await scaler.complains("SIGHUP: another scaler takes over; its workers end in order")
    assert await scaler.stop() == 0
    assert told.read_text().split() == ["2", "0", "2", "0"]


async def test_a_queue_that_the_file_names_no_more_ends_in_order(processes: Processes) -> None:
    """At SIGHUP, which is no signal to stop and is not told as one; when the process is to end at once, it does too."""
    bridge = await processes.serve()
    file, pid = processes.folder / "scale.toml", processes.folder / "pid"
    command = ["/bin/sh", "-c", f"trap '' TERM; echo $$ > {pid}; while :; do sleep 1; done"]
    table = f'[[scale]]\nstore = "{bridge.url}"\nqueue = "%s"\ncommand = %s\nmin = %d\ngrace = 600\n'
    file.write_text(table % (QUEUE, command, 1))
    scaler = await processes.start(sys.executable, "-m", "queuebell", "scale", "--config", str(file), name="scaler")
    await until(lambda: pid.exists() and pid.read_text() != "", "a worker runs")
    file.write_text(table % ("billing/others", command, 0))
    scaler.signal(signal.SIGHUP)
    await scaler.complains("SIGHUP: no longer in the file; its workers end in order", "SIGHUP: 1 queue is scaled now")
    assert "a second signal" not in scaler.errors
    scaler.signal(signal.SIGTERM)
    await scaler.complains("a second signal kills them")
    scaler.signal(signal.SIGTERM)
    await scaler.ended()
    assert not lives(int(pid.read_text()))


async def test_units_outlive_a_killed_scaler_and_the_next_one_goes_on_with_them(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is started twice, and one more is started for more work. What answers for systemctl is a stand-in."""
    systemctl = Systemctl(processes.folder / "bin")
    monkeypatch.setenv("PATH", f"{systemctl.folder}:{os.environ['PATH']}")
    bridge = await processes.serve()
    line = (sys.executable, "-m", "queuebell", "scale", bridge.url, QUEUE, "--max", "3", "--per-process", "1")
    line = (*line, "--actuator", "systemd", "--unit", "queuebell-worker@")
    scaler = await processes.start(*line, name="scaler")
    await bridge.has_listeners(1)
    await bridge.put(QUEUE, "a", "b")
    await until(lambda: systemctl.live == [1, 2], "two units are started")
    scaler.signal(signal.SIGKILL)
    await scaler.ended()
    assert systemctl.live == [1, 2]
    again = await processes.start(*line, name="again")
    await again.complains("2 workers run already: @1, @2: queuebell-worker@.service")
    await bridge.put(QUEUE, "c")
    await until(lambda: systemctl.live == [1, 2, 3], "one more is started")
    assert len(systemctl.calls("start")) == 2
    assert await again.stop() == 0
    assert systemctl.live == [1, 2, 3]
    systemctl.check()


async def test_a_worker_of_systemd_tells_it_of_its_session_and_of_its_work(processes: Processes) -> None:
    """Ready is said with the session, and not before; then busy, and idle again."""
    bridge = await processes.serve()
    (processes.folder / "worker.py").write_text(WORKER)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(processes.folder / "notify"))
        systemd.setblocking(False)
        said: list[bytes] = []

        def heard(*words: bytes) -> bool:
            while True:
                try:
                    said.append(systemd.recv(64).strip())
                except BlockingIOError:
                    return said == list(words)

        told = environment(NOTIFY_SOCKET=str(processes.folder / "notify"), QUEUEBELL_STARTER="systemd")
        worker = await processes.start(sys.executable, "worker.py", bridge.url, name="worker", env=told)
        await until(lambda: heard(b"READY=1", b"STATUS=idle 0"), "it is ready")
        await bridge.has_listeners(1)
        await bridge.put(QUEUE, "first")
        await until(lambda: heard(b"READY=1", b"STATUS=idle 0", b"STATUS=busy 1", b"STATUS=idle 1"), "it worked")
        assert await worker.stop() == 0
