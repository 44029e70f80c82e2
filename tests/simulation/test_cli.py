"""`python -m tests.simulation`: what it plays, what it says, and the code it ends with."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator

import msgspec
import pytest

from tests.simulation.cli import add_arguments, perform
from tests.simulation.crew import Crew, CrewLost, Job, Played
from tests.simulation.fault import draw_faults
from tests.simulation.kernel import Kernel
from tests.simulation.plan import PRESETS
from tests.simulation.summary import Report
from tests.support.command import environment, run

SIMULATE = [sys.executable, "-m", "tests.simulation"]


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def play(fake: str, *words: str) -> int:
    """Run the command in this process, with runs that come to what `fake` says."""
    return perform(arguments("--jobs", "1", *words), lambda size: Crew(size, f"tests.support.fake_runs:{fake}"))


# -- with the real thing -----------------------------------------------------------------------------------------------


def test_it_plays_seeds_and_says_what_came_of_them() -> None:
    """Each plan once: exit code 0, all six numbers, costs, waits, and what was reached."""
    said = run("--seeds", "4", "--jobs", "2", command=SIMULATE).stdout.decode()
    for word in ("attempted", "acknowledged", "lost", "duplicated", "recovered", "unexpected"):
        assert f"  {word} " in said
    assert "0.0 receives an hour of an empty queue (own, " in said
    assert "All of it held." in said and "checked  I1" in said and "reached " in said
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.prove
def test_a_wrong_turn_of_several_bridges_is_told_with_its_seed_and_shrunk(capsys: pytest.CaptureFixture[str]) -> None:
    """W1: exit code 1, the seed's command names the bridges, and the shortest story has hardly a message."""

    def crew(size: int) -> Crew:
        return Crew(size, "tests.simulation.wrong_turns:forgives_by_arrival")

    words = ("--jobs", "1", "--bridges", "2", "--seeds", "1", "--hours", "0.02", "--workers", "1", "--faults", "none")
    assert perform(arguments(*words), crew) == 1
    said = capsys.readouterr().out
    assert "breaks C" in said and "--bridges 2" in said and "The shortest story that breaks C" in said
    exact = [line.partition("again:")[2].strip() for line in said.splitlines() if "--exact" in line]
    plan = arguments(*shlex.split(exact[-1])[3:]).exact[0]
    assert plan.bridges == 2 and plan.messages <= 2


def test_a_seed_plays_the_same_story_again() -> None:
    """Two processes with different hash seeds give the same story to the last byte, and JSON the same trace."""
    words = ("--seed", "17", "--store", "elsewhere", "--channel", "broker", "--jobs", "1")
    one = run(*words, command=SIMULATE, env={"PYTHONHASHSEED": "1"}).stdout
    two = run(*words, command=SIMULATE, env={"PYTHONHASHSEED": "2"}).stdout
    assert one == two
    trace = one.decode().splitlines()[-2]
    assert trace.startswith("trace ") and b"PutAttempted" in one
    told = msgspec.json.decode(run(*words, "--json", command=SIMULATE).stdout)
    assert f"trace {told[0]['outcome']['trace_sha256']}" == trace


# -- with runs made up -------------------------------------------------------------------------------------------------


def test_nobody_who_reads_is_no_failure() -> None:
    """`| head -1`: the code is that of a command that SIGPIPE ends, not that of a promise broken."""
    program = "import sys; from tests.simulation.test_cli import play; sys.exit(play('held', '--seed', '3'))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, env=environment(), timeout=500
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """And what the exit codes mean."""
    with pytest.raises(SystemExit) as end:
        arguments("--help")
    assert end.value.code == 0
    said = capsys.readouterr().out
    for option in ("seeds", "first", "seed", "exact", "hours", "workers", "messages", "store", "channel", "faults"):
        assert f"--{option} " in said
    for option in ("jobs", "idle", "json", "auth", "bridges", "costs"):
        assert f"--{option}" in said


@pytest.mark.parametrize(
    "words",
    [
        ["--seeds", "0"],
        ["--seeds", "many"],
        ["--hours", "0"],
        ["--hours", "nan"],
        ["--messages", "1.5"],
        ["--messages", "1e99"],
        ["--faults", "rain"],
        ["--store", "moon"],
        ["--exact", "{}"],
        ["--jobs", "0"],
        ["--bridges", "4"],
    ],
)
def test_a_wrong_option_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, with the option's name."""
    with pytest.raises(SystemExit) as end:
        arguments(*words)
    assert end.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_options_that_would_do_nothing_are_refused() -> None:
    """Exit code 2, and the one to leave out is named."""
    done = run("--idle", "--messages", "5", code=2, command=SIMULATE)
    assert b"--messages does nothing beside --idle" in done.stderr
    done = run("--faults", "crash,key_revoked", code=2, command=SIMULATE)
    assert b"--faults key_revoked does nothing without --auth" in done.stderr
    done = run("--faults", "word_loss", code=2, command=SIMULATE)
    assert b"--faults word_loss does nothing without --bridges" in done.stderr
    done = run("--bridges", "2", "--auth", code=2, command=SIMULATE)
    assert b"--auth does nothing beside --bridges" in done.stderr
    done = run("--costs", "--workers", "2", code=2, command=SIMULATE)
    assert b"--workers does nothing beside --costs" in done.stderr


def test_a_failure_is_told_shrunk_and_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; the shortest story needs one fault and one message, and its command fails by itself."""
    assert play("fails", "--seeds", "12", "--store", "own", "--channel", "wire") == 1
    said = capsys.readouterr().out
    assert "breaks lost" in said and "The shortest story that breaks lost" in said and said.endswith("FAILED\n")
    commands = [line.partition("again:")[2].strip() for line in said.splitlines() if "again:" in line]
    shortest = shlex.split(commands[-1])[3:]
    exact = arguments(*shortest).exact
    assert [fault.kind for fault in exact[2]] == ["crash"] and exact[0].messages == 1
    for command in (shlex.split(commands[0])[3:], shortest):
        assert play("fails", *command) == 1
        assert "lost: 1 of 3 acknowledged messages" in capsys.readouterr().out
    assert play("held", *shortest) == 0


def test_json_goes_to_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Progress goes to standard error, and the report can be read back."""
    assert play("held", "--seeds", "8", "--json") == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=Report)
    assert report.ok and report.runs == 8 and report.total["duplicated"] == 8
    assert report.coverage == {"rare thing": 4, "unheard-of thing": 0}
    assert report.receives_per_hour_empty == {"own": 0.0, "elsewhere": 60.0}
    assert report.gaps[0].worst_s == 7.0 and report.traces["own-broker/1"] == f"{1:064x}"


def test_it_goes_on_until_so_many_messages_were_acknowledged(capsys: pytest.CaptureFixture[str]) -> None:
    """As many runs as it takes and not one more; a number of seeds as well is a second limit."""
    assert play("held", "--messages", "170000", "--store", "own", "--channel", "wire", "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Report).runs == 4
    assert play("held", "--messages", "170000", "--seeds", "2", "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Report).runs == 2


def test_a_defect_of_the_simulation_is_a_failure_with_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """The other runs are played, and what a run prints is not taken for its outcome."""
    assert play("breaks", "--seeds", "4") == 1
    said = capsys.readouterr().out
    assert "seed 1 of own-broker breaks broken" in said and "a defect of the simulation" in said
    assert "4 runs in" in said


def test_a_process_that_ends_by_itself_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, with the seed it played and its exit code."""
    assert play("dies", "--seeds", "4") == 1
    error = capsys.readouterr().err
    assert "ended with code 9 while it played seed 2" in error or "ended with code -9 while it played seed 2" in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interruption_stops_all_at_once_and_says_what_was_reached(number: signal.Signals) -> None:
    """Exit code 130, the summary so far, and no process left behind."""
    program = "import sys; from tests.simulation.test_cli import play; sys.exit(play('hangs', '--seeds', '9'))"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    try:
        assert process.stderr.readline() == b"hanging\n"
        # As a terminal does it: to every process of the group.
        os.killpg(process.pid, number) if number is signal.SIGINT else process.send_signal(number)
        said, error = process.communicate(timeout=300)
        assert process.returncode == 130, error
        assert b"Interrupted after 1 of 9 runs; these held" in said and b"All of it" not in said
        assert b"1 runs in" in said and b"interrupted; every process is stopped" in said
    finally:
        with_children_gone(process)


def test_the_crew_ends_with_whoever_started_it() -> None:
    """Killed alone, and in the middle of a run: the kernel ends the children, or they would play on unseen."""
    program = "import sys; from tests.simulation.test_cli import play; sys.exit(play('hangs', '--seeds', '9'))"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(),
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stderr.readline() == b"hanging\n"
        process.kill()
        # The children hold the other end of this pipe: it ends when the last of them does.
        process.communicate(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(("text", "meant"), [("1000000", 10**6), ("1_000_000", 10**6), ("1e6", 10**6), ("2E+3", 2000)])
def test_a_number_of_messages_may_be_written_short(text: str, meant: int) -> None:
    """Whole all the same."""
    assert arguments("--messages", text).messages == meant


def test_a_rule_that_was_never_checked_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """From some runs on: a verdict must not say more than was seen."""
    assert play("never_restarts", "--seeds", "16") == 0
    assert capsys.readouterr().out.endswith("What was checked held. Not checked: I6.\n")
    assert play("never_restarts", "--seeds", "15") == 0
    assert capsys.readouterr().out.endswith("All of it held.\n")


def with_children_gone(process: subprocess.Popen[bytes]) -> None:
    """Nobody of its group is left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
    raise AssertionError("a process was left behind")


def test_what_an_empty_queue_costs_is_laid_out_for_each_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs a row, one of them with a restart; a row without its measurement fails."""
    assert play("held", "--idle", "--hours", "2") == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if line.startswith(("  own ", "  elsewhere "))]
    assert [row[:2] for row in rows] == [
        [store, listeners] for listeners in ("1", "10", "100", "1,000") for store in ("own", "elsewhere")
    ]
    assert rows[0][3] == "0.0" and rows[-1][3] == "60.0"
    assert play("breaks", "--idle", "--first", "1", "--workers", "3", "--store", "own") == 1
    assert "a defect of the simulation" in capsys.readouterr().out


def test_idle_measures_the_real_thing() -> None:
    """Three listeners, six virtual minutes: none for the own queue, about one a minute elsewhere, one for a restart."""
    done = run("--idle", "--workers", "3", "--hours", "0.1", "--jobs", "2", "--json", command=SIMULATE)
    rows = msgspec.json.decode(done.stdout)
    assert [(row["store"], row["receives_per_hour"] > 0, row["restart_receives"]) for row in rows] == [
        ("own", False, 0),
        ("elsewhere", True, 1),
    ]


# -- a proof that was cut off ------------------------------------------------------------------------------------------


class _Tired(Crew):
    """Plays three jobs, and then says that this was all."""

    def play(self, jobs: Iterable[Job]) -> Iterator[Played | None]:
        return super().play(itertools.islice(jobs, 3))


@pytest.mark.parametrize("words", [("--seeds", "5"), ("--messages", "1e7"), ("--idle", "--workers", "3")])
def test_runs_that_are_missing_are_a_failure(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """What was played held, and it was not all: exit code 1, and the verdict says how many runs there were."""
    assert perform(arguments("--jobs", "1", *words), lambda size: _Tired(size, "tests.support.fake_runs:held")) == 1
    assert ("FAILED: ended after 3 runs" in capsys.readouterr().out) is ("--idle" not in words)


def test_a_run_that_checked_nothing_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that ended before anything could break has not held."""
    assert play("sees_nothing", "--seeds", "1") == 1
    assert "before anything was checked" in capsys.readouterr().out


# -- the crew ----------------------------------------------------------------------------------------------------------


def test_every_job_is_played_once_whatever_the_size_of_the_crew() -> None:
    """Three processes and ten jobs; jobs are asked for one at a time, so that they may depend on the outcomes."""
    asked: list[int] = []
    played: list[int] = []

    def jobs() -> object:
        for seed in range(10):
            assert seed - len(played) <= 3
            asked.append(seed)
            yield Job(PRESETS["own-wire"], seed)

    with Crew(3, "tests.support.fake_runs:held") as crew:
        for each in crew.play(jobs()):  # type: ignore[arg-type]
            if each is not None:
                assert each.outcome is not None and each.outcome.seed == each.job.seed
                played.append(each.job.seed)
        assert crew.play_one(Job(PRESETS["own-wire"], 77)).job.seed == 77
    assert sorted(played) == asked == list(range(10))


def test_nobody_is_left_after_the_crew() -> None:
    """Leaving ends also a process in the middle of a run."""
    with Crew(2, "tests.support.fake_runs:hangs") as crew:
        processes = [member.process for member in crew._members]
        crew._members[0].give(Job(PRESETS["own-wire"], 1))
    assert all(process.returncode is not None for process in processes)
    with Crew(1, "tests.support.no_such_module:run") as crew:
        with pytest.raises(CrewLost):
            crew.play_one(Job(PRESETS["own-wire"], 1))


def test_faults_drawn_outside_a_run_are_those_within() -> None:
    """Shrinking begins with the faults of the seed: given explicitly, they give the very same run."""
    from tests.simulation.run import run as real

    plan = PRESETS["own-wire"]
    faults = draw_faults(plan, Kernel(5).chance("faults"))
    assert faults
    assert real(plan, 5).trace_sha256 == real(plan, 5, faults).trace_sha256
    assert real(plan, 5).trace_sha256 != real(plan, 5, faults[1:]).trace_sha256
