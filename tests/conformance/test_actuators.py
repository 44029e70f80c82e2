"""What every actuator of a scaler promises, asked of each kind; and what each kind promises beside.

No systemd runs here: `tests.support.systemctl` stands in for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pathlib
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.listeners.scaling.actuators import program
from queuebell.listeners.scaling.actuators.base import Actuator, NotSeen, StartFailed, Watch
from queuebell.listeners.scaling.actuators.command import CommandActuator
from queuebell.listeners.scaling.actuators.output import OUTPUT
from queuebell.listeners.scaling.actuators.process import ProcessActuator
from queuebell.listeners.scaling.actuators.program import call
from queuebell.listeners.scaling.actuators.systemd import PROPERTIES, SystemdActuator
from tests.support.actuators import (
    KINDS,
    SAYS_READY,
    Heard,
    OfCommands,
    OfUnits,
    World,
    count,
    python,
    world_of,
)
from tests.support.processes import PATIENCE_S, lives

# Private: `_call`: runs the real program without its daemon.

HURRIED: dict[str, float] = {"within_s": 0.2}
HURRIED_UNITS: dict[str, float] = {"within_s": 2.0}
"""That it gives up is what is shown."""


@pytest.fixture(params=KINDS)
async def world(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """The world of each kind."""
    async with world_of(request.param, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
async def units(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OfUnits]:
    """That of systemd."""
    async with world_of("systemd", tmp_path, monkeypatch) as made:
        assert isinstance(made, OfUnits)
        yield made


@contextlib.asynccontextmanager
async def opened(actuator: Actuator) -> AsyncIterator[Heard]:
    """Open an actuator for somebody who notes what it tells, and close it."""
    heard = Heard()
    await actuator.open(heard)
    try:
        yield heard
    finally:
        await actuator.close()


async def test_what_is_started_runs_until_it_is_stopped(world: World) -> None:
    """Its ids are its own, it says ready, and each end is told of once; what outlives its scaler goes on after it."""
    actuator = world.make()
    async with opened(actuator) as heard:
        ids = await actuator.start(2)
        assert len(set(ids)) == 2
        assert sorted(actuator.running()) == sorted(ids)
        await heard.until(count("ready", 2))
        await actuator.look()
        await actuator.stop([ids[0], "nobody"])
        await heard.until(count("ended", 1))
        assert actuator.running() == [ids[1]]
        third = await actuator.start(1)
        assert third[0] not in ids
        await actuator.close()
        await actuator.close()
        ended = sorted(str(each[1]) for each in heard.news if each[0] == "ended")
        if actuator.outlives:
            assert (ended, world.outside()) == ([ids[0]], 2)
        else:
            assert (ended, actuator.running()) == (sorted([*ids, *third]), [])
    assert str(actuator)


async def test_a_start_that_cannot_be_leaves_nothing(world: World) -> None:
    actuator = world.hopeless()
    async with opened(actuator):
        with pytest.raises(StartFailed, match="no-such"):
            await actuator.start(2)
        assert actuator.running() == []


async def test_units_that_run_already_are_found(units: OfUnits) -> None:
    """The scaler after a killed one gives each unit an id, says when it is ready, and can end it."""
    killed = units.make()
    async with opened(killed):
        await killed.start(3)
    actuator = units.make()
    async with opened(actuator) as heard:
        found = actuator.running()
        assert (len(set(found)), heard.news) == (3, [])
        await heard.until(count("ready", 3))
        (new,) = await actuator.start(1)
        assert new not in found
        await actuator.stop(found)
        await heard.until(count("ended", 3))
        assert (actuator.running(), units.outside()) == ([new], 1)


async def test_units_that_cannot_be_seen_at_first_are_found_later(units: OfUnits) -> None:
    """Nothing is started until the units are counted: the first start after that reports them and fails."""
    units.look_s = 3600.0
    first = units.make()
    async with opened(first):
        await first.start(2)
    units.systemctl.be(away=True)
    actuator = units.make()
    async with opened(actuator) as heard:
        assert actuator.running() == []
        with pytest.raises(NotSeen) as unseen:
            await actuator.look()
        assert actuator.unseen == str(unseen.value)
        with pytest.raises(StartFailed):
            await actuator.start(1)
        units.systemctl.be(away=False)
        with pytest.raises(StartFailed, match="counted again"):
            await actuator.start(1)
        assert [each[0] for each in heard.news] == ["found"]
        assert (len(actuator.running()), units.outside()) == (2, 2)
        assert len(await actuator.start(1)) == 1
        assert units.outside() == 3
        await actuator.look()
        assert actuator.unseen is None


@pytest.mark.parametrize("kind", [ProcessActuator, CommandActuator])
def test_nothing_to_start_is_refused(kind: Callable[[list[str]], Actuator]) -> None:
    with pytest.raises(ConfigurationError, match="command"):
        kind([])


async def test_a_command_is_told_how_many_there_should_be(tmp_path: pathlib.Path) -> None:
    """In its words and in its environment; at last 0."""
    world = OfCommands(tmp_path)
    actuator = world.make()
    async with opened(actuator):
        ids = await actuator.start(2)
        await actuator.start(3)
        await actuator.stop(ids[:1])
    assert world.told.read_text().split("\n") == ["2 2", "5 5", "4 4", "0 0", ""]


async def test_a_command_that_fails_or_hangs_is_a_failed_start() -> None:
    failing = CommandActuator(["/bin/sh", "-c", "echo no quota >&2; exit 3", "{}"])
    with pytest.raises(StartFailed, match="exit code 3 for 1 workers: no quota"):
        await failing.start(1)
    await failing.close()
    hanging = CommandActuator(["/bin/sh", "-c", "sleep 60", "{}"], **HURRIED)
    with pytest.raises(StartFailed, match=r"more than 0\.2 s"):
        await hanging.start(1)
    await hanging.close()


def test_a_command_without_a_place_for_the_number_is_refused() -> None:
    """It would be called with the same words for ever."""
    with pytest.raises(ConfigurationError, match=r"has no \{\}"):
        CommandActuator(["docker", "service", "scale", "orders=3"])


async def test_a_command_hears_of_no_worker_from_a_scaler_that_starts_none(tmp_path: pathlib.Path) -> None:
    """What one that was killed has left is nobody's otherwise."""
    told = tmp_path / "told"
    actuator = CommandActuator(["/bin/sh", "-c", f"echo {{}} >> {told}"], again_s=0.0)
    async with opened(actuator):
        async with asyncio.timeout(PATIENCE_S):
            while actuator.repeating is not None:
                await asyncio.sleep(0.01)
        assert told.read_text() == "0\n"
    assert told.read_text() == "0\n"


async def test_a_command_that_did_a_part_is_told_again_what_is_meant(tmp_path: pathlib.Path) -> None:
    """After each failure, of a start or of an end, and not in a storm: one call a pause, further apart each time."""
    told, broken = tmp_path / "told", tmp_path / "broken"
    script = f"echo {{}} >> {told}; test ! -e {broken}"
    actuator = CommandActuator(["/bin/sh", "-c", script], again_s=0.05)

    async def until_mended() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while actuator.repeating is not None:
                await asyncio.sleep(0.01)

    async with opened(actuator) as heard:
        ids = await actuator.start(2)
        await until_mended()
        broken.touch()
        with pytest.raises(StartFailed):
            await actuator.start(1)
        broken.unlink()
        await until_mended()
        assert told.read_text().split()[-2:] == ["3", "2"]
        broken.touch()
        await actuator.stop(ids[:1])
        await heard.until(count("ended", 1))
        async with asyncio.timeout(PATIENCE_S):
            while told.read_text().split().count("1") < 3:
                await asyncio.sleep(0.01)
        broken.unlink()
        await until_mended()
        assert set(told.read_text().split()[-3:]) == {"1"}
    assert told.read_text().split()[-1] == "0"


@pytest.mark.parametrize("name", ["queuebell-worker", "worker@1.service", "@", "a b@", "../x@", "--user@ x", ""])
def test_a_unit_that_is_no_template_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="template"):
        SystemdActuator(name)


async def test_units_take_the_lowest_numbers_that_are_free(units: OfUnits) -> None:
    """What others have started by hand stays theirs, and names that are no number are nobody's."""
    units.systemctl.put(2)
    actuator = SystemdActuator("queuebell-worker@.service", user=True, every_s=3600.0)
    async with opened(actuator) as heard:
        assert len(actuator.running()) == 1
        units.systemctl.put(4)
        await actuator.start(3)
        assert units.systemctl.live == [1, 2, 3, 4, 5]
        assert all(words[0] == "--user" for words in units.systemctl.calls("start"))
        await actuator.stop(actuator.running())
        for _ in range(3):
            await actuator.look()
        assert [each[2:] for each in heard.news if each[0] == "ended"] == [(0, "ended in order")] * 4
        assert units.systemctl.live == [4]
        again = await actuator.start(1)
        assert (units.systemctl.live, len(again)) == ([1, 4], 1)


async def test_a_unit_says_what_it_is_by_its_state_and_its_text(units: OfUnits) -> None:
    """Ready as it is active, busy as it says so; each change is told of once, a spell between two looks among them."""
    actuator = SystemdActuator("queuebell-worker@", every_s=3600.0)
    async with opened(actuator) as heard:
        (name,) = await actuator.start(1)
        await actuator.look()
        assert heard.news == [], "systemd has not begun with it"
        for text in ("", "idle 0", "idle 0", "busy 1", "idle 1", "idle 2"):
            units.systemctl.put(1, text=text)
            await actuator.look()
        told = [("ready", name), ("idle", name), ("busy", name), ("idle", name), ("idle", name)]
        assert heard.news == told


async def test_a_unit_that_fails_is_told_with_where_to_read_on(units: OfUnits) -> None:
    """Its result, its exit code, and the command that shows its journal."""
    units.systemctl.be(fails=7)
    actuator = units.make()
    async with opened(actuator) as heard:
        (name,) = await actuator.start(1)
        await heard.until(count("ended", 1))
        why = "exit-code, exit code 7; journalctl -u queuebell-worker@1.service"
        assert heard.news == [("ended", name, 7, why)]
        units.systemctl.be(fails=0)
        await actuator.start(1)
        assert units.systemctl.live == [1], "its number is free again"


async def test_systemctl_that_may_not_or_hangs_is_a_failed_start(
    units: OfUnits, caplog: pytest.LogCaptureFixture
) -> None:
    actuator = SystemdActuator("queuebell-worker@", every_s=3600.0, **HURRIED_UNITS)
    async with opened(actuator):
        units.systemctl.be(denied=True)
        with pytest.raises(StartFailed, match=r"Interactive authentication required.*rule of polkit"):
            await actuator.start(1)
        units.systemctl.be(denied=False, hangs=True)
        with pytest.raises(StartFailed, match="took more than"):
            await actuator.start(1)
        assert actuator.running() == []
        units.systemctl.be(hangs=False)
        ids = await actuator.start(1)
        units.systemctl.be(denied=True)
        stopping = asyncio.create_task(actuator.stop(ids), name="stop")
        async with asyncio.timeout(PATIENCE_S):
            while "workers could not be stopped" not in caplog.text:
                await asyncio.sleep(0.01)
        assert actuator.running() == ids
        stopping.cancel()
        await asyncio.wait([stopping])


@pytest.mark.system
@pytest.mark.parametrize("verb", ["show", "start", "stop"])
async def test_the_real_systemctl_takes_our_words(verb: str) -> None:
    """Without a systemd behind it: it says that, and of no option that it does not know it."""
    actuator = SystemdActuator("queuebell-no-such@")
    words = ["--no-block", "--no-ask-password", "--", "queuebell-no-such@1.service"]
    if verb == "show":
        words = ["--no-pager", f"--property={PROPERTIES}", "--", "queuebell-no-such@*.service"]
    try:
        said = await actuator._call(verb, *words)
    except StartFailed as failed:
        said = str(failed)
    assert "option" not in said, said
    assert verb == "show" or "exit code" in said
    with pytest.raises(StartFailed, match="option"):
        await actuator._call(verb, "--no-such-option")


@pytest.mark.parametrize(
    ("left", "within_s", "words"),
    [
        ("sleep 1000 & echo $! > pid", 300.0, None),
        ("setsid sleep 1000 & echo $! > pid; sleep 1000", 0.3, "took more than"),
    ],
    ids=["ends before it", "hangs"],
)
async def test_what_a_program_leaves_running_holds_nobody(
    tmp_path: pathlib.Path, left: str, within_s: float, words: str | None
) -> None:
    """A script that starts workers in the background leaves them its output; in a session of their own, for ever."""
    line = ["/bin/sh", "-c", f"cd {tmp_path}; echo started; {left}"]
    try:
        async with asyncio.timeout(PATIENCE_S):
            if words is None:
                assert await call(line, "for 1 worker", within_s=within_s, environment={}) == "started\n"
            else:
                with pytest.raises(StartFailed, match=words):
                    await call(line, "for 1 worker", within_s=within_s, environment={})
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("whole", [False, True])
async def test_a_program_that_writes_without_end_takes_no_memory(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """The end of it is kept; where all of it has to be read, as of units that run, a part is taken for no answer."""
    monkeypatch.setattr(program, "OUTPUT_BYTES", 1000)
    line = ["/bin/sh", "-c", "head -c 100000 /dev/zero; echo end"]
    if whole:
        with pytest.raises(StartFailed, match="more than 1000 bytes to show"):
            await call(line, "to show", within_s=PATIENCE_S, environment={}, whole=True)
    else:
        text = await call(line, "to show", within_s=PATIENCE_S, environment={})
        assert len(text) <= 1000
        assert text.endswith("end\n")


async def test_looking_goes_on_whatever_breaks(caplog: pytest.LogCaptureFixture) -> None:
    """A defect is in the log once, and the next look comes."""
    seen = asyncio.Event()
    looks = iter([ValueError("broken"), None])

    async def look() -> None:
        if (error := next(looks, None)) is not None:
            raise error
        seen.set()

    watch = Watch("units", look, every_s=0.001, wanted=lambda: True)
    watch.begin()
    async with asyncio.timeout(PATIENCE_S):
        await seen.wait()
    await watch.close()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        "units: unexpected error while checking which workers run; it is retried"
    ]


async def test_a_worker_says_what_it_is_and_its_output_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    """Words may come in pieces, and unknown ones are not minded."""
    actuator, heard = python(SAYS_READY), Heard()
    await actuator.open(heard)
    (number,) = await actuator.start(1)
    await heard.until(count("idle", 1))
    assert heard.news == [("ready", number), ("busy", number), ("idle", number)]
    await actuator.close()
    assert heard.news[-1] == ("ended", number, -signal.SIGTERM, "ended by SIGTERM: trouble")
    OUTPUT.drain()
    said = capfd.readouterr().err
    assert f"worker[{number}] out\n" in said
    assert f"worker[{number}] trouble\n" in said


async def test_one_that_ends_at_once_is_told_with_its_last_words() -> None:
    actuator, heard = python("import sys; [print(n, file=sys.stderr) for n in range(9)]; sys.exit(7)"), Heard()
    await actuator.open(heard)
    (number,) = await actuator.start(1)
    await heard.until(count("ended", 1))
    assert heard.news == [("ended", number, 7, "exit code 7: 4 | 5 | 6 | 7 | 8")]
    assert actuator.running() == []
    await actuator.close()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
async def test_a_machine_that_is_full_keeps_those_that_it_had_room_for(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """S48: Else one with room for three of eight would never run any; no file is left open."""
    actuator, heard = python(SAYS_READY), Heard()
    await actuator.open(heard)
    fork, left = asyncio.create_subprocess_exec, [3, 0]  # its guard, and two

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
    await actuator.close()
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
        while lives(pid):
            await asyncio.sleep(0.01)
    await actuator.close()


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
