"""What every actuator of a scaler promises, asked of each kind; and what the kind `process` promises beside."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from bridge.contract.errors import ConfigurationError
from listeners.scaling.actuators.base import Actuator, StartFailed
from listeners.scaling.actuators.command import CommandActuator
from listeners.scaling.actuators.process import ProcessActuator
from tests.support.processes import PATIENCE_S

SAYS_READY = """
import os, signal, socket, sys
fd = int(os.environ["QUEUEBELL_STARTER"].partition(":")[0])
link = socket.socket(fileno=fd)
print("out", flush=True)
print("trouble", file=sys.stderr, flush=True)
link.sendall(b"ready\\nbu")
link.sendall(b"sy\\nnonsense\\nidle\\n")
signal.pause()
"""


HURRIED: dict[str, float] = {"within_s": 0.2}
"""That it gives up is what is shown."""


class Heard:
    """Who is told, and waits for it."""

    def __init__(self) -> None:
        self.news: list[tuple[object, ...]] = []
        self._came = asyncio.Event()

    def ready(self, number: str) -> None:
        """Note it."""
        self._note("ready", number)

    def says(self, number: str, *, busy: bool) -> None:
        """Note it."""
        self._note("busy" if busy else "idle", number)

    def ended(self, number: str, code: int | None, why: str) -> None:
        """Note it."""
        self._note("ended", number, code, why)

    def _note(self, *news: object) -> None:
        self.news.append(news)
        self._came.set()

    async def until(self, holds: Callable[[list[tuple[object, ...]]], bool]) -> None:
        """Wait until the news hold something."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds(self.news):
                self._came.clear()
                await self._came.wait()


def count(what: str, number: int) -> Callable[[list[tuple[object, ...]]], bool]:
    """Return what asks for so many pieces of news of a kind."""
    return lambda news: sum(each[0] == what for each in news) >= number


def python(code: str, **given: Any) -> ProcessActuator:
    """Make an actuator whose workers run this code."""
    return ProcessActuator([sys.executable, "-c", code], **given)


@pytest.fixture(params=["process", "command"])
async def actuator(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> AsyncIterator[Actuator]:
    """One of each kind, whose workers become ready and stay."""
    made: Actuator = (
        python(SAYS_READY)
        if request.param == "process"
        else CommandActuator(["/bin/sh", "-c", f"echo $QUEUEBELL_WANTED {{}} >> {tmp_path}/wanted"])
    )
    yield made
    await made.close()


@pytest.fixture(params=["process", "command"])
async def hopeless(request: pytest.FixtureRequest) -> AsyncIterator[Actuator]:
    """One of each kind that can start nothing."""
    made: Actuator = ProcessActuator(["./no-such"]) if request.param == "process" else CommandActuator(["./no-such"])
    yield made
    await made.close()


async def test_what_is_started_runs_until_it_is_stopped(actuator: Actuator) -> None:
    """Its ids are its own, it says ready, and each end is told of once."""
    heard = Heard()
    await actuator.open(heard)
    ids = await actuator.start(2)
    assert len(set(ids)) == 2
    assert sorted(actuator.running()) == sorted(ids)
    await heard.until(count("ready", 2))
    await actuator.stop([ids[0], "nobody"])
    await heard.until(count("ended", 1))
    assert actuator.running() == [ids[1]]
    third = await actuator.start(1)
    assert third[0] not in ids
    await actuator.close()
    await actuator.close()
    assert actuator.running() == []
    assert sorted(str(each[1]) for each in heard.news if each[0] == "ended") == sorted([*ids, *third])


async def test_a_start_that_cannot_be_leaves_nothing(hopeless: Actuator) -> None:
    """And says why."""
    await hopeless.open(Heard())
    with pytest.raises(StartFailed, match="no-such"):
        await hopeless.start(2)
    assert hopeless.running() == []


@pytest.mark.parametrize("kind", [ProcessActuator, CommandActuator])
def test_nothing_to_start_is_refused(kind: Callable[[list[str]], Actuator]) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigurationError, match="command"):
        kind([])


async def test_a_command_is_told_how_many_there_should_be(tmp_path: pathlib.Path) -> None:
    """In its words and in its environment; at last 0."""
    told = tmp_path / "wanted"
    actuator = CommandActuator(["/bin/sh", "-c", f"echo $QUEUEBELL_WANTED {{}} >> {told}"])
    await actuator.open(Heard())
    ids = await actuator.start(2)
    await actuator.start(3)
    await actuator.stop(ids[:1])
    await actuator.close()
    assert told.read_text().split("\n") == ["2 2", "5 5", "4 4", "0 0", ""]


async def test_a_command_that_fails_or_hangs_is_a_failed_start() -> None:
    """With its exit code and what it said, or how long it took."""
    failing = CommandActuator(["/bin/sh", "-c", "echo no quota >&2; exit 3"])
    with pytest.raises(StartFailed, match="exit code 3 for 1 workers: no quota"):
        await failing.start(1)
    with pytest.raises(StartFailed, match=r"more than 0\.2 s"):
        await CommandActuator(["/bin/sh", "-c", "sleep 60"], **HURRIED).start(1)


async def test_a_worker_says_what_it_is_and_its_output_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    """Words may come in pieces, and unknown ones are not minded."""
    actuator, heard = python(SAYS_READY), Heard()
    await actuator.open(heard)
    (number,) = await actuator.start(1)
    await heard.until(count("idle", 1))
    assert heard.news == [("ready", number), ("busy", number), ("idle", number)]
    await actuator.close()
    assert heard.news[-1] == ("ended", number, -signal.SIGTERM, "ended by SIGTERM: trouble")
    said = capfd.readouterr().err
    assert f"worker[{number}] out\n" in said
    assert f"worker[{number}] trouble\n" in said


async def test_one_that_ends_at_once_is_told_with_its_last_words() -> None:
    """Those on standard error, the last five lines."""
    actuator, heard = python("import sys; [print(n, file=sys.stderr) for n in range(9)]; sys.exit(7)"), Heard()
    await actuator.open(heard)
    (number,) = await actuator.start(1)
    await heard.until(count("ended", 1))
    assert heard.news == [("ended", number, 7, "exit code 7: 4 | 5 | 6 | 7 | 8")]
    assert actuator.running() == []


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
async def test_a_machine_that_is_full_keeps_those_that_it_had_room_for(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """S48: Else one with room for three of eight would never run any; no file is left open."""
    actuator, heard = python(SAYS_READY), Heard()
    await actuator.open(heard)
    fork, left = asyncio.create_subprocess_exec, [2, 0]

    async def full(*words: Any, **given: Any) -> asyncio.subprocess.Process:
        if not left[0]:
            raise OSError(number, os.strerror(number))
        left[0] -= 1
        return await fork(*words, **given)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", full)
    with pytest.raises(StartFailed, match=f"{os.strerror(number)}; this machine.*is out of processes") as failed:
        await actuator.start(5)
    assert failed.value.begun == actuator.running()
    assert len(actuator.running()) == 2
    await heard.until(count("idle", 2))
    files = _files()
    with pytest.raises(StartFailed) as failed:
        await actuator.start(1)
    assert failed.value.begun == []
    assert _files() == files
    await actuator.close()
    assert actuator.running() == []


async def test_without_files_for_its_pipes_nothing_is_started_nor_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """S48: The first pipe was to be had, the second was not."""
    actuator = python(SAYS_READY)
    pipe, made = os.pipe, [True]

    def spent() -> tuple[int, int]:
        if not made.pop():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(False)
        return pipe()

    monkeypatch.setattr(os, "pipe", spent)
    files = _files()
    with pytest.raises(StartFailed, match="open files"):
        await actuator.start(1)
    assert _files() == files


def _files() -> int:
    return len(list(pathlib.Path("/dev/fd").iterdir()))


async def test_one_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    """S47: With its whole group."""
    actuator, heard = python("import signal; signal.signal(15, signal.SIG_IGN)\n" + SAYS_READY, grace=0.2), Heard()
    await actuator.open(heard)
    await actuator.start(1)
    await heard.until(count("ready", 1))
    await actuator.close()
    assert heard.news[-1][2] == -signal.SIGKILL


async def test_one_that_forks_away_is_an_end_and_what_stays_of_its_group_is_killed(tmp_path: pathlib.Path) -> None:
    """A worker stays in the foreground: what went to the background of its group does not outlive it."""
    actuator, heard = ProcessActuator(["/bin/sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid"]), Heard()
    await actuator.open(heard)
    (number,) = await actuator.start(1)
    await heard.until(count("ended", 1))
    assert heard.news == [("ended", number, 0, "exit code 0")]
    pid = int((tmp_path / "pid").read_text())
    async with asyncio.timeout(PATIENCE_S):
        while _lives(pid):
            await asyncio.sleep(0.01)


async def test_a_cancelled_close_kills() -> None:
    """Nothing is left, however long the grace."""
    actuator, heard = python("import signal; signal.signal(15, signal.SIG_IGN)\n" + SAYS_READY, grace=3600.0), Heard()
    await actuator.open(heard)
    await actuator.start(1)
    await heard.until(count("ready", 1))
    closing = asyncio.create_task(actuator.close(), name="close")
    await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert heard.news[-1][2] == -signal.SIGKILL
    assert actuator.running() == []


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = pathlib.Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
